//! The life of a machine as a waterfall: what its object and its Node say of when each part of it began and ended, and its traces.

mod jaeger;
mod spans;

use std::time::Duration;

use jiff::Timestamp;
use nodewright_api::{Machine, conditions::machine as conditions};
use nodewright_controllers::machine::Traces;
use nodewright_runtime::object::name;
use serde::Serialize;

use crate::{
    fault::{Outcome, fail},
    output::{age, table},
    snapshot::Snapshot,
};

pub(crate) use self::jaeger::{Jaeger, Span};

/// The life of a machine, as far as it shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Life {
    machine: String,
    phase: String,
    /// The ids of the traces of its creation and its end, which a trace backend knows if the manager exports traces.
    traces: Traces,
    /// Those that Jaeger has, if it was asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) spans: Vec<Span>,
    /// When it was asked to go.
    deleted: Option<Timestamp>,
    stages: Vec<Stage>,
}

/// A part of a life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Stage {
    name: &'static str,
    began: Timestamp,
    /// `None` while it lasts.
    ended: Option<Timestamp>,
}

/// The parts of a creation, each by the condition that becomes True at its end.
const CREATION: [(&str, &str); 2] =
    [("VM", conditions::INSTANCE_PROVISIONED), ("boot and join", conditions::NODE_JOINED)];
/// The parts of an end, each by the condition that is False while it lasts; one of less than some seconds has none.
const END: [(&str, &str); 4] = [
    ("drain", conditions::DRAINED),
    ("volumes", conditions::VOLUMES_DETACHED),
    ("VM deletion", conditions::INSTANCE_TERMINATED),
    ("node deletion", conditions::NODE_DELETED),
];

pub(crate) fn life(snapshot: &Snapshot, machine: &Machine) -> Life {
    let mut stages = vec![];
    if let Some(created) = &machine.metadata.creation_timestamp {
        stages.extend(creation(machine, created.0));
        let registered = snapshot.node_of(machine).and_then(|node| node.metadata.creation_timestamp.as_ref());
        if let (Some(stage), Some(registered)) = (stages.get(1).cloned(), registered) {
            stages.splice(1..=1, split(&stage, created.0, registered.0));
        }
    }
    if let Some(deleted) = &machine.metadata.deletion_timestamp {
        // What has not come to its end by then never will.
        for stage in &mut stages {
            stage.ended = Some(stage.ended.unwrap_or(deleted.0));
        }
        stages.extend(end(machine, deleted.0));
    }
    Life {
        machine: name(machine).to_owned(),
        phase: machine.phase().to_string(),
        traces: Traces::of(machine),
        spans: vec![],
        deleted: machine.metadata.deletion_timestamp.as_ref().map(|deleted| deleted.0),
        stages,
    }
}

/// The traces of a machine, as Jaeger has them: by their ids, or by the name of one that is gone.
pub(crate) async fn traced(
    jaeger: &Jaeger,
    life: Option<&Life>,
    (namespace, name): (&str, &str),
    since: Duration,
) -> Outcome<Vec<Span>> {
    let mut found = vec![];
    if let Some(life) = life {
        for id in std::iter::once(&life.traces.creation).chain(&life.traces.termination) {
            found.extend(jaeger.trace(id).await?);
        }
    } else {
        let now = Timestamp::now();
        let period = (now.saturating_sub(since).unwrap_or(now), now);
        for id in jaeger.about(namespace, name, period).await? {
            found.extend(jaeger.trace(&id).await?);
        }
        found.sort_by_key(|span| span.began);
        if found.is_empty() {
            return fail(format!(
                "there is no machine {name} (see --namespace), and Jaeger has no trace of one (see --since, --trace-ratio)"
            ));
        }
    }
    Ok(spans::of_machine(name, found))
}

/// The traces as trees. A wide one has all spans of other services.
pub(crate) fn text(found: &[Span], is_wide: bool) -> String {
    if found.is_empty() {
        return "Jaeger has no spans of these traces yet: parts are exported when they end, if the trace is sampled (--trace-ratio)\n".to_owned();
    }
    if is_wide { spans::text(found) } else { spans::text(&spans::shortened(found)) }
}

/// One part after the other, until one lasts.
fn creation(machine: &Machine, began: Timestamp) -> Vec<Stage> {
    let (mut stages, mut began) = (vec![], began);
    for (name, kind) in CREATION {
        let ended = since(machine, kind, "True");
        // A condition that was written again, as after a restore, is older or younger than what it is about.
        let ended = ended.map(|ended| ended.max(began));
        stages.push(Stage { name, began, ended });
        match ended {
            Some(ended) => began = ended,
            None => break,
        }
    }
    stages
}

/// The parts that have been reported, each until the next one; the last one lasts.
fn end(machine: &Machine, deleted: Timestamp) -> Vec<Stage> {
    let reported = END.into_iter().filter_map(|(name, kind)| Some((name, since(machine, kind, "False")?.max(deleted))));
    let mut reported: Vec<_> = reported.collect();
    reported.sort_by_key(|(_, began)| *began);
    // What is before the first report belongs to it: it is written some seconds later.
    match reported.first_mut() {
        Some((_, began)) => *began = deleted,
        None => reported.push(("deletion", deleted)),
    }
    let ends = reported.iter().skip(1).map(|(_, began)| Some(*began)).chain([None]).collect::<Vec<_>>();
    reported.into_iter().zip(ends).map(|((name, began), ended)| Stage { name, began, ended }).collect()
}

/// Since when a condition has a status.
fn since(machine: &Machine, kind: &str, status: &str) -> Option<Timestamp> {
    let condition = machine.condition(kind).filter(|condition| condition.status == status)?;
    condition.last_transition_time.as_ref().map(|time| time.0)
}

/// Boot and join, if it shows when the Node of this life was registered.
///
/// A VM that boots fast registers its Node before the VM is reported: then its boot took no time.
fn split(stage: &Stage, created: Timestamp, registered: Timestamp) -> Vec<Stage> {
    let is_of_this_life = registered >= created && stage.ended.is_none_or(|ended| registered <= ended);
    match is_of_this_life.then(|| registered.max(stage.began)) {
        Some(at) => vec![
            Stage { name: "boot", began: stage.began, ended: Some(at) },
            Stage { name: "join", began: at, ended: stage.ended },
        ],
        None => vec![stage.clone()],
    }
}

impl Life {
    pub(crate) fn name(&self) -> &str {
        &self.machine
    }

    pub(crate) fn text(&self, now: Timestamp) -> String {
        let mut lines = vec![format!("machine/{} is {}", self.machine, self.phase)];
        lines.push(format!("trace {} (creation)", self.traces.creation));
        lines.extend(self.traces.termination.iter().map(|trace| format!("trace {trace} (deletion)")));
        // A life of days has two short parts with a long one in between, which is no stage.
        let deleted = self.deleted.unwrap_or(Timestamp::MAX);
        let (creation, end): (Vec<_>, Vec<_>) = self.stages.iter().partition(|stage| stage.began < deleted);
        for stages in [creation, end] {
            lines.extend(waterfall(&stages, now).map(|text| format!("\n{}", text.trim_end())));
        }
        lines.join("\n") + "\n"
    }
}

/// A table with a bar for each stage, in their proportions.
fn waterfall(stages: &[&Stage], now: Timestamp) -> Option<String> {
    let first = stages.first()?.began;
    let end = |stage: &Stage| stage.ended.unwrap_or(now).max(stage.began);
    let last = stages.iter().map(|stage| end(stage)).max()?;
    let mut rows = vec![["STAGE", "BEGAN", "TOOK", ""].map(str::to_owned).to_vec()];
    rows.extend(stages.iter().map(|stage| {
        let took = age(stage.began, end(stage));
        let took = if stage.ended.is_none() { format!("{took}, and lasts") } else { took };
        let bar = spans::bar((stage.began, end(stage)), (first, last));
        vec![stage.name.to_owned(), format!("+{}", age(first, stage.began)), took, bar]
    }));
    Some(format!("since {first:.0}\n{}", table(&rows)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn printed(conditions: &Value, node: Option<&str>, deleted: Option<&str>) -> String {
        let mut snapshot = Snapshot::at("2026-06-01T13:00:00Z".parse().unwrap());
        snapshot.add(&json!({"kind": "Machine", "apiVersion": "machine.sapcloud.io/v1alpha1",
            "metadata": {"name": "m", "namespace": "shoot", "uid": "u", "creationTimestamp": "2026-06-01T12:00:00Z",
                "deletionTimestamp": deleted, "labels": {"node": "n"},
                "annotations": {"nodewright.dev/traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}},
            "spec": {"class": {"name": "c"}},
            "status": {"conditions": conditions, "currentStatus": {"phase": "Running"}}}));
        if let Some(created) = node {
            snapshot.add(
                &json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n", "creationTimestamp": created}}),
            );
        }
        life(&snapshot, snapshot.machine("m").unwrap()).text(snapshot.now)
    }

    fn condition(kind: &str, at: &str) -> Value {
        json!({"type": kind, "status": "True", "lastTransitionTime": at})
    }

    #[test]
    fn a_life_is_a_waterfall() {
        let mut all = vec![
            condition("InstanceProvisioned", "2026-06-01T12:00:10Z"),
            condition("NodeJoined", "2026-06-01T12:00:40Z"),
        ];
        let text = printed(&json!(all), Some("2026-06-01T12:00:30Z"), None);
        let expected = [
            "machine/m is Running",
            "trace 4bf92f3577b34da6a3ce929d0e0e4736 (creation)",
            "",
            "since 2026-06-01T12:00:00Z",
            "STAGE   BEGAN   TOOK",
            "VM      +0s     10s    ██████████",
            "boot    +10s    20s              ████████████████████",
            "join    +30s    10s                                  ██████████",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected, "{text}");
        let waits = |kind: &str, at: &str| json!({"type": kind, "status": "False", "lastTransitionTime": at});
        all.push(waits("Drained", "2026-06-01T12:50:05Z"));
        all.push(waits("InstanceTerminated", "2026-06-01T12:50:35Z"));
        let text = printed(&json!(all), None, Some("2026-06-01T12:50:00Z"));
        assert!(text.contains("boot and join   +10s    30s"), "{text}");
        let end: Vec<_> = text.lines().skip(9).collect();
        assert_eq!(end[0], "since 2026-06-01T12:50:00Z", "{text}");
        assert!(
            end[2].starts_with("drain         +0s     35s ")
                && end[3].starts_with("VM deletion   +35s    9m25s, and lasts"),
            "{text}"
        );
        assert_eq!(end.len(), 4, "{text}");
    }

    #[test]
    fn boot_ends_with_the_registration_of_the_node_of_this_life() {
        let conditions = json!([
            condition("InstanceProvisioned", "2026-06-01T12:00:10Z"),
            condition("NodeJoined", "2026-06-01T12:00:40Z"),
        ]);
        let before_the_report = printed(&conditions, Some("2026-06-01T12:00:09Z"), None);
        assert!(
            before_the_report.contains("boot    +10s    0s") && before_the_report.contains("join    +10s    30s"),
            "{before_the_report}"
        );
        for of_another_life in ["2026-06-01T11:59:59Z", "2026-06-01T12:00:41Z"] {
            let text = printed(&conditions, Some(of_another_life), None);
            assert!(text.contains("boot and join   +10s    30s"), "{text}");
        }
    }

    #[test]
    fn what_has_not_ended_lasts_or_never_ends() {
        let waiting = printed(&json!([]), None, None);
        assert!(waiting.contains("VM      +0s     60m, and lasts"), "{waiting}");
        let deleted = printed(&json!([]), None, Some("2026-06-01T12:10:00Z"));
        assert!(
            deleted.contains("VM      +0s     10m") && deleted.contains("deletion   +0s     50m, and lasts"),
            "{deleted}"
        );
        assert!(Snapshot::default().machine("m").is_err());
    }
}
