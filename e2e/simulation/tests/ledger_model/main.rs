//! A model of the ledger: all interleavings of two planners, an API server and a few users that change one MachineSet, with the
//! product's own plans.
//!
//! # The model
//! * The API server ([`server`]): the set with its replicas, its ledger and its version, and Machines under the names of four
//!   indices. It rejects creations under a taken name, checks the version of ledger writes and the UID of deletions, and has
//!   finalizers and the garbage collector.
//! * Two planners. Neither knows that the other one leads as well. Each has a cache of the set and a cache of the Machines. A
//!   cache shows one moment of the past and only moves forward, independently of the others, so any two of the four views may
//!   contradict each other. The model keeps the runtime's rules: stages run in order; batches have 1, 2, 4 steps; a failure
//!   ends the plan; before the next plan, the planner reads the outcome of requests that failed or got no answer, and its
//!   caches show its own writes.
//! * The Machine controllers of both processes: they create a VM after a last read of the set (decided on the cache, then on
//!   the current set), drop finalizers, and retire a name on their own after a minute.
//! * Disturbances ([`steps::Action`]), each bounded by a budget: a user changes the replicas; a Machine is deleted, or fails;
//!   another client creates a Machine under a name of the set; the set is deleted; an answer is lost, and the request arrives
//!   late or never; a request arrives twice; a process dies and its requests arrive later.
//!
//! The product makes all decisions of the set, the Machine and the last read ([`product`]), on objects built from the views.
//! The model does not reimplement the scheme.
//!
//! A planner plans whenever it can. This includes every earlier plan whose requests are late. A cache jumps forward: a planner
//! that has read in between covers the views in between.
//!
//! # The properties
//! * Never too many: the number of Machines that are neither retired nor being deleted does not exceed the highest number
//!   wanted since everything was last at rest.
//! * Controllers never cause too few: when a sound Machine is retired or deleted, the number that the set wants at that moment
//!   stays, less the Machines that users have deleted or that have failed meanwhile.
//! * No second life: no VM for a deleted Machine, nor for a second Machine under a name; a retired name stays retired.
//! * Objects of other owners are never changed.
//! * No needless wait: when only the end of deleting Machines remains, the wanted number of other Machines with VMs already
//!   exists.
//! * Termination: without disturbances, in any order, the states have no cycle. Every path ends with the wanted number of
//!   Machines with VMs, nothing else, and nothing planned.
//!
//! # Caveats
//! The model omits status writes: they only change the set's version and so make ledger writes fail, which the model covers.
//! Adoption, the autoscaler's marks, preserved Machines and updates of living Machines have their own tests. The model assumes
//! that a VM appears before its Machine is gone: the deletion of a Machine waits for as long as its provider may take. A third
//! Machine under one name, a fifth index, and more than four late requests at once are beyond the bounds; the search counts
//! these cases.
//!
//! # Bounds
//! `cargo test -p nodewright-e2e-simulation --test ledger_model` searches the [`USUAL`] bounds: 3 million states in some 25 seconds of one processor.
//! Use the [`LARGER`] ones after a change of the scheme; `LEDGER_MODEL` holds start, most, rescales, harms, faults:
//!
//! ```console
//! cargo test -p nodewright-e2e-simulation --test ledger_model larger_bounds -- --ignored --nocapture
//! LEDGER_MODEL=2,2,1,1,1 cargo test -p nodewright-e2e-simulation --test ledger_model larger_bounds -- --ignored --nocapture
//! ```

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
    server::{BAD_END, Broken, GHOST, NO_END, STRANGER, TOO_FEW, TOO_MANY, WAITS},
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
        (DeleteByName, both, STRANGER),
        (PlainApply, harmed, STRANGER),
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
