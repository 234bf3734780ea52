//! Waiting for what the kernel and other processes do not announce.

use std::{
    thread,
    time::{Duration, Instant},
};

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Calls `poll` until it returns a value. Returns `None` if it has not returned one when `timeout` is over.
pub(crate) fn wait_for<T>(timeout: Duration, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    let since = Instant::now();
    loop {
        let value = poll();
        if value.is_some() || since.elapsed() > timeout {
            return value;
        }
        thread::sleep(POLL_INTERVAL);
    }
}
