//! What is wrong with an object.
//!
//! The rules are MCM's, and beyond them what can never work: an object that MCM would accept and act on
//! is not refused. What works, though hardly as meant, is a warning.
//!
//! Rules of a single field stand at the field, as attributes of garde; rules that look at
//! several stand here, a file for each kind.

mod local;
pub(crate) mod machine;
mod machine_class;
mod machine_deployment;
mod machine_set;
mod metadata;
pub(crate) mod rules;
mod selector;
mod template;

use crate::field::FieldError;

/// How many errors of one map or list are reported: a large object that is wrong throughout must not become many times as
/// large as a list of its errors.
const MOST_ERRORS: usize = 100;

/// An object that can be checked without looking at any other.
pub trait Validate: Sized {
    /// What is wrong with the object. Nothing is wrong when the list is empty.
    ///
    /// Absent fields count as what [`defaults`](crate::defaults) makes of them.
    fn validate(&self) -> Vec<FieldError>;

    /// What is wrong with a change of the object.
    ///
    /// What was wrong before, and has not been touched, is no reason to refuse the change: a rule that
    /// came later must not keep an older object from being scaled or deleted.
    fn validate_update(&self, old: &Self) -> Vec<FieldError> {
        let before = old.validate();
        self.validate().into_iter().filter(|error| !before.contains(error)).collect()
    }

    /// What will work, though hardly as meant: sentences for the person who writes the object.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}
