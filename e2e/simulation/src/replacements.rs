//! The invariants for replacements because of bad health: I13, I14 and I16 of `docs/reference/simulation.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

/// The default replacement budget, without the annotation.
const BUDGET: usize = 1;
/// A running kubelet reports within this time, less the allowed difference of clocks.
const REPORTS: Duration = Duration::from_secs(358);
/// All managers know of a state that a Node has reported for this long.
const WELL: Duration = Duration::from_mins(2);
/// A deletion that takes this long may have released its place in the budget; earlier where clocks are wrong.
const STUCK: Duration = Duration::from_mins(15);
const STUCK_BY_WRONG_CLOCKS: Duration = Duration::from_mins(5);
/// The death of a VM is visible after 45 s, times out after ten minutes, and is then confirmed.
const REPLACED: Duration = Duration::from_secs(45 + 600 + 60);
/// The extra time after an outage or the death of a manager.
const AFTER_OUTAGE: Duration = Duration::from_mins(6 + 1);
/// The extra time for each machine that must be replaced earlier.
const EACH: Duration = Duration::from_mins(3);

#[derive(Default)]
struct Watched {
    name: String,
    node: String,
    phase: String,
    is_deleting: bool,
    /// When a manager replaced the machine for bad health.
    failed: Option<Instant>,
}

/// The machines that are being replaced, and those that must be.
#[derive(Default)]
pub(super) struct Replacements {
    by_uid: BTreeMap<String, Watched>,
    /// The time of the last report by Node.
    reports: BTreeMap<String, jiff::Timestamp>,
    /// Since when each Node has been ready without interruption.
    ready: BTreeMap<String, Instant>,
    /// The deadlines for the replacement of machines whose VM died.
    due: BTreeMap<String, Instant>,
    /// The machines whose VM died.
    dead: BTreeSet<String>,
    /// Whether the store was set back.
    is_restored: bool,
    /// Whether all clocks are right.
    pub(super) trusts_clocks: bool,
}

impl Replacements {
    /// Observes a change of a machine. Returns the violation, if any.
    pub(super) fn machine(&mut self, old: Option<&Value>, new: Option<&Value>) -> Option<String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let Some(new) = new else {
            let old = old?;
            self.by_uid.remove(&text(&old["metadata"]["uid"]));
            self.due.remove(&text(&old["metadata"]["name"]));
            return None;
        };
        let in_flight = self.in_flight();
        let watched = self.by_uid.entry(text(&new["metadata"]["uid"])).or_default();
        let (before, was_deleting) = (watched.phase.clone(), watched.is_deleting);
        watched.name = text(&new["metadata"]["name"]);
        watched.node = text(&new["metadata"]["labels"]["node"]);
        watched.phase = text(&new["status"]["currentStatus"]["phase"]);
        watched.is_deleting = !new["metadata"]["deletionTimestamp"].is_null();
        if watched.is_deleting || watched.phase == "Failed" {
            self.due.remove(&watched.name);
        }
        // One that is preserved is not replaced, and holds no place.
        let is_preserved = !new["status"]["currentStatus"]["preserveExpiryTime"].is_null();
        if is_preserved {
            watched.failed = None;
        }
        if before != "Unknown" || watched.phase != "Failed" || was_deleting {
            return None;
        }
        watched.failed = (!is_preserved).then(Instant::now);
        let name = &watched.name;
        (in_flight >= BUDGET).then(|| format!("I13: machine {name} fails while {in_flight} others are being replaced"))
    }

    fn in_flight(&self) -> usize {
        let stuck = if self.trusts_clocks { STUCK } else { STUCK_BY_WRONG_CLOCKS };
        let recent = |at: Instant| at.elapsed() < stuck;
        self.by_uid.values().filter(|machine| machine.failed.is_some_and(recent)).count()
    }

    /// Observes a change of a Node.
    pub(super) fn node(&mut self, name: &str, new: Option<&Value>) {
        let conditions = new.and_then(|new| new["status"]["conditions"].as_array());
        let ready = conditions.and_then(|all| all.iter().find(|condition| condition["type"] == "Ready"));
        let time = |field: &str| ready.and_then(|ready| ready[field].as_str()?.parse::<jiff::Timestamp>().ok());
        if ready.is_some_and(|ready| ready["status"] == "True") {
            self.ready.entry(name.to_owned()).or_insert_with(Instant::now);
        } else {
            self.ready.remove(name);
        }
        match time("lastHeartbeatTime").max(time("lastTransitionTime")) {
            Some(report) => drop(self.reports.insert(name.to_owned(), report)),
            None => drop(self.reports.remove(name)),
        }
    }

    /// Whether a Node has been ready for this long.
    pub(super) fn has_been_ready(&self, node: &str, time: Duration) -> bool {
        self.ready.get(node).is_some_and(|since| since.elapsed() >= time)
    }

    /// Evaluates a write that replaces a machine. `has_vm`: whether there is a VM of a machine; `at` converts times of objects to
    /// times of this process.
    pub(super) fn verdict(
        &self,
        name: &str,
        body: &Value,
        (connected_since, has_vm): (Instant, impl Fn(&str) -> bool),
        at: impl Fn(jiff::Timestamp) -> Instant,
    ) -> Option<String> {
        if body["status"]["currentStatus"]["phase"] != "Failed" {
            return None;
        }
        let machine = self.by_uid.values().find(|machine| machine.name == name && machine.phase == "Unknown")?;
        if self.has_been_ready(&machine.node, WELL) {
            return Some(format!("I14: machine {name} fails, and its node has been ready for {WELL:?}"));
        }
        // The provider says that the VM is gone: no kubelet can report any more. A restore brings back machines whose VM was deleted.
        if self.dead.contains(name) || self.is_restored && !has_vm(name) {
            return None;
        }
        let report = self.reports.get(&machine.node).map(|report| at(*report));
        let is_proven = report.is_some_and(|report| report > connected_since);
        let waited = connected_since.elapsed();
        (!is_proven && waited < REPORTS).then(|| {
            format!("I14: machine {name} fails {waited:?} after the manager was connected, by what was reported before")
        })
    }

    /// Notes that the store was set back.
    pub(super) fn restored(&mut self) {
        self.is_restored = true;
    }

    /// Notes that a VM is dead: the provider says so, whatever its Node reported before.
    pub(super) fn is_dead(&mut self, name: &str) {
        self.dead.insert(name.to_owned());
    }

    /// Notes the death of a VM with default settings; `others` is the number of other deaths in the run.
    pub(super) fn died(&mut self, name: &str, others: u32) {
        self.due.insert(name.to_owned(), Instant::now() + REPLACED + EACH * others);
    }

    /// Notes that something disturbs the managers for this long.
    pub(super) fn disturbed(&mut self, lasts: Duration, others: u32) {
        let latest = Instant::now() + lasts + AFTER_OUTAGE + EACH * others;
        self.due.values_mut().for_each(|due| *due = latest.max(*due));
    }

    /// The replacement that is overdue, if any.
    pub(super) fn overdue(&mut self) -> Option<String> {
        let name = self.due.iter().find(|(_, due)| **due < Instant::now()).map(|(name, _)| name.clone())?;
        self.due.remove(&name);
        Some(format!("I16: the VM of machine {name} is dead, and the machine is not being replaced in time"))
    }
}
