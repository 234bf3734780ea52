//! Rules of a Machine.

use super::{Validate, local, template};
use crate::field::{FieldError, FieldPath};
use crate::{GoDuration, HealthTimeouts, Machine, annotations};
use kube::ResourceExt;

/// The error of a changed `spec.providerID`, here and in our definitions.
pub(crate) const PROVIDER_ID_IMMUTABLE: &str = "is immutable once set: it identifies the VM";

impl Validate for Machine {
    fn validate(&self) -> Vec<FieldError> {
        let path = FieldPath::new("spec");
        let mut errors = local::errors(&self.spec, &path);
        errors.extend(template::node_template_errors(&self.spec.node_template, &path.child("nodeTemplate")));
        errors.extend(health_timeouts_error(self));
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
                "metadata.annotations[{}]: {value:?} has no effect; valid values are {}",
                annotations::PRESERVE,
                annotations::PRESERVE_VALUES.join(", "),
            ));
        }
        warnings.extend(creation_timeout_warning(self));
        warnings
    }
}

pub(super) fn health_timeouts_error(object: &impl ResourceExt) -> Option<FieldError> {
    let key = annotations::HEALTH_TIMEOUTS;
    let text = object.annotations().get(key)?;
    let error = text.parse::<HealthTimeouts>().err()?;
    let path = FieldPath::new("metadata").child("annotations").key(key);
    Some(FieldError::invalid(path, text.as_str(), error.to_string()))
}

/// Warns about an [`annotations::EFFECTIVE_CREATION_TIMEOUT`] that is not a duration.
pub(super) fn creation_timeout_warning(object: &impl ResourceExt) -> Option<String> {
    let value = object.annotations().get(annotations::EFFECTIVE_CREATION_TIMEOUT)?;
    let error = value.parse::<GoDuration>().err()?;
    Some(format!(
        "metadata.annotations[{}]: {value:?} has no effect: it {error}",
        annotations::EFFECTIVE_CREATION_TIMEOUT
    ))
}
