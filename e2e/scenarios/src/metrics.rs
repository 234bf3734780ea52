//! What a manager's metrics say.

use crate::{Environment, TestResult};

/// The value of the one series whose line begins with this: a name, and its labels as far as they count.
pub fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(series))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

impl Environment {
    /// The value of a series of the manager, see [`value`]; `None` while there is none.
    pub async fn metric(&self, series: &str) -> TestResult<Option<f64>> {
        Ok(value(&self.manager().await?.metrics().await?, series))
    }
}
