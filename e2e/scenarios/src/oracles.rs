//! The invariants of all scenarios, checked at the end over the whole history.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nodewright_api::Machine;

use crate::{Environment, Failure, TestResult, ensure, history::Change};
use nodewright_e2e_cloud::{Event, EventKind, Vm, VmState};

/// The tolerance for comparing times: deletion timestamps have whole seconds.
const GRANULARITY: SignedDuration = SignedDuration::from_secs(1);

/// Checks all invariants. Machines may come and go meanwhile: what had ended before the cloud was asked is compared with its answer,
/// and what exists after it.
pub async fn check(env: &Environment) -> TestResult {
    let records = || {
        let changes = if env.has_gaps { env.machines().seen() } else { env.machines().changes()? };
        TestResult::Ok(records(&changes))
    };
    let before = records()?;
    let (events, vms) = (env.cloud().events(0).await?, env.vms().await?);
    let after = records()?;
    one_vm_for_each_machine(&events, &after)?;
    no_vm_is_deleted_before_its_machine(&events, &after)?;
    no_machine_ends_before_its_vm(&events, &before)?;
    no_vm_is_orphaned(&vms, &before, &after)
}

/// The history of one machine.
#[derive(Debug, Default)]
struct MachineRecord {
    name: String,
    deleting_since: Option<Timestamp>,
    gone_at: Option<Timestamp>,
}

/// By UID, which is the token of the machine's VM.
type MachineRecords = BTreeMap<String, MachineRecord>;

fn records(changes: &[Change<Machine>]) -> MachineRecords {
    let mut records = MachineRecords::new();
    for change in changes {
        let record = records.entry(change.object.uid().unwrap_or_default()).or_default();
        record.name = change.object.name_any();
        record.deleting_since = change.object.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        record.gone_at = change.gone.then_some(change.at);
    }
    records
}

fn of_kind(events: &[Event], kind: EventKind) -> impl Iterator<Item = (&Event, &str)> {
    events.iter().filter(move |event| event.kind == kind).filter_map(|event| Some((event, event.token.as_deref()?)))
}

/// At most one VM was ever created per machine, and none for anything else.
fn one_vm_for_each_machine(events: &[Event], records: &MachineRecords) -> TestResult {
    let mut seen = BTreeSet::new();
    for (event, token) in of_kind(events, EventKind::CreateAccepted) {
        let name = event.name.as_deref().unwrap_or_default();
        ensure(records.contains_key(token), || format!("VM {name} was made for no machine"))?;
        ensure(seen.insert(token), || format!("a second VM was made for machine {name}"))?;
    }
    Ok(())
}

/// A VM is deleted only when its machine is being deleted, or gone.
fn no_vm_is_deleted_before_its_machine(events: &[Event], records: &MachineRecords) -> TestResult {
    for (event, token) in of_kind(events, EventKind::DeleteAccepted) {
        let since = records.get(token).and_then(|record| record.deleting_since.or(record.gone_at));
        ensure(since.is_some_and(|since| since <= event.at.saturating_add(GRANULARITY).unwrap_or(event.at)), || {
            format!("VM {:?} was deleted at {} although its machine was not (since {since:?})", event.name, event.at)
        })?;
    }
    Ok(())
}

/// A machine exists until its VM is gone.
fn no_machine_ends_before_its_vm(events: &[Event], records: &MachineRecords) -> TestResult {
    let gone: BTreeMap<_, _> = of_kind(events, EventKind::VmGone).map(|(event, token)| (token, event.at)).collect();
    for (event, token) in of_kind(events, EventKind::CreateAccepted) {
        let Some(MachineRecord { name, gone_at: Some(ended), .. }) = records.get(token) else { continue };
        let vm = event.vm.as_deref().unwrap_or_default();
        ensure(gone.get(token).is_some_and(|gone| gone <= ended), || {
            format!("machine {name} ended at {ended}, its VM {vm} at {:?}", gone.get(token))
        })?;
    }
    Ok(())
}

/// Each VM that is not being deleted has its machine.
fn no_vm_is_orphaned(vms: &[Vm], before: &MachineRecords, after: &MachineRecords) -> TestResult {
    for vm in vms.iter().filter(|vm| vm.state != VmState::Deleting) {
        let uid = vm.tags.get("uid").map(String::as_str).unwrap_or_default();
        let was_gone = before.get(uid).is_some_and(|record| record.gone_at.is_some());
        if was_gone || !after.contains_key(uid) {
            let record = after.get(uid);
            return Err(Failure::new(format!("VM {} ({}) has no machine: {record:?}", vm.id, vm.name)));
        }
    }
    Ok(())
}
