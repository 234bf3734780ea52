//! All orders in which two planners of a pool, one of Machines, their requests and the agents of three Nodes can act: never over the
//! budget, and never stuck.
//!
//! A planner reads the pool and its Nodes, and its requests arrive one by one, late, in any order, or never. Meanwhile the others
//! act, the target changes, an agent fails, a rollout deletes a Machine, or somebody removes the claims.

use std::collections::{BTreeMap, BTreeSet};

use nodewright_api::{
    machine_config::MachineConfigPool,
    stored::{Claim, Disruptions},
};
use nodewright_runtime::object::name as name_of;
use serde_json::json;

use super::{cluster_object, scope};
use crate::{
    machine_config_pool::{
        members::used_claims,
        rollout::{Scope, decide},
    },
    shared::{
        disruption::{DisruptionDecision, SharedBudget, needs_claim},
        node::Node,
    },
    testing::NOW,
};

const NODES: usize = 3;
/// What a Node may be claimed for: two configurations, and the deletion of its Machine. A user may have it run another one.
const TARGETS: [&str; 4] = ["a", "b", Claim::MACHINE, "c"];
const OF_USERS: usize = 3;
/// The planner of Machines; the others are the pool's.
const OF_MACHINES: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Done,
    Working,
    Degraded,
}

/// What becomes of the Machine of a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Machine {
    Stays,
    /// It is being deleted, and its Node has yet to be cordoned for that.
    Deleted,
    Cordoned,
    /// With its Node.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Agent {
    desired: usize,
    current: usize,
    state: State,
    given: u32,
    machine: Machine,
    /// Whether a user has chosen what it is to run, and it has neither finished that nor failed.
    by_hand: bool,
}

/// The claims: the target, and the count that the Node had, and what it was to run if it was not done with that.
type Claims = BTreeMap<usize, (usize, u32, Option<usize>)>;

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
    /// For the deletion of its Machine.
    Cordon {
        node: usize,
        given: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    target: usize,
    claims: Claims,
    /// Whether the list of the claims is lost.
    is_lost: bool,
    nodes: [Agent; NODES],
    requests: [Vec<Request>; 3],
    /// What else may happen: changes of the target, failures, removals of the claims, deletions of Machines, and users who choose
    /// what a Node is to run.
    faults: [u8; 5],
}

impl World {
    fn node(&self, at: usize) -> Node {
        let agent = self.nodes[at];
        let state = format!("{:?}", agent.state);
        let keys =
            [("currentConfig", TARGETS[agent.current]), ("desiredConfig", TARGETS[agent.desired]), ("state", &state)];
        let node = keys.into_iter().fold(cluster_object(&at.to_string()), |node, (key, value)| {
            node.annotation(&format!("machineconfiguration.openshift.io/{key}"), value)
        });
        // It is cordoned while it is being updated, and stays so after a failure.
        let is_cordoned = agent.state != State::Done || agent.machine == Machine::Cordoned;
        let asked = "nodewright.dev/config-drain";
        let node = node.annotation(asked, "cordoned;drain-a;2026-06-01T12:00:00Z");
        let node = node.annotation("nodewright.dev/config-given", &agent.given.to_string());
        let taint = json!([{"key": "deployment.machine.sapcloud.io/prefer-no-schedule", "effect": "PreferNoSchedule"}]);
        let node = if agent.machine == Machine::Stays {
            node
        } else {
            node.with("/status/conditions", json!([{"type": "Terminating", "status": "True"}]))
                .with("/spec/taints", taint)
        };
        node.with("/spec/unschedulable", json!(is_cordoned)).build()
    }

    /// The Nodes that exist.
    fn nodes(&self) -> Vec<Node> {
        (0..NODES).filter(|at| self.nodes[*at].machine != Machine::Gone).map(|at| self.node(at)).collect()
    }

    fn claims(&self) -> Disruptions {
        let nodes: Vec<_> = (0..NODES).map(|at| self.node(at)).collect();
        let claim = |(at, (target, given, from)): (&usize, &(usize, u32, Option<usize>))| {
            let (uid, target) = (nodes[*at].metadata.uid.clone().unwrap(), TARGETS[*target].to_owned());
            let from = from.map(|from| TARGETS[from].to_owned());
            (at.to_string(), Claim { uid, target, given: *given, from, since: NOW.parse().unwrap() })
        };
        Disruptions(self.claims.iter().map(claim).collect())
    }

    /// The requests of a planner that reads the world now.
    fn plan(&self, planner: usize, budget: usize) -> Vec<Request> {
        if planner == OF_MACHINES { self.plan_machines(budget) } else { self.plan_pool(budget) }
    }

    fn plan_machines(&self, budget: usize) -> Vec<Request> {
        let spec = json!({"maxUnavailable": budget, "configuration": {"name": TARGETS[self.target]}});
        let pool = cluster_object("worker").with("/metadata/resourceVersion", "5").with("/spec", spec);
        let claims = self.claims().to_string();
        let pool = if self.is_lost { pool } else { pool.annotation("nodewright.dev/disruptions", &claims) };
        let pool: MachineConfigPool = pool.build();
        let nodes = self.nodes();
        let shared = SharedBudget::with(pool, nodes.iter().cloned());
        let of_node = |node: &Node| {
            let at: usize = name_of(node).parse().unwrap();
            // One that is cordoned for its configuration stays so.
            if self.nodes[at].machine != Machine::Deleted || !needs_claim(node) {
                return None;
            }
            match shared.deletion(node) {
                DisruptionDecision::Granted => Some(Request::Cordon { node: at, given: self.nodes[at].given }),
                DisruptionDecision::Claim(claim) => {
                    let mut claims = self.claims();
                    claims.0.insert(name_of(node).to_owned(), claim);
                    Some(Request::Claim { claims: read(&claims), is_current: true })
                }
                DisruptionDecision::Wait(_) => None,
            }
        };
        nodes.iter().filter_map(of_node).collect()
    }

    fn plan_pool(&self, budget: usize) -> Vec<Request> {
        let nodes = self.nodes();
        let claims = if self.is_lost { used_claims(nodes.iter()) } else { self.claims() };
        let rollout = decide(&Scope { target: TARGETS[self.target], ..scope(&nodes, &claims, budget) });
        let wanted = read(&rollout.claims);
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
        if wanted != self.claims || self.is_lost {
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
                (self.claims, self.is_lost) = (claims, false);
                self.pool_changes();
            }
            Request::Give { node, from, to, given } => {
                let agent = &mut self.nodes[node];
                // It tests the taint of those that go as well.
                if (agent.desired, agent.given, agent.machine) == (from, given, Machine::Stays) {
                    assert!(!agent.by_hand, "what a user has chosen is overruled: {self:?}");
                    (agent.desired, agent.given) = (to, given + 1);
                }
            }
            Request::Release { node, given } if self.nodes[node].given == given => self.nodes[node].given += 1,
            Request::Cordon { node, given } => {
                let agent = &mut self.nodes[node];
                if (agent.given, agent.machine) == (given, Machine::Deleted) {
                    (agent.given, agent.machine) = (given + 1, Machine::Cordoned);
                }
            }
            Request::Claim { .. } | Request::Release { .. } => {}
        }
    }

    /// What an agent may do next.
    fn agent(&self, at: usize) -> Vec<Agent> {
        let agent = self.nodes[at];
        // Nobody uncordons a Node that goes.
        let machine = if agent.machine == Machine::Deleted { Machine::Cordoned } else { agent.machine };
        match agent.state {
            _ if agent.machine == Machine::Gone => vec![],
            State::Done if agent.desired != agent.current => vec![Agent { state: State::Working, ..agent }],
            State::Done => vec![],
            State::Working => {
                vec![Agent { current: agent.desired, state: State::Done, machine, by_hand: false, ..agent }]
            }
            State::Degraded => vec![Agent { state: State::Working, ..agent }],
        }
    }

    fn next(&self, planners: &[usize], budget: usize) -> Vec<Self> {
        let mut all = vec![];
        for &planner in planners {
            for at in 0..self.requests[planner].len() {
                let mut lost = self.clone();
                let request = lost.requests[planner].remove(at);
                let mut arrived = lost.clone();
                arrived.arrive(request);
                all.extend([lost, arrived]);
            }
            if self.requests[planner].is_empty() {
                let mut planned = self.clone();
                planned.requests[planner] = self.plan(planner, budget);
                all.push(planned);
            }
        }
        for at in 0..NODES {
            for agent in self.agent(at) {
                let mut moved = self.clone();
                moved.nodes[at] = agent;
                all.push(moved);
            }
            all.extend(self.machine(at));
            if self.nodes[at].state == State::Working && self.nodes[at].machine != Machine::Gone && self.faults[1] > 0 {
                let mut failed = self.clone();
                failed.nodes[at] = Agent { state: State::Degraded, by_hand: false, ..failed.nodes[at] };
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
        all.extend((0..NODES).filter_map(|at| self.chosen(at)));
        // A request that rests on a claim is answered before somebody removes that.
        let is_quiet = !self
            .requests
            .iter()
            .flatten()
            .any(|request| matches!(request, Request::Give { .. } | Request::Cordon { .. }));
        if self.faults[2] > 0 && is_quiet && !self.is_lost {
            let mut forgotten = self.clone();
            forgotten.faults[2] -= 1;
            (forgotten.claims, forgotten.is_lost) = (Claims::new(), true);
            forgotten.pool_changes();
            all.push(forgotten);
        }
        all
    }

    /// A user has a Node that is done run another configuration.
    fn chosen(&self, at: usize) -> Option<Self> {
        let agent = self.nodes[at];
        let is_at_rest =
            agent.state == State::Done && agent.desired == agent.current && agent.machine == Machine::Stays;
        let mut next = self.clone();
        next.faults[4] = next.faults[4].checked_sub(1).filter(|_| is_at_rest)?;
        next.nodes[at] = Agent { desired: OF_USERS, by_hand: true, ..agent };
        Some(next)
    }

    /// A rollout deletes the Machine of a Node, or that is gone.
    fn machine(&self, at: usize) -> Option<Self> {
        let (mut next, agent) = (self.clone(), self.nodes[at]);
        let is_cordoned =
            agent.machine == Machine::Cordoned || agent.machine == Machine::Deleted && agent.state != State::Done;
        if agent.machine == Machine::Stays && self.faults[3] > 0 {
            next.faults[3] -= 1;
            next.nodes[at].machine = Machine::Deleted;
        } else if is_cordoned {
            next.nodes[at].machine = Machine::Gone;
        } else {
            return None;
        }
        Some(next)
    }

    fn disrupted(&self) -> usize {
        let is_disrupted = |agent: &&Agent| {
            let is_moved = agent.desired != agent.current || agent.state != State::Done;
            // What users do is not the pool's.
            is_moved && agent.desired != OF_USERS || agent.machine == Machine::Cordoned
        };
        self.nodes.iter().filter(|agent| agent.machine != Machine::Gone).filter(is_disrupted).count()
    }

    /// What becomes of it if nothing goes wrong any more.
    fn settled(mut self, budget: usize) -> Self {
        (self.requests, self.faults) = (Default::default(), [0; 5]);
        for _ in 0..30 {
            let before = self.clone();
            for planner in [0, OF_MACHINES] {
                for request in self.plan(planner, budget) {
                    self.arrive(request);
                }
            }
            for at in 0..NODES {
                self = self.machine(at).unwrap_or(self);
                if let Some(agent) = self.agent(at).pop() {
                    self.nodes[at] = agent;
                }
            }
            if self == before {
                break;
            }
        }
        self
    }
}

fn read(claims: &Disruptions) -> Claims {
    let target = |name: &str| TARGETS.iter().position(|it| *it == name).unwrap();
    let claim = |it: &Claim| (target(&it.target), it.given, it.from.as_deref().map(target));
    claims.0.iter().map(|(at, it)| (at.parse().unwrap(), claim(it))).collect()
}

#[test]
fn claims_keep_the_budget_and_never_stop_in_any_order() {
    let (of_pool, with_machines, all) = (&[0, 1][..], &[0, OF_MACHINES][..], &[0, 1, OF_MACHINES][..]);
    for (planners, budget, faults) in [
        (of_pool, 1, [1, 0, 1, 0, 0]),
        (of_pool, 1, [1, 1, 0, 0, 0]),
        (of_pool, 1, [2, 0, 0, 0, 0]),
        (of_pool, 2, [0, 1, 0, 0, 0]),
        (&[0], 1, [1, 0, 0, 0, 1]),
        (&[0], 1, [0, 1, 0, 0, 1]),
        (with_machines, 1, [0, 0, 0, 1, 0]),
        (with_machines, 1, [0, 0, 0, 2, 0]),
        (with_machines, 1, [0, 0, 1, 1, 0]),
        (all, 1, [0, 0, 0, 1, 0]),
    ] {
        let done =
            Agent { desired: 0, current: 0, state: State::Done, given: 0, machine: Machine::Stays, by_hand: false };
        let mut nodes = [done; NODES];
        if planners.contains(&OF_MACHINES) {
            // With three there are too many orders.
            nodes[2].machine = Machine::Gone;
        }
        let first =
            World { target: 1, claims: Claims::new(), is_lost: false, nodes, requests: Default::default(), faults };
        let (mut seen, mut open) = (BTreeSet::from([first.clone()]), vec![first]);
        while let Some(world) = open.pop() {
            assert!(world.disrupted() <= budget, "over the budget: {world:?}");
            for next in world.next(planners, budget) {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        assert!(seen.len() > 300, "{}", seen.len());
        // Requests are forgotten: many worlds settle from the same one.
        let calm =
            seen.into_iter().map(|world| World { requests: Default::default(), ..world }).collect::<BTreeSet<_>>();
        for world in calm {
            let settled = world.clone().settled(budget);
            let is_done = |agent: &Agent| match agent.machine {
                Machine::Stays => agent.current == settled.target && agent.state == State::Done,
                Machine::Gone => true,
                Machine::Deleted | Machine::Cordoned => false,
            };
            assert!(settled.nodes.iter().all(is_done), "stuck: {world:?} became {settled:?}");
            assert!(settled.claims.is_empty(), "{settled:?}");
        }
    }
}
