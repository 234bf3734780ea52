//! The contract suite of drivers: what any [`Driver`] must do, as named checks that run against its provider.
//!
//! The author of a driver implements [`Fixture`], and runs the suite in a test. `docs/tasks/write-a-driver.md` says what each
//! call means, and why.
//!
//! ```no_run
//! # async fn test(fixture: &dyn nodewright_driver_contract::Fixture) {
//! let report = nodewright_driver_contract::run(fixture).await;
//! report.assert_kept();
//! # }
//! ```
//!
//! A complete driver with its fixture is in `examples/memory.rs`:
//!
//! ```no_run
#![doc = include_str!("../examples/memory.rs")]
//! ```
//!
//! # Guarantees
//! * The checks do what the manager does: calls are dropped at the driver's deadline, failures that pass are retried, answers
//!   that are hidden by the provider's consistency are awaited, and the driver's notes are given back.
//! * A check fails alone: each has Machines of its own. It deletes them at its end, also when it fails.
//! * Time is tokio's: on paused time, a suite that waits for minutes takes milliseconds.
//!
//! # Caveats
//! * Checks run one after the other, and an outage is one of the whole provider: do not share a provider with others while
//!   [`Fixture::begin_outage`] is implemented.

mod builders;
mod checks;
mod context;
mod fixture;
mod report;

pub use self::{
    builders::{class, machine},
    fixture::{Fixture, Hook, InvalidSpec, Outage, missing},
    report::{Outcome, Report, Verdict},
};

use self::context::{Context, Notebook};

#[cfg(doc)]
use nodewright_driver::Driver;

/// The example in the page for authors compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/tasks/write-a-driver.md")]
struct Page;

/// A text that the suite treats as a secret: it is in the user data of all Machines. A fixture may use it as a password, or as a
/// value in an invalid `providerSpec`: it must not appear in any answer.
pub const SECRET: &str = "hunter2-is-no-password";

/// Runs all checks, one after the other.
pub async fn run(fixture: &dyn Fixture) -> Report {
    run_only(fixture, |_| true).await
}

/// Runs the checks whose names are selected.
pub async fn run_only(fixture: &dyn Fixture, is_selected: impl Fn(&str) -> bool) -> Report {
    let notebook = Notebook::new(fixture);
    let mut outcomes = vec![];
    for check in checks::ALL.iter().filter(|check| is_selected(check.name)) {
        let context = Context::new(fixture, &notebook, check.name);
        let verdict = (check.run)(&context).await;
        context.clean_up().await;
        outcomes.push(Outcome { check: check.name, rule: check.rule, verdict: verdict.into() });
    }
    Report { outcomes }
}

/// The names and rules of all checks, in their order.
pub fn rules() -> impl Iterator<Item = (&'static str, &'static str)> {
    checks::ALL.iter().map(|check| (check.name, check.rule))
}
