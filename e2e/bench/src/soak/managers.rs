//! Two managers, one of which leads.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};

use nodewright_e2e_lab::devcluster::{ManagerProcess, NAMESPACE};

use crate::{error::BenchError, measure::Measured};

/// The Leases of a manager.
const LEASES: [&str; 2] = ["machine-controller-manager", "machine-controller"];
/// Time between two restarts of a manager that ended. A kubelet would back off longer.
const RESTART_INTERVAL: Duration = Duration::from_secs(5);

/// The manager of the devcluster, and a second one, like two replicas of a Deployment.
pub(crate) struct Managers {
    second: ManagerProcess,
    restarted: Option<Instant>,
}

/// One of the managers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    First,
    Second,
}

impl Managers {
    /// Starts the second manager.
    pub(crate) async fn start(measured: &mut Measured) -> Result<Self, BenchError> {
        let mut options = measured.manager().options().clone();
        "manager-2".clone_into(&mut options.name);
        // Only one manager registers webhooks: the registration has its address.
        let second = ManagerProcess::start_on(measured.control_plane(), options.without_webhooks()).await?;
        Ok(Self { second, restarted: None })
    }

    pub(crate) fn get<'a>(&'a mut self, which: Which, measured: &'a mut Measured) -> &'a mut ManagerProcess {
        match which {
            Which::First => measured.manager(),
            Which::Second => &mut self.second,
        }
    }

    /// Starts managers that ended by themselves again. A leader ends when it cannot renew its Leases.
    pub(crate) fn restart_ended(
        &mut self,
        measured: &mut Measured,
        mut report: impl FnMut(String),
    ) -> Result<(), BenchError> {
        if self.restarted.is_some_and(|at| at.elapsed() < RESTART_INTERVAL) {
            return Ok(());
        }
        for which in [Which::First, Which::Second] {
            let manager = self.get(which, measured);
            if let Some(status) = manager.ended() {
                let name = manager.options().name.clone();
                manager.spawn_again()?;
                self.restarted = Some(Instant::now());
                report(format!("{name} ended with {status}, and was started again"));
            }
        }
        Ok(())
    }

    /// Ends the second manager.
    pub(crate) async fn stop(mut self) -> Result<(), BenchError> {
        self.second.terminate().await?;
        Ok(())
    }
}

/// The holder of all Leases, if one manager holds them and has renewed them since then. `None` if that is not known.
pub(crate) async fn holder(client: Client, since: Timestamp) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(client, NAMESPACE);
    let mut holders = Vec::new();
    for name in LEASES {
        let lease = leases.get(name).await.ok()?.spec?;
        lease.renew_time.filter(|renewed| renewed.0 >= since)?;
        holders.push(lease.holder_identity?);
    }
    holders.dedup();
    holders.pop().filter(|holder| holders.is_empty() && !holder.is_empty())
}
