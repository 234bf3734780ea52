//! Validation of objects.
//!
//! The rules are MCM's and MCO's, and more where an object can never work. An object that these accept and act on is valid. A
//! field that works, but hardly as the user meant it, gets a warning.
//!
//! A rule of one field is an attribute of garde at the field. Rules about several fields are here, in one file for each kind.

mod annotation;
mod controller_config;
mod kubelet_config;
mod local;
pub(crate) mod machine;
mod machine_class;
mod machine_config;
mod machine_config_pool;
mod machine_deployment;
mod machine_set;
mod metadata;
pub(crate) mod rules;
mod selector;
mod template;

pub use self::{metadata::is_label, template::size_error as template_size};
use crate::field::FieldError;

/// Maximum number of errors of a map or list, so that the errors do not become much larger than the object.
const MOST_ERRORS: usize = 100;

/// An object with rules.
pub trait Validate: Sized {
    /// The errors of the object. Absent fields have their [defaults](crate::defaults).
    fn validate(&self) -> Vec<FieldError>;

    /// The errors of a change of the object. Ignores errors that the old object has too, so that an object older than a rule
    /// can be scaled and deleted.
    fn validate_update(&self, old: &Self) -> Vec<FieldError> {
        let before = old.validate();
        let new = self.validate().into_iter().filter(|error| !before.contains(error));
        new.chain(self.change_error(old)).collect()
    }

    /// The error of a change between two valid objects.
    fn change_error(&self, _old: &Self) -> Option<FieldError> {
        None
    }

    /// Warnings for the user who writes the object.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// A warning about the change; `old` is absent in a creation.
    fn change_warning(&self, _old: Option<&Self>) -> Option<String> {
        None
    }
}
