//! EC2, driver and manager.

use std::{sync::Arc, time::Duration};

use nodewright_e2e_lab::{
    cloud::DriverProgram,
    devcluster::ManagerProcess,
    ec2::{Account, Ec2Options, Ec2Processes, Moto},
    process::{Process, Supervisor},
};
use nodewright_e2e_scenarios::{Environment, TestResult, ensure, objects::ENVIRONMENT_LABEL};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use crate::moments::Victim;

/// Whose nodes the cluster has.
static NODES: Mutex<()> = Mutex::const_new(());

/// What EC2 does besides: a new VM does not show for three seconds, four VMs may be made or ended in a second, and of a hundred
/// requests six are carried out and not answered, or answered when nobody waits any more.
const FAULTS: [&str; 5] =
    ["--hidden-seconds=3", "--changes-per-second=4", "--lost=0.03", "--late=0.03", "--late-seconds=6"];
/// The driver gives a request up before a late answer comes, and knows for how long EC2 may hide a VM.
const DRIVER_FLAGS: [&str; 2] = ["--request-timeout=4", "--consistency=10"];
const MANAGER_FLAGS: [&str; 3] =
    ["--leader-elect-lease-duration=6s", "--leader-elect-renew-deadline=5s", "--leader-elect-retry-period=500ms"];
/// Time between two looks at a process that starts.
const LOOK: Duration = Duration::from_millis(20);

/// Waits until no other test has nodes. Each has an account of its own, and EC2 gives the same addresses in each: the nodes would have the
/// same names.
pub(crate) async fn nodes_alone() -> MutexGuard<'static, ()> {
    NODES.lock().await
}

/// The processes that are killed.
pub(crate) struct Processes {
    manager: ManagerProcess,
    driver: DriverProgram,
    ec2: Ec2Processes,
    moto: Moto,
}

impl Processes {
    /// Starts all, EC2 with faults of this seed.
    pub(crate) async fn start(env: &Environment, seed: u64) -> TestResult<Self> {
        let mut flags = FAULTS.map(str::to_owned).to_vec();
        flags.push(format!("--seed={seed}"));
        Self::start_with(env, flags, &[]).await
    }

    /// Starts all, with these flags of EC2 and of the manager.
    pub(crate) async fn start_with(
        env: &Environment,
        mut flags: Vec<String>,
        manager_flags: &[&str],
    ) -> TestResult<Self> {
        let supervisor = Arc::new(Supervisor::start(&[], None)?);
        let describe = |name: &str, program, arguments: Vec<String>| {
            Process::new(&supervisor, name, program, arguments, env.log(name))
        };
        flags.push(format!("--node-label={ENVIRONMENT_LABEL}={}", env.namespace()));
        flags.extend(["--lease-seconds=2", "--never-register-again"].map(str::to_owned));
        let options = Ec2Options { kubeconfig: Some(env.target().kubeconfig().to_owned()), flags };
        let ec2 = Ec2Processes::start(describe, &options).await?;
        let driver = ec2.driver(env.directory(), &DRIVER_FLAGS)?;
        let mut flags: Vec<_> = MANAGER_FLAGS.iter().chain(manager_flags).map(|flag| (*flag).to_owned()).collect();
        flags.push(format!("--driver={}", driver.path().display()));
        let manager = ManagerProcess::start(env.manager_options("manager", false, &flags)).await?;
        let moto = ec2.moto().clone();
        Ok(Self { manager, driver, ec2, moto })
    }

    /// EC2 past the proxy.
    pub(crate) fn moto(&self) -> &Moto {
        &self.moto
    }

    pub(crate) fn account(&self) -> &Account {
        self.ec2.account()
    }

    pub(crate) fn check(&mut self) -> TestResult {
        Ok(self.manager.check()?)
    }

    /// Kills a process, and returns when there is another one in its place.
    pub(crate) async fn kill_9(&mut self, env: &Environment, victim: Victim) -> TestResult {
        match victim {
            Victim::Manager => {
                self.manager.kill_9();
                self.manager.start_again().await?;
                self.until_there_is_a_driver(env, None).await
            }
            Victim::Driver => {
                let before = self.driver.pid();
                ensure(self.driver.kill_9(), || "there is no driver to kill".to_owned())?;
                self.until_there_is_a_driver(env, before).await
            }
            Victim::Proxy => Ok(self.ec2.crash_and_restart_proxy().await?),
        }
    }

    /// Waits until a driver other than `before` runs, and the manager reaches it.
    async fn until_there_is_a_driver(&self, env: &Environment, before: Option<rustix::process::Pid>) -> TestResult {
        let started = async {
            loop {
                let is_new = self.driver.pid().is_some_and(|pid| Some(pid) != before);
                if is_new && self.manager.answer("/readyz/driver").await.is_ok_and(|(code, _)| code == 200) {
                    return;
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        env.in_time("another driver", started).await
    }
}

/// A class whose VMs are EC2's, and its Secret.
pub(crate) fn class(env: &Environment, account: &Account, name: &str, machine_type: &str) -> [Value; 2] {
    let mut spec = account.provider_spec(env.namespace());
    spec["machineType"] = machine_type.into();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": Account::secret(),
    });
    let class = json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass", "metadata": {"name": name},
        "provider": "AWS", "providerSpec": spec, "secretRef": {"name": name, "namespace": env.namespace()},
    });
    [secret, class]
}
