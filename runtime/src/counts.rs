//! Counts of what the runtime does, for tests that must notice when it does more. They exist in debug builds alone.
//!
//! # Guarantees
//! * A release build counts nothing, and has no code for it.
//!
//! # Caveats
//! * The counts are those of the thread: only a runtime of one thread has all of them in one place.

use std::{any::type_name, cell::RefCell, collections::BTreeMap};

/// What was counted, for which controller or kind, and why.
type Line = [&'static str; 3];

thread_local! {
    static COUNTS: RefCell<BTreeMap<Line, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// All counts of this thread so far.
///
/// | what | of | why |
/// |---|---|---|
/// | `plans`, `empty plans` | a controller | |
/// | `wake-ups` | a controller | a change of `itself`, or of another kind by its name; `unreadable` objects; a `cache` that shows what was waited for; a `call` that began or ended; a `timer` |
/// | `look-ups`, `objects looked up` | a kind | |
///
/// A wake-up of an object that is in the queue already counts as well.
pub fn counts() -> BTreeMap<[&'static str; 3], u64> {
    COUNTS.with_borrow(BTreeMap::clone)
}

pub(crate) fn planned(controller: &'static str, is_empty: bool) {
    add(["plans", controller, ""], 1);
    add(["empty plans", controller, ""], usize::from(is_empty));
}

pub(crate) fn woken(controller: &'static str, why: &'static str, keys: usize) {
    add(["wake-ups", controller, why], keys);
}

pub(crate) fn looked_up<K>(objects: usize) {
    add(["look-ups", kind::<K>(), ""], 1);
    add(["objects looked up", kind::<K>(), ""], objects);
}

/// The name of a kind's type.
pub(crate) fn kind<K>() -> &'static str {
    type_name::<K>().rsplit("::").next().unwrap_or_default()
}

fn add(line: Line, number: usize) {
    if cfg!(debug_assertions) && number > 0 {
        COUNTS.with_borrow_mut(|counts| *counts.entry(line).or_default() += number as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_zero_has_no_line() {
        struct Kept;
        planned("a", false);
        planned("a", true);
        woken("a", "timer", 0);
        woken("a", kind::<Kept>(), 2);
        looked_up::<Kept>(3);
        looked_up::<Kept>(0);
        let expected = BTreeMap::from([
            (["plans", "a", ""], 2),
            (["empty plans", "a", ""], 1),
            (["wake-ups", "a", "Kept"], 2),
            (["look-ups", "Kept", ""], 2),
            (["objects looked up", "Kept", ""], 3),
        ]);
        assert_eq!(counts(), expected);
    }
}
