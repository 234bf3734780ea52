//! Decodes objects without `metadata.managedFields`: they would be most of the work, and may be too deep where they repeat a field
//! that the object itself keeps as text. A type whose metadata has a field [`FIELD_MANAGERS`] gets them under that name.

use std::{borrow::Cow, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IntoDeserializer, MapAccess, Visitor},
    forward_to_deserialize_any,
};

use crate::json;

/// The name under which a type may decode the managedFields. The metadata of Kubernetes' types skip what they do not know.
pub const FIELD_MANAGERS: &str = "fieldManagers";

/// Decodes an object without its managedFields.
pub fn from_str<'de, K: Deserialize<'de>>(text: &'de str) -> Result<K, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(text);
    let object = WithoutManagedFields(PhantomData).deserialize(&mut json)?;
    json.end()?;
    Ok(object)
}

/// The same from bytes.
pub fn from_slice<'de, K: Deserialize<'de>>(bytes: &'de [u8]) -> Result<K, serde_json::Error> {
    from_str(json::text(bytes)?)
}

/// For an object that is part of another value.
pub(crate) struct WithoutManagedFields<K>(pub(crate) PhantomData<K>);

impl<'de, K: Deserialize<'de>> DeserializeSeed<'de> for WithoutManagedFields<K> {
    type Value = K;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<K, D::Error> {
        K::deserialize(Without { inner: deserializer, in_metadata: false })
    }
}

/// A deserializer, visitor or map access: for the object or for its metadata.
struct Without<T> {
    inner: T,
    in_metadata: bool,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Without<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(Without { inner: visitor, in_metadata: self.in_metadata })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_option(Without { inner: visitor, in_metadata: self.in_metadata })
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
        self.inner.visit_some(Without { inner: deserializer, in_metadata: self.in_metadata })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Fields { map, in_metadata: self.in_metadata, is_metadata: false })
    }
}

struct Fields<A> {
    map: A,
    in_metadata: bool,
    /// Whether the next value is the metadata of the object.
    is_metadata: bool,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Fields<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let Some(Key(key)) = self.map.next_key::<Key<'de>>()? else { return Ok(None) };
        self.is_metadata = !self.in_metadata && key == "metadata";
        if self.in_metadata && key == "managedFields" {
            return seed.deserialize(FIELD_MANAGERS.into_deserializer()).map(Some);
        }
        seed.deserialize(key.into_deserializer()).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        if self.is_metadata { self.map.next_value_seed(Metadata(seed)) } else { self.map.next_value_seed(seed) }
    }
}

struct Metadata<S>(S);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Metadata<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Without { inner: deserializer, in_metadata: true })
    }
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

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
