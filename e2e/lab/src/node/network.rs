//! The network of nodes, from the outside.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpStream, UnixListener, UnixStream},
    task::AbortHandle,
};

use crate::{
    node::{
        BINARY, BINARY_VARIABLE, NodeError, Vm,
        cgroup::{self, Cgroup},
        image, requirements,
        wait::wait_for,
    },
    process::{Process, Supervisor, executable},
};

/// How long the process may take until it serves.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a network that was killed may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The longest path of a Unix socket in Linux, in bytes.
const SOCKET_PATH_LIMIT: usize = 107;

/// A network for nodes: a namespace with a bridge, and sockets that lead from there to an API server and back.
///
/// Dropping it ends it and all its VMs. Their disks stay in its directory.
#[derive(Debug)]
pub struct Network {
    directory: PathBuf,
    process: Process,
    forwarder: AbortHandle,
}

impl Network {
    /// Starts a network in `directory`, which is created, for an API server on this host. The nodes reach it at
    /// [`GATEWAY`](nodewright_e2e_cloud::address::GATEWAY) and the same port. `binaries` is the directory of kubelet, kube-proxy and
    /// pause.
    ///
    /// Ends what killed networks have left. The tokio runtime has to live as long as the network.
    pub async fn start(
        supervisor: &Arc<Supervisor>,
        directory: &Path,
        log: &Path,
        binaries: &Path,
        api_server: SocketAddr,
    ) -> Result<Self, NodeError> {
        if let Some(missing) = requirements::missing() {
            return Err(NodeError::Missing(missing));
        }
        clean(directory)?;
        prepare(directory, binaries)?;
        let socket = api_socket(directory)?;
        let listener = UnixListener::bind(&socket).map_err(NodeError::file("listen on", socket))?;
        let forwarder = tokio::spawn(forward(listener, api_server)).abort_handle();
        let program = executable(BINARY, BINARY_VARIABLE)?;
        let arguments = ["--net".into(), "--".into(), program.into_os_string(), "network".into(), directory.into()];
        let port = api_server.port().to_string().into();
        let mut process = Process::new(supervisor, "node-network", "unshare", arguments.into_iter().chain([port]), log);
        process.start()?;
        let mut network = Self { directory: directory.to_owned(), process, forwarder };
        network.wait_until_ready().await?;
        let pid = network.process.pid().unwrap_or_default().to_string();
        let file = pid_file(directory);
        fs::write(&file, pid).map_err(NodeError::file("write", file))?;
        Ok(network)
    }

    async fn wait_until_ready(&mut self) -> Result<(), NodeError> {
        let (since, socket) = (Instant::now(), egress_socket(&self.directory)?);
        while UnixStream::connect(&socket).await.is_err() {
            self.process.check()?;
            if since.elapsed() > START_TIMEOUT {
                let tail = self.process.log_tail();
                return Err(NodeError::Late(format!(
                    "the network of the nodes was not up after {START_TIMEOUT:?}:\n{tail}"
                )));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Its directory, which [`Vm`]s are made in.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// An error if its process ended by itself.
    pub fn check(&mut self) -> Result<(), NodeError> {
        Ok(self.process.check()?)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.forwarder.abort();
        let pid = self.process.pid();
        self.process.kill();
        if let Some(Err(error)) = pid.map(|pid| Cgroup::of_network(pid).end()) {
            tracing::warn!(%error, "failed to end the VMs of a network");
        }
        drop(cgroup::sweep());
    }
}

/// The process id of the network in this directory: its network namespace is the nodes'.
pub(crate) fn network_pid(directory: &Path) -> Result<u32, NodeError> {
    let file = pid_file(directory);
    let text = fs::read_to_string(&file).map_err(NodeError::file("read", &file))?;
    text.trim().parse().map_err(|_| NodeError::file("understand", file)(io::Error::other(text)))
}

/// The directory of the VMs.
pub(crate) fn vms(directory: &Path) -> PathBuf {
    directory.join("vms")
}

/// The directory of kubelet, kube-proxy and pause, a link.
pub(crate) fn binaries(directory: &Path) -> PathBuf {
    directory.join("bin")
}

/// The archive of the images that each VM begins with.
pub(crate) fn images(directory: &Path) -> PathBuf {
    directory.join("images.tar")
}

/// The socket that leads to the API server.
pub(crate) fn api_socket(directory: &Path) -> Result<PathBuf, NodeError> {
    socket(directory.join("api.sock"))
}

/// The socket that leads into the network of the nodes, for `--egress-selector-config-file` of kube-apiserver: a proxy that
/// understands HTTP's `CONNECT`.
pub fn egress_socket(directory: &Path) -> Result<PathBuf, NodeError> {
    socket(directory.join("egress.sock"))
}

fn socket(path: PathBuf) -> Result<PathBuf, NodeError> {
    if path.as_os_str().len() > SOCKET_PATH_LIMIT {
        return Err(NodeError::LongPath { path, limit: SOCKET_PATH_LIMIT });
    }
    Ok(path)
}

fn pid_file(directory: &Path) -> PathBuf {
    directory.join("network.pid")
}

/// Ends the VMs that killed networks have left, and removes the directory of one that has ended.
pub fn clean(directory: &Path) -> Result<(), NodeError> {
    // After a kill, a process takes a moment to end. If the id has become another network's, the wait is in vain.
    if let Ok(network) = network_pid(directory) {
        wait_for(END_TIMEOUT, || (!cgroup::lives(network)).then_some(()));
    }
    cgroup::sweep()?;
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(NodeError::file("remove", directory)(error)),
        _ => Ok(()),
    }
}

/// Puts into the directory what VMs need.
fn prepare(directory: &Path, binaries_directory: &Path) -> Result<(), NodeError> {
    fs::create_dir_all(vms(directory)).map_err(NodeError::file("create", vms(directory)))?;
    let link = binaries(directory);
    std::os::unix::fs::symlink(binaries_directory, &link).map_err(NodeError::file("link", &link))?;
    image::write_archive(&images(directory), &link.join("pause"))
}

/// Leads each connection to the API server, until the future is dropped.
async fn forward(listener: UnixListener, api_server: SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((mut from, _)) => drop(tokio::spawn(async move {
                // A node tries again when its connection ends.
                if let Ok(mut to) = TcpStream::connect(api_server).await {
                    drop(to.set_nodelay(true));
                    drop(copy_bidirectional(&mut from, &mut to).await);
                }
            })),
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection of a node");
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
    }
}

/// Ends all VMs in the directory of a network, and removes their disks.
pub fn delete_vms(directory: &Path) -> Result<(), NodeError> {
    let entries = fs::read_dir(vms(directory)).map_err(NodeError::file("read", vms(directory)))?;
    for entry in entries.flatten() {
        Vm::new(directory, &entry.file_name().to_string_lossy())?.delete()?;
    }
    Ok(())
}
