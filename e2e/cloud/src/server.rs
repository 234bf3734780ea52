//! The cloud as a server: HTTP and a state file around the cloud on its clock.
//!
//! # Guarantees
//! * A change is in the state file before its answer is sent.
//! * The server ends if the state file cannot be written.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use nodewright_e2e_node::NodeError;
use nodewright_runtime::leadership::boot_clock;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, oneshot},
    task::JoinSet,
};

use super::{
    clocked::{Clocked, Journal},
    memory::Memory,
    nodes::{Nodes, RealNodes},
    routes::CloudService,
    state::{Cloud, Settings},
    store::{Store, StoreError},
};
use crate::kubelet::{self, Fleet};

/// The maximum number of connections. More connections wait. Each hung call holds one.
const CONNECTION_LIMIT: usize = 4_096;
/// The deadline for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// How a cloud is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address to listen on. Port 0: any free port.
    pub listen: SocketAddr,
    /// The state file. `None`: the memory ends with the server.
    pub state: Option<PathBuf>,
    /// The behavior of the cloud.
    pub settings: Settings,
    /// What runs in the VMs. `None`: nothing; they join no cluster.
    pub kubelets: Option<Kubelets>,
}

/// What runs in the VMs of a cloud.
#[derive(Clone, Debug)]
pub enum Kubelets {
    /// Stand-ins that join the cluster of this configuration.
    StandIns(Box<kube::Config>, kubelet::Settings),
    /// Real kubelets, in VMs in the directory of this network, see `nodewright-e2e-node`.
    Real(PathBuf),
}

/// Why the server cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be used.
    #[error("failed to listen on {address}: {source}; choose another address with --listen, or port 0 for a free one")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why it cannot be used.
        source: std::io::Error,
    },
    /// The state file cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The client of the cluster cannot be created.
    #[error("failed to make a client for the target cluster: {0}; check the kubeconfig")]
    Client(#[from] kube::Error),
    /// Real VMs that an earlier cloud left cannot be removed.
    #[error(transparent)]
    Node(#[from] NodeError),
}

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    tasks: JoinSet<()>,
    broken: oneshot::Receiver<StoreError>,
}

impl Server {
    /// Starts a cloud: reads the state file, listens, and starts the kubelets of running VMs.
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
        let nodes = match options.kubelets {
            Some(Kubelets::StandIns(config, settings)) => {
                Some(Nodes::StandIns(Fleet::start(*config, settings, boot_clock())?))
            }
            Some(Kubelets::Real(directory)) => Some(Nodes::Real(RealNodes::start(directory, &memory.vms)?)),
            None => None,
        };
        let (send_broken, broken) = oneshot::channel();
        let journal = store.map(|store| Journal { store, broken: Some(send_broken) });
        let cloud = Cloud::new(options.settings, memory);
        let cloud = Arc::new(Clocked::new(cloud, journal, boot_clock(), nodes));
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&cloud).keep_time());
        tasks.spawn(accept(listener, CloudService::new(cloud)));
        Ok(Self { address, tasks, broken })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Waits until the server cannot continue.
    pub async fn failed(&mut self) -> ServerError {
        match (&mut self.broken).await {
            Ok(error) => error.into(),
            // There is no state file, or the server is ending.
            Err(_) => std::future::pending().await,
        }
    }

    /// Ends the server. Pending calls get no answer.
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
                    // Most likely there are no free file descriptors. Retry when connections have ended.
                    tracing::warn!(%error, "failed to accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, service: CloudService) {
    // Messages are small: without this, answers wait for acknowledgements.
    drop(stream.set_nodelay(true));
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await {
        tracing::debug!(%error, "a connection ended early");
    }
}
