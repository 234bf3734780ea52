//! Rules of a MachineClass.

use super::{MOST_ERRORS, Validate, annotation, local};
use crate::MachineClass;
use crate::extended_resource::{is_extended, whole};
use crate::field::{FieldError, FieldPath};
use crate::machine_class::MachineClassNodeTemplate;
use crate::validation::metadata;
use k8s_openapi::api::core::v1::SecretReference;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// The resources that MCM requires.
const CAPACITY: [&str; 3] = ["cpu", "gpu", "memory"];

/// The warning about a class without a Secret. Some images need no user data.
const NO_USER_DATA: &str =
    "secretRef: without it the VMs get no user data, which most images need for their nodes to join";

impl Validate for MachineClass {
    fn validate(&self) -> Vec<FieldError> {
        let mut errors: Vec<_> = provider_spec_error(self).into_iter().collect();
        let secrets = [("secretRef", &self.secret_ref), ("credentialsSecretRef", &self.credentials_secret_ref)];
        for (field, reference) in secrets {
            errors.extend(reference.as_ref().and_then(|it| secret_error(it, &FieldPath::new(field))));
        }
        let template = self.node_template.as_ref();
        errors.extend(template.map(node_template_errors).into_iter().flatten());
        errors
    }

    fn warnings(&self) -> Vec<String> {
        let path = FieldPath::new("nodeTemplate").child("virtualCapacity");
        let added = self.node_template.iter().flat_map(|template| &template.virtual_capacity);
        let why = added.filter_map(|(name, quantity)| Some((name, without_effect(name, quantity)?)));
        let without_effect = why.map(|(name, why)| format!("{}: has no effect: {why}", path.key(name)));
        let mut warnings: Vec<_> = without_effect.take(MOST_ERRORS).collect();
        warnings.extend(annotation::warnings(self));
        warnings.extend((self.secret_names().count() == 0).then(|| NO_USER_DATA.to_owned()));
        warnings
    }
}

/// Why Nodes do not get this capacity, if they do not.
fn without_effect(name: &str, Quantity(amount): &Quantity) -> Option<String> {
    if !is_extended(name) {
        return Some("only resources that are not Kubernetes' own, such as example.com/gpu, can be added".to_owned());
    }
    whole(amount).is_none().then(|| format!("{amount:?} is not a whole number, as Kubernetes demands"))
}

fn provider_spec_error(class: &MachineClass) -> Option<FieldError> {
    let path = FieldPath::new("providerSpec");
    if class.provider_spec.text() == "null" {
        return Some(FieldError::required(path, "must be the configuration of the provider"));
    }
    // The document may be confidential. The error shows only its type.
    let found = match class.provider_spec.text().trim_start().as_bytes().first() {
        Some(b'{') => return None,
        Some(b'[') => "array",
        Some(b'"') => "string",
        Some(b't' | b'f') => "boolean",
        _ => "number",
    };
    Some(FieldError::invalid(path, found, "must be an object"))
}

fn secret_error(reference: &SecretReference, path: &FieldPath) -> Option<FieldError> {
    let name = reference.name.as_deref().unwrap_or_default();
    let path = path.child("name");
    if name.is_empty() {
        return Some(FieldError::required(path, "must be the name of a secret"));
    }
    (!metadata::is_object_name(name)).then(|| FieldError::invalid(path, name, metadata::OBJECT_NAME))
}

fn node_template_errors(template: &MachineClassNodeTemplate) -> Vec<FieldError> {
    let path = FieldPath::new("nodeTemplate");
    let capacity = path.child("capacity");
    let mut errors = local::errors(template, &path);
    for name in CAPACITY.into_iter().filter(|&name| !template.capacity.contains_key(name)) {
        errors.push(FieldError::required(capacity.key(name), "must be set, to 0 if there is none"));
    }
    errors.extend(quantity_errors(&template.capacity, &capacity));
    errors.extend(quantity_errors(&template.virtual_capacity, &path.child("virtualCapacity")));
    errors
}

fn quantity_errors(quantities: &BTreeMap<String, Quantity>, path: &FieldPath) -> Vec<FieldError> {
    quantities
        .iter()
        .filter(|(_, Quantity(text))| text.starts_with('-'))
        .map(|(name, Quantity(text))| {
            FieldError::invalid(path.key(name), text.as_str(), "must be greater than or equal to 0")
        })
        .take(MOST_ERRORS)
        .collect()
}
