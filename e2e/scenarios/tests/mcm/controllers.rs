//! The processes of a scenario: ours, theirs, or one of each.

use std::fs;

use nodewright_e2e_lab::{
    control_plane::{ControlPlane, machine_controller_manager_crds},
    devcluster::{ManagerOptions, ManagerProcess, McmHalf, McmOptions, McmProcess},
};
use nodewright_e2e_scenarios::{Environment, Failure, TestResult};

/// Short Leases: the other side has to wait until the Lease of a killed one has expired. On a computer that also compiles, a
/// shorter one is lost.
const LEASES: [&str; 3] =
    ["--leader-elect-lease-duration=8s", "--leader-elect-renew-deadline=6s", "--leader-elect-retry-period=500ms"];
/// How often machine-controller-manager looks for sets with too many machines. Its own integration tests use this value.
const OVERSHOOTING: &str = "--machine-safety-overshooting-period=300ms";

/// Whose controllers they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Nodewright,
    Mcm,
}

impl Side {
    /// Whether it taints the Node of a failed machine that it preserves, and removes that taint. machine-controller-manager does
    /// since 0.63; up to 0.62, it cordons the Node, and does not know the taint.
    pub(crate) async fn taints_preserved_nodes(self) -> TestResult<bool> {
        if self == Self::Nodewright {
            return Ok(true);
        }
        Ok(minor_of_mcm().await? > 62)
    }
}

/// The second number of machine-controller-manager's version.
pub(crate) async fn minor_of_mcm() -> TestResult<u32> {
    // It is in the source tree of the CRDs, which may be another one than that of the pinned release.
    let version = fs::read_to_string(machine_controller_manager_crds().await?.join("../../VERSION"))?;
    let minor = version.trim().strip_prefix("v0.").and_then(|rest| rest.split('.').next());
    let minor = minor.ok_or_else(|| Failure::new(format!("the version {version} is not v0")))?;
    Ok(minor.parse::<u32>()?)
}

/// Running controllers. Dropping them kills them.
#[derive(Default)]
pub(crate) struct Controllers {
    ours: Vec<ManagerProcess>,
    theirs: Vec<McmProcess>,
}

impl Controllers {
    /// Starts all controllers of one side: Nodewright's as one process, machine-controller-manager's as two.
    pub(crate) async fn start(env: &Environment, side: Side) -> TestResult<Self> {
        match side {
            Side::Nodewright => {
                let mut controllers = Self::default();
                controllers.start_ours(env, "manager", "manager").await?;
                Ok(controllers)
            }
            Side::Mcm => Self::start_halves(env, Side::Mcm, Side::Mcm).await,
        }
    }

    /// Starts the controllers of deployments and sets of one side, and those of machines of one side.
    pub(crate) async fn start_halves(env: &Environment, sets: Side, machines: Side) -> TestResult<Self> {
        let mut controllers = Self::default();
        match sets {
            Side::Nodewright => controllers.start_ours(env, "mcm", "nodewright-mcm").await?,
            Side::Mcm => controllers.start_theirs(env, McmHalf::ControllerManager).await?,
        }
        match machines {
            Side::Nodewright => controllers.start_ours(env, "mc", "nodewright-mc").await?,
            Side::Mcm => controllers.start_theirs(env, McmHalf::Controller).await?,
        }
        Ok(controllers)
    }

    async fn start_ours(&mut self, env: &Environment, command: &str, name: &str) -> TestResult {
        let options = env.manager_options(name, false, &LEASES.map(str::to_owned));
        let options = ManagerOptions { command: command.to_owned(), ..options };
        self.ours.push(ManagerProcess::start(options).await?);
        Ok(())
    }

    async fn start_theirs(&mut self, env: &Environment, half: McmHalf) -> TestResult {
        self.theirs.push(McmProcess::start_on(plane(env)?, half, &mcm_options(env)).await?);
        Ok(())
    }

    /// The metrics of all processes as text.
    pub(crate) async fn metrics(&self) -> TestResult<String> {
        let mut all = String::new();
        for ours in &self.ours {
            all.push_str(&ours.metrics().await?);
        }
        for theirs in &self.theirs {
            all.push_str(&theirs.metrics().await?);
        }
        Ok(all)
    }

    /// Fails if a process ended by itself.
    pub(crate) fn check(&mut self) -> TestResult {
        self.ours.iter_mut().try_for_each(ManagerProcess::check)?;
        Ok(self.theirs.iter_mut().try_for_each(McmProcess::check)?)
    }

    /// Kills all processes (SIGKILL), and waits for their end.
    pub(crate) fn kill_9(mut self) {
        self.ours.iter_mut().for_each(ManagerProcess::kill_9);
        self.theirs.iter_mut().for_each(McmProcess::kill_9);
    }
}

fn plane(env: &Environment) -> TestResult<&ControlPlane> {
    env.cluster().control_plane().ok_or_else(|| Failure::new("machine-controller-manager needs a local control plane"))
}

fn mcm_options(env: &Environment) -> McmOptions {
    McmOptions {
        namespace: env.namespace().to_owned(),
        flags: LEASES.map(str::to_owned).to_vec(),
        controller_manager_flags: vec![OVERSHOOTING.to_owned()],
        logs: Some(env.directory().to_owned()),
        ..McmOptions::new(env.cluster().kubeconfig(), env.cloud().url())
    }
}
