//! The command `nodewright-cloud`.

use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use nodewright_e2e_cloud::{Kubelets, Options, Server, ServerError, Settings, kubelet};
use tokio::sync::oneshot;

use super::real_nodes::NodeVms;
use crate::process::{ProcessError, command::Shutdown};

/// The prefix of the line that the command prints once it listens; the URL follows.
pub const READY_LINE: &str = "The cloud listens at ";

/// Run a fake cloud until Ctrl-C: an HTTP API for virtual machines that boot and join a cluster as nodes.
///
/// The documentation of the crate (e2e/cloud/src/lib.rs) describes the API, and how to order faults, a quota, and the
/// behavior of kubelets.
#[derive(Clone, Debug, clap::Parser)]
#[command(version)]
pub struct Arguments {
    /// Where to listen; port 0 for any free one, which is printed
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// The kubeconfig of the cluster that booted machines join; without it they join none
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Make real VMs with real kubelets, in this directory of a network for nodes; needs root
    #[arg(long, conflicts_with = "kubeconfig", value_name = "DIRECTORY")]
    pub real_nodes: Option<PathBuf>,
    /// Have systemd as the first process of real VMs, which see this directory as /opt, and start again when they reboot
    #[arg(long, requires = "real_nodes", value_name = "DIRECTORY")]
    pub systemd: Option<PathBuf>,
    /// The file for the cloud's state; without it, the state is lost at exit
    #[arg(long)]
    pub state: Option<PathBuf>,
    /// Seconds until a new machine runs
    #[arg(long, default_value = "2", value_parser = seconds)]
    pub boot_seconds: Duration,
    /// The relative deviation of the boot time
    #[arg(long, default_value_t = 0.3, value_parser = share)]
    pub boot_jitter: f64,
    /// Seconds from boot until the node is Ready
    #[arg(long, default_value = "1", value_parser = seconds)]
    pub ready_seconds: Duration,
    /// Seconds from an accepted delete until the machine is gone
    #[arg(long, default_value = "1", value_parser = seconds)]
    pub delete_seconds: Duration,
    /// Milliseconds until a create call is answered
    #[arg(long, default_value_t = 100)]
    pub create_latency_ms: u32,
    /// Milliseconds until any other call is answered
    #[arg(long, default_value_t = 0)]
    pub latency_ms: u32,
    /// Seconds until get and list show a new machine
    #[arg(long, default_value = "0", value_parser = seconds)]
    pub visible_after_seconds: Duration,
    /// Seconds between two renewals of a node's Lease
    #[arg(long, default_value = "10", value_parser = seconds)]
    pub lease_seconds: Duration,
    /// Seconds between two posts of an unchanged node status
    #[arg(long, default_value = "300", value_parser = seconds)]
    pub status_seconds: Duration,
    /// Do not renew Leases or post unchanged statuses: kubelets send only changes
    #[arg(long, conflicts_with_all = ["lease_seconds", "status_seconds"])]
    pub no_heartbeats: bool,
    /// Seconds from the deletion of the Node of a living machine until its kubelet registers it again
    #[arg(long, default_value = "5", value_parser = seconds)]
    pub register_again_seconds: Duration,
    /// Never register a deleted Node again
    #[arg(long, conflicts_with = "register_again_seconds")]
    pub never_register_again: bool,
    /// Seconds that a pod takes to end, if its grace period is not shorter
    #[arg(long, default_value = "1", value_parser = seconds)]
    pub pod_end_seconds: Duration,
    /// The seed of random values; by default random
    #[arg(long)]
    pub seed: Option<u64>,
    /// Exit when standard input is closed, for example because the parent process ended
    #[arg(long)]
    pub until_stdin_closes: bool,
}

/// Reads a number of seconds, for flags.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "must be a number of seconds".to_owned())?;
    nodewright_e2e_cloud::api::duration("it", seconds).map_err(|failure| failure.message)
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err("must be between 0 and 1".to_owned()) }
}

/// Why the command ends with an error.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The server cannot start or continue.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The kubeconfig cannot be used.
    #[error("failed to read the kubeconfig {path:?}: {source}; check --kubeconfig")]
    Kubeconfig {
        /// The path of the file.
        path: PathBuf,
        /// The error.
        source: Box<KubeconfigError>,
    },
    /// The process cannot listen for signals.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Standard output is closed.
    #[error("failed to write to standard output: {0}")]
    Output(#[from] io::Error),
}

impl Arguments {
    fn cloud(&self, seed: u64) -> Settings {
        Settings {
            boot_seconds: self.boot_seconds.as_secs_f64(),
            boot_jitter: self.boot_jitter,
            delete_seconds: self.delete_seconds.as_secs_f64(),
            create_latency_seconds: f64::from(self.create_latency_ms) / 1_000.0,
            latency_seconds: f64::from(self.latency_ms) / 1_000.0,
            visible_after_seconds: self.visible_after_seconds.as_secs_f64(),
            seed,
        }
    }

    fn kubelets(&self, seed: u64) -> kubelet::Settings {
        kubelet::Settings {
            ready_after: self.ready_seconds,
            heartbeats: !self.no_heartbeats,
            lease_period: self.lease_seconds,
            status_period: self.status_seconds,
            register_again_after: (!self.never_register_again).then_some(self.register_again_seconds),
            pod_ends_after: self.pod_end_seconds,
            seed,
            ..kubelet::Settings::default()
        }
    }

    async fn options(&self) -> Result<Options, CommandError> {
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        let kubelets = match (&self.real_nodes, &self.kubeconfig) {
            (Some(directory), _) => {
                let vms = NodeVms::new(directory.clone(), self.systemd.clone());
                Some(Kubelets::Real(Arc::new(vms)))
            }
            (None, Some(path)) => Some(Kubelets::StandIns(Box::new(read_kubeconfig(path).await?), self.kubelets(seed))),
            (None, None) => None,
        };
        Ok(Options { listen: self.listen, state: self.state.clone(), settings: self.cloud(seed), kubelets })
    }
}

/// Reads the kubeconfig of the cluster that kubelets join.
pub async fn read_kubeconfig(path: &std::path::Path) -> Result<kube::Config, CommandError> {
    let failed = |source| CommandError::Kubeconfig { path: path.to_owned(), source: Box::new(source) };
    let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
    kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(failed)
}

/// Runs the command. Returns an error if the cloud cannot start or continue.
pub async fn run(arguments: Arguments) -> Result<(), CommandError> {
    let stop = Shutdown::listen()?.graceful;
    let mut server = Server::start(arguments.options().await?).await?;
    // Scripts and tests wait for this line; everything else goes to standard error.
    writeln!(io::stdout(), "{READY_LINE}{}", server.url())?;
    io::stdout().flush()?;
    tokio::select! {
        error = server.failed() => return Err(error.into()),
        () = stop.cancelled() => {}
        () = stdin_closes(), if arguments.until_stdin_closes => {}
    }
    server.stop().await;
    Ok(())
}

/// Returns when standard input is closed.
async fn stdin_closes() {
    let (closed, at_close) = oneshot::channel();
    // A thread of its own, because a blocked thread of the runtime would prevent its shutdown.
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while io::stdin().read(&mut buffer).is_ok_and(|read| read > 0) {}
        // This fails only if the receiver is gone.
        let _ = closed.send(());
    });
    drop(at_close.await);
}
