//! The limits that protect a fleet from its managers, and their invariants: I25 and I26 of `docs/reference/simulation.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::SignedDuration;
use nodewright_controllers::{machine::BrakeSettings, shared::fleet::FleetSettings};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use super::preservation;

/// Fewer unhealthy machines are no sign of a common cause.
const FEWEST: usize = 3;
/// Of so many percent the brake stops all replacements: half of the way from its default, 30, to all.
const STOPS: usize = 65;
/// All managers know of a state that has lasted for this long.
const KNOWN: Duration = Duration::from_secs(5);

/// The limits of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Whether the fleet brake has its default settings. With three machines two dead VMs would stop all replacements, which
    /// most invariants are about: so it is off otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub brake: bool,
    /// The most machines of a deployment; the default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<usize>,
}

impl Limits {
    /// Whether a run has none of its own.
    pub fn are_default(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn brake(self) -> BrakeSettings {
        // Runs last for longer than the timeout, and are evaluated without.
        let never = BrakeSettings { timeout: SignedDuration::ZERO, ..BrakeSettings::default() };
        if self.brake { never } else { BrakeSettings::OFF }
    }

    pub(super) fn fleet(self) -> FleetSettings {
        let fleet = FleetSettings::default();
        FleetSettings {
            max_machines_per_deployment: self.ceiling.unwrap_or(fleet.max_machines_per_deployment),
            preserve_timeout: preservation::TIMEOUT,
            ..fleet
        }
    }
}

/// The health of a machine, as its status says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Well,
    /// It fails after this.
    Unknown,
    /// It failed for bad health.
    Failed,
    /// It has not come up yet, or is leaving.
    Other,
}

/// The machines of a run with limits.
#[derive(Default)]
pub(super) struct Limited {
    limits: Limits,
    by_uid: BTreeMap<String, Health>,
    /// The machines whose VM died: their replacement is no guess.
    dead: BTreeSet<String>,
    /// Since when so many machines are unhealthy that the brake stops all replacements.
    stopped: Option<Instant>,
}

impl Limited {
    pub(super) fn by(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Notes that the VM of a machine died.
    pub(super) fn died(&mut self, name: &str) {
        self.dead.insert(name.to_owned());
    }

    /// Observes a change of a machine. Returns the violation, if any.
    pub(super) fn machine(&mut self, name: &str, old: Option<&Value>, new: Option<&Value>) -> Option<String> {
        let uid = (new.or(old)?)["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let Some(new) = new else {
            self.by_uid.remove(&uid);
            return None;
        };
        let (before, after) = (self.by_uid.insert(uid, health(new)), health(new));
        let has_failed = before == Some(Health::Unknown) && after == Health::Failed && !self.dead.contains(name);
        let wrong = self.stopped.filter(|since| self.limits.brake && has_failed && since.elapsed() >= KNOWN);
        let wrong = wrong.map(|_| format!("I25: machine {name} fails while the fleet brake stops replacements"));
        self.stopped = self.is_stopped().then(|| self.stopped.unwrap_or_else(Instant::now));
        wrong.or_else(|| {
            let (all, most) = (self.by_uid.len(), self.limits.ceiling?);
            (old.is_none() && all > most)
                .then(|| format!("I26: machine {name} is one of {all}, and {most} are allowed"))
        })
    }

    fn is_stopped(&self) -> bool {
        let count = |wanted: &[Health]| self.by_uid.values().filter(|health| wanted.contains(health)).count();
        let unhealthy = count(&[Health::Unknown, Health::Failed]);
        unhealthy >= FEWEST && unhealthy * 100 > (unhealthy + count(&[Health::Well])) * STOPS
    }
}

fn health(machine: &Value) -> Health {
    let (status, is_leaving) = (&machine["status"], !machine["metadata"]["deletionTimestamp"].is_null());
    match status["currentStatus"]["phase"].as_str() {
        Some("Running" | "Available") if !is_leaving => Health::Well,
        Some("Unknown") if !is_leaving => Health::Unknown,
        Some("Failed") if !is_leaving && status["lastOperation"]["type"] == "HealthCheck" => Health::Failed,
        _ => Health::Other,
    }
}
