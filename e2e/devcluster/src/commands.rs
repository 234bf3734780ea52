//! The commands of `nodewright-devcluster`.

use std::{
    fs::{self, File},
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    DevclusterError,
    control_socket::{Answer, Connection, Order},
    directory::{DirectoryArgument, RunDirectory},
    journal::Journal,
    keeper::{Claim, keep},
    manager::BINARY_VARIABLE,
    screen::Screen,
    view::{reach_text, until_over, until_running},
};
use nodewright_e2e_control_plane::{USER_AGENT, client};
use nodewright_e2e_process::{command::Shutdown, executable};

/// How long the keeper may take until it takes orders; some milliseconds, on an idle machine.
const KEEPER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a set may take to end, until it is killed, and then.
const END_TIMEOUT: Duration = Duration::from_secs(40);
/// Between two looks of a wait.
const LOOK: Duration = Duration::from_millis(50);
/// How many lines of the keeper's log an error shows.
const TAIL_LINES: usize = 15;

/// Starts a control plane, a cloud and the manager in the background, with three machines, and returns when they run.
#[derive(Clone, Debug, clap::Args)]
pub struct UpArguments {
    #[command(flatten)]
    directory: DirectoryArgument,
    /// Seconds that the machines may take
    #[arg(long, default_value_t = 180)]
    timeout: u64,
    /// More flags for the manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// Ends what `up` or `run` has started. Does nothing if nothing runs.
#[derive(Clone, Debug, clap::Args)]
pub struct DownArguments {
    #[command(flatten)]
    directory: DirectoryArgument,
}

/// Starts a control plane, a cloud and the manager, shows how three machines come up, and ends everything on Ctrl-C.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArguments {
    #[command(flatten)]
    directory: DirectoryArgument,
    /// More flags for the manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// Starts the manager of a running set again, in the background, after it has ended or was killed.
#[derive(Clone, Debug, clap::Args)]
pub struct ManagerArguments {
    #[command(flatten)]
    directory: DirectoryArgument,
    /// More flags for the manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// Keeps the set that `up` has started.
#[derive(Clone, Debug, clap::Args)]
pub struct KeepArguments {
    #[command(flatten)]
    directory: DirectoryArgument,
    /// More flags for the manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// Runs `up`.
pub async fn up(arguments: UpArguments) -> Result<(), DevclusterError> {
    let directory = arguments.directory.open()?;
    let shutdown = Shutdown::listen()?;
    let coming = come_up(&directory, &arguments);
    match shutdown.graceful.run_until_cancelled(coming).await {
        Some(result) => result,
        None => end(&directory).await.map(drop),
    }
}

async fn come_up(directory: &RunDirectory, arguments: &UpArguments) -> Result<(), DevclusterError> {
    let mut screen = Screen::new();
    let say = |screen: &mut Screen<_>, text: &str| screen.say(text).map_err(output);
    if let Some(mut connection) = connect(directory).await? {
        follow(directory, &mut connection, |_| Ok(())).await?;
        check(directory).await?;
        let text = format!("A set is up already in {}.", directory.root().display());
        return say(&mut screen, &(text + "\n" + &reach_text(&directory.shown())));
    }
    let mut connection = start_keeper(directory, &arguments.manager_flags).await?;
    follow(directory, &mut connection, |line| say(&mut screen, line)).await?;
    let client = client(&directory.kubeconfig(), USER_AGENT).await?;
    let timeout = Duration::from_secs(arguments.timeout);
    let running = until_running(&mut screen, &client, timeout).await;
    running.map_err(|error| with_manager_log(error, directory))?;
    say(&mut screen, &reach_text(&directory.shown()))
}

/// The reason why machines do not come up stands in the manager's log, most likely.
fn with_manager_log(error: DevclusterError, directory: &RunDirectory) -> DevclusterError {
    match error {
        DevclusterError::Machines { what, waited, seen } => {
            let log = directory.root().join("logs/manager.log");
            let tail = tail(&log);
            let hint = "The set is still up, `make down` ends it.";
            let seen = format!("{seen}the last lines of {}:\n{tail}\n{hint}", log.display());
            DevclusterError::Machines { what, waited, seen }
        }
        error => error,
    }
}

/// Runs `keep`, which `up` starts in the background.
pub async fn keep_up(arguments: KeepArguments) -> Result<(), DevclusterError> {
    let shutdown = Shutdown::listen()?;
    let claim = Claim::take(arguments.directory.open()?)?;
    keep(claim, arguments.manager_flags, &Journal::new(true), &shutdown).await
}

/// Runs `run`.
pub async fn run(arguments: RunArguments) -> Result<(), DevclusterError> {
    let shutdown = Shutdown::listen()?;
    let directory = arguments.directory.open()?;
    let claim = Claim::take(directory.clone())?;
    let journal = Journal::new(false);
    let viewing = async {
        let result = until_over(journal.listen(), &directory).await;
        // Nobody watches any more: the set has no purpose left. (If it is over already, nothing happens.)
        shutdown.graceful.cancel();
        result
    };
    let (kept, viewed) = tokio::join!(keep(claim, arguments.manager_flags, &journal, &shutdown), viewing);
    kept.and(viewed)
}

/// Runs `down`.
pub async fn down(arguments: DownArguments) -> Result<(), DevclusterError> {
    let directory = arguments.directory.open()?;
    let said = if end(&directory).await? { "It has ended; logs are still in" } else { "Nothing runs in" };
    Screen::new().say(&format!("{said} {}.", directory.shown())).map_err(output)
}

/// Runs `manager`.
pub async fn manager(arguments: ManagerArguments) -> Result<(), DevclusterError> {
    let directory = arguments.directory.open()?;
    let Some(mut connection) = connect(&directory).await? else {
        return Err(DevclusterError::NotRunning { directory: directory.root().to_owned() });
    };
    let program = executable("nodewright", BINARY_VARIABLE)?;
    let program = std::path::absolute(&program).map_err(DevclusterError::file("find", program))?;
    let order = Order::StartManager { program, flags: arguments.manager_flags };
    ask(&directory, &mut connection, &order, "start the manager").await?;
    let log = format!("{}/logs/manager.log", directory.shown());
    Screen::new().say(&format!("The manager is ready; its log is {log}.")).map_err(output)
}

async fn connect(directory: &RunDirectory) -> Result<Option<Connection>, DevclusterError> {
    Connection::open(directory).await.map_err(DevclusterError::file("connect to", directory.socket()))
}

/// Starts the keeper, in a process group of its own: a Ctrl-C here is not for it.
async fn start_keeper(directory: &RunDirectory, manager_flags: &[String]) -> Result<Connection, DevclusterError> {
    let log = directory.keeper_log();
    let open = || File::create(&log).and_then(|file| Ok((file.try_clone()?, file)));
    let (stdout, stderr) = open().map_err(DevclusterError::file("open the log", &log))?;
    let program = std::env::current_exe().map_err(DevclusterError::file("find", "the present executable"))?;
    let mut command = Command::new(&program);
    command.arg("keep").arg("--directory").arg(directory.root()).arg("--").args(manager_flags);
    command.process_group(0).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    let mut keeper = command.spawn().map_err(DevclusterError::file("start", program))?;
    let since = Instant::now();
    loop {
        if let Some(connection) = connect(directory).await? {
            return Ok(connection);
        }
        if has_ended(&mut keeper) || since.elapsed() > KEEPER_TIMEOUT {
            return Err(gone(directory, "start"));
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn has_ended(process: &mut Child) -> bool {
    process.try_wait().is_ok_and(|status| status.is_some())
}

/// Hears what the keeper tells until everything is there.
async fn follow(
    directory: &RunDirectory,
    connection: &mut Connection,
    mut hear: impl FnMut(&str) -> Result<(), DevclusterError>,
) -> Result<(), DevclusterError> {
    let broken = || DevclusterError::file("ask", directory.socket());
    connection.send(&Order::Follow).await.map_err(broken())?;
    loop {
        match connection.receive().await.map_err(broken())? {
            Some(Answer::Told { line }) => hear(&line)?,
            Some(Answer::Done { .. }) => return Ok(()),
            Some(Answer::Refused { reason }) => return Err(DevclusterError::Refused(reason)),
            None => return Err(gone(directory, "start")),
        }
    }
}

/// An error if not all runs that should.
async fn check(directory: &RunDirectory) -> Result<(), DevclusterError> {
    let Some(mut connection) = connect(directory).await? else { return Err(gone(directory, "tell how it is")) };
    let missing = ask(directory, &mut connection, &Order::Status, "tell how it is").await?;
    if missing.is_empty() {
        return Ok(());
    }
    Err(DevclusterError::Incomplete { directory: directory.root().to_owned(), missing: missing.join(", ") })
}

/// Gives an order and waits until it is obeyed.
async fn ask(
    directory: &RunDirectory,
    connection: &mut Connection,
    order: &Order,
    action: &'static str,
) -> Result<Vec<String>, DevclusterError> {
    let broken = || DevclusterError::file("ask", directory.socket());
    connection.send(order).await.map_err(broken())?;
    match connection.receive().await.map_err(broken())? {
        Some(Answer::Done { missing }) => Ok(missing),
        Some(Answer::Refused { reason }) => Err(DevclusterError::Refused(reason)),
        Some(Answer::Told { .. }) | None => Err(gone(directory, action)),
    }
}

/// Ends the set, and returns when nothing of it is left; `false` if there was none.
async fn end(directory: &RunDirectory) -> Result<bool, DevclusterError> {
    let mut ran = false;
    if let Some(mut connection) = connect(directory).await? {
        ran = true;
        // The keeper may end before it has answered.
        let _ = ask(directory, &mut connection, &Order::Stop, "end").await;
    }
    if !is_over(directory, END_TIMEOUT).await? {
        ran = true;
        kill_keeper(directory)?;
        if !is_over(directory, END_TIMEOUT).await? {
            return Err(DevclusterError::NotEnded { directory: directory.root().to_owned(), waited: 2 * END_TIMEOUT });
        }
    }
    Ok(ran)
}

/// Waits until there is no keeper and no process of its, and removes what one that was killed has left.
async fn is_over(directory: &RunDirectory, patience: Duration) -> Result<bool, DevclusterError> {
    let since = Instant::now();
    loop {
        let claim = directory.claim()?;
        if claim.is_some() && directory.is_released()? {
            directory.clear()?;
            return Ok(true);
        }
        drop(claim);
        if since.elapsed() > patience {
            return Ok(false);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The lock says that there is a keeper, so its process id is not somebody else's.
fn kill_keeper(directory: &RunDirectory) -> Result<(), DevclusterError> {
    let Some(pid) = directory.keeper_pid() else { return Ok(()) };
    let killed = Command::new("sh").args(["-c", "kill -s KILL \"$1\"", "sh", &pid.to_string()]).status();
    killed.map(drop).map_err(DevclusterError::file("run", "sh"))
}

fn gone(directory: &RunDirectory, action: &'static str) -> DevclusterError {
    let log = directory.keeper_log();
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
