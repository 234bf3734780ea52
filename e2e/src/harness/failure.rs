//! Why a scenario failed.

use std::{error::Error, fmt};

use nodewright_runtime::error::with_causes;

/// Why a scenario failed, as text of any number of lines. Made from any error by `?`; shown as it is by the test
/// runner, which prints the `Debug` form.
pub struct Failure(String);

/// What a scenario returns.
pub type TestResult<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure that says this.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The same, with more text after it.
    #[must_use]
    pub fn and(self, more: &str) -> Self {
        Self(format!("{}\n{more}", self.0))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

// `Failure` itself is no `Error`: otherwise this would collide with the conversion of a type into itself.
impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(with_causes(&error))
    }
}

/// A failure with this text unless the condition holds.
pub fn ensure(holds: bool, text: impl FnOnce() -> String) -> TestResult {
    if holds { Ok(()) } else { Err(Failure(text())) }
}
