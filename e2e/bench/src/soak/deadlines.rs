//! Checks that unhealthy machines fail at the deadlines that they announce.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nodewright_api::{Machine, MachinePhase};

use nodewright_e2e_lab::devcluster::machines::is_running;

/// The text before an announced deadline, in a condition or in the last operation.
const ANNOUNCEMENT: &str = "fails at ";
/// How late a machine may fail: another manager may have to take over first.
const SLACK: SignedDuration = SignedDuration::from_secs(45);
/// How early a machine may fail: times in objects have whole seconds.
const ROUNDING: SignedDuration = SignedDuration::from_secs(2);
/// How long a machine is at least Unknown before it fails because the provider knows no VM of it any more.
const VM_GONE_CONFIRMED: SignedDuration = SignedDuration::from_secs(30);
/// How long a new or reconnected leader waits for reports of kubelets before it uses older ones. All outages together delay a
/// deadline to this long after the last one.
const REPORT_GRACE: SignedDuration = SignedDuration::from_mins(6);

/// An observation about a machine's deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// As expected.
    Expected(String),
    /// A machine failed at its deadline.
    Failed(String),
    /// The deadline was broken.
    Broken(String),
}

#[derive(Clone, Debug)]
struct Waiting {
    since: Timestamp,
    /// The earliest time at which it may fail.
    earliest: Timestamp,
    /// The announced deadline.
    announced: Timestamp,
    /// Whether the missed deadline was reported.
    missed: bool,
}

/// The deadlines of all machines in phase `Unknown`.
#[derive(Clone, Debug)]
pub(crate) struct Deadlines {
    health_timeout: SignedDuration,
    outages: Vec<Timestamp>,
    waiting: BTreeMap<String, Waiting>,
    /// The machines whose VMs were deleted.
    without_vm: BTreeSet<String>,
}

impl Deadlines {
    pub(crate) fn new(health_timeout: SignedDuration) -> Self {
        Self { health_timeout, outages: Vec::new(), waiting: BTreeMap::new(), without_vm: BTreeSet::new() }
    }

    /// Records that the VM of a machine was deleted: the provider says so, and the machine need not wait for its timeout.
    pub(crate) fn vm_deleted(&mut self, machine: String) {
        self.without_vm.insert(machine);
    }

    /// Records the end of an outage of the API server or the leader, after which kubelets have time to report.
    pub(crate) fn outage_ended(&mut self, at: Timestamp) {
        self.outages.push(at);
    }

    /// Whether the machine waits for its deadline.
    pub(crate) fn is_waiting(&self, name: &str) -> bool {
        self.waiting.contains_key(name)
    }

    /// Whether a deadline expires by then, except for missed ones.
    pub(crate) fn any_until(&self, until: Timestamp) -> bool {
        self.waiting.values().any(|waiting| !waiting.missed && waiting.announced <= until)
    }

    /// Compares the present machines with their deadlines.
    pub(crate) fn observe(&mut self, now: Timestamp, machines: &[Machine]) -> Vec<Note> {
        let mut notes = Vec::new();
        for machine in machines.iter().filter(|machine| is_waiting(machine)) {
            notes.extend(self.wait(now, machine));
        }
        let still: Vec<_> = machines.iter().filter(|machine| is_waiting(machine)).map(ResourceExt::name_any).collect();
        let over: Vec<_> = self.waiting.keys().filter(|name| !still.contains(name)).cloned().collect();
        for name in over {
            let Some(waiting) = self.waiting.remove(&name) else { continue };
            let machine = machines.iter().find(|machine| machine.name_any() == name);
            let has_vm = !self.without_vm.contains(&name);
            notes.push(ended(now, &name, machine, &waiting, has_vm));
        }
        notes
    }

    /// The latest deadline of a machine that has been unhealthy since then.
    fn latest(&self, since: Timestamp) -> Timestamp {
        let undisturbed = later(since, self.health_timeout);
        self.outages.iter().map(|outage| later(*outage, REPORT_GRACE)).fold(undisturbed, Timestamp::max)
    }

    fn wait(&mut self, now: Timestamp, machine: &Machine) -> Vec<Note> {
        let (name, since) = (machine.name_any(), unknown_since(machine).unwrap_or(now));
        let latest = self.latest(since);
        let announcement = announced(machine);
        let (earliest, announced) =
            (announcement.unwrap_or(later(since, self.health_timeout)), announcement.unwrap_or(latest));
        let mut notes = Vec::new();
        let waiting = self.waiting.get(&name).filter(|waiting| waiting.since == since).cloned();
        let mut waiting = waiting.unwrap_or_else(|| {
            notes.push(Note::Expected(format!("machine {name} is Unknown since {since}, fails at {announced}")));
            Waiting { since, earliest, announced, missed: false }
        });
        if waiting.announced != announced {
            notes.push(Note::Expected(format!("machine {name} fails at {announced}, not {}", waiting.announced)));
            waiting = Waiting { earliest, announced, missed: false, ..waiting };
        }
        let (due, limit) = (later(announced, SLACK), later(latest, SLACK));
        if now > due.min(limit) && !waiting.missed {
            waiting.missed = true;
            notes.push(Note::Broken(format!(
                "machine {name} should have failed at {announced}, and at {latest} at the latest; it is still Unknown"
            )));
        }
        self.waiting.insert(name, waiting);
        notes
    }
}

fn ended(now: Timestamp, name: &str, machine: Option<&Machine>, waiting: &Waiting, has_vm: bool) -> Note {
    if machine.is_some_and(is_running) {
        return Note::Expected(format!("machine {name} is Running again"));
    }
    let earliest =
        if has_vm { waiting.earliest } else { later(waiting.since, VM_GONE_CONFIRMED).min(waiting.earliest) };
    if later(now, ROUNDING) < earliest {
        return Note::Broken(format!("machine {name} failed before {earliest}"));
    }
    if !has_vm {
        let after = now.duration_since(waiting.since).as_secs();
        return Note::Failed(format!("machine {name} failed {after} s after it became Unknown: its VM is gone"));
    }
    let late = now.duration_since(waiting.announced).as_secs();
    Note::Failed(format!("machine {name} failed {late} s after the announced time"))
}

fn is_waiting(machine: &Machine) -> bool {
    *machine.phase() == MachinePhase::Unknown && machine.metadata.deletion_timestamp.is_none()
}

fn unknown_since(machine: &Machine) -> Option<Timestamp> {
    machine.status.as_ref()?.current_status.last_update_time.as_ref().map(|time| time.0)
}

/// The latest deadline that the machine announces.
fn announced(machine: &Machine) -> Option<Timestamp> {
    let status = machine.status.as_ref()?;
    let conditions = status.conditions.iter().filter_map(|condition| condition.message.as_deref());
    let texts = conditions.chain([status.last_operation.description.as_str()]);
    texts.filter_map(time_in).max()
}

fn time_in(text: &str) -> Option<Timestamp> {
    let (_, behind) = text.split_once(ANNOUNCEMENT)?;
    let end = behind.find(|char: char| !(char.is_ascii_alphanumeric() || "-:.+".contains(char)));
    behind[..end.unwrap_or(behind.len())].trim_end_matches('.').parse().ok()
}

fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    /// A machine that became Unknown at 0, and the description of its last operation.
    fn machine(phase: &str, says: &str) -> Machine {
        serde_json::from_value(json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": {"name": "a"},
            "spec": {"class": {"kind": "MachineClass", "name": "c"}},
            "status": {
                "currentStatus": {"phase": phase, "lastUpdateTime": at(0).to_string()},
                "lastOperation": {"description": says, "state": "Processing", "type": "HealthCheck"},
            },
        }))
        .unwrap()
    }

    /// The number of broken deadlines for a sequence of observations.
    fn broken(outage: Option<i64>, seen: &[(i64, Machine)]) -> usize {
        let mut deadlines = Deadlines::new(SignedDuration::from_mins(10));
        let notes = seen.iter().flat_map(|(seconds, machine)| {
            if let Some(outage) = outage.filter(|outage| outage <= seconds) {
                deadlines.outages = vec![at(outage)];
            }
            deadlines.observe(at(*seconds), std::slice::from_ref(machine))
        });
        notes.filter(|note| matches!(note, Note::Broken(_))).count()
    }

    #[test]
    fn announced_deadlines_are_checked() {
        let says = |seconds: i64| format!("Ready is Unknown; it fails at {}.", at(seconds));
        let unknown = |text: &str| machine("Unknown", text);
        let failed = || machine("Failed", "");
        let cases = [
            ("in time", None, vec![(1, unknown("")), (601, failed())], 0),
            ("it comes back", None, vec![(1, unknown("")), (60, machine("Running", ""))], 0),
            ("never", None, vec![(1, unknown("")), (630, unknown("")), (660, unknown("")), (2_000, unknown(""))], 1),
            ("too early", None, vec![(1, unknown("")), (500, failed())], 1),
            ("an outage moves it", Some(300), vec![(1, unknown("")), (650, unknown("")), (660, failed())], 0),
            ("not further", Some(300), vec![(1, unknown("")), (750, unknown(""))], 1),
            ("not for an outage long before", Some(0), vec![(1, unknown("")), (660, unknown(""))], 1),
            ("as its text says", None, vec![(1, unknown(&says(600))), (601, failed())], 0),
            ("later than its text says", Some(300), vec![(1, unknown(&says(600))), (660, unknown(&says(600)))], 1),
            (
                "a move that is said",
                Some(300),
                vec![(1, unknown(&says(600))), (301, unknown(&says(660))), (661, failed())],
                0,
            ),
            ("moved for ever", None, vec![(1, unknown(&says(600))), (700, unknown(&says(1_300)))], 1),
        ];
        for (what, outage, seen, expected) in cases {
            assert_eq!(broken(outage, &seen), expected, "{what}");
        }
    }
}
