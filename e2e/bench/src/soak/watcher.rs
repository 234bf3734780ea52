//! Polls once a second during a soak: machines and their deadlines, requests, processes.

use std::{
    fmt::Display,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use kube::{Api, ResourceExt, api::ListParams};
use nodewright_api::Machine;

use nodewright_e2e_lab::{
    control_plane::Component,
    devcluster::{
        NAMESPACE,
        machines::{is_running, table},
    },
};

use super::{
    counts::Counts,
    deadlines::{Deadlines, Note},
    managers::Managers,
};
use crate::{
    error::BenchError,
    measure::{Measured, is_counted_write, print},
};

/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long nothing is written until a change counts as complete.
const QUIET: Duration = Duration::from_secs(10);
/// How long it may take until all machines run and nothing is written.
const SETTLE_TIMEOUT: Duration = Duration::from_mins(3);
/// The longest outage after which no deadline may move.
const SHORT_OUTAGE: Duration = Duration::from_secs(25);

pub(crate) struct Watcher {
    pub(crate) measured: Measured,
    pub(crate) managers: Managers,
    pub(crate) deadlines: Deadlines,
    pub(crate) counts: Counts,
    pub(crate) problems: Vec<String>,
    machines: Vec<Machine>,
    begun: Instant,
    /// The time of the last write of Nodewright.
    last_write: Instant,
    /// The writes during a rest. `None` outside of rests.
    rest: Option<Vec<String>>,
    /// Whether a deadline expired during the rest: then writes are expected.
    deadline_expired: bool,
    /// Whether the soak stopped the API server.
    api_server_is_away: bool,
}

impl Watcher {
    pub(crate) fn new(measured: Measured, managers: Managers, health_timeout: SignedDuration) -> Self {
        Self {
            measured,
            managers,
            deadlines: Deadlines::new(health_timeout),
            counts: Counts::default(),
            problems: Vec::new(),
            machines: Vec::new(),
            begun: Instant::now(),
            last_write: Instant::now(),
            rest: None,
            deadline_expired: false,
            api_server_is_away: false,
        }
    }

    /// The machines of the last poll.
    pub(crate) fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// Prints a line with the elapsed time, and the wall-clock time, which can be searched in logs.
    pub(crate) fn print_line(&self, text: impl Display) -> Result<(), BenchError> {
        let seconds = self.begun.elapsed().as_secs();
        let clock = Timestamp::now().strftime("%H:%M:%SZ");
        print(&format!("{:02}:{:02}  {clock}  {text}", seconds / 60, seconds % 60))
    }

    /// Reports a broken guarantee. The soak continues, to find others.
    pub(crate) fn broken(&mut self, problem: impl Into<String>) -> Result<(), BenchError> {
        let problem = problem.into();
        self.print_line(format!("BROKEN: {problem}"))?;
        self.problems.push(problem);
        Ok(())
    }

    /// Polls everything after a pause.
    async fn poll(&mut self) -> Result<(), BenchError> {
        tokio::time::sleep(POLL_INTERVAL).await;
        self.read_requests()?;
        let mut lines = Vec::new();
        self.managers.restart_ended(&mut self.measured, |text| lines.push(text))?;
        if !self.api_server_is_away {
            lines.extend(self.measured.restart_ended().await?);
        }
        for text in lines {
            self.print_line(text)?;
        }
        let machines: Api<Machine> = Api::namespaced(self.measured.client(), NAMESPACE);
        // From the server's watch cache: consistent lists make the server send more bookmarks to idle watches.
        let Ok(list) = machines.list(&ListParams::default().match_any()).await else { return Ok(()) };
        self.machines = list.items;
        for note in self.deadlines.observe(Timestamp::now(), &self.machines) {
            match note {
                Note::Expected(text) => self.print_line(text)?,
                Note::Failed(text) => {
                    self.deadline_expired = true;
                    self.print_line(text)?;
                }
                Note::Broken(text) => self.broken(text)?,
            }
        }
        Ok(())
    }

    fn read_requests(&mut self) -> Result<(), BenchError> {
        for entry in self.measured.read()? {
            self.counts.add(&entry);
            if !is_counted_write(&entry) {
                continue;
            }
            self.last_write = Instant::now();
            if let Some(writes) = &mut self.rest {
                writes.push(format!("{} {} {} {}", entry.received, entry.user_agent, entry.verb, entry.uri));
            }
        }
        Ok(())
    }

    /// Polls for this time.
    pub(crate) async fn poll_for(&mut self, duration: Duration) -> Result<(), BenchError> {
        let since = Instant::now();
        while since.elapsed() < duration {
            self.poll().await?;
        }
        Ok(())
    }

    /// Polls until the condition holds. A timeout is a broken guarantee.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        timeout: Duration,
        condition: impl Fn(&Self) -> bool,
    ) -> Result<(), BenchError> {
        let since = Instant::now();
        while !condition(self) {
            if since.elapsed() > timeout {
                let seen = table(&self.machines);
                return self.broken(format!("{what} did not happen within {timeout:?}:\n{seen}"));
            }
            self.poll().await?;
        }
        Ok(())
    }

    /// Polls until there are this many machines, all running or waiting for their deadlines, and nothing is written.
    pub(crate) async fn settle(&mut self, machines: usize) -> Result<(), BenchError> {
        let what = format!("{machines} machines and no writes");
        self.until(&what, SETTLE_TIMEOUT, |watcher| {
            let is_settled =
                |machine: &Machine| is_running(machine) || watcher.deadlines.is_waiting(&machine.name_any());
            watcher.machines.len() == machines
                && watcher.machines.iter().all(is_settled)
                && watcher.last_write.elapsed() >= QUIET
        })
        .await
    }

    /// Rests for this time, in which nothing may be written. `false` if a deadline expired: then it was no rest.
    pub(crate) async fn rest(&mut self, duration: Duration) -> Result<bool, BenchError> {
        self.read_requests()?;
        self.deadline_expired = false;
        self.rest = Some(Vec::new());
        let since = Instant::now();
        while since.elapsed() < duration && !self.deadline_expired {
            self.poll().await?;
        }
        let writes = self.rest.take().unwrap_or_default();
        if self.deadline_expired {
            return Ok(false);
        }
        if writes.is_empty() {
            self.print_line(format!("at rest for {duration:?}: no write"))?;
        } else {
            let (count, writes) = (writes.len(), writes.join("\n"));
            self.broken(format!("{count} writes within {duration:?} at rest; there should be none:\n{writes}"))?;
        }
        Ok(true)
    }

    /// Stops the API server for this time. Returns how long it was away.
    pub(crate) async fn stop_api_server(&mut self, duration: Duration) -> Result<Duration, BenchError> {
        let since = Instant::now();
        self.api_server_is_away = true;
        self.measured.control_plane().stop(Component::ApiServer)?;
        self.poll_for(duration).await?;
        self.measured.control_plane().start_again(Component::ApiServer).await?;
        self.api_server_is_away = false;
        if since.elapsed() > SHORT_OUTAGE {
            self.deadlines.outage_ended(Timestamp::now());
        }
        Ok(since.elapsed())
    }
}
