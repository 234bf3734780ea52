//! The immutable fields of a MachineClass in use.
//!
//! An annotation records the fields that identify the VMs of a class when it comes into use. Each may only change to the
//! recorded value, so that a user can revert a change that no webhook reviewed. A class that is being deleted may change.

use nodewright_api::field::{FieldError, FieldPath};
use nodewright_api::{ClassIdentity, MachineClass, annotations, finalizers};

/// The fields that identify the VMs of a class, as JSON paths below `providerSpec`. A class of an unknown provider has none.
pub type IdentityFields = std::sync::Arc<dyn Fn(&MachineClass) -> Vec<String> + Send + Sync>;

const IMMUTABLE: &str = "is immutable while machines use the class, because it identifies their VMs: \
     create another class, and refer to it in the MachineDeployment";
const NOT_SET_BACK: &str = "was changed while machines use the class, and identifies their VMs: restore the value that the \
     annotation nodewright.dev/identity records";
const RECORD_IMMUTABLE: &str =
    "is immutable while machines use the class, because it records what identifies their VMs";

/// The errors of a change of a class. A class is in use while it has the finalizer.
pub(super) fn errors(new: &MachineClass, old: &MachineClass, fields: &IdentityFields) -> Vec<FieldError> {
    let held = old.metadata.finalizers.iter().flatten();
    if !held.into_iter().any(|finalizer| finalizer == finalizers::MACHINE_CONTROLLER_MANAGER) {
        return vec![];
    }
    let identity = ClassIdentity::in_force(old, &fields(old));
    // A field that this change leaves alone is no error, even if an earlier change was.
    let before = identity.as_in(old);
    let touched = before.changed_in(new);
    let lost = identity.changed_in(new).into_iter().filter(|path| touched.contains(path));
    let before_that = identity.changed_in(old);
    let detail = |path: &str| if before_that.contains(&path) { NOT_SET_BACK } else { IMMUTABLE };
    let mut errors: Vec<_> = lost.map(|path| FieldError::forbidden(FieldPath::new(path), detail(path))).collect();
    let is_record_touched = record(new) != record(old);
    if is_record_touched && !identity.is_part_of(&ClassIdentity::in_force(new, &fields(new))) {
        let path = FieldPath::new("metadata").child("annotations").key(annotations::IDENTITY);
        errors.push(FieldError::forbidden(path, RECORD_IMMUTABLE));
    }
    errors
}

fn record(class: &MachineClass) -> Option<&String> {
    class.metadata.annotations.as_ref()?.get(annotations::IDENTITY)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn class(provider: &str, spec: &Value, in_use: bool) -> MachineClass {
        let finalizers = if in_use { json!([finalizers::MACHINE_CONTROLLER_MANAGER]) } else { json!([]) };
        let metadata = json!({"name": "c", "finalizers": finalizers});
        serde_json::from_value(json!({"metadata": metadata, "provider": provider, "providerSpec": spec})).unwrap()
    }

    fn recorded(class: MachineClass, record: &str) -> MachineClass {
        let mut class = class;
        class.metadata.annotations = Some([(annotations::IDENTITY.to_owned(), record.to_owned())].into());
        class
    }

    fn paths(new: &MachineClass, old: &MachineClass) -> Vec<String> {
        let fields: IdentityFields = std::sync::Arc::new(|class| {
            let fields: &[&str] =
                if class.provider.eq_ignore_ascii_case("p") { &["cluster", "account.id"] } else { &[] };
            fields.iter().map(|field| (*field).to_owned()).collect()
        });
        errors(new, old, &fields).into_iter().map(|error| error.path.to_string()).collect()
    }

    #[test]
    fn what_vms_are_found_by_stays_while_the_class_is_in_use() {
        let before = json!({"cluster": "a", "account": {"id": 1}, "size": "small"});
        let table = [
            (true, "p", before.clone(), vec![]),
            (true, "P", json!({"cluster": "a", "account": {"id": 1, "name": "x"}, "size": "large"}), vec![]),
            (true, "p", json!({"cluster": "b", "account": {"id": 1}}), vec!["providerSpec.cluster"]),
            (true, "p", json!({"cluster": "a"}), vec!["providerSpec.account.id"]),
            (true, "p", json!(null), vec!["providerSpec.account.id", "providerSpec.cluster"]),
            (true, "q", before.clone(), vec!["provider"]),
            (false, "q", json!({"cluster": "b"}), vec![]),
        ];
        for (in_use, provider, after, expected) in table {
            let found = paths(&class(provider, &after, false), &class("p", &before, in_use));
            assert_eq!(found, expected, "{provider} {after}");
        }
    }

    #[test]
    fn what_was_changed_unseen_can_be_set_back_and_to_nothing_else() {
        let spec = |cluster: &str, size: &str| json!({"cluster": cluster, "account": {"id": 1}, "size": size});
        let record =
            ClassIdentity::of(&class("p", &spec("a", "small"), true), &["cluster".into(), "account.id".into()]);
        let with = |provider: &str, cluster: &str, size: &str| {
            recorded(class(provider, &spec(cluster, size), true), &record.to_string())
        };
        for lost in [with("p", "b", "small"), with("q", "b", "small"), with("q", "a", "small")] {
            assert!(paths(&with("p", "a", "small"), &lost).is_empty(), "set back");
            assert!(paths(&with(&lost.provider, spec_cluster(&lost), "large"), &lost).is_empty(), "as it was");
            let elsewhere = paths(&with(&lost.provider, "c", "small"), &lost);
            assert_eq!(elsewhere, ["providerSpec.cluster"], "changed once more");
        }
        let whole = with("p", "a", "small");
        assert_eq!(paths(&with("p", "b", "small"), &whole), ["providerSpec.cluster"]);
    }

    fn spec_cluster(class: &MachineClass) -> &'static str {
        if class.provider_spec.text().contains(r#""cluster":"a""#) { "a" } else { "b" }
    }

    #[test]
    fn the_record_stays_while_it_is_needed() {
        let spec = |cluster: &str| json!({"cluster": cluster, "account": {"id": 1}});
        let record = |cluster: &str| {
            ClassIdentity::of(&class("p", &spec(cluster), true), &["cluster".into(), "account.id".into()]).to_string()
        };
        let bare = |cluster: &str| class("p", &spec(cluster), true);
        let annotation = format!("metadata.annotations[{}]", annotations::IDENTITY);
        let table = [
            ("the controller's", recorded(bare("a"), &record("a")), bare("a"), vec![]),
            ("another's", recorded(bare("a"), &record("b")), bare("a"), vec![annotation.as_str()]),
            (
                "changed",
                recorded(bare("a"), &record("b")),
                recorded(bare("a"), &record("a")),
                vec![annotation.as_str()],
            ),
            ("dropped where it adds nothing to the class", bare("a"), recorded(bare("a"), &record("a")), vec![]),
            ("dropped where it is needed", bare("b"), recorded(bare("b"), &record("a")), vec![annotation.as_str()]),
            ("no longer needed", bare("a"), recorded(bare("b"), &record("a")), vec![]),
        ];
        for (what, new, old, expected) in table {
            assert_eq!(paths(&new, &old), expected, "{what}");
        }
        let unused = |class: MachineClass| {
            let mut class = class;
            class.metadata.finalizers = None;
            class
        };
        assert!(paths(&recorded(bare("b"), &record("b")), &unused(recorded(bare("b"), &record("a")))).is_empty());
    }
}
