//! The custom resource definitions, made from the types.
//!
//! Whoever has MCM's definitions installed needs none of these: everything works on those, too. Ours add
//! to them, and never refuse what MCM would accept and act on:
//!
//! * no defaults, since a rollout starts when templates differ, and a default would be added to a
//!   template that was stored without it;
//! * one rule of change: `spec.providerID` of a Machine stays once it is set;
//! * no closed lists of values in a status or for `class.kind`; no rules that look across fields, since
//!   a write that only changes the replicas must never fail for an older mistake;
//! * nothing is nullable: the API server then drops the `null`s that Go's types write for a zero time;
//! * the lists of conditions that MCM has too are atomic, as in its definitions, so that a status is
//!   replaced as a whole on either.

use crate::validation::machine::PROVIDER_ID_IMMUTABLE;
use crate::{GROUP, Machine, MachineClass, MachineDeployment, MachineSet, VERSION};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionSpec,
    CustomResourceDefinitionVersion, CustomResourceSubresourceStatus, CustomResourceSubresources,
    CustomResourceValidation, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool, ValidationRule,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::CustomResourceExt;
use kube::core::ApiResource;
use kube::core::schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter};
use schemars::generate::SchemaSettings;
use schemars::transform::AddNullable;

/// The definitions of the four kinds, in the order of their names.
pub fn all() -> Vec<CustomResourceDefinition> {
    let mut definitions =
        [MachineClass::crd(), MachineDeployment::crd(), Machine::crd(), MachineSet::crd()].map(tidy).to_vec();
    definitions.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    definitions
}

/// Makes a definition what the header of this module promises, whatever the generators added.
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

/// The VM of a Machine stays the same. The rule stands at the `spec` of a Machine and not at its type, which templates have
/// too, and it is only about a change, so that a restored object may come with its id.
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

/// A description without the marks of Rust's documentation: links become their text, lines are joined.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('[') {
        let (before, link) = rest.split_at(start);
        plain.push_str(before);
        let Some(end) = link.find(']') else {
            rest = link;
            break;
        };
        plain.push_str(&link[1..end]);
        rest = &link[end + 1..];
        if rest.starts_with('(') {
            rest = rest.find(')').map_or("", |end| &rest[end + 1..]);
        }
    }
    plain.push_str(rest);
    plain.replace('`', "").split_whitespace().collect::<Vec<_>>().join(" ")
}

impl CustomResourceExt for MachineClass {
    fn crd() -> CustomResourceDefinition {
        CustomResourceDefinition {
            metadata: ObjectMeta { name: Some(Self::crd_name().to_owned()), ..ObjectMeta::default() },
            spec: CustomResourceDefinitionSpec {
                group: GROUP.to_owned(),
                names: CustomResourceDefinitionNames {
                    kind: Self::KIND.to_owned(),
                    plural: Self::PLURAL.to_owned(),
                    short_names: Some(Self::shortnames().iter().map(|&name| name.to_owned()).collect()),
                    singular: Some(Self::KIND.to_lowercase()),
                    ..CustomResourceDefinitionNames::default()
                },
                scope: "Namespaced".to_owned(),
                versions: vec![CustomResourceDefinitionVersion {
                    name: VERSION.to_owned(),
                    schema: Some(CustomResourceValidation { open_api_v3_schema: machine_class_schema() }),
                    served: true,
                    storage: true,
                    subresources: Some(CustomResourceSubresources {
                        scale: None,
                        status: Some(CustomResourceSubresourceStatus(serde_json::json!({}))),
                    }),
                    ..CustomResourceDefinitionVersion::default()
                }],
                ..CustomResourceDefinitionSpec::default()
            },
            ..CustomResourceDefinition::default()
        }
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

/// The schema of the class, by the settings that kube's derive has for the other kinds.
fn machine_class_schema() -> Option<JSONSchemaProps> {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let schema = settings
        .with_transform(AddNullable::default())
        .with_transform(StructuralSchemaRewriter)
        .with_transform(OptionalEnum)
        .with_transform(OptionalIntOrString)
        .into_generator()
        .into_root_schema_for::<MachineClass>();
    // `None` would be a definition that no API server accepts; the tests look at the schema.
    serde_json::from_value(schema.into()).ok()
}
