//! Rules of a Machine.

use super::{Validate, annotation, local, template};
use crate::field::{FieldError, FieldPath};
use crate::{Machine, annotations, labels};
use kube::ResourceExt;

/// The error of a changed `spec.providerID`, here and in our definitions.
pub(crate) const PROVIDER_ID_IMMUTABLE: &str = "is immutable once set: it identifies the VM";

impl Validate for Machine {
    fn validate(&self) -> Vec<FieldError> {
        let path = FieldPath::new("spec");
        let mut errors = local::errors(&self.spec, &path);
        errors.extend(template::node_template_errors(&self.spec.node_template, &path.child("nodeTemplate")));
        errors.extend(annotation::health_timeouts_error(self));
        errors
    }

    fn change_error(&self, old: &Self) -> Option<FieldError> {
        let id = &self.spec.provider_id;
        let path = FieldPath::new("spec").child("providerID");
        let is_changed = old.provider_id().is_some_and(|old| old != id);
        is_changed.then(|| FieldError::invalid(path, id.as_str(), PROVIDER_ID_IMMUTABLE))
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = template::warnings(&self.spec, "spec");
        if let Some(value) = self.annotations().get(annotations::PRESERVE)
            && !annotations::PRESERVE_VALUES.contains(&value.as_str())
        {
            warnings.push(format!(
                "{}: {value:?} has no effect; valid values are {}",
                annotation::path(annotations::PRESERVE),
                annotations::PRESERVE_VALUES.join(", "),
            ));
        }
        warnings.extend(force_deletion_warning(self));
        warnings.extend(annotation::priority_warning(self));
        warnings.extend(annotation::warnings(self));
        warnings.extend(annotation::health_timeouts_warning(self, &self.spec));
        warnings
    }
}

/// Warns about a [`labels::FORCE_DELETION`] that is neither true nor false.
fn force_deletion_warning(machine: &Machine) -> Option<String> {
    let key = labels::FORCE_DELETION;
    let value = machine.labels().get(key).filter(|value| labels::parse_bool(value).is_none())?;
    let path = FieldPath::new("metadata").child("labels").key(key);
    Some(format!("{path}: {value:?} has no effect; \"True\" forces the deletion"))
}
