//! The searches. The documentation of the crate describes the model and the properties.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod mutants;
mod product;
mod search;
mod server;
mod state;
mod steps;

use self::{
    mutants::Mutant,
    product::Product,
    search::{Tally, Violation, explore},
    server::{BAD_END, Broken, FOREIGN, GHOST, NO_END, TOO_FEW, TOO_MANY, WAITS},
    state::{Budget, State},
    steps::Rules,
};

/// The bounds of a search.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// The initial replicas; there are no Machines yet.
    start: u8,
    /// The highest number of replicas that users set.
    most: u8,
    budget: Budget,
}

const fn bounds([start, most, rescales, harms, faults]: [u8; 5]) -> Bounds {
    Bounds { start, most, budget: Budget { rescales, harms, faults } }
}

const USUAL: [Bounds; 5] = [
    bounds([2, 2, 2, 0, 0]),
    bounds([2, 2, 1, 0, 1]),
    bounds([1, 2, 1, 1, 0]),
    bounds([1, 1, 1, 1, 1]),
    bounds([3, 3, 0, 0, 1]),
];

const LARGER: [Bounds; 8] = [
    bounds([2, 2, 1, 1, 0]),
    bounds([2, 2, 0, 1, 1]),
    bounds([2, 2, 1, 0, 2]),
    bounds([1, 2, 1, 1, 1]),
    bounds([1, 2, 3, 0, 0]),
    bounds([1, 1, 2, 1, 0]),
    bounds([1, 1, 0, 2, 0]),
    bounds([1, 1, 0, 1, 2]),
];

fn search(bounds: Bounds, mutant: Option<Mutant>) -> Result<Tally, Box<Violation>> {
    let rules = Rules { product: Product::new(mutant), mutant, most: bounds.most };
    explore(&rules, State::start(bounds.start, bounds.budget))
}

/// Asserts that no property is violated within these bounds.
#[track_caller]
fn holds(bounds: Bounds) {
    match search(bounds, None) {
        Ok(tally) => {
            println!("{bounds:?}: {tally:?}");
            assert!(tally.states > 1_000 && tally.ends > 1, "nothing happens: {tally:?}");
        }
        Err(violation) => panic!("{bounds:?}: {}\n{}", violation.broken, violation.trace),
    }
}

#[test]
fn nothing_breaks_while_replicas_change_twice() {
    holds(USUAL[0]);
}

#[test]
fn nothing_breaks_while_replicas_change_and_requests_are_lost() {
    holds(USUAL[1]);
}

#[test]
fn nothing_breaks_while_replicas_change_and_machines_are_harmed() {
    holds(USUAL[2]);
}

#[test]
fn nothing_breaks_while_all_of_it_happens_to_one_machine() {
    holds(USUAL[3]);
}

#[test]
fn nothing_breaks_while_several_requests_are_lost_at_once() {
    holds(USUAL[4]);
}

#[test]
#[ignore = "minutes, and a gigabyte of memory"]
fn larger_bounds() {
    let Ok(text) = std::env::var("LEDGER_MODEL") else {
        LARGER.into_iter().for_each(holds);
        return;
    };
    let numbers: Vec<u8> = text.split(',').map(|number| number.parse().unwrap()).collect();
    holds(bounds(numbers.try_into().unwrap()));
}

#[test]
fn the_search_finds_what_each_rule_is_for() {
    use Mutant::{
        DeleteBeforeRetire, DeleteByName, FinalizerDropped, LeavingCounted, LeavingNotRetired, NextName, NoLastLook,
        NothingFoundOut, OwnWritesUnseen, PinnedToLedgerAlone, PlainApply, UnpinnedLedger,
    };
    let (rescaled, harmed, both) = ([1, 2, 1, 0, 0], [1, 2, 0, 1, 0], [1, 1, 1, 1, 0]);
    let cases: [(Mutant, [u8; 5], Broken); 12] = [
        (DeleteBeforeRetire, rescaled, TOO_FEW),
        (UnpinnedLedger, rescaled, TOO_FEW),
        (PinnedToLedgerAlone, rescaled, TOO_FEW),
        (NextName, harmed, TOO_MANY),
        (LeavingNotRetired, harmed, BAD_END),
        (LeavingCounted, harmed, WAITS),
        (FinalizerDropped, harmed, GHOST),
        (NoLastLook, rescaled, GHOST),
        (DeleteByName, both, FOREIGN),
        (PlainApply, harmed, FOREIGN),
        (NothingFoundOut, rescaled, TOO_FEW),
        (OwnWritesUnseen, rescaled, NO_END),
    ];
    for (mutant, within, broken) in cases {
        let violation = search(bounds(within), Some(mutant)).expect_err(&format!("{mutant:?} is not caught"));
        assert_eq!(violation.broken, broken, "{mutant:?}:\n{}", violation.trace);
        println!("{mutant:?}:\n{}", violation.trace);
    }
    for within in [rescaled, harmed, both] {
        holds(bounds(within));
    }
}
