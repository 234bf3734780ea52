//! A budget of counts: what a manager does for 100 and for 400 machines, for 10 pools of node configuration, and to move 100 nodes of a
//! pool.
//!
//! The table is `docs/reference/budget.tsv`, with a line for each phase and count. A line that rises fails, one that falls has to
//! be written again: `make budget`. Everything runs in one thread on simulated time, so that a count is the same on any computer.
//!
//! # What is counted
//!
//! | count | is |
//! |---|---|
//! | `plans`, `empty plans`, `wake-ups`, `look-ups`, `objects looked up` | what [`nodewright_runtime::counts`] says |
//! | `requests VERB RESOURCE` | answered requests to API servers, with the code if it is none of success |
//! | `events RESULT`, `calls CALL RESULT` | the metrics of that name; calls are those of the provider and other effects |
//! | `stale skips`, `retries`, `renders` | plans put off until a cache shows a write; failed plans; renderings of a pool |
//! | `bytes sent` | the bodies of requests |
//! | `allocations`, `bytes allocated` | blocks that were allocated or resized, and their sizes |
//! | `objects KIND` | blocks of the size of an `Arc` of such an object: objects that were decoded, and clones that are shared |
//!
//! # Guarantees
//! * The counts are those of the manager: the API server, the cloud, the kubelets, the controllers of the workload and the test say
//!   when they work ([`nodewright_testing::stand_in`]).
//! * The same program counts the same, in any process; allocations differ by less than one in a hundred, by the order of hash maps.
//!
//! # Assumptions
//! * Debug build: a release build has no counts of the runtime, and other allocations.
//!
//! # Caveats
//! * 400 machines take minutes in a debug build, most of them in the API server of the test: `make test-slow` checks them.
//! * `objects KIND` counts other blocks of the same size as well: a phase without pods has some of the size of a `PodView`.
//! * Not counted: leader election, traces, logs (no subscriber), webhooks, TLS and HTTP/2, and the process of a driver with the
//!   manager's client of it: the driver is a part of the manager here. The tasks that
//!   forward requests in the clients of kubelets and controllers are counted, as no code of ours runs in them.
//! * A clone of an object on the stack has no line: it shows in `allocations`, by the blocks that the object consists of.
//! * A look-up whose answer is one of two cached kinds is two look-ups.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod allocations;
mod counters;
mod machines;
mod manager;
mod pool_rollout;
mod pools;
mod table;

use std::{env, fs, path::Path, thread};

use table::Table;

/// The environment variable that writes the table.
const UPDATE: &str = "UPDATE_BUDGET";

/// The size that takes minutes in a debug build, most of them in the API server of the test.
const LARGE: &str = "400 machines";

#[test]
fn nothing_costs_more_than_before() {
    let count = || {
        thread::scope(|scope| {
            let runs = [
                scope.spawn(|| manager::simulated(machines::run(100))),
                scope.spawn(|| {
                    let mut table = manager::simulated(pools::run());
                    table.extend(manager::simulated(pool_rollout::run(100)));
                    table
                }),
            ];
            runs.into_iter().flat_map(|run| run.join().expect("a run ends")).collect()
        })
    };
    check(count, |size| size != LARGE);
}

#[test]
#[ignore = "takes minutes: make test-slow"]
fn nothing_costs_more_with_400_machines() {
    check(|| manager::simulated(machines::run(400)), |size| size == LARGE);
}

/// Compares what is counted with the lines of the table that have these sizes, or writes them.
fn check(count: impl Fn() -> Table, is_counted: impl Fn(&str) -> bool) {
    if cfg!(not(debug_assertions)) {
        println!("skipped: the counts of the runtime exist in debug builds alone");
        return;
    }
    let present = count();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/budget.tsv");
    let text = fs::read_to_string(&path).expect("the table is docs/reference/budget.tsv");
    let all = table::parse(&text).expect("docs/reference/budget.tsv is a table");
    let (former, others): (Table, Table) = all.into_iter().partition(|([size, ..], _)| is_counted(size));
    if env::var_os(UPDATE).is_some() {
        let all = others.into_iter().chain(present).collect();
        fs::write(&path, table::text(&all)).expect("the table can be written");
        return;
    }
    let differences = table::differences(&former, &present);
    assert!(differences.is_empty(), "{} lines differ:\n{}", differences.len(), differences.join("\n"));
}

/// `make bench-instructions` runs this alone, built for release, and counts its instructions.
#[test]
#[ignore = "is what `make bench-instructions` runs"]
fn instructions_of_100_machines() {
    drop(manager::simulated(machines::run(100)));
}

/// What a node of a pool costs must not depend on how many there are: a plan looks at all of them, and there are as many plans as moments
/// at which something happens.
#[test]
#[ignore = "takes half a minute: make bench-pools"]
fn a_node_of_a_large_pool_costs_no_more_than_one_of_a_small_one() {
    let [small, large] = [100, 1000].map(|nodes| manager::simulated(pool_rollout::run(nodes)));
    let of = |table: &Table, line: &str| table.iter().find(|([_, _, count], _)| count == line).map_or(0, |it| *it.1);
    println!("{:<44} {:>12} {:>12}", "count", "100 nodes", "1000 nodes");
    for [_, _, count] in small.keys() {
        println!("{count:<44} {:>12} {:>12}", of(&small, count), of(&large, count));
    }
    for count in ["allocations", "bytes allocated", "look-ups Node", "objects looked up Node", "requests patch nodes"] {
        let (few, many) = (of(&small, count), of(&large, count));
        assert!(few > 0 && many <= 12 * few, "{count}: {few} for 100 nodes, {many} for 1000");
    }
}
