//! How long to wait before a failed provider call is made again.

use std::time::Duration;

use nodewright_api::Code;

use super::settings::Settings;
use nodewright_driver::DriverError;

/// The longest pause after a failure that may pass by itself.
const PASSING: Duration = Duration::from_mins(1);
/// The longest pause after any other failure, such as revoked credentials or a wrong specification. A correction changes
/// the class, and then the call is made at once.
const LASTING: Duration = Duration::from_mins(10);

/// The pause after a call has failed `failures` times in a row while the VM is created. As in machine-controller-manager,
/// except that it grows.
pub(super) fn of_creation(error: &DriverError, failures: u32, settings: &Settings) -> Duration {
    match error.code {
        Code::ResourceExhausted => settings.exhausted_retry.max(settings.short_retry),
        _ if error.is_passing() => grown(settings.short_retry, failures, PASSING),
        _ => grown(settings.medium_retry, failures, LASTING),
    }
}

/// The pause after a call has failed `failures` times in a row while the VM is deleted.
pub(super) fn of_deletion(error: &DriverError, failures: u32, settings: &Settings) -> Duration {
    let longest = if error.is_passing() { PASSING } else { LASTING };
    grown(settings.short_retry, failures, longest)
}

fn grown(first: Duration, failures: u32, longest: Duration) -> Duration {
    first.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(longest).max(first)
}
