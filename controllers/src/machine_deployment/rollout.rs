//! How many replicas each machine set of a deployment should have: arithmetic. `sizes` chooses the formula: a rolling
//! update, the strategy `Recreate`, or scaling (`scale_in`). The bounds are those of the strategy, percentages resolved.
//!
//! The formulas are those of Kubernetes' Deployments, with changes that make them safe where an instance takes
//! minutes to vanish and caches lag:
//!
//! * a set counts for the machines that it has *or may have*, including those in deletion ([`Size::at_most`]);
//! * a machine counts as available only as far as its set will keep it ([`Size::surely_available`]), so that a second
//!   decision before the set has acted on the first one never removes machines twice.
//!
//! One more change prevents a deadlock: an old machine without a VM is deleted even if other machines are unavailable
//! ([`Size::without_vm`]). Otherwise a rollout to an unusable class, and back, would wait for an unhealthy machine whose
//! replacement waits for the place of the machine without a VM.
//!
//! # Guarantees
//! While only a rollout is in progress (no user deletes machines, none fails, the goal stays), and every change of a
//! set's replicas is refused once the set has changed:
//! * there are never more machines than desired and surge, including those in deletion;
//! * there are never fewer available machines than desired less those that may be unavailable.
//!
//! One exception: a set of a former template whose ledger cannot be read may delete no machine. After 15 minutes a rollout goes
//! on without the machines of that set (`sizes::excluded_at`), which then exist in addition.
//!
//! # Assumptions
//! A set creates machines only up to its replicas, and among Machines of one priority it deletes unavailable ones
//! first. Its `observedGeneration` says up to which change of its replicas its creations are visible.

use nodewright_api::MachineDeployment;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Goal {
    pub(super) desired: i64,
    /// Machines that may exist beyond that.
    pub(super) surge: i64,
    /// Machines that may be missing in the meantime.
    pub(super) unavailable: i64,
}

impl Goal {
    pub(super) fn of(deployment: &MachineDeployment) -> Self {
        // A bound that cannot be read makes the spec invalid, so the goal is not used.
        let (surge, unavailable) =
            deployment.update_bounds().map_or((0, 0), |bounds| (bounds.max_surge, bounds.max_unavailable));
        Self {
            desired: i64::from(deployment.spec.replicas.max(0)),
            surge: i64::from(surge),
            unavailable: i64::from(unavailable),
        }
    }

    /// The largest number of machines that the sets may have together.
    pub(super) fn ceiling(self) -> i64 {
        if self.desired == 0 { 0 } else { self.desired + self.surge }
    }

    /// The number of machines that have to stay available.
    pub(super) fn floor(self) -> i64 {
        self.desired - self.unavailable
    }
}

/// The observed state of one machine set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Size {
    /// `spec.replicas`; 0 for a set that is being deleted.
    pub(super) replicas: i64,
    pub(super) live: i64,
    /// Its machines that are in deletion, and whose instances may still run.
    pub(super) deleting: i64,
    /// Its machines that are available and not in deletion.
    pub(super) available: i64,
    /// Its machines that are not in deletion and have no VM yet.
    pub(super) without_vm: i64,
    /// Its machines that have failed and are preserved: its set deletes them last.
    pub(super) preserved: i64,
    /// Whether the set's controller has seen the present spec. Before that it may still create machines, up to former replicas.
    pub(super) observed: bool,
}

impl Size {
    /// All machines that exist or may come to exist without a change of the set.
    pub(super) fn at_most(self) -> i64 {
        self.replicas.max(self.live) + self.deleting
    }

    /// Whether no machine exists, or may come to exist without a change of the set.
    pub(super) fn is_gone(self) -> bool {
        self.at_most() == 0 && self.observed
    }

    /// The same set, whose machines cannot be deleted, as if it had none.
    pub(super) fn without_machines(self) -> Self {
        Self { live: 0, deleting: 0, available: 0, without_vm: 0, preserved: 0, observed: true, ..self }
    }

    /// The machines that remain available, whichever machines the set has yet to delete.
    pub(super) fn surely_available(self) -> i64 {
        self.replicas.min(self.available)
    }

    /// The replicas without a VM, whose removal affects no workload: machines without one, and those that do not exist yet.
    fn idle(self) -> i64 {
        let with_vm = self.live - self.without_vm;
        (self.replicas - with_vm.max(self.surely_available() + self.preserved)).max(0)
    }
}

/// The replicas of the set that should have all machines in the end: it takes the room that the others leave.
pub(super) fn grow(goal: Goal, set: Size, others: &[Size]) -> i64 {
    if set.replicas >= goal.desired {
        return goal.desired;
    }
    if others.iter().any(|other| !other.observed) {
        return set.replicas;
    }
    let taken: i64 = others.iter().map(|other| other.at_most()).sum();
    if taken == 0 {
        return goal.desired;
    }
    let room = goal.ceiling() - taken - set.deleting;
    room.min(goal.desired).max(set.replicas)
}

/// The replicas of the old sets, oldest first. Machines without a VM are always removed; of the others the unavailable ones
/// first, which costs no availability; then available ones, as many as exceed the floor. One that has failed and is preserved is no
/// unavailable one that could go first: its set would delete another. It lowers the floor instead, as in MCM, and goes last.
pub(super) fn shrink(goal: Goal, current: Size, old: &[Size]) -> Vec<i64> {
    let mut targets: Vec<i64> = old.iter().map(|set| set.replicas - set.idle()).collect();
    let total: i64 = current.replicas + targets.iter().sum::<i64>();
    let still_missing = current.replicas - current.surely_available();
    let floor = goal.floor() - current.preserved - old.iter().map(|set| set.preserved).sum::<i64>();
    let mut budget = total - floor - still_missing;
    if budget <= 0 {
        return targets;
    }
    for (target, set) in targets.iter_mut().zip(old) {
        let useless = *target - set.surely_available() - set.preserved;
        budget -= take(target, useless.min(budget));
    }
    let available: i64 = old.iter().map(|set| set.surely_available()).sum::<i64>() + current.surely_available();
    let mut spare = available - floor;
    for target in &mut targets {
        spare -= take(target, spare);
    }
    targets
}

/// Subtracts up to `count`, and returns how much.
pub(super) fn take(target: &mut i64, count: i64) -> i64 {
    let taken = count.min(*target).max(0);
    *target -= taken;
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goal(desired: i64, surge: i64, unavailable: i64) -> Goal {
        Goal { desired, surge, unavailable }
    }

    /// An idle set: all machines exist and are available.
    fn rest(replicas: i64) -> Size {
        Size { replicas, live: replicas, deleting: 0, available: replicas, without_vm: 0, preserved: 0, observed: true }
    }

    fn size(replicas: i64, live: i64, deleting: i64, available: i64) -> Size {
        Size { replicas, live, deleting, available, without_vm: 0, preserved: 0, observed: true }
    }

    #[test]
    fn a_set_whose_machines_cannot_go_counts_as_one_that_has_none() {
        let stuck =
            Size { replicas: 5, live: 9, deleting: 2, available: 4, without_vm: 1, preserved: 3, observed: false };
        let none = Size { live: 0, available: 0, ..rest(5) };
        assert_eq!(format!("{:?}", stuck.without_machines()), format!("{none:?}"));
    }

    #[test]
    fn a_set_alone_gets_what_is_desired() {
        for (desired, present) in [(3, 0), (50, 3), (5, 50), (0, 5), (3, 3)] {
            assert_eq!(grow(goal(desired, 1, 0), rest(present), &[]), desired);
            assert_eq!(grow(goal(desired, 1, 0), rest(present), &[rest(0)]), desired, "an empty set takes no room");
        }
    }

    #[test]
    fn a_new_set_grows_into_the_room_that_others_leave() {
        let cases = [
            // desired, surge, new set, others, expected
            (3, 1, rest(0), vec![rest(3)], 1),
            (3, 0, rest(0), vec![rest(3)], 0),
            (3, 1, rest(1), vec![size(2, 3, 0, 3)], 1),
            (3, 1, rest(1), vec![size(2, 2, 1, 2)], 1),
            (3, 1, rest(1), vec![size(2, 2, 0, 2)], 2),
            (3, 1, size(1, 1, 1, 1), vec![size(2, 2, 0, 2)], 1),
            (10, 3, rest(0), vec![rest(8), rest(2)], 3),
            (3, 5, rest(0), vec![rest(1)], 3),
            (3, 1, rest(2), vec![rest(5)], 2),
            (3, 1, rest(4), vec![rest(1)], 3),
        ];
        for (desired, surge, new, others, expected) in cases {
            assert_eq!(grow(goal(desired, surge, 0), new, &others), expected, "{new:?} beside {others:?}");
        }
    }

    #[test]
    fn a_set_that_may_still_create_is_waited_for() {
        let busy = Size { observed: false, ..rest(0) };
        assert_eq!(grow(goal(3, 1, 0), rest(1), &[busy]), 1);
        assert_eq!(grow(goal(1, 1, 0), rest(2), &[busy]), 1, "shrinking needs no room");
    }

    #[test]
    fn old_sets_shrink_as_far_as_availability_allows() {
        let cases = [
            // desired, surge, unavailable, new set, old sets, expected
            (3, 1, 0, size(1, 1, 0, 0), vec![rest(3)], vec![3]),
            (3, 1, 0, rest(1), vec![rest(3)], vec![2]),
            (3, 1, 0, rest(1), vec![size(2, 3, 0, 3)], vec![2]),
            (3, 0, 1, rest(0), vec![rest(3)], vec![2]),
            (10, 3, 2, size(3, 3, 0, 0), vec![rest(10)], vec![8]),
            (10, 3, 2, size(5, 5, 0, 0), vec![size(8, 8, 0, 7)], vec![8]),
            (10, 3, 2, size(3, 3, 0, 3), vec![rest(2), rest(8)], vec![0, 5]),
            (3, 1, 0, rest(3), vec![rest(1)], vec![0]),
            (3, 1, 0, rest(1), vec![size(3, 3, 0, 2)], vec![2]),
            (0, 1, 0, rest(0), vec![rest(3)], vec![0]),
        ];
        for (desired, surge, unavailable, new, old, expected) in cases {
            assert_eq!(shrink(goal(desired, surge, unavailable), new, &old), expected, "{new:?} beside {old:?}");
        }
    }

    #[test]
    fn useless_machines_go_first_even_from_a_younger_set() {
        let old = [rest(2), size(2, 2, 0, 1)];
        assert_eq!(shrink(goal(4, 1, 0), rest(1), &old), [2, 1]);
    }

    #[test]
    fn a_preserved_machine_goes_last_and_lowers_the_floor() {
        let preserved = |preserved, size| Size { preserved, ..size };
        let cases = [
            // Surge and unavailable; the new set; the old one of three with a preserved one; its expected replicas.
            (1, 0, rest(0), preserved(1, size(3, 3, 0, 2)), 3),
            (1, 0, rest(1), preserved(1, size(3, 3, 0, 2)), 2),
            (0, 1, rest(0), preserved(1, size(3, 3, 0, 2)), 2),
            (1, 0, rest(2), preserved(1, size(2, 2, 0, 1)), 1),
            (1, 0, rest(3), preserved(1, size(1, 1, 0, 0)), 0),
            (0, 1, rest(2), preserved(1, size(1, 1, 0, 0)), 0),
            (1, 0, rest(2), preserved(1, size(1, 1, 0, 0)), 1),
            (1, 0, preserved(1, size(3, 3, 0, 2)), rest(1), 0),
            (1, 0, rest(0), preserved(3, size(3, 3, 0, 0)), 3),
        ];
        for (surge, unavailable, new, old, expected) in cases {
            assert_eq!(shrink(goal(3, surge, unavailable), new, &[old]), [expected], "{new:?} beside {old:?}");
        }
    }

    #[test]
    fn old_machines_without_a_vm_go_whatever_else_is_unavailable() {
        let without_vm = |without_vm, size| Size { without_vm, ..size };
        let cases = [
            // The new set, one of whose three machines is unhealthy; the old one, and its expected replicas.
            (size(3, 3, 0, 2), without_vm(1, size(1, 1, 0, 0)), 0),
            (size(3, 3, 0, 2), size(1, 0, 0, 0), 0),
            (size(3, 3, 0, 2), size(1, 1, 0, 0), 1),
            (size(1, 1, 0, 0), without_vm(1, size(3, 3, 0, 2)), 2),
            (size(1, 1, 0, 0), without_vm(1, size(3, 4, 0, 3)), 3),
        ];
        for (new, old, expected) in cases {
            assert_eq!(shrink(goal(3, 1, 0), new, &[old]), [expected], "{new:?} beside {old:?}");
        }
    }
}

/// A model of every order of events in a rollout, with the planner's snapshot lagging by any amount.
#[cfg(test)]
mod model {
    use std::collections::HashSet;

    use super::*;

    /// A set with its actual and its observed machines.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    struct Set {
        replicas: i64,
        /// The replicas that the set's controller acts on.
        heard: i64,
        pending: i64,
        ready: i64,
        deleting: i64,
        seen: (i64, i64, i64),
    }

    impl Set {
        fn live(&self) -> i64 {
            self.pending + self.ready
        }

        fn look(&mut self) {
            self.seen = (self.live(), self.deleting, self.ready);
        }

        fn size(&self) -> Size {
            let (live, deleting, available) = self.seen;
            let observed = self.heard == self.replicas;
            // The worst case: all machines that are not ready count as without a VM, so that the most are removed.
            Size {
                replicas: self.replicas,
                live,
                deleting,
                available,
                without_vm: live - available,
                preserved: 0,
                observed,
            }
        }

        /// The possible next events of the set, besides a decision of the deployment.
        fn steps(self, may_fail: bool) -> Vec<Self> {
            let mut steps = vec![];
            let mut step = |changed: bool, change: fn(&mut Self)| {
                if changed {
                    let mut next = self;
                    change(&mut next);
                    steps.push(next);
                }
            };
            step(self.heard != self.replicas, |set| {
                set.heard = set.replicas;
                // The machines that the set created before are in the shared cache when its status says that it has observed
                // the spec.
                set.look();
            });
            step(self.live() < self.heard, |set| set.pending += 1);
            step(self.live() > self.heard && self.pending > 0, |set| {
                set.pending -= 1;
                set.deleting += 1;
            });
            step(self.live() > self.heard && self.pending == 0, |set| {
                set.ready -= 1;
                set.deleting += 1;
            });
            step(self.pending > 0, |set| {
                set.pending -= 1;
                set.ready += 1;
            });
            step(may_fail && self.ready > 0 && self.pending == 0, |set| {
                set.ready -= 1;
                set.pending += 1;
            });
            step(self.deleting > 0, |set| set.deleting -= 1);
            steps
        }
    }

    type Snapshot = [Set; 2];

    fn decide(goal: Goal, snapshot: Snapshot) -> Option<Snapshot> {
        let [old, new] = snapshot;
        let mut next = snapshot;
        next[1].replicas = grow(goal, new.size(), &[old.size()]);
        next[0].replicas = shrink(goal, new.size(), &[old.size()])[0];
        (next != snapshot).then_some(next)
    }

    fn successors(goal: Goal, snapshot: Snapshot, may_fail: bool) -> Vec<Snapshot> {
        let [old, new] = snapshot;
        let mut next: Vec<Snapshot> = decide(goal, snapshot).into_iter().collect();
        next.extend(old.steps(may_fail).into_iter().map(|old| [old, new]));
        next.extend(new.steps(may_fail).into_iter().map(|new| [old, new]));
        // Both sets are in one store: it never shows one of them older than the other.
        let mut looked = snapshot;
        looked.iter_mut().for_each(Set::look);
        next.push(looked);
        next
    }

    fn reachable(goal: Goal, begin: Snapshot, may_fail: bool) -> HashSet<Snapshot> {
        let mut known = HashSet::from([begin]);
        let mut open = vec![begin];
        while let Some(snapshot) = open.pop() {
            for next in successors(goal, snapshot, may_fail) {
                if known.insert(next) {
                    open.push(next);
                }
            }
        }
        known
    }

    fn begin(replicas: i64) -> Snapshot {
        let mut old = Set { replicas, heard: replicas, pending: 0, ready: replicas, deleting: 0, seen: (0, 0, 0) };
        old.look();
        let new = Set { replicas: 0, heard: 0, pending: 0, ready: 0, deleting: 0, seen: (0, 0, 0) };
        [old, new]
    }

    const GOALS: [(i64, i64, i64); 6] = [(3, 1, 0), (3, 0, 1), (2, 1, 1), (3, 2, 0), (2, 2, 1), (1, 1, 0)];

    #[test]
    fn no_order_of_events_breaks_a_bound() {
        for (desired, surge, unavailable) in GOALS {
            let goal = Goal { desired, surge, unavailable };
            for snapshot in reachable(goal, begin(desired), false) {
                let all: i64 = snapshot.iter().map(|set| set.live() + set.deleting).sum();
                let ready: i64 = snapshot.iter().map(|set| set.ready).sum();
                assert!(all <= goal.ceiling(), "{all} machines: {snapshot:?}");
                assert!(ready >= goal.floor(), "{ready} ready: {snapshot:?}");
            }
        }
    }

    #[test]
    fn a_rollout_that_began_amid_creation_keeps_the_ceiling() {
        let goal = Goal { desired: 3, surge: 1, unavailable: 0 };
        let mut snapshot = begin(3);
        snapshot[0].ready = 1;
        snapshot[0].look();
        for snapshot in reachable(goal, snapshot, false) {
            let all: i64 = snapshot.iter().map(|set| set.live() + set.deleting).sum();
            assert!(all <= goal.ceiling(), "{all} machines: {snapshot:?}");
        }
    }

    #[test]
    fn every_order_of_events_can_still_end_well() {
        for (desired, surge, unavailable) in GOALS {
            let goal = Goal { desired, surge, unavailable };
            for may_fail in [false, true] {
                let known = reachable(goal, begin(desired), may_fail);
                // Only at the goal may there be states in which nothing but a failure can happen.
                let stuck = known
                    .iter()
                    .filter(|snapshot| successors(goal, **snapshot, false).into_iter().all(|next| next == **snapshot));
                for [old, new] in stuck {
                    assert_eq!((old.replicas, old.live() + old.deleting), (0, 0), "{goal:?}");
                    assert_eq!((new.replicas, new.ready), (desired, desired), "{goal:?}");
                }
            }
        }
    }
}
