//! `MachineClass`: how a provider makes the instances of its machines.

use crate::common::ConditionStatus;
use crate::raw_json::RawJson;
use crate::validation::rules;
use crate::wire::{is_default, null_as_default};
use crate::{API_VERSION, GROUP, VERSION, lenient};
use garde::Validate;
use k8s_openapi::api::core::v1::SecretReference;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::core::{NamespaceResourceScope, Resource};
use schemars::JsonSchema;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;

// The fields stand at the top level of the object: there is no `spec`. This is why the kind is written by
// hand: flattening, which the derive would use, copies the document through a buffer that can neither hold
// raw text nor nest deeply.
/// `MachineClass` says how a provider makes the instances of the machines that name it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["providerSpec"]))]
pub struct MachineClass {
    /// Standard object metadata.
    #[serde(deserialize_with = "null_as_default")]
    #[schemars(skip)]
    pub metadata: ObjectMeta,

    /// What a node of the class looks like, for the autoscaler, which must know it before there is one.
    pub node_template: Option<MachineClassNodeTemplate>,

    /// The secret with the provider's credentials. Its keys win over those of `secretRef`.
    #[schemars(schema_with = "crate::schema::secret_reference")]
    pub credentials_secret_ref: Option<SecretReference>,

    /// The provider's own configuration of an instance, handed to the driver as it is.
    #[serde(deserialize_with = "null_as_default")]
    pub provider_spec: RawJson,

    /// Name of the provider.
    #[serde(deserialize_with = "null_as_default")]
    pub provider: String,

    /// The secret with the user data, and with the credentials if there is no other for them.
    #[schemars(schema_with = "crate::schema::secret_reference")]
    pub secret_ref: Option<SecretReference>,

    /// What was last observed of the class. Not part of MCM's schema.
    pub status: Option<MachineClassStatus>,
}

/// What a node of a class looks like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, Validate)]
#[serde(rename_all = "camelCase", default)]
#[garde(allow_unvalidated)]
#[schemars(extend(
    "required" = ["capacity", "instanceType", "region", "zone"],
    "x-kubernetes-preserve-unknown-fields" = true
))]
pub struct MachineClassNodeTemplate {
    /// The resources of the node. The controllers insist on `cpu`, `gpu` and `memory`.
    #[serde(deserialize_with = "lenient::quantities")]
    #[schemars(schema_with = "crate::schema::resource_list")]
    pub capacity: BTreeMap<String, Quantity>,

    /// Extended resources that are written to the Node's capacity without a rollout.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "lenient::quantities")]
    #[schemars(schema_with = "crate::schema::resource_list")]
    pub virtual_capacity: BTreeMap<String, Quantity>,

    /// The provider's name of the kind of instance.
    #[serde(deserialize_with = "null_as_default")]
    #[garde(custom(rules::not_empty))]
    pub instance_type: String,

    /// The provider's region.
    #[serde(deserialize_with = "null_as_default")]
    #[garde(custom(rules::not_empty))]
    pub region: String,

    /// The zone in the region.
    #[serde(deserialize_with = "null_as_default")]
    #[garde(custom(rules::not_empty))]
    pub zone: String,

    /// The architecture of the processor, such as `amd64`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
}

/// What was last observed of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineClassStatus {
    /// The generation of the class that this status speaks of.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub observed_generation: i64,

    /// Number of machines that name the class.
    #[serde(deserialize_with = "null_as_default")]
    pub machines: i32,

    /// The conditions of the class.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["type"]
    ))]
    pub conditions: Vec<MachineClassCondition>,
}

/// A condition of a MachineClass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineClassCondition {
    /// The type of the condition, such as `SecretsFound`.
    #[serde(rename = "type")]
    pub condition_type: String,

    /// Whether the condition holds: True, False or Unknown.
    pub status: ConditionStatus,

    /// When the status last changed.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::time")]
    pub last_transition_time: Option<Time>,

    /// Why, in one word.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub reason: String,

    /// Why, in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub message: String,
}

impl MachineClass {
    /// A class of this name and nothing else.
    pub fn new(name: &str) -> Self {
        Self { metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }, ..Self::default() }
    }

    /// Whether the object has a deletion timestamp.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// The secrets that the class refers to, in the order in which they are merged: of a key in both,
    /// the value of the later one counts.
    pub fn secret_refs(&self) -> impl Iterator<Item = &SecretReference> {
        self.secret_ref.iter().chain(&self.credentials_secret_ref)
    }

    /// Namespace and name of each secret that the class refers to, in the order of
    /// [`MachineClass::secret_refs`], without those that have no name. A reference without a namespace
    /// means the namespace of the class.
    pub fn secret_names(&self) -> impl Iterator<Item = (&str, &str)> {
        let own = self.metadata.namespace.as_deref().unwrap_or_default();
        self.secret_refs().filter_map(move |reference| {
            let name = reference.name.as_deref().filter(|name| !name.is_empty())?;
            Some((reference.namespace.as_deref().filter(|namespace| !namespace.is_empty()).unwrap_or(own), name))
        })
    }

    /// The condition of this type.
    pub fn condition(&self, condition_type: &str) -> Option<&MachineClassCondition> {
        self.status.as_ref()?.conditions.iter().find(|condition| condition.condition_type == condition_type)
    }
}

impl Resource for MachineClass {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Self::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn api_version((): &()) -> Cow<'_, str> {
        API_VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        Self::PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl MachineClass {
    pub(crate) const KIND: &str = "MachineClass";
    pub(crate) const PLURAL: &str = "machineclasses";
}

impl kube::core::object::HasStatus for MachineClass {
    type Status = MachineClassStatus;

    fn status(&self) -> Option<&MachineClassStatus> {
        self.status.as_ref()
    }

    fn status_mut(&mut self) -> &mut Option<MachineClassStatus> {
        &mut self.status
    }
}

impl Serialize for MachineClass {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct(Self::KIND, 9)?;
        object.serialize_field("apiVersion", API_VERSION)?;
        object.serialize_field("kind", Self::KIND)?;
        object.serialize_field("metadata", &self.metadata)?;
        serialize_some(&mut object, "nodeTemplate", self.node_template.as_ref())?;
        serialize_some(&mut object, "credentialsSecretRef", self.credentials_secret_ref.as_ref())?;
        let provider_spec = Some(&self.provider_spec).filter(|document| document.text() != "null");
        serialize_some(&mut object, "providerSpec", provider_spec)?;
        let provider = Some(&self.provider).filter(|name| !name.is_empty());
        serialize_some(&mut object, "provider", provider)?;
        serialize_some(&mut object, "secretRef", self.secret_ref.as_ref())?;
        serialize_some(&mut object, "status", self.status.as_ref())?;
        object.end()
    }
}

fn serialize_some<S: SerializeStruct, T: Serialize>(
    object: &mut S,
    name: &'static str,
    value: Option<&T>,
) -> Result<(), S::Error> {
    match value {
        Some(value) => object.serialize_field(name, value),
        None => object.skip_field(name),
    }
}
