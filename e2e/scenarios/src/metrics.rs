//! The manager's metrics.

use crate::{Environment, TestResult};

/// The value of the one series whose line has this prefix: a name, and the relevant labels.
pub fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(series))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

impl Environment {
    /// The value of a series of the manager, see [`value`]; `None` if there is no such series yet.
    pub async fn metric(&self, series: &str) -> TestResult<Option<f64>> {
        Ok(value(&self.manager().await?.metrics().await?, series))
    }
}
