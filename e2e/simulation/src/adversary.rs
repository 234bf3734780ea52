//! Decides what becomes of each request of each manager, and writes down what was decided.
//!
//! # Guarantees
//! * What a killed manager sends after its death does nothing and is not answered, whatever of it is still running.
//! * The same requests in the same order meet the same fates.

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
    names::{MANAGER, prefix},
    schedule::{Edit, Fate, Schedule, Trouble},
    terms::Terms,
    trace::Trace,
};

/// A run takes some hundred steps. One that takes so many has lost its way, and would never end.
const RUNAWAY: u64 = 20_000;

/// So far behind is an API server at most.
const FURTHEST_LAG: Duration = Duration::from_mins(1);
/// An outage that is longer is noticed.
const NOTICED: Duration = Duration::from_secs(75);
/// No object is written more than twice a second for so long.
const WINDOW: Duration = Duration::from_mins(1);
const MOST_IN_WINDOW: usize = 120;

/// Decides. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(super) struct Adversary {
    state: Arc<Mutex<State>>,
    /// Who does what a user does between two steps.
    user: Arc<Mutex<Option<User>>>,
    trace: Trace,
}

type User = Box<dyn Fn(&Edit) + Send>;

struct State {
    aims: Aims,
    /// How many writes of a verb to a kind there were.
    written: BTreeMap<(String, String), u64>,
    /// How many steps there were.
    steps: u64,
    /// How many of them were writes to the API server.
    writes: u64,
    /// How many events were sent. They are no steps.
    events: u64,
    /// Those that live, and whom to tell of their death.
    living: BTreeMap<String, Arc<Notify>>,
    silenced: Option<Instant>,
    slow: Option<(Instant, Duration)>,
    /// Until when the API server lags, and by how much.
    lag: Option<(Instant, Duration)>,
    /// Which version was reached when, as far back as anybody may lag.
    versions: VecDeque<(Instant, u64)>,
    refusals: Option<Refusals>,
    random: fastrand::Rng,
    /// What managers did wrong by sending it at all.
    wrongs: Vec<String>,
    terms: Terms,
    /// By the slots of managers.
    clocks: BTreeMap<&'static str, Arc<JumpingClock>>,
    elects: bool,
    secrets: Vec<String>,
    /// Since when managers live, and the end of the last outage.
    born: BTreeMap<String, Instant>,
    outage_end: Option<Instant>,
    rates: Rates,
    /// Others write as often as they can, and so do managers then.
    is_excited: bool,
}

struct Refusals {
    until: Instant,
    /// Without one there is no answer.
    code: Option<u16>,
    percent: u8,
}

/// What is done at single steps and requests.
#[derive(Default)]
struct Aims {
    fates: BTreeMap<u64, Fate>,
    /// What becomes of the n-th write of a verb to a kind.
    aimed: BTreeMap<(String, String, u64), Fate>,
    edits: BTreeMap<u64, Edit>,
}

impl Aims {
    fn of(schedule: &Schedule) -> Self {
        let mut aims = Self::default();
        for trouble in schedule.0.iter().cloned() {
            match trouble {
                Trouble::Step { step, fate } => drop(aims.fates.insert(step, fate)),
                Trouble::Request { verb, plural, number, fate } => {
                    aims.aimed.insert((verb, plural, number), fate);
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
            living: BTreeMap::new(),
            silenced: None,
            slow: None,
            lag: None,
            versions: VecDeque::new(),
            refusals: None,
            random: fastrand::Rng::with_seed(design.seed),
            wrongs: vec![],
            terms: Terms::default(),
            clocks,
            elects: design.elects,
            secrets: vec![],
            born: BTreeMap::new(),
            outage_end: None,
            rates: Rates::default(),
            is_excited: schedule.is_exciting(design.elects),
        };
        Self { state: Arc::new(Mutex::new(state)), user: Arc::default(), trace }
    }

    /// Who does from now on what a user does between two steps; nobody, to end it.
    pub(super) fn set_user(&self, user: Option<User>) {
        *self.user.lock() = user;
    }

    /// Lets the user do what comes between the decision for a step and the step.
    fn edit(&self, edit: Option<Edit>) {
        if let (Some(edit), Some(user)) = (edit, self.user.lock().as_ref()) {
            self.trace.line(format_args!("{edit:?}"));
            user(&edit);
        }
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

    /// How many fates that were aimed at a request have yet to meet theirs.
    pub(super) fn missed(&self) -> usize {
        self.state.lock().aims.aimed.len()
    }

    /// A manager of this name lives from now on. Returns what tells of its death.
    pub(super) fn born(&self, name: &str) -> Arc<Notify> {
        self.trace.line(format_args!("{name} starts"));
        self.state.lock().born.insert(name.to_owned(), Instant::now());
        self.state.lock().living.entry(name.to_owned()).or_default().clone()
    }

    /// Nothing that a manager sends from now on has an effect or is answered.
    pub(super) fn kill(&self, name: &str) {
        if let Some(death) = self.state.lock().living.remove(name) {
            self.trace.line(format_args!("{name} is killed"));
            death.notify_one();
        }
    }

    /// Kills whichever manager of a slot lives.
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

    /// Nobody reaches the API server for a while.
    pub(super) fn silence_api(&self, time: Duration) {
        let (mut state, end) = (self.state.lock(), Instant::now() + time);
        state.silenced = Some(end);
        if time > NOTICED {
            state.outage_end = Some(end);
        }
    }

    /// Each answer of the API server to a manager takes so long for a while.
    pub(super) fn slow_api(&self, by: Duration, time: Duration) {
        self.state.lock().slow = Some((Instant::now() + time, by));
    }

    /// Reads that take any version get for a while what there was so long ago.
    pub(super) fn lag(&self, by: Duration, time: Duration) {
        self.state.lock().lag = Some((Instant::now() + time, by));
    }

    /// The API server has reached a version.
    pub(super) fn note_version(&self, version: u64) {
        let (mut state, now) = (self.state.lock(), Instant::now());
        while state.versions.front().is_some_and(|(at, _)| now - *at > FURTHEST_LAG) {
            state.versions.pop_front();
        }
        state.versions.push_back((now, version));
    }

    /// The API server refuses a share of the requests of managers for a while; without a status it never answers them.
    pub(super) fn refuse(&self, code: Option<u16>, percent: u8, time: Duration) {
        self.state.lock().refusals = Some(Refusals { until: Instant::now() + time, code, percent });
    }

    /// A text that stands in no request but where it must, and in no log.
    pub(super) fn keep_secret(&self, text: &str) {
        self.trace.keep_secret(text);
        self.state.lock().secrets.push(text.to_owned());
    }

    /// A lease was written just now: a manager has it, and may write for so long; or nobody.
    pub(super) fn note_lease(&self, lease: &'static str, holder: Option<&str>, time: Duration) {
        let mut state = self.state.lock();
        let holder = holder.and_then(|holder| Some((holder, state.time_of(holder)? + time)));
        state.terms.note(lease, holder);
    }

    /// Takes what managers did wrong by sending it at all.
    pub(super) fn take_wrongs(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().wrongs)
    }

    /// Since when the manager that a request comes from can have been in touch with the API server, if it lives.
    pub(super) fn in_touch_since(&self, request: &RequestRecord) -> Option<Instant> {
        let state = self.state.lock();
        let name = manager(&request.user_agent).filter(|name| state.living.contains_key(*name))?;
        state.born.get(name).copied().max(state.outage_end)
    }

    /// What becomes of a request to the API server.
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
                let fate = state.aimed_at(request.verb, &request.path).or(state.aims.fates.remove(&step));
                edit = state.aims.edits.remove(&step);
                self.tell(step, name, request.verb, &request.path, fate);
                if matches!(fate, Some(Fate::CrashBefore | Fate::CrashAfter)) {
                    state.living.remove(name).iter().for_each(|death| death.notify_one());
                }
                fate.map(fault)
            }
            _ => None,
        };
        let fault = fault.or_else(|| state.period(manager.is_some(), request.verb));
        drop(state);
        self.edit(edit);
        fault
    }

    /// What becomes of a call to the cloud.
    pub(super) fn call(&self, name: &str, verb: &str, path: &str) -> Decision {
        let mut state = self.state.lock();
        if !state.living.contains_key(name) {
            return Decision { dead: true, fate: None };
        }
        if verb != "GET" {
            state.check_term(name, verb, path);
        }
        let step = state.next_step();
        let (fate, edit) = (state.aims.fates.remove(&step), state.aims.edits.remove(&step));
        self.tell(step, name, verb, path, fate);
        drop(state);
        self.edit(edit);
        Decision { dead: false, fate }
    }

    fn tell(&self, step: u64, name: &str, verb: &str, path: &str, fate: Option<Fate>) {
        match fate {
            None => self.trace.line(format_args!("step {step}: {name} {verb} {path}")),
            Some(fate) => self.trace.line(format_args!("step {step}: {name} {verb} {path}: {fate:?}")),
        }
    }
}

/// What becomes of a call to the cloud.
pub(super) struct Decision {
    pub(super) dead: bool,
    pub(super) fate: Option<Fate>,
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

    /// What happens to all requests for a while.
    fn period(&mut self, is_manager: bool, verb: &str) -> Option<Fault> {
        let now = Instant::now();
        if self.silenced.is_some_and(|until| now < until) {
            return Some(Fault::Unreachable);
        }
        if !is_manager {
            return None;
        }
        if let Some(Refusals { code, percent, .. }) = self.refusals.as_ref().filter(|refusals| now < refusals.until)
            && self.random.u8(0..100) < *percent
        {
            return Some(code.map_or(Fault::Hang, Fault::Status));
        }
        let slow = self.slow.filter(|(until, _)| now < *until && verb != "watch");
        slow.map(|(_, by)| Fault::AnswerLate(by)).or_else(|| self.lagging(now))
    }

    fn lagging(&self, now: Instant) -> Option<Fault> {
        let (_, by) = self.lag.filter(|(until, _)| now < *until)?;
        let seen = self.versions.iter().rev().find(|(at, _)| *at + by <= now).or(self.versions.front());
        seen.map(|(_, version)| Fault::AsOf(*version))
    }

    /// What becomes of the next write of a verb to the kind under a path.
    fn aimed_at(&mut self, verb: &str, path: &str) -> Option<Fate> {
        let plural = plural(path)?;
        let kind = (verb.to_owned(), plural.to_owned());
        let number = self.written.entry(kind.clone()).or_default();
        *number += 1;
        self.aims.aimed.remove(&(kind.0, kind.1, *number - 1))
    }

    /// The time that has gone by on the clock of a manager.
    fn time_of(&self, name: &str) -> Option<Duration> {
        let clock = self.clocks.iter().find(|(slot, _)| name.starts_with(&prefix(slot)));
        clock.map(|(_, clock)| clock.elapsed())
    }

    fn check_term(&mut self, name: &str, verb: &str, path: &str) {
        if !self.elects {
            return;
        }
        let now = self.time_of(name).unwrap_or_default();
        if let Some(wrong) = self.terms.forbid(name, now) {
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

/// How often objects are written.
#[derive(Default)]
struct Rates(BTreeMap<String, VecDeque<Instant>>);

impl Rates {
    /// A write of an object, or of a part of it. How many there were within the window, if these are too many.
    fn note(&mut self, path: &str) -> Option<usize> {
        let object = path.strip_suffix("/status").unwrap_or(path);
        let (times, now) = (self.0.entry(object.to_owned()).or_default(), Instant::now());
        times.push_back(now);
        while times.front().is_some_and(|first| now - *first > WINDOW) {
            times.pop_front();
        }
        let writes = times.len();
        if writes > MOST_IN_WINDOW {
            times.clear();
            return Some(writes);
        }
        None
    }
}

/// The manager that a request comes from.
fn manager(user_agent: &str) -> Option<&str> {
    user_agent.split('/').next().filter(|name| name.starts_with(MANAGER))
}

/// The plural of the kind under a path: `machinesets` of `/apis/GROUP/VERSION/namespaces/NAMESPACE/machinesets/NAME`.
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

/// Leases and events come and go with time, not with what there is to do.
fn is_step(path: &str) -> bool {
    !path.contains("/leases") && !path.contains("/events")
}

fn fault(fate: Fate) -> Fault {
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    match fate {
        Fate::CrashBefore | Fate::Hang => Fault::Hang,
        Fate::CrashAfter | Fate::HangAfter => Fault::HangAfter,
        Fate::LoseAnswer => Fault::LoseAnswer,
        Fate::CommitLate(after) => Fault::CommitLate(seconds(after)),
        Fate::AnswerLate(after) => Fault::AnswerLate(seconds(after)),
        Fate::ArriveLate(after) => Fault::Delay(seconds(after)),
        Fate::Refuse(code) => Fault::Status(code),
        Fate::RefuseAfter(code) => Fault::StatusAfter(code),
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
