//! The cloud as a running thing: disk and HTTP around the cloud on its clock.
//!
//! # Guarantees
//! * A change is in the state file before anybody gets an answer that tells of it.
//! * If the state file cannot be written the server ends: it would promise what it cannot keep.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use nodewright_runtime::leadership::BootClock;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, oneshot},
    task::JoinSet,
};

use super::{
    clocked::{Clocked, Journal},
    memory::Memory,
    routes::CloudService,
    state::{Cloud, Settings},
    store::{Store, StoreError},
};
use crate::kubelet::{self, Fleet};

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
            Some((config, settings)) => Some(Fleet::start(config, settings, Arc::new(BootClock))?),
            None => None,
        };
        let (send_broken, broken) = oneshot::channel();
        let journal = store.map(|store| Journal { store, broken: Some(send_broken) });
        let cloud = Cloud::new(options.settings, memory);
        let cloud = Arc::new(Clocked::new(cloud, journal, Arc::new(BootClock), fleet));
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&cloud).keep_time());
        tasks.spawn(accept(listener, CloudService::new(cloud)));
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
            // Nothing is stored; or the tasks that hold the sender are ending with this value.
            Err(_) => std::future::pending().await,
        }
    }

    /// Ends it. Calls in flight get no answer.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

async fn accept(listener: TcpListener, service: CloudService) {
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

async fn serve(stream: TcpStream, service: CloudService) {
    // A few hundred bytes each way: without this, answers wait for acknowledgements.
    drop(stream.set_nodelay(true));
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await {
        tracing::debug!(%error, "a connection ended early");
    }
}
