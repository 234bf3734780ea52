//! Rules of a MachineSet.

use super::machine::creation_timeout_warning;
use super::{Validate, local, selector, template};
use crate::field::{FieldError, FieldPath};
use crate::{MachineSet, annotations};
use kube::ResourceExt;

impl Validate for MachineSet {
    fn validate(&self) -> Vec<FieldError> {
        let mut errors = local::errors(&self.spec, &FieldPath::new("spec"));
        errors.extend(selector::errors(self.spec.selector.as_ref(), &self.spec.template));
        errors.extend(template::errors(&self.spec.template));
        errors.extend(deletion_order_error(self));
        errors
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = template::warnings(&self.spec.template.spec, "spec.template.spec");
        warnings.extend(creation_timeout_warning(self));
        warnings
    }
}

/// The error of [`annotations::DELETION_ORDER`]. The annotation is ours, so no other program relies on another value.
pub(super) fn deletion_order_error(object: &impl ResourceExt) -> Option<FieldError> {
    let value = object.annotations().get(annotations::DELETION_ORDER)?;
    let path = FieldPath::new("metadata").child("annotations").key(annotations::DELETION_ORDER);
    let known = annotations::DELETION_ORDER_VALUES.contains(&value.as_str());
    (!known).then(|| FieldError::not_supported(path, value.as_str(), &annotations::DELETION_ORDER_VALUES))
}
