//! What the tests of this crate share.

use std::{
    error::Error,
    process::Command,
    thread,
    time::{Duration, Instant},
};

pub(crate) type TestResult<T = ()> = Result<T, Box<dyn Error>>;

/// The timeout of each wait on a busy computer.
const TIMEOUT: Duration = Duration::from_mins(3);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn signal(name: &str, pid: u32) -> TestResult {
    let status = Command::new("sh").args(["-c", "kill -s \"$1\" \"$2\"", "sh", name, &pid.to_string()]).status()?;
    if status.success() { Ok(()) } else { Err(format!("failed to send {name} to {pid}").into()) }
}

/// Waits until `is_so` returns true. Other processes announce nothing, so this polls.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> TestResult<bool>) -> TestResult {
    let since = Instant::now();
    while !is_so()? {
        if since.elapsed() > TIMEOUT {
            return Err(format!("{what}: not within {TIMEOUT:?}").into());
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
