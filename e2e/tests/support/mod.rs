//! What the tests with a control plane of their own share.

use std::{
    error::Error,
    time::{Duration, Instant},
};

pub(crate) type TestResult = Result<(), Box<dyn Error>>;

/// For everything that a busy machine may delay.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// Waits until something is so. `what` begins the text of the error.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> Result<bool, Box<dyn Error>>) -> TestResult {
    let since = Instant::now();
    while !is_so().await? {
        if since.elapsed() > PATIENCE {
            return Err(format!("{what} did not happen within {PATIENCE:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
