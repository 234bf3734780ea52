//! Decides the result of each request of each manager, and records the decision.
//!
//! # Guarantees
//! * A request that a killed manager sends after its death has no effect and gets no answer, whatever of it still runs.
//! * The same requests in the same order meet the same results.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use nodewright_runtime::leadership::Clock;
use nodewright_testing::api_server::{Fault, RequestRecord};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{
    clock::JumpingClock,
    design::Design,
    leases::Leases,
    names::{MANAGER, prefix},
    schedule::{Edit, RequestResult, Schedule, Trouble},
    trace::Trace,
};

/// A run takes some hundred steps. A run that takes this many would never end.
const RUNAWAY: u64 = 20_000;

/// The API server lags by at most this much.
const FURTHEST_LAG: Duration = Duration::from_mins(1);
/// A longer outage disconnects a manager.
const NOTICED: Duration = Duration::from_secs(75);
/// Within this window no object may be written more than twice a second, for each manager that writes.
const WINDOW: Duration = Duration::from_mins(1);
const MOST_IN_WINDOW: usize = 120;

/// Decides the results. A clone shares the state of the original.
#[derive(Clone)]
pub(super) struct Adversary {
    state: Arc<Mutex<State>>,
    /// Makes the changes of users between two steps.
    user: Arc<Mutex<Option<User>>>,
    trace: Trace,
}

/// The kinds of the target cluster that managers know.
const OF_TARGET: [&str; 8] = [
    "nodes",
    "pods",
    "poddisruptionbudgets",
    "persistentvolumeclaims",
    "persistentvolumes",
    "volumeattachments",
    "machineconfigpools",
    "machineconfigs",
];
/// The kinds that a drain removes.
const REMOVED: [&str; 2] = ["pods", "volumeattachments"];

type User = Box<dyn Fn(&Edit) + Send>;

struct State {
    aims: Aims,
    /// The number of writes per verb and kind.
    written: BTreeMap<(String, String), u64>,
    /// The number of steps.
    steps: u64,
    /// The number of steps that were writes to the API server.
    writes: u64,
    /// The number of events sent. They do not count as steps.
    events: u64,
    /// The number of writes that remove pods and attachments.
    removals: u64,
    /// The managers that run, and the notification of each one's death.
    living: BTreeMap<String, Arc<Notify>>,
    silenced: Option<Instant>,
    /// Until when managers do not reach the target's API server.
    target_silenced: Option<Instant>,
    /// Until when a policy refuses to remove pods, and its status.
    pods_refused: Option<(Instant, u16)>,
    slow: Option<(Instant, Duration)>,
    /// The end of the API server's lag, and its size.
    lag: Option<(Instant, Duration)>,
    /// When the API server reached each version, as far back as a read may lag.
    versions: VecDeque<(Instant, u64)>,
    refusals: Option<Refusals>,
    random: fastrand::Rng,
    /// The requests that a manager must not have sent.
    wrongs: Vec<String>,
    leases: Leases,
    /// By manager slot.
    clocks: BTreeMap<&'static str, Arc<JumpingClock>>,
    elects: bool,
    secrets: Vec<String>,
    /// When each manager started, and when the last outage ended.
    born: BTreeMap<String, Instant>,
    outage_end: Option<Instant>,
    rates: Rates,
    /// Another client writes as often as it can, so managers do, too.
    is_excited: bool,
}

struct Refusals {
    until: Instant,
    /// Without a code there is no answer.
    code: Option<u16>,
    percent: u8,
}

/// The results of single steps and requests.
#[derive(Default)]
struct Aims {
    request_results: BTreeMap<u64, RequestResult>,
    /// The result of the n-th write per verb and kind.
    aimed: BTreeMap<(String, String, u64), RequestResult>,
    edits: BTreeMap<u64, Edit>,
}

impl Aims {
    fn of(schedule: &Schedule) -> Self {
        let mut aims = Self::default();
        for trouble in schedule.0.iter().cloned() {
            match trouble {
                Trouble::Step { step, request_result } => drop(aims.request_results.insert(step, request_result)),
                Trouble::Request { verb, plural, number, request_result } => {
                    aims.aimed.insert((verb, plural, number), request_result);
                }
                Trouble::Edit { step, edit } => drop(aims.edits.insert(step, edit)),
                Trouble::At { .. } => {}
            }
        }
        aims
    }
}

impl Adversary {
    pub(super) fn new(
        schedule: &Schedule,
        design: &Design,
        clocks: BTreeMap<&'static str, Arc<JumpingClock>>,
        trace: Trace,
    ) -> Self {
        let state = State {
            aims: Aims::of(schedule),
            written: BTreeMap::new(),
            steps: 0,
            writes: 0,
            events: 0,
            removals: 0,
            living: BTreeMap::new(),
            silenced: None,
            target_silenced: None,
            pods_refused: None,
            slow: None,
            lag: None,
            versions: VecDeque::new(),
            refusals: None,
            random: fastrand::Rng::with_seed(design.seed),
            wrongs: vec![],
            leases: Leases::default(),
            clocks,
            elects: design.elects,
            secrets: vec![],
            born: BTreeMap::new(),
            outage_end: None,
            rates: Rates::of(if design.elects { 1 } else { schedule.managers() }),
            is_excited: schedule.is_exciting(),
        };
        Self { state: Arc::new(Mutex::new(state)), user: Arc::default(), trace }
    }

    /// Sets the callback that makes the changes of users between two steps; `None` removes it.
    pub(super) fn set_user(&self, user: Option<User>) {
        *self.user.lock() = user;
    }

    /// Lets the user make the change that comes between the decision for a step and the step.
    fn edit(&self, edit: Option<Edit>) {
        if let (Some(edit), Some(user)) = (edit, self.user.lock().as_ref()) {
            self.trace.line(format_args!("{edit:?}"));
            user(&edit);
        }
    }

    /// Lets all further steps be. The search for orphaned VMs takes some while nothing happens.
    pub(super) fn rest(&self) {
        let mut state = self.state.lock();
        state.aims.request_results.clear();
        state.aims.edits.clear();
    }

    pub(super) fn steps(&self) -> u64 {
        self.state.lock().steps
    }

    pub(super) fn writes(&self) -> u64 {
        self.state.lock().writes
    }

    pub(super) fn events(&self) -> u64 {
        self.state.lock().events
    }

    /// The number of writes that remove pods and attachments of volumes.
    pub(super) fn removals(&self) -> u64 {
        self.state.lock().removals
    }

    /// When the youngest running manager started.
    pub(super) fn youngest(&self) -> Option<Instant> {
        let state = self.state.lock();
        state.living.keys().filter_map(|name| state.born.get(name).copied()).max()
    }

    /// The number of aimed results that have not met their request.
    pub(super) fn missed(&self) -> usize {
        self.state.lock().aims.aimed.len()
    }

    /// Registers a manager that starts. Returns the notification of its death.
    pub(super) fn born(&self, name: &str) -> Arc<Notify> {
        self.trace.line(format_args!("{name} starts"));
        self.state.lock().born.insert(name.to_owned(), Instant::now());
        self.state.lock().living.entry(name.to_owned()).or_default().clone()
    }

    /// From now on, nothing that this manager sends has an effect or gets an answer.
    pub(super) fn kill(&self, name: &str) {
        if let Some(death) = self.state.lock().living.remove(name) {
            self.trace.line(format_args!("{name} is killed"));
            death.notify_one();
        }
    }

    /// Kills the manager that runs in a slot.
    pub(super) fn kill_slot(&self, slot: &str) {
        let prefix = prefix(slot);
        let names: Vec<String> =
            self.state.lock().living.keys().filter(|name| name.starts_with(&prefix)).cloned().collect();
        for name in names {
            self.kill(&name);
        }
    }

    pub(super) fn is_alive(&self, name: &str) -> bool {
        self.state.lock().living.contains_key(name)
    }

    /// Makes the API server unreachable for a while.
    pub(super) fn silence_api(&self, time: Duration) {
        let (mut state, end) = (self.state.lock(), Instant::now() + time);
        state.silenced = Some(end);
        if time > NOTICED {
            state.outage_end = Some(end);
        }
    }

    /// Makes the target's API server unreachable for managers for a while.
    pub(super) fn silence_target(&self, time: Duration) {
        let (mut state, end) = (self.state.lock(), Instant::now() + time);
        state.target_silenced = Some(end);
        if time > NOTICED {
            state.outage_end = Some(end);
        }
    }

    /// Lets a policy refuse to remove pods for a while.
    pub(super) fn refuse_pods(&self, code: u16, time: Duration) {
        self.state.lock().pods_refused = Some((Instant::now() + time, code));
    }

    /// Delays each answer of the API server to a manager, for a while.
    pub(super) fn slow_api(&self, by: Duration, time: Duration) {
        self.state.lock().slow = Some((Instant::now() + time, by));
    }

    /// For a while, reads at any resource version get the state of `by` ago.
    pub(super) fn lag(&self, by: Duration, time: Duration) {
        self.state.lock().lag = Some((Instant::now() + time, by));
    }

    /// Notes that the API server has reached a version.
    pub(super) fn note_version(&self, version: u64) {
        let (mut state, now) = (self.state.lock(), Instant::now());
        while state.versions.front().is_some_and(|(at, _)| now - *at > FURTHEST_LAG) {
            state.versions.pop_front();
        }
        state.versions.push_back((now, version));
    }

    /// For a while the API server refuses a share of the managers' requests; without a code it never answers them.
    pub(super) fn refuse(&self, code: Option<u16>, percent: u8, time: Duration) {
        self.state.lock().refusals = Some(Refusals { until: Instant::now() + time, code, percent });
    }

    /// Registers a text that must appear in no log, and only in requests that need it.
    pub(super) fn keep_secret(&self, text: &str) {
        self.trace.keep_secret(text);
        self.state.lock().secrets.push(text.to_owned());
    }

    /// Notes a write to a lease: the holder may write for `time`; without a holder, no manager may.
    pub(super) fn note_lease(&self, lease: &'static str, holder: Option<&str>, time: Duration) {
        let mut state = self.state.lock();
        let holder = holder.and_then(|holder| Some((holder, state.time_of(holder)? + time)));
        state.leases.note(lease, holder);
    }

    /// Takes the list of wrong requests.
    pub(super) fn take_wrongs(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().wrongs)
    }

    /// Since when the sender of a request can have been connected to the API server, if it runs.
    pub(super) fn connected_since(&self, request: &RequestRecord) -> Option<Instant> {
        let state = self.state.lock();
        let name = manager(&request.user_agent).filter(|name| state.living.contains_key(*name))?;
        state.born.get(name).copied().max(state.outage_end)
    }

    /// The result of a request to the API server.
    pub(super) fn request(&self, request: &RequestRecord) -> Option<Fault> {
        let manager = manager(&request.user_agent);
        let is_write = !matches!(request.verb, "get" | "list" | "watch");
        let mut state = self.state.lock();
        if let Some(name) = manager.filter(|name| !state.living.contains_key(*name)) {
            self.trace.line(format_args!("{name} {} {}: dead", request.verb, request.path));
            return Some(Fault::Hang);
        }
        if let Some(name) = manager.filter(|_| is_write) {
            state.check_secrets(name, request);
        }
        state.events += u64::from(manager.is_some() && is_write && request.path.contains("/events"));
        let mut edit = None;
        let fault = match manager {
            Some(name) if is_write && is_step(&request.path) => {
                state.check_term(name, request.verb, &request.path);
                state.check_rate(name, &request.path);
                let step = state.next_step();
                state.writes += 1;
                state.removals += u64::from(plural(&request.path).is_some_and(|kind| REMOVED.contains(&kind)));
                let request_result =
                    state.aimed_at(request.verb, &request.path).or(state.aims.request_results.remove(&step));
                edit = state.aims.edits.remove(&step);
                self.tell(step, name, request.verb, &request.path, request_result);
                if matches!(request_result, Some(RequestResult::CrashBefore | RequestResult::CrashAfter)) {
                    state.living.remove(name).iter().for_each(|death| death.notify_one());
                }
                request_result.map(fault)
            }
            _ => None,
        };
        let fault = fault.or_else(|| state.period(manager.is_some(), request));
        drop(state);
        self.edit(edit);
        fault
    }

    /// The result of a call to the cloud.
    pub(super) fn call(&self, name: &str, verb: &str, path: &str) -> Decision {
        let mut state = self.state.lock();
        if !state.living.contains_key(name) {
            return Decision { dead: true, request_result: None };
        }
        if verb != "GET" {
            state.check_term(name, verb, path);
        }
        let step = state.next_step();
        let (request_result, edit) = (state.aims.request_results.remove(&step), state.aims.edits.remove(&step));
        self.tell(step, name, verb, path, request_result);
        drop(state);
        self.edit(edit);
        Decision { dead: false, request_result }
    }

    fn tell(&self, step: u64, name: &str, verb: &str, path: &str, request_result: Option<RequestResult>) {
        match request_result {
            None => self.trace.line(format_args!("step {step}: {name} {verb} {path}")),
            Some(request_result) => {
                self.trace.line(format_args!("step {step}: {name} {verb} {path}: {request_result:?}"));
            }
        }
    }
}

/// The result of a call to the cloud.
pub(super) struct Decision {
    pub(super) dead: bool,
    pub(super) request_result: Option<RequestResult>,
}

impl State {
    fn next_step(&mut self) -> u64 {
        self.steps += 1;
        if self.steps == RUNAWAY {
            self.wrongs.push(format!("I9: {RUNAWAY} steps"));
            self.living.clear();
        }
        self.steps - 1
    }

    /// The fault that applies to all requests for a while.
    fn period(&mut self, is_manager: bool, request: &RequestRecord) -> Option<Fault> {
        let now = Instant::now();
        if self.silenced.is_some_and(|until| now < until) {
            return Some(Fault::Unreachable);
        }
        if !is_manager {
            return None;
        }
        if let Some(fault) = self.target_fault(request, now) {
            return Some(fault);
        }
        if let Some(Refusals { code, percent, .. }) = self.refusals.as_ref().filter(|refusals| now < refusals.until)
            && self.random.u8(0..100) < *percent
        {
            return Some(code.map_or(Fault::Hang, Fault::Status));
        }
        let slow = self.slow.filter(|(until, _)| now < *until && request.verb != "watch");
        slow.map(|(_, by)| Fault::AnswerLate(by)).or_else(|| self.lagging(now))
    }

    /// The fault of the target's API server.
    fn target_fault(&self, request: &RequestRecord, now: Instant) -> Option<Fault> {
        let kind = plural(&request.path)?;
        if self.target_silenced.is_some_and(|until| now < until) && OF_TARGET.contains(&kind) {
            return Some(Fault::Unreachable);
        }
        let is_removal = kind == "pods" && matches!(request.verb, "create" | "delete");
        self.pods_refused.filter(|(until, _)| is_removal && now < *until).map(|(_, code)| Fault::Status(code))
    }

    fn lagging(&self, now: Instant) -> Option<Fault> {
        let (_, by) = self.lag.filter(|(until, _)| now < *until)?;
        let seen = self.versions.iter().rev().find(|(at, _)| *at + by <= now).or(self.versions.front());
        seen.map(|(_, version)| Fault::AsOf(*version))
    }

    /// The result of the next write with this verb to the kind of a path.
    fn aimed_at(&mut self, verb: &str, path: &str) -> Option<RequestResult> {
        let plural = plural(path)?;
        let kind = (verb.to_owned(), plural.to_owned());
        let number = self.written.entry(kind.clone()).or_default();
        *number += 1;
        self.aims.aimed.remove(&(kind.0, kind.1, *number - 1))
    }

    /// The time that has passed on the clock of a manager.
    fn time_of(&self, name: &str) -> Option<Duration> {
        let clock = self.clocks.iter().find(|(slot, _)| name.starts_with(&prefix(slot)));
        clock.map(|(_, clock)| clock.elapsed())
    }

    fn check_term(&mut self, name: &str, verb: &str, path: &str) {
        if !self.elects {
            return;
        }
        let now = self.time_of(name).unwrap_or_default();
        if let Some(wrong) = self.leases.forbid(name, now) {
            self.wrongs.push(format!("I10: {name} sent {verb} {path} {wrong}"));
        }
    }

    fn check_rate(&mut self, name: &str, path: &str) {
        if let Some(writes) = self.rates.note(path).filter(|_| !self.is_excited) {
            self.wrongs.push(format!("I15: {name} sent {writes} writes of {path} within {WINDOW:?}"));
        }
    }

    fn check_secrets(&mut self, name: &str, request: &RequestRecord) {
        let Some(body) = request.body.as_ref().filter(|_| !self.secrets.is_empty()) else { return };
        let text = body.to_string();
        if self.secrets.iter().any(|secret| text.contains(secret.as_str())) {
            self.wrongs.push(format!("I8: {name} sent a secret: {} {}", request.verb, request.path));
        }
    }
}

/// How often each object is written.
struct Rates {
    times: BTreeMap<String, VecDeque<Instant>>,
    most: usize,
}

impl Rates {
    /// The rates where so many managers write at the same time.
    fn of(managers: usize) -> Self {
        Self { times: BTreeMap::new(), most: MOST_IN_WINDOW * managers }
    }

    /// Notes a write of an object or a subresource. Returns the number of writes within the window if it is too high.
    fn note(&mut self, path: &str) -> Option<usize> {
        let object = path.strip_suffix("/status").unwrap_or(path);
        let (times, now) = (self.times.entry(object.to_owned()).or_default(), Instant::now());
        times.push_back(now);
        while times.front().is_some_and(|first| now - *first > WINDOW) {
            times.pop_front();
        }
        let writes = times.len();
        if writes > self.most {
            times.clear();
            return Some(writes);
        }
        None
    }
}

/// The manager that sent a request.
fn manager(user_agent: &str) -> Option<&str> {
    user_agent.split('/').next().filter(|name| name.starts_with(MANAGER))
}

/// The plural of the kind of a path: `machinesets` of `/apis/GROUP/VERSION/namespaces/NAMESPACE/machinesets/NAME`.
fn plural(path: &str) -> Option<&str> {
    let mut parts = path.trim_start_matches('/').split('/').skip_while(|part| !is_version(part)).skip(1);
    match parts.next()? {
        "namespaces" => parts.nth(1).or(Some("namespaces")),
        plural => Some(plural),
    }
}

fn is_version(part: &str) -> bool {
    part.strip_prefix('v').is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
}

/// Leases and events depend on time, not on the work to do, so they are no steps.
fn is_step(path: &str) -> bool {
    !path.contains("/leases") && !path.contains("/events")
}

fn fault(request_result: RequestResult) -> Fault {
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    match request_result {
        RequestResult::CrashBefore | RequestResult::Hang => Fault::Hang,
        RequestResult::CrashAfter | RequestResult::HangAfter => Fault::HangAfter,
        RequestResult::LoseAnswer => Fault::LoseAnswer,
        RequestResult::CommitLate(after) => Fault::CommitLate(seconds(after)),
        RequestResult::AnswerLate(after) => Fault::AnswerLate(seconds(after)),
        RequestResult::ArriveLate(after) => Fault::Delay(seconds(after)),
        RequestResult::Refuse(code) => Fault::Status(code),
        RequestResult::RefuseAfter(code) => Fault::StatusAfter(code),
    }
}

#[cfg(test)]
mod tests {
    use super::plural;

    #[test]
    fn the_kind_under_a_path() {
        let path = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machinesets";
        assert_eq!(plural(path), Some("machinesets"));
        assert_eq!(plural(&format!("{path}/pool-x/status")), Some("machinesets"));
        assert_eq!(
            (plural("/api/v1/nodes/a"), plural("/api/v1/namespaces/default")),
            (Some("nodes"), Some("namespaces"))
        );
    }
}
