//! The decision alone, over pools of plain data.

use jiff::{SignedDuration, Timestamp};

use super::{brake::Brake, *};

fn now() -> Timestamp {
    crate::testing::NOW.parse().unwrap()
}

fn minutes(minutes: i64) -> Timestamp {
    now() + SignedDuration::from_mins(minutes)
}

/// Places by when they end, in minutes from now; those of creations; Machines that are due since so many minutes.
fn pool(limit: Limit, places: &[i64], creations: &[i64], due: &[i64]) -> BudgetGroup {
    let place = |index: usize, end: i64, is_creation| Place {
        uid: format!("up{index}"),
        name: format!("p{index}"),
        held_until: Some(minutes(end)),
        is_creation,
    };
    let others = places.iter().enumerate().map(|(index, end)| place(index, *end, false));
    let creations = creations.iter().enumerate().map(|(index, end)| place(10 + index, *end, true));
    let candidate = |(index, since): (usize, &i64)| Candidate {
        uid: format!("u{index}"),
        name: format!("m{index}"),
        due: minutes(-since),
        has_lost_node: false,
        has_lost_vm: false,
        is_stuck: false,
    };
    BudgetGroup {
        limit,
        total: 60,
        places: others.chain(creations).collect(),
        candidates: due.iter().enumerate().map(candidate).collect(),
        brake: Brake::default(),
    }
}

fn granted(pool: &BudgetGroup) -> Vec<&str> {
    let decision = pool.decide(now());
    let may_go = |candidate: &&Candidate| decision.of(&candidate.uid).is_ok();
    pool.candidates.iter().filter(may_go).map(|candidate| candidate.name.as_str()).collect()
}

#[test]
fn a_machine_that_is_created_and_loses_its_node_does_not_wait_for_itself() {
    let mut own = pool(Limit::Count(1), &[], &[5], &[1]);
    own.places[0].uid = own.candidates[0].uid.clone();
    assert_eq!(granted(&own), ["m0"]);
    own.places.push(Place { uid: "other".to_owned(), ..own.places[0].clone() });
    let held = own.decide(now()).of("u0").unwrap_err();
    assert!(held.message.starts_with("1 other machines"), "{}", held.message);
}

/// The caches have yet to show which other Nodes are being deleted.
#[test]
fn of_several_due_machines_one_whose_node_was_just_deleted_waits_a_moment() {
    let lost = |due: &[i64], lost: bool| {
        let mut pool = pool(Limit::Count(2), &[], &[], due);
        pool.candidates[0].has_lost_node = lost;
        // It goes first.
        pool.candidates[0].due = now() - SignedDuration::from_secs(1);
        pool.candidates.iter_mut().skip(1).for_each(|other| other.due = now());
        let held = pool.decide(now()).of("u0").err();
        held.map(|held| (held.message, held.until))
    };
    let waits = ("other nodes are being deleted, too".to_owned(), Some(now() + SignedDuration::from_secs(2)));
    assert_eq!(lost(&[0, 0], true), Some(waits));
    assert_eq!(lost(&[0, 0], false), None, "its node is there");
    assert_eq!(lost(&[0], true), None, "it is alone");
    let mut settled = pool(Limit::Count(2), &[], &[], &[0, 0]);
    settled.candidates[0].has_lost_node = true;
    settled.candidates[0].due = now() - SignedDuration::from_secs(3);
    assert!(settled.decide(now()).of("u0").is_ok(), "the caches have caught up");
}

#[test]
fn a_place_that_ends_now_is_not_named_with_a_time() {
    let held = pool(Limit::Count(1), &[0], &[-5, 0], &[5]).decide(now()).of("u0").err().unwrap();
    assert!(held.status.ends_with("now these are: p11"), "{}", held.status);
}

#[test]
fn as_many_go_as_there_are_free_places_those_that_wait_for_the_longest_time_first() {
    let one = Limit::Count(1);
    assert_eq!(granted(&pool(one, &[], &[], &[5, 9, 7])), ["m1"]);
    assert_eq!(granted(&pool(one, &[], &[], &[5, 5, 5])), ["m0"], "by name if they are due at one time");
    assert_eq!(granted(&pool(one, &[5], &[], &[5])), [""; 0]);
    assert_eq!(granted(&pool(one, &[], &[], &[-1, 5])), ["m1"], "the other is not due yet");
    let three = Limit::Count(3);
    assert_eq!(granted(&pool(three, &[5], &[], &[5, 9, 7])), ["m1", "m2"]);
    assert_eq!(granted(&pool(three, &[5, 5], &[5], &[5, 9, 7])), [""; 0]);
    assert_eq!(granted(&pool(Limit::Percent(5), &[], &[], &[4, 3, 2, 1])), ["m0", "m1", "m2"]);
    assert_eq!(granted(&pool(Limit::Percent(1), &[], &[], &[4, 3])), ["m0"], "at least one");
    for none in [Limit::Count(0), Limit::Percent(0)] {
        assert_eq!(granted(&pool(none, &[], &[], &[4, 3])), [""; 0]);
    }
}

#[test]
fn sixty_that_are_due_at_once_never_get_more_than_the_limit_whoever_asks() {
    for limit in [1, 2, 7] {
        let all = pool(Limit::Count(limit), &[], &[], &[5; 60]);
        assert_eq!(granted(&all).len(), limit);
        let held = all.decide(now()).of("u59").err().unwrap();
        assert!(held.message.starts_with("0 other machines"), "{}", held.message);
    }
}

#[test]
fn a_place_whose_time_is_over_is_free_and_stuck_creations_are_overlooked_up_to_the_limit() {
    let one = Limit::Count(1);
    assert_eq!(granted(&pool(one, &[0, -9], &[], &[5])), ["m0"]);
    assert_eq!(granted(&pool(one, &[0], &[0], &[5])), ["m0"]);
    assert_eq!(granted(&pool(one, &[], &[0, -9], &[5])), [""; 0], "replacements do not come up");
    assert_eq!(granted(&pool(Limit::Count(2), &[], &[0, -9], &[5, 4, 3])), ["m0", "m1"]);
    assert_eq!(granted(&pool(Limit::Count(2), &[], &[0, -9, -9], &[5, 4, 3])), ["m0"]);
}

#[test]
fn one_that_waits_looks_again_when_the_first_place_ends() {
    let pool = pool(Limit::Count(2), &[7, 4], &[], &[5]);
    let held = pool.decide(now()).of("u0").err().unwrap();
    assert_eq!(held.until, Some(minutes(4)));
    assert!(held.status.ends_with(
        "now these are: p0 (until 2026-06-01T12:07:00Z at the latest), p1 (until 2026-06-01T12:04:00Z at the latest)"
    ));
}

#[test]
fn a_limit_of_none_says_so_and_waits_for_nothing() {
    let pool = pool(Limit::Count(0), &[7], &[], &[5]);
    let held = pool.decide(now()).of("u0").err().unwrap();
    assert_eq!(held.until, None);
    assert!(held.status.starts_with("no machine of its deployment is replaced"), "{}", held.status);
}

#[test]
fn a_machine_whose_vm_may_run_goes_when_the_brake_has_stopped_it_for_long_enough_one_at_a_time() {
    let hour = SignedDuration::from_hours(1);
    for (timeout, due, expected) in [
        (hour, [59, 58, 1], vec![]),
        (hour, [60, 61, 1], vec!["m1"]),
        (SignedDuration::from_mins(2), [1, 2, 3], vec!["m2"]),
        (SignedDuration::ZERO, [600, 601, 1], vec![]),
    ] {
        let mut stopped = pool(Limit::Count(1), &[], &[], &due);
        stopped.stop(timeout);
        stopped.brake = Brake { level: Level::Stop, cause: "all are".to_owned(), timeout };
        assert_eq!(granted(&stopped), expected, "{timeout:#}, {due:?}");
    }
    let mut gone = pool(Limit::Count(1), &[], &[], &[1]);
    gone.candidates[0].has_lost_vm = true;
    gone.stop(hour);
    assert_eq!(granted(&gone), ["m0"], "its VM is gone: it need not wait");
    let text = Brake { level: Level::Stop, cause: "all are".to_owned(), timeout: hour }.text();
    assert!(text.contains("are replaced, and others after 1h, one at a time; delete the machine"), "{text}");
}

#[test]
fn while_the_brake_stops_only_those_go_that_it_lets_go() {
    let brake = |level| Brake { level, cause: "all are".to_owned(), timeout: SignedDuration::from_hours(1) };
    let mut stopped = BudgetGroup { brake: brake(Level::Stop), ..pool(Limit::Count(1), &[], &[], &[]) };
    assert!(stopped.decide(now()).of("u0").is_err(), "no place is taken, and it is not among those that may go");
    stopped.candidates =
        vec![Candidate { has_lost_vm: true, ..pool(Limit::Count(1), &[], &[], &[5]).candidates.remove(0) }];
    assert_eq!(granted(&stopped), ["m0"]);
    assert!(stopped.decide(now()).of("u1").is_err());
    let trickling = BudgetGroup { brake: brake(Level::Trickle), ..pool(Limit::Count(1), &[], &[], &[5, 9]) };
    assert_eq!(granted(&trickling), ["m1"]);
    let held = trickling.decide(now()).of("u0").err().map(|held| trickling.braked(held, now())).unwrap();
    assert!(held.status.starts_with("the fleet brake holds: all are"), "{}", held.status);
    assert_eq!(held.until, Some(minutes(1)), "it looks again by itself");
}
