//! The cloud as a server: HTTP and a state file around the cloud on its clock.
//!
//! # Guarantees
//! * A change is in the state file before its answer is sent.
//! * The server ends if the state file cannot be written.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use nodewright_runtime::leadership::boot_clock;
use tokio::{net::TcpListener, sync::oneshot, task::JoinSet};

use super::{
    accept::accept,
    clocked::{Clocked, Journal},
    memory::Memory,
    nodes::{Nodes, RealNodes},
    routes::CloudService,
    state::{Cloud, Settings},
    store::{Store, StoreError},
};
use crate::kubelet::{self, Fleet};

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
    /// Real kubelets.
    Real(Arc<dyn RealNodes>),
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
    #[error("failed to delete the VMs of an earlier cloud: {0}")]
    Node(String),
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
            Some(Kubelets::Real(nodes)) => {
                nodes.keep_only(&memory.vms).map_err(ServerError::Node)?;
                Some(Nodes::Real(nodes))
            }
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
