//! The control plane is unreachable for a while. `health.rs` tests that no health is evaluated before a heartbeat that is newer
//! than the manager's start, with nodes that were silent before it led.

use std::time::Duration;

use kube::ResourceExt;
use nodewright_api::conditions::machine::WAITING;
use nodewright_e2e_lab::{
    control_plane::{Component, ControlPlane},
    devcluster::ManagerProcess,
};
use nodewright_e2e_scenarios::{Environment, TestResult, clusters, ensure, skip_on_external_cluster};
use tokio::time::Instant;

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_that_is_killed_and_comes_back_costs_no_machine() -> TestResult {
    if skip_on_external_cluster("outages", "the API server is not ours to kill") {
        return Ok(());
    }
    let env = Environment::builder("outage").manager_flags(LONG_LEASE).with_own_plane().start().await?;
    let Some(plane) = env.cluster().control_plane() else { return Ok(()) };
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 2)).await?;
    env.wait_for_running(2).await?;

    for component in [Component::ApiServer, Component::Etcd] {
        let before = env.machines().current().len();
        let wanted = before + 6;
        env.scale("a", u32::try_from(wanted)?).await?;
        let some = |changes: &[nodewright_e2e_scenarios::Change<nodewright_api::Machine>]| {
            let names: std::collections::BTreeSet<_> = changes.iter().map(|change| change.object.name_any()).collect();
            names.len() > before
        };
        env.in_time("the first of the new machines", env.machines().until(some)).await?;
        plane.stop(component)?;
        // Long enough for requests to fail and be retried.
        tokio::time::sleep(Duration::from_secs(3)).await;
        plane.start_again(component).await?;
        env.wait_for_running(wanted).await?;
        let created = usize::try_from(env.cloud().stats().await?.created)?;
        ensure(created == wanted, || format!("{created} VMs were made for {wanted} machines"))?;
    }
    let machines = env.machines().current().len();
    assert!(env.machines().seen().iter().all(|change| !change.gone), "none of {machines} was replaced");
    env.scale("a", 0).await?;
    env.wait_for_nothing().await?;
    env.end().await
}

/// Leases that outlive the outage, however long the API server takes to start on a busy computer: the outages below lose
/// theirs.
const LONG_LEASE: [&str; 2] = ["--leader-elect-lease-duration=180s", "--leader-elect-renew-deadline=150s"];
const WHY: &str = "its control plane is not ours to break";
/// Leases so short that every outage here loses them.
const ELECTED: [&str; 3] =
    ["--leader-elect-lease-duration=6s", "--leader-elect-renew-deadline=4s", "--leader-elect-retry-period=1s"];
const ALONE: [&str; 1] = ["--leader-elect=false"];
const FEW: usize = 2;
const MANY: usize = 8;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-slow"]
async fn a_minute_without_the_api_server_is_waited_for() -> TestResult {
    if skip_on_external_cluster("a minute", WHY) {
        return Ok(());
    }
    let outage = Outage { component: Component::ApiServer, lasts: Duration::from_mins(1) };
    Box::pin(outage.run("minute")).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-slow"]
async fn forty_seconds_with_etcd_frozen_are_waited_for() -> TestResult {
    if skip_on_external_cluster("frozen", WHY) {
        return Ok(());
    }
    let outage = Outage { component: Component::Etcd, lasts: Duration::from_secs(40) };
    Box::pin(outage.run("frozen")).await
}

/// An outage of a component that everything depends on: the API server is killed, or etcd is frozen.
#[derive(Clone, Copy)]
struct Outage {
    component: Component,
    lasts: Duration,
}

impl Outage {
    /// Two managers on one control plane survive it: one without leases continues, and one with leases loses them, exits, and
    /// is started again while the API server is still unreachable.
    async fn run(self, name: &str) -> TestResult {
        let cluster = clusters::exclusive().await?;
        let Some(plane) = cluster.control_plane() else { return Ok(()) };
        let env = async |kind: &str, flags: &[&'static str]| {
            let builder = Environment::builder(&format!("{name}-{kind}")).on(&cluster);
            let env = flags.iter().fold(builder, |builder, flag| builder.manager_flags([*flag])).start().await?;
            env.apply_class("small").await?;
            env.apply(&env.pool("a", u32::try_from(FEW)?)).await?;
            env.wait_for_running(FEW).await?;
            TestResult::Ok(env)
        };
        let (alone, elected) = tokio::try_join!(env("alone", &ALONE), env("elected", &ELECTED))?;
        tokio::try_join!(begin_work(&alone), begin_work(&elected))?;

        let mends = Instant::now() + self.lasts;
        self.begin(plane)?;
        tokio::try_join!(goes_on(&alone, mends), ends_and_waits(&elected, self.component, mends))?;
        self.end(plane).await?;
        tokio::try_join!(has_lost_nothing(&alone), has_lost_nothing(&elected))?;
        tokio::try_join!(alone.end(), elected.end())?;
        Ok(())
    }

    fn begin(self, plane: &ControlPlane) -> TestResult {
        match self.component {
            Component::Etcd => plane.pause(Component::Etcd)?,
            other => plane.stop(other)?,
        }
        Ok(())
    }

    async fn end(self, plane: &ControlPlane) -> TestResult {
        match self.component {
            Component::Etcd => {
                plane.unpause(Component::Etcd)?;
                plane.wait_until_ready(Component::Etcd).await?;
            }
            other => plane.start_again(other).await?,
        }
        Ok(())
    }
}

/// Requests more machines, and waits until the first of them are being created.
async fn begin_work(env: &Environment) -> TestResult {
    env.scale("a", u32::try_from(MANY)?).await?;
    env.wait_for("the first of the new machines", async || Ok(env.machines().current().len() > FEW)).await
}

/// Without a lease to lose, the manager continues: alive, and not ready while it is blocked.
async fn goes_on(env: &Environment, until: Instant) -> TestResult {
    let mut manager = env.manager().await?;
    let pid = manager.pid();
    stays_alive_and_unready(&mut manager, until).await?;
    assert_eq!(manager.pid(), pid);
    Ok(())
}

/// With leases the manager exits, because another one may lead. The next one waits for the API server, however long.
async fn ends_and_waits(env: &Environment, away: Component, until: Instant) -> TestResult {
    let mut manager = env.manager().await?;
    let status = manager.wait_for_end(until - Instant::now()).await?;
    ensure(status.code().is_some_and(|code| code != 0), || format!("it lost its leases and ended with {status}"))?;
    manager.spawn_again()?;
    let pid = manager.pid();
    stays_alive_and_unready(&mut manager, until).await?;
    assert_eq!(manager.pid(), pid, "it waits and does not end");
    let log = std::fs::read_to_string(env.log("manager"))?;
    // With etcd frozen, the API server still answers discovery; the manager then waits for the lists.
    let reported =
        away != Component::ApiServer || log.contains("waiting: failed to reach the API server of the control");
    ensure(reported, || format!("it does not say what it waits for:\n{log}"))
}

/// Polls the endpoints until then: `/healthz` succeeds all the time, and `/readyz` fails once the manager has noticed.
async fn stays_alive_and_unready(manager: &mut ManagerProcess, until: Instant) -> TestResult {
    let mut unready = false;
    while Instant::now() < until {
        manager.check()?;
        // A process that was just started may not listen yet.
        if let Ok((code, text)) = manager.answer("/healthz").await {
            ensure(code == 200, || format!("/healthz answers {code}: {text}"))?;
        }
        if let Ok((code, text)) = manager.answer("/readyz").await {
            ensure(!unready || code != 200, || format!("/readyz became well while nothing was: {text}"))?;
            unready |= code != 200;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    ensure(unready, || "/readyz was well all the time".to_owned())
}

/// Earlier requests are completed, each exactly once, and new ones as well. The manager is the same process as before.
async fn has_lost_nothing(env: &Environment) -> TestResult {
    let pid = env.manager().await?.pid();
    env.wait_for("a manager that is ready", async || {
        Ok(env.manager().await?.answer("/readyz").await.is_ok_and(|(code, _)| code == 200))
    })
    .await?;
    env.wait_for_running(MANY).await?;
    env.scale("a", u32::try_from(MANY + 1)?).await?;
    env.wait_for_running(MANY + 1).await?;
    let stats = env.cloud().stats().await?;
    assert_eq!((stats.created, stats.deleted), (MANY as u64 + 1, 0));
    assert!(env.machines().seen().iter().all(|change| !change.gone), "a machine was replaced");
    assert_eq!(env.manager().await?.pid(), pid, "it was started once");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_whose_time_is_over_goes_on_while_the_target_cluster_is_away() -> TestResult {
    an_overdue_drain("overdue", Manager::Stays).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-slow"]
async fn a_manager_that_never_saw_the_target_cluster_goes_on_with_a_drain_whose_time_is_over() -> TestResult {
    an_overdue_drain("overdue-again", Manager::Restarts).await
}

#[derive(PartialEq)]
enum Manager {
    Stays,
    Restarts,
}

/// A drain ends at its limit, whatever the target cluster says: here it says nothing.
async fn an_overdue_drain(name: &str, manager: Manager) -> TestResult {
    if skip_on_external_cluster(name, "there is no second control plane to break") {
        return Ok(());
    }
    let target = clusters::exclusive().await?;
    let Some(plane) = target.control_plane() else { return Ok(()) };
    let env = Environment::builder(name).cloud_flags(["--delete-seconds=0"]).with_target(&target);
    let env = env.mostly_waiting().start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1).machine("drainTimeout", "5s")).await?;
    env.wait_for_running(1).await?;
    let (machine, id) = (env.only_machine()?, env.vms().await?.swap_remove(0).id);

    plane.stop(Component::ApiServer)?;
    let begun = Instant::now();
    env.kubectl(&format!("delete machine {} --wait=false", machine.name_any())).await?;
    if manager == Manager::Restarts {
        let mut running = env.manager().await?;
        running.kill_9();
        running.spawn_again()?;
    }
    if manager == Manager::Restarts {
        env.wait_for_machines("the machine to say what it waits for", |machines| {
            let waiting = machines.values().filter_map(|machine| machine.condition(WAITING));
            waiting.filter_map(|waiting| waiting.reason.as_deref()).any(|reason| reason == "ListingNodes")
        })
        .await?;
    }
    env.wait_for("the VM to go", async || Ok(env.vms().await?.iter().all(|vm| vm.id != id))).await?;
    let lasted = begun.elapsed();
    ensure(lasted > Duration::from_mins(1), || format!("the pods had {lasted:?} to leave"))?;
    ensure(env.machines().current().contains_key(&machine.name_any()), || {
        "its node is still to be deleted".to_owned()
    })?;

    plane.start_again(Component::ApiServer).await?;
    env.wait_for_machines("the machine to go", |machines| !machines.contains_key(&machine.name_any())).await?;
    env.wait_for_running(1).await?;
    ensure(env.nodes().current().len() == 1, || "a node has stayed behind".to_owned())?;
    env.end().await
}

/// A frozen API server takes connections and never answers: what became of the first write is not known.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_says_that_a_frozen_target_cluster_does_not_answer() -> TestResult {
    if skip_on_external_cluster("icy", "there is no second control plane to break") {
        return Ok(());
    }
    let target = clusters::exclusive().await?;
    let Some(plane) = target.control_plane() else { return Ok(()) };
    let env = Environment::builder("icy").cloud_flags(["--delete-seconds=0"]).with_target(&target);
    let env = env.mostly_waiting().start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for_running(1).await?;
    let machine = env.only_machine()?.name_any();

    plane.pause(Component::ApiServer)?;
    env.kubectl(&format!("delete machine {machine} --wait=false")).await?;
    env.wait_for_machines("the machine to say which request fails", |machines| {
        let drained = machines.get(&machine).and_then(|machine| machine.condition("Drained"));
        drained.is_some_and(|drained| drained.reason.as_deref() == Some("RequestFailed"))
    })
    .await?;
    plane.unpause(Component::ApiServer)?;
    env.wait_for_machines("the machine to go", |machines| !machines.contains_key(&machine)).await?;
    env.wait_for_running(1).await?;
    env.end().await
}

/// A kubelet cannot report to an API server that is away: who takes that for the death of its node replaces all machines.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-slow"]
async fn six_short_outages_cost_no_machine() -> TestResult {
    harmless("six", 6, Duration::from_secs(8)).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-slow"]
async fn ten_minutes_without_the_api_server_cost_no_machine() -> TestResult {
    harmless("ten-minutes", 1, Duration::from_mins(10)).await
}

/// The machines are to be replaced after half a minute without a report, and the API server is away again and again.
async fn harmless(name: &str, times: u32, lasts: Duration) -> TestResult {
    if skip_on_external_cluster(name, WHY) {
        return Ok(());
    }
    // Orphaned VMs are looked for all the time, also at once after a restart.
    let flags = crate::orphans::FLAGS;
    let env = Environment::builder(name).mostly_waiting().with_own_plane().manager_flags(flags).start().await?;
    let Some(plane) = env.cluster().control_plane() else { return Ok(()) };
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 5).machine("healthTimeout", "30s")).await?;
    env.wait_for_running(5).await?;
    for _ in 0..times {
        plane.stop(Component::ApiServer)?;
        tokio::time::sleep(lasts).await;
        plane.start_again(Component::ApiServer).await?;
        let mut manager = env.manager().await?;
        // As its kubelet would: without an API server it loses its Leases.
        if !manager.is_running() {
            manager.spawn_again()?;
        }
        drop(manager);
        env.wait_for("a manager that is ready", async || {
            Ok(env.manager().await?.answer("/readyz").await.is_ok_and(|(code, _)| code == 200))
        })
        .await?;
    }
    // A manager that starts while the API server is away knows no machine: it must not take all VMs for orphans.
    plane.stop(Component::ApiServer)?;
    let mut manager = env.manager().await?;
    manager.kill_9();
    manager.spawn_again()?;
    tokio::time::sleep(Duration::from_secs(8)).await;
    plane.start_again(Component::ApiServer).await?;
    if !manager.is_running() {
        manager.spawn_again()?;
    }
    drop(manager);
    crate::orphans::wait_for_lists(&env).await?;
    env.wait_for_running(5).await?;
    // It works, and has evaluated the machines since.
    env.scale("a", 6).await?;
    env.wait_for_running(6).await?;
    let stats = env.cloud().stats().await?;
    assert_eq!((stats.created, stats.deleted), (6, 0), "no VM was made or deleted because of an outage");
    assert!(env.machines().seen().iter().all(|change| !change.gone), "a machine was replaced");
    let reasons = env.kubectl("get events -o jsonpath={.items[*].reason}").await?;
    ensure(!reasons.contains("Froze"), || format!("a freeze was left behind: {reasons}"))?;
    env.end().await
}

/// Without the target's API server no node can join, and no health is evaluated; a VM that is wanted is made all the same.
#[tokio::test(flavor = "multi_thread")]
async fn while_the_target_is_away_nothing_is_evaluated_and_machines_are_made() -> TestResult {
    const TIMEOUT: Duration = Duration::from_secs(80);
    const FROZEN: &str = "mcm_machine_controller_frozen";
    if skip_on_external_cluster("unevaluated", "there is no second control plane to break") {
        return Ok(());
    }
    let target = clusters::exclusive().await?;
    let Some(plane) = target.control_plane() else { return Ok(()) };
    let env = Environment::builder("unevaluated").with_target(&target).mostly_waiting().start().await?;
    env.apply_class("small").await?;
    let pool = env.pool("a", 2).machine("healthTimeout", "5s");
    env.apply(&pool.machine("creationTimeout", format!("{}s", TIMEOUT.as_secs()))).await?;
    let first = env.wait_for_running(2).await?;
    ensure(env.metric(FROZEN).await? == Some(0.0), || "it is frozen from the start".to_owned())?;

    plane.stop(Component::ApiServer)?;
    env.scale("a", 3).await?;
    let made = Instant::now();
    env.wait_for("the VM of the new machine", async || Ok(env.vms().await?.len() == 3)).await?;
    env.wait_for("the metric to say so", async || Ok(env.metric(FROZEN).await? == Some(1.0))).await?;
    let is_reported =
        async || Ok(std::fs::read_to_string(env.log("manager"))?.contains("the API server is out of reach"));
    env.wait_for("the log to say so", is_reported).await?;
    let message = async || {
        let only =
            "get machinedeployments -o jsonpath={.items[*].status.conditions[?(@.type==\"Reconciling\")].message}";
        env.kubectl(only).await
    };
    let away = "the API server of the target cluster is out of reach";
    env.wait_for("the deployment that waits for it to say so", async || Ok(message().await?.contains(away))).await?;
    // The creation timeout of the new machine ends, and so would the health timeouts.
    tokio::time::sleep_until(made + TIMEOUT + Duration::from_secs(5)).await;
    let now = env.machines().current();
    let is_evaluated = |machine: &nodewright_api::Machine| ["Failed", "Unknown"].contains(&machine.phase().as_str());
    ensure(now.len() == 3 && !now.values().any(|machine| is_evaluated(machine)), || {
        format!("it has evaluated: {now:?}")
    })?;

    plane.start_again(Component::ApiServer).await?;
    env.wait_for("the metric to say that it is back", async || Ok(env.metric(FROZEN).await? == Some(0.0))).await?;
    let after = env.wait_for_running(3).await?;
    env.wait_for("the deployment to say no more", async || Ok(message().await?.trim().is_empty())).await?;
    ensure(first.keys().all(|name| after.contains_key(name)), || "a machine was replaced".to_owned())?;
    ensure(env.cloud().stats().await?.created == 3, || "a VM was made twice".to_owned())?;
    env.end().await
}
