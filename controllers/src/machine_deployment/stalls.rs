//! Why a deployment makes no progress without help, besides an invalid spec and a deadline that has passed.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{Machine, conditions::machine::CONFIGURATION_VALID, reasons};
use nodewright_runtime::{
    leadership::LARGE_SKEW,
    object::{is_deleting, name},
};

use super::snapshot::{Scope, SetView};
use crate::shared::{class_secrets, creation_backoff, usable_class::CLASS_NOT_FOUND};

/// Machines would have to be updated in place, and have no Nodes.
const IN_PLACE_UPDATE_UNSUPPORTED: &str = "InPlaceUpdateUnsupported";
/// How long the class of a Machine, or its Secret, may be missing: a user who applies a folder may create it last.
const MISSING_FOR: SignedDuration = SignedDuration::from_mins(1);

const CLOCK_RETRY: SignedDuration = SignedDuration::from_mins(1);

/// Why nothing is done without help.
#[derive(Clone, Debug)]
pub(super) struct Stall {
    pub(super) reason: &'static str,
    /// The reason of the event.
    pub(super) event: &'static str,
    pub(super) text: String,
}

impl Stall {
    pub(super) fn new(reason: &'static str, text: String) -> Self {
        Self { reason, event: reason, text }
    }
}

pub(super) fn stalled(scope: &Scope<'_>) -> Option<Stall> {
    let missing = missing(scope).find(|missing| missing.due <= scope.context.now);
    let missing = || missing.map(|missing| Stall::new(missing.reason, missing.text));
    in_place_update(scope).or_else(missing).or_else(|| creation_backoff(scope)).or_else(|| clock_behind(scope))
}

/// When to look again: the next class or Secret has been missing for too long, or the clock may have been set.
pub(super) fn next(scope: &Scope<'_>) -> Option<Timestamp> {
    let now = scope.context.now;
    let clock = clock_behind(scope).and_then(|_| now.checked_add(CLOCK_RETRY).ok());
    missing(scope).map(|missing| missing.due).filter(|due| *due > now).chain(clock).min()
}

fn in_place_update(scope: &Scope<'_>) -> Option<Stall> {
    let snapshot = scope.snapshot;
    let in_place = snapshot.is_in_place() && !snapshot.has_target;
    let is_due = snapshot.current().is_none() && !snapshot.sets.is_empty()
        || snapshot.old().any(|view| view.size().at_most() > 0);
    let text = "the template has changed, and without a target cluster machines have no nodes that could be updated in place: \
        restore the template, or set spec.strategy.type to RollingUpdate to replace them";
    (in_place && is_due).then(|| Stall::new(IN_PLACE_UPDATE_UNSUPPORTED, text.to_owned()))
}

struct Missing {
    /// When it has been missing for too long, by the first Machine that says so.
    due: Timestamp,
    reason: &'static str,
    text: String,
}

/// What the Machines of the current set say is missing.
fn missing<'a>(scope: &Scope<'a>) -> impl Iterator<Item = Missing> + use<'a> {
    let of = |machine: &'a Machine| {
        let (reason, since, text) = missing_reason(machine)?;
        let due = since.saturating_add(MISSING_FOR).unwrap_or(Timestamp::MAX);
        Some(Missing { due, reason, text: format!("machine {}: {text}", name(machine)) })
    };
    let mut all: Vec<_> = scope
        .snapshot
        .current()
        .into_iter()
        .flat_map(|view| &view.machines)
        .filter_map(|machine| of(machine.as_ref()))
        .collect();
    all.sort_by(|a, b| (a.due, &a.text).cmp(&(b.due, &b.text)));
    all.into_iter()
}

/// That its class or Secret is missing, since when, and the text.
pub(super) fn missing_reason(machine: &Machine) -> Option<(&'static str, Timestamp, &str)> {
    let condition =
        machine.condition(CONFIGURATION_VALID).filter(|it| it.status == "False" && !is_deleting(machine))?;
    let reason =
        [CLASS_NOT_FOUND, class_secrets::NOT_FOUND].into_iter().find(|it| condition.reason.as_deref() == Some(*it));
    Some((reason?, condition.last_transition_time.as_ref()?.0, condition.message.as_deref().unwrap_or_default()))
}

/// Machines are created and do not join, one after the other.
fn creation_backoff(scope: &Scope<'_>) -> Option<Stall> {
    let report = |view: &SetView| {
        let machines = view.machines.iter().map(AsRef::as_ref);
        let text = creation_backoff::report(&view.set, machines, scope.context.now)?;
        Some(format!("machine set {}: {text}", name(view.set.as_ref())))
    };
    let text = scope.snapshot.current().into_iter().chain(scope.snapshot.old()).find_map(report)?;
    Some(Stall::new(reasons::machine_set::CREATION_BACKOFF, text))
}

/// What waits for a time waits for longer than it says. The text does not change with the difference.
fn clock_behind(scope: &Scope<'_>) -> Option<Stall> {
    let is_awaited = |view: &SetView| view.machines.iter().any(|machine| !view.availability.is_available(machine));
    let text = "the clock of the controller manager is more than five minutes behind that of an API server: timeouts end \
        that much later, and failed machines are replaced later; set the clock";
    let is_behind = scope.context.clock_skew < -LARGE_SKEW && scope.snapshot.sets.iter().any(is_awaited);
    is_behind.then(|| Stall::new(reasons::machine_deployment::CLOCK_SKEW, text.to_owned()))
}
