//! A cloud with typical faults: slow, silent, full.

use std::{collections::BTreeSet, time::Instant};

use kube::ResourceExt;
use nodewright_api::{Machine, MachinePhase};
use nodewright_e2e_cloud::{Code, Effect, EventKind, FaultOperation, FaultOrder};
use nodewright_e2e_scenarios::{Environment, TestResult, ensure, waits};

#[tokio::test(flavor = "multi_thread")]
async fn creations_that_are_answered_late_or_never_make_one_vm_each() -> TestResult {
    let env = Environment::start("answers").await?;
    for effect in [
        Effect::AnswerLate { seconds: 3.0 },
        Effect::Cut { applied: true },
        Effect::Cut { applied: false },
        Effect::Garbage,
        Effect::Hang { applied: true },
        Effect::Hang { applied: false },
    ] {
        env.cloud().fault(&FaultOrder::always(FaultOperation::Create, effect).times(1)).await?;
    }
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 8)).await?;
    env.wait_for_running(8).await?;
    assert_eq!(env.cloud().stats().await?.created, 8);
    assert!(env.cloud().faults().await?.is_empty(), "all have struck");

    for effect in [Effect::Cut { applied: true }, Effect::Cut { applied: false }, Effect::Garbage] {
        env.cloud().fault(&FaultOrder::always(FaultOperation::Delete, effect).times(1)).await?;
    }
    env.scale("a", 0).await?;
    env.wait_for_nothing().await?;
    env.end().await
}

/// Calls that hang block only their own machines: the others use the remaining slots.
#[tokio::test(flavor = "multi_thread")]
async fn hung_calls_block_their_own_machines_only() -> TestResult {
    const OTHERS: usize = 197;
    const HUNG: usize = 3;
    let flags = ["--provider-concurrency=6"];
    let env = Environment::builder("hung").without_kubelets().manager_flags(flags).start().await?;
    // Without end, so that retries hang as well.
    let of_hung = format!("{}-hung-*", env.namespace());
    let endless = FaultOrder::always(FaultOperation::Create, Effect::Hang { applied: false }).on_machine(of_hung);
    env.cloud().fault(&endless).await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("hung", u32::try_from(HUNG)?)).await?;
    env.wait_for("the calls to hang", async || Ok(struck(&env).await?.len() == HUNG)).await?;
    env.apply(&env.pool("a", u32::try_from(OTHERS)?)).await?;
    goes_on_beside(&env).await?;
    let has_vm = |machine: &Machine| machine.provider_id().is_some();
    let others = env
        .wait_for_machines("all others to have their VMs", |machines| {
            machines.len() == OTHERS + HUNG && machines.values().filter(|machine| has_vm(machine)).count() == OTHERS
        })
        .await?;
    let hung = struck(&env).await?;
    assert!(hung.len() == HUNG && hung.iter().all(|name| !has_vm(&others[name])), "they hang");
    env.wait_for("the metric to show that a call hangs", async || Ok(longest(&env).await? >= 5.0)).await?;

    env.cloud().clear_faults().await?;
    env.wait_for_machines("the late ones", |machines| machines.values().all(|machine| has_vm(machine))).await?;
    let stats = env.cloud().stats().await?;
    assert_eq!((stats.created, stats.deleted), ((OTHERS + HUNG) as u64, 0));
    assert_eq!((env.machines().born_since(0)?, env.machines().gone_since(0)?), (OTHERS + HUNG, 0));
    env.wait_for("no call to run", async || Ok(longest(&env).await? < 5.0)).await?;
    env.end().await
}

/// For how many seconds the longest creation has been running, as the metric shows it.
async fn longest(env: &Environment) -> TestResult<f64> {
    Ok(env.metric(r#"effects_longest_running_seconds{effect="create"}"#).await?.unwrap_or_default())
}

/// Waits until a creation was accepted while one that hangs had been running all the time.
async fn goes_on_beside(env: &Environment) -> TestResult {
    let accepted = async || {
        let events = env.cloud().events(0).await?;
        TestResult::Ok(events.iter().filter(|event| event.kind == EventKind::CreateAccepted).count())
    };
    let mut before = (Instant::now(), accepted().await?);
    env.wait_for("a creation beside those that hang", async || {
        let now = (Instant::now(), accepted().await?);
        // A call that has been running for longer ran at that time, too.
        let ran_since = longest(env).await? > before.0.elapsed().as_secs_f64();
        let (_, count) = std::mem::replace(&mut before, now);
        Ok(ran_since && now.1 > count)
    })
    .await
}

/// A creation that waited for its slot longer than a call may take still has its whole timeout. If a creation takes effect
/// after the timeout, its machine waits for the VM and deletes it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-slow"]
async fn creations_that_waited_long_for_their_turn_leave_no_vm_behind() -> TestResult {
    const HUNG: usize = 200;
    const PLACES: usize = 50;
    const LATE: usize = 5;
    let flags = ["--provider-concurrency=50"];
    let env = Environment::builder("turns").manager_flags(flags).start().await?;
    let of_pool = |pool: &str, effect| {
        FaultOrder::always(FaultOperation::Create, effect).on_machine(format!("{}-{pool}-*", env.namespace()))
    };
    // Some of the hanging calls have created their VMs.
    env.cloud().fault(&of_pool("a", Effect::Hang { applied: true }).times(20)).await?;
    env.cloud().fault(&of_pool("a", Effect::Hang { applied: false })).await?;
    // The call ends at once, and takes effect within the driver's call timeout.
    let late = Effect::ApplyLate { seconds: 28.0, code: Code::DeadlineExceeded };
    env.cloud().fault(&of_pool("b", late)).await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", u32::try_from(HUNG)?)).await?;
    env.wait_for("all places to be taken", async || Ok(struck(&env).await?.len() >= PLACES)).await?;
    env.wait_for_machines("all that will hang", |machines| machines.len() == HUNG).await?;
    env.apply(&env.pool("b", u32::try_from(LATE)?)).await?;
    let postponed = async || Ok(of_kind(&env, EventKind::CreatePostponed).await?.len() == LATE);
    env.wait_for("the late creations to have their turn", postponed).await?;

    env.cloud().clear_faults().await?;
    env.scale("b", 0).await?;
    env.scale("a", 10).await?;
    let made = async || Ok(late_vms(&env, EventKind::CreateAccepted).await? == LATE);
    env.wait_for("the late VMs to come", made).await?;
    let gone = async || Ok(late_vms(&env, EventKind::VmGone).await? == LATE);
    env.wait_for("the late VMs to go", gone).await?;
    counts_are(&env, 10).await?;
    env.scale("b", 3).await?;
    counts_are(&env, 13).await?;
    env.end().await
}

/// Waits until this many machines run, and checks that nothing else exists.
async fn counts_are(env: &Environment, count: usize) -> TestResult {
    let machines: BTreeSet<_> = env.wait_for_running(count).await?.into_keys().collect();
    let vms: BTreeSet<_> = env.vms().await?.into_iter().map(|vm| vm.name).collect();
    let nodes: BTreeSet<_> = env.nodes().current().into_keys().collect();
    ensure(machines == vms && machines == nodes, || format!("machines {machines:?}, VMs {vms:?}, nodes {nodes:?}"))
}

/// The machines whose VMs have an event of this kind.
async fn of_kind(env: &Environment, kind: EventKind) -> TestResult<BTreeSet<String>> {
    let events = env.cloud().events(0).await?;
    Ok(events.into_iter().filter(|event| event.kind == kind).filter_map(|event| event.name).collect())
}

/// The number of machines with a postponed creation and an event of this kind.
async fn late_vms(env: &Environment, kind: EventKind) -> TestResult<usize> {
    let late = of_kind(env, EventKind::CreatePostponed).await?;
    Ok(of_kind(env, kind).await?.intersection(&late).count())
}

/// The machines that a fault has struck.
async fn struck(env: &Environment) -> TestResult<BTreeSet<String>> {
    of_kind(env, EventKind::FaultStruck).await
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_that_show_late_are_neither_doubled_nor_lost() -> TestResult {
    let env = Environment::builder("late").cloud_flags(["--visible-after-seconds=3"]).start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 3)).await?;
    env.wait_for_running(3).await?;
    assert_eq!(env.cloud().stats().await?.created, 3);
    env.scale("a", 0).await?;
    env.wait_for_nothing().await?;
    env.end().await
}

/// The machine is deleted while the manager does not know of its VM, which exists but is not listed yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_nobody_knows_goes_with_its_machine() -> TestResult {
    let env = Environment::builder("unheard").cloud_flags(["--visible-after-seconds=2"]).start().await?;
    let lost = Effect::Cut { applied: true };
    env.cloud().fault(&FaultOrder::always(FaultOperation::Create, lost)).await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for("the VM to be made", async || Ok(env.cloud().stats().await?.created == 1)).await?;
    env.scale("a", 0).await?;
    env.wait_for_nothing().await?;
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exhausted_quota_is_reported_and_others_go_on() -> TestResult {
    let env = Environment::builder("quota").manager_flags(["--resource-exhausted-retry=2s"]).start().await?;
    env.cloud().set_quota(Some(2)).await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 3)).await?;
    env.wait_for_machines("two to run and one to say that the quota is used up", |machines| {
        let exhausted = |machine: &nodewright_api::Machine| {
            let operation = machine.status.as_ref().map(|status| status.last_operation.error_code.as_str());
            *machine.phase() == MachinePhase::CrashLoopBackOff && operation == Some("ResourceExhausted")
        };
        machines.values().filter(|machine| waits::is_running(machine)).count() == 2
            && machines.values().filter(|machine| exhausted(machine)).count() == 1
    })
    .await?;
    let names: Vec<_> = env.machines().current().values().map(|machine| machine.name_any()).collect();
    assert_eq!(names.len(), 3);
    env.cloud().set_quota(None).await?;
    env.wait_for_running(3).await?;
    assert_eq!(env.machines().current().into_keys().collect::<Vec<_>>(), names, "nothing was replaced");
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cloud_that_is_away_for_a_moment_does_no_harm() -> TestResult {
    let env = Environment::builder("away").cloud_flags(["--create-latency-ms=100"]).start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 6)).await?;
    env.wait_for("the first VM", async || Ok(env.cloud().stats().await?.created >= 1)).await?;
    env.cloud_process().await.crash_and_restart()?;
    env.wait_for_running(6).await?;
    assert_eq!(env.cloud().stats().await?.created, 6);
    env.scale("a", 0).await?;
    env.wait_for_machines("a machine to go", |all| all.len() < 6).await?;
    env.cloud_process().await.crash_and_restart()?;
    env.wait_for_nothing().await?;
    env.end().await
}
