//! All orders in which two planners, their requests and the agents of three Nodes can act: never over the budget, and never stuck.
//!
//! A planner reads the pool and its Nodes, and its requests arrive one by one, late, in any order, or never. Meanwhile the other one
//! acts, the target changes, an agent fails, or somebody removes the claims.

use std::collections::{BTreeMap, BTreeSet};

use nodewright_api::stored::{Claim, Disruptions};
use nodewright_runtime::object::name as name_of;
use serde_json::json;

use super::cluster_object;
use crate::{
    machine_config_pool::rollout::{Scope, decide},
    shared::node::Node,
    testing::NOW,
};

const NODES: usize = 3;
const CONFIGS: [&str; 2] = ["a", "b"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Done,
    Working,
    Degraded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Agent {
    desired: usize,
    current: usize,
    state: State,
    given: u32,
}

/// The claims: the target, and the count that the Node had.
type Claims = BTreeMap<usize, (usize, u32)>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Request {
    /// `is_current`: the pool has not changed since it was read.
    Claim {
        claims: Claims,
        is_current: bool,
    },
    Give {
        node: usize,
        from: usize,
        to: usize,
        given: u32,
    },
    Release {
        node: usize,
        given: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    target: usize,
    claims: Claims,
    nodes: [Agent; NODES],
    requests: [Vec<Request>; 2],
    /// What else may happen: changes of the target, failures, and removals of the claims.
    faults: [u8; 3],
}

impl World {
    fn node(&self, at: usize) -> Node {
        let agent = self.nodes[at];
        let state = format!("{:?}", agent.state);
        let keys =
            [("currentConfig", CONFIGS[agent.current]), ("desiredConfig", CONFIGS[agent.desired]), ("state", &state)];
        let node = keys.into_iter().fold(cluster_object(&at.to_string()), |node, (key, value)| {
            node.annotation(&format!("machineconfiguration.openshift.io/{key}"), value)
        });
        // It is cordoned while it is being updated, and stays so after a failure.
        let (is_cordoned, asked) = (agent.state != State::Done, "nodewright.dev/config-drain");
        let node = node.annotation(asked, "cordoned;drain-a;2026-06-01T12:00:00Z");
        let node = node.annotation("nodewright.dev/config-given", &agent.given.to_string());
        node.with("/spec/unschedulable", json!(is_cordoned)).build()
    }

    /// The requests of a planner that reads the world now.
    fn plan(&self, budget: usize) -> Vec<Request> {
        let nodes: Vec<_> = (0..NODES).map(|at| self.node(at)).collect();
        let claim = |(at, (target, given)): (&usize, &(usize, u32))| {
            let (uid, target) = (nodes[*at].metadata.uid.clone().unwrap(), CONFIGS[*target].to_owned());
            (at.to_string(), Claim { uid, target, given: *given, since: NOW.parse().unwrap() })
        };
        let claims = Disruptions(self.claims.iter().map(claim).collect());
        let (target, others, now) = (CONFIGS[self.target], vec![], NOW.parse().unwrap());
        let scope =
            Scope { nodes: nodes.iter().collect(), others, unreadable: 0, claims: &claims, target, budget, now };
        let rollout = decide(&scope);
        let config = |name: &str| CONFIGS.iter().position(|it| *it == name).unwrap();
        let wanted = rollout.claims.0.iter().map(|(at, it)| (at.parse().unwrap(), (config(&it.target), it.given)));
        let wanted: Claims = wanted.collect();
        let given = rollout.targets.iter().map(|node| {
            let node: usize = name_of(*node).parse().unwrap();
            let Agent { desired, given, .. } = self.nodes[node];
            Request::Give { node, from: desired, to: self.target, given }
        });
        let released = rollout.releases.iter().map(|node| {
            let node: usize = name_of(*node).parse().unwrap();
            Request::Release { node, given: self.nodes[node].given }
        });
        let mut requests: Vec<_> = given.chain(released).collect();
        if wanted != self.claims {
            requests.push(Request::Claim { claims: wanted, is_current: true });
        }
        requests
    }

    fn pool_changes(&mut self) {
        for request in self.requests.iter_mut().flatten() {
            if let Request::Claim { is_current, .. } = request {
                *is_current = false;
            }
        }
    }

    fn arrive(&mut self, request: Request) {
        match request {
            Request::Claim { claims, is_current: true } => {
                self.claims = claims;
                self.pool_changes();
            }
            Request::Give { node, from, to, given } => {
                let agent = &mut self.nodes[node];
                if (agent.desired, agent.given) == (from, given) {
                    (agent.desired, agent.given) = (to, given + 1);
                }
            }
            Request::Release { node, given } if self.nodes[node].given == given => self.nodes[node].given += 1,
            Request::Claim { .. } | Request::Release { .. } => {}
        }
    }

    /// What an agent may do next.
    fn agent(&self, at: usize) -> Vec<Agent> {
        let agent = self.nodes[at];
        match agent.state {
            State::Done if agent.desired != agent.current => vec![Agent { state: State::Working, ..agent }],
            State::Done => vec![],
            State::Working => vec![Agent { current: agent.desired, state: State::Done, ..agent }],
            State::Degraded => vec![Agent { state: State::Working, ..agent }],
        }
    }

    fn next(&self, budget: usize) -> Vec<Self> {
        let mut all = vec![];
        for planner in 0..2 {
            for at in 0..self.requests[planner].len() {
                let mut lost = self.clone();
                let request = lost.requests[planner].remove(at);
                let mut arrived = lost.clone();
                arrived.arrive(request);
                all.extend([lost, arrived]);
            }
            if self.requests[planner].is_empty() {
                let mut planned = self.clone();
                planned.requests[planner] = self.plan(budget);
                all.push(planned);
            }
        }
        for at in 0..NODES {
            for agent in self.agent(at) {
                let mut moved = self.clone();
                moved.nodes[at] = agent;
                all.push(moved);
            }
            if self.nodes[at].state == State::Working && self.faults[1] > 0 {
                let mut failed = self.clone();
                failed.nodes[at].state = State::Degraded;
                failed.faults[1] -= 1;
                all.push(failed);
            }
        }
        if self.faults[0] > 0 {
            let mut changed = self.clone();
            changed.faults[0] -= 1;
            changed.target = 1 - self.target;
            changed.pool_changes();
            all.push(changed);
        }
        // A request that rests on a claim is answered before somebody removes that.
        let is_quiet = !self.requests.iter().flatten().any(|request| matches!(request, Request::Give { .. }));
        if self.faults[2] > 0 && is_quiet && !self.claims.is_empty() {
            let mut forgotten = self.clone();
            forgotten.faults[2] -= 1;
            forgotten.claims.clear();
            forgotten.pool_changes();
            all.push(forgotten);
        }
        all
    }

    fn disrupted(&self) -> usize {
        self.nodes.iter().filter(|agent| agent.desired != agent.current || agent.state != State::Done).count()
    }

    /// What becomes of it if nothing goes wrong any more.
    fn settled(mut self, budget: usize) -> Self {
        self.requests = [vec![], vec![]];
        for _ in 0..20 {
            for request in self.plan(budget) {
                self.arrive(request);
            }
            for at in 0..NODES {
                if let Some(agent) = self.agent(at).pop() {
                    self.nodes[at] = agent;
                }
            }
        }
        self
    }
}

#[test]
fn claims_keep_the_budget_and_never_stop_in_any_order() {
    for (budget, faults) in [(1, [1, 0, 1]), (1, [1, 1, 0]), (1, [2, 0, 0]), (2, [0, 1, 0])] {
        let done = Agent { desired: 0, current: 0, state: State::Done, given: 0 };
        let first =
            World { target: 1, claims: Claims::new(), nodes: [done; NODES], requests: [vec![], vec![]], faults };
        let (mut seen, mut open) = (BTreeSet::from([first.clone()]), vec![first]);
        while let Some(world) = open.pop() {
            assert!(world.disrupted() <= budget, "over the budget: {world:?}");
            for next in world.next(budget) {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        assert!(seen.len() > 1_000, "{}", seen.len());
        // Requests are forgotten: many worlds settle from the same one.
        let calm = seen.into_iter().map(|world| World { requests: [vec![], vec![]], ..world }).collect::<BTreeSet<_>>();
        for world in calm {
            let settled = world.clone().settled(budget);
            let is_done = |agent: &Agent| agent.current == settled.target && agent.state == State::Done;
            assert!(settled.nodes.iter().all(is_done), "stuck: {world:?} became {settled:?}");
            assert!(settled.claims.is_empty(), "{settled:?}");
        }
    }
}
