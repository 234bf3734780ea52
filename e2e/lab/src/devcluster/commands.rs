//! The commands of `nodewright-devcluster`.

use std::{
    fs::{self, File},
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use clap::ValueEnum;

use crate::{
    control_plane::{USER_AGENT, client},
    devcluster::{
        DevclusterError, McmHalf, Provider,
        control_socket::{Connection, Request, Response},
        daemon::{self, Kind, LockedDirectory, Setup},
        directory::{DirectoryArgument, RunDirectory},
        manager::BINARY_VARIABLE,
        progress::Progress,
        screen::Screen,
        view::{show_until_ended, show_until_running, usage_text},
    },
    node::requirements,
    process::{command::Shutdown, executable},
};

/// How long the daemon may take until it accepts connections: milliseconds on an idle computer.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a devcluster may take to end, until its daemon is killed, and after that.
const END_TIMEOUT: Duration = Duration::from_secs(40);
/// Time between two checks of a wait.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How many lines of the daemon's log an error shows.
const TAIL_LINES: usize = 15;

/// What runs in the VMs of a devcluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Nodes {
    /// Kubelet stand-ins
    StandIns,
    /// Real kubelets that run pods, in VMs made of namespaces; needs root and some packages
    Real,
}

impl Nodes {
    /// Whether VMs are real. If they should be and cannot, prints what is missing.
    fn are_real(self) -> bool {
        let missing = (self == Self::Real).then(requirements::missing).flatten();
        if let Some(missing) = &missing {
            eprintln!("no real nodes, but stand-ins: {missing}");
        }
        self == Self::Real && missing.is_none()
    }
}

/// Start a devcluster in the background, and wait until its three machines run.
#[derive(Clone, Debug, clap::Args)]
pub struct UpArguments {
    #[command(flatten)]
    directory: DirectoryArgument,
    /// Seconds until the machines must run
    #[arg(long, default_value_t = 180)]
    timeout: u64,
    /// What runs in the VMs
    #[arg(long, value_enum, default_value_t = Nodes::StandIns)]
    nodes: Nodes,
    /// Controllers of the devcluster
    #[arg(long, value_enum, default_value_t)]
    controllers: Kind,
    /// Whose VMs the devcluster has
    #[arg(long, value_enum, default_value_t)]
    provider: Provider,
    /// Additional flags for the manager, or for each process of machine-controller-manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// End the devcluster that `up` or `run` started. Does nothing if none runs.
#[derive(Clone, Debug, clap::Args)]
pub struct DownArguments {
    #[command(flatten)]
    directory: DirectoryArgument,
}

/// Start a devcluster, show its three machines, and end everything on Ctrl-C.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArguments {
    #[command(flatten)]
    directory: DirectoryArgument,
    /// What runs in the VMs
    #[arg(long, value_enum, default_value_t = Nodes::StandIns)]
    nodes: Nodes,
    /// Controllers of the devcluster
    #[arg(long, value_enum, default_value_t)]
    controllers: Kind,
    /// Whose VMs the devcluster has
    #[arg(long, value_enum, default_value_t)]
    provider: Provider,
    /// Additional flags for the manager, or for each process of machine-controller-manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// Start the manager of a running devcluster again, after it ended or was killed; or the processes of machine-controller-manager.
#[derive(Clone, Debug, clap::Args)]
pub struct ManagerArguments {
    #[command(flatten)]
    directory: DirectoryArgument,
    /// Additional flags for the manager, or for each process of machine-controller-manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// Run the daemon, which `up` starts.
#[derive(Clone, Debug, clap::Args)]
pub struct DaemonArguments {
    #[command(flatten)]
    directory: DirectoryArgument,
    /// What runs in the VMs
    #[arg(long, value_enum, default_value_t = Nodes::StandIns)]
    nodes: Nodes,
    /// Controllers of the devcluster
    #[arg(long, value_enum, default_value_t)]
    controllers: Kind,
    /// Whose VMs the devcluster has
    #[arg(long, value_enum, default_value_t)]
    provider: Provider,
    /// Additional flags for the manager, or for each process of machine-controller-manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// Runs `up`.
pub async fn up(arguments: UpArguments) -> Result<(), DevclusterError> {
    let directory = arguments.directory.open()?;
    let shutdown = Shutdown::listen()?;
    let starting = start(&directory, &arguments);
    match shutdown.graceful.run_until_cancelled(starting).await {
        Some(result) => result,
        None => end(&directory).await.map(drop),
    }
}

async fn start(directory: &RunDirectory, arguments: &UpArguments) -> Result<(), DevclusterError> {
    let mut screen = Screen::new();
    let print = |screen: &mut Screen<_>, text: &str| screen.print(text).map_err(output);
    if let Some(mut connection) = connect(directory).await? {
        follow(directory, &mut connection, |_| Ok(())).await?;
        check(directory).await?;
        let text = format!("A devcluster is up already in {}.", directory.root().display());
        return print(&mut screen, &(text + "\n" + &usage_text(&directory.displayed())));
    }
    let setup = setup(arguments.controllers, arguments.provider, arguments.nodes, arguments.manager_flags.clone())?;
    let mut connection = start_daemon(directory, &setup).await?;
    follow(directory, &mut connection, |line| print(&mut screen, line)).await?;
    let client = client(&directory.kubeconfig(), USER_AGENT).await?;
    let timeout = Duration::from_secs(arguments.timeout);
    let running = show_until_running(&mut screen, &client, timeout).await;
    running.map_err(|error| with_manager_log(error, directory))?;
    print(&mut screen, &usage_text(&directory.displayed()))
}

/// Adds the end of the controllers' logs, which most likely say why machines do not run.
fn with_manager_log(error: DevclusterError, directory: &RunDirectory) -> DevclusterError {
    match error {
        DevclusterError::Machines { what, waited, seen } => {
            let names = ["manager"].into_iter().chain(McmHalf::BOTH.map(McmHalf::name));
            let logs = names.map(|name| directory.root().join(format!("logs/{name}.log"))).filter(|log| log.is_file());
            let tails = logs.map(|log| format!("the last lines of {}:\n{}\n", log.display(), tail(&log)));
            let hint = "The devcluster is still up, `make down` ends it.";
            let seen = format!("{seen}{}{hint}", tails.collect::<String>());
            DevclusterError::Machines { what, waited, seen }
        }
        error => error,
    }
}

/// Runs `daemon`.
pub async fn daemon(arguments: DaemonArguments) -> Result<(), DevclusterError> {
    let shutdown = Shutdown::listen()?;
    let locked = LockedDirectory::lock(arguments.directory.open()?)?;
    let setup = setup(arguments.controllers, arguments.provider, arguments.nodes, arguments.manager_flags)?;
    daemon::run(locked, setup, &Progress::new(true), &shutdown).await
}

/// Runs `run`.
pub async fn run(arguments: RunArguments) -> Result<(), DevclusterError> {
    let shutdown = Shutdown::listen()?;
    let directory = arguments.directory.open()?;
    let locked = LockedDirectory::lock(directory.clone())?;
    let progress = Progress::new(false);
    let viewing = async {
        let result = show_until_ended(progress.subscribe(), &directory).await;
        // Output failed, or the devcluster ended: end it in both cases.
        shutdown.graceful.cancel();
        result
    };
    let setup = setup(arguments.controllers, arguments.provider, arguments.nodes, arguments.manager_flags)?;
    let (ran, viewed) = tokio::join!(daemon::run(locked, setup, &progress, &shutdown), viewing);
    ran.and(viewed)
}

/// Runs `down`.
pub async fn down(arguments: DownArguments) -> Result<(), DevclusterError> {
    let directory = arguments.directory.open()?;
    let outcome = if end(&directory).await? { "The devcluster has ended. Its logs stay in" } else { "Nothing runs in" };
    Screen::new().print(&format!("{outcome} {}.", directory.displayed())).map_err(output)
}

/// Runs `manager`.
pub async fn manager(arguments: ManagerArguments) -> Result<(), DevclusterError> {
    let directory = arguments.directory.open()?;
    let Some(mut connection) = connect(&directory).await? else {
        return Err(DevclusterError::NotRunning { directory: directory.root().to_owned() });
    };
    let program = executable("nodewright", BINARY_VARIABLE)?;
    let program = std::path::absolute(&program).map_err(DevclusterError::file("find", program))?;
    let request = Request::StartManager { program, flags: arguments.manager_flags };
    call(&directory, &mut connection, &request, "start the manager").await?;
    let logs = format!("{}/logs", directory.displayed());
    Screen::new().print(&format!("The manager is ready. Its log is in {logs}.")).map_err(output)
}

async fn connect(directory: &RunDirectory) -> Result<Option<Connection>, DevclusterError> {
    Connection::open(directory).await.map_err(DevclusterError::file("connect to", directory.socket()))
}

/// What the daemon starts. Says so if nodes cannot be real here.
fn setup(
    controllers: Kind,
    provider: Provider,
    nodes: Nodes,
    manager_flags: Vec<String>,
) -> Result<Setup, DevclusterError> {
    if provider == Provider::Aws && (controllers == Kind::Mcm || nodes == Nodes::Real) {
        let problem =
            "EC2's VMs are made by Nodewright's driver, and have no real kubelets: leave --controllers and --nodes out";
        return Err(DevclusterError::Failed(problem.to_owned()));
    }
    Ok(Setup { controllers, provider, real_nodes: nodes.are_real(), manager_flags })
}

/// Starts the daemon in a process group of its own, which Ctrl-C does not reach.
async fn start_daemon(directory: &RunDirectory, setup: &Setup) -> Result<Connection, DevclusterError> {
    let log = directory.daemon_log();
    let open = || File::create(&log).and_then(|file| Ok((file.try_clone()?, file)));
    let (stdout, stderr) = open().map_err(DevclusterError::file("open the log", &log))?;
    let program = std::env::current_exe().map_err(DevclusterError::file("find", "the present executable"))?;
    let mut command = Command::new(&program);
    command.arg("daemon").arg("--directory").arg(directory.root());
    let kind = setup.controllers.to_possible_value();
    command.args(kind.as_ref().map(|kind| format!("--controllers={}", kind.get_name())));
    let provider = setup.provider.to_possible_value();
    command.args(provider.as_ref().map(|provider| format!("--provider={}", provider.get_name())));
    if setup.real_nodes {
        command.arg("--nodes=real");
    }
    command.arg("--").args(&setup.manager_flags);
    command.process_group(0).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    let mut daemon = command.spawn().map_err(DevclusterError::file("start", program))?;
    let since = Instant::now();
    loop {
        if let Some(connection) = connect(directory).await? {
            return Ok(connection);
        }
        if has_ended(&mut daemon) || since.elapsed() > DAEMON_TIMEOUT {
            return Err(gone(directory, "start"));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn has_ended(process: &mut Child) -> bool {
    process.try_wait().is_ok_and(|status| status.is_some())
}

/// Calls `report` with the progress until everything was started.
async fn follow(
    directory: &RunDirectory,
    connection: &mut Connection,
    mut report: impl FnMut(&str) -> Result<(), DevclusterError>,
) -> Result<(), DevclusterError> {
    let broken = || DevclusterError::file("ask", directory.socket());
    connection.send(&Request::Follow).await.map_err(broken())?;
    loop {
        match connection.receive().await.map_err(broken())? {
            Some(Response::Progress { line }) => report(&line)?,
            Some(Response::Done { .. }) => return Ok(()),
            Some(Response::Failed { reason }) => return Err(DevclusterError::Failed(reason)),
            None => return Err(gone(directory, "start")),
        }
    }
}

/// Fails if a process is missing.
async fn check(directory: &RunDirectory) -> Result<(), DevclusterError> {
    let Some(mut connection) = connect(directory).await? else { return Err(gone(directory, "report its status")) };
    let missing = call(directory, &mut connection, &Request::Status, "report its status").await?;
    if missing.is_empty() {
        return Ok(());
    }
    Err(DevclusterError::Incomplete { directory: directory.root().to_owned(), missing: missing.join(", ") })
}

/// Sends a request and waits for the response.
async fn call(
    directory: &RunDirectory,
    connection: &mut Connection,
    request: &Request,
    action: &'static str,
) -> Result<Vec<String>, DevclusterError> {
    let broken = || DevclusterError::file("ask", directory.socket());
    connection.send(request).await.map_err(broken())?;
    match connection.receive().await.map_err(broken())? {
        Some(Response::Done { missing }) => Ok(missing),
        Some(Response::Failed { reason }) => Err(DevclusterError::Failed(reason)),
        Some(Response::Progress { .. }) | None => Err(gone(directory, action)),
    }
}

/// Ends the devcluster and waits until nothing of it is left. `false` if none ran.
async fn end(directory: &RunDirectory) -> Result<bool, DevclusterError> {
    let mut ran = false;
    if let Some(mut connection) = connect(directory).await? {
        ran = true;
        // The daemon may end before it answers.
        let _ = call(directory, &mut connection, &Request::Stop, "end").await;
    }
    if !has_stopped(directory, END_TIMEOUT).await? {
        ran = true;
        kill_daemon(directory)?;
        if !has_stopped(directory, END_TIMEOUT).await? {
            return Err(DevclusterError::NotEnded { directory: directory.root().to_owned(), waited: 2 * END_TIMEOUT });
        }
    }
    Ok(ran)
}

/// Waits until there is no daemon and no process of it, and removes the files of a killed one.
async fn has_stopped(directory: &RunDirectory, timeout: Duration) -> Result<bool, DevclusterError> {
    let since = Instant::now();
    loop {
        let lock = directory.lock()?;
        if lock.is_some() && directory.is_released()? {
            directory.clean()?;
            return Ok(true);
        }
        drop(lock);
        if since.elapsed() > timeout {
            return Ok(false);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Kills the daemon. It holds the lock, so the process id is still its own.
fn kill_daemon(directory: &RunDirectory) -> Result<(), DevclusterError> {
    let Some(pid) = directory.daemon_pid() else { return Ok(()) };
    let killed = Command::new("sh").args(["-c", "kill -s KILL \"$1\"", "sh", &pid.to_string()]).status();
    killed.map(drop).map_err(DevclusterError::file("run", "sh"))
}

fn gone(directory: &RunDirectory, action: &'static str) -> DevclusterError {
    let log = directory.daemon_log();
    let tail = tail(&log);
    DevclusterError::Gone { action, log, tail }
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    let tail = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    tail.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

fn output(source: io::Error) -> DevclusterError {
    DevclusterError::file("write to", "standard output")(source)
}
