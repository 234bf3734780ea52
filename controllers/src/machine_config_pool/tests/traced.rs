//! The spans of rollouts.

use std::time::Duration;

use jiff::Timestamp;
use nodewright_api::{
    Machine,
    machine_config::{KubeletConfig, MachineConfigPool},
    stored::{DISRUPTIONS, POOL_ROLLOUT},
};
use nodewright_observability::trace::{SpanRecord, TraceContext};
use nodewright_runtime::cache::Store;
use nodewright_testing::object;
use serde_json::json;

use super::{Fixture, ROLE, cluster_object, config, file, files, pool, rollouts::node, two_configs};
use crate::{
    machine_config_pool::traced::Traced,
    shared::{CONTROL, TARGET, indexes::MACHINE_BY_NODE, node::Node, pool_traces::change, traces},
};

const CHOSEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn traced() -> Fixture {
    let mut fixture = two_configs();
    fixture.controller.settings.traces = true;
    fixture.pool = pool(&json!({"nodeSelector": {"matchLabels": {"pool": "worker"}}}));
    fixture
}

/// A traced pool at its first target, with a Node that runs it, and without the spans of that.
fn settled() -> Fixture {
    let mut fixture = traced();
    fixture.settle();
    let target = fixture.target().to_owned();
    fixture.nodes = vec![node("n", &target, &target, "Done").label("pool", "worker").build()];
    fixture.settle();
    fixture.spans.clear();
    fixture
}

impl Fixture {
    /// Has the Node run one configuration, and be given another one so often.
    fn move_node(&mut self, [current, desired, state]: [&str; 3], given: u32) {
        let node = node("n", current, desired, state).label("pool", "worker");
        let node = node.annotation("machineconfiguration.openshift.io/reason", "disk full");
        self.nodes = vec![node.annotation("nodewright.dev/config-given", &given.to_string()).build()];
        self.now += Duration::from_mins(1);
    }

    /// Has the pool select something else, until that is its target. Returns the target before.
    fn retarget(&mut self, text: &str) -> String {
        let before = self.target().to_owned();
        self.put(changed(text, 2));
        for _ in 0..9 {
            self.act();
            if self.target() != before {
                return before;
            }
            self.now = self.plan().wake.unwrap_or(self.now);
        }
        panic!("the target stays {before}");
    }

    /// The spans since the last call.
    fn spans(&mut self) -> Vec<SpanRecord> {
        std::mem::take(&mut self.spans)
    }
}

fn changed(text: &str, generation: i64) -> nodewright_api::machine_config::MachineConfig {
    let mut config = config("00-a", files(&[file("/a", text), file("/b", "1"), file("/c", "1")]));
    config.metadata.generation = Some(generation);
    config
}

fn place(span: &SpanRecord) -> TraceContext {
    span.context.at(span.id)
}

/// Each span: its name, the outcome and the error.
fn gist(spans: &[SpanRecord]) -> Vec<String> {
    let text = |span: &SpanRecord| {
        let outcome = span.attributes.iter().find(|(key, _)| *key == "nodewright.rollout.outcome");
        let outcome = outcome.map(|(_, outcome)| format!(" {outcome}")).unwrap_or_default();
        format!("{}{outcome}{}", span.name, span.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default())
    };
    spans.iter().map(text).collect()
}

fn claimed_since(pool: &MachineConfigPool) -> Timestamp {
    DISRUPTIONS.of(pool).unwrap().0["n"].since
}

#[test]
fn a_rollout_is_below_the_request_and_its_nodes_are_below_the_rollout() {
    let mut fixture = settled();
    let old = fixture.retarget("2");
    let (request, new) = (change(&changed("2", 2)), fixture.target().to_owned());
    let rendering = fixture.spans();
    assert_eq!(gist(&rendering), ["rendering"]);
    assert_eq!((rendering[0].context, rendering[0].end), (request, fixture.now));
    assert_eq!(rendering[0].start, fixture.now - Duration::from_secs(5), "since it was wanted");
    let since = fixture.now;

    assert_eq!(fixture.act(), ["edit the pool"], "the claim");
    let chosen = claimed_since(&fixture.pool);
    let plan = fixture.plan();
    assert!(plan.extends_trace, "the requests belong to the rollout");
    let rollout = plan.traceparent.unwrap();
    assert_eq!(rollout.trace_id, request.trace_id);
    fixture.act();
    fixture.move_node([&old, &new, "Working"], 1);
    fixture.act();
    assert_eq!(gist(&fixture.spans()), [""; 0], "nothing has ended");

    fixture.move_node([&new, &new, "Done"], 1);
    assert_eq!(fixture.act(), ["edit the pool"], "the claim goes");
    let updated = fixture.spans();
    assert_eq!(gist(&updated), ["node update Completed"]);
    assert_eq!((updated[0].context, updated[0].start, updated[0].end), (rollout, chosen, fixture.now));
    assert!(updated[0].attributes.contains(&("k8s.node.name", "n".to_owned())));

    let done = fixture.act();
    assert!(done.contains(&"edit the pool".to_owned()) && done.contains(&"status".to_owned()), "{done:?}");
    let ended = fixture.spans();
    assert_eq!(gist(&ended), ["pool rollout Completed"]);
    assert_eq!((ended[0].context, place(&ended[0])), (request, rollout));
    assert_eq!((ended[0].start, ended[0].end), (since, fixture.now));

    // It does not end again when a node is away for a while.
    fixture.move_node([&new, &new, "Working"], 1);
    fixture.act();
    fixture.move_node([&new, &new, "Done"], 1);
    fixture.settle();
    assert_eq!(gist(&fixture.spans()), [""; 0]);
    assert_eq!(fixture.plan().traceparent, None);
}

#[test]
fn a_failure_is_a_span_with_the_reason_before_the_update_has_ended() {
    let mut fixture = settled();
    let old = fixture.retarget("2");
    let new = fixture.target().to_owned();
    fixture.act();
    let chosen = claimed_since(&fixture.pool);
    fixture.spans();
    fixture.move_node([&old, &new, "Degraded"], 1);
    fixture.act();
    let failed = fixture.spans();
    assert_eq!(gist(&failed), ["failed update: disk full"]);
    assert_eq!((failed[0].start, failed[0].end), (chosen, fixture.now));
    fixture.now += Duration::from_mins(1);
    fixture.act();
    // Another process leads.
    fixture.notes.clear();
    fixture.act();
    assert_eq!(gist(&fixture.spans()), [""; 0], "it was said once");
    fixture.move_node([&new, &new, "Done"], 1);
    fixture.act();
    let updated = fixture.spans();
    assert_eq!(gist(&updated), ["node update Completed"]);
    assert_eq!(failed[0].context, place(&updated[0]), "the failure is a part of the update");
}

#[test]
fn another_target_ends_a_rollout_that_is_in_progress() {
    let mut fixture = settled();
    let old = fixture.retarget("2");
    let second = fixture.target().to_owned();
    fixture.act();
    let chosen = claimed_since(&fixture.pool);
    let first = fixture.plan().traceparent.unwrap();
    fixture.move_node([&old, &second, "Degraded"], 1);
    fixture.act();
    fixture.spans();
    fixture.retarget("3");
    let spans = fixture.spans();
    assert_eq!(gist(&spans), ["node update Failed: disk full", "pool rollout Superseded", "rendering"]);
    assert_eq!((spans[0].context, spans[0].start), (first, chosen));
    assert_eq!(place(&spans[1]), first);
    let third = fixture.plan().traceparent.unwrap();
    assert_eq!(spans[1].links, [third]);
    assert_ne!(third, first);
}

#[test]
fn what_cannot_be_had_is_an_error_in_the_trace_of_the_request() {
    let mut fixture = settled();
    let mut broken = changed("2", 2);
    broken.spec = serde_json::from_value(json!({"config": {"ignition": {"version": "1.0.0"}}})).unwrap();
    fixture.put(broken.clone());
    fixture.settle();
    let spans = fixture.spans();
    assert_eq!(spans.len(), 1, "once: {:?}", gist(&spans));
    assert_eq!((spans[0].name.as_ref(), spans[0].context), ("rendering", change(&broken)));
    assert_eq!(spans[0].error.as_deref(), Some(fixture.condition("RenderDegraded").2.as_str()));
}

/// The context that the next rollout is below.
fn parent(fixture: &Fixture) -> TraceContext {
    POOL_ROLLOUT.of(&fixture.pool).unwrap().traceparent.parse().unwrap()
}

#[test]
fn the_request_is_the_newest_change_of_what_the_target_is_made_of() {
    let mut fixture = settled();
    fixture.nodes.clear();
    let mut chosen = changed("2", 2);
    chosen.metadata.annotations = Some([("nodewright.dev/traceparent".to_owned(), CHOSEN.to_owned())].into());
    fixture.put(config("50-other", json!({"kernelArguments": ["y"]})));
    fixture.put(chosen.clone());
    fixture.settle();
    assert_eq!(parent(&fixture), change(&chosen));
    assert_eq!(parent(&fixture).trace_id, CHOSEN.parse::<TraceContext>().unwrap().trace_id);
    let spans = fixture.spans();
    let other = change(&config("50-other", json!({})));
    assert_eq!(
        (spans[0].name.as_ref(), spans[0].links.as_slice()),
        ("rendering", &[other][..]),
        "and what came with it"
    );

    let owner: KubeletConfig =
        cluster_object("kubelet").with("/metadata/generation", 4).with("/spec", json!({})).build();
    fixture.kubelet_configs = vec![owner.clone()];
    let generated = cluster_object("99-worker-generated-kubelet").label(ROLE, "worker").owned_by(&owner);
    fixture.put(generated.with("/spec", json!({"kernelArguments": ["z"]})).build());
    fixture.settle();
    assert_eq!(parent(&fixture), change(&owner));

    fixture.configs.remove("50-other");
    fixture.settle();
    let root = parent(&fixture);
    fixture.spans.retain(|span| span.name == "rendering");
    assert_eq!(fixture.spans().last().unwrap().context, root, "nobody knows who has deleted it: a trace of its own");
    assert!(root.sampled);

    fixture.put(config("60-more", json!({"kernelArguments": ["w"]})));
    fixture.configs.get_mut("60-more").unwrap().metadata.resource_version = Some("1".to_owned());
    fixture.pool.metadata.generation = fixture.pool.metadata.generation.map(|generation| generation + 1);
    let of_pool = change(&fixture.pool);
    fixture.settle();
    assert_eq!(parent(&fixture), of_pool, "the pool selects what was there before");
}

#[test]
fn the_update_of_a_node_links_to_the_creation_of_its_machine() {
    let mut fixture = settled();
    fixture.retarget("2");
    fixture.act();
    let stores = fixture.stores();
    let node: Node = cluster_object("n").with("/spec/providerID", "x:///vm-1").build();
    let nodes = Store::<Node>::new(TARGET, "");
    nodes.apply(node);
    stores.add(std::sync::Arc::new(nodes));
    let provisioned =
        json!({"type": "InstanceProvisioned", "status": "True", "reason": "Provisioned", "message": "x:///vm-1"});
    let machine: Machine = object("m")
        .label("node", "n")
        .annotation("nodewright.dev/traceparent", CHOSEN)
        .with("/spec/class/name", "c")
        .with("/spec/providerID", "x:///vm-1")
        .with("/status/conditions", json!([provisioned]))
        .build();
    let machines = Store::<Machine>::new(CONTROL, "");
    machines.add_index(MACHINE_BY_NODE);
    machines.apply(machine.clone());
    stores.add(std::sync::Arc::new(machines));
    let claims = DISRUPTIONS.of(&fixture.pool);
    let creation = traces::within(&machine, traces::CREATION, traces::creation(&machine));
    assert_ne!(creation, traces::creation(&machine), "the creation itself, and not what has asked for it");
    assert_eq!(Traced::of(&stores, &[], claims.as_ref()).machine("n"), Some(creation));
}

#[test]
fn without_traces_nothing_is_recorded() {
    let mut fixture = traced();
    fixture.controller.settings.traces = false;
    fixture.settle();
    fixture.retarget("2");
    fixture.settle();
    assert_eq!(fixture.spans, []);
    assert_eq!(POOL_ROLLOUT.of(&fixture.pool), None);
    // What is left of an earlier rollout stays, and costs no write.
    let mut left = settled();
    left.controller.settings.traces = false;
    assert_eq!(left.settle(), [""; 0]);
    assert!(POOL_ROLLOUT.of(&left.pool).is_some());
}
