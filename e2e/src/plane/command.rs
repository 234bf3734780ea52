//! `nodewright-e2e plane`: a local control plane until Ctrl-C.

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Plane, PlaneError, PlaneOptions};

/// How often the command looks whether all processes still run.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Runs a local control plane (etcd, API server, controller manager, scheduler) until it is interrupted.
///
/// The first time, the executables are built, which takes some minutes.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Keep kubeconfig, logs and audit log in this directory; by default, nothing is kept
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Once all is ready, write a JSON file that says how to reach it; removed in the end
    #[arg(long)]
    ready_file: Option<PathBuf>,
    /// Do without the scheduler
    #[arg(long)]
    without_scheduler: bool,
    /// How long a node may be silent until it is called unhealthy, such as 40s; by default, Kubernetes' own
    #[arg(long, value_parser = parse_duration)]
    node_monitor_grace_period: Option<Duration>,
    /// The controllers that run, as for kube-controller-manager
    #[arg(long, value_delimiter = ',')]
    controllers: Option<Vec<String>>,
    /// One more flag for kube-apiserver, such as --goaway-chance=0.01; can be repeated
    #[arg(long, allow_hyphen_values = true)]
    api_server_flag: Vec<String>,
    /// One more flag for kube-controller-manager; can be repeated
    #[arg(long, allow_hyphen_values = true)]
    controller_manager_flag: Vec<String>,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let parsed: Result<jiff::SignedDuration, _> = text.parse();
    parsed.and_then(Duration::try_from).map_err(|error| error.to_string())
}

impl Arguments {
    fn options(&self) -> PlaneOptions {
        let default = PlaneOptions::default();
        PlaneOptions {
            directory: self.dir.clone(),
            scheduler: !self.without_scheduler,
            node_monitor_grace_period: self.node_monitor_grace_period,
            controllers: self.controllers.clone().unwrap_or(default.controllers),
            api_server_flags: self.api_server_flag.clone(),
            controller_manager_flags: self.controller_manager_flag.clone(),
            ..PlaneOptions::default()
        }
    }
}

/// Runs the command. An error if the control plane does not start, or one of its processes ends.
pub async fn run(arguments: Arguments) -> Result<(), PlaneError> {
    // Taken over before anything is started: there is no moment in which Ctrl-C would end us without a clean-up. (The
    // supervisor would do that, but we could not wait for it.)
    let mut interruptions =
        Interruptions::listen().map_err(PlaneError::file("listen to signals of", "this process"))?;
    let since = Instant::now();
    let plane = tokio::select! {
        plane = Plane::start(arguments.options()) => plane?,
        () = interruptions.next() => return Ok(()),
    };
    let _ready = arguments.ready_file.as_deref().map(|path| ReadyFile::write(path, &plane)).transpose()?;
    announce(&plane, since.elapsed());
    tokio::select! {
        error = failure(&plane) => Err(error),
        () = interruptions.next() => Ok(()),
    }
}

/// Prints how to reach the control plane.
fn announce(plane: &Plane, took: Duration) {
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

/// Returns when a process has ended by itself.
async fn failure(plane: &Plane) -> PlaneError {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        if let Err(error) = plane.check() {
            return error;
        }
    }
}

/// The signals that ask a command to end.
struct Interruptions([Signal; 3]);

impl Interruptions {
    fn listen() -> io::Result<Self> {
        Ok(Self([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?]))
    }

    async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// Tells scripts that the control plane is ready, and how to reach it. Removed when dropped.
struct ReadyFile(PathBuf);

impl ReadyFile {
    /// Whoever sees the file sees all of it: it is written under another name first.
    fn write(path: &Path, plane: &Plane) -> Result<Self, PlaneError> {
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(".unfinished");
        let text = format!("{:#}\n", description(plane));
        super::files::write_private(Path::new(&unfinished), &text)?;
        std::fs::rename(&unfinished, path).map_err(PlaneError::file("write", path))?;
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

fn description(plane: &Plane) -> Value {
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
