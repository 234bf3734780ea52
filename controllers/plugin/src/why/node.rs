//! Why a node is not there, not ready, or not configured.

use k8s_openapi::api::core::v1::Node;
use nodewright_api::machine_config::REASON;
use nodewright_runtime::object::{created, name};

use super::{
    explanation::{Finding, Link},
    machine,
    node_state::{Progress, described, has_ready, is_cordoned, non_empty, not_ready, sentence, since, subject},
    remedies,
};
use crate::{output::State, snapshot::Snapshot};

/// What keeps a node from being there, ready and configured. `None` if neither it nor a machine of it exists.
pub(crate) fn finding(snapshot: &Snapshot, wanted: &str) -> Option<Finding> {
    let node = snapshot.nodes.iter().find(|node| name(*node) == wanted);
    let machine = snapshot.machine_of_node(wanted);
    let Some(node) = node else {
        let found = machine::finding(snapshot, machine?);
        let is_done = found.state == State::Done;
        let gap = "its machine runs, and the node was not read";
        return Some(if is_done { Finding { cause: gap.to_owned(), ..found } } else { found });
    };
    let of_machine = machine.map(|machine| machine::finding(snapshot, machine));
    if let Some(found) = of_machine.filter(|found| found.state != State::Done) {
        return Some(found);
    }
    let (text, since) = described(node);
    let link = Link::new("node", text).since(since);
    let found = unready(node).or_else(|| configuration(snapshot, node));
    let found = found.unwrap_or_else(|| {
        let of = machine.map_or("no Machine has it".to_owned(), |machine| machine::subject(machine) + " runs it");
        Finding::done(subject(wanted), format!("it is ready; {of}"))
    });
    let kept = machine.and_then(machine::preserved).map(|text| Link::new("kept", text));
    Some(found.below([link].into_iter().chain(kept)))
}

fn unready(node: &Node) -> Option<Finding> {
    let Some(condition) = not_ready(node) else {
        let text = "it has no condition Ready: no kubelet has written its status, or somebody else has made the Node";
        let found = Finding::blocked(subject(name(node)), "NoReadyCondition", text);
        return (!has_ready(node)).then(|| found.since(created(node)).changed_by_all(remedies::of("NodeNotReady")));
    };
    let reason = condition.reason.as_deref().unwrap_or("NotReady");
    let found = Finding::blocked(subject(name(node)), reason, sentence(node, condition)).since(since(condition));
    Some(found.changed_by_all(remedies::of("NodeNotReady")))
}

/// How far a Node is with the target of its pool.
fn configuration(snapshot: &Snapshot, node: &Node) -> Option<Finding> {
    let pool = snapshot.pool_of(node)?;
    let target = pool.spec.configuration.name.as_deref().filter(|target| !target.is_empty())?;
    let progress = Progress::of(node, target);
    let text = format!("machineconfigpool/{} has the target {target}", name(pool));
    let found = match progress {
        Progress::Updated | Progress::NoAgent => return None,
        Progress::Failed => {
            let text = format!("its agent has failed: {}", non_empty(node, REASON).unwrap_or("it gives no reason"));
            Finding::blocked(subject(name(node)), "NodeDegraded", text)
        }
        Progress::Draining => {
            let text = "it is being drained for another configuration";
            Finding::waiting(subject(name(node)), "Draining", text)
        }
        Progress::Updating => Finding::waiting(subject(name(node)), "Updating", "its agent applies a configuration"),
        Progress::Behind if pool.spec.paused => {
            let text = format!("it does not run the target of machineconfigpool/{}, which is paused", name(pool));
            Finding::blocked(subject(name(node)), "Paused", text)
        }
        Progress::Behind if is_cordoned(node) => {
            Finding::blocked(subject(name(node)), "Cordoned", "it is cordoned, so that it is given no configuration")
        }
        Progress::Behind => Finding::waiting(subject(name(node)), "Waiting", "it waits for its turn in its pool"),
    };
    let changes = remedies::of(&found.reason);
    Some(found.link(Link::new("pool", text)).changed_by_all(changes))
}
