//! The replacement budget: how many Machines of a MachineDeployment may be replaced for bad health at once. Annotation
//! `remediation-max-in-flight` of the deployment or set has the number or percentage; without it, one ([`pool::Limit`]).
//!
//! Each Machine that is being created, replaced or deleted holds a place. A Machine that is to be replaced, because it was
//! unhealthy for too long or because its Node was deleted, takes a free place, or waits and says so in its status. While very many
//! Machines are unhealthy at once, the fleet [`brake`] is in front: then one Machine of the namespace goes at a time, or none for a while.
//!
//! ```text
//! caches ── take ─► BudgetGroup ── decide ─► Allocation ── of(a Machine) ─► it may go, or who holds the places, and until when
//! ```
//!
//! # Guarantees
//! * There is one decision for all Machines of a deployment, made from objects alone. So two Machines that are evaluated at the
//!   same time do not both take the last place, and a new leader decides the same.
//! * A place is held for a limited time ([`Place::held_until`]), and a Machine about which nothing is decided comes after those that
//!   can go: no Machine blocks the others for good.
//! * A place that becomes free wakes the first of those that wait, not all of them.
//! * Only the Machines that hold a place and those that wait are read, not the whole deployment.
//!
//! # Caveats
//! * A Machine whose creation gets stuck shows that replacements may not come up. As many of these as the budget allows are
//!   overlooked; the others hold their places until they are up.

pub(super) mod brake;
pub(super) mod pool;
#[cfg(test)]
mod tests;
mod wake;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{annotations, reasons};
use nodewright_runtime::{clip::few, events::Event, object::uid, plan::reference};

#[cfg(test)]
pub(super) use self::pool::{Limit, holds_place, may_be_replaced};
pub(super) use self::{
    brake::{HEALTHY_BY_CLASS, Level, UNHEALTHY_BY_CLASS},
    pool::{BudgetGroup, Candidate, DELETING_NODES, HELD_BY_SET, LEAVING_BY_SET, PLACES_BY_SET, Place, WAITING_BY_SET},
    wake::{wake_held, wake_next},
};
use super::{scope::Scope, snapshot::Owner};

/// If several wait, one whose Node was deleted goes only this long after the deletion: the caches have caught up by then.
const SETTLED: SignedDuration = SignedDuration::from_secs(3);
/// How often a Machine that the brake holds looks whether it still does.
const BRAKE_PAUSE: SignedDuration = SignedDuration::from_mins(1);
/// How many of the Machines that hold a place a status names.
const NAMED: usize = 3;

const WITHOUT_SET: &str = "it belongs to no machine set, and of such machines one at a time goes for bad health";

pub(super) struct Held {
    pub(super) message: String,
    /// The message for the status: without counts, which would be written again and again.
    pub(super) status: String,
    /// When to look again at the latest if nothing changes.
    pub(super) until: Option<Timestamp>,
}

/// Whether the Machine may be replaced now.
pub(super) fn permit(scope: &Scope<'_>) -> Result<(), Held> {
    match &scope.snapshot.owner {
        Owner::Unreadable(text) => {
            let message = format!("{text}; the replacement budget and the other machines are not known until then");
            Err(Held { status: message.clone(), message, until: None })
        }
        owner => {
            let pool = &scope.snapshot.pool;
            let permit = pool.decide(scope.now()).of(uid(scope.machine));
            permit.map_err(|held| match owner {
                Owner::Set(_) => pool.braked(held, scope.now()),
                _ => Held { message: WITHOUT_SET.to_owned(), status: WITHOUT_SET.to_owned(), ..held },
            })
        }
    }
}

/// An event on the set of a Machine that the brake holds: one for all of them.
pub(super) fn brake_event(scope: &Scope<'_>) -> Option<Event> {
    let (Owner::Set(set), brake) = (&scope.snapshot.owner, &scope.snapshot.pool.brake) else { return None };
    let reason = reasons::machine_set::FLEET_BRAKE;
    (brake.level != Level::Off).then(|| Event::warning(reference(set.as_ref()), reason, brake.text()))
}

/// An event on the set of a Machine that is replaced although the brake has stopped.
pub(super) fn brake_timeout_event(scope: &Scope<'_>) -> Option<Event> {
    let (Owner::Set(set), pool) = (&scope.snapshot.owner, &scope.snapshot.pool) else { return None };
    let own = pool.candidates.iter().find(|candidate| candidate.uid == uid(scope.machine))?;
    let text = || pool.brake.timed_out(&own.name);
    let has_stopped = pool.brake.level == Level::Stop && !own.has_lost_vm;
    has_stopped.then(|| Event::warning(reference(set.as_ref()), reasons::machine_set::FLEET_BRAKE, text()))
}

/// Who may be replaced now, and who has to wait for whom.
pub(super) struct Allocation<'a> {
    limit: usize,
    /// The places that are held.
    holders: Vec<&'a Place>,
    /// Those that are due, in their order.
    due: Vec<&'a Candidate>,
    /// Whether a Machine that is not among these does not go, however many places are free.
    stops: bool,
    now: Timestamp,
}

impl BudgetGroup {
    /// What holds a Machine back while the brake holds: nothing wakes those of other deployments, so it looks again by itself.
    fn braked(&self, held: Held, now: Timestamp) -> Held {
        if self.brake.level == Level::Off {
            return held;
        }
        let text = self.brake.text();
        let again = now.checked_add(BRAKE_PAUSE).ok();
        Held { message: text.clone(), status: text, until: held.until.into_iter().chain(again).min() }
    }

    pub(super) fn decide(&self, now: Timestamp) -> Allocation<'_> {
        let limit = self.limit.count(self.total);
        let (mut holders, stuck): (Vec<_>, Vec<_>) =
            self.places.iter().partition(|place| place.held_until.is_none_or(|until| until > now));
        holders.extend(stuck.into_iter().filter(|place| place.is_creation).skip(limit));
        let mut due: Vec<_> = self.candidates.iter().filter(|candidate| candidate.due <= now).collect();
        due.sort_unstable_by_key(|candidate| candidate.rank());
        Allocation { limit, holders, due, stops: self.brake.level == Level::Stop, now }
    }
}

impl Allocation<'_> {
    /// A Machine that the pool does not know comes after all others.
    pub(super) fn of(&self, uid: &str) -> Result<(), Held> {
        let place = self.due.iter().position(|candidate| candidate.uid == uid);
        let before = place.unwrap_or(self.due.len());
        // One that is being created and loses its Node holds a place itself.
        let holders: Vec<_> = self.holders.iter().copied().filter(|place| place.uid != uid).collect();
        if self.stops && place.is_none() || holders.len() + before >= self.limit {
            return Err(self.held(&holders, before));
        }
        let own = self.due.get(before).filter(|own| own.has_lost_node && self.due.len() > 1);
        match own.and_then(|own| own.due.checked_add(SETTLED).ok()).filter(|at| *at > self.now) {
            Some(at) => {
                let message = "other nodes are being deleted, too".to_owned();
                Err(Held { status: self.status(&holders), message, until: Some(at) })
            }
            None => Ok(()),
        }
    }

    fn held(&self, holders: &[&Place], before: usize) -> Held {
        let (places, limit) = (holders.len(), self.limit);
        let message = format!(
            "{places} other machines of the deployment are being replaced or not up, {before} are due before this one, \
             and at most {limit} may be replaced for bad health at once (annotation {})",
            annotations::REMEDIATION_MAX_IN_FLIGHT
        );
        let until = holders.iter().filter_map(|place| place.held_until).filter(|at| *at > self.now).min();
        Held { message, status: self.status(holders), until: until.filter(|_| limit > 0) }
    }

    fn status(&self, holders: &[&Place]) -> String {
        let annotation = annotations::REMEDIATION_MAX_IN_FLIGHT;
        if self.limit == 0 {
            return format!("no machine of its deployment is replaced for bad health (annotation {annotation})");
        }
        let text = format!(
            "it is replaced once fewer machines of its deployment are being replaced or not up (annotation {annotation})"
        );
        let mut holders: Vec<_> = holders.iter().map(|place| (place.name.as_str(), place.held_until)).collect();
        holders.sort_unstable();
        let names = holders.iter().map(|(name, until)| match until.filter(|until| *until > self.now) {
            Some(until) => format!("{name} (until {until:.0} at the latest)"),
            None => (*name).to_owned(),
        });
        if holders.is_empty() { text } else { format!("{text}; now these are: {}", few(NAMED, names)) }
    }
}
