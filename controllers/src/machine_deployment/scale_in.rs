//! How many replicas the sets of a deployment keep when it is scaled in while several of them have machines: arithmetic without
//! objects.

use super::rollout::{Goal, Size, take};

/// The replicas of the sets of a rollout that together exceed the ceiling: of the current one, and of the old ones, oldest first.
/// Machines of old sets go first, unless availability forbids it: then such of the current set as are not available.
pub(super) fn scale_in_rollout(goal: Goal, current: Size, old: &[Size]) -> (i64, Vec<i64>) {
    let mut kept = current.replicas;
    let mut targets: Vec<i64> = old.iter().map(|set| set.replicas).collect();
    let mut excess = kept + targets.iter().sum::<i64>() - goal.ceiling();
    let mut spare = current.surely_available() - goal.floor();
    for (target, set) in targets.iter_mut().zip(old) {
        excess -= take(target, excess.min(set.replicas - set.surely_available()));
        spare += set.surely_available();
    }
    for target in &mut targets {
        let taken = take(target, excess.min(spare));
        (excess, spare) = (excess - taken, spare - taken);
    }
    take(&mut kept, excess);
    (kept, targets)
}

/// One of several sets that are scaled in together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) replicas: i64,
    /// The ceiling of the deployment when the set was last scaled, as its annotation says.
    pub(super) ceiling_before: Option<i64>,
}

/// The replicas of active sets, oldest first, that together exceed the ceiling, in proportion to their size. The largest set,
/// of equals the oldest, absorbs the rounding difference.
pub(super) fn scale_in(goal: Goal, sets: &[Share]) -> Vec<i64> {
    let mut targets: Vec<i64> = sets.iter().map(|set| set.replicas).collect();
    let total: i64 = targets.iter().sum();
    let excess = total - goal.ceiling();
    if excess <= 0 {
        return targets;
    }
    let mut by_size: Vec<usize> = (0..sets.len()).collect();
    by_size.sort_by_key(|&at| std::cmp::Reverse(targets[at]));
    let mut left = excess;
    for &at in &by_size {
        left -= take(&mut targets[at], share(goal, sets[at], total).min(left));
    }
    for &at in &by_size {
        left -= take(&mut targets[at], left);
    }
    targets
}

/// How many machines a set loses so that it keeps its share of the total, which is more than the ceiling and thus not 0.
fn share(goal: Goal, set: Share, total: i64) -> i64 {
    let whole = set.ceiling_before.filter(|&ceiling| ceiling > 0).unwrap_or(total);
    // Rounded to the nearest. The numbers count machines, so 64 bits do not overflow.
    let kept = (2 * set.replicas.saturating_mul(goal.ceiling()) + whole) / (2 * whole);
    set.replicas - kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goal(desired: i64, surge: i64, unavailable: i64) -> Goal {
        Goal { desired, surge, unavailable }
    }

    #[test]
    fn scaling_in_keeps_proportions_and_ends_at_the_ceiling() {
        let set = |replicas, before| Share { replicas, ceiling_before: Some(before) };
        let cases = [
            (goal(5, 1, 0), vec![set(8, 11), set(3, 11)], vec![4, 2]),
            (goal(0, 1, 0), vec![set(8, 11), set(3, 11)], vec![0, 0]),
            (goal(3, 0, 0), vec![set(2, 4), set(2, 4)], vec![1, 2]),
            (goal(10, 1, 0), vec![set(8, 11), set(3, 11)], vec![8, 3]),
            (goal(2, 0, 0), vec![Share { replicas: 3, ceiling_before: None }, set(1, 0)], vec![1, 1]),
            (goal(5, 0, 0), vec![set(6, 12), set(2, 12)], vec![3, 2]),
        ];
        for (goal, sets, expected) in cases {
            assert_eq!(scale_in(goal, &sets), expected, "{sets:?} to {goal:?}");
        }
    }

    #[test]
    fn scaling_in_never_leaves_more_than_the_ceiling_nor_takes_too_many() {
        for desired in 0..6 {
            for counts in [[1, 1, 1], [5, 1, 2], [7, 7, 1], [3, 0, 4]] {
                let goal = goal(desired, 1, 0);
                let sets = counts.map(|replicas| Share { replicas, ceiling_before: Some(9) });
                let targets = scale_in(goal, &sets);
                let (before, after): (i64, i64) = (counts.iter().sum(), targets.iter().sum());
                assert_eq!(after, before.min(goal.ceiling()), "{counts:?} to {goal:?}");
                assert!(targets.iter().zip(counts).all(|(&target, replicas)| (0..=replicas).contains(&target)));
            }
        }
    }

    fn size(replicas: i64, available: i64) -> Size {
        Size { replicas, live: replicas, deleting: 0, available, without_vm: 0, preserved: 0, observed: true }
    }

    #[test]
    fn in_a_rollout_former_templates_shrink_first_as_availability_allows() {
        for (goal, current, old, expected) in [
            (goal(4, 2, 0), size(2, 0), vec![size(10, 10)], (2, vec![4])),
            (goal(4, 0, 1), size(5, 0), vec![size(5, 5)], (1, vec![3])),
            (goal(4, 0, 1), size(5, 5), vec![size(5, 5)], (4, vec![0])),
            (goal(4, 1, 0), size(3, 3), vec![size(2, 2), size(3, 1)], (3, vec![1, 1])),
            (goal(4, 0, 0), size(3, 0), vec![size(3, 3), size(3, 3)], (0, vec![1, 3])),
            (goal(0, 1, 0), size(3, 1), vec![size(2, 2)], (0, vec![0])),
            (goal(9, 1, 0), size(3, 1), vec![size(2, 2)], (3, vec![2])),
        ] {
            assert_eq!(scale_in_rollout(goal, current, &old), expected, "{goal:?}");
        }
    }

    #[test]
    fn scaling_in_a_rollout_keeps_ceiling_and_floor() {
        for (desired, surge, unavailable) in [(0, 1, 0), (1, 1, 0), (3, 0, 1), (4, 2, 2), (6, 1, 1)] {
            let goal = goal(desired, surge, unavailable);
            for code in 0..6_i64.pow(4) {
                let digit = |at: u32| code / 6_i64.pow(at) % 6;
                let (current, old) = (size(digit(0), digit(0).min(digit(1))), size(digit(2), digit(2).min(digit(3))));
                let (kept, targets) = scale_in_rollout(goal, current, &[old]);
                let (before, after) = (current.replicas + old.replicas, kept + targets[0]);
                assert_eq!(after, before.min(goal.ceiling()), "{goal:?} {current:?} {old:?}");
                assert!((0..=current.replicas).contains(&kept) && (0..=old.replicas).contains(&targets[0]));
                // Of a smaller set the available machines stay longest.
                let available = |size: Size, kept: i64| size.available.min(kept);
                let left = available(current, kept) + available(old, targets[0]);
                let had = current.available + old.available;
                assert!(left >= had.min(goal.floor()), "{left} of {had} are left: {goal:?} {current:?} {old:?}");
            }
        }
    }
}
