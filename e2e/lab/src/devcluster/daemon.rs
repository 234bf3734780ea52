//! The daemon: starts a devcluster, restarts processes that end, answers requests on the control socket, ends the devcluster.
//!
//! # Guarantees
//!
//! * A directory has one daemon at a time.
//! * When [`run`] returns, no process of the devcluster is left, and of its files only logs and audit log.
//! * The same holds when the daemon ends in any other way, `kill -9` included; also for a manager that was started later.
//!   The directory stays locked until everything is cleaned up.

use std::{fs::File, process, time::Duration};

use tokio::{
    net::{UnixListener, UnixStream},
    sync::{mpsc, oneshot},
    time::{MissedTickBehavior, interval},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    devcluster::{
        Controllers, DevclusterError, ManagerProcess, McmProcesses, Provider,
        cluster::{Devcluster, DevclusterOptions},
        control_socket::{self, Connection, Request, Response},
        directory::{DAEMON, RunDirectory},
        progress::{Progress, Stage},
    },
    process::{Supervisor, command::Shutdown, with_causes},
};

/// Time between two checks whether all processes run.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// How many requests may wait for the one that is handled.
const QUEUE: usize = 8;

/// A locked directory, and the control socket in it.
#[derive(Debug)]
pub(crate) struct LockedDirectory {
    directory: RunDirectory,
    listener: UnixListener,
    lock: File,
}

impl LockedDirectory {
    /// Locks the directory, and removes the remains of a killed daemon. Fails if a daemon runs.
    pub(crate) fn lock(directory: RunDirectory) -> Result<Self, DevclusterError> {
        let Some(lock) = directory.lock()? else {
            return Err(DevclusterError::Running { directory: directory.root().to_owned() });
        };
        directory.clean()?;
        let listener = control_socket::listen(&directory);
        let listener = listener.map_err(DevclusterError::file("listen on", directory.socket()))?;
        Ok(Self { directory, listener, lock })
    }
}

/// A request, and where its response goes.
type Pending = (Request, oneshot::Sender<Response>);

/// Which controllers run in a devcluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Nodewright's manager, with its webhooks and CRDs.
    #[default]
    Nodewright,
    /// The real machine-controller-manager, with its CRDs.
    Mcm,
}

/// How a devcluster is started.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// The controllers.
    pub(crate) controllers: Kind,
    /// Whose VMs it has.
    pub(crate) provider: Provider,
    /// Whether VMs are real.
    pub(crate) real_nodes: bool,
    /// Additional flags for the manager.
    pub(crate) manager_flags: Vec<String>,
}

/// Runs a devcluster until it is asked to end.
pub(crate) async fn run(
    locked: LockedDirectory,
    setup: Setup,
    progress: &Progress,
    shutdown: &Shutdown,
) -> Result<(), DevclusterError> {
    let LockedDirectory { directory, listener, lock } = locked;
    let supervisor = Supervisor::start(&directory.temporary_files(), Some(&lock))?;
    // The kernel unlocks the file when this process ends. An earlier unlock would hide that this process still runs.
    std::mem::forget(lock);
    let (sender, mut requests) = mpsc::channel(QUEUE);
    let connections = TaskTracker::new();
    let accept = accept(listener, sender, progress.clone(), shutdown.graceful.clone(), connections.clone());
    connections.spawn(accept);
    // On the heap: the future holds the whole devcluster.
    let running = async {
        let requests = &mut requests;
        match setup.controllers {
            Kind::Nodewright => {
                Box::pin(run_devcluster::<ManagerProcess>(&directory, setup, requests, progress, shutdown)).await
            }
            Kind::Mcm => {
                Box::pin(run_devcluster::<McmProcesses>(&directory, setup, requests, progress, shutdown)).await
            }
        }
    };
    let result = shutdown.immediate.run_until_cancelled(running).await.unwrap_or(Ok(()));
    // Clients that wait for a response receive a failure.
    drop(requests);
    shutdown.graceful.cancel();
    progress.enter(Stage::Ended);
    drop(supervisor);
    connections.close();
    connections.wait().await;
    result
}

async fn run_devcluster<C: Controllers>(
    directory: &RunDirectory,
    setup: Setup,
    requests: &mut mpsc::Receiver<Pending>,
    progress: &Progress,
    shutdown: &Shutdown,
) -> Result<(), DevclusterError> {
    let options = DevclusterOptions {
        directory: Some(directory.root().to_owned()),
        manager_flags: setup.manager_flags,
        provider: setup.provider,
        real_nodes: setup.real_nodes,
        ..DevclusterOptions::default()
    };
    // On the heap, for the same reason.
    let starting = Box::pin(start::<C>(directory, &options, progress));
    // If it is interrupted while it starts, dropping the future ends what was started.
    let Some(started) = shutdown.graceful.run_until_cancelled(starting).await else { return Ok(()) };
    let mut devcluster = started?;
    let serving = serve_requests(directory, &mut devcluster, requests, progress);
    shutdown.graceful.run_until_cancelled(serving).await.transpose()?;
    progress.report("ending".to_owned());
    devcluster.stop().await
}

async fn start<C: Controllers>(
    directory: &RunDirectory,
    options: &DevclusterOptions,
    progress: &Progress,
) -> Result<Devcluster<C>, DevclusterError> {
    let mut devcluster = Devcluster::start(options, |line| progress.report(line)).await?;
    directory.write_env(&devcluster.endpoints())?;
    write_pids(directory, &mut devcluster)?;
    devcluster.apply_samples().await?;
    progress.report("config/samples is applied".to_owned());
    progress.enter(Stage::Ready);
    Ok(devcluster)
}

fn write_pids(directory: &RunDirectory, devcluster: &mut Devcluster<impl Controllers>) -> Result<(), DevclusterError> {
    let mut pids = devcluster.pids();
    pids.insert(DAEMON.to_owned(), process::id());
    directory.write_pids(&pids)
}

/// Handles requests and restarts processes, until the future is dropped.
async fn serve_requests(
    directory: &RunDirectory,
    devcluster: &mut Devcluster<impl Controllers>,
    requests: &mut mpsc::Receiver<Pending>,
    progress: &Progress,
) -> Result<(), DevclusterError> {
    let mut checks = interval(CHECK_INTERVAL);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut missing = Vec::new();
    loop {
        let pending = tokio::select! {
            Some(pending) = requests.recv() => Some(pending),
            _ = checks.tick() => None,
        };
        if let Some((request, reply)) = pending {
            let response = handle(request, devcluster, progress).await;
            write_pids(directory, devcluster)?;
            // The client may be gone.
            let _ = reply.send(response);
        } else {
            if let Err(error) = devcluster.restart_ended(|line| progress.report(line)).await {
                progress.report(with_causes(&error));
            }
            write_pids(directory, devcluster)?;
        }
        let missed = std::mem::replace(&mut missing, ended(devcluster));
        for name in missing.iter().filter(|name| !missed.contains(name)) {
            progress.report(format!("{name} has ended; `make manager` starts it again"));
        }
    }
}

/// The controllers that do not run, by name.
fn ended(devcluster: &mut Devcluster<impl Controllers>) -> Vec<String> {
    let processes = devcluster.controllers().processes().into_iter();
    processes.filter(|(_, pid)| pid.is_none()).map(|(name, _)| name.to_owned()).collect()
}

async fn handle(request: Request, devcluster: &mut Devcluster<impl Controllers>, progress: &Progress) -> Response {
    match request {
        Request::StartManager { program, flags } => match devcluster.start_controllers(&flags, Some(program)).await {
            Ok(()) => {
                progress.report(devcluster.controllers().description());
                Response::done()
            }
            Err(error) => Response::Failed { reason: with_causes(&error) },
        },
        Request::Status => Response::Done { missing: ended(devcluster) },
        // `serve` handles these.
        Request::Follow | Request::Stop => Response::done(),
    }
}

/// Serves each connection in its own task, until the devcluster ends.
async fn accept(
    listener: UnixListener,
    requests: mpsc::Sender<Pending>,
    progress: Progress,
    stop: CancellationToken,
    connections: TaskTracker,
) {
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(serve(stream, requests.clone(), progress.clone(), stop.clone()));
            }
            Err(error) => tracing::warn!(%error, "failed to accept a connection"),
        }
    }
}

async fn serve(stream: UnixStream, requests: mpsc::Sender<Pending>, progress: Progress, stop: CancellationToken) {
    let mut connection = Connection::new(stream);
    // A client that connects and sends nothing must not delay the end.
    let Some(received) = stop.run_until_cancelled(connection.receive()).await else { return };
    let result = match received {
        Ok(Some(Request::Follow)) => follow(&mut connection, &progress).await,
        Ok(Some(Request::Stop)) => {
            stop.cancel();
            connection.send(&Response::done()).await
        }
        Ok(Some(request)) => {
            let (reply, response) = oneshot::channel();
            let response = if requests.send((request, reply)).await.is_ok() { response.await.ok() } else { None };
            let ending = || Response::Failed { reason: "the devcluster is ending".to_owned() };
            connection.send(&response.unwrap_or_else(ending)).await
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection of the control socket failed");
    }
}

/// Sends progress until everything was started. If the start fails, the connection ends without a final response.
async fn follow(connection: &mut Connection, progress: &Progress) -> std::io::Result<()> {
    let mut updates = progress.subscribe();
    let mut seen = 0;
    loop {
        let (lines, stage) = {
            let history = updates.borrow_and_update();
            (history.new_lines(&mut seen), history.stage)
        };
        for line in lines {
            connection.send(&Response::Progress { line }).await?;
        }
        match stage {
            Stage::Starting => {}
            Stage::Ready => return connection.send(&Response::done()).await,
            Stage::Ended => return Ok(()),
        }
        if updates.changed().await.is_err() {
            return Ok(());
        }
    }
}
