//! Looks at everything once a second while a soak goes on: machines and their deadlines, requests, processes.

use std::{
    fmt::Display,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use kube::{Api, ResourceExt, api::ListParams};
use nodewright_api::Machine;

use nodewright_e2e_control_plane::Component;
use nodewright_e2e_devcluster::{
    NAMESPACE,
    machines::{is_running, table},
};

use super::{
    counts::Counts,
    deadlines::{Deadlines, Note},
    managers::Managers,
};
use crate::{
    error::BenchError,
    measure::{Measured, is_work, print},
};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// So long without a write, and what was under way is over.
const QUIET: Duration = Duration::from_secs(10);
/// How long it may take until all machines are up and nothing is written.
const SETTLE_TIMEOUT: Duration = Duration::from_mins(3);
/// A manager treats a break as short up to here, and no deadline may move.
const SHORT_OUTAGE: Duration = Duration::from_secs(25);

pub(crate) struct Watcher {
    pub(crate) measured: Measured,
    pub(crate) managers: Managers,
    pub(crate) deadlines: Deadlines,
    pub(crate) counts: Counts,
    pub(crate) problems: Vec<String>,
    machines: Vec<Machine>,
    begun: Instant,
    /// When one of our writes was seen last.
    wrote: Instant,
    /// While nothing may be written: what was.
    rest: Option<Vec<String>>,
    /// A deadline ended during a rest: what is written then has its reason.
    is_disturbed: bool,
    /// Whether the API server was taken away.
    is_away: bool,
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
            wrote: Instant::now(),
            rest: None,
            is_disturbed: false,
            is_away: false,
        }
    }

    /// The machines as they were seen last.
    pub(crate) fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// Prints a line with the time since the beginning, and that of the clock, by which logs can be searched.
    pub(crate) fn say(&self, text: impl Display) -> Result<(), BenchError> {
        let seconds = self.begun.elapsed().as_secs();
        let clock = Timestamp::now().strftime("%H:%M:%SZ");
        print(&format!("{:02}:{:02}  {clock}  {text}", seconds / 60, seconds % 60))
    }

    /// Something broke. The soak goes on: what else breaks is worth knowing.
    pub(crate) fn broken(&mut self, problem: impl Into<String>) -> Result<(), BenchError> {
        let problem = problem.into();
        self.say(format!("BROKEN: {problem}"))?;
        self.problems.push(problem);
        Ok(())
    }

    /// Looks at everything.
    async fn look(&mut self) -> Result<(), BenchError> {
        tokio::time::sleep(LOOK).await;
        self.read_requests()?;
        let mut said = Vec::new();
        self.managers.revive(&mut self.measured, |text| said.push(text))?;
        if !self.is_away {
            said.extend(self.measured.mend().await?);
        }
        for text in said {
            self.say(text)?;
        }
        let machines: Api<Machine> = Api::namespaced(self.measured.client(), NAMESPACE);
        // From the server's cache: a consistent list would have idle watches hear more than they hear by themselves.
        let Ok(list) = machines.list(&ListParams::default().match_any()).await else { return Ok(()) };
        self.machines = list.items;
        for note in self.deadlines.observe(Timestamp::now(), &self.machines) {
            match note {
                Note::Seen(text) => self.say(text)?,
                Note::GivenUp(text) => {
                    self.is_disturbed = true;
                    self.say(text)?;
                }
                Note::Broken(text) => self.broken(text)?,
            }
        }
        Ok(())
    }

    fn read_requests(&mut self) -> Result<(), BenchError> {
        for entry in self.measured.read()? {
            self.counts.add(&entry);
            if !is_work(&entry) {
                continue;
            }
            self.wrote = Instant::now();
            if let Some(writes) = &mut self.rest {
                writes.push(format!("{} {} {} {}", entry.received, entry.user_agent, entry.verb, entry.uri));
            }
        }
        Ok(())
    }

    /// Goes on looking for so long.
    pub(crate) async fn look_for(&mut self, duration: Duration) -> Result<(), BenchError> {
        let since = Instant::now();
        while since.elapsed() < duration {
            self.look().await?;
        }
        Ok(())
    }

    /// Looks until it is so; something broke if it takes too long.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        timeout: Duration,
        is_so: impl Fn(&Self) -> bool,
    ) -> Result<(), BenchError> {
        let since = Instant::now();
        while !is_so(self) {
            if since.elapsed() > timeout {
                let seen = table(&self.machines);
                return self.broken(format!("waited {timeout:?} for {what} in vain:\n{seen}"));
            }
            self.look().await?;
        }
        Ok(())
    }

    /// Looks until so many machines are up, or wait to be given up, and nothing is written.
    pub(crate) async fn settle(&mut self, machines: usize) -> Result<(), BenchError> {
        let what = format!("{machines} machines and no writes");
        self.until(&what, SETTLE_TIMEOUT, |watcher| {
            let is_settled =
                |machine: &Machine| is_running(machine) || watcher.deadlines.is_waiting(&machine.name_any());
            watcher.machines.len() == machines
                && watcher.machines.iter().all(is_settled)
                && watcher.wrote.elapsed() >= QUIET
        })
        .await
    }

    /// Nothing happens for so long, and nothing may be written. Whether it was so: a rest in which a deadline ends is none.
    pub(crate) async fn rest(&mut self, duration: Duration) -> Result<bool, BenchError> {
        self.read_requests()?;
        self.is_disturbed = false;
        self.rest = Some(Vec::new());
        let since = Instant::now();
        while since.elapsed() < duration && !self.is_disturbed {
            self.look().await?;
        }
        let writes = self.rest.take().unwrap_or_default();
        if self.is_disturbed {
            return Ok(false);
        }
        if writes.is_empty() {
            self.say(format!("at rest for {duration:?}: no write"))?;
        } else {
            let (count, writes) = (writes.len(), writes.join("\n"));
            self.broken(format!("{count} writes within {duration:?} of rest; there should be none:\n{writes}"))?;
        }
        Ok(true)
    }

    /// The API server is killed, and comes back after a while. How long it was away.
    pub(crate) async fn api_server_away(&mut self, duration: Duration) -> Result<Duration, BenchError> {
        let since = Instant::now();
        self.is_away = true;
        self.measured.control_plane().stop(Component::ApiServer)?;
        self.look_for(duration).await?;
        self.measured.control_plane().start_again(Component::ApiServer).await?;
        self.is_away = false;
        if since.elapsed() > SHORT_OUTAGE {
            self.deadlines.outage_ended(Timestamp::now());
        }
        Ok(since.elapsed())
    }
}
