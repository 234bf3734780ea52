//! When a call that the provider refused is made again.

use std::time::Duration;

use jiff::SignedDuration;
use nodewright_api::Code;
use nodewright_driver::DriverError;

use super::context::Context;

/// The longest pause after a failure that may pass by itself.
const PASSING: Duration = Duration::from_mins(1);
/// The longest pause after any other: credentials that were revoked, a specification that is wrong. What corrects it
/// shows in the class, and then the call is made at once.
const LASTING: Duration = Duration::from_mins(10);

/// The pause after a call of a birth has failed so many times in a row: as machine-controller-manager, but it grows.
pub(super) fn of_birth(error: &DriverError, failures: u32, context: Context<'_>) -> SignedDuration {
    let settings = context.settings;
    signed(match error.code {
        Code::ResourceExhausted => settings.exhausted_retry.max(settings.short_retry),
        _ if error.is_passing() => grown(settings.short_retry, failures, PASSING),
        _ => grown(settings.medium_retry, failures, LASTING),
    })
}

/// The same for a call of a death.
pub(super) fn of_death(error: &DriverError, failures: u32, context: Context<'_>) -> SignedDuration {
    let longest = if error.is_passing() { PASSING } else { LASTING };
    signed(grown(context.settings.short_retry, failures, longest))
}

fn grown(first: Duration, failures: u32, longest: Duration) -> Duration {
    first.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(longest).max(first)
}

fn signed(pause: Duration) -> SignedDuration {
    SignedDuration::try_from(pause).unwrap_or(SignedDuration::MAX)
}
