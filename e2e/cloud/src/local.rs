//! A cloud in this process, without ports: for simulations on tokio's paused time, and for tests.

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use nodewright_runtime::leadership::Clock;
use tokio_util::task::AbortOnDropHandle;

use super::{
    api::{Event, Failure, Fault, FaultOrder, KubeletOrder, Quota, Stats, Vm},
    clocked::Clocked,
    memory::{Memory, VmRecord},
    routes::CloudService,
    state::{Cloud, Settings},
};
use crate::kubelet::Fleet;

/// A cloud in this process. Cheap to clone; all clones are the same cloud.
///
/// What it is told here it is told by an observer: nothing is delayed, counted or struck by faults. Drivers speak to
/// [`LocalCloud::service`].
///
/// # Guarantees
/// * The same calls at the same times give the same cloud, history and kubelets included.
///
/// # Caveats
/// * Nothing happens by itself any more once the last clone is dropped; a [`CloudService`] alone answers, but its VMs never boot.
#[derive(Clone)]
pub struct LocalCloud {
    cloud: Arc<Clocked>,
    _keeper: Arc<AbortOnDropHandle<()>>,
}

impl LocalCloud {
    /// Starts a cloud with this memory: that of another one, or an empty one. Its VMs have the kubelets of this fleet.
    /// Needs a tokio runtime.
    pub fn start(settings: Settings, memory: Memory, clock: Arc<dyn Clock>, fleet: Option<Fleet>) -> Self {
        let cloud = Arc::new(Clocked::new(Cloud::new(settings, memory), None, clock, fleet));
        let keeper = tokio::spawn(Arc::clone(&cloud).keep_time());
        Self { cloud, _keeper: Arc::new(AbortOnDropHandle::new(keeper)) }
    }

    /// What drivers speak to; under any host, and under `/as/NAME` for those who name themselves.
    pub fn service(&self) -> CloudService {
        CloudService::new(Arc::clone(&self.cloud))
    }

    /// Lets the cloud be out of reach, or in reach again. Calls that wait for their answers are cut; what they asked for
    /// is done. VMs and their kubelets live on.
    pub fn set_down(&self, down: bool) {
        self.cloud.down.send_replace(down);
    }

    /// Does anything with the cloud at the present time; timers and kubelets follow.
    pub fn with<T>(&self, act: impl FnOnce(&mut Cloud, Timestamp) -> T) -> T {
        // Nothing is stored, so nothing fails to be.
        self.cloud.act(act).0
    }

    /// Puts a fault in force.
    pub fn fault(&self, order: FaultOrder) -> Result<Fault, Failure> {
        self.with(|cloud, now| cloud.add_fault(now, order))
    }

    /// Ends all faults.
    pub fn clear_faults(&self) {
        self.with(|cloud, _| cloud.end_faults(None));
    }

    /// Puts a quota in force; `None` for none.
    pub fn set_quota(&self, vms: Option<u64>) {
        self.with(|cloud, _| cloud.set_quota(Quota { vms }));
    }

    /// A VM dies: it stays, as `stopped`.
    pub fn kill(&self, id: &str) -> Result<Vm, Failure> {
        self.with(|cloud, now| cloud.kill(now, id))
    }

    /// A dead VM runs again.
    pub fn start_vm(&self, id: &str) -> Result<Vm, Failure> {
        self.with(|cloud, now| cloud.start(now, id))
    }

    /// Tells a VM's kubelet what to do.
    pub fn kubelet(&self, id: &str, order: KubeletOrder) -> Result<Vm, Failure> {
        self.with(|cloud, now| cloud.order_kubelet(now, id, order))
    }

    /// All VMs, those in deletion included, oldest first.
    pub fn vms(&self) -> Vec<Vm> {
        self.look(|memory| memory.vms.values().map(VmRecord::view).collect())
    }

    /// Counts of all that happened.
    pub fn stats(&self) -> Stats {
        self.with(|cloud, now| {
            cloud.advance(now);
            cloud.stats()
        })
    }

    /// What happened, oldest first, as far as it is kept.
    pub fn history(&self) -> Vec<Event> {
        self.look(|memory| memory.history.iter().cloned().collect())
    }

    /// All that the cloud remembers: what another one may go on from.
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
