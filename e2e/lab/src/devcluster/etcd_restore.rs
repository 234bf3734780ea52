//! etcd is set back to a copy of its data under a manager that runs.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use nodewright_api::{ConditionStatus, Machine, conditions::machine_deployment::STALLED};
use nodewright_e2e_cloud::VmState;

use crate::{
    control_plane::EtcdCopy,
    devcluster::{
        Devcluster, DevclusterOptions, NAMESPACE,
        machines::{machine_deployments, machines, wait_for_running},
    },
    process::with_causes,
};

/// Shorter timeouts than by default for Nodes that are gone, and longer ones for the Lease: the API server starts twice.
const FLAGS: [&str; 4] = [
    "--machine-health-timeout=20s",
    "--leader-elect-lease-duration=180s",
    "--leader-elect-renew-deadline=150s",
    "--provider-short-retry=1s",
];
/// Kubelets renew their Leases more often than by default, and are missed sooner.
const CLOUD_FLAGS: [&str; 1] = ["--lease-seconds=2"];
const NODE_GRACE: Duration = Duration::from_secs(16);
/// A Node is Unknown after the grace period, its Machine fails 20 s later, and its VM is replaced.
const TIMEOUT: Duration = Duration::from_mins(4);
const REWINDS: &str = "watch_rewinds_total";

/// Undoes a scale-down, and then a scale-up: Machines return whose VMs are gone, and VMs stay that no Machine knows. The
/// deployment must follow its restored spec each time. Returns what was measured; an error is harm.
pub async fn attack() -> Result<String, String> {
    let options = DevclusterOptions {
        manager_flags: FLAGS.map(str::to_owned).to_vec(),
        cloud_flags: CLOUD_FLAGS.map(str::to_owned).to_vec(),
        node_monitor_grace_period: Some(NODE_GRACE),
        ..DevclusterOptions::default()
    };
    let mut set = Devcluster::start(&options, |line| eprintln!("{line}")).await.map_err(text)?;
    let measured = restore_twice(&mut set).await;
    let measured = measured.map_err(|error| format!("{error}; the manager's log:\n{}", set.manager().log_tail()));
    set.stop().await.map_err(text)?;
    measured
}

async fn restore_twice(set: &mut Devcluster) -> Result<String, String> {
    set.apply_samples().await.map_err(text)?;
    running(set, 3).await?;
    scale(set, 4).await?;
    let smaller = undone_scale_down(set).await?;
    let larger = undone_scale_up(set).await?;
    let rewinds = rewinds(set).await?;
    if rewinds == 0 {
        return Err("no cache noticed that versions fell".to_owned());
    }
    if let Some(reason) = stalled(set).await? {
        return Err(format!("the deployment stays Stalled: {reason}"));
    }
    Ok(format!("{smaller}; {larger}; {rewinds} caches started over"))
}

/// From four machines to two, and back to four, of which two have no VM.
async fn undone_scale_down(set: &Devcluster) -> Result<String, String> {
    let copy = set.control_plane().copy_etcd("of-4").await.map_err(text)?;
    let kept = scale(set, 2).await?;
    set_back(set, &copy).await?;
    let begun = Instant::now();
    let after = running_with_vms(set, 4).await?;
    if !vms_of(&kept).is_subset(&vms_of(&after)) {
        return Err("a machine that ran was replaced".to_owned());
    }
    Ok(format!("4 machines within {} s after 2 of them had lost their VMs", begun.elapsed().as_secs()))
}

/// From four machines to six, back to four, and then to five, of which one takes its former VM.
async fn undone_scale_up(set: &Devcluster) -> Result<String, String> {
    let copy = set.control_plane().copy_etcd("of-4-again").await.map_err(text)?;
    let before = running(set, 4).await?;
    scale(set, 6).await?;
    let made = set.cloud().stats().await.map_err(text)?.created;
    set_back(set, &copy).await?;
    let begun = Instant::now();
    running(set, 4).await?;
    let after = scale(set, 5).await?;
    if !vms_of(&before).is_subset(&vms_of(&after)) {
        return Err("a machine that ran was replaced".to_owned());
    }
    let stats = set.cloud().stats().await.map_err(text)?;
    if (stats.created, stats.live) != (made, 6) {
        return Err(format!("{} VMs were made, and {} of 6 are left", stats.created - made, stats.live));
    }
    Ok(format!("a fifth within {} s with a VM that no machine knew, the other one kept", begun.elapsed().as_secs()))
}

/// Sets etcd back, and waits until the API server serves our kinds again.
async fn set_back(set: &Devcluster, copy: &EtcdCopy) -> Result<(), String> {
    set.control_plane().set_etcd_back(copy).await.map_err(text)?;
    let begun = Instant::now();
    loop {
        match machine_deployments(&set.client(), NAMESPACE).await.and(machines(&set.client(), NAMESPACE).await) {
            Ok(_) => return Ok(()),
            Err(error) if begun.elapsed() > TIMEOUT => return Err(text(error)),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn scale(set: &Devcluster, replicas: usize) -> Result<Vec<Machine>, String> {
    let replicas_flag = format!("--replicas={replicas}");
    set.control_plane().kubectl(["scale", "mcd/demo-pool", "-n", NAMESPACE, &replicas_flag]).await.map_err(text)?;
    running(set, replicas).await
}

async fn running(set: &Devcluster, count: usize) -> Result<Vec<Machine>, String> {
    match wait_for_running(&set.client(), NAMESPACE, count, TIMEOUT).await {
        Ok(machines) => Ok(machines),
        Err(error) => Err(format!("{error}; Stalled: {:?}", stalled(set).await?)),
    }
}

/// Waits until so many machines run, each with a VM that exists. A restored Machine without one says that it runs, at first.
async fn running_with_vms(set: &Devcluster, count: usize) -> Result<Vec<Machine>, String> {
    let begun = Instant::now();
    loop {
        let found = machines(&set.client(), NAMESPACE).await.map_err(text)?;
        let vms = set.cloud().vms().await.map_err(text)?;
        let live: BTreeSet<_> =
            vms.into_iter().filter(|vm| vm.state == VmState::Running).map(|vm| vm.provider_id).collect();
        if found.len() == count && vms_of(&found).is_subset(&live) && vms_of(&found).len() == count {
            return running(set, count).await;
        }
        if begun.elapsed() > TIMEOUT {
            return Err(format!("{count} machines have {} VMs after {TIMEOUT:?}", live.len()));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

fn vms_of(machines: &[Machine]) -> BTreeSet<String> {
    machines.iter().filter_map(|machine| machine.provider_id().map(str::to_owned)).collect()
}

/// The message of `Stalled`, if a deployment has it.
async fn stalled(set: &Devcluster) -> Result<Option<String>, String> {
    let deployments = machine_deployments(&set.client(), NAMESPACE).await.map_err(text)?;
    let stalled = deployments.iter().find_map(|deployment| deployment.condition(STALLED));
    Ok(stalled.filter(|stalled| stalled.status == ConditionStatus::True).map(|stalled| stalled.message.clone()))
}

/// How many caches have noticed that versions fell.
async fn rewinds(set: &mut Devcluster) -> Result<u64, String> {
    let metrics = set.manager().metrics().await.map_err(text)?;
    let values =
        metrics.lines().filter(|line| line.starts_with(REWINDS)).filter_map(|line| line.split(' ').next_back());
    Ok(values.filter_map(|value| value.parse::<u64>().ok()).sum())
}

fn text(error: impl std::error::Error) -> String {
    with_causes(&error)
}
