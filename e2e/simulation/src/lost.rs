//! The invariant for VMs that no machine has: I22 of `docs/reference/simulation.md`.

use std::{collections::BTreeMap, time::Duration};

use nodewright_controllers::orphan_vm::OrphanVmSettings;
use tokio::time::Instant;

/// Timers may be early by this much.
const GRANULARITY: Duration = Duration::from_secs(1);

/// Shorter than the defaults, so that orphans are gone when the rest of a run is at rest.
pub(super) fn settings() -> OrphanVmSettings {
    OrphanVmSettings {
        period: Duration::from_mins(5),
        grace: Duration::from_mins(5),
        minimum_age: Duration::from_mins(15),
        // Less than the age: what one of them blocks must not hide that the other one does not.
        vanished_pause: Duration::from_mins(10),
        per_pass: 1,
        dry_run: false,
    }
}

/// A VM that no machine of the namespace has is deleted, or left alone, within this time.
pub(super) fn settled_within() -> Duration {
    let OrphanVmSettings { period, minimum_age, vanished_pause, .. } = settings();
    minimum_age + vanished_pause + period * 3
}

/// The VMs that no machine has.
#[derive(Default)]
pub(super) struct LostVms {
    made: BTreeMap<String, Instant>,
    /// The one that was deleted last.
    last: Option<(String, Instant)>,
    /// When a list of all VMs was last spoilt.
    spoilt: Option<Instant>,
}

impl LostVms {
    pub(super) fn made(&mut self, name: &str) {
        self.made.insert(name.to_owned(), Instant::now());
    }

    pub(super) fn list_spoilt(&mut self) {
        self.spoilt = Some(Instant::now());
    }

    /// Returns the violation, if a manager must not delete the VM yet.
    pub(super) fn deleted(&mut self, name: &str, youngest: Option<Instant>) -> Option<String> {
        let settings = settings();
        let last = self.last.replace((name.to_owned(), Instant::now()));
        // One for each list, and a list each period. Half of one is left for a deletion that takes long.
        if let Some((other, at)) = last.filter(|(other, at)| other != name && at.elapsed() < settings.period / 2) {
            let pause = at.elapsed();
            return Some(format!("I22: VM {name}, which no machine has, was deleted {pause:?} after VM {other}"));
        }
        if self.spoilt.is_some_and(|spoilt| spoilt.elapsed() < settings.grace / 2) {
            return Some(format!("I22: VM {name}, which no machine has, was deleted after a list that lacks VMs"));
        }
        let is_early =
            |since: Option<Instant>, wait: Duration| since.is_some_and(|since| since.elapsed() + GRANULARITY < wait);
        if is_early(self.made.get(name).copied(), settings.minimum_age) {
            return Some(format!("I22: VM {name}, which no machine has, was deleted before it was old enough"));
        }
        // One list a period after the start, and one that confirms it.
        is_early(youngest, settings.period + settings.grace)
            .then(|| format!("I22: VM {name}, which no machine has, was deleted after one list"))
    }
}
