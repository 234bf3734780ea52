//! A cloud in this process, without ports: for simulations on tokio's paused time, and for tests.

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use nodewright_runtime::leadership::Clock;
use nodewright_testing::stand_in;
use tokio_util::task::AbortOnDropHandle;

use super::{
    api::{Event, Failure, Fault, FaultOrder, KubeletOrder, Quota, Stats, Vm},
    clocked::Clocked,
    memory::{Memory, VmRecord},
    nodes::Nodes,
    routes::CloudService,
    state::{Cloud, Settings},
};
use crate::kubelet::Fleet;

/// A cloud in this process. Cheap to clone; all clones are the same cloud.
///
/// Calls of these methods are those of an observer: not delayed, not counted, without faults. Drivers use
/// [`LocalCloud::service`].
///
/// # Guarantees
/// * The same calls at the same times lead to the same cloud, including its history and kubelets.
///
/// # Caveats
/// * When the last clone is dropped, timers stop. A [`CloudService`] still answers, but VMs never boot.
#[derive(Clone)]
pub struct LocalCloud {
    cloud: Arc<Clocked>,
    _keeper: Arc<AbortOnDropHandle<()>>,
}

impl LocalCloud {
    /// Starts a cloud with this memory, and with these kubelets for its VMs. Needs a tokio runtime.
    pub fn start(settings: Settings, memory: Memory, clock: Arc<dyn Clock>, fleet: Option<Fleet>) -> Self {
        let cloud = Arc::new(Clocked::new(Cloud::new(settings, memory), None, clock, fleet.map(Nodes::StandIns)));
        let keeper = tokio::spawn(stand_in::polled(Arc::clone(&cloud).keep_time()));
        Self { cloud, _keeper: Arc::new(AbortOnDropHandle::new(keeper)) }
    }

    /// The service that drivers call, under any host. Named callers use paths under `/as/NAME`.
    pub fn service(&self) -> CloudService {
        CloudService::new(Arc::clone(&self.cloud))
    }

    /// Makes the cloud unreachable, or reachable again. Pending calls are cut, but applied. VMs and kubelets continue.
    pub fn set_down(&self, down: bool) {
        self.cloud.down.send_replace(down);
    }

    /// Calls `act` with the cloud and the present time. Updates timers and kubelets.
    pub fn with<T>(&self, act: impl FnOnce(&mut Cloud, Timestamp) -> T) -> T {
        // There is no state file, so storing cannot fail.
        self.cloud.act(act).0
    }

    /// Adds a fault.
    pub fn fault(&self, order: FaultOrder) -> Result<Fault, Failure> {
        self.with(|cloud, now| cloud.add_fault(now, order))
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.with(|cloud, _| cloud.end_faults(None));
    }

    /// Sets the quota. `None`: no quota.
    pub fn set_quota(&self, vms: Option<u64>) {
        self.with(|cloud, _| cloud.set_quota(Quota { vms }));
    }

    /// Stops a VM. It stays, as `stopped`.
    pub fn kill(&self, id: &str) -> Result<Vm, Failure> {
        self.with(|cloud, now| cloud.kill(now, id))
    }

    /// Starts a stopped VM.
    pub fn start_vm(&self, id: &str) -> Result<Vm, Failure> {
        self.with(|cloud, now| cloud.start(now, id))
    }

    /// Sets the behavior of a VM's kubelet.
    pub fn kubelet(&self, id: &str, order: KubeletOrder) -> Result<Vm, Failure> {
        self.with(|cloud, now| cloud.order_kubelet(now, id, order))
    }

    /// All VMs, including those in deletion, oldest first.
    pub fn vms(&self) -> Vec<Vm> {
        self.look(|memory| memory.vms.values().map(VmRecord::view).collect())
    }

    /// The statistics.
    pub fn stats(&self) -> Stats {
        self.with(|cloud, now| {
            cloud.advance(now);
            cloud.stats()
        })
    }

    /// The history, oldest first.
    pub fn history(&self) -> Vec<Event> {
        self.look(|memory| memory.history.iter().cloned().collect())
    }

    /// The memory of the cloud, from which another one can continue.
    pub fn memory(&self) -> Memory {
        self.look(Memory::clone)
    }

    fn look<T>(&self, look: impl FnOnce(&Memory) -> T) -> T {
        self.with(|cloud, now| {
            cloud.advance(now);
            look(cloud.memory())
        })
    }
}

impl fmt::Debug for LocalCloud {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LocalCloud").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
