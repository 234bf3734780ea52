//! When two templates are the same, and the name of a template's machine set.

use std::collections::BTreeMap;

use nodewright_api::{MachineDeployment, MachineTemplate, labels};
use nodewright_runtime::object::name;

use nodewright_api::stored::{ALPHABET, SUFFIX, fnv1a};

/// Whether machines of one template serve as machines of the other, by MCM's rule: labels (without the hash of the template),
/// annotations, the name and the API group of the class, and the provider id count. All other fields are copied to the existing
/// machines.
pub fn is_same(one: &MachineTemplate, other: &MachineTemplate) -> bool {
    compared(one).eq(compared(other))
}

fn compared(template: &MachineTemplate) -> impl Iterator<Item = [&str; 3]> {
    let own_labels = entries("label", template.metadata.labels.as_ref());
    own_labels
        .filter(|[_, key, _]| *key != labels::MACHINE_TEMPLATE_HASH)
        .chain(entries("annotation", template.metadata.annotations.as_ref()))
        .chain([["class", template.spec.class.name.as_str(), ""]])
        // Most templates have neither, and hashes are those of versions that did not look at them.
        .chain(optional("apiGroup", &template.spec.class.api_group))
        .chain(optional("providerID", &template.spec.provider_id))
}

fn optional<'a>(field: &'static str, value: &'a str) -> Option<[&'a str; 3]> {
    (!value.is_empty()).then_some([field, value, ""])
}

fn entries<'a>(section: &'a str, map: Option<&'a BTreeMap<String, String>>) -> impl Iterator<Item = [&'a str; 3]> {
    map.into_iter().flatten().map(move |(key, value)| [section, key.as_str(), value.as_str()])
}

/// The FNV-1a hash of the compared fields of a template, and of the number of names that turned out to be taken. It must be the
/// same in every version: another one would give a set of an old template a second name.
pub(crate) fn hash(template: &MachineTemplate, collisions: i32) -> u32 {
    let collisions = if collisions == 0 { String::new() } else { collisions.to_string() };
    let parts = compared(template).flatten().chain([collisions.as_str()]);
    fnv1a(parts.flat_map(|part| part.bytes().chain([0])))
}

pub(crate) fn hash_label(deployment: &MachineDeployment) -> String {
    hash(&deployment.spec.template, collisions(deployment)).to_string()
}

pub(crate) fn set_name(deployment: &MachineDeployment) -> String {
    let mut rest = hash(&deployment.spec.template, collisions(deployment));
    let mut text = format!("{}-", name(deployment));
    for _ in 0..SUFFIX {
        text.push(char::from(ALPHABET[(rest % 27) as usize]));
        rest /= 27;
    }
    text
}

pub(crate) fn collisions(deployment: &MachineDeployment) -> i32 {
    deployment.status.as_ref().and_then(|status| status.collision_count).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn template(value: Value) -> MachineTemplate {
        serde_json::from_value(value).unwrap()
    }

    fn plain() -> Value {
        json!({
            "metadata": {"labels": {"name": "pool"}, "annotations": {"zone": "1"}},
            "spec": {"class": {"kind": "MachineClass", "name": "small"}, "drainTimeout": "2h"}
        })
    }

    fn changed(pointer: &str, value: Value) -> MachineTemplate {
        let mut changed = plain();
        *changed.pointer_mut(pointer).unwrap() = value;
        template(changed)
    }

    #[test]
    fn only_labels_annotations_class_and_provider_id_start_a_rollout() {
        let same = [
            changed("/spec/drainTimeout", json!("3h")),
            changed("/spec/class/kind", json!("AWSMachineClass")),
            changed("/spec/class", json!({"apiGroup": "", "name": "small"})),
            changed("/metadata/labels", json!({"name": "pool", "machine-template-hash": "123"})),
            changed("/spec", json!({"class": {"name": "small"}, "nodeTemplate": {"metadata": {"labels": {"a": "b"}}}})),
        ];
        for other in same {
            assert!(is_same(&template(plain()), &other), "{other:?}");
            assert_eq!(hash(&template(plain()), 0), hash(&other, 0));
        }
        let different = [
            changed("/spec/class/name", json!("large")),
            changed("/metadata/labels", json!({"name": "pool", "more": ""})),
            changed("/metadata/labels", json!({"name": "other"})),
            changed("/metadata/annotations", json!({})),
            changed("/metadata", json!({"labels": {"name": "pool", "zone": "1"}})),
            changed("/spec/class", json!({"apiGroup": "machine.sapcloud.io", "name": "small"})),
            changed("/spec", json!({"class": {"name": "small"}, "providerID": "x:///1"})),
        ];
        for other in different {
            assert!(!is_same(&template(plain()), &other), "{other:?}");
            assert_ne!(hash(&template(plain()), 0), hash(&other, 0));
        }
    }

    #[test]
    fn no_annotations_and_empty_annotations_are_the_same() {
        let (absent, empty) = (json!({"metadata": {}}), json!({"metadata": {"annotations": {}, "labels": {}}}));
        assert!(is_same(&template(absent), &template(empty)));
    }

    #[test]
    fn names_are_fixed_for_all_versions() {
        let mut deployment = MachineDeployment::new("pool", nodewright_api::MachineDeploymentSpec::default());
        deployment.spec.template = template(plain());
        assert_eq!(set_name(&deployment), "pool-g6lkq");
        assert_eq!(hash_label(&deployment), "3177629977");
        deployment.status.get_or_insert_default().collision_count = Some(1);
        assert_eq!(set_name(&deployment), "pool-5z6zn");
    }
}
