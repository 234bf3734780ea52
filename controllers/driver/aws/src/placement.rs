//! The annotation `machine.sapcloud.io/awsPlacement` of a Machine's node template: EC2's `Placement` as JSON, which counts if the class has no
//! `placement`. Names are read without regard to case, as machine-controller-manager's provider does.

use nodewright_api::Code;
use nodewright_driver::{DriverError, MachineRequest, Result};
use serde_json::{Map, Value};

/// The annotation.
pub(crate) const ANNOTATION: &str = "machine.sapcloud.io/awsPlacement";

/// The fields of EC2's `Placement`. All are texts, except one.
const FIELDS: [&str; 10] = [
    "Affinity",
    "AvailabilityZone",
    "AvailabilityZoneId",
    "GroupId",
    "GroupName",
    "HostId",
    "HostResourceGroupArn",
    NUMBER,
    "SpreadDomain",
    "Tenancy",
];
const NUMBER: &str = "PartitionNumber";

/// The fields that the annotation names, with their values; none without it.
///
/// # Errors
/// `InvalidArgument` for what is not such an object. machine-controller-manager's provider passes over fields that it does not know: a
/// misspelt tenancy would be the default one.
pub(crate) fn annotated(request: &MachineRequest) -> Result<Vec<(&'static str, String)>> {
    let found = request.node_annotations().find(|(key, text)| *key == ANNOTATION && !text.is_empty());
    let Some((_, text)) = found else { return Ok(vec![]) };
    let fields: Map<String, Value> =
        serde_json::from_str(text).map_err(|_| invalid("it must be a JSON object with fields of EC2's Placement"))?;
    let mut known = vec![];
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let field = FIELDS.into_iter().find(|field| field.eq_ignore_ascii_case(name));
        let field = field.ok_or_else(|| invalid(&format!("its fields are {}", FIELDS.join(", "))))?;
        let value = match value {
            Value::String(text) if field != NUMBER => text.clone(),
            Value::Number(number) if field == NUMBER && number.is_u64() => number.to_string(),
            _ if field == NUMBER => return Err(invalid(&format!("{field} must be a number"))),
            _ => return Err(invalid(&format!("{field} must be a text"))),
        };
        if known.iter().any(|(known, _)| *known == field) {
            return Err(invalid(&format!("it has {field} twice")));
        }
        if !value.is_empty() {
            known.push((field, value));
        }
    }
    Ok(known)
}

fn invalid(what: &str) -> DriverError {
    let message = format!(
        "failed to read the annotation {ANNOTATION} of the machine's spec.nodeTemplate: {what}; correct it in the MachineDeployment"
    );
    DriverError::new(Code::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use nodewright_api::NodeTemplate;
    use nodewright_driver_contract as contract;
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Vec<(&'static str, String)>> {
        let mut template = NodeTemplate::default();
        template.metadata.annotations = Some(BTreeMap::from([(ANNOTATION.to_owned(), text.to_owned())]));
        annotated(&MachineRequest { node_template: Arc::new(template), ..unannotated() })
    }

    fn unannotated() -> MachineRequest {
        contract::machine("m", contract::class(&json!({})))
    }

    #[test]
    fn names_are_read_without_regard_to_case() {
        let expected = [("PartitionNumber", "2".to_owned()), ("Tenancy", "dedicated".to_owned())];
        for text in [
            r#"{"Tenancy":"dedicated","PartitionNumber":2}"#,
            r#"{"tenancy":"dedicated","partitionNumber":2,"hostId":null,"groupName":""}"#,
        ] {
            let mut fields = read(text).unwrap();
            fields.sort();
            assert_eq!(fields, expected, "{text}");
        }
        assert_eq!(annotated(&unannotated()), Ok(vec![]));
        assert_eq!(read(""), Ok(vec![]));
        assert_eq!(read("{}"), Ok(vec![]));
    }

    #[test]
    fn what_ec2_does_not_know_is_refused() {
        for (text, named) in [
            ("dedicated", "must be a JSON object"),
            ("[]", "must be a JSON object"),
            (r#"{"tenancie":"dedicated"}"#, "Tenancy"),
            (r#"{"tenancy":"a","Tenancy":"b"}"#, "Tenancy twice"),
            (r#"{"tenancy":1}"#, "Tenancy must be a text"),
            (r#"{"partitionNumber":"2"}"#, "PartitionNumber must be a number"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.code == Code::InvalidArgument && error.message.contains(named), "{text}: {error}");
            assert!(error.message.contains(ANNOTATION), "{error}");
        }
    }
}
