//! Commands that change one machine, or approve a change of a node or pool.

use k8s_openapi::api::core::v1::Node;
use nodewright_api::{Machine, annotations, labels, reasons::machine_config_pool::TOO_MUCH_REMOVED};
use nodewright_runtime::object::{controller, is_deleting, label, name, uid};
use serde_json::json;

use crate::{
    client::Patch,
    fault::{Fault, Outcome, fail},
    names::{Target, TargetKind},
    read::Scope,
    resources::{MACHINES, NODES, POOLS},
    snapshot::{Snapshot, node_name},
    why::pool,
};

const DRY: &str = " (server dry run)";

/// A machine, and its Node if it has one.
struct Found {
    machine: Machine,
    node: Option<Node>,
}

/// The machine of an argument, which names it or its node.
async fn find(scope: &Scope, target: &Target) -> Outcome<Found> {
    let mut snapshot = Snapshot::default();
    match target.kind {
        TargetKind::Machine => {
            snapshot.add(&scope.control.get(MACHINES, scope.namespace.as_deref(), &target.name).await?);
            let node = snapshot.machines.first().and_then(node_name).map(str::to_owned);
            add_node(scope, &mut snapshot, node.as_deref()).await?;
        }
        TargetKind::Node => {
            let machines = scope.control.list(MACHINES, scope.namespace.as_deref(), "").await?;
            for machine in &machines {
                snapshot.add(machine);
            }
            add_node(scope, &mut snapshot, Some(&target.name)).await?;
        }
        kind => return fail(format!("{target} is a {}: name a machine, or its node", kind.kind())),
    }
    let machine = match target.kind {
        TargetKind::Machine => snapshot.machines.first(),
        _ => snapshot.machine_of_node(&target.name),
    };
    let Some(machine) = machine.cloned() else {
        return fail(format!("{target}: no Machine of this namespace has it"));
    };
    if snapshot.node_of(&machine).is_none() {
        add_node(scope, &mut snapshot, None).await?;
    }
    Ok(Found { node: snapshot.node_of(&machine).cloned(), machine })
}

/// Adds a Node, if it exists; without a name all of them, since one may be the machine's by its provider ID alone. Without the right the
/// machine has none here.
async fn add_node(scope: &Scope, snapshot: &mut Snapshot, named: Option<&str>) -> Outcome<()> {
    let nodes = match named {
        Some(node) => scope.target.get(NODES, None, node).await.map(|node| vec![node]),
        None => scope.target.list(NODES, None, "").await,
    };
    match nodes {
        Ok(nodes) => nodes.iter().for_each(|node| snapshot.add(node)),
        Err(fault) if fault.is_not_found() => {}
        Err(fault) if fault.is_forbidden() && named.is_none() => eprintln!("note: {}", fault.short()),
        Err(fault) if fault.is_forbidden() => {}
        Err(fault) => return Err(fault),
    }
    Ok(())
}

/// Sets the annotation `preserve` of the Node of a machine, or of the Machine if it has none.
async fn annotate(scope: &Scope, target: &Target, value: &str, dry: bool) -> Outcome<String> {
    let Found { machine, node } = find(scope, target).await?;
    if machine.is_deleting() {
        return fail(format!("machine/{} is being deleted: it can no longer be preserved", name(&machine)));
    }
    let change =
        |uid: &str| Patch::Merge(json!({"metadata": {"uid": uid, "annotations": {annotations::PRESERVE: value}}}));
    let at = if let Some(node) = &node {
        scope.target.patch((NODES, None, name(node)), &change(uid(node)), dry).await?;
        format!("node/{}", name(node))
    } else {
        let at = (MACHINES, machine.metadata.namespace.as_deref(), name(&machine));
        scope.control.patch(at, &change(uid(&machine)), dry).await?;
        format!("machine/{}", name(&machine))
    };
    let dry = if dry { DRY } else { "" };
    let what = match value {
        annotations::PRESERVE_FALSE => "is not preserved",
        annotations::PRESERVE_NOW => "is preserved in any phase",
        _ => "is preserved once it has failed",
    };
    Ok(format!("machine/{} {what}: annotation {} of {at}{dry}\n", name(&machine), annotations::PRESERVE))
}

/// Keeps a machine, once it has failed or at once.
pub(crate) async fn preserve(scope: &Scope, target: &Target, now: bool, dry: bool) -> Outcome<String> {
    let value = if now { annotations::PRESERVE_NOW } else { annotations::PRESERVE_WHEN_FAILED };
    annotate(scope, target, value, dry).await
}

/// Ends a preservation.
pub(crate) async fn release(scope: &Scope, target: &Target, dry: bool) -> Outcome<String> {
    annotate(scope, target, annotations::PRESERVE_FALSE, dry).await
}

/// Deletes a machine that has a set, which creates another one.
pub(crate) async fn replace(scope: &Scope, target: &Target, force: bool, dry: bool) -> Outcome<String> {
    let Found { machine, .. } = find(scope, target).await?;
    let of = name(&machine);
    if controller(&machine).is_none_or(|owner| owner.kind != "MachineSet") {
        return fail(format!(
            "machine/{of} has no MachineSet, so that nothing would replace it: kubectl delete machine {of} deletes it"
        ));
    }
    let at = (MACHINES, machine.metadata.namespace.as_deref(), of);
    if machine.is_deleting() && !force {
        return Ok(format!(
            "machine/{of} is being deleted already: kubectl nodewright why machine/{of} shows what it waits for, and --force deletes it without a drain\n"
        ));
    }
    if force && !machine.is_force_deletion() {
        let change = json!({"metadata": {"uid": uid(&machine), "labels": {labels::FORCE_DELETION: "true"}}});
        scope.control.patch(at, &Patch::Merge(change), dry).await?;
    }
    if !machine.is_deleting() {
        scope.control.delete(at, uid(&machine), dry).await?;
    }
    let how = if force { "without a drain" } else { "once its node is drained" };
    let dry = if dry { DRY } else { "" };
    Ok(format!("machine/{of} is deleted {how}, and its set creates another one{dry}\n"))
}

/// Approves what waits for a user: a node that is to be updated in place, or a pool with much removed.
pub(crate) async fn approve(scope: &Scope, target: &Target, render: Option<&str>, dry: bool) -> Outcome<String> {
    match (target.kind, render) {
        (TargetKind::Node, None) => approve_node(scope, &target.name, dry).await,
        (TargetKind::Node, Some(_)) => fail("--render is for a MachineConfigPool"),
        (TargetKind::Pool, Some(render)) => approve_pool(scope, &target.name, render, dry).await,
        (TargetKind::Pool, None) => {
            fail("name what is accepted: --render=RENDERED, as kubectl nodewright why says it of the pool")
        }
        _ => fail(format!("nothing of {target} waits for an approval: name a node or a machineconfigpool")),
    }
}

async fn approve_node(scope: &Scope, node: &str, dry: bool) -> Outcome<String> {
    let mut snapshot = Snapshot::default();
    snapshot.add(&scope.target.get(NODES, None, node).await?);
    let Some(found) = snapshot.nodes.first() else { return fail(format!("node/{node} cannot be decoded")) };
    let is_candidate = label(found, labels::CANDIDATE_FOR_UPDATE) == Some(labels::UPDATE_LABEL_VALUE);
    if !is_candidate || is_deleting(found) {
        return fail(format!(
            "node/{node} waits for no update: it does not have the label {}={}",
            labels::CANDIDATE_FOR_UPDATE,
            labels::UPDATE_LABEL_VALUE
        ));
    }
    let labels = json!({labels::SELECTED_FOR_UPDATE: labels::UPDATE_LABEL_VALUE});
    let change = Patch::Merge(json!({"metadata": {"uid": uid(found), "labels": labels}}));
    scope.target.patch((NODES, None, node), &change, dry).await?;
    let dry = if dry { DRY } else { "" };
    Ok(format!("node/{node} is updated in place next: label {}{dry}\n", labels::SELECTED_FOR_UPDATE))
}

async fn approve_pool(scope: &Scope, of: &str, render: &str, dry: bool) -> Outcome<String> {
    let mut snapshot = Snapshot::default();
    snapshot.add(&scope.target.get(POOLS, None, of).await?);
    let pool = snapshot.pools.first();
    let pool = pool.ok_or_else(|| Fault::Message(format!("machineconfigpool/{of} cannot be decoded")))?;
    let held = pool::condition(pool, nodewright_api::conditions::machine_config_pool::RENDER_DEGRADED);
    let held = held.filter(|it| it.reason == TOO_MUCH_REMOVED && it.message.contains(render));
    if held.is_none() {
        return fail(format!("machineconfigpool/{of} does not hold {render} back because much is removed"));
    }
    let accepted = json!({annotations::ACCEPT_RENDER: render});
    let change = Patch::Merge(json!({"metadata": {"uid": uid(pool), "annotations": accepted}}));
    scope.target.patch((POOLS, None, of), &change, dry).await?;
    let dry = if dry { DRY } else { "" };
    Ok(format!("machineconfigpool/{of} accepts {render}: annotation {}{dry}\n", annotations::ACCEPT_RENDER))
}
