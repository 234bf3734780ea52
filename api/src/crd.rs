//! The custom resource definitions, generated from the types.
//!
//! Nodewright also runs on MCM's definitions of machines and on OpenShift's of node configuration. Ours of machines add to them,
//! and never refuse what MCM accepts and acts on; those of node configuration only relax OpenShift's:
//!
//! * No defaults. A default would change a stored template, and a changed template starts a rollout.
//! * One rule about changes: `spec.providerID` of a Machine is immutable once set.
//! * No closed list of values in a status or for `class.kind`, and no rule about several fields: a write that only changes
//!   the replicas must not fail because of an older invalid value.
//! * Nothing is nullable. The API server then drops the `null` that Go writes for a zero time.
//! * The lists of conditions that MCM also has are atomic, as in its definitions, so that an apply replaces them as a whole.

use crate::labels::{PART_OF, PART_OF_VALUE};
use crate::machine_config::{ControllerConfig, KubeletConfig, MachineConfig, MachineConfigPool};
use crate::validation::machine::PROVIDER_ID_IMMUTABLE;
use crate::{GROUP, Machine, MachineClass, MachineDeployment, MachineSet, VERSION};
use k8s_openapi::Resource;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool, ValidationRule,
};
use kube::CustomResourceExt;
use kube::core::ApiResource;
use kube::core::schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter};
use schemars::generate::SchemaSettings;
use schemars::transform::AddNullable;
use serde_json::json;

/// The definitions of the kinds of node configuration, sorted by name. In comparison with OpenShift's they only relax.
///
/// They are not among [`all`]: on OpenShift, machine-config-operator has its own.
pub fn machine_config() -> Vec<CustomResourceDefinition> {
    [ControllerConfig::crd(), KubeletConfig::crd(), MachineConfigPool::crd(), MachineConfig::crd()]
        .map(tidy)
        .map(label)
        .to_vec()
}

/// The definitions of the four kinds of machines, sorted by name.
pub fn all() -> Vec<CustomResourceDefinition> {
    [MachineClass::crd(), MachineDeployment::crd(), Machine::crd(), MachineSet::crd()].map(tidy).to_vec()
}

/// Distinguishes a definition of node configuration from OpenShift's, which is not ours to guard.
fn label(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let labels = definition.metadata.labels.get_or_insert_default();
    labels.insert(PART_OF.to_owned(), PART_OF_VALUE.to_owned());
    definition
}

/// Removes what the generators add and the header of this module excludes.
fn tidy(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let names = &mut definition.spec.names;
    names.list_kind = Some(format!("{}List", names.kind));
    for version in &mut definition.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            tidy_schema(schema);
            if definition.spec.names.kind == "Machine" {
                fix_provider_id(schema);
            }
        }
    }
    definition
}

/// Makes `spec.providerID` of a Machine immutable once set. The rule is not part of the type, which templates share. It only
/// concerns updates, so that a Machine can be restored with its id.
fn fix_provider_id(schema: &mut JSONSchemaProps) {
    let Some(spec) = schema.properties.as_mut().and_then(|properties| properties.get_mut("spec")) else { return };
    let rule = "!has(oldSelf.providerID) || oldSelf.providerID == '' || \
                (has(self.providerID) && self.providerID == oldSelf.providerID)";
    spec.x_kubernetes_validations = Some(vec![ValidationRule {
        rule: rule.to_owned(),
        message: Some(PROVIDER_ID_IMMUTABLE.to_owned()),
        field_path: Some(".providerID".to_owned()),
        ..ValidationRule::default()
    }]);
}

fn tidy_schema(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.default = None;
    schema.title = None;
    schema.description = schema.description.take().map(|text| plain(&text)).filter(|text| !text.is_empty());
    for part in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        tidy_schema(part);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = schema.items.as_mut() {
        tidy_schema(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = schema.additional_properties.as_mut() {
        tidy_schema(values);
    }
}

/// Removes the markup of rustdoc, and joins lines.
fn plain(text: &str) -> String {
    text.replace('`', "").split_whitespace().collect::<Vec<_>>().join(" ")
}

impl CustomResourceExt for MachineClass {
    fn crd() -> CustomResourceDefinition {
        let version = json!({
            "name": VERSION,
            "schema": {"openAPIV3Schema": machine_class_schema()},
            "served": true,
            "storage": true,
            "subresources": {"status": {}},
        });
        let definition = json!({
            "metadata": {"name": Self::crd_name()},
            "spec": {
                "group": GROUP,
                "names": {
                    "kind": Self::KIND,
                    "plural": Self::URL_PATH_SEGMENT,
                    "shortNames": Self::shortnames(),
                    "singular": Self::KIND.to_lowercase(),
                },
                "scope": "Namespaced",
                "versions": [version],
            },
        });
        // An API server would refuse the default. The tests compare the definition.
        serde_json::from_value(definition).unwrap_or_default()
    }

    fn crd_name() -> &'static str {
        "machineclasses.machine.sapcloud.io"
    }

    fn api_resource() -> ApiResource {
        ApiResource::erase::<Self>(&())
    }

    fn shortnames() -> &'static [&'static str] {
        &["mcc"]
    }
}

/// The schema of the class, with the settings of kube's derive.
fn machine_class_schema() -> schemars::Schema {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    settings
        .with_transform(AddNullable::default())
        .with_transform(StructuralSchemaRewriter)
        .with_transform(OptionalEnum)
        .with_transform(OptionalIntOrString)
        .into_generator()
        .into_root_schema_for::<MachineClass>()
}
