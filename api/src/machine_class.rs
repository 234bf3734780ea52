//! `MachineClass`: the provider's configuration of VMs.

use crate::common::Condition;
use crate::raw_json::RawJson;
use crate::validation::rules;
use crate::wire::{is_default, null_as_default};
use crate::{API_VERSION, GROUP, VERSION, lenient};
use garde::Validate;
use k8s_openapi::api::core::v1::SecretReference;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, NamespaceResourceScope, Resource};
use schemars::JsonSchema;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;

// The kind has no `spec`, so kube's derive does not fit: it would flatten the fields, and serde's buffer for that neither
// holds raw text nor deep nesting.
/// `MachineClass` is the provider's configuration of the VMs of machines.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["providerSpec"]))]
pub struct MachineClass {
    /// Standard object metadata.
    #[serde(deserialize_with = "null_as_default")]
    #[schemars(skip)]
    pub metadata: ObjectMeta,
    /// Description of a Node of the class. The autoscaler needs it to scale up from zero.
    pub node_template: Option<MachineClassNodeTemplate>,
    /// Secret with the credentials of the provider. Its keys override those of `secretRef`.
    #[schemars(schema_with = "crate::schema::secret_reference")]
    pub credentials_secret_ref: Option<SecretReference>,
    /// Configuration of a VM, in the format of the provider.
    #[serde(deserialize_with = "null_as_default")]
    #[schemars(schema_with = "crate::schema::free_object")]
    pub provider_spec: RawJson,
    /// Name of the provider.
    #[serde(deserialize_with = "null_as_default")]
    pub provider: String,
    /// Secret with the user data, and with the credentials unless `credentialsSecretRef` is set.
    #[schemars(schema_with = "crate::schema::secret_reference")]
    pub secret_ref: Option<SecretReference>,
    /// Status of the class. Not part of MCM's schema.
    pub status: Option<MachineClassStatus>,
}

/// A description of the Nodes of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, Validate)]
#[serde(rename_all = "camelCase", default)]
#[garde(allow_unvalidated)]
#[schemars(extend(
    "required" = ["capacity", "instanceType", "region", "zone"],
    "x-kubernetes-preserve-unknown-fields" = true
))]
pub struct MachineClassNodeTemplate {
    /// Resources of the Node. Must have `cpu`, `gpu` and `memory`.
    #[serde(deserialize_with = "lenient::quantities")]
    #[schemars(schema_with = "crate::schema::resource_list")]
    pub capacity: BTreeMap<String, Quantity>,
    /// Extended resources that are added to the capacity of the Node without a rollout.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "lenient::quantities")]
    #[schemars(schema_with = "crate::schema::resource_list")]
    pub virtual_capacity: BTreeMap<String, Quantity>,
    /// Instance type, in the format of the provider.
    #[serde(deserialize_with = "null_as_default")]
    #[garde(custom(rules::not_empty))]
    pub instance_type: String,
    /// Region of the provider.
    #[serde(deserialize_with = "null_as_default")]
    #[garde(custom(rules::not_empty))]
    pub region: String,
    /// Zone of the region.
    #[serde(deserialize_with = "null_as_default")]
    #[garde(custom(rules::not_empty))]
    pub zone: String,
    /// CPU architecture, such as `amd64`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
}

/// The status of a MachineClass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineClassStatus {
    /// Generation of the object that this status describes.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_as_default")]
    pub observed_generation: i64,
    /// Number of machines that refer to the class.
    #[serde(deserialize_with = "null_as_default")]
    pub machines: i32,
    /// Conditions of the class.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<MachineClassCondition>,
}

/// A condition of a MachineClass.
pub type MachineClassCondition = Condition;

impl MachineClass {
    /// Whether the object is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// References to the Secrets of the class. Keys of later ones override those of earlier ones.
    pub fn secret_refs(&self) -> impl Iterator<Item = &SecretReference> {
        self.secret_ref.iter().chain(&self.credentials_secret_ref)
    }

    /// Namespaces and names of the Secrets of the class, in the order of [`MachineClass::secret_refs`]. Skips references
    /// without a name. The namespace defaults to that of the class.
    pub fn secret_names(&self) -> impl Iterator<Item = (&str, &str)> {
        let own = self.metadata.namespace.as_deref().unwrap_or_default();
        self.secret_refs().filter_map(move |reference| {
            let name = reference.name.as_deref().filter(|name| !name.is_empty())?;
            Some((reference.namespace.as_deref().filter(|namespace| !namespace.is_empty()).unwrap_or(own), name))
        })
    }

    /// The condition of a type.
    pub fn condition(&self, condition_type: &str) -> Option<&MachineClassCondition> {
        self.status.as_ref()?.conditions.iter().find(|condition| condition.condition_type == condition_type)
    }
}

// kube's `Resource` follows from these.
impl Resource for MachineClass {
    const API_VERSION: &str = API_VERSION;
    const GROUP: &str = GROUP;
    const KIND: &str = "MachineClass";
    const VERSION: &str = VERSION;
    const URL_PATH_SEGMENT: &str = "machineclasses";
    type Scope = NamespaceResourceScope;
}

impl Metadata for MachineClass {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
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

impl kube::core::object::HasStatus for MachineClass {
    type Status = MachineClassStatus;

    fn status(&self) -> Option<&MachineClassStatus> {
        self.status.as_ref()
    }

    fn status_mut(&mut self) -> &mut Option<MachineClassStatus> {
        &mut self.status
    }
}
