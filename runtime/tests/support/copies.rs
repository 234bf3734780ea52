//! A small controller for the tests of the whole runtime.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Resource;
use nodewright_observability::trace::TraceContext;
use nodewright_runtime::{
    apply_configuration::ApplyConfiguration,
    cache::Stores,
    controller::{Controller, Watches},
    effect::Effect,
    object::{ObjectRef, Target, annotation, controller_uid, is_deleting, label, name, uid},
    plan::{Context, Plan, Planned, Step},
    scoped_watch::ScopedWatch,
};
use serde::Serialize;
use serde_json::json;

use super::HOME;

pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Keeps as many copies of a ConfigMap as its label wants, and writes their number into an annotation. Other annotations make
/// it call, evict, wait, and watch the Pods of a node.
#[derive(Default)]
pub(crate) struct Copies {
    /// The number of plans so far.
    pub(crate) plans: Arc<AtomicUsize>,
}

pub(crate) struct Snapshot {
    source: Arc<ConfigMap>,
    copies: Vec<Arc<ConfigMap>>,
    /// The number of Pods in the scoped watch.
    seen: Option<usize>,
    plans: Arc<AtomicUsize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ask(String);

impl Effect for Ask {
    type Outcome = Result<(), String>;
    fn serialization_key(&self) -> Arc<str> {
        self.0.as_str().into()
    }
    fn name(&self) -> &'static str {
        "ask"
    }
    fn deadline(&self) -> Duration {
        Duration::from_secs(30)
    }
    fn timeout_outcome(&self) -> Self::Outcome {
        Err("late".to_owned())
    }
    fn succeeded(outcome: &Self::Outcome) -> bool {
        outcome.is_ok()
    }
}

/// Answers calls at once, except those whose name asks for something else.
#[derive(Clone, Default)]
pub(crate) struct Answers {
    /// The number of calls so far.
    pub(crate) begun: Arc<AtomicUsize>,
}

impl Answers {
    pub(crate) fn perform(&self, effect: Ask) -> impl Future<Output = Result<(), String>> + Send + use<> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        async move {
            match effect.0.split(' ').next().unwrap_or_default() {
                "hangs" => std::future::pending().await,
                "panics" => panic!("as planned"),
                "slow" => {
                    tokio::time::sleep(Duration::from_secs(20)).await;
                    Ok(())
                }
                _ => Ok(()),
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Note {
    metadata: NoteMeta,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct NoteMeta {
    annotations: BTreeMap<String, String>,
}

impl ApplyConfiguration for Note {
    type Of = ConfigMap;
    fn extract(live: &ConfigMap) -> Self {
        let all = live.metadata.annotations.clone().unwrap_or_default();
        let annotations =
            all.into_iter().filter(|(key, _)| ["copies", "asked", "seen"].contains(&key.as_str())).collect();
        Self { metadata: NoteMeta { annotations } }
    }
}

impl Controller for Copies {
    const NAME: &'static str = "copies";
    type Primary = ConfigMap;
    type Snapshot = Snapshot;
    type Effect = Ask;
    type Note = nodewright_runtime::effect::Never;

    fn watch(&self, on: &mut Watches<'_>) {
        on.kind::<ConfigMap>(HOME, "default").wakes(|change, stores, wake| {
            if let Some(new) = &change.new {
                assert!(annotation(new.as_ref(), "panic-listen").is_none(), "as planned");
            }
            for owner in change.sides().filter_map(|map| controller_uid(map.as_ref())) {
                let all = stores.of::<ConfigMap>(HOME).all();
                let owners = all.iter().filter(|map| uid(map.as_ref()) == owner);
                owners.for_each(|map| wake(ObjectRef::of(HOME, map.as_ref())));
            }
        });
        on.primary::<ConfigMap>(HOME, "default");
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Snapshot> {
        let store = stores.of::<ConfigMap>(HOME);
        let source = store.get(key)?;
        assert!(annotation(source.as_ref(), "panic-observe").is_none(), "as planned");
        let mut copies = store.owned_by(uid(source.as_ref()));
        copies.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
        let seen = annotation(source.as_ref(), "look").and_then(|node| stores.seen::<Pod>(HOME, &pods_of(node)));
        Some(Snapshot { source, copies, seen: seen.map(|store| store.len()), plans: self.plans.clone() })
    }

    fn children(&self, snapshot: &Snapshot) -> usize {
        annotation(snapshot.source.as_ref(), "children").and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    fn plan(context: &Context<'_, Ask>, snapshot: &Snapshot) -> Plan<Ask> {
        snapshot.plans.fetch_add(1, Ordering::Relaxed);
        let mut plan = Plan::idle();
        let source = snapshot.source.as_ref();
        plan.forgets_outcomes = annotation(source, "forget").is_some();
        plan.traceparent = TraceContext::from_annotation(source.metadata.annotations.as_ref(), "traceparent");
        let Some(wanted) = label(source, "copies").and_then(|text| text.parse::<usize>().ok()) else { return plan };
        assert!(annotation(source, "panic").is_none(), "as planned");
        let names: Vec<String> = (0..wanted).map(|place| format!("{}-{place}", name(source))).collect();
        let live: Vec<_> = snapshot.copies.iter().filter(|copy| !is_deleting(copy.as_ref())).collect();
        let missing = names.iter().filter(|wanted| live.iter().all(|copy| name(copy.as_ref()) != wanted.as_str()));
        plan.stage(missing.filter_map(|name| {
            let step = Step::create(HOME, &copy(source, name))?;
            Some(Planned { why: "a copy is missing".into(), step })
        }));
        let surplus = live.iter().filter(|copy| !names.iter().any(|wanted| wanted == name(copy.as_ref())));
        plan.stage(
            surplus.map(|copy| Planned { why: "a copy too many".into(), step: Step::delete(HOME, copy.as_ref()) }),
        );
        let mut annotations = BTreeMap::from([("copies".to_owned(), live.len().to_string())]);
        if let Some(whom) = annotation(source, "ask") {
            let ask = Ask(whom.to_owned());
            match context.outcomes.get(&ask).and_then(|known| known.last.as_ref()).map(|(_, outcome)| outcome) {
                Some(answer) => drop(annotations.insert("asked".to_owned(), format!("{answer:?}"))),
                None if context.outcomes.is_running(&ask) => {}
                None => {
                    plan.then("the provider was not called yet", Step::Call(ask));
                }
            }
        }
        for reason in ["First", "Second"] {
            if let Some(message) = annotation(source, reason) {
                plan.wait(reason, message);
            }
        }
        if let Some(node) = annotation(source, "look") {
            plan.scoped_watch(ScopedWatch::at::<Pod>(HOME, pods_of(node)));
            annotations.extend(snapshot.seen.map(|count| ("seen".to_owned(), count.to_string())));
        }
        if annotation(source, "evict").is_some() {
            let due = context.refusal(uid(source)).map(|refusal| refusal.at + SignedDuration::from_secs(20));
            match due.filter(|due| *due > context.now) {
                Some(due) => drop(plan.wake_at(due)),
                None => drop(plan.then("as planned", Step::Evict(Target::of(HOME, source)))),
            }
        }
        let note = Note { metadata: NoteMeta { annotations } };
        plan.then("the note is out of date", Step::apply(HOME, source, note));
        plan
    }
}

/// The field selector of the Pods on a node.
pub(crate) fn pods_of(node: &str) -> String {
    format!("spec.nodeName={node}")
}

fn copy(source: &ConfigMap, name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "default",
        "ownerReferences": [source.controller_owner_ref(&())]}, "data": source.data}))
    .unwrap()
}
