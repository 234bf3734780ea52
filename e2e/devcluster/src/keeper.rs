//! Keeps a set: starts it, mends it, takes orders, ends it.
//!
//! # Guarantees
//!
//! * A directory has one keeper at a time.
//! * When [`keep`] returns, no process of the set is left, and no file that tells of it but logs and audit log.
//! * The same holds when the keeper ends in any other way, `kill -9` included; a manager that was started later ends,
//!   too. The directory is not free for another keeper before all is removed.

use std::{fs::File, process, time::Duration};

use tokio::{
    net::{UnixListener, UnixStream},
    sync::{mpsc, oneshot},
    time::{MissedTickBehavior, interval},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    DevclusterError,
    control_socket::{self, Answer, Connection, Order},
    devcluster::{Devcluster, DevclusterOptions},
    directory::{KEEPER, RunDirectory},
    journal::{Journal, Stage},
};
use nodewright_e2e_process::{Supervisor, command::Shutdown, with_causes};

/// How often the keeper looks whether all processes still run.
const LOOK: Duration = Duration::from_millis(500);
/// Orders that wait for the one before.
const WAITING_ORDERS: usize = 8;

/// The right to keep the set of a directory.
#[derive(Debug)]
pub(crate) struct Claim {
    directory: RunDirectory,
    listener: UnixListener,
    lock: File,
}

impl Claim {
    /// Takes the directory, and removes what a keeper that was killed has left. An error if there is a keeper.
    pub(crate) fn take(directory: RunDirectory) -> Result<Self, DevclusterError> {
        let Some(lock) = directory.claim()? else {
            return Err(DevclusterError::Running { directory: directory.root().to_owned() });
        };
        directory.clear()?;
        let listener =
            control_socket::listen(&directory).map_err(DevclusterError::file("listen on", directory.socket()))?;
        Ok(Self { directory, listener, lock })
    }
}

/// An order, and who waits for the answer.
type Asked = (Order, oneshot::Sender<Answer>);

/// Keeps a set until it is asked to end.
pub(crate) async fn keep(
    claim: Claim,
    manager_flags: Vec<String>,
    journal: &Journal,
    shutdown: &Shutdown,
) -> Result<(), DevclusterError> {
    let Claim { directory, listener, lock } = claim;
    let supervisor = Supervisor::start(&directory.disposable(), Some(&lock))?;
    // The kernel unlocks it when this process has ended. Whoever waits for that is not to find it still there.
    std::mem::forget(lock);
    let (asked, mut orders) = mpsc::channel(WAITING_ORDERS);
    let clerks = TaskTracker::new();
    clerks.spawn(take_orders(listener, asked, journal.clone(), shutdown.graceful.clone(), clerks.clone()));
    // On the heap: it holds everything that there is.
    let keeping = Box::pin(keep_set(&directory, manager_flags, &mut orders, journal, shutdown));
    let result = shutdown.immediate.run_until_cancelled(keeping).await.unwrap_or(Ok(()));
    // Whoever waits for an answer is told that there will be none.
    drop(orders);
    shutdown.graceful.cancel();
    journal.enter(Stage::Over);
    drop(supervisor);
    clerks.close();
    clerks.wait().await;
    result
}

async fn keep_set(
    directory: &RunDirectory,
    manager_flags: Vec<String>,
    orders: &mut mpsc::Receiver<Asked>,
    journal: &Journal,
    shutdown: &Shutdown,
) -> Result<(), DevclusterError> {
    let options = DevclusterOptions {
        directory: Some(directory.root().to_owned()),
        manager_flags,
        ..DevclusterOptions::default()
    };
    let starting = start(directory, &options, journal);
    // Ended while it starts: what is there already ends by being dropped.
    let Some(set) = shutdown.graceful.run_until_cancelled(starting).await else { return Ok(()) };
    let mut set = set?;
    let tending = tend(directory, &mut set, orders, journal);
    shutdown.graceful.run_until_cancelled(tending).await.transpose()?;
    journal.say("ending".to_owned());
    set.stop().await
}

async fn start(
    directory: &RunDirectory,
    options: &DevclusterOptions,
    journal: &Journal,
) -> Result<Devcluster, DevclusterError> {
    let mut set = Devcluster::start(options, |line| journal.say(line)).await?;
    directory.write_env(&set.reach())?;
    write_pids(directory, &mut set)?;
    set.apply_samples().await?;
    journal.say("config/samples is applied".to_owned());
    journal.enter(Stage::Ready);
    Ok(set)
}

fn write_pids(directory: &RunDirectory, set: &mut Devcluster) -> Result<(), DevclusterError> {
    let mut pids = set.pids();
    pids.insert(KEEPER.to_owned(), process::id());
    directory.write_pids(&pids)
}

/// Mends and obeys, until it is dropped.
async fn tend(
    directory: &RunDirectory,
    set: &mut Devcluster,
    orders: &mut mpsc::Receiver<Asked>,
    journal: &Journal,
) -> Result<(), DevclusterError> {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut manager_ran = true;
    loop {
        let asked = tokio::select! {
            Some(asked) = orders.recv() => Some(asked),
            _ = looks.tick() => None,
        };
        if let Some((order, reply)) = asked {
            let answer = obey(order, set, journal).await;
            write_pids(directory, set)?;
            // Nobody waits any more if this fails.
            let _ = reply.send(answer);
        } else {
            if let Err(error) = set.mend(|line| journal.say(line)).await {
                journal.say(with_causes(&error));
            }
            write_pids(directory, set)?;
        }
        let ended = set.manager().ended();
        if let Some(status) = ended.filter(|_| manager_ran) {
            journal.say(format!("the manager ended with {status}; `make manager` starts it again"));
        }
        manager_ran = ended.is_none();
    }
}

async fn obey(order: Order, set: &mut Devcluster, journal: &Journal) -> Answer {
    match order {
        Order::StartManager { program, flags } => match set.start_manager(&flags, Some(program)).await {
            Ok(()) => {
                journal.say(format!("the manager is ready, its endpoints at {}", set.manager().url("/")));
                Answer::Done { missing: Vec::new() }
            }
            Err(error) => Answer::Refused { reason: with_causes(&error) },
        },
        Order::Status => {
            let missing = if set.manager().is_running() { Vec::new() } else { vec!["manager".to_owned()] };
            Answer::Done { missing }
        }
        // The clerks see to these.
        Order::Follow | Order::Stop => Answer::Done { missing: Vec::new() },
    }
}

/// Gives each connection a task of its own, until the set ends.
async fn take_orders(
    listener: UnixListener,
    asked: mpsc::Sender<Asked>,
    journal: Journal,
    end: CancellationToken,
    clerks: TaskTracker,
) {
    while let Some(accepted) = end.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, _)) => drop(clerks.spawn(serve(stream, asked.clone(), journal.clone(), end.clone()))),
            Err(error) => tracing::warn!(%error, "failed to accept a connection"),
        }
    }
}

async fn serve(stream: UnixStream, asked: mpsc::Sender<Asked>, journal: Journal, end: CancellationToken) {
    let mut connection = Connection::new(stream);
    // One who connects and says nothing must not keep the set from ending.
    let Some(received) = end.run_until_cancelled(connection.receive()).await else { return };
    let result = match received {
        Ok(Some(Order::Follow)) => follow(&mut connection, &journal).await,
        Ok(Some(Order::Stop)) => {
            end.cancel();
            connection.send(&Answer::Done { missing: Vec::new() }).await
        }
        Ok(Some(order)) => {
            let (reply, answer) = oneshot::channel();
            let answer = if asked.send((order, reply)).await.is_ok() { answer.await.ok() } else { None };
            let over = || Answer::Refused { reason: "the set is being ended".to_owned() };
            connection.send(&answer.unwrap_or_else(over)).await
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection broke");
    }
}

/// Tells what happens until everything is there, or nothing will be any more: then the connection ends without an
/// answer.
async fn follow(connection: &mut Connection, journal: &Journal) -> std::io::Result<()> {
    let mut told = journal.listen();
    let mut seen = 0;
    loop {
        let (lines, stage) = {
            let told = told.borrow_and_update();
            (told.news(&mut seen), told.stage)
        };
        for line in lines {
            connection.send(&Answer::Told { line }).await?;
        }
        match stage {
            Stage::Starting => {}
            Stage::Ready => return connection.send(&Answer::Done { missing: Vec::new() }).await,
            Stage::Over => return Ok(()),
        }
        if told.changed().await.is_err() {
            return Ok(());
        }
    }
}
