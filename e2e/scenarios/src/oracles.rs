//! The invariants of all scenarios, checked at the end over the whole history.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nodewright_api::Machine;

use crate::{Environment, Failure, TestResult, ensure, history::Change};
use nodewright_e2e_cloud::{Event, EventKind, Vm, VmState};

/// The tolerance for comparing times: deletion timestamps have whole seconds.
const GRANULARITY: SignedDuration = SignedDuration::from_secs(1);

/// Checks all invariants.
pub async fn check(env: &Environment) -> TestResult {
    let (events, vms) = (env.cloud().events(0).await?, env.vms().await?);
    let changes = if env.has_gaps { env.machines().seen() } else { env.machines().changes()? };
    let fates = fates(&changes);
    one_vm_for_each_machine(&events, &fates)?;
    no_vm_is_deleted_before_its_machine(&events, &fates)?;
    no_machine_ends_before_its_vm(&events, &fates)?;
    no_vm_is_orphaned(&vms, &fates)
}

/// The history of one machine.
#[derive(Debug, Default)]
struct Fate {
    name: String,
    deleting_since: Option<Timestamp>,
    gone_at: Option<Timestamp>,
}

/// By UID, which is the token of the machine's VM.
type Fates = BTreeMap<String, Fate>;

fn fates(changes: &[Change<Machine>]) -> Fates {
    let mut fates = Fates::new();
    for change in changes {
        let fate = fates.entry(change.object.uid().unwrap_or_default()).or_default();
        fate.name = change.object.name_any();
        fate.deleting_since = change.object.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        fate.gone_at = change.gone.then_some(change.at);
    }
    fates
}

fn of_kind(events: &[Event], kind: EventKind) -> impl Iterator<Item = (&Event, &str)> {
    events.iter().filter(move |event| event.kind == kind).filter_map(|event| Some((event, event.token.as_deref()?)))
}

/// At most one VM was ever created per machine, and none for anything else.
fn one_vm_for_each_machine(events: &[Event], fates: &Fates) -> TestResult {
    let mut seen = BTreeSet::new();
    for (event, token) in of_kind(events, EventKind::CreateAccepted) {
        let name = event.name.as_deref().unwrap_or_default();
        ensure(fates.contains_key(token), || format!("VM {name} was made for no machine"))?;
        ensure(seen.insert(token), || format!("a second VM was made for machine {name}"))?;
    }
    Ok(())
}

/// A VM is deleted only when its machine is being deleted, or gone.
fn no_vm_is_deleted_before_its_machine(events: &[Event], fates: &Fates) -> TestResult {
    for (event, token) in of_kind(events, EventKind::DeleteAccepted) {
        let since = fates.get(token).and_then(|fate| fate.deleting_since.or(fate.gone_at));
        ensure(since.is_some_and(|since| since <= event.at.saturating_add(GRANULARITY).unwrap_or(event.at)), || {
            format!("VM {:?} was deleted at {} although its machine was not (since {since:?})", event.name, event.at)
        })?;
    }
    Ok(())
}

/// A machine exists until its VM is gone.
fn no_machine_ends_before_its_vm(events: &[Event], fates: &Fates) -> TestResult {
    let gone: BTreeMap<_, _> = of_kind(events, EventKind::VmGone).map(|(event, token)| (token, event.at)).collect();
    for (event, token) in of_kind(events, EventKind::CreateAccepted) {
        let Some(Fate { name, gone_at: Some(ended), .. }) = fates.get(token) else { continue };
        let vm = event.vm.as_deref().unwrap_or_default();
        ensure(gone.get(token).is_some_and(|gone| gone <= ended), || {
            format!("machine {name} ended at {ended}, its VM {vm} at {:?}", gone.get(token))
        })?;
    }
    Ok(())
}

/// Each VM that is not being deleted has its machine.
fn no_vm_is_orphaned(vms: &[Vm], fates: &Fates) -> TestResult {
    for vm in vms.iter().filter(|vm| vm.state != VmState::Deleting) {
        let fate = vm.tags.get("uid").and_then(|uid| fates.get(uid));
        let lives = fate.is_some_and(|fate| fate.gone_at.is_none());
        if !lives {
            return Err(Failure::new(format!("VM {} ({}) has no machine: {fate:?}", vm.id, vm.name)));
        }
    }
    Ok(())
}
