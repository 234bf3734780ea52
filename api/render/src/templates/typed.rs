//! The values of a ControllerConfig as templates for Go know them: by the names and with the zero values of Go's types.
//!
//! What a cluster has not set is not in its JSON. In Go a text is then empty, a list has no elements, an object is there with
//! fields of its own, and only a pointer is null. `fields.txt` says which field is what; `hack/template-fields.sh` makes it of
//! Go's types.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use gotmpl::{TemplateError as Failure, Value};
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

const FIELDS: &str = include_str!("fields.txt");
static SPEC: LazyLock<Fields> = LazyLock::new(Fields::parse);

/// What a field has if it is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    String,
    Integer,
    Boolean,
    /// In JSON's spelling base64, null if it is absent; in Go's the text that it stands for.
    Bytes,
    List,
    Map,
    Struct,
    #[default]
    Pointer,
}

/// The fields of a type, by their names in JSON.
#[derive(Debug, Default)]
struct Fields(BTreeMap<&'static str, Field>);

#[derive(Debug, Default)]
struct Field {
    /// The name in Go.
    name: &'static str,
    kind: Kind,
    /// The fields of the object, or of the objects in the list.
    inner: Fields,
}

impl Fields {
    fn parse() -> Self {
        let mut root = Self::default();
        for line in FIELDS.lines() {
            let mut words = line.split(' ');
            let (Some(path), Some(name), Some(kind)) = (words.next(), words.next(), words.next()) else { continue };
            let (above, last) = path.rsplit_once('.').unwrap_or(("", path));
            let steps = above.split('.').filter(|step| !step.is_empty());
            // A line for a type comes before those for its fields.
            let of = steps
                .fold(&mut root, |fields, step| &mut fields.0.entry(step.trim_end_matches("[]")).or_default().inner);
            of.0.insert(last, Field { name, kind: Kind::parse(kind), inner: Self::default() });
        }
        root
    }

    /// An object with these fields. It keeps those that Go's type does not have.
    fn object(&self, mut json: Map<String, Json>) -> Value {
        let mut entries: BTreeMap<Arc<str>, Value> = BTreeMap::new();
        for (name, field) in &self.0 {
            let given = json.remove(*name).unwrap_or_default();
            let alias = field.decoded(name, &given);
            let value = if given.is_null() { field.zero() } else { field.value(given) };
            // Names are found in any case: one that differs in no more needs no entry.
            let renamed = || (!field.name.eq_ignore_ascii_case(name)).then(|| value.clone());
            alias.or_else(renamed).into_iter().for_each(|alias| drop(entries.insert(field.name.into(), alias)));
            entries.insert((*name).into(), value);
        }
        entries.extend(json.into_iter().map(|(name, json)| (name.into(), value(json))));
        Value::Map(Arc::new(entries))
    }
}

impl Kind {
    fn parse(text: &str) -> Self {
        match text {
            "string" => Self::String,
            "integer" => Self::Integer,
            "boolean" => Self::Boolean,
            "bytes" => Self::Bytes,
            "list" => Self::List,
            "map" => Self::Map,
            "struct" => Self::Struct,
            _ => Self::Pointer,
        }
    }
}

impl Field {
    fn zero(&self) -> Value {
        match self.kind {
            Kind::String => Value::String("".into()),
            Kind::Integer => Value::Int(0),
            Kind::Boolean => Value::Bool(false),
            Kind::List => Value::List(Arc::new([])),
            Kind::Map => Value::Map(Arc::default()),
            Kind::Struct => self.inner.object(Map::new()),
            Kind::Bytes | Kind::Pointer => Value::Nil,
        }
    }

    fn value(&self, json: Json) -> Value {
        match json {
            Json::Object(fields) if !self.inner.0.is_empty() => self.inner.object(fields),
            Json::Array(list) if !self.inner.0.is_empty() => {
                let element = |json| match json {
                    Json::Object(fields) => self.inner.object(fields),
                    other => value(other),
                };
                Value::List(list.into_iter().map(element).collect())
            }
            other => value(other),
        }
    }

    /// What Go's spelling of a field of bytes has: the text that base64 stands for.
    fn decoded(&self, name: &str, json: &Json) -> Option<Value> {
        if self.kind != Kind::Bytes {
            return None;
        }
        let bytes = BASE64_STANDARD.decode(json.as_str().unwrap_or_default()).ok();
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        let why = || format!("{}: its bytes are no text in UTF-8; {name} has them in base64", self.name);
        Some(text.map_or_else(|| unreadable(why()), |text| Value::String(text.into())))
    }
}

/// The fields of a spec. One that the spec never has is none, so that a template which needs it does not get a zero value.
pub(super) fn spec(json: Map<String, Json>) -> BTreeMap<Arc<str>, Value> {
    let unknown: Vec<_> = SPEC.0.iter().filter(|(name, _)| !json.contains_key(**name)).collect();
    let Value::Map(entries) = SPEC.object(json) else { return BTreeMap::new() };
    let mut entries = Arc::unwrap_or_clone(entries);
    for (name, field) in unknown {
        entries.remove(*name);
        entries.remove(field.name);
    }
    entries
}

/// A field that fails where a template reads it, and only there.
pub(super) fn unreadable(why: impl Into<String>) -> Value {
    let why = why.into();
    Value::Function(Arc::new(move |_| Err(Failure::Exec(why.clone()))))
}

/// A value of which no type is known.
pub(super) fn value(json: Json) -> Value {
    match json {
        Json::Null => Value::Nil,
        Json::Bool(it) => Value::Bool(it),
        Json::Number(it) => match (it.as_i64(), it.as_u64()) {
            (Some(it), _) => Value::Int(it),
            (_, Some(it)) => Value::Uint(it),
            _ => it.as_f64().map_or(Value::Nil, Value::Float),
        },
        Json::String(it) => Value::String(it.into()),
        Json::Array(it) => Value::List(it.into_iter().map(value).collect()),
        Json::Object(it) => {
            let entries: BTreeMap<Arc<str>, Value> = it.into_iter().map(|(key, it)| (key.into(), value(it))).collect();
            Value::Map(Arc::new(entries))
        }
    }
}
