//! The cloud as a running thing: clock, disk, HTTP and kubelets around the state machine.
//!
//! # Guarantees
//! * A change is in the state file before anybody gets an answer that tells of it, and the kubelets know of it then.
//! * A caller that goes away changes nothing: what a call does is done before its answer starts to wait.
//! * If the state file cannot be written the server ends: it would promise what it cannot keep.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore, oneshot},
    task::JoinSet,
};

use super::{
    api::{Code, Failure, VmState},
    memory::{Memory, VmRecord},
    routes::CuttingService,
    state::{Cloud, Settings},
    store::{Store, StoreError},
};
use crate::kubelet::{self, Fleet, KubeletSpec};

/// How many connections are served at once; more wait. Hung calls hold one each.
const CONNECTION_LIMIT: usize = 4_096;
/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// What a cloud is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen; port 0 for any free one.
    pub listen: SocketAddr,
    /// The file to keep the memory in; without one, it ends with the server.
    pub state: Option<PathBuf>,
    /// How the cloud behaves.
    pub settings: Settings,
    /// The cluster that booted VMs join, and how; without one, nobody joins anything.
    pub kubelets: Option<(kube::Config, kubelet::Settings)>,
}

/// Why the cloud cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is not to be had.
    #[error("failed to listen on {address}: {source}; choose another address with --listen, or port 0 for a free one")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// The state file fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The cluster's client cannot be made.
    #[error("failed to make a client for the target cluster: {0}; check the kubeconfig")]
    Client(#[from] kube::Error),
}

/// What all requests share.
pub(super) struct Shared {
    cloud: Mutex<(Cloud, Option<Store>)>,
    fleet: Option<Fleet>,
    due_changed: Notify,
    broken: Mutex<Option<oneshot::Sender<StoreError>>>,
}

impl Shared {
    /// Does something with the cloud at the present time, and makes the result last.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Cloud, Timestamp) -> T) -> Result<T, Failure> {
        let mut guard = self.cloud.lock();
        let (cloud, store) = &mut *guard;
        let result = act(cloud, Timestamp::now());
        let changes = cloud.take_changes();
        if let Some(store) = store
            && let Err(error) = store.append(&changes, cloud.memory())
        {
            tracing::error!(%error, "the state cannot be stored; the cloud ends");
            if let Some(broken) = self.broken.lock().take() {
                drop(broken.send(error));
            }
            return Err(Failure::new(Code::Internal, "the state cannot be stored"));
        }
        let touched = cloud.take_touched();
        if let Some(fleet) = &self.fleet {
            // Under the lock, so that two changes of one VM arrive in order.
            for id in touched {
                let spec = cloud.memory().vms.get(&id).and_then(kubelet_of);
                fleet.set(&id, spec);
            }
        }
        drop(guard);
        if !changes.is_empty() {
            self.due_changed.notify_one();
        }
        Ok(result)
    }

    /// Wakes the cloud whenever something is due by itself.
    async fn keep_time(self: Arc<Self>) {
        loop {
            let Ok(due) = self.with(|cloud, now| {
                cloud.advance(now);
                cloud.next_due().map(|due| now.duration_until(due).try_into().unwrap_or(Duration::ZERO))
            }) else {
                return;
            };
            let nap = async {
                match due {
                    Some(due) => tokio::time::sleep(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = nap => {}
                () = self.due_changed.notified() => {}
            }
        }
    }
}

/// The kubelet that a VM has, if it has booted and lives.
fn kubelet_of(vm: &VmRecord) -> Option<KubeletSpec> {
    if vm.state != VmState::Running {
        return None;
    }
    // An order is checked before a VM is made of it, so the size is known.
    let size = vm.order.size().ok()?;
    Some(KubeletSpec {
        node_names: vm.node_names(),
        provider_id: vm.provider_id(),
        labels: vm.order.node.labels.clone(),
        taints: vm.order.node.taints.clone(),
        instance_type: size.name.to_owned(),
        cores: size.cores,
        memory_gib: size.memory_gib,
        address: vm.address(),
        silent: vm.kubelet.silent,
        not_ready: vm.kubelet.not_ready,
        flap: vm.kubelet.flap_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
        mood_since: vm.kubelet.since.unwrap_or(vm.boots_at),
        running_since: vm.boots_at,
    })
}

/// A cloud that runs in this process. Ends when dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    tasks: JoinSet<()>,
    broken: oneshot::Receiver<StoreError>,
}

impl Server {
    /// Starts a cloud: reads its memory, listens, and wakes the kubelets of the VMs that ran before.
    pub async fn start(options: Options) -> Result<Self, ServerError> {
        let listener = TcpListener::bind(options.listen)
            .await
            .map_err(|source| ServerError::Listen { address: options.listen, source })?;
        let address =
            listener.local_addr().map_err(|source| ServerError::Listen { address: options.listen, source })?;
        let (store, memory) = match &options.state {
            Some(path) => Store::open(path).map(|(store, memory)| (Some(store), memory))?,
            None => (None, Memory::default()),
        };
        let fleet = match options.kubelets {
            Some((config, settings)) => Some(Fleet::start(config, settings)?),
            None => None,
        };
        let (send_broken, broken) = oneshot::channel();
        let shared = Arc::new(Shared {
            cloud: Mutex::new((Cloud::new(options.settings, memory), store)),
            fleet,
            due_changed: Notify::new(),
            broken: Mutex::new(Some(send_broken)),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&shared).keep_time());
        tasks.spawn(accept(listener, CuttingService::new(shared)));
        Ok(Self { address, tasks, broken })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The base of its URLs.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Waits until it cannot go on.
    pub async fn failed(&mut self) -> ServerError {
        match (&mut self.broken).await {
            Ok(error) => error.into(),
            // The sender lives as long as the tasks do, and they end with this value.
            Err(_) => std::future::pending().await,
        }
    }

    /// Ends it. Calls in flight get no answer.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

async fn accept(listener: TcpListener, service: CuttingService) {
    let mut connections: JoinSet<()> = JoinSet::new();
    let free = Arc::new(Semaphore::new(CONNECTION_LIMIT));
    loop {
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let service = service.clone();
                    connections.spawn(async move {
                        serve(stream, service).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    // Out of file descriptors, most likely; it passes when connections end.
                    tracing::warn!(%error, "failed to accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, service: CuttingService) {
    // A few hundred bytes each way: without this, answers wait for acknowledgements.
    drop(stream.set_nodelay(true));
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a connection ended early");
    }
}
