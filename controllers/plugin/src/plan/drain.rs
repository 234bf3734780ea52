//! Which Pods of a Node would leave, in which turns, and what would hold them back.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use nodewright_api::Machine;
use nodewright_controllers::node_drain::{Objects, Preview, preview};
use nodewright_runtime::object::name;
use serde_json::{Value, json};

use crate::{
    client::Cluster,
    fault::{Fault, Outcome, fail},
    names::{Target, TargetKind},
    output::{Format, counted, document, table},
    read::Scope,
    resources::{ATTACHMENTS, BUDGETS, CLAIMS, NODES, PODS},
    snapshot::{Snapshot, node_name},
};

/// The drain timeout of a machine that names none, unless the manager has another (`--machine-drain-timeout`).
const DEFAULT_TIMEOUT: &str = "2h, or --machine-drain-timeout of the manager";

/// The plan of a drain, for people or programs.
pub(crate) async fn drain(scope: &Scope, target: &Target, format: Option<Format>) -> Outcome<String> {
    let snapshot = scope.snapshot().await?;
    let (node, machine) = found(&snapshot, target)?;
    let object = scope.target.get(NODES, None, &node).await?;
    let objects = PodObjects::read(&scope.target, std::slice::from_ref(&object)).await?;
    let plan = preview(&objects.of(&object), Timestamp::now()).map_err(Fault::Message)?;
    match format {
        Some(format @ (Format::Json | Format::Yaml)) => document(&value(&node, machine, &plan), format),
        _ => Ok(text(&node, machine, &plan)),
    }
}

/// The name of the Node, and its Machine if it has one.
fn found<'a>(snapshot: &'a Snapshot, target: &Target) -> Outcome<(String, Option<&'a Machine>)> {
    match target.kind {
        TargetKind::Node => Ok((target.name.clone(), snapshot.machine_of_node(&target.name))),
        TargetKind::Machine => {
            let machine = snapshot.machine(&target.name)?;
            let node = snapshot.node_of(machine).map(|node| name(node).to_owned());
            match node.or_else(|| node_name(machine).map(str::to_owned)) {
                Some(node) => Ok((node, Some(machine))),
                None => fail(format!("machine {} has no node: there is nothing to drain", target.name)),
            }
        }
        _ => fail(format!("{target} has no pods: name a node or a machine")),
    }
}

/// The objects that drains of some Nodes read.
pub(super) struct PodObjects {
    /// By the name of the Node.
    pods: BTreeMap<String, Vec<Value>>,
    budgets: Vec<Value>,
    claims: Vec<Value>,
    attachments: Vec<Value>,
}

impl PodObjects {
    /// Reads what drains of these Nodes need. Without Nodes there is no request.
    pub(super) async fn read(cluster: &Cluster, nodes: &[Value]) -> Outcome<Self> {
        let mut objects = Self { pods: BTreeMap::new(), budgets: vec![], claims: vec![], attachments: vec![] };
        for node in nodes {
            let pods = cluster.list(PODS, None, &format!("spec.nodeName={}", name_of(node))).await?;
            objects.pods.insert(name_of(node).to_owned(), pods);
        }
        let all = objects.pods.values().flatten();
        let namespaces: BTreeSet<_> =
            all.filter_map(|pod| pod.pointer("/metadata/namespace")?.as_str()).map(str::to_owned).collect();
        for namespace in &namespaces {
            objects.budgets.extend(cluster.list(BUDGETS, Some(namespace), "").await?);
            objects.claims.extend(cluster.list(CLAIMS, Some(namespace), "").await?);
        }
        if !nodes.is_empty() {
            objects.attachments = cluster.list(ATTACHMENTS, None, "").await?;
        }
        Ok(objects)
    }

    /// What a drain of one of them reads.
    pub(super) fn of(&self, node: &Value) -> Objects {
        Objects {
            node: node.clone(),
            pods: self.pods.get(name_of(node)).cloned().unwrap_or_default(),
            budgets: self.budgets.clone(),
            claims: self.claims.clone(),
            attachments: self.attachments.clone(),
        }
    }
}

fn name_of(object: &Value) -> &str {
    object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

fn timeout(machine: &Machine) -> String {
    machine.spec.drain_timeout.as_ref().map_or_else(|| DEFAULT_TIMEOUT.to_owned(), ToString::to_string)
}

fn value(node: &str, machine: Option<&Machine>, plan: &Preview) -> Value {
    let leaving = plan.leaving.iter().map(|it| {
        json!({"pod": it.pod, "turn": it.turn, "volumes": it.volumes, "held": it.held, "comesBack": it.comes_back})
    });
    let staying = plan.staying.iter().map(|(pod, what)| json!({"pod": pod, "reason": what}));
    json!({
        "node": node, "machine": machine.map(name), "drainTimeout": machine.map(timeout),
        "leaving": leaving.collect::<Vec<_>>(), "ending": plan.ending, "staying": staying.collect::<Vec<_>>(),
    })
}

fn text(node: &str, machine: Option<&Machine>, plan: &Preview) -> String {
    let mut lines = vec![match machine {
        Some(machine) => format!("node {node} of machine {}", name(machine)),
        None => format!("node {node}, which has no machine"),
    }];
    let mut rows = vec![["TURN", "POD", "VOLUMES", "HELD BACK BY"].map(str::to_owned).to_vec()];
    rows.extend(plan.leaving.iter().map(|it| {
        let held = it.held.clone().unwrap_or_default();
        vec![it.turn.to_string(), it.pod.clone(), it.volumes.join(", "), held]
    }));
    if rows.len() > 1 {
        lines.push(format!("\n{}", table(&rows)));
    }
    lines.push(summary(plan));
    lines.extend((!plan.ending.is_empty()).then(|| format!("ending already: {}", plan.ending.join(", "))));
    let alone: Vec<_> = plan.leaving.iter().filter(|it| !it.comes_back).map(|it| it.pod.as_str()).collect();
    lines.extend((!alone.is_empty()).then(|| format!("no controller makes these again: {}", alone.join(", "))));
    if let Some(machine) = machine.filter(|_| !plan.leaving.is_empty()) {
        let timeout = timeout(machine);
        lines.push(format!(
            "pods that are left after the drain timeout ({timeout}) are deleted without grace, ignoring disruption budgets"
        ));
    }
    lines.join("\n") + "\n"
}

/// How many Pods leave by themselves, how many do not, and how many stay.
fn summary(plan: &Preview) -> String {
    let (held, free): (Vec<_>, Vec<_>) = plan.leaving.iter().partition(|it| it.held.is_some());
    let turns = free.iter().map(|it| it.turn).max().unwrap_or_default();
    let mut parts = vec![];
    if !free.is_empty() || held.is_empty() {
        parts.push(format!("{} would leave in {}", counted(free.len(), "pod"), counted(turns, "turn")));
    }
    if !held.is_empty() {
        let verb = if held.len() == 1 { "is" } else { "are" };
        parts.push(format!("{} {verb} blocked", counted(held.len(), "pod")));
    }
    parts.push(format!("{} stay", plan.staying.len()));
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use nodewright_controllers::node_drain::Leaving;

    use super::*;

    #[test]
    fn pods_that_are_blocked_do_not_count_as_leaving() {
        let leaving = |turn: usize, held: Option<&str>| Leaving {
            pod: "a/b".to_owned(),
            turn,
            volumes: vec![],
            held: held.map(str::to_owned),
            comes_back: true,
        };
        let (free, late, held) = (leaving(1, None), leaving(2, None), leaving(3, Some("budget")));
        for (leaving, expected) in [
            (vec![], "0 pods would leave in 0 turns; 1 stay"),
            (vec![free.clone()], "1 pod would leave in 1 turn; 1 stay"),
            (vec![held.clone()], "1 pod is blocked; 1 stay"),
            (vec![free, late, held.clone(), held], "2 pods would leave in 2 turns; 2 pods are blocked; 1 stay"),
        ] {
            let plan = Preview { leaving, staying: vec![("a/c".to_owned(), "a static pod")], ..Preview::default() };
            assert_eq!(summary(&plan), expected);
        }
    }
}
