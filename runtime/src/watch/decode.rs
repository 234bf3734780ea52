//! Decodes lists and events: the envelope first, then each object alone, so that an undecodable one never hides the others.
//! Skipping it does not recurse, so deep nesting is no danger.

use std::{
    fmt,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use kube::core::Status;
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::undecodable::Undecodable;
use crate::{
    cache::Unreadable,
    json,
    object::{Kind, parse_version},
    without_managed_fields::{self, WithoutManagedFields},
};

#[derive(Debug)]
pub(super) struct Page<'a> {
    pub(super) version: Option<u64>,
    pub(super) next: Option<String>,
    pub(super) items: Vec<&'a RawValue>,
}

#[derive(Debug)]
pub(super) enum Line<'a> {
    Present(&'a RawValue),
    Gone { namespace: String, name: String, version: Option<u64> },
    Bookmark(Option<u64>),
    Error { code: u16, message: String },
}

#[derive(Deserialize)]
struct ListEnvelope<'a> {
    metadata: Option<ListMeta>,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
struct EventEnvelope<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Envelope {
    metadata: ObjectMeta,
}

#[derive(Default, Deserialize)]
struct Identity {
    #[serde(default)]
    metadata: IdentityMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct IdentityMeta {
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
}

pub(super) fn page(body: &[u8]) -> Result<Page<'_>, serde_json::Error> {
    let envelope: ListEnvelope<'_> = json::from_slice(body)?;
    let metadata = envelope.metadata.unwrap_or_default();
    Ok(Page {
        version: metadata.resource_version.as_deref().and_then(parse_version),
        next: metadata.continue_.filter(|token| !token.is_empty()),
        items: envelope.items.unwrap_or_default(),
    })
}

pub(super) fn line(text: &str) -> Result<Line<'_>, serde_json::Error> {
    let envelope: EventEnvelope<'_> = serde_json::from_str(text)?;
    Ok(match envelope.kind.as_str() {
        "ADDED" | "MODIFIED" => Line::Present(envelope.object),
        "DELETED" => {
            let Identity { metadata } = identity(envelope.object);
            let version = parse_version(&metadata.resource_version);
            Line::Gone { namespace: metadata.namespace, name: metadata.name, version }
        }
        "BOOKMARK" => Line::Bookmark(parse_version(&identity(envelope.object).metadata.resource_version)),
        _ => {
            let status: Status = serde_json::from_str(envelope.object.get())?;
            Line::Error { code: status.code, message: status.message }
        }
    })
}

/// The object of most lines: one that exists, decoded in one pass. `None` for another line, which [`line`] reads.
pub(super) fn present<K: Kind>(text: &str) -> Option<Box<K>> {
    let Ok(Ok(Present(object))) = catch_unwind(|| serde_json::from_str(text)) else { return None };
    Some(object)
}

struct Present<K>(Box<K>);

impl<'de, K: Kind> Deserialize<'de> for Present<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PresentVisitor(PhantomData))
    }
}

struct PresentVisitor<K>(PhantomData<K>);

impl<'de, K: Kind> Visitor<'de> for PresentVisitor<K> {
    type Value = Present<K>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the type of an object that is present, then the object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Present<K>, A::Error> {
        let kind: Option<(&str, &str)> = map.next_entry()?;
        if !matches!(kind, Some(("type", "ADDED" | "MODIFIED"))) || map.next_key::<&str>()? != Some("object") {
            return Err(A::Error::custom("something else"));
        }
        let object = map.next_value_seed(WithoutManagedFields(PhantomData))?;
        match map.next_key::<&str>()? {
            None => Ok(Present(Box::new(object))),
            Some(_) => Err(A::Error::custom("something more")),
        }
    }
}

/// The object of a list or of a line.
pub(super) fn object<K: Kind>(raw: &RawValue) -> Result<Box<K>, Box<Undecodable>> {
    // The type's own decoder may panic.
    let decoded = catch_unwind(AssertUnwindSafe(|| without_managed_fields::from_str::<K>(raw.get())));
    match decoded {
        Ok(Ok(object)) => Ok(Box::new(object)),
        Ok(Err(error)) => Err(undecodable(raw, describe(&error))),
        Err(_) => Err(undecodable(raw, "its decoder panicked".to_owned())),
    }
}

fn undecodable(raw: &RawValue, why: String) -> Box<Undecodable> {
    let Identity { metadata } = identity(raw);
    let object = match whole_metadata(raw) {
        Some(metadata) => Unreadable::new(metadata),
        None => Unreadable::named(&metadata.namespace, &metadata.name, &metadata.uid),
    };
    Box::new(Undecodable { version: parse_version(&metadata.resource_version), object, why })
}

/// The metadata of an undecodable object: the error is usually elsewhere.
fn whole_metadata(raw: &RawValue) -> Option<ObjectMeta> {
    let read = || without_managed_fields::from_str::<Envelope>(raw.get()).ok();
    let metadata = catch_unwind(AssertUnwindSafe(read)).ok()??.metadata;
    metadata.name.is_some().then_some(metadata)
}

fn identity(raw: &RawValue) -> Identity {
    serde_json::from_str(raw.get()).unwrap_or_default()
}

/// The category and position of the error. The error's own text may quote the object's content, even a Secret's.
fn describe(error: &serde_json::Error) -> String {
    let kind = match error.classify() {
        serde_json::error::Category::Data => "a value of a wrong type or out of bounds",
        serde_json::error::Category::Syntax => "invalid or too deeply nested JSON",
        serde_json::error::Category::Eof => "JSON that ends too early",
        serde_json::error::Category::Io => "an unreadable body",
    };
    format!("{kind} at column {}", error.column())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn undecodable_in(text: &str) -> Box<Undecodable> {
        assert!(present::<ConfigMap>(text).is_none());
        let Line::Present(raw) = line(text).unwrap() else { panic!("{text}") };
        object::<ConfigMap>(raw).unwrap_err()
    }

    #[test]
    fn one_bad_object_does_not_hide_the_others() {
        let body = r#"{"metadata":{"resourceVersion":"9","continue":""},"items":[
            {"metadata":{"name":"good","resourceVersion":"3","managedFields":[{"manager":"x"}]}},
            {"metadata":{"name":"bad","namespace":"n","resourceVersion":"4","labels":{"set":"a"}},"data":{"k":{"secret":"hush"}}}]}"#;
        let page = page(body.as_bytes()).unwrap();
        assert_eq!((page.version, page.next, page.items.len()), (Some(9), None, 2));
        let [good, bad] = [0, 1].map(|at| object::<ConfigMap>(page.items[at]));
        assert_eq!(good.unwrap().metadata.managed_fields, None);
        let bad = bad.unwrap_err();
        assert_eq!((bad.object.name(), bad.object.namespace(), bad.version), ("bad", "n", Some(4)));
        assert_eq!(bad.object.label("set"), Some("a"), "its metadata can be decoded");
        assert!(!bad.why.contains("hush"), "{}", bad.why);
    }

    #[test]
    fn depth_is_no_danger() {
        let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
        let text = format!(
            r#"{{"type":"MODIFIED","object":{{"metadata":{{"name":"deep","resourceVersion":"5"}},"data":{deep}}}}}"#
        );
        let bad = undecodable_in(&text);
        assert_eq!((bad.object.name(), bad.version), ("deep", Some(5)));
        assert!(bad.object.metadata().is_some(), "the depth is elsewhere");
    }

    #[test]
    fn where_the_metadata_is_at_fault_the_name_is_known() {
        let text =
            r#"{"type":"ADDED","object":{"metadata":{"name":"a","uid":"u","resourceVersion":"5","labels":["x"]}}}"#;
        let bad = undecodable_in(text);
        assert_eq!((bad.object.name(), bad.object.uid(), bad.object.metadata()), ("a", "u", None));
    }

    #[test]
    fn bookmarks_ends_and_errors() {
        let gone = r#"{"type":"DELETED","object":{"metadata":{"name":"a","namespace":"n","resourceVersion":"7"}}}"#;
        assert!(matches!(line(gone).unwrap(), Line::Gone { version: Some(7), .. }));
        let mark = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"8"}}}"#;
        assert!(matches!(line(mark).unwrap(), Line::Bookmark(Some(8))));
        let error = r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}"#;
        assert!(matches!(line(error).unwrap(), Line::Error { code: 410, .. }));
    }
}
