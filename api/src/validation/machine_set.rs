//! Rules of a MachineSet.

use super::{Validate, annotation, local, machine_deployment::replicas_warning, selector, template};
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

    fn change_warning(&self, old: Option<&Self>) -> Option<String> {
        replicas_warning(old.map_or(0, |old| old.spec.replicas), self.spec.replicas)
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = template::warnings(&self.spec.template.spec, "spec.template.spec");
        warnings.extend(annotation::warnings(self));
        warnings
    }
}
