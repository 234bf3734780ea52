//! Random sequences of requests.
//!
//! The choice of a [`Step`] does not depend on existing objects, so any part of a sequence is a valid sequence. Where two
//! servers differ, [`shorten`] looks for the shortest sequence that shows it.

use std::collections::BTreeMap;

use fastrand::Rng;
use serde_json::{Value, json};

use super::{
    objects::{FINALIZER, Kind, WRONG_UID, held, with},
    probe::{OURS, Probe, Request, Said, THEIRS, Watch},
};
use nodewright_e2e_lab::control_plane::testing::TestResult;

const KINDS: [Kind; 7] =
    [Kind::ConfigMap, Kind::Lease, Kind::Machine, Kind::MachineDeployment, Kind::MachineSet, Kind::Node, Kind::Pod];
const NAMES: [&str; 2] = ["a", "b"];
const MANAGERS: [&str; 2] = [OURS, THEIRS];

/// The version or UID in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    None,
    Right,
    /// The one from an earlier answer, or an invented one.
    Wrong,
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Create,
    Read,
    List,
    Update,
    UpdateStatus,
    Merge,
    MergeStatus,
    Strategic,
    StrategicStatus,
    Edit,
    Apply,
    ForcedApply,
    ApplyStatus,
    Scale,
    Hold,
    Release,
    DropOwners,
    Delete,
    DeleteForeground,
    DeleteOrphan,
    DeleteAtOnce,
    Evict,
}

/// The weight of each kind of request.
const VERBS: [(Verb, usize); 22] = [
    (Verb::Create, 6),
    (Verb::Read, 1),
    (Verb::List, 1),
    (Verb::Update, 5),
    (Verb::UpdateStatus, 3),
    (Verb::Merge, 4),
    (Verb::MergeStatus, 3),
    (Verb::Strategic, 2),
    (Verb::StrategicStatus, 2),
    (Verb::Edit, 3),
    (Verb::Apply, 8),
    (Verb::ForcedApply, 6),
    (Verb::ApplyStatus, 4),
    (Verb::Scale, 2),
    (Verb::Hold, 2),
    (Verb::Release, 4),
    (Verb::DropOwners, 1),
    (Verb::Delete, 4),
    (Verb::DeleteForeground, 1),
    (Verb::DeleteOrphan, 1),
    (Verb::DeleteAtOnce, 2),
    (Verb::Evict, 1),
];

/// One request, as far as it does not depend on existing objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    kind: Kind,
    name: &'static str,
    verb: Verb,
    manager: &'static str,
    version: Claim,
    uid: Claim,
    dry: bool,
    /// The fields that it sets, one bit each.
    fields: u8,
    /// The values of these fields.
    value: u8,
}

/// The steps of a seed.
pub fn steps(seed: u64, count: usize) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed);
    (0..count).map(|_| step(&mut rng)).collect()
}

fn step(rng: &mut Rng) -> Step {
    let mut lot = rng.usize(..VERBS.iter().map(|(_, weight)| weight).sum::<usize>());
    let drawn = VERBS.iter().find(|(_, weight)| {
        let hit = lot < *weight;
        lot = lot.saturating_sub(*weight);
        hit
    });
    let claim = |rng: &mut Rng| [Claim::None, Claim::None, Claim::Right, Claim::Right, Claim::Wrong][rng.usize(..5)];
    Step {
        kind: KINDS[rng.usize(..KINDS.len())],
        name: NAMES[rng.usize(..NAMES.len())],
        verb: drawn.map_or(Verb::Read, |(verb, _)| *verb),
        manager: MANAGERS[rng.usize(..MANAGERS.len())],
        version: claim(rng),
        uid: claim(rng),
        dry: rng.u8(..12) == 0,
        fields: rng.u8(..),
        value: rng.u8(..3),
    }
}

/// The versions and UIDs of an object from the answers.
#[derive(Default)]
struct Known {
    now: Value,
    earlier: Value,
}

/// Sends the requests, and then records the events of the watches.
pub async fn run(probe: &mut Probe, steps: &[Step]) -> TestResult {
    let mut watches = vec![];
    for kind in KINDS.into_iter().filter(|kind| kind.is_namespaced()) {
        let all = probe.all(kind);
        let version = probe.silently(&Request::get(&all)).await?.version().to_owned();
        watches.push((kind, probe.watch(&all, &format!("resourceVersion={version}")).await?));
    }
    let mut known: BTreeMap<(String, &'static str), Known> = BTreeMap::new();
    for (number, step) in steps.iter().enumerate() {
        let known = known.entry((format!("{:?}", step.kind), step.name)).or_default();
        if let Some(request) = step.request(probe, known) {
            let said = probe.ask(&format!("step {number}, {step:?}"), request).await?;
            known.learn(&said, step.dry);
        }
    }
    for (kind, watch) in &mut watches {
        seen(probe, *kind, watch).await?;
    }
    Ok(())
}

/// Records all events up to a last object.
async fn seen(probe: &mut Probe, kind: Kind, watch: &mut Watch) -> TestResult {
    probe.quietly(&Request::post(probe.all(kind), &probe.object(kind, "last"))).await?;
    let mut number = 0;
    loop {
        number += 1;
        let event = probe.events(&format!("{kind:?}, seen {number}"), watch, 1).await?;
        if event.iter().any(|event| event["object"]["metadata"]["name"] == "last") {
            return Ok(());
        }
    }
}

impl Known {
    fn learn(&mut self, said: &Said, dry: bool) {
        let is_object = said.uid() != "" && said.body["kind"] != "Scale" && said.body["kind"] != "Status";
        if !dry && is_object && said.version() != self.now["metadata"]["resourceVersion"] {
            self.earlier = std::mem::replace(&mut self.now, said.body.clone());
        }
    }

    fn field(&self, claim: Claim, field: &str) -> Option<String> {
        let text = |object: &Value| object["metadata"][field].as_str().map(str::to_owned);
        match claim {
            Claim::None => None,
            Claim::Right => text(&self.now),
            Claim::Wrong if field == "uid" => Some(WRONG_UID.to_owned()),
            Claim::Wrong => text(&self.earlier),
        }
    }
}

impl Step {
    fn request(&self, probe: &Probe, known: &Known) -> Option<Request> {
        let (all, path) = (probe.all(self.kind), probe.path(self.kind, self.name));
        let status = format!("{path}/status");
        let request = match self.verb {
            Verb::Create => Request::post(all, &self.object(probe)),
            Verb::Read => Request::get(path),
            Verb::List if !self.kind.is_namespaced() => return None,
            Verb::List => Request::get(all).query(&format!("labelSelector=a%3D{}", self.value)),
            Verb::Update => Request::put(path, &self.replacement(probe, known)),
            Verb::UpdateStatus => Request::put(status, &self.replacement(probe, known)),
            Verb::Merge => Request::merge(path, &self.claims(known, self.change(false))),
            Verb::MergeStatus => Request::merge(status, &self.claims(known, self.change(true))),
            Verb::Strategic => Request::strategic(path, &self.claims(known, self.change(false))),
            Verb::StrategicStatus => Request::strategic(status, &self.claims(known, self.change(true))),
            Verb::Edit => Request::json_patch(path, &self.edit(known)),
            Verb::Apply => Request::apply(path, self.manager, &self.claims(known, self.object(probe))),
            Verb::ForcedApply => Request::force(path, self.manager, &self.claims(known, self.object(probe))),
            Verb::ApplyStatus => Request::force(status, self.manager, &self.claims(known, self.applied_status(probe))),
            Verb::Scale => {
                let replicas = json!({"spec": {"replicas": self.value}});
                Request::merge(format!("{path}/scale"), &self.claims(known, replicas))
            }
            Verb::Hold => Request::merge(path, &self.claims(known, json!({"metadata": {"finalizers": [FINALIZER]}}))),
            Verb::Release => Request::merge(path, &json!({"metadata": {"finalizers": null}})),
            Verb::DropOwners => Request::merge(path, &json!({"metadata": {"managedFields": [{}]}})),
            Verb::Delete => Request::delete(path, &self.deletion(known, &json!({}))),
            Verb::DeleteForeground => {
                Request::delete(path, &self.deletion(known, &json!({"propagationPolicy": "Foreground"})))
            }
            Verb::DeleteOrphan => Request::delete(path, &self.deletion(known, &json!({"propagationPolicy": "Orphan"}))),
            Verb::DeleteAtOnce => Request::delete(path, &self.deletion(known, &json!({"gracePeriodSeconds": 0}))),
            Verb::Evict if self.kind != Kind::Pod => return None,
            Verb::Evict => {
                let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": self.name},
                    "deleteOptions": self.deletion(known, &json!({}))});
                Request::post(format!("{path}/eviction"), &body)
            }
        };
        let request = if self.dry { request.query("dryRun=All") } else { request };
        Some(request.query(&format!("fieldManager={}", self.manager)))
    }

    fn says(&self, bit: u8) -> bool {
        self.fields & (1 << bit) != 0
    }

    /// The typical object, with the changes.
    fn object(&self, probe: &Probe) -> Value {
        let mut object = probe.object(self.kind, self.name);
        json_patch::merge(&mut object, &self.change(false));
        if self.says(7) && self.value == 0 { held(object) } else { object }
    }

    /// Changes to an object, within its schema.
    fn change(&self, of_status: bool) -> Value {
        let mut change = json!({"metadata": {}});
        for (bit, label) in ["a", "b", "c"].into_iter().enumerate() {
            if self.says(u8::try_from(bit).unwrap_or(0)) {
                change["metadata"]["labels"][label] = self.value.to_string().into();
            }
        }
        if self.says(3) {
            change["metadata"]["annotations"]["x"] = self.value.to_string().into();
        }
        if self.says(4) && self.value == 2 && self.verb == Verb::Merge {
            change["metadata"]["labels"] = Value::Null;
        }
        if of_status { with(change, "/status", self.status()) } else { self.changed_spec(change) }
    }

    fn changed_spec(&self, change: Value) -> Value {
        let value = self.value;
        match self.kind {
            Kind::ConfigMap if self.says(5) => with(change, "/data/more", value.to_string()),
            Kind::Lease if self.says(5) => with(change, "/spec/leaseTransitions", value),
            Kind::Machine if self.says(5) => with(change, "/spec/providerID", value.to_string()),
            Kind::Machine if self.says(6) => with(change, "/spec/class/name", value.to_string()),
            Kind::MachineDeployment | Kind::MachineSet if self.says(5) => with(change, "/spec/replicas", value),
            Kind::MachineDeployment | Kind::MachineSet if self.says(6) => {
                with(change, "/spec/template/metadata/labels/more", value.to_string())
            }
            Kind::Node if self.says(5) => with(change, "/spec/unschedulable", true),
            Kind::Node if self.says(6) => {
                with(change, "/spec/taints", json!([{"key": value.to_string(), "effect": "NoSchedule"}]))
            }
            _ => change,
        }
    }

    fn status(&self) -> Value {
        let conditions = || {
            let types = ["Ready", "DiskPressure"].into_iter().enumerate();
            let said = types.filter(|(bit, _)| self.says(u8::try_from(*bit).unwrap_or(0) + 5));
            let status = ["True", "False", "Unknown"][usize::from(self.value)];
            let time = "2026-01-01T00:00:00Z";
            said.map(|(_, name)| match self.kind {
                Kind::Pod => json!({"type": name, "status": status, "lastProbeTime": time, "lastTransitionTime": time}),
                _ => json!({"type": name, "status": status, "lastTransitionTime": time, "lastHeartbeatTime": time,
                    "reason": "x", "message": "y"}),
            })
            .collect::<Value>()
        };
        let phase = ["Pending", "Running", "Failed"][usize::from(self.value)];
        match self.kind {
            Kind::Machine => json!({"currentStatus": {"phase": phase}, "conditions": conditions()}),
            Kind::MachineDeployment | Kind::MachineSet => json!({"replicas": self.value, "observedGeneration": 1}),
            Kind::Node => json!({"conditions": conditions(), "phase": phase.replace("Failed", "Terminated")}),
            Kind::Pod => json!({"phase": phase, "conditions": conditions()}),
            _ => json!({}),
        }
    }

    fn applied_status(&self, probe: &Probe) -> Value {
        let object = probe.object(self.kind, self.name);
        json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "status": self.status(),
            "metadata": {"name": object["metadata"]["name"]}})
    }

    /// A body with a version and a UID.
    fn claims(&self, known: &Known, mut body: Value) -> Value {
        for (claim, field) in [(self.version, "resourceVersion"), (self.uid, "uid")] {
            if let Some(value) = known.field(claim, field) {
                body["metadata"][field] = value.into();
            }
        }
        body
    }

    /// The object as sent by a client that has read it, or made it up.
    fn replacement(&self, probe: &Probe, known: &Known) -> Value {
        let base = match self.version {
            Claim::Right => known.now.clone(),
            Claim::Wrong => known.earlier.clone(),
            Claim::None => Value::Null,
        };
        if base.is_null() {
            return self.claims(known, self.object(probe));
        }
        let mut body = base;
        json_patch::merge(&mut body, &self.change(self.verb == Verb::UpdateStatus));
        if self.uid == Claim::Wrong { with(body, "/metadata/uid", WRONG_UID) } else { body }
    }

    fn edit(&self, known: &Known) -> Value {
        let label = format!("/metadata/labels/{}", ["a", "b", "c"][usize::from(self.fields % 3)]);
        let expected = known.now.pointer(&label).cloned().unwrap_or_default();
        let tested = if self.version == Claim::Wrong { "other".into() } else { expected };
        let op = match self.value {
            0 => json!({"op": "add", "path": label, "value": "edited"}),
            1 => json!({"op": "replace", "path": label, "value": "edited"}),
            _ => json!({"op": "remove", "path": label}),
        };
        json!([{"op": "test", "path": label, "value": tested}, op])
    }

    fn deletion(&self, known: &Known, options: &Value) -> Value {
        let mut options = options.clone();
        for (claim, field) in [(self.version, "resourceVersion"), (self.uid, "uid")] {
            if let Some(value) = known.field(claim, field) {
                options["preconditions"][field] = value.into();
            }
        }
        options
    }
}

/// The shortest part of a sequence, found within `tries` attempts, for which `differs` holds. It must hold for the whole.
pub async fn shorten(
    mut shortest: Vec<Step>,
    mut tries: usize,
    mut differs: impl AsyncFnMut(&[Step]) -> TestResult<bool>,
) -> TestResult<Vec<Step>> {
    // If a prefix differs, so does every longer one.
    let (mut alike, mut differing) = (0, shortest.len());
    while alike + 1 < differing {
        let middle = usize::midpoint(alike, differing);
        let half = if differs(&shortest[..middle]).await? { &mut differing } else { &mut alike };
        *half = middle;
    }
    shortest.truncate(differing);
    let mut width = shortest.len().div_ceil(2);
    while width > 0 && tries > 0 {
        let mut end = shortest.len();
        while end > 0 && tries > 0 {
            let start = end.saturating_sub(width);
            let rest: Vec<_> = shortest[..start].iter().chain(&shortest[end..]).copied().collect();
            tries -= 1;
            if differs(&rest).await? {
                shortest = rest;
            }
            end = start;
        }
        width = if width == 1 { 0 } else { width.div_ceil(2) };
    }
    Ok(shortest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_all() {
        assert_eq!(steps(7, 50), steps(7, 50));
        assert_ne!(steps(7, 50), steps(8, 50));
        assert_eq!(steps(7, 50)[..20], steps(7, 20)[..], "a longer sequence begins like a shorter one");
    }

    #[tokio::test]
    async fn the_shortest_part_is_found() {
        let all = steps(7, 60);
        let (first, second) = (all[11], all[47]);
        let shows = async |part: &[Step]| Ok(part.contains(&first) && part.contains(&second));
        assert_eq!(shorten(all, 500, shows).await.unwrap(), [first, second]);
    }
}
