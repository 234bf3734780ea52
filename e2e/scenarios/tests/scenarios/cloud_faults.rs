//! A cloud as clouds are: late, silent, full.

use std::collections::BTreeSet;

use kube::ResourceExt;
use nodewright_api::{Machine, MachinePhase};
use nodewright_e2e_cloud::{Code, Effect, Event, EventKind, FaultOperation, FaultOrder};
use nodewright_e2e_scenarios::{TestResult, World, ensure, waits};

#[tokio::test(flavor = "multi_thread")]
async fn creations_that_are_answered_late_or_never_make_one_vm_each() -> TestResult {
    let world = World::start("answers").await?;
    for effect in [
        Effect::AnswerLate { seconds: 3.0 },
        Effect::Cut { applied: true },
        Effect::Cut { applied: false },
        Effect::Garbage,
        Effect::Hang { applied: true },
        Effect::Hang { applied: false },
    ] {
        world.cloud().fault(&FaultOrder::always(FaultOperation::Create, effect).times(1)).await?;
    }
    world.apply_class("small").await?;
    world.apply(&world.pool("a", 8)).await?;
    world.wait_for_running(8).await?;
    assert_eq!(world.cloud().stats().await?.created, 8);
    assert!(world.cloud().faults().await?.is_empty(), "all have struck");

    for effect in [Effect::Cut { applied: true }, Effect::Cut { applied: false }, Effect::Garbage] {
        world.cloud().fault(&FaultOrder::always(FaultOperation::Delete, effect).times(1)).await?;
    }
    world.scale("a", 0).await?;
    world.wait_for_nothing().await?;
    world.end().await
}

/// Calls that never end hold up their own machines and nobody else's: as many go on as there is room for beside them.
#[tokio::test(flavor = "multi_thread")]
async fn hung_calls_hold_up_their_own_machines_only() -> TestResult {
    const MACHINES: usize = 200;
    const HUNG: usize = 3;
    let flags = ["--provider-concurrency=6"];
    let world = World::builder("hung").without_kubelets().manager_flags(flags).start().await?;
    let endless = || FaultOrder::always(FaultOperation::Create, Effect::Hang { applied: false });
    world.cloud().fault(&endless().times(HUNG as u64)).await?;
    world.apply_class("small").await?;
    world.apply(&world.pool("a", u32::try_from(MACHINES)?)).await?;
    world.wait_for("the calls to hang", async || Ok(struck(&world).await?.len() == HUNG)).await?;
    let hung = struck(&world).await?;
    goes_on_beside(&world, HUNG).await?;
    // For ever: also when they are tried again.
    for name in &hung {
        world.cloud().fault(&endless().on_machine(name.as_str())).await?;
    }
    let has_vm = |machine: &Machine| machine.provider_id().is_some();
    let others = world
        .wait_for_machines("all others to have their VMs", |machines| {
            machines.len() == MACHINES && machines.values().filter(|machine| has_vm(machine)).count() == MACHINES - HUNG
        })
        .await?;
    assert!(hung.iter().all(|name| !has_vm(&others[name])), "they hang");
    let longest = r#"effects_longest_running_seconds{effect="create"}"#;
    let is_seen = async || Ok(world.metric(longest).await?.is_some_and(|seconds| seconds >= 5.0));
    world.wait_for("the metric to show that a call hangs", is_seen).await?;

    world.cloud().clear_faults().await?;
    world.wait_for_machines("the late ones", |machines| machines.values().all(|machine| has_vm(machine))).await?;
    let stats = world.cloud().stats().await?;
    assert_eq!((stats.created, stats.deleted), (MACHINES as u64, 0));
    assert_eq!((world.machines().born_since(0)?, world.machines().gone_since(0)?), (MACHINES, 0));
    world
        .wait_for("no call to run", async || Ok(world.metric(longest).await?.is_none_or(|seconds| seconds < 5.0)))
        .await?;
    world.end().await
}

/// The next creation came before any of the hung ones can have ended, which the driver gives 15 s.
async fn goes_on_beside(world: &World, hung: usize) -> TestResult {
    let next = async || {
        let events = world.cloud().events(0).await?;
        let mut strikes = events.iter().filter(|event| event.kind == EventKind::FaultStruck);
        let (first, last) = (strikes.next(), strikes.nth(hung - 2));
        let after = |event: &&Event| last.is_some_and(|last| last.number < event.number);
        let next = events.iter().filter(after).find(|event| event.kind == EventKind::CreateAccepted);
        TestResult::Ok(first.zip(next).map(|(first, next)| next.at.duration_since(first.at)))
    };
    world.wait_for("a creation beside those that hang", async || Ok(next().await?.is_some())).await?;
    let waited = next().await?.unwrap_or_default();
    ensure(waited.as_secs() < 15, || format!("others had to wait for the hung calls to end: {waited:?}"))
}

/// A creation that has waited for its turn longer than a call may take has its whole time from then on. The machine of one
/// that takes effect after it was given up waits for its VM, and takes it along.
#[tokio::test(flavor = "multi_thread")]
async fn creations_that_waited_long_for_their_turn_leave_no_vm_behind() -> TestResult {
    const HUNG: usize = 200;
    const PLACES: usize = 50;
    const LATE: usize = 5;
    let flags = ["--provider-concurrency=50"];
    let world = World::builder("turns").manager_flags(flags).start().await?;
    let of_pool = |pool: &str, effect| {
        FaultOrder::always(FaultOperation::Create, effect).on_machine(format!("{}-{pool}-*", world.namespace()))
    };
    // Some of those that hang have made their VMs.
    world.cloud().fault(&of_pool("a", Effect::Hang { applied: true }).times(20)).await?;
    world.cloud().fault(&of_pool("a", Effect::Hang { applied: false })).await?;
    // The call ends at once, and takes effect while a call of the driver may last.
    let late = Effect::ApplyLate { seconds: 28.0, code: Code::DeadlineExceeded };
    world.cloud().fault(&of_pool("b", late)).await?;
    world.apply_class("small").await?;
    world.apply(&world.pool("a", u32::try_from(HUNG)?)).await?;
    world.wait_for("all places to be taken", async || Ok(struck(&world).await?.len() >= PLACES)).await?;
    world.wait_for_machines("all that will hang", |machines| machines.len() == HUNG).await?;
    world.apply(&world.pool("b", u32::try_from(LATE)?)).await?;
    let postponed = async || Ok(of_kind(&world, EventKind::CreatePostponed).await?.len() == LATE);
    world.wait_for("the late creations to have their turn", postponed).await?;

    world.cloud().clear_faults().await?;
    world.scale("b", 0).await?;
    world.scale("a", 10).await?;
    let made = async || Ok(late_vms(&world, EventKind::CreateAccepted).await? == LATE);
    world.wait_for("the late VMs to come", made).await?;
    let gone = async || Ok(late_vms(&world, EventKind::VmGone).await? == LATE);
    world.wait_for("the late VMs to go", gone).await?;
    counts_are(&world, 10).await?;
    world.scale("b", 3).await?;
    counts_are(&world, 13).await?;
    world.end().await
}

/// Waits until so many machines run, and checks that nothing else is there.
async fn counts_are(world: &World, count: usize) -> TestResult {
    let machines: BTreeSet<_> = world.wait_for_running(count).await?.into_keys().collect();
    let vms: BTreeSet<_> = world.vms().await?.into_iter().map(|vm| vm.name).collect();
    let nodes: BTreeSet<_> = world.nodes().current().into_keys().collect();
    ensure(machines == vms && machines == nodes, || format!("machines {machines:?}, VMs {vms:?}, nodes {nodes:?}"))
}

/// The machines of whose VMs something was noted.
async fn of_kind(world: &World, kind: EventKind) -> TestResult<BTreeSet<String>> {
    let events = world.cloud().events(0).await?;
    Ok(events.into_iter().filter(|event| event.kind == kind).filter_map(|event| event.name).collect())
}

/// Of how many machines whose creation was postponed this was noted.
async fn late_vms(world: &World, kind: EventKind) -> TestResult<usize> {
    let late = of_kind(world, EventKind::CreatePostponed).await?;
    Ok(of_kind(world, kind).await?.intersection(&late).count())
}

/// The machines that a fault has struck.
async fn struck(world: &World) -> TestResult<BTreeSet<String>> {
    of_kind(world, EventKind::FaultStruck).await
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_that_show_late_are_neither_doubled_nor_lost() -> TestResult {
    let world = World::builder("late").cloud_flags(["--visible-after-seconds=3"]).start().await?;
    world.apply_class("small").await?;
    world.apply(&world.pool("a", 3)).await?;
    world.wait_for_running(3).await?;
    assert_eq!(world.cloud().stats().await?.created, 3);
    world.scale("a", 0).await?;
    world.wait_for_nothing().await?;
    world.end().await
}

/// The machine is deleted while nobody knows of its VM, which exists and does not show yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_nobody_was_told_of_goes_with_its_machine() -> TestResult {
    let world = World::builder("unheard").cloud_flags(["--visible-after-seconds=2"]).start().await?;
    let lost = Effect::Cut { applied: true };
    world.cloud().fault(&FaultOrder::always(FaultOperation::Create, lost)).await?;
    world.apply_class("small").await?;
    world.apply(&world.pool("a", 1)).await?;
    world.wait_for("the VM to be made", async || Ok(world.cloud().stats().await?.created == 1)).await?;
    world.scale("a", 0).await?;
    world.wait_for_nothing().await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exhausted_quota_is_told_and_others_go_on() -> TestResult {
    let world = World::builder("quota").manager_flags(["--resource-exhausted-retry=2s"]).start().await?;
    world.cloud().set_quota(Some(2)).await?;
    world.apply_class("small").await?;
    world.apply(&world.pool("a", 3)).await?;
    world
        .wait_for_machines("two to run and one to say that the quota is used up", |machines| {
            let exhausted = |machine: &nodewright_api::Machine| {
                let operation = machine.status.as_ref().map(|status| status.last_operation.error_code.as_str());
                *machine.phase() == MachinePhase::CrashLoopBackOff && operation == Some("ResourceExhausted")
            };
            machines.values().filter(|machine| waits::is_running(machine)).count() == 2
                && machines.values().filter(|machine| exhausted(machine)).count() == 1
        })
        .await?;
    let names: Vec<_> = world.machines().current().values().map(|machine| machine.name_any()).collect();
    assert_eq!(names.len(), 3);
    world.cloud().set_quota(None).await?;
    world.wait_for_running(3).await?;
    assert_eq!(world.machines().current().into_keys().collect::<Vec<_>>(), names, "nothing was replaced");
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cloud_that_is_away_for_a_moment_does_no_harm() -> TestResult {
    let world = World::builder("away").cloud_flags(["--create-latency-ms=100"]).start().await?;
    world.apply_class("small").await?;
    world.apply(&world.pool("a", 6)).await?;
    world.wait_for("the first VM", async || Ok(world.cloud().stats().await?.created >= 1)).await?;
    world.cloud_process().await.crash_and_restart()?;
    world.wait_for_running(6).await?;
    assert_eq!(world.cloud().stats().await?.created, 6);
    world.scale("a", 0).await?;
    world.wait_for_machines("a machine to go", |all| all.len() < 6).await?;
    world.cloud_process().await.crash_and_restart()?;
    world.wait_for_nothing().await?;
    world.end().await
}
