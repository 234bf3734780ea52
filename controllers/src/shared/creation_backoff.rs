//! Pauses between the replacements of Machines that never joined.
//!
//! A Machine that has not joined in time is Failed, and its set replaces it. If that one fails as well, and the next, something is
//! wrong that new VMs do not mend: the image, the network, or a timeout that is too short. So the replacements of a set are made
//! in *rounds*. The first is made at once; each further one has to wait, as the restarts of a Pod's containers do, for longer and
//! longer. The set notes the rounds in an annotation, in the write that retires the names of the failed Machines.
//!
//! # Guarantees
//! * A round replaces each Machine once. Two rounds are at least as far apart as [`pause`] says, whatever the timeouts are: ten
//!   rounds take 40 minutes. Which round a Machine belongs to follows from its ordinal, and not from a time.
//! * Everything follows from objects: a restart, another leader or a second manager changes nothing.
//! * A round in which as many Machines have joined as have failed ends the series.
//!
//! # Caveats
//! * Machines without an ordinal, which were adopted, are replaced at once: there are only so many of them.
//! * The pauses are by the clock of the process. A time of another clock that is ahead of it does not prolong them.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{
    GoDuration, Machine, MachinePhase, MachineSet, OperationType, annotations,
    stored::{CREATION_ROUND, CreationRound, EFFECTIVE_CREATION_TIMEOUT, LEDGER, Ledger, Ordinal, Seconds},
};
use nodewright_runtime::{
    clip::clip_to,
    object::{annotation, is_deleting, name},
};

/// The pause before the second round; each further one is twice as long.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(10);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_mins(10);
/// A series in which nothing has been replaced for so long has ended. A round lasts for as long as its Machines may take, which does
/// not count.
const FORGOTTEN: SignedDuration = SignedDuration::from_hours(1);
/// How many rounds have to fail in a row before the owner reports it: one failure may pass.
const WORTH_REPORTING: u32 = 2;
const LONGEST_CAUSE: usize = 256;

/// The pause after this many rounds that have failed in a row.
fn pause(rounds: u32) -> SignedDuration {
    let Some(doublings) = rounds.checked_sub(1) else { return SignedDuration::ZERO };
    let pause = 2_i32.checked_pow(doublings).and_then(|factor| FIRST_PAUSE.checked_mul(factor));
    pause.unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE)
}

/// What to report of a set of which several rounds have failed.
pub(crate) fn report<'a>(
    set: &MachineSet,
    machines: impl Iterator<Item = &'a Machine> + Clone,
    now: Timestamp,
) -> Option<String> {
    of_noted(set, machines, now)?.report()
}

/// That of a set with a round.
pub(crate) fn of_noted<'a>(
    set: &MachineSet,
    machines: impl Iterator<Item = &'a Machine> + Clone,
    now: Timestamp,
) -> Option<CreationBackoff<'a>> {
    CREATION_ROUND.of(set)?;
    let ledger = LEDGER.of(set)?;
    Some(CreationBackoff::of(set, &ledger, machines, now))
}

/// What the Machines of a set say about its creations.
#[derive(Clone, Debug)]
pub(crate) struct CreationBackoff<'a> {
    now: Timestamp,
    /// How many rounds in a row have failed before the newest one.
    rounds: u32,
    begun: Option<Timestamp>,
    /// The failed Machines of the newest round, by name: a set may have thousands.
    failed: BTreeMap<&'a str, &'a Machine>,
}

impl<'a> CreationBackoff<'a> {
    pub(crate) fn of(
        set: &MachineSet,
        ledger: &Ledger,
        machines: impl Iterator<Item = &'a Machine> + Clone,
        now: Timestamp,
    ) -> Self {
        let is_recent = |round: &CreationRound| {
            let lasts = longest(machines.clone()).saturating_add(FORGOTTEN);
            round.begun.0.saturating_add(lasts).is_ok_and(|end| end > now)
        };
        let round = CREATION_ROUND.of(set).filter(is_recent);
        let ordinal =
            |machine: &Machine| ledger.ordinal(name(set), name(machine), annotation(machine, annotations::INDEX));
        let is_of_round =
            |machine: &&Machine| ordinal(machine).is_some_and(|it| round.is_none_or(|round| it >= round.first));
        let (mut failed, mut joined) = (vec![], vec![]);
        for machine in machines.filter(|machine| !is_deleting(*machine)) {
            if failed_to_join(machine) {
                failed.push(machine);
            } else if round.is_some() && has_joined(machine) {
                joined.push(machine);
            }
        }
        failed.retain(is_of_round);
        joined.retain(is_of_round);
        let failed: BTreeMap<_, _> = failed.into_iter().map(|machine| (name(machine), machine)).collect();
        let round = round.filter(|_| joined.is_empty() || joined.len() < failed.len());
        Self { now, rounds: round.map_or(0, |round| round.rounds), begun: round.map(|round| round.begun.0), failed }
    }

    /// Until when a Machine that failed to join is kept; `None` if it is replaced now.
    pub(crate) fn kept_until(&self, machine: &Machine) -> Option<Timestamp> {
        if self.rounds == 0 || !self.is_of_round(machine) {
            return None;
        }
        // A time ahead of this clock is one of another clock.
        let known = [self.begun, machine.phase_since()].into_iter().flatten().filter(|at| *at <= self.now);
        let due = known.max()?.saturating_add(pause(self.rounds)).unwrap_or(Timestamp::MAX);
        Some(due).filter(|due| *due > self.now)
    }

    /// The round that begins when these Machines are replaced; `None` if they are of earlier rounds. `next` is the lowest ordinal
    /// that has never been used.
    pub(crate) fn begin<'m>(
        &self,
        replaced: impl IntoIterator<Item = &'m Machine>,
        next: Ordinal,
    ) -> Option<CreationRound> {
        let begins = replaced.into_iter().any(|machine| self.is_of_round(machine));
        begins.then(|| CreationRound { rounds: self.rounds.saturating_add(1), first: next, begun: Seconds(self.now) })
    }

    /// What to report if several rounds have failed. The text follows from objects: it does not change with time.
    pub(crate) fn report(&self) -> Option<String> {
        let rounds = self.failed_rounds()?;
        let mut kept: Vec<_> =
            self.failed.values().filter_map(|machine| Some((self.kept_until(machine)?, machine))).collect();
        kept.sort_by_key(|(until, machine)| (*until, name(**machine)));
        let what = format!("{rounds} times in a row machines were created and did not join");
        Some(match kept.first() {
            None => format!("{what}; their replacements are being created"),
            Some((until, machine)) => format!(
                "{what}; the failed ones are replaced at {until:.0}, or at once when annotation {} is removed from the \
                 machine set; machine {}: {}",
                annotations::CREATION_BACKOFF,
                name(**machine),
                cause(machine)
            ),
        })
    }

    /// How many rounds in a row have failed, if these are several.
    pub(crate) fn failed_rounds(&self) -> Option<u32> {
        let rounds = self.rounds.saturating_add(u32::from(!self.failed.is_empty()));
        (rounds >= WORTH_REPORTING).then_some(rounds)
    }

    fn is_of_round(&self, machine: &Machine) -> bool {
        self.failed.contains_key(name(machine))
    }
}

/// The longest creation timeout of Machines that name one.
fn longest<'a>(machines: impl Iterator<Item = &'a Machine>) -> SignedDuration {
    let own = |machine: &Machine| EFFECTIVE_CREATION_TIMEOUT.of(machine).or(machine.spec.creation_timeout);
    machines.filter_map(own).max().map_or(SignedDuration::ZERO, GoDuration::to_signed)
}

/// As machine-controller-manager says it, too: the creation is the operation that failed.
pub(crate) fn failed_to_join(machine: &Machine) -> bool {
    let operation = machine.status.as_ref().map(|status| &status.last_operation.operation_type);
    *machine.phase() == MachinePhase::Failed && operation == Some(&OperationType::Create)
}

fn has_joined(machine: &Machine) -> bool {
    matches!(machine.phase(), MachinePhase::Running | MachinePhase::Available | MachinePhase::Unknown)
}

fn cause(machine: &Machine) -> String {
    let text = machine.status.as_ref().map_or("", |status| status.last_operation.description.as_str());
    clip_to(LONGEST_CAUSE, text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{MachineExt, NOW, machine, machine_set};

    const LEDGER: &str = "k7f;";

    fn at(seconds: i64) -> Timestamp {
        NOW.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
    }

    /// The Machine of an ordinal, in this phase since then.
    fn member(ordinal: usize, phase: &str, since: i64) -> Machine {
        let ledger: Ledger = LEDGER.parse().unwrap();
        let free = ledger.lowest_free(&std::collections::BTreeSet::new(), ordinal + 1);
        machine(&ledger.name("set", free[ordinal]))
            .annotation(annotations::INDEX, &ordinal.to_string())
            .phase(phase)
            .with("/status/currentStatus/lastUpdateTime", at(since).to_string())
            .with("/status/lastOperation", json!({"type": "Create", "description": "no node"}))
            .build()
    }

    fn backoff<'a>(round: Option<&str>, machines: &'a [Machine], now: i64) -> CreationBackoff<'a> {
        let mut set = machine_set("set", 2, Some(LEDGER));
        let annotations = set.metadata.annotations.get_or_insert_default();
        annotations.extend(round.map(|round| (annotations::CREATION_BACKOFF.to_owned(), round.to_owned())));
        CreationBackoff::of(&set, &LEDGER.parse().unwrap(), machines.iter(), at(now))
    }

    #[test]
    fn pauses_grow_to_ten_minutes() {
        let pauses: Vec<_> = (0..10).map(|rounds| pause(rounds).as_secs()).collect();
        assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 320, 600, 600, 600]);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }

    #[test]
    fn the_first_failure_waits_for_nothing_and_the_next_one_does() {
        let first = [member(0, "Failed", 0), member(1, "Pending", 0)];
        let found = backoff(None, &first, 0);
        assert_eq!((found.kept_until(&first[0]), found.report()), (None, None));
        let round = found.begin(&first[..1], "2".parse().unwrap()).unwrap().to_string();
        assert_eq!(round, "1;2;2026-06-01T12:00:00Z");
        // The other Machine of the first round fails later: it is replaced at once, and is no round of its own.
        let late = [member(1, "Failed", 5), member(2, "Pending", 1)];
        let found = backoff(Some(&round), &late, 5);
        assert_eq!(found.kept_until(&late[0]), None);
        assert_eq!(found.begin(&late[..1], "3".parse().unwrap()), None);
        // The replacements fail.
        let second = [member(2, "Failed", 3), member(3, "Pending", 5)];
        let found = backoff(Some(&round), &second, 4);
        assert_eq!(found.kept_until(&second[0]), Some(at(13)), "ten seconds after its failure");
        let report = found.report().unwrap();
        assert!(report.starts_with("2 times in a row machines were created and did not join"), "{report}");
        assert!(report.contains("replaced at 2026-06-01T12:00:13Z") && report.ends_with(": no node"), "{report}");
        let found = backoff(Some(&round), &second, 13);
        assert_eq!(found.kept_until(&second[0]), None);
        assert_eq!(found.begin(&second, "4".parse().unwrap()).unwrap().to_string(), "2;4;2026-06-01T12:00:13Z");
    }

    #[test]
    fn a_round_of_which_half_has_joined_ends_the_series() {
        let round = Some("5;4;2026-06-01T12:00:00Z");
        let (failed, joined) = (|ordinal| member(ordinal, "Failed", 1), |ordinal| member(ordinal, "Running", 1));
        // The Machines, and whether the failed one waits.
        let table = [
            (vec![failed(4)], true),
            (vec![failed(4), joined(3)], true),
            (vec![failed(4), joined(5)], false),
            (vec![failed(4), failed(5), joined(6)], true),
            (vec![failed(4), failed(5), joined(6), joined(7)], false),
        ];
        for (machines, waits) in table {
            let found = backoff(round, &machines, 2);
            assert_eq!(found.kept_until(&machines[0]).is_some(), waits, "{machines:?}");
        }
        let later = [member(4, "Failed", 3_600)];
        assert_eq!(backoff(round, &later, 3_600).kept_until(&later[0]), None, "it is long ago");
    }

    #[test]
    fn times_of_other_clocks_do_not_prolong_a_pause() {
        let failed = [member(4, "Failed", -5)];
        let found = backoff(Some("1;4;2026-06-01T14:00:00Z"), &failed, 0);
        assert_eq!(found.kept_until(&failed[0]), Some(at(5)), "the round began by a clock two hours ahead");
        let failed = [member(4, "Failed", 7_200)];
        assert_eq!(backoff(Some("1;4;2026-06-01T14:00:00Z"), &failed, 0).kept_until(&failed[0]), None);
    }

    #[test]
    fn only_machines_that_never_joined_count() {
        let mut healthy_once = member(4, "Failed", 0);
        if let Some(status) = &mut healthy_once.status {
            status.last_operation.operation_type = OperationType::HealthCheck;
        }
        let machines = [healthy_once, member(5, "Pending", 0)];
        let found = backoff(Some("5;4;2026-06-01T12:00:00Z"), &machines, 1);
        assert_eq!(found.kept_until(&machines[0]), None);
        let report = found.report().unwrap();
        assert!(report.ends_with("their replacements are being created"), "{report}");
    }
}
