//! Two managers: one leads, the other takes over.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use nodewright_e2e_lab::{
    control_plane::{
        ControlPlane,
        audit::{AuditLog, Entry},
    },
    devcluster::{ManagerOptions, ManagerProcess},
};
use nodewright_e2e_scenarios::{Environment, TestResult, ensure, skip_on_external_cluster};
use tokio::time::Instant;

const LEASE: Duration = Duration::from_secs(6);
const RETRY: Duration = Duration::from_millis(500);
/// The slack for a busy computer: the standby's requests, our own polls.
const SLACK: Duration = Duration::from_secs(3);
const FLAGS: [&str; 3] =
    ["--leader-elect-lease-duration=6s", "--leader-elect-renew-deadline=5s", "--leader-elect-retry-period=500ms"];

#[tokio::test(flavor = "multi_thread")]
async fn a_second_manager_stands_by_and_takes_over() -> TestResult {
    let env = Environment::builder("leaders").manager_flags(FLAGS).start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 2)).await?;
    env.wait_for_running(2).await?;
    let first = holder(&env).await?;

    let flags = FLAGS.map(str::to_owned);
    let mut standby = ManagerProcess::start(env.manager_options("standby", false, &flags)).await?;
    env.scale("a", 3).await?;
    env.wait_for_running(3).await?;
    assert_eq!(holder(&env).await?, first, "it stands by");

    let killed = Instant::now();
    env.manager().await?.kill_9();
    let both_change = async || Ok(holder(&env).await.is_ok_and(|now| now != first && !now.is_empty()));
    env.wait_for("the standby to hold both leases", both_change).await?;
    let waited = killed.elapsed();
    ensure(waited <= LEASE + RETRY + SLACK, || format!("it took over after {waited:?}"))?;
    let second = holder(&env).await?;
    env.scale("a", 1).await?;
    env.wait_for_running(1).await?;

    // A terminated manager releases its leases: no other manager must wait for their expiry.
    let status = standby.terminate().await?;
    ensure(status.is_some_and(|status| status.success()), || format!("asked to end, it ended with {status:?}"))?;
    ensure(holder(&env).await? != second, || "the leases were not given back".to_owned())?;
    env.manager().await?.start_again().await?;
    env.scale("a", 2).await?;
    env.wait_for_running(2).await?;
    assert_eq!(env.cloud().stats().await?.created, 4, "2, 1 more, and after the scale-down 1 again");
    env.end().await
}

/// How long the leader sleeps: much longer than its lease. [`SLEEP_VARIABLE`] overrides it, in seconds.
const SLEEP: Duration = Duration::from_secs(12);
const SLEEP_VARIABLE: &str = "NODEWRIGHT_E2E_SLEEP_SECONDS";
/// How long a process may take to exit after it has noticed that it lost leadership.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// The scheduler, a hypervisor or a full disk stops the leader in the middle of its work. Requests that it has sent are out;
/// after it wakes, it must start nothing new.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_sleeps_begins_nothing_when_it_wakes() -> TestResult {
    if skip_on_external_cluster("sleeper", "the audit log is not at hand") {
        return Ok(());
    }
    let env =
        Environment::builder("sleeper").cloud_flags(["--create-latency-ms=300"]).without_manager().start().await?;
    let Some(plane) = env.cluster().control_plane() else { return Ok(()) };
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 0)).await?;
    let (mut first, user) = named_manager(&env, plane, "first").await?;
    let leader = holder(&env).await?;
    let (mut second, _) = named_manager(&env, plane, "second").await?;

    env.scale("a", 12).await?;
    env.wait_for("creations under way", async || Ok(env.cloud().stats().await?.created >= 2)).await?;
    let asleep = Instant::now();
    first.signal("STOP")?;
    env.scale("a", 16).await?;
    let is_other = async || Ok(holder(&env).await.is_ok_and(|now| now != leader && !now.is_empty()));
    env.wait_for("the second to hold both leases", is_other).await?;
    let waited = asleep.elapsed();
    ensure(waited <= LEASE + RETRY + SLACK, || format!("it took over after {waited:?}"))?;
    env.wait_for_running(16).await?;
    let seconds = std::env::var(SLEEP_VARIABLE).ok().and_then(|text| text.parse().ok());
    tokio::time::sleep_until(asleep + seconds.map_or(SLEEP, Duration::from_secs)).await;

    // It wakes while there is work.
    let mut log = AuditLog::from_now(plane.audit_log())?;
    let calls = env.cloud().stats().await?.callers;
    env.scale("a", 20).await?;
    let woken = Timestamp::now();
    first.signal("CONT")?;
    let end = first.wait_for_end(END_TIMEOUT).await?;
    ensure(end.code().is_some_and(|code| code != 0), || format!("it ended with {end}"))?;
    env.wait_for_running(20).await?;
    second.check()?;

    // When this request is in the log, the log is complete up to here.
    env.requests().await?;
    let begun = |entry: &Entry| entry.user == user && entry.received >= woken && entry.is_write();
    let changes: Vec<_> = log.read()?.into_iter().filter(begun).collect();
    ensure(changes.is_empty(), || format!("when it woke it began something: {changes:#?}"))?;
    let stats = env.cloud().stats().await?;
    assert_eq!(stats.callers["first"], calls["first"], "it called the cloud when it woke");
    assert!(stats.callers["second"] > calls["second"], "its successor did the work");
    assert_eq!((stats.created, stats.deleted), (20, 0));
    assert_eq!((env.machines().born_since(0)?, env.machines().gone_since(0)?), (20, 0));
    env.end().await
}

/// Starts a manager with its own user name for the API server, and with its own name for the cloud. Returns both the process
/// and the user name.
async fn named_manager(env: &Environment, plane: &ControlPlane, name: &str) -> TestResult<(ManagerProcess, String)> {
    let user = format!("{name}-of-{}", env.namespace());
    let kubeconfig = plane.kubeconfig_for(&user, &["system:masters"])?;
    let options = ManagerOptions {
        control_kubeconfig: kubeconfig.clone(),
        target_kubeconfig: Some(kubeconfig),
        cloud_url: format!("{}/as/{name}", env.cloud().url()),
        ..env.manager_options(name, false, &FLAGS.map(str::to_owned))
    };
    Ok((ManagerProcess::start(options).await?, user))
}

/// The holder of both leases; an error if their holders differ.
async fn holder(env: &Environment) -> TestResult<String> {
    let leases: Api<Lease> = Api::namespaced(env.client(), env.namespace());
    let mut holders = BTreeSet::new();
    for name in ["machine-controller-manager", "machine-controller"] {
        let spec = leases.get(name).await?.spec.unwrap_or_default();
        holders.insert(spec.holder_identity.unwrap_or_default());
    }
    ensure(holders.len() == 1, || format!("the leases are held by {holders:?}"))?;
    Ok(holders.into_iter().next().unwrap_or_default())
}
