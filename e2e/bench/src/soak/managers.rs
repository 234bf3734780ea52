//! Two managers, one of which leads.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};

use nodewright_e2e_devcluster::{ManagerProcess, NAMESPACE};

use crate::{error::BenchError, measure::Measured};

/// The leases of a manager.
const LEASES: [&str; 2] = ["machine-controller-manager", "machine-controller"];
/// Between two attempts to start a manager that ends by itself: what a kubelet would do, without its back-off.
const PAUSE: Duration = Duration::from_secs(5);

/// The manager of the set, and a second one beside it, as two replicas of a Deployment.
pub(crate) struct Managers {
    second: ManagerProcess,
    revived: Option<Instant>,
}

/// Which of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    First,
    Second,
}

impl Managers {
    /// Starts the second one.
    pub(crate) async fn start(measured: &mut Measured) -> Result<Self, BenchError> {
        let mut options = measured.manager().options().clone();
        "manager-2".clone_into(&mut options.name);
        // One registers the webhooks, by its own address.
        let second = ManagerProcess::start_on(measured.control_plane(), options.without_webhooks()).await?;
        Ok(Self { second, revived: None })
    }

    pub(crate) fn get<'a>(&'a mut self, which: Which, measured: &'a mut Measured) -> &'a mut ManagerProcess {
        match which {
            Which::First => measured.manager(),
            Which::Second => &mut self.second,
        }
    }

    /// Starts again what has ended by itself: a leader does that when it cannot renew its lease.
    pub(crate) fn revive(&mut self, measured: &mut Measured, mut say: impl FnMut(String)) -> Result<(), BenchError> {
        if self.revived.is_some_and(|at| at.elapsed() < PAUSE) {
            return Ok(());
        }
        for which in [Which::First, Which::Second] {
            let manager = self.get(which, measured);
            if let Some(status) = manager.ended() {
                let name = manager.options().name.clone();
                manager.spawn_again()?;
                self.revived = Some(Instant::now());
                say(format!("{name} ended with {status}, and was started again"));
            }
        }
        Ok(())
    }

    /// Asks the second one to end.
    pub(crate) async fn stop(mut self) -> Result<(), BenchError> {
        self.second.terminate().await?;
        Ok(())
    }
}

/// Who holds the leases and has renewed them since then, if one does, and it can be known.
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
