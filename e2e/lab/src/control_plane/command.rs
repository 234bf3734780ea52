//! The command `nodewright-control-plane`.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    control_plane::{ControlPlane, ControlPlaneError, ControlPlaneOptions},
    process::{command::Shutdown, write_private},
};

/// Time between two checks whether all processes still run.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Run a real Kubernetes control plane on this computer until Ctrl-C: etcd, API server, controller manager, scheduler.
///
/// The first run builds the executables, which takes some minutes. `KUBEBUILDER_ASSETS` names a directory with executables
/// to use instead.
#[derive(Debug, clap::Parser)]
#[command(version)]
pub struct Arguments {
    /// Directory for kubeconfig, logs and audit log, which stay when the command ends [default: a temporary directory]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// JSON file to write when the control plane is ready, with its URL and paths. Removed when the command ends
    #[arg(long)]
    ready_file: Option<PathBuf>,
    /// Start no scheduler
    #[arg(long)]
    without_scheduler: bool,
    /// How long a node may be silent until it counts as unhealthy, such as 40s [default: 50s, as in Kubernetes]
    #[arg(long, value_parser = parse_duration)]
    node_monitor_grace_period: Option<Duration>,
    /// Controllers to run, as for kube-controller-manager
    #[arg(long, value_delimiter = ',')]
    controllers: Option<Vec<String>>,
    /// More flags for kube-apiserver, such as --goaway-chance=0.01. Repeatable
    #[arg(long, allow_hyphen_values = true)]
    api_server_flag: Vec<String>,
    /// More flags for kube-controller-manager. Repeatable
    #[arg(long, allow_hyphen_values = true)]
    controller_manager_flag: Vec<String>,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let parsed: Result<jiff::SignedDuration, _> = text.parse();
    parsed.and_then(Duration::try_from).map_err(|error| error.to_string())
}

impl Arguments {
    fn options(&self) -> ControlPlaneOptions {
        let default = ControlPlaneOptions::default();
        ControlPlaneOptions {
            directory: self.dir.clone(),
            scheduler: !self.without_scheduler,
            node_monitor_grace_period: self.node_monitor_grace_period,
            controllers: self.controllers.clone().unwrap_or(default.controllers),
            api_server_flags: self.api_server_flag.clone(),
            controller_manager_flags: self.controller_manager_flag.clone(),
            ..ControlPlaneOptions::default()
        }
    }
}

/// Runs the command. Fails if the control plane does not start, or if one of its processes ends by itself.
pub async fn run(arguments: Arguments) -> Result<(), ControlPlaneError> {
    // Before anything is started: Ctrl-C would otherwise end this process without waiting for the clean-up.
    let stop = Shutdown::listen()?.graceful;
    let since = Instant::now();
    let plane = tokio::select! {
        plane = ControlPlane::start(arguments.options()) => plane?,
        () = stop.cancelled() => return Ok(()),
    };
    let _ready = arguments.ready_file.as_deref().map(|path| ReadyFile::write(path, &plane)).transpose()?;
    announce(&plane, since.elapsed());
    tokio::select! {
        error = failure(&plane) => Err(error),
        () = stop.cancelled() => Ok(()),
    }
}

/// Prints how to use the control plane.
fn announce(plane: &ControlPlane, took: Duration) {
    println!("The control plane is ready at {} after {:.1} s.", plane.server(), took.as_secs_f64());
    println!();
    println!("  export KUBECONFIG={}", plane.kubeconfig_path().display());
    println!("  export PATH={}:$PATH", plane.binaries().display());
    println!();
    println!("  logs       {}", plane.logs().display());
    println!("  audit log  {}", plane.audit_log().display());
    println!();
    println!("Press Ctrl-C to end it.");
}

/// Waits until a process ends by itself.
async fn failure(plane: &ControlPlane) -> ControlPlaneError {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        if let Err(error) = plane.check() {
            return error;
        }
    }
}

/// Tells scripts that the control plane is ready. Removed when dropped.
struct ReadyFile(PathBuf);

impl ReadyFile {
    /// Writes the file under another name first, so that readers see it complete.
    fn write(path: &Path, plane: &ControlPlane) -> Result<Self, ControlPlaneError> {
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(".unfinished");
        let text = format!("{:#}\n", description(plane));
        write_private(Path::new(&unfinished), &text)?;
        std::fs::rename(&unfinished, path).map_err(ControlPlaneError::file("write", path))?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "failed to remove the ready file");
        }
    }
}

fn description(plane: &ControlPlane) -> Value {
    let pids: serde_json::Map<_, _> =
        plane.pids().into_iter().map(|(component, pid)| (component.name().to_owned(), json!(pid))).collect();
    json!({
        "server": plane.server(),
        "kubeconfig": plane.kubeconfig_path(),
        "auditLog": plane.audit_log(),
        "logs": plane.logs(),
        "binaries": plane.binaries(),
        "directory": plane.directory(),
        "pids": pids,
    })
}
