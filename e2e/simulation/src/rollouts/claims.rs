//! The budget of a pool, and its claims: I36, I38, I44.

use nodewright_api::{
    annotations::DISRUPTIONS,
    stored::{Claim, Disruptions},
};
use serde_json::Value;

use super::{MASTER, invariants::Rollouts, node::Member};

/// A pool as the invariants see it, without its claims.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Pool {
    pub(super) uid: String,
    pub(super) target: String,
    pub(super) is_paused: bool,
    pub(super) max_unavailable: Value,
}

impl Pool {
    pub(super) fn of(pool: &Value) -> Self {
        let (metadata, spec) = (&pool["metadata"], &pool["spec"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            uid: text(&metadata["uid"]),
            target: text(&spec["configuration"]["name"]),
            is_paused: spec["paused"] == true,
            max_unavailable: spec["maxUnavailable"].clone(),
        }
    }

    /// How many of so many Nodes may be disrupted at once.
    fn budget(&self, name: &str, nodes: usize) -> usize {
        let percent = || self.max_unavailable.as_str()?.strip_suffix('%')?.parse::<usize>().ok();
        let number = self.max_unavailable.as_u64().and_then(|number| usize::try_from(number).ok());
        let budget = number.or_else(|| percent().map(|percent| nodes * percent / 100)).unwrap_or(1).max(1);
        if name == MASTER { 1 } else { budget }
    }
}

pub(super) fn has_claims(pool: &Value) -> bool {
    pool["metadata"]["annotations"][DISRUPTIONS].is_string()
}

pub(super) fn claims_of(pool: &Value) -> Disruptions {
    let text = pool["metadata"]["annotations"][DISRUPTIONS].as_str();
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

impl Rollouts {
    /// The most Nodes of a pool that may be disrupted at once, as anybody may see the pool.
    pub(super) fn budget(&self, name: &str) -> usize {
        let (Some(pool), Some(sizes)) = (self.pools.get(name), self.sizes.get(name)) else { return 0 };
        let budgets =
            pool.seen(self.sight).flat_map(|pool| sizes.seen(self.sight).map(|nodes| pool.budget(name, *nodes)));
        budgets.max().unwrap_or(0)
    }

    /// The Nodes of a pool that take a part of its budget, so that everybody sees it: those that a manager has moved, and those that
    /// have been disrupted for long.
    pub(super) fn disrupted(&self, name: &str) -> Vec<&str> {
        let is_disrupted = |(_, node): &(&String, &super::invariants::Watched)| {
            node.disrupted_since.is_some_and(|since| node.is_moved || since.elapsed() > self.sight)
        };
        let own = self.nodes.iter().filter(|(_, node)| node.pool.as_deref() == Some(name));
        own.filter(is_disrupted).map(|(node, _)| node.as_str()).collect()
    }

    /// Checks the claims that a manager writes. Managers write them only if the pool is as they have read it. `is_lost`: before, there was
    /// no list.
    pub(super) fn claimed(
        &self,
        name: &str,
        (before, after): (&Disruptions, &Disruptions),
        is_lost: bool,
    ) -> Vec<String> {
        let is_new = |(node, claim): &(&String, &Claim)| before.0.get(*node).is_none_or(|known| known.uid != claim.uid);
        let new: Vec<&String> = after.0.iter().filter(is_new).map(|(node, _)| node).collect();
        let (Some(pool), false) = (self.pools.get(name), new.is_empty()) else { return vec![] };
        let mut wrongs = vec![];
        // A list that was lost has the Nodes again that are being moved.
        let begins = new.iter().any(|node| self.nodes.get(*node).is_none_or(|node| !node.is_moved));
        if pool.now().is_paused && begins {
            wrongs.push(format!("I38: pool {name} is paused, and claims {new:?}"));
        }
        let disrupted = self.disrupted(name);
        let others = disrupted.iter().filter(|node| !after.0.contains_key(**node)).count();
        let (all, most) = (after.0.len() + others, self.budget(name));
        // The claim of a Node that is disrupted already takes nothing more. After a loss, one that was used only records that the Node is.
        let given = |node: &str| self.nodes.get(node).map_or(0, |node| node.past.now().given);
        let is_record = |node: &str| is_lost && after.0[node].given < given(node);
        let disrupts = |node: &&String| !disrupted.contains(&node.as_str()) && !is_record(node);
        if all > most && new.iter().any(disrupts) {
            wrongs
                .push(format!("I36: pool {name} claims {new:?}, so that {all} nodes are disrupted, and {most} may be"));
        }
        wrongs.extend(new.into_iter().filter_map(|node| self.out_of_turn(name, node, after)));
        wrongs
    }

    /// Why it is not the turn of a Node that is claimed now. Only what all see for a while counts.
    fn out_of_turn(&self, pool: &str, claimed: &str, after: &Disruptions) -> Option<String> {
        let target = &self.pools.get(pool)?.now().target;
        let settled = |node: &str| {
            let node = self.nodes.get(node).filter(|node| node.pool.as_deref() == Some(pool))?;
            node.past.is_settled(self.sight).then(|| node.past.now())
        };
        let chosen = settled(claimed).filter(|member| !member.counts(target))?;
        let waits = |member: &Member| {
            (member.is_done() || member.has_failed())
                && member.is_open()
                && member.has_agent()
                && member.desired != *target
        };
        let order = |member: &Member| (!(member.has_failed() && member.current != member.desired), member.rank.clone());
        let is_first = |name: &&String| {
            settled(name).is_some_and(|member| waits(member) && !member.counts(target) && order(member) < order(chosen))
        };
        let first = self.nodes.keys().filter(|name| !after.0.contains_key(*name)).find(is_first)?;
        Some(format!("I44: pool {pool} claims {claimed}, and it is the turn of {first}"))
    }
}
