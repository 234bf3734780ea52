//! The allocations of the manager: those of this thread while no stand-in works.

use std::cell::Cell;

use k8s_openapi::api::core::v1::{Node, Pod};
use nodewright_api::{Machine, MachineClass, MachineDeployment, MachineSet};
use nodewright_e2e_allocator::ObservedAllocator;
use nodewright_testing::stand_in;

#[global_allocator]
static ALLOCATOR: ObservedAllocator = ObservedAllocator(note);

/// The kinds whose objects are recognised by the size of their blocks.
const KINDS: [(&str, usize); 6] = [
    ("Machine", shared::<Machine>()),
    ("MachineClass", shared::<MachineClass>()),
    ("MachineDeployment", shared::<MachineDeployment>()),
    ("MachineSet", shared::<MachineSet>()),
    ("Node", shared::<Node>()),
    ("Pod", shared::<Pod>()),
];

thread_local! {
    static IS_COUNTING: Cell<bool> = const { Cell::new(false) };
    static BLOCKS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<u64> = const { Cell::new(0) };
    static OBJECTS: [Cell<u64>; KINDS.len()] = const { [const { Cell::new(0) }; KINDS.len()] };
}

/// The size of the block of an `Arc`.
const fn shared<T>() -> usize {
    size_of::<T>() + 2 * size_of::<usize>()
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
