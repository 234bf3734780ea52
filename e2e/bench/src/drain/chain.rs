//! The longest chain that disruption budgets and volumes force: how long the drains would have taken without any delay of ours.
//!
//! A pod of an application with `n` places can be evicted when all but `n - 1` of those before it are available again, and a
//! pod with volumes when those of the pod before it on its node are attached elsewhere. What others take for each of these
//! steps (kubelets, the scheduler, the attach-detach controller, the disks' driver) is what they took in the same run.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;

/// A pod that left its node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Leaving {
    pub(super) pod: String,
    pub(super) app: String,
    pub(super) node: String,
    pub(super) evicted: Timestamp,
    /// When it had ended.
    pub(super) ended: Timestamp,
    pub(super) volume: Option<Moved>,
}

/// A volume that moved with its pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Moved {
    /// When it was detached from the node.
    pub(super) detached: Timestamp,
    /// When it was attached to another one.
    pub(super) attached: Timestamp,
}

/// The disruption budget of an application.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Budget {
    /// How many pods may be unavailable at once.
    pub(super) places: usize,
    /// When another pod became available in place of one that had left, in order.
    pub(super) replaced: Vec<Timestamp>,
}

/// Pods each of which had to wait for the one before.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Chain {
    pub(super) pods: Vec<String>,
    pub(super) seconds: f64,
}

impl fmt::Display for Chain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.1} s: {}", self.seconds, self.pods.join(", "))
    }
}

impl Leaving {
    /// How long it kept its node from failing: until it had ended, and its volume was detached.
    fn keeps_node(&self) -> f64 {
        let left = self.volume.as_ref().map_or(self.ended, |volume| volume.detached.max(self.ended));
        seconds(self.evicted, left)
    }

    /// How long the next pod with volumes of the node waits for it.
    fn delays_next(&self) -> f64 {
        let attached = self.volume.as_ref().map_or(self.evicted, |volume| volume.attached);
        self.keeps_node().max(seconds(self.evicted, attached))
    }
}

/// The earliest time of an eviction, and the pods that it had to wait for.
type Earliest = Chain;

/// The longest chain of the pods that left, in the order in which they did.
pub(super) fn longest(mut leaving: Vec<Leaving>, budgets: &BTreeMap<String, Budget>) -> Chain {
    leaving.sort_by_key(|pod| pod.evicted);
    let mut by_app: BTreeMap<&str, Vec<(Earliest, f64)>> = BTreeMap::new();
    let mut by_node: BTreeMap<&str, (Earliest, f64)> = BTreeMap::new();
    let mut longest = Chain::default();
    for pod in &leaving {
        let before = by_app.entry(&pod.app).or_default();
        let budget = budgets.get(&pod.app);
        let of_budget = budget.and_then(|budget| before.get(before.len().checked_sub(budget.places)?));
        let of_node = pod.volume.as_ref().and_then(|_| by_node.get(pod.node.as_str()));
        let earliest = [of_budget, of_node].into_iter().flatten().map(after).max_by(by_length).unwrap_or_default();
        let replaced = budget.and_then(|budget| budget.replaced.get(before.len()));
        let chain = Chain { pods: [earliest.pods, vec![pod.pod.clone()]].concat(), ..earliest };
        before.push((chain.clone(), replaced.map_or(0.0, |replaced| seconds(pod.evicted, *replaced))));
        if pod.volume.is_some() {
            by_node.insert(&pod.node, (chain.clone(), pod.delays_next()));
        }
        longest = [longest, after(&(chain, pod.keeps_node()))].into_iter().max_by(by_length).unwrap_or_default();
    }
    longest
}

fn after((chain, lasts): &(Earliest, f64)) -> Chain {
    Chain { seconds: chain.seconds + lasts, pods: chain.pods.clone() }
}

fn by_length(one: &Chain, other: &Chain) -> std::cmp::Ordering {
    one.seconds.total_cmp(&other.seconds)
}

pub(super) fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    /// A pod that ended one second after its eviction. Its name is that of its application and node.
    fn leaving(app: &str, node: &str, evicted: i64, volume: Option<(i64, i64)>) -> Leaving {
        Leaving {
            pod: format!("{app}-{node}"),
            app: app.to_owned(),
            node: node.to_owned(),
            evicted: at(evicted),
            ended: at(evicted + 1),
            volume: volume.map(|(detached, attached)| Moved { detached: at(detached), attached: at(attached) }),
        }
    }

    fn budget(places: usize, replaced: &[i64]) -> Budget {
        Budget { places, replaced: replaced.iter().map(|second| at(*second)).collect() }
    }

    fn check(leaving: Vec<Leaving>, budgets: &[(&str, Budget)], expected: &str) {
        let budgets = budgets.iter().map(|(app, budget)| ((*app).to_owned(), budget.clone())).collect();
        assert_eq!(longest(leaving, &budgets).to_string(), expected);
    }

    #[test]
    fn volumes_of_a_node_move_one_after_the_other() {
        let pods = vec![
            leaving("x", "a", 10, Some((13, 15))),
            // It waited for four seconds longer than it had to.
            leaving("y", "a", 19, Some((21, 30))),
            leaving("z", "a", 10, None),
            leaving("x", "b", 10, Some((16, 40))),
        ];
        check(pods, &[], "7.0 s: x-a, y-a");
    }

    #[test]
    fn a_budget_has_so_many_places() {
        // Two places. Those who left first were replaced after three seconds and after one second.
        let pods = || (0..4).map(|n| leaving("x", &n.to_string(), [0, 0, 2, 9][n], None)).collect::<Vec<_>>();
        check(pods(), &[("x", budget(2, &[3, 1, 5, 10]))], "4.0 s: x-0, x-2");
        check(pods(), &[("x", budget(1, &[3, 1, 5, 10]))], "8.0 s: x-0, x-1, x-2, x-3");
        check(pods(), &[("x", budget(4, &[3, 1, 5, 10]))], "1.0 s: x-3");
    }

    #[test]
    fn a_chain_goes_over_budgets_and_nodes() {
        let pods =
            vec![leaving("x", "a", 0, Some((2, 4))), leaving("y", "a", 5, Some((6, 7))), leaving("y", "b", 9, None)];
        // 4 s until the volume of the first is elsewhere, 3 s until the second is replaced, 1 s until the third has ended.
        check(pods, &[("y", budget(1, &[8, 12]))], "8.0 s: x-a, y-a, y-b");
    }
}
