//! Applies a change of a typed object to the object as the client sent it.
//!
//! An object that is written from a type loses unknown fields, and known ones may change their form. So only the difference
//! between the typed object before and after is applied, and only the parts that can change are parsed: the rest may have any
//! size and depth.

use std::fmt;

use nodewright_api::text::Text;
use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// The parts of an object at `paths`, as the client sent them. Absent parts stay absent.
pub(super) fn parts(text: &str, paths: &[&[&str]]) -> serde_json::Result<Value> {
    let mut whole = Value::Object(Map::new());
    for path in paths {
        copy(text, path, &mut whole)?;
    }
    Ok(whole)
}

fn copy(text: &str, path: &[&str], into: &mut Value) -> serde_json::Result<()> {
    let Some((name, rest)) = path.split_first() else {
        *into = serde_json::from_str(text)?;
        return Ok(());
    };
    let Some(value) = field(text, name)? else { return Ok(()) };
    let object = into.as_object_mut();
    object.map_or(Ok(()), |object| {
        copy(value.get(), rest, object.entry(*name).or_insert_with(|| Value::Object(Map::new())))
    })
}

/// Whether an object has a field that is not `null`.
pub(super) fn has_field(text: &str, name: &str) -> serde_json::Result<bool> {
    Ok(field(text, name)?.is_some())
}

/// A field of an object. `None` if it is absent or `null`, or if the object is `null`.
fn field<'a>(text: &'a str, name: &str) -> serde_json::Result<Option<&'a RawValue>> {
    let found = Field { name }.deserialize(&mut serde_json::Deserializer::from_str(text))?;
    Ok(found.filter(|value| value.get() != "null"))
}

struct Field<'n> {
    name: &'n str,
}

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Field<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(Text(name)) = map.next_key()? {
            if name == self.name {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// Applies the change from `before` to `after` to `sent`. Removes nothing.
pub(super) fn overlay(sent: &mut Value, before: &Value, after: &Value) {
    if before == after {
        return;
    }
    let Value::Object(fields) = after else {
        *sent = after.clone();
        return;
    };
    if !sent.is_object() {
        *sent = Value::Object(Map::new());
    }
    for (name, value) in fields {
        let was = before.get(name).unwrap_or(&Value::Null);
        if was != value
            && let Some(object) = sent.as_object_mut()
        {
            overlay(object.entry(name.as_str()).or_insert(Value::Null), was, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_parts_are_read() {
        let deep = format!("{}{}", "[".repeat(9_000), "]".repeat(9_000));
        let text = format!(r#"{{"a":{{"b":{{"c":1}},"x":{deep}}},"y":{deep},"n":null,"z":{{"q":null}}}}"#);
        let paths: [&[&str]; 4] = [&["a", "b"], &["n", "m"], &["z", "q"], &["gone"]];
        assert_eq!(parts(&text, &paths).unwrap(), json!({"a": {"b": {"c": 1}}, "z": {}}));
        assert!(parts(&text, &[&["y"]]).is_err(), "too deep to be read as a value");
    }

    #[test]
    fn unknown_fields_survive_and_nothing_is_rewritten() {
        let mut sent = json!({"spec": {"strategy": {"future": true, "rollingUpdate": {"other": 1}}}});
        let before = json!({"spec": {"strategy": {"rollingUpdate": {}}}});
        let after = json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}});
        overlay(&mut sent, &before, &after);
        assert_eq!(
            sent,
            json!({"spec": {"strategy": {
                "future": true, "type": "RollingUpdate", "rollingUpdate": {"other": 1, "maxSurge": 1}
            }}})
        );
    }

    #[test]
    fn what_was_null_becomes_a_value() {
        let mut sent = json!({"a": null});
        overlay(&mut sent, &json!({}), &json!({"a": {"b": 1}, "c": "d"}));
        assert_eq!(sent, json!({"a": {"b": 1}, "c": "d"}));
    }
}
