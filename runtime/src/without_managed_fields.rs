//! Decodes objects without `metadata.managedFields`: they would be most of the work, and may be too deep where they repeat a field
//! that the object itself keeps as text. A type whose metadata has a field [`FIELD_MANAGERS`] gets them under that name. The
//! answer to a write of a status is decoded without more of it, because its writer reads the status alone.

use std::{borrow::Cow, fmt, iter, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, IntoDeserializer, MapAccess, Visitor, value::MapDeserializer},
    forward_to_deserialize_any,
};

use crate::json;

/// The name under which a type may decode the managedFields. The metadata of Kubernetes' types skip what they do not know.
pub const FIELD_MANAGERS: &str = "fieldManagers";

/// Decodes an object without its managedFields.
pub fn from_str<'de, K: Deserialize<'de>>(text: &'de str) -> Result<K, serde_json::Error> {
    decode(text, WHOLE)
}

/// The same from bytes.
pub fn from_slice<'de, K: Deserialize<'de>>(bytes: &'de [u8]) -> Result<K, serde_json::Error> {
    from_str(json::text(bytes)?)
}

/// Decodes what the writer of a status reads in an answer: an empty `spec`, and no labels, annotations and owners. Fails if the type
/// needs more.
pub(crate) fn status_from_slice<'de, K: Deserialize<'de>>(bytes: &'de [u8]) -> Result<K, serde_json::Error> {
    decode(json::text(bytes)?, Part { is_of_status: true, ..WHOLE })
}

fn decode<'de, K: Deserialize<'de>>(text: &'de str, part: Part) -> Result<K, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(text);
    let object = K::deserialize(Without { inner: &mut json, part })?;
    json.end()?;
    Ok(object)
}

/// For an object that is part of another value.
pub(crate) struct WithoutManagedFields<K>(pub(crate) PhantomData<K>);

impl<'de, K: Deserialize<'de>> DeserializeSeed<'de> for WithoutManagedFields<K> {
    type Value = K;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<K, D::Error> {
        K::deserialize(Without { inner: deserializer, part: WHOLE })
    }
}

const WHOLE: Part = Part { in_metadata: false, is_of_status: false };

/// What is decoded.
#[derive(Clone, Copy)]
struct Part {
    /// The metadata of the object, or the object itself.
    in_metadata: bool,
    /// Whether only what the writer of a status reads is decoded.
    is_of_status: bool,
}

impl Part {
    fn leaves_out(self, key: &str) -> bool {
        self.is_of_status && self.in_metadata && ["labels", "annotations", "ownerReferences"].contains(&key)
    }

    fn empties(self, key: &str) -> bool {
        self.is_of_status && !self.in_metadata && key == "spec"
    }
}

/// A deserializer or visitor: for the object or for its metadata.
struct Without<T> {
    inner: T,
    part: Part,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Without<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(Without { inner: visitor, part: self.part })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_option(Without { inner: visitor, part: self.part })
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Without<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Without { inner: deserializer, part: self.part })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Fields { map, part: self.part, is_metadata: false, is_emptied: false })
    }
}

struct Fields<A> {
    map: A,
    part: Part,
    /// Whether the next value is the metadata of the object.
    is_metadata: bool,
    /// Whether the next value is taken for an empty object.
    is_emptied: bool,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Fields<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let key = loop {
            let Some(Key(key)) = self.map.next_key::<Key<'de>>()? else { return Ok(None) };
            if !self.part.leaves_out(&key) {
                break key;
            }
            self.map.next_value::<IgnoredAny>()?;
        };
        self.is_metadata = !self.part.in_metadata && key == "metadata";
        self.is_emptied = self.part.empties(&key);
        if self.part.in_metadata && key == "managedFields" {
            return seed.deserialize(FIELD_MANAGERS.into_deserializer()).map(Some);
        }
        seed.deserialize(key.into_deserializer()).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        if self.is_emptied {
            self.map.next_value::<IgnoredAny>()?;
            return seed.deserialize(Empty(PhantomData));
        }
        if self.is_metadata {
            self.map.next_value_seed(Metadata(seed, self.part))
        } else {
            self.map.next_value_seed(seed)
        }
    }
}

struct Metadata<S>(S, Part);

/// An object without fields.
struct Empty<E>(PhantomData<E>);

impl<'de, E: Error> Deserializer<'de> for Empty<E> {
    type Error = E;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        visitor.visit_map(MapDeserializer::new(iter::empty::<((), ())>()))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        visitor.visit_some(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Metadata<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Without { inner: deserializer, part: Part { in_metadata: true, ..self.1 } })
    }
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::{ConfigMap, Pod, PodSpec},
        apimachinery::pkg::apis::meta::v1::ObjectMeta,
    };

    use super::*;

    #[test]
    fn managed_fields_of_the_object_are_left_out_and_nothing_else() {
        let deep = format!("{}1{}", r#"{"f:a":"#.repeat(9_000), "}".repeat(9_000));
        let text = format!(
            r#"{{"metadata":{{"managedFields":[{{"fieldsV1":{deep}}}],"name":"a","labels":{{"managedFields":"b"}}}},
                "data":{{"managedFields":"c","metadata":"d"}},"immutable":null}}"#
        );
        let map: ConfigMap = from_str(&text).unwrap();
        assert_eq!((map.metadata.name.as_deref(), &map.metadata.managed_fields), (Some("a"), &None));
        assert_eq!(map.metadata.labels.unwrap()["managedFields"], "b");
        let data = map.data.unwrap();
        assert_eq!((data["managedFields"].as_str(), data["metadata"].as_str()), ("c", "d"));
        assert!(from_str::<ConfigMap>(r#"{"metadata":{"managedFields":[]},"data":1}"#).is_err());
        assert!(from_str::<ConfigMap>(r#"{"metadata":{}} x"#).is_err());
        assert_eq!(from_str::<ConfigMap>(r#"{"metadata":null}"#).unwrap(), ConfigMap::default());
    }

    #[test]
    fn the_writer_of_a_status_gets_no_spec_and_no_labels() {
        let text = r#"{"metadata":{"name":"a","labels":{"b":"c"},"annotations":{"d":"e"},"ownerReferences":[{}],"finalizers":["f"]},
            "spec":{"nodeName":"n"},"status":{"phase":"Running","message":"spec"}}"#;
        let pod: Pod = status_from_slice(text.as_bytes()).unwrap();
        let metadata =
            ObjectMeta { name: Some("a".to_owned()), finalizers: Some(vec!["f".to_owned()]), ..ObjectMeta::default() };
        assert_eq!((pod.metadata, pod.spec), (metadata, Some(PodSpec::default())));
        let status = pod.status.unwrap();
        assert_eq!((status.phase.as_deref(), status.message.as_deref()), (Some("Running"), Some("spec")));
        assert!(status_from_slice::<Pod>(b"{} x").is_err());
    }

    #[test]
    fn a_type_gets_the_field_managers_if_it_asks_for_them() {
        #[derive(Deserialize)]
        struct Object {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Metadata {
            field_managers: Vec<serde_json::Value>,
        }
        let object: Object = from_str(r#"{"metadata":{"name":"a","managedFields":[{"manager":"kubectl"}]}}"#).unwrap();
        assert_eq!(object.metadata.field_managers, [serde_json::json!({"manager": "kubectl"})]);
    }
}
