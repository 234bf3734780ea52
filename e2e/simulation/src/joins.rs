//! The invariants for machines that do not join: I28 and I29 of `docs/reference/simulation.md`.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use nodewright_api::GoDuration;
use serde_json::Value;
use tokio::time::Instant;

use super::schedule::Schedule;

const WINDOW: Duration = Duration::from_mins(1);
/// Rounds of replacements begin at 0, 1, 12, 33 and 74 s. A user may want other machines besides.
const ROUNDS: u64 = 6;
/// A clock may be so far ahead unnoticed.
const UNNOTICED: Duration = Duration::from_secs(35);

/// The machines of a run, and when they were created.
#[derive(Default)]
pub(super) struct Joins {
    /// Whether a user sets a creation timeout that no machine meets.
    has_short_timeout: bool,
    keeps_ages: bool,
    /// By UID.
    born: BTreeMap<String, Instant>,
    created: VecDeque<Instant>,
}

impl Joins {
    pub(super) fn of(schedule: &Schedule) -> Self {
        Self { has_short_timeout: schedule.has_short_timeout(), keeps_ages: schedule.keeps_ages(), ..Self::default() }
    }

    /// Observes a change of a machine. `most`: how many there may be. Returns the violation, if any.
    pub(super) fn machine(
        &mut self,
        name: &str,
        (old, new): (Option<&Value>, Option<&Value>),
        most: u64,
    ) -> Option<String> {
        let new = new?;
        let uid = new["metadata"]["uid"].as_str().unwrap_or_default();
        let now = Instant::now();
        if !self.born.contains_key(uid) {
            self.born.insert(uid.to_owned(), now);
            return self.creation(name, now, most);
        }
        let age = now - self.born[uid];
        let timeout =
            new["spec"]["creationTimeout"].as_str().and_then(|text| text.parse::<GoDuration>().ok())?.to_std();
        // Later a user may give it another timeout.
        let fails = has_timed_out(new) && !old.is_some_and(has_timed_out);
        let is_early = self.keeps_ages && fails && age + UNNOTICED < timeout;
        is_early.then(|| format!("I29: machine {name} fails {age:?} after its creation, and has {timeout:?}"))
    }

    fn creation(&mut self, name: &str, now: Instant, most: u64) -> Option<String> {
        self.created.push_back(now);
        self.created.retain(|at| now - *at < WINDOW);
        let (count, allowed) = (self.created.len() as u64, ROUNDS * (most + 1));
        (self.has_short_timeout && count > allowed).then(|| {
            format!("I28: machine {name} is the {count}th in {WINDOW:?}, and {most} are wanted: they do not join")
        })
    }
}

/// Whether a machine has just failed because it did not join in time.
fn has_timed_out(machine: &Value) -> bool {
    let status = &machine["status"];
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut joined = conditions.filter(|condition| condition["type"] == "NodeJoined");
    status["currentStatus"]["phase"] == "Failed"
        && status["lastOperation"]["type"] == "Create"
        && joined.any(|condition| condition["reason"] == "Timeout")
}
