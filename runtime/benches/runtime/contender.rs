//! The contenders, and their common task: keep a cache, and read a machine whenever an event concerns it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use nodewright_api::Machine;
use nodewright_runtime::object::controller_uid;

use crate::{fixture, kubes, ours, server::Server};

/// A runtime that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    /// Nodewright's runtime.
    Ours,
    /// kube-runtime with its defaults.
    Kube,
    /// kube-runtime with managedFields cleared before objects enter the cache.
    KubeTrimmed,
}

impl Contender {
    pub(crate) const ALL: [Self; 3] = [Self::Ours, Self::Kube, Self::KubeTrimmed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "nodewright",
            Self::Kube => "kube-runtime",
            Self::KubeTrimmed => "the same, trimmed",
        }
    }

    /// Caches all machines of a server.
    pub(crate) fn cache(self, server: &Server) -> Cache {
        match self {
            Self::Ours => Cache::Ours(ours::cache(server)),
            Self::Kube => Cache::Kube(kubes::cache(server, false)),
            Self::KubeTrimmed => Cache::Kube(kubes::cache(server, true)),
        }
    }

    /// Runs a controller of machines.
    pub(crate) fn control(self, server: &Server, job: Arc<Job>) {
        match self {
            Self::Ours => ours::control(server, job),
            Self::Kube => kubes::control(server, job),
            Self::KubeTrimmed => panic!("a kube Controller that trims is not measured"),
        }
    }
}

/// The work of a controller for a machine: it reads the machine, then has nothing to do or waits for a slow call.
pub(crate) struct Job {
    /// Called with each machine at the beginning of each plan.
    pub(crate) look: Box<dyn Fn(&Machine) + Send + Sync>,
    /// Machines below this number wait.
    pub(crate) slow_below: AtomicUsize,
    /// The number of waiting machines.
    pub(crate) waiting: AtomicUsize,
}

impl Job {
    pub(crate) fn new(look: impl Fn(&Machine) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { look: Box::new(look), slow_below: AtomicUsize::new(0), waiting: AtomicUsize::new(0) })
    }

    pub(crate) fn is_slow(&self, machine: &Machine) -> bool {
        fixture::number(machine) < self.slow_below.load(Relaxed)
    }

    /// Takes minutes, like a cloud.
    pub(crate) async fn wait(&self) {
        self.waiting.fetch_add(1, Relaxed);
        tokio::time::sleep(std::time::Duration::from_mins(10)).await;
    }
}

/// A filled cache.
pub(crate) enum Cache {
    Ours(Arc<nodewright_runtime::cache::Store<Machine>>),
    Kube(kube_runtime::reflector::Store<Machine>),
}

impl Cache {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Ours(store) => store.len(),
            Self::Kube(store) => store.len(),
        }
    }

    /// The machines of a set, by index if the cache has one, else by a scan.
    pub(crate) fn owned_by(&self, uid: &str) -> Vec<Arc<Machine>> {
        match self {
            Self::Ours(store) => store.owned_by(uid),
            Self::Kube(store) => store.state_filter(|machine| controller_uid(machine) == Some(uid)),
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Machine>> {
        match self {
            Self::Ours(store) => store.all(),
            Self::Kube(store) => store.state(),
        }
    }
}
