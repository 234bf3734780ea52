//! What may hold a planned rollout back, and its controllers do not foresee: Pods that wait for disruption budgets, and replacements of
//! unhealthy Machines that wait for the replacement budget or the fleet brake.

use std::collections::BTreeSet;

use jiff::Timestamp;
use nodewright_api::{Machine, conditions::machine::REMEDIATION_ALLOWED};
use nodewright_controllers::{
    node_drain::preview,
    rollout_preview::{Change, Verb},
};
use nodewright_runtime::object::{is_deleting, name};
use serde_json::{Value, json};

use super::drain::PodObjects;
use crate::{
    fault::{Fault, Outcome},
    output::counted,
    read::Scope,
    resources::NODES,
    snapshot::node_name,
};

/// Of how many Machines that are drained, the first ones, the Pods are read.
const EXAMINED: usize = 20;
/// How many Machines whose Pods wait have a line.
const SHOWN: usize = 5;

/// What may hold a rollout back.
#[derive(Debug, Default)]
pub(super) struct Holds {
    /// How many Machines are drained, and of how many of them the Pods were read.
    drained: usize,
    examined: usize,
    /// The Machines whose drain waits for disruption budgets now, with the Pods and why they wait.
    pods: Vec<(String, Vec<(String, String)>)>,
    /// Why Pods were not read.
    unknown: Option<String>,
    /// The unhealthy Machines whose replacement waits, and for what.
    replacements: Vec<(String, String)>,
}

impl Holds {
    /// Those of the changes of a deployment with these Machines. A plan is worth having without what cannot be read.
    pub(super) async fn read(scope: &Scope, machines: &[Machine], changes: &[Change]) -> Self {
        let deleting = machines.iter().filter(|machine| is_deleting(*machine)).map(name);
        let leave = changes.iter().filter(|change| matches!(change.verb, Verb::Delete | Verb::UpdateInPlace));
        let leaving: Vec<_> = deleting.chain(leave.filter_map(|change| change.machine.as_deref())).collect();
        let of = |wanted: &&str| machines.iter().find(|machine| name(*machine) == *wanted);
        let drained: Vec<_> =
            leaving.iter().filter_map(of).filter_map(|machine| Some((name(machine), node_name(machine)?))).collect();
        let replacements = machines.iter().filter_map(|machine| Some((name(machine).to_owned(), waits(machine)?)));
        let mut holds = Self { drained: drained.len(), replacements: replacements.collect(), ..Self::default() };
        let pods = holds.pods_of(scope, &drained[..drained.len().min(EXAMINED)]).await;
        holds.unknown = pods.err().map(|fault| fault.to_string());
        holds
    }

    async fn pods_of(&mut self, scope: &Scope, drained: &[(&str, &str)]) -> Outcome<()> {
        let mut nodes = vec![];
        for (_, node) in drained {
            match scope.target.get(NODES, None, node).await {
                Err(fault) if fault.is_not_found() => {}
                found => nodes.push(found?),
            }
        }
        let objects = PodObjects::read(&scope.target, &nodes).await?;
        self.examined = drained.len();
        for (machine, node) in drained {
            let Some(node) = nodes.iter().find(|it| it["metadata"]["name"] == **node) else { continue };
            let plan = preview(&objects.of(node), Timestamp::now()).map_err(Fault::Message)?;
            let held = plan.leaving.into_iter().filter_map(|leaving| Some((leaving.pod, leaving.held?)));
            let held: Vec<_> = held.collect();
            self.pods.extend((!held.is_empty()).then(|| ((*machine).to_owned(), held)));
        }
        Ok(())
    }

    pub(super) fn value(&self) -> Value {
        let pods = |(machine, pods): &(String, Vec<(String, String)>)| {
            let pods = pods.iter().map(|(pod, why)| json!({"pod": pod, "reason": why}));
            json!({"machine": machine, "pods": pods.collect::<Vec<_>>()})
        };
        let replacements = self.replacements.iter().map(|(machine, why)| json!({"machine": machine, "reason": why}));
        json!({
            "drained": self.drained, "examined": self.examined, "pods": self.pods.iter().map(pods).collect::<Vec<_>>(),
            "unknown": self.unknown, "replacements": replacements.collect::<Vec<_>>(),
        })
    }

    /// Whether a drain waits now.
    pub(super) fn hold(&self) -> bool {
        !self.pods.is_empty()
    }

    /// A line for each; none if nothing is drained and nothing waits.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec![];
        if let Some(why) = &self.unknown {
            lines.push(format!("whether its pods wait for disruption budgets is not known: {why}"));
        } else if self.drained > 0 {
            lines.push(self.pods_in_a_line());
            lines.extend(self.pods.iter().take(SHOWN).map(|(machine, pods)| of_machine(machine, pods)));
            let more = self.pods.len().saturating_sub(SHOWN);
            lines.extend((more > 0).then(|| format!("  and {}: see -o json", counted(more, "machine"))));
        }
        let first = self.replacements.first();
        lines.extend(first.map(|(machine, why)| match self.replacements.len() {
            1 => format!("machine/{machine} is unhealthy and not replaced for that yet: {why}"),
            count => format!("{count} machines are unhealthy and not replaced for that yet, machine/{machine}: {why}"),
        }));
        lines
    }

    fn pods_in_a_line(&self) -> String {
        let of = match self.examined {
            examined if examined < self.drained => {
                format!("the first {examined} of {} that are drained", counted(self.drained, "machine"))
            }
            _ => format!(
                "{} {} drained",
                counted(self.drained, "machine"),
                if self.drained == 1 { "that is" } else { "that are" }
            ),
        };
        match self.pods.len() {
            0 => format!("of the pods of {of}, none waits for a disruption budget now"),
            count => {
                let verb = if count == 1 { "has" } else { "have" };
                format!("of {of}, {count} {verb} pods that wait for disruption budgets now, so it takes longer:")
            }
        }
    }
}

/// The first Pod that waits, and where the others are shown.
fn of_machine(machine: &str, pods: &[(String, String)]) -> String {
    let reasons: BTreeSet<_> = pods.iter().map(|(_, why)| why.as_str()).collect();
    let (pod, why) = &pods[0];
    let more = match (pods.len(), reasons.len()) {
        (1, _) => String::new(),
        (count, 1) => format!(" ({count} such pods)"),
        (count, _) => format!(" (and {}: kubectl nodewright plan drain machine/{machine})", counted(count - 1, "pod")),
    };
    format!("  machine/{machine}: {pod}: {why}{more}")
}

/// What the replacement of an unhealthy Machine waits for.
fn waits(machine: &Machine) -> Option<String> {
    let condition = machine.condition(REMEDIATION_ALLOWED).filter(|it| it.status == "False")?;
    condition.message.clone().filter(|_| machine.metadata.deletion_timestamp.is_none())
}
