//! The rounds of a pool before they happen.

use nodewright_api::{
    labels::CANDIDATE_FOR_UPDATE,
    machine_config::MachineConfigPool,
    stored::{Claim, Disruptions},
};
use nodewright_runtime::object::name as name_of;
use nodewright_testing::ObjectBuilder;
use serde_json::{Value, json};

use super::{
    ROLE, cluster_object, config, file, files,
    rollouts::{node, old},
    scope,
};
use crate::{
    machine_config_pool::{
        Objects, PoolSettings, Preview, preview,
        rollout::{Scope, decide},
        rounds::{Move, rounds},
    },
    shared::node::Node,
    testing::NOW,
};

const ZONE: &str = "topology.kubernetes.io/zone";
const WORKER: &str = "node-role.kubernetes.io/worker";
const WAITING: &str = "waits, as no more nodes may be unavailable";

fn build(nodes: Vec<ObjectBuilder<Node>>) -> Vec<Node> {
    let mut nodes: Vec<_> = nodes.into_iter().map(ObjectBuilder::build).collect();
    nodes.sort_by(|a, b| name_of(a).cmp(name_of(b)));
    nodes
}

fn down(node: ObjectBuilder<Node>) -> ObjectBuilder<Node> {
    node.with("/status/conditions", json!([{"type": "Ready", "status": "False"}]))
}

fn cordoned(node: ObjectBuilder<Node>) -> ObjectBuilder<Node> {
    node.with("/spec/unschedulable", true)
}

fn given(node: ObjectBuilder<Node>, count: u32) -> ObjectBuilder<Node> {
    node.annotation("nodewright.dev/config-given", &count.to_string())
}

fn claim(node: &str, target: &str, given: u32) -> (String, Claim) {
    let uid = old(node).build().metadata.uid.unwrap_or_default();
    (node.to_owned(), Claim { uid, target: target.to_owned(), given, from: None, since: NOW.parse().unwrap() })
}

/// The names of a round; one that has begun with a `*`, one that runs something else than `old` with that.
fn shown(rounds: &[Vec<Move>]) -> Vec<String> {
    let step = |step: &Move| {
        let from = if step.from == "old" { String::new() } else { format!("<{}", step.from) };
        format!("{}{}{from}", step.node, if step.is_begun { "*" } else { "" })
    };
    rounds.iter().map(|round| round.iter().map(step).collect::<Vec<_>>().join(" ")).collect()
}

fn rolled(nodes: Vec<ObjectBuilder<Node>>, budget: usize, claims: &[(String, Claim)]) -> Vec<String> {
    rolled_with(&build(nodes), budget, claims, None)
}

fn rolled_with(nodes: &[Node], budget: usize, claims: &[(String, Claim)], own_node: Option<&str>) -> Vec<String> {
    let claims = Disruptions(claims.iter().cloned().collect());
    shown(&rounds(&Scope { own_node, ..scope(nodes, &claims, budget) }))
}

#[test]
fn nodes_move_in_the_order_of_the_rollout_and_within_the_budget() {
    let nodes = || {
        let zone = |node: ObjectBuilder<Node>, zone: &str| node.label(ZONE, zone);
        let first = old("d").annotation("nodewright.dev/update-priority", "7");
        vec![zone(old("a"), "z2"), zone(old("b"), "z1"), old("c"), zone(first, "z3"), zone(old("e"), "z1")]
    };
    assert_eq!(rolled(nodes(), 1, &[]), ["d", "b", "e", "a", "c"]);
    assert_eq!(rolled(nodes(), 2, &[]), ["d b", "e a", "c"]);
    assert_eq!(rolled(nodes(), 9, &[]), ["d b e a c"]);
    assert_eq!(rolled_with(&build(nodes()), 2, &[], Some("d")), ["b e", "a c", "d"], "the manager's own comes last");
}

#[test]
fn who_stays_takes_its_part_of_the_budget_in_each_round() {
    let nodes = || vec![old("a"), old("b"), old("c"), down(old("x"))];
    assert_eq!(rolled(nodes(), 1, &[]), Vec::<String>::new());
    assert_eq!(rolled(nodes(), 2, &[]), ["a", "b", "c"]);
    assert_eq!(rolled(nodes(), 3, &[]), ["a b", "c"]);
    let by_user = vec![cordoned(old("a")), old("b"), node("c", "new", "new", "Degraded"), old("d")];
    assert_eq!(rolled(by_user, 3, &[]), ["b", "d"]);
    assert_eq!(
        rolled(vec![cluster_object("a"), old("b"), old("c")], 1, &[]),
        ["b", "c"],
        "one without an agent does not"
    );
    let leaving = old("a").with("/metadata/deletionTimestamp", NOW);
    assert_eq!(rolled(vec![leaving, old("b")], 1, &[]), ["b"]);
    let nodes = build(nodes());
    assert!(rounds(&Scope { unreadable: 1, ..scope(&nodes, &Disruptions::default(), 1) }).is_empty());
}

#[test]
fn failed_nodes_go_back_first_and_nodes_that_drifted_with_the_first_round() {
    let drain = "cordoned;drain-bad;2026-06-01T11:00:00Z";
    let failed = || cordoned(node("c", "old", "bad", "Degraded")).annotation("nodewright.dev/config-drain", drain);
    assert_eq!(rolled(vec![old("a"), old("b"), failed()], 1, &[]), ["c", "a", "b"]);
    assert_eq!(rolled(vec![old("a"), cordoned(node("c", "old", "bad", "Degraded"))], 1, &[]), Vec::<String>::new());
    let drifted = |name: &str| node(name, "old", "old", "Degraded");
    assert_eq!(rolled(vec![old("a"), drifted("b"), drifted("c"), old("d")], 2, &[]), ["b c", "a d"]);
    assert_eq!(rolled(vec![drifted("b"), drifted("c"), old("d")], 1, &[]), Vec::<String>::new());
}

#[test]
fn nodes_that_are_being_updated_are_expected_to_finish() {
    let busy = given(down(cordoned(node("a", "old", "new", "Working"))), 1);
    let busy = busy.annotation("nodewright.dev/config-drain", "cordoned;drain-new;2026-06-01T11:00:00Z");
    assert_eq!(rolled(vec![busy.clone(), old("b"), old("c")], 1, &[claim("a", "new", 0)]), ["a*", "b", "c"]);
    assert_eq!(rolled(vec![busy, old("b")], 1, &[]), ["a*", "b"], "a list of claims was lost");
    let rebooted = given(down(node("a", "new", "new", "Done")), 1);
    assert_eq!(rolled(vec![rebooted, old("b")], 1, &[claim("a", "new", 0)]), ["b"], "it has what it is to run");
    let former = given(node("a", "old", "former", "Working"), 1);
    assert_eq!(
        rolled(vec![former, old("b")], 1, &[claim("a", "former", 0)]),
        ["a*", "b"],
        "it is given the target at once"
    );
    let by_hand = node("a", "old", "mine", "Working");
    assert_eq!(rolled(vec![by_hand, old("b")], 1, &[]), ["a<mine", "b"], "what it was given by hand is finished first");
}

#[test]
fn claims_are_kept_as_long_as_the_rollout_keeps_them() {
    let (two, machine) = (|| vec![old("a"), old("b")], [claim("b", Claim::MACHINE, 0)]);
    let in_place = || vec![old("a"), old("b").label(CANDIDATE_FOR_UPDATE, "true")];
    assert_eq!(rolled(in_place(), 1, &machine), Vec::<String>::new(), "its machine is about to be updated");
    assert_eq!(rolled(in_place(), 2, &machine), ["a"]);
    assert_eq!(rolled(two(), 1, &machine), ["a", "b"], "its machine is not updated any more");
    assert_eq!(rolled(two(), 1, &[claim("b", "new", 0)]), ["b", "a"], "it was claimed before");
    let closed = vec![cordoned(old("a")), old("b")];
    assert_eq!(rolled(closed, 1, &[claim("a", "new", 0)]), Vec::<String>::new(), "a user has cordoned it since");
    let by_hand = node("a", "new", "new", "Done");
    assert_eq!(rolled(vec![by_hand, old("b")], 1, &[claim("a", "new", 0)]), ["b"], "its claim is taken back");
}

/// A Node of one of the kinds that a rollout treats differently.
fn any(name: &str, kind: u64) -> ObjectBuilder<Node> {
    let drain = "cordoned;drain-bad;2026-06-01T11:00:00Z";
    let failed = || node(name, "old", "bad", "Degraded");
    match kind {
        0 => down(old(name)),
        1 => cordoned(old(name)),
        2 => cluster_object(name),
        3 => node(name, "new", "new", "Done"),
        4 => node(name, "old", "new", "Degraded"),
        5 => node(name, "old", "old", "Degraded"),
        6 => failed(),
        7 => cordoned(failed()).annotation("nodewright.dev/config-drain", drain),
        8 => old(name).with("/metadata/deletionTimestamp", NOW),
        9 => old(name).annotation("nodewright.dev/update-priority", "3"),
        kind => old(name).label(ZONE, &format!("z{}", kind % 3)),
    }
}

/// The rounds without a window: all Nodes are decided on in each.
fn rolled_as_a_whole(mut nodes: Vec<Node>, budget: usize) -> Vec<Vec<String>> {
    let mut rounds = vec![];
    loop {
        let mut claims = Disruptions::default();
        let mut targets: Vec<String> = vec![];
        for _ in 0..2 {
            let rollout = decide(&scope(&nodes, &claims, budget));
            targets = rollout.targets.into_iter().map(|node| name_of(node).to_owned()).collect();
            claims = rollout.claims;
        }
        if targets.is_empty() {
            return rounds;
        }
        for moved in nodes.iter_mut().filter(|node| targets.contains(&name_of(*node).to_owned())) {
            *moved = node(name_of(moved), "new", "new", "Done").build();
        }
        rounds.push(targets);
    }
}

#[test]
fn rounds_of_any_pool_are_those_of_decisions_about_all_its_nodes() {
    let mut state = 7_u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for run in 0..500 {
        let (count, kinds, budget) = (1 + next(14), 11 + next(20), 1 + usize::try_from(next(6)).unwrap());
        let nodes = build((0..count).map(|at| any(&format!("n-{at:02}"), next(kinds))).collect());
        let names = |round: &str| {
            let mut names: Vec<_> = round.split(' ').map(str::to_owned).collect();
            names.sort();
            names
        };
        let found: Vec<_> = rolled_with(&nodes, budget, &[], None).iter().map(|round| names(round)).collect();
        assert_eq!(found, rolled_as_a_whole(nodes, budget), "run {run}");
    }
}

#[test]
fn a_pool_of_thousands_of_nodes_is_planned_at_once() {
    let nodes = build((0..5_000).map(|at| old(&format!("n-{at:04}")).label(ZONE, &format!("z{}", at % 3))).collect());
    let begun = std::time::Instant::now();
    assert_eq!(rolled_with(&nodes, 1, &[], None).len(), 5_000);
    assert_eq!(rolled_with(&nodes, 500, &[], None).len(), 10);
    let took = begun.elapsed();
    assert!(took.as_secs() < 10, "{took:?}, without optimizations");
}

/// A pool `worker` of these Nodes that selects a file of this content, and whose target has the content `old`.
fn objects(nodes: Vec<ObjectBuilder<Node>>, content: &str, spec: &Value) -> Objects {
    let mut objects =
        Objects { machine_configs: vec![config("00-worker", files(&[file("/etc/a", "old")]))], ..Objects::default() };
    objects.pools = vec![super::pool(&json!({"nodeSelector": {"matchLabels": {WORKER: ""}}}))];
    let old = plan(&objects).target;
    let mut rendered = config(&old.name, serde_json::to_value(old.spec.unwrap()).unwrap());
    rendered.metadata.labels = None;
    rendered.metadata.annotations =
        Some([("machineconfiguration.openshift.io/generated-by-controller-version".to_owned(), String::new())].into());
    let mut all = json!({"nodeSelector": {"matchLabels": {WORKER: ""}}, "configuration": {"name": old.name}});
    spec.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
    objects.pools = vec![super::pool(&all)];
    objects.machine_configs = vec![config("00-worker", files(&[file("/etc/a", content)])), rendered];
    objects.nodes = build(nodes.into_iter().map(|node| node.label(WORKER, "")).collect());
    objects
}

fn plan(objects: &Objects) -> Preview {
    preview(objects, "worker", &PoolSettings::default(), NOW.parse().unwrap()).unwrap()
}

/// The nodes that stay: name and reason, with a `!` if they count.
fn stays(preview: &Preview) -> Vec<String> {
    let stay = |it: &crate::machine_config_pool::Stay| {
        format!("{} {}{}", it.node, it.reason, if it.is_unavailable { "!" } else { "" })
    };
    preview.stays.iter().map(stay).collect()
}

#[test]
fn the_target_is_what_the_manager_would_render() {
    let same = plan(&objects(vec![old("a")], "old", &json!({})));
    assert!(same.target.exists && same.target.held.is_none() && same.target.name.starts_with("rendered-worker-"));
    let other = plan(&objects(vec![old("a")], "other", &json!({})));
    assert!(!other.target.exists && other.target.name != same.target.name && other.target.spec.is_some());
    assert_eq!(shown(&other.rounds), ["a"]);
    let mut refused = objects(vec![old("a")], "other", &json!({}));
    refused.machine_configs[0] =
        config("00-worker", json!({"config": {"ignition": {"version": "3.5.0"}}, "fips": true}));
    let held = plan(&refused).target;
    assert_eq!(held.name, same.target.name, "it stays");
    assert!(held.held.unwrap().starts_with("the target stays: spec.fips: Forbidden"));
    let nothing = Objects { pools: vec![super::pool(&json!({}))], ..Objects::default() };
    let error = preview(&nothing, "worker", &PoolSettings::default(), NOW.parse().unwrap()).unwrap_err();
    assert!(error.contains("there is no target yet: spec.machineConfigSelector"), "{error}");
}

#[test]
fn who_stays_is_named_with_its_reason() {
    let target = plan(&objects(vec![], "old", &json!({}))).target.name;
    let done = |name: &str| node(name, &target, &target, "Done");
    let failed =
        node("e", "old", &target, "Degraded").annotation("machineconfiguration.openshift.io/reason", "no space");
    let taint = json!([{"key": "deployment.machine.sapcloud.io/prefer-no-schedule", "effect": "PreferNoSchedule"}]);
    let nodes = || {
        let gpu = old("i").label("node-role.kubernetes.io/gpu", "").label("node-role.kubernetes.io/infra", "");
        vec![
            cluster_object("a"),
            cordoned(old("b")),
            down(old("c")),
            old("d").with("/spec/taints", taint.clone()),
            failed.clone(),
            done("f"),
            down(done("g")),
            old("h").label("kubernetes.io/os", "windows"),
            gpu,
            old("j"),
        ]
    };
    let mut all = objects(nodes(), "old", &json!({"maxUnavailable": 4}));
    for role in ["gpu", "infra"] {
        let spec = json!({"nodeSelector": {"matchLabels": {format!("node-role.kubernetes.io/{role}"): ""}},
            "machineConfigSelector": {"matchLabels": {ROLE: role}}});
        all.pools
            .push(cluster_object::<MachineConfigPool>(role).with("/metadata/uid", role).with("/spec", spec).build());
    }
    let full = plan(&all);
    let expected = [
        "a NoAgent",
        "b Cordoned!",
        "c NotReady!",
        "d Leaving",
        "e Failed!",
        "g NotReady!",
        "h Windows",
        "i SeveralPools",
        "j Waiting",
    ];
    assert_eq!(stays(&full), expected);
    assert_eq!((full.nodes, full.updated, full.max_unavailable, full.disrupted), (8, 2, 4, 4));
    let texts: Vec<_> = full.stays.iter().map(|it| it.message.as_str()).collect();
    assert_eq!((texts[4], texts[8]), ("has failed: no space", WAITING));
    all.pools[0].spec.max_unavailable = None;
    assert!(plan(&all).rounds.is_empty());
    all.pools[0].spec.max_unavailable = serde_json::from_value(json!("70%")).unwrap();
    assert_eq!(shown(&plan(&all).rounds), ["j"], "5 of 8");
}

#[test]
fn a_paused_pool_is_planned_as_if_it_were_not_and_a_control_plane_moves_one_at_a_time() {
    let three = || vec![old("a"), old("b"), old("c")];
    assert_eq!(shown(&plan(&objects(three(), "other", &json!({"paused": true}))).rounds), ["a", "b", "c"]);
    let mut all = objects(three(), "other", &json!({"maxUnavailable": 3}));
    all.pools[0].metadata.name = Some("master".to_owned());
    let found = preview(&all, "master", &PoolSettings::default(), NOW.parse().unwrap()).unwrap();
    assert_eq!(
        (found.max_unavailable, shown(&found.rounds)),
        (1, vec!["a".to_owned(), "b".to_owned(), "c".to_owned()])
    );
}
