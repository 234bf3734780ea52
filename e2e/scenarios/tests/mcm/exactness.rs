//! Nothing lost, nothing twice: evaluated by the cloud's own history, and by every change of the Machines.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nodewright_api::Machine;
use nodewright_e2e_cloud::{Event, EventKind, VmState};
use nodewright_e2e_scenarios::{Environment, TestResult, ensure, history::State};

/// The tolerance for comparing times: deletion timestamps have whole seconds.
const GRANULARITY: SignedDuration = SignedDuration::from_secs(1);

/// When the Machine of a name was deleted, and when it was gone. VMs of machine-controller-manager carry the name of their Machine,
/// and not its UID: no two Machines may have the same name.
#[derive(Debug, Default)]
struct MachineRecord {
    uid: String,
    deleting_since: Option<Timestamp>,
    gone_at: Option<Timestamp>,
}

/// Checks a scenario that ended with `running` machines of `class`, and in which `machines` Machines and `vms` VMs were created
/// in all.
pub(crate) async fn check(env: &Environment, running: usize, class: &str, machines: usize, vms: usize) -> TestResult {
    let records = records(env)?;
    let names: Vec<&String> = records.keys().collect();
    ensure(records.len() == machines, || {
        format!("{} machines were created, not {machines}: {names:?}", records.len())
    })?;
    let events = env.cloud().events(0).await?;
    one_vm_for_each_machine(&events, &records, vms)?;
    no_vm_goes_before_its_machine_or_stays_after_it(&events, &records)?;
    the_end_is_as_wanted(env, running, class).await
}

/// Fails if one of these machines was replaced, or got another VM or Node.
pub(crate) fn all_stay(env: &Environment, before: &State<Machine>) -> TestResult {
    let after = env.machines().current();
    let identity =
        |machine: &Machine| (machine.uid(), machine.spec.provider_id.clone(), machine.node_name().map(str::to_owned));
    for (name, machine) in before {
        let (was, is) = (identity(machine), after.get(name).map(|machine| identity(machine)));
        ensure(is.as_ref() == Some(&was), || format!("machine {name} was {was:?} and is {is:?}"))?;
    }
    Ok(())
}

fn records(env: &Environment) -> TestResult<BTreeMap<String, MachineRecord>> {
    let mut records = BTreeMap::<String, MachineRecord>::new();
    for change in env.machines().changes()? {
        let (name, uid) = (change.object.name_any(), change.object.uid().unwrap_or_default());
        let record = records
            .entry(name.clone())
            .or_insert_with(|| MachineRecord { uid: uid.clone(), ..MachineRecord::default() });
        ensure(record.uid == uid, || format!("the name {name} was given to two machines"))?;
        record.deleting_since = change.object.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        record.gone_at = change.gone.then_some(change.at);
    }
    Ok(records)
}

fn one_vm_for_each_machine(events: &[Event], records: &BTreeMap<String, MachineRecord>, vms: usize) -> TestResult {
    let mut seen = BTreeSet::new();
    for event in events.iter().filter(|event| event.kind == EventKind::CreateAccepted) {
        let name = event.name.as_deref().unwrap_or_default();
        ensure(records.contains_key(name), || format!("VM {name} was created for no machine"))?;
        ensure(seen.insert(name), || format!("a second VM was created for machine {name}"))?;
    }
    ensure(seen.len() == vms, || format!("{} VMs were created, not {vms}: {seen:?}", seen.len()))
}

fn no_vm_goes_before_its_machine_or_stays_after_it(
    events: &[Event],
    records: &BTreeMap<String, MachineRecord>,
) -> TestResult {
    let of_kind = |kind| events.iter().filter(move |event| event.kind == kind);
    for event in of_kind(EventKind::DeleteAccepted) {
        let record = records.get(event.name.as_deref().unwrap_or_default());
        let since = record.and_then(|record| record.deleting_since.or(record.gone_at));
        let tolerated = event.at.saturating_add(GRANULARITY)?;
        ensure(since.is_some_and(|since| since <= tolerated), || {
            format!("VM {:?} was deleted at {} although its machine was not ({record:?})", event.name, event.at)
        })?;
    }
    // With machine-controller-manager, a VM may still be shutting down when its Machine goes: what counts is the order.
    let ordered: BTreeSet<_> = of_kind(EventKind::DeleteAccepted).filter_map(|event| event.name.as_deref()).collect();
    for event in of_kind(EventKind::CreateAccepted) {
        let name = event.name.as_deref().unwrap_or_default();
        let is_gone = records.get(name).is_some_and(|record| record.gone_at.is_some());
        ensure(!is_gone || ordered.contains(name), || format!("machine {name} is gone, and its VM was not deleted"))?;
    }
    Ok(())
}

/// Each machine has its VM and its Node, and there is no other VM or Node.
async fn the_end_is_as_wanted(env: &Environment, running: usize, class: &str) -> TestResult {
    let machines = env.machines().current();
    let wrong: Vec<_> =
        machines.values().filter(|machine| machine.class_name() != class).map(|it| it.name_any()).collect();
    ensure(wrong.is_empty(), || format!("machines of another class than {class}: {wrong:?}"))?;
    ensure(machines.len() == running, || format!("{} machines, not {running}", machines.len()))?;
    let live = env.vms().await?.into_iter().filter(|vm| vm.state != VmState::Deleting);
    let vms: BTreeSet<_> = live.map(|vm| (vm.name, vm.provider_id)).collect();
    let named = |machine: &Arc<Machine>| (machine.name_any(), machine.spec.provider_id.clone());
    let claimed: BTreeSet<_> = machines.values().map(named).collect();
    ensure(vms == claimed, || format!("VMs {vms:?}, machines {claimed:?}"))?;
    let nodes: BTreeSet<_> = env.nodes().current().into_keys().collect();
    let linked: BTreeSet<_> = machines.values().filter_map(|machine| machine.node_name().map(str::to_owned)).collect();
    ensure(nodes == linked, || format!("nodes {nodes:?}, of machines {linked:?}"))
}
