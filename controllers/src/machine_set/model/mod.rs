//! The ledger's model: everything that two planners, an API server and a few users can do to one MachineSet, in every
//! order, with the plans that the product makes.
//!
//! # What is modelled
//! * The API server ([`server`]): the set with its replicas, its ledger and its version; Machines under the names of four
//!   indices; creations that are refused where the name is taken, writes of the ledger that are pinned to a version,
//!   deletions of one UID, finalizers, the garbage collector.
//! * Two planners, neither of which knows that the other one leads as well. Each has a cache of the set and one of the
//!   Machines. A cache shows one moment of the past and only goes forward, each for itself: so any two of these four views
//!   may contradict each other. The runtime's rules are kept: stages in order, batches of 1, 2, 4; a failure ends the plan;
//!   before the next plan what became of a request without an answer, or of a refused one, is read, and the caches show
//!   what was written.
//! * The Machine controllers of both processes: a VM is made after a last look at the set (on what the cache shows, and
//!   then on what is there), a finalizer is dropped, a name is retired alone after a minute.
//! * What nobody has planned ([`steps::Action`]), each bounded by a budget: a user changes the replicas; a Machine is
//!   deleted, or fails; somebody makes a Machine under a name of the set; the set is deleted; an answer is lost, and the
//!   request arrives late or never; a request arrives twice; a process dies and its requests arrive later.
//!
//! All that the set, the Machine and the last look decide is asked of the product ([`product`]), with objects that are
//! built from the views. Nothing of the scheme is written down a second time.
//!
//! A planner plans whenever it can: any earlier plan whose requests are late is among these. A cache goes forward by
//! leaps: a view in between is that of a planner which has looked in between.
//!
//! # What is checked
//! * Never too many: of the Machines that are neither retired nor being deleted there are not more than were wanted at
//!   any time since everything was at rest.
//! * Never too few by us: when a sound Machine is retired or deleted, as many as the set wants at that moment stay, but
//!   for those that users have deleted or that have failed meanwhile.
//! * No second life: no VM for a Machine that is gone, nor for a second Machine under a name; what is retired stays so.
//! * Nothing of somebody else is touched.
//! * Nobody waits: where nothing more happens but that Machines which are being deleted end, there are already as many
//!   others with VMs as are wanted.
//! * It ends: undisturbed, however the rest is ordered, there is no way round in a circle, and every way ends with as many
//!   Machines with VMs as are wanted, nothing else, and nothing planned.
//!
//! # What is not
//! Writes of the status change the set's version and nothing else: they make a write of the ledger fail that may fail
//! here as well. Adoption, the autoscaler's marks, preserved Machines and what reaches living Machines have tests of their
//! own. That a VM which was asked for appears before its Machine is gone is taken for granted: the death of a Machine waits
//! for as long as its provider may take (`machine::death`). A third Machine under one name, a fifth index, and more than
//! four late requests at once are beyond the bounds; how often the search has met these it says.
//!
//! # Bounds
//! `cargo test` goes through the [`USUAL`] bounds: 3 million states in some 40 seconds of one processor, unoptimised.
//! The [`LARGER`] ones are for a change of the scheme; with `LEDGER_MODEL` as start, most, rescales, harms, faults, others:
//!
//! ```console
//! cargo test -p nodewright-controllers larger_bounds -- --ignored --nocapture
//! LEDGER_MODEL=2,2,1,1,1 cargo test -p nodewright-controllers larger_bounds -- --ignored --nocapture
//! ```

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
    /// The most replicas that users wish for.
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

/// The product keeps its word within these bounds.
#[track_caller]
fn holds(bounds: Bounds) {
    match search(bounds, None) {
        Ok(tally) => {
            println!("{bounds:?}: {tally:?}");
            assert!(tally.states > 1_000 && tally.ends > 1, "nothing happens: {tally:?}");
        }
        Err(violation) => panic!("{bounds:?}: {}\n{}", violation.broken, violation.story),
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
        assert_eq!(violation.broken, broken, "{mutant:?}:\n{}", violation.story);
        println!("{mutant:?}:\n{}", violation.story);
    }
    for within in [rescaled, harmed, both] {
        holds(bounds(within));
    }
}
