//! What must not change of a MachineClass while machines use it.

use nodewright_api::field::{FieldError, FieldPath};
use nodewright_api::{MachineClass, finalizers};
use serde_json::Value;

/// The fields by which VMs of a class are found, as JSON paths below `providerSpec`. It is given by whoever knows the
/// providers; for a class of an unknown one there are none.
pub type ClassIdentity = std::sync::Arc<dyn Fn(&MachineClass) -> Vec<String> + Send + Sync>;

const IMMUTABLE: &str = "is immutable while machines use the class, because their VMs are found by it: \
     make another class, and name it in the MachineDeployment";

/// What a change of a class would lose. A class is in use while it has the finalizer that its machines put there.
pub(super) fn errors(new: &MachineClass, old: &MachineClass, identity: &ClassIdentity) -> Vec<FieldError> {
    let held = old.metadata.finalizers.iter().flatten();
    if !held.into_iter().any(|finalizer| finalizer == finalizers::MACHINE_CONTROLLER_MANAGER) {
        return vec![];
    }
    let mut errors = vec![];
    if !old.provider.is_empty() && !old.provider.eq_ignore_ascii_case(&new.provider) {
        errors.push(FieldError::forbidden(FieldPath::new("provider"), IMMUTABLE));
    }
    let (before, after) = (spec(old), spec(new));
    for path in identity(old) {
        let parts = || path.split('.').filter(|part| !part.is_empty());
        let at = |spec| parts().try_fold(spec, |value: &Value, part| value.get(part));
        if at(&before) != at(&after) {
            let path = parts().fold(FieldPath::new("providerSpec"), |path, part| path.child(part));
            errors.push(FieldError::forbidden(path, IMMUTABLE));
        }
    }
    errors
}

fn spec(class: &MachineClass) -> Value {
    serde_json::from_str(class.provider_spec.text()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class(provider: &str, spec: &Value, in_use: bool) -> MachineClass {
        let finalizers = if in_use { json!([finalizers::MACHINE_CONTROLLER_MANAGER]) } else { json!([]) };
        let metadata = json!({"name": "c", "finalizers": finalizers});
        serde_json::from_value(json!({"metadata": metadata, "provider": provider, "providerSpec": spec})).unwrap()
    }

    #[test]
    fn what_vms_are_found_by_stays_while_the_class_is_in_use() {
        let identity: ClassIdentity = std::sync::Arc::new(|_| vec!["cluster".into(), "account.id".into()]);
        let before = json!({"cluster": "a", "account": {"id": 1}, "size": "small"});
        let table = [
            (true, "p", before.clone(), vec![]),
            (true, "P", json!({"cluster": "a", "account": {"id": 1, "name": "x"}, "size": "large"}), vec![]),
            (true, "p", json!({"cluster": "b", "account": {"id": 1}}), vec!["providerSpec.cluster"]),
            (true, "p", json!({"cluster": "a"}), vec!["providerSpec.account.id"]),
            (true, "p", json!(null), vec!["providerSpec.cluster", "providerSpec.account.id"]),
            (true, "q", before.clone(), vec!["provider"]),
            (false, "q", json!({"cluster": "b"}), vec![]),
        ];
        for (in_use, provider, after, expected) in table {
            let found = errors(&class(provider, &after, false), &class("p", &before, in_use), &identity);
            let found: Vec<_> = found.iter().map(|error| error.path.as_str()).collect();
            assert_eq!(found, expected, "{provider} {after}");
        }
    }
}
