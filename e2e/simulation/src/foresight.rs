//! What a preview says of a change that a user has made, compared with what then happens.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::Machine;
use nodewright_controllers::{
    rollout_preview::{Durations, End, Objects, Preview, Verb, deployment, preview},
    shared::fleet::FleetSettings,
};
use nodewright_testing::api_server::ApiServer;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::names::{DEPLOYMENTS, MACHINES, NAMESPACE, NODES, SETS};

/// How long a machine without pods takes to go: its cloud is asked two seconds after the deletion.
const DELETION: SignedDuration = SignedDuration::from_secs(3);
/// How long an update in place takes: programs need up to twenty seconds.
const UPDATE: SignedDuration = SignedDuration::from_secs(12);
/// How long a machine takes before any has shown it.
const UNSEEN: Durations = Durations {
    vm: SignedDuration::from_secs(1),
    creation: SignedDuration::from_secs(5),
    deletion: DELETION,
    update: UPDATE,
};

/// What a preview says of a change, and what has happened since.
#[derive(Debug)]
pub(super) struct Foresight {
    preview: Preview,
    /// When that was foreseen, by the cluster's clock and by that of the test.
    begun: (Timestamp, Instant),
    happened: Vec<String>,
    /// When a machine last came to run, or was gone.
    last: Instant,
}

/// What was foreseen of a change, and what happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The change.
    pub change: String,
    /// Each creation, then each deletion, and then each update in place of a machine, as it was foreseen: in order, and by name what is to be
    /// done at the same moment. Machines of a set that did not exist have no names.
    pub foreseen: Vec<String>,
    /// The same, as it happened: by name what was foreseen for the same moment. Between creations and deletions the order depends
    /// on how long each VM boots, and among updates that run at the same time on how long each takes.
    pub happened: Vec<String>,
    /// How long it takes, as it was foreseen.
    pub estimate: SignedDuration,
    /// How long it took.
    pub took: SignedDuration,
}

impl Foresight {
    /// Of the objects as they are now. The error is that of the preview.
    pub(super) fn of(server: &ApiServer, now: Timestamp) -> Result<Self, String> {
        let machines: Vec<Machine> = objects(server, MACHINES);
        let durations = Durations::seen(machines.iter(), (DELETION, UPDATE)).map_or(UNSEEN, |(durations, _)| durations);
        let (deployments, sets) = (objects(server, DEPLOYMENTS), objects(server, SETS));
        let nodes = Some(server.objects(NODES).iter().map(|node| Value::clone(node.as_ref())).collect());
        let all = Objects { deployments, sets, machines, pools: vec![], nodes };
        let key = deployment(NAMESPACE, "pool");
        let preview = preview(all, &key, &FleetSettings::default(), durations, now)?;
        Ok(Self { preview, begun: (now, Instant::now()), happened: vec![], last: Instant::now() })
    }

    /// Notes a change of a machine.
    pub(super) fn machine(&mut self, name: &str, old: Option<&Value>, new: Option<&Value>) {
        let deleting = |state: Option<&Value>| state.is_some_and(|it| !it["metadata"]["deletionTimestamp"].is_null());
        let has_phase =
            |state: Option<&Value>, phase| state.is_some_and(|it| it["status"]["currentStatus"]["phase"] == phase);
        let runs = |state| has_phase(state, "Running");
        let is_updated = |state| has_phase(state, "InPlaceUpdating");
        if new.is_none() || runs(new) && !runs(old) {
            self.last = Instant::now();
        }
        let verb = match (old, new) {
            (None, Some(_)) => Verb::Create,
            (Some(_), Some(_)) if deleting(new) && !deleting(old) => Verb::Delete,
            (Some(_), Some(_)) if is_updated(new) && !is_updated(old) => Verb::UpdateInPlace,
            _ => return,
        };
        let set = new.map(|machine| machine["metadata"]["ownerReferences"][0]["name"].clone());
        let is_new = |set: &Value| self.preview.new_sets.iter().any(|new| set == new);
        self.happened.push(line(word(verb), Some(name).filter(|_| !set.as_ref().is_some_and(is_new))));
    }

    /// The comparison once the change is complete.
    pub(super) fn compared(self, change: String) -> Comparison {
        let (mut foreseen, mut happened) = (vec![], vec![]);
        for verb in [Verb::Create, Verb::Delete, Verb::UpdateInPlace] {
            let is_it = |line: &String| line.starts_with(word(verb));
            let mut actual: Vec<_> = self.happened.iter().filter(|line| is_it(line)).cloned().collect();
            let changes: Vec<_> = self.preview.changes.iter().filter(|change| change.verb == verb).collect();
            let begin = foreseen.len();
            let mut at_once = 0;
            for moment in changes.chunk_by(|a, b| a.at == b.at) {
                let (first, count) = (foreseen.len(), moment.len());
                at_once = count.max(at_once);
                foreseen.extend(moment.iter().map(|change| line(word(verb), change.machine.as_deref())));
                foreseen[first..].sort();
                // Requests that are sent at once arrive in any order.
                if let Some(actual) = actual.get_mut(first - begin..first - begin + count) {
                    actual.sort();
                }
            }
            if verb == Verb::UpdateInPlace {
                actual = overlapping(&foreseen[begin..], actual, at_once);
            }
            happened.extend(actual);
        }
        let estimate = match self.preview.end {
            End::Complete(at) => at.duration_since(self.begun.0),
            End::Waits(_) => SignedDuration::MAX,
        };
        let took = SignedDuration::try_from(self.last - self.begun.1).unwrap_or(SignedDuration::MAX);
        Comparison { change, foreseen, happened, estimate, took }
    }
}

/// Updates as they were foreseen if each one began fewer places earlier or later than there are updates at once: the next one begins
/// when one of them ends, whichever that is. Else as they happened.
fn overlapping(foreseen: &[String], happened: Vec<String>, at_once: usize) -> Vec<String> {
    let place = |line: &String| foreseen.iter().position(|it| it == line);
    let is_near = |(at, line): (usize, &String)| place(line).is_some_and(|place| place.abs_diff(at) < at_once);
    let names = |lines: &[String]| lines.iter().cloned().collect::<BTreeSet<_>>();
    let are_same = foreseen.len() == happened.len() && names(foreseen) == names(&happened);
    if are_same && happened.iter().enumerate().all(is_near) { foreseen.to_vec() } else { happened }
}

fn word(verb: Verb) -> &'static str {
    match verb {
        Verb::Create => "create",
        Verb::Delete => "delete",
        Verb::Update => "change",
        Verb::UpdateInPlace => "update",
    }
}

fn line(verb: &str, machine: Option<&str>) -> String {
    format!("{verb} {}", machine.unwrap_or("a machine of the new set"))
}

fn objects<K: DeserializeOwned>(server: &ApiServer, collection: &str) -> Vec<K> {
    let decode = |object: &Value| serde_json::from_value(object.clone()).ok();
    server.objects(collection).iter().filter_map(|object| decode(object)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_updates_at_once_change_places() {
        let lines = |names: &str| names.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let foreseen = lines("a b c d e");
        let same = |happened, at_once| overlapping(&foreseen, lines(happened), at_once) == foreseen;
        assert!(same("a c b d e", 2), "two at once");
        assert!(!same("a c b d e", 1), "one after the other");
        assert!(!same("a d c b e", 2), "two places");
        assert!(!same("a b c d", 2) && !same("a b c d x", 2) && !same("a b c d d", 2), "another machine");
    }
}
