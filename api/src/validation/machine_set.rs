//! Rules of a MachineSet.

use super::{Validate, annotation, local, selector, template};
use crate::MachineSet;
use crate::field::{FieldError, FieldPath};

impl Validate for MachineSet {
    fn validate(&self) -> Vec<FieldError> {
        let mut errors = local::errors(&self.spec, &FieldPath::new("spec"));
        errors.extend(selector::errors(self.spec.selector.as_ref(), &self.spec.template));
        errors.extend(template::errors(&self.spec.template));
        errors.extend(annotation::deletion_order_error(self));
        errors
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = template::warnings(&self.spec.template.spec, "spec.template.spec");
        warnings.extend(annotation::warnings(self));
        warnings
    }
}
