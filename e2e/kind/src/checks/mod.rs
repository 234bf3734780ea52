//! The checks, in the order in which they are made.

mod driver;
mod installed;
mod machines;

use std::{pin::Pin, time::Instant};

use nodewright_e2e_lab::control_plane::testing::TestResult;

use crate::{
    cluster::{Cluster, NAMESPACE},
    installation,
};

type Check = (&'static str, fn(&Cluster) -> Pin<Box<dyn Future<Output = TestResult> + '_>>);

macro_rules! checks {
    ($($name:expr => $check:path,)*) => { [$(($name, |cluster| Box::pin($check(cluster)))),*] };
}

const CHECKS: [Check; 16] = checks! {
    "one Pod leads, and both are ready" => installed::one_leads,
    "webhooks fill in defaults and refuse what is wrong" => installed::webhooks_answer,
    "metrics are for who may read them" => installed::metrics_are_authorized,
    "a leader that is killed is followed" => installed::killed_leader_is_followed,
    "a disruption budget keeps one Pod" => installed::budget_keeps_one,
    "new Pods leave no gap" => installed::restarted,
    "the driver keeps its contract" => driver::contract,
    "machines join and run Pods" => machines::join_and_run_pods,
    "a machine that is off and on again stays" => machines::power_cycle,
    "a machine that is off is replaced" => machines::power_off,
    "a machine whose Node is deleted is replaced" => machines::node_deleted,
    "a roll keeps the application available" => machines::roll,
    "a smaller pool drains within the budget" => machines::scale_down,
    "machines are made while the leader is killed" => machines::leader_killed,
    "nothing is left of a deleted pool" => machines::deleted,
    "the logs have no warning" => installed::no_warnings,
};

/// Installs `config/cluster` and `config/kind`.
pub(crate) async fn install(cluster: &Cluster) -> TestResult {
    let folder = nodewright_e2e_lab::process::repository().join("config/cluster");
    cluster.kubectl(&format!("apply --server-side --validate=strict -k {}", folder.display())).await?;
    report("config/kind is installed", installation::apply(cluster, "kind")).await
}

/// Makes the checks whose names contain this text.
pub(crate) async fn run(cluster: &Cluster, only: &str) -> TestResult {
    for (name, check) in CHECKS.into_iter().filter(|(name, _)| name.contains(only)) {
        report(name, check(cluster)).await?;
    }
    Ok(())
}

/// Uninstalls everything as docs/tasks/uninstall.md says, and checks that nothing is left.
pub(crate) async fn uninstall(cluster: &Cluster) -> TestResult {
    report("nothing is left of Nodewright", async {
        let config = nodewright_e2e_lab::process::repository().join("config");
        let objects = "machinedeployments,machinesets,machines,machineclasses";
        cluster.kubectl(&format!("delete --namespace={NAMESPACE} --timeout=3m {objects} --all")).await?;
        cluster
            .wait_for("nothing is in use", async || {
                let used = cluster.kubectl("get namespaces --selector=nodewright.dev/in-use --output=name").await?;
                Ok(used.trim().is_empty().then_some(()))
            })
            .await?;
        cluster.kubectl(&format!("delete --wait=true --timeout=3m -k {}", config.join("kind").display())).await?;
        cluster.kubectl(&format!("delete --timeout=3m -k {}", config.join("crd").display())).await?;
        let guard = config.join("guard").display().to_string();
        cluster.kubectl(&format!("patch -k {guard} --type=merge -p {{\"metadata\":{{\"finalizers\":null}}}}")).await?;
        cluster.kubectl(&format!("delete --timeout=3m -k {guard}")).await?;
        installation::nothing_left(cluster).await?;
        cluster.kubectl(&format!("wait --for=delete namespace/{NAMESPACE} --timeout=1m")).await?;
        Ok(())
    })
    .await
}

async fn report(name: &str, check: impl Future<Output = TestResult>) -> TestResult {
    let since = Instant::now();
    let result = check.await;
    let verdict = if result.is_ok() { "ok" } else { "FAILED" };
    println!("{verdict:<8}{name} ({:.1} s)", since.elapsed().as_secs_f64());
    result
}
