//! The allocations of the manager: those of this thread while no stand-in works.

use std::cell::Cell;

use nodewright_api::{Machine, MachineClass, MachineDeployment, MachineSet, machine_config::MachineConfigPool};
use nodewright_controllers::wiring::CACHED_SIZES;
use nodewright_e2e_allocator::ObservedAllocator;
use nodewright_testing::stand_in;

#[global_allocator]
static ALLOCATOR: ObservedAllocator = ObservedAllocator(note);

/// The kinds whose objects are recognised by the size of their blocks.
const KINDS: [(&str, usize); 8] = [
    ("Machine", shared(size_of::<Machine>())),
    ("MachineClass", shared(size_of::<MachineClass>())),
    ("MachineConfigPool", shared(size_of::<MachineConfigPool>())),
    ("MachineDeployment", shared(size_of::<MachineDeployment>())),
    ("MachineSet", shared(size_of::<MachineSet>())),
    (CACHED_SIZES[0].0, shared(CACHED_SIZES[0].1)),
    (CACHED_SIZES[1].0, shared(CACHED_SIZES[1].1)),
    (CACHED_SIZES[2].0, shared(CACHED_SIZES[2].1)),
];

thread_local! {
    static IS_COUNTING: Cell<bool> = const { Cell::new(false) };
    static BLOCKS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<u64> = const { Cell::new(0) };
    static OBJECTS: [Cell<u64>; KINDS.len()] = const { [const { Cell::new(0) }; KINDS.len()] };
}

/// The size of the block of an `Arc` with a value of this size.
const fn shared(size: usize) -> usize {
    size + 2 * size_of::<usize>()
}

/// Counts the allocations of this thread from now on.
pub(crate) fn count() {
    IS_COUNTING.set(true);
}

/// What was counted so far.
pub(crate) fn counted() -> impl Iterator<Item = (String, u64)> {
    let objects = |number: usize| OBJECTS.with(|objects| objects[number].get());
    let objects = KINDS.iter().enumerate().map(move |(number, (kind, _))| (format!("objects {kind}"), objects(number)));
    let all = [("allocations", BLOCKS.get()), ("bytes allocated", BYTES.get())];
    all.into_iter().map(|(what, number)| (what.to_owned(), number)).chain(objects)
}

fn note(size: usize) {
    // A thread that ends has no cells any more.
    if !IS_COUNTING.try_with(Cell::get).unwrap_or(false) || stand_in::is_active() {
        return;
    }
    BLOCKS.set(BLOCKS.get() + 1);
    BYTES.set(BYTES.get() + size as u64);
    if let Some(kind) = KINDS.iter().position(|(_, of_kind)| *of_kind == size) {
        OBJECTS.with(|objects| objects[kind].set(objects[kind].get() + 1));
    }
}

#[test]
fn what_a_stand_in_allocates_is_not_counted() {
    count();
    let before: Vec<_> = counted().collect();
    let machine = std::sync::Arc::new(Machine::default());
    drop(stand_in::polled(async {}));
    let after: Vec<_> = stand_in::within(|| {
        drop(machine.as_ref().clone());
        drop(vec![0_u8; 1_000]);
        counted().collect()
    });
    let number = |counted: &[(String, u64)], what| counted.iter().find(|(line, _)| line == what).map(|(_, it)| *it);
    assert_eq!(number(&after, "objects Machine"), number(&before, "objects Machine").map(|it| it + 1));
    let bytes = number(&after, "bytes allocated").zip(number(&before, "bytes allocated"));
    assert!(bytes.is_some_and(|(after, before)| (1..20_000).contains(&(after - before))), "{bytes:?}");
}

/// A kind that has another size than the type in the caches would never be counted.
#[test]
fn each_kind_is_counted_by_a_size_of_its_own() {
    let table = include_str!("../../../../docs/reference/budget.tsv");
    for (number, (kind, size)) in KINDS.iter().enumerate() {
        assert!(table.contains(&format!("\tobjects {kind}\t")), "no phase counts an object {kind}");
        let other = KINDS[..number].iter().find(|(_, other)| other == size);
        assert_eq!(other, None, "{kind} has the size of another kind");
    }
}
