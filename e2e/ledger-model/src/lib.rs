//! The ledger's model: everything that two planners, an API server and a few users can do to one MachineSet, in every
//! order, with the plans that the product makes.
//!
//! # What is modelled
//! * The API server ([`server`]): the set with its replicas, its ledger and its version; Machines under the names of four
//!   indices; creations that are refused where the name is taken, writes of the ledger under a version, deletions of one
//!   UID, finalizers, the garbage collector.
//! * Two planners. Neither knows that the other one leads as well. Each has a cache of the set and one of the Machines. A
//!   cache shows one moment of the past and only goes forward, each for itself, so any two of these four views may contradict
//!   each other. The runtime's rules are kept: stages in order; batches of 1, 2, 4; a failure ends the plan; before the next
//!   plan the planner reads what became of a request that failed or had no answer, and its caches show what it wrote.
//! * The Machine controllers of both processes: they create a VM after a last read of the set (decided on what the cache
//!   shows, and then on what is there), drop a finalizer, and retire a name alone after a minute.
//! * What no plan contains ([`steps::Action`]), each bounded by a budget: a user changes the replicas; a Machine is deleted,
//!   or fails; another client creates a Machine under a name of the set; the set is deleted; an answer is lost, and the
//!   request arrives late or never; a request arrives twice; a process dies and its requests arrive later.
//!
//! The product makes all decisions of the set, the Machine and the last read ([`product`]), on objects that are built from
//! the views. The model repeats nothing of the scheme.
//!
//! A planner plans whenever it can: any earlier plan whose requests are late is among these. A cache goes forward by
//! leaps: a view in between is that of a planner which has read in between.
//!
//! # What is checked
//! * Never too many: of the Machines that are neither retired nor being deleted there are not more than were wanted at
//!   any time since everything was at rest.
//! * Never too few by the controllers' own doing: when a sound Machine is retired or deleted, as many as the set wants at
//!   that moment stay, less those that users have deleted or that have failed meanwhile.
//! * No second life: no VM for a Machine that is gone, nor for a second Machine under a name; what is retired stays retired.
//! * No object of another owner is changed.
//! * No needless wait: where nothing more happens but the end of Machines that are being deleted, there are already as many
//!   others with VMs as are wanted.
//! * It ends: undisturbed, in whatever order, there is no circle of states, and every path ends with as many Machines with
//!   VMs as are wanted, nothing else, and nothing planned.
//!
//! # Caveats
//! Writes of the status change the set's version and nothing else: they make a write of the ledger fail that may fail
//! here as well. Adoption, the autoscaler's marks, preserved Machines and what reaches living Machines have tests of their
//! own. The model assumes that a VM appears before its Machine is gone: the deletion of a Machine waits for as long as its
//! provider may take. A third Machine under one name, a fifth index, and more than four late requests at once are beyond
//! the bounds; the search counts how often it has met these.
//!
//! # Bounds
//! `cargo test -p nodewright-ledger-model` goes through the [`USUAL`] bounds: 3 million states in some 25 seconds of one
//! processor. The [`LARGER`] ones are for a change of the scheme; `LEDGER_MODEL` holds start, most, rescales, harms, faults:
//!
//! ```console
//! cargo test -p nodewright-ledger-model larger_bounds -- --ignored --nocapture
//! LEDGER_MODEL=2,2,1,1,1 cargo test -p nodewright-ledger-model larger_bounds -- --ignored --nocapture
//! ```

#![cfg(test)]

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

/// How far a search goes.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// The replicas at first; there are no Machines yet.
    start: u8,
    /// The most replicas that users ask for.
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

/// No property is violated within these bounds.
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
