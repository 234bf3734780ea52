//! Since when a Machine is ready, and whether that is long enough to count as available.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{Machine, MachinePhase};
use nodewright_runtime::object::is_deleting;

use crate::shared::fleet::FleetSettings;

/// Whether the Machine does its work.
pub(crate) fn is_ready(machine: &Machine) -> bool {
    *machine.phase() == MachinePhase::Running && !is_deleting(machine)
}

/// The rule by which Machines are available: ready, and if `minReadySeconds` counts, ready for that long. A Machine without a
/// target cluster has no Node whose readiness could be known: it is available at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Availability {
    /// A Machine must have been ready at this time; `None` if being ready is enough.
    ready_before: Option<Timestamp>,
    min_ready: SignedDuration,
}

impl Availability {
    pub(crate) fn new(now: Timestamp, min_ready_seconds: i32, settings: &FleetSettings) -> Self {
        let min_ready = SignedDuration::from_secs(i64::from(min_ready_seconds.max(0)));
        let counts = settings.honor_min_ready_seconds && !min_ready.is_zero();
        Self { ready_before: counts.then(|| now.saturating_sub(min_ready).unwrap_or(now)), min_ready }
    }

    pub(crate) fn is_available(&self, machine: &Machine) -> bool {
        match machine.phase() {
            MachinePhase::Running if !is_deleting(machine) => {
                self.ready_before.is_none_or(|before| ready_since(machine).is_none_or(|since| since <= before))
            }
            MachinePhase::Available => !is_deleting(machine),
            _ => false,
        }
    }

    /// When the next of these Machines becomes available by the passing of time.
    pub(crate) fn next<'a>(&self, machines: impl Iterator<Item = &'a Machine>) -> Option<Timestamp> {
        self.ready_before?;
        let waiting = machines.filter(|machine| is_ready(machine) && !self.is_available(machine));
        waiting.filter_map(ready_since).min()?.saturating_add(self.min_ready).ok()
    }
}

/// When the Node became ready, or if that is not known, when the Machine's phase changed.
fn ready_since(machine: &Machine) -> Option<Timestamp> {
    let ready = machine.condition("Ready").filter(|ready| ready.status == "True");
    let of_node = ready.and_then(|ready| ready.last_transition_time.as_ref());
    of_node.map(|time| time.0).or_else(|| machine.phase_since())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{MachineExt, NOW, machine};

    #[test]
    fn only_the_flag_makes_machines_wait_for_min_ready_seconds() {
        let now: Timestamp = NOW.parse().unwrap();
        let ready = |ago: i64| {
            let since = (now - SignedDuration::from_secs(ago)).to_string();
            let condition = json!({"type": "Ready", "status": "True", "lastTransitionTime": since});
            machine("a").phase("Running").with("/status/conditions", json!([condition])).build()
        };
        let flagged = FleetSettings { honor_min_ready_seconds: true, ..FleetSettings::default() };
        for (settings, seconds, ago, expected) in [
            (&FleetSettings::default(), 500, 1, true),
            (&flagged, 500, 499, false),
            (&flagged, 500, 500, true),
            (&flagged, 0, 0, true),
            (&flagged, -5, 0, true),
        ] {
            let rule = Availability::new(now, seconds, settings);
            assert_eq!(rule.is_available(&ready(ago)), expected, "{seconds} s are demanded, {ago} s have passed");
        }
        let rule = Availability::new(now, 500, &flagged);
        let machines = [ready(100), ready(499), ready(600)];
        assert_eq!(rule.next(machines.iter()), Some(now + SignedDuration::from_secs(1)));
        assert!(rule.is_available(&machine("b").phase("Available").build()), "there is no Node");
        assert!(rule.is_available(&machine("c").phase("Running").build()), "since when it is ready is not known");
    }
}
