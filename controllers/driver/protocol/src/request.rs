//! Requests, from the types of the contract to messages and back.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use nodewright_api::{Code, NodeTemplate, RawJson};
use nodewright_driver::{
    Class, DriverError, MachineRequest, OrphanRequest, Result, SecretData, SecretText, UnownedRequest,
};

use super::v1;

/// A request about a Machine, without the user data.
pub fn machine_request(request: &MachineRequest) -> v1::MachineRequest {
    v1::MachineRequest {
        name: request.name.clone(),
        namespace: request.namespace.clone(),
        token: request.uid.clone(),
        provider_id: request.provider_id.clone().unwrap_or_default(),
        is_proven: request.is_proven,
        last_known_state: request.last_known_state.clone(),
        adopted_token: request.adopted_uid.clone(),
        class: Some(class(&request.class)),
    }
}

/// A request for the VM of a Machine.
pub fn create_request(request: &MachineRequest) -> v1::CreateMachineRequest {
    let user_data = v1::UserData { text: request.user_data.0.as_ref().to_owned() };
    v1::CreateMachineRequest {
        machine: Some(machine_request(request)),
        user_data: Some(user_data),
        node_annotations: request.node_annotations().map(|(key, value)| (key.clone(), value.clone())).collect(),
    }
}

/// A request to delete one VM that no Machine has.
pub fn orphan_request(orphan: &OrphanRequest) -> v1::DeleteOrphanRequest {
    let (provider_id, name) = (orphan.provider_id.clone(), orphan.machine.clone());
    v1::DeleteOrphanRequest { provider_id, name, class: Some(class(&orphan.class)) }
}

/// A request to delete one VM that no Machine has as the driver gets it.
pub fn decode_orphan(request: v1::DeleteOrphanRequest) -> Result<OrphanRequest> {
    if request.provider_id.is_empty() || request.name.is_empty() {
        return Err(incomplete("provider_id and name"));
    }
    let (provider_id, machine) = (request.provider_id, request.name);
    Ok(OrphanRequest { provider_id, machine, class: decode_class(request.class)? })
}

/// A question about a VM that was not made for a Machine.
pub fn unowned_request(request: &UnownedRequest) -> v1::DescribeUnownedRequest {
    v1::DescribeUnownedRequest { provider_id: request.provider_id.clone(), class: Some(class(&request.class)) }
}

/// A question about a VM that was not made for a Machine as the driver gets it.
pub fn decode_unowned(request: v1::DescribeUnownedRequest) -> Result<UnownedRequest> {
    if request.provider_id.is_empty() {
        return Err(incomplete("provider_id"));
    }
    Ok(UnownedRequest { provider_id: request.provider_id, class: decode_class(request.class)? })
}

/// A question about volumes, by the specs of their `PersistentVolumes`.
pub fn volumes_request(volumes: &[RawJson]) -> v1::GetVolumeIdsRequest {
    v1::GetVolumeIdsRequest { volume_specs: volumes.iter().map(|spec| spec.text().to_owned()).collect() }
}

/// The specs of `PersistentVolumes` as the driver gets them.
pub fn decode_volumes(request: v1::GetVolumeIdsRequest) -> Result<Vec<RawJson>> {
    let specs = request.volume_specs.into_iter().map(RawJson::from_text);
    let specs = specs.collect::<std::result::Result<_, _>>();
    specs.map_err(|_| DriverError::new(Code::InvalidArgument, "a spec of the request is no JSON"))
}

/// A class with its credentials.
pub fn class(class: &Class) -> v1::Class {
    let data = class.secret.entries().into_iter().map(|(key, value)| (key.to_owned(), value.to_vec())).collect();
    v1::Class {
        name: class.name.clone(),
        revision: class.revision.clone(),
        provider_spec: class.provider_spec.text().to_owned(),
        secrets: Some(v1::Secrets { data }),
    }
}

/// A request about a Machine as the driver gets it.
pub fn decode_machine(request: v1::MachineRequest) -> Result<MachineRequest> {
    if request.name.is_empty() || request.token.is_empty() {
        return Err(incomplete("name and token"));
    }
    Ok(MachineRequest {
        name: request.name,
        namespace: request.namespace,
        uid: request.token,
        adopted_uid: request.adopted_token.filter(|token| !token.is_empty()),
        provider_id: Some(request.provider_id).filter(|id| !id.is_empty()),
        is_proven: request.is_proven,
        last_known_state: request.last_known_state,
        class: decode_class(request.class)?,
        user_data: SecretText::default(),
        node_template: Arc::default(),
        traceparent: None,
    })
}

/// A request for the VM of a Machine as the driver gets it.
pub fn decode_create(request: v1::CreateMachineRequest) -> Result<MachineRequest> {
    let machine = decode_machine(request.machine.ok_or_else(|| incomplete("machine"))?)?;
    let user_data = request.user_data.map(|user_data| SecretText(user_data.text.into())).unwrap_or_default();
    let mut node_template = NodeTemplate::default();
    if !request.node_annotations.is_empty() {
        node_template.metadata.annotations = Some(request.node_annotations.into_iter().collect());
    }
    Ok(MachineRequest { user_data, node_template: Arc::new(node_template), ..machine })
}

/// A class as the driver gets it.
pub fn decode_class(class: Option<v1::Class>) -> Result<Class> {
    let class = class.ok_or_else(|| incomplete("class"))?;
    let provider_spec = RawJson::from_text(class.provider_spec)
        .map_err(|_| DriverError::new(Code::InvalidArgument, "the provider_spec of the request is no JSON"))?;
    let data: BTreeMap<String, ByteString> =
        class.secrets.unwrap_or_default().data.into_iter().map(|(key, value)| (key, ByteString(value))).collect();
    let secrets = Some(data).filter(|data| !data.is_empty());
    let secret = secrets.map(|data| Arc::new(Secret { data: Some(data), ..Secret::default() }));
    Ok(Class {
        name: class.name,
        revision: class.revision,
        provider_spec,
        secret: SecretData::of(secret.into_iter().collect()),
    })
}

fn incomplete(what: &str) -> DriverError {
    DriverError::new(Code::InvalidArgument, format!("the request lacks {what}"))
}

#[cfg(test)]
mod tests {
    use nodewright_driver_contract as contract;
    use serde_json::json;

    use super::*;

    fn secret(data: &[(&str, &str)]) -> Arc<Secret> {
        let entry = |(key, value): &(&str, &str)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec()));
        Arc::new(Secret { data: Some(data.iter().map(entry).collect()), ..Secret::default() })
    }

    fn annotated(key: &str, value: &str) -> NodeTemplate {
        let mut template = NodeTemplate::default();
        template.metadata.annotations = Some(BTreeMap::from([(key.to_owned(), value.to_owned())]));
        template
    }

    fn request() -> MachineRequest {
        let secret = SecretData::of(vec![
            secret(&[("region", "of secretRef"), ("userData", "#!")]),
            secret(&[("region", "of credentialsSecretRef")]),
        ]);
        let class = Class {
            name: "c".to_owned(),
            revision: "7".to_owned(),
            secret,
            ..contract::class(&json!({"cluster": "a", "n": 1.5}))
        };
        MachineRequest {
            namespace: "shoot--a".to_owned(),
            uid: "uid".to_owned(),
            adopted_uid: Some("former".to_owned()),
            provider_id: Some("p:///1".to_owned()),
            is_proven: true,
            last_known_state: "notes".to_owned(),
            user_data: SecretText("#cloud-config".into()),
            node_template: Arc::new(annotated("a", "b")),
            ..contract::machine("m", class)
        }
    }

    #[test]
    fn what_one_side_asks_is_what_the_other_reads() {
        let asked = request();
        let read = decode_create(create_request(&asked)).unwrap();
        assert_eq!((&read.user_data, &read.node_template), (&asked.user_data, &asked.node_template));
        for read in [read, decode_machine(machine_request(&asked)).unwrap()] {
            let of = |it: &MachineRequest| {
                (it.name.clone(), it.namespace.clone(), it.uid.clone(), it.provider_id.clone(), it.is_proven)
            };
            assert_eq!(of(&read), of(&asked));
            assert_eq!(read.adopted_uid.as_deref(), Some("former"));
            assert_eq!(read.last_known_state, "notes");
            assert_eq!((read.class.name.as_str(), read.class.revision.as_str()), ("c", "7"));
            assert_eq!(read.class.provider_spec.text(), asked.class.provider_spec.text());
            assert_eq!(read.class.secret.get("region"), Some(b"of credentialsSecretRef".as_slice()));
            assert_eq!(read.class.secret.fingerprint(""), asked.class.secret.fingerprint(""));
        }
        assert_eq!(decode_machine(machine_request(&asked)).unwrap().user_data, SecretText::default());
    }

    #[test]
    fn an_orphan_is_named_by_both_its_id_and_its_machine() {
        let class = request().class;
        let orphan = OrphanRequest { provider_id: "p:///1".to_owned(), machine: "m".to_owned(), class };
        let read = decode_orphan(orphan_request(&orphan)).unwrap();
        assert_eq!((read.provider_id, read.machine), (orphan.provider_id.clone(), orphan.machine.clone()));
        for lacking in [
            v1::DeleteOrphanRequest { provider_id: String::new(), ..orphan_request(&orphan) },
            v1::DeleteOrphanRequest { name: String::new(), ..orphan_request(&orphan) },
        ] {
            assert_eq!(decode_orphan(lacking).unwrap_err().code, Code::InvalidArgument);
        }
    }

    #[test]
    fn an_unowned_vm_is_named_by_its_id() {
        let asked = UnownedRequest { provider_id: "p:///1".to_owned(), class: request().class };
        let read = decode_unowned(unowned_request(&asked)).unwrap();
        assert_eq!((read.provider_id, read.class.name), (asked.provider_id.clone(), asked.class.name.clone()));
        let lacking = v1::DescribeUnownedRequest { provider_id: String::new(), ..unowned_request(&asked) };
        assert_eq!(decode_unowned(lacking).unwrap_err().code, Code::InvalidArgument);
    }

    #[test]
    fn specs_of_volumes_arrive_in_their_order() {
        let volumes = [json!({"nfs": {"path": "a"}}), json!({"nfs": {"path": "b"}})].map(|spec| RawJson::from(&spec));
        assert_eq!(decode_volumes(volumes_request(&volumes)), Ok(volumes.into()));
        let broken = v1::GetVolumeIdsRequest { volume_specs: vec!["{".to_owned()] };
        assert_eq!(decode_volumes(broken).unwrap_err().code, Code::InvalidArgument);
    }

    #[test]
    fn what_is_absent_stays_absent() {
        let bare = contract::machine("m", contract::class(&json!({})));
        let read = decode_machine(machine_request(&bare)).unwrap();
        assert_eq!(read.provider_id, None);
        assert!(read.class.secret.is_empty());
    }

    #[test]
    fn a_request_that_lacks_a_part_is_refused() {
        let whole = machine_request(&request());
        for (lacking, what) in [
            (v1::MachineRequest { name: String::new(), ..whole.clone() }, "name"),
            (v1::MachineRequest { token: String::new(), ..whole.clone() }, "token"),
            (v1::MachineRequest { class: None, ..whole.clone() }, "class"),
            (v1::MachineRequest { class: Some(v1::Class::default()), ..whole }, "provider_spec"),
        ] {
            let error = decode_machine(lacking).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument);
            assert!(error.message.contains(what), "{error}");
        }
        assert_eq!(decode_create(v1::CreateMachineRequest::default()).unwrap_err().code, Code::InvalidArgument);
    }
}
