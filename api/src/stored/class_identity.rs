//! The fields of a MachineClass that identify its VMs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::MachineClass;

const PROVIDER: &str = "provider";
const PROVIDER_SPEC: &str = "providerSpec.";

/// The fields of a class that identify its VMs, as paths such as `providerSpec.cluster`, and their values.
///
/// The annotation [`crate::annotations::IDENTITY`] records the identity while the class is in use. A controller can so detect, and a
/// user can revert, a change that no webhook reviewed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassIdentity(BTreeMap<String, Value>);

impl ClassIdentity {
    /// The identity that a class has. `fields` are paths below `providerSpec`, see [`identity_value`].
    pub fn of(class: &MachineClass, fields: &[String]) -> Self {
        let spec = spec(class);
        let fields = fields.iter().map(|field| format!("{PROVIDER_SPEC}{field}"));
        let fields = fields.map(|path| (path.clone(), value(class, &spec, &path)));
        let provider = value(class, &spec, PROVIDER);
        // A class without a provider is of the only provider.
        let provider = Some((PROVIDER.to_owned(), provider)).filter(|(_, value)| !value.is_null());
        Self(fields.chain(provider).collect())
    }

    /// The identity in the annotation of a class. `None` if it is absent or invalid.
    pub fn recorded(class: &MachineClass) -> Option<Self> {
        super::CLASS_IDENTITY.of(class)
    }

    /// The identity that must not change: the recorded fields, and the others as the class has them.
    pub fn in_force(class: &MachineClass, fields: &[String]) -> Self {
        let mut all = Self::of(class, fields);
        all.0.extend(Self::recorded(class).unwrap_or_default().0);
        all
    }

    /// The same fields, with their values in `class`.
    #[must_use]
    pub fn as_in(&self, class: &MachineClass) -> Self {
        let spec = spec(class);
        Self(self.0.keys().map(|path| (path.clone(), value(class, &spec, path))).collect())
    }

    /// The paths of the fields with other values in `class`.
    pub fn changed_in(&self, class: &MachineClass) -> Vec<&str> {
        let there = self.as_in(class);
        self.0.iter().filter(|(path, value)| there.0.get(*path) != Some(value)).map(|(path, _)| path.as_str()).collect()
    }

    /// Whether `other` has all fields with the same values.
    pub fn is_part_of(&self, other: &Self) -> bool {
        self.0.iter().all(|(path, value)| other.0.get(path) == Some(value))
    }
}

/// The providerSpec, or null if it is invalid.
fn spec(class: &MachineClass) -> Value {
    class.provider_spec.parse().unwrap_or_default()
}

fn value(class: &MachineClass, spec: &Value, path: &str) -> Value {
    if path == PROVIDER {
        return Some(class.provider.to_ascii_lowercase()).filter(|provider| !provider.is_empty()).into();
    }
    let Some(path) = path.strip_prefix(PROVIDER_SPEC) else { return Value::Null };
    identity_value(spec, path)
}

/// The value at a path of a `providerSpec`, or null. A path is names of fields with dots between them, such as `account.id`. A text in
/// brackets at its end stands for the entries of an object whose keys contain it: `tags[kubernetes.io/cluster/]` is those tags.
pub fn identity_value(spec: &Value, path: &str) -> Value {
    let (path, part_of_key) = match path.strip_suffix(']').and_then(|path| path.split_once('[')) {
        Some((path, part_of_key)) => (path, Some(part_of_key)),
        None => (path, None),
    };
    let value = path.split('.').try_fold(spec, |value, part| value.get(part));
    let Some(part_of_key) = part_of_key else { return value.cloned().unwrap_or_default() };
    let entries = value.and_then(Value::as_object).into_iter().flatten();
    let entries: Map<_, _> =
        entries.filter(|(key, _)| key.contains(part_of_key)).map(|(key, value)| (key.clone(), value.clone())).collect();
    if entries.is_empty() { Value::Null } else { entries.into() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::annotations;

    fn class(provider: &str, spec: &Value, record: Option<&str>) -> MachineClass {
        let annotations = record.map(|record| json!({annotations::IDENTITY: record}));
        let class =
            json!({"metadata": {"name": "c", "annotations": annotations}, "provider": provider, "providerSpec": spec});
        serde_json::from_value(class).unwrap()
    }

    #[test]
    fn entries_of_an_object_are_chosen_by_a_part_of_their_keys() {
        let fields = ["tags[example.org/cluster/]".to_owned()];
        let with = |tags: Value| class("p", &json!({"tags": tags}), None);
        let before = with(json!({"example.org/cluster/a": "1", "team": "x"}));
        let identity = ClassIdentity::of(&before, &fields);
        let text = r#"{"provider":"p","providerSpec.tags[example.org/cluster/]":{"example.org/cluster/a":"1"}}"#;
        assert_eq!(identity.to_string(), text);
        assert!(identity.changed_in(&with(json!({"example.org/cluster/a": "1", "team": "y"}))).is_empty());
        for tags in [
            json!({"example.org/cluster/a": "2"}),
            json!({"example.org/cluster/b": "1"}),
            json!({"example.org/cluster/a": "1", "example.org/cluster/b": "1"}),
            json!({}),
            json!("text"),
        ] {
            assert_eq!(identity.changed_in(&with(tags.clone())), ["providerSpec.tags[example.org/cluster/]"], "{tags}");
        }
        let spec = json!({"tags": {"team": "x"}});
        assert_eq!(identity_value(&spec, "tags[cluster]"), Value::Null);
        assert_eq!(identity_value(&spec, "tags.team[x]"), Value::Null);
        assert_eq!(identity_value(&spec, "tags.team"), json!("x"));
    }

    #[test]
    fn what_is_recorded_is_in_force_and_beside_it_what_the_class_says() {
        let fields = ["cluster".to_owned(), "account.id".to_owned()];
        let before = class("P", &json!({"cluster": "a", "account": {"id": 1}, "size": "small"}), None);
        let identity = ClassIdentity::of(&before, &fields);
        let text = r#"{"provider":"p","providerSpec.account.id":1,"providerSpec.cluster":"a"}"#;
        assert_eq!((identity.to_string().as_str(), identity.changed_in(&before).len()), (text, 0));
        let after = class("p", &json!({"cluster": "b", "account": {}}), Some(text));
        assert_eq!(ClassIdentity::in_force(&after, &fields), identity);
        assert_eq!(identity.changed_in(&after), ["providerSpec.account.id", "providerSpec.cluster"]);
        let partial =
            class("p", &json!({"cluster": "b", "account": {"id": 1}}), Some(r#"{"providerSpec.cluster":"a"}"#));
        assert_eq!(ClassIdentity::in_force(&partial, &fields), identity);
        let broken = class("p", &json!({"cluster": "b"}), Some("no JSON"));
        assert_eq!(ClassIdentity::in_force(&broken, &fields), ClassIdentity::of(&broken, &fields));
        assert!(
            ClassIdentity::of(&class("", &json!({}), None), &[]).is_part_of(&identity),
            "a class without a provider matches"
        );
    }
}
