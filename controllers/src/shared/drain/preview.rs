//! What a drain would do to a Node, without doing it: the decisions of a drain, one turn after the other, as if all that it asks for
//! came to pass.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use nodewright_runtime::{
    cache::{Store, Stores},
    object::{Kind, ObjectRef, name, namespace},
    scoped_watch::ScopedWatch,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    super::node::Node,
    Drain, Owners, PodView, Rules, View,
    budgets::BudgetState,
    evictions::title,
    view::{ALL, AttachmentView, BudgetView, ClaimView, Volumes, pods_of},
};
use crate::shared::TARGET;

/// The objects of a cluster that a drain reads, as JSON. The field `kind` is for errors.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// The Node.
    pub node: Value,
    /// Its Pods.
    pub pods: Vec<Value>,
    /// The `PodDisruptionBudgets` of their namespaces; those of others do no harm.
    pub budgets: Vec<Value>,
    /// The `PersistentVolumeClaims` of their namespaces.
    pub claims: Vec<Value>,
    /// All `VolumeAttachments`.
    pub attachments: Vec<Value>,
}

/// What a drain would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preview {
    /// The Pods that leave, in their order.
    pub leaving: Vec<Leaving>,
    /// The Pods that are being deleted already, as `namespace/name`.
    pub ending: Vec<String>,
    /// The Pods that stay, and what they are.
    pub staying: Vec<(String, &'static str)>,
}

/// A Pod that leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// As `namespace/name`.
    pub pod: String,
    /// Pods of one turn are evicted at once; the next turn waits until the volumes of this one are elsewhere. The first one is 1.
    pub turn: usize,
    /// Its attached volumes.
    pub volumes: Vec<String>,
    /// Why its eviction is refused, or has to wait, and what to do about it.
    pub held: Option<String>,
    /// Whether a controller makes another one.
    pub comes_back: bool,
}

/// What a drain of the Node that begins now would do. The error names an object that cannot be decoded, and the field.
pub fn preview(objects: &Objects, now: Timestamp) -> Result<Preview, String> {
    let node: Node = decode(&objects.node)?;
    let (mut pods, mut preview) = (Vec::<Arc<PodView>>::new(), Preview::default());
    for pod in all::<PodView>(&objects.pods)? {
        match pod.metadata.deletion_timestamp {
            _ if !pod.leaves() => preview.staying.push((title(&pod), kind_of_staying(&pod))),
            Some(_) => preview.ending.push(title(&pod)),
            None => pods.push(Arc::new(pod)),
        }
    }
    let attachments = all::<AttachmentView>(&objects.attachments)?;
    let (claims, budgets) = (all::<ClaimView>(&objects.claims)?, all::<BudgetView>(&objects.budgets)?);
    let mut taken = BTreeMap::new();
    for turn in 1.. {
        let view = view(&node, &pods, (&claims, &attachments, &budgets));
        let drain = Drain::from_start(&node, &view, now);
        let asked = drain.evictions().removals.into_iter().map(|removal| removal.target.key().clone());
        let leaving: Vec<_> = asked.filter_map(|key| pods.iter().find(|pod| key_of(pod) == key).cloned()).collect();
        // Nothing more is asked for: what is left waits for nothing that this can foresee.
        if leaving.is_empty() {
            break;
        }
        preview.leaving.extend(leaving.iter().map(|pod| drain.leaving(pod, turn, &mut taken)));
        pods.retain(|pod| leaving.iter().all(|gone| !Arc::ptr_eq(gone, pod)));
    }
    Ok(preview)
}

fn decode<K: DeserializeOwned>(object: &Value) -> Result<K, String> {
    let text = object.to_string();
    serde_json::from_str(&text).map_err(|error| {
        let word = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let field = nodewright_api::failed_field(&text, &error);
        format!("{} {} cannot be decoded: field {field}", word("/kind"), word("/metadata/name"))
    })
}

fn all<K: DeserializeOwned>(objects: &[Value]) -> Result<Vec<K>, String> {
    objects.iter().map(decode).collect()
}

fn kind_of_staying(pod: &PodView) -> &'static str {
    if pod.is_mirror() { "a static pod" } else { "of a DaemonSet" }
}

fn key_of(pod: &PodView) -> ObjectRef {
    ObjectRef::of(TARGET, pod)
}

/// What a drain sees while these Pods are left. A volume that none of them uses is elsewhere by then.
fn view(
    node: &Node,
    pods: &[Arc<PodView>],
    (claims, attachments, budgets): (&[ClaimView], &[AttachmentView], &[BudgetView]),
) -> View {
    let stores = Stores::default();
    listed(&stores, &pods_of(name(node)), pods.iter().map(|pod| pod.as_ref().clone()));
    listed(&stores, ALL, claims.iter().cloned());
    listed(&stores, ALL, budgets.iter().cloned());
    listed(&stores, ALL, attachments.iter().cloned());
    let mut view = View::take(&stores, TARGET, node);
    if let Volumes::Known(attached) = &mut view.volumes {
        let used: BTreeSet<String> = attached.claims.values().cloned().collect();
        attached.here.retain(|attachment| attachment.volume().is_some_and(|volume| used.contains(volume)));
    }
    view
}

fn listed<K: Kind>(stores: &Stores, selector: &str, objects: impl Iterator<Item = K>) {
    let store = Arc::new(Store::<K>::new(TARGET, ""));
    store.begin_list();
    objects.for_each(|object| drop(store.apply(object)));
    store.end_list(1, tokio::time::Instant::now());
    stores.add_scoped(&ScopedWatch::at::<K>(TARGET, selector), store);
}

impl<'a> Drain<'a> {
    /// A drain that begins now, and knows no volume that is not the provider's.
    fn from_start(node: &'a Node, view: &'a View, now: Timestamp) -> Self {
        let rules = Rules {
            force: None,
            grace_period: SignedDuration::MAX,
            retry: SignedDuration::ZERO,
            detach_timeout: SignedDuration::ZERO,
            reattach_timeout: SignedDuration::ZERO,
        };
        Drain { node, view, owners: Owners::Unknown, rules, refusals: &[], notes: BTreeMap::new(), traces: false, now }
    }

    /// A Pod that leaves; `taken` has how many have taken a place in each budget before.
    fn leaving(&self, pod: &PodView, turn: usize, taken: &mut BTreeMap<String, i64>) -> Leaving {
        let mut volumes = vec![];
        if let Volumes::Known(attached) = &self.view.volumes {
            let is_here = |volume: &&str| attached.here.iter().any(|it| it.volume() == Some(*volume));
            volumes.extend(attached.volumes_of(pod).filter(is_here).map(str::to_owned));
        }
        let comes_back = pod.metadata.owner_references.iter().flatten().any(|owner| owner.controller == Some(true));
        Leaving { pod: title(pod), turn, volumes, held: self.held(pod, taken), comes_back }
    }

    fn held(&self, pod: &PodView, taken: &mut BTreeMap<String, i64>) -> Option<String> {
        match self.budget_state(pod) {
            BudgetState::Unknown => None,
            BudgetState::Room => {
                let budget = self.budgets_of(pod).into_iter().next()?;
                let before = taken.entry(title_of(budget)).or_default();
                *before += 1;
                let allowed = budget.status.disruptions_allowed;
                let noun = if allowed == 1 { "pod goes" } else { "pods go" };
                (*before > allowed).then(|| {
                    format!(
                        "disruption budget {}: {allowed} {noun} at a time, each once the one before is replaced",
                        name(budget)
                    )
                })
            }
            budget_state => Some(budget_state.why("")),
        }
    }
}

fn title_of(budget: &BudgetView) -> String {
    format!("{}/{}", namespace(budget), name(budget))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::NOW;

    fn pod(name: &str, change: &Value) -> Value {
        let owner =
            json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true}]);
        let mut pod = json!({"kind": "Pod", "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": name},
            "ownerReferences": owner}});
        json_patch::merge(&mut pod, change);
        pod
    }

    /// A Pod with the volume `pv-NAME`, its claim, and where that is attached.
    fn stateful(objects: &mut Objects, name: &str, node: &str) {
        let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": name}}]);
        objects.pods.push(pod(name, &json!({"spec": {"volumes": volumes}})));
        let metadata = json!({"name": name, "namespace": "default"});
        objects.claims.push(json!({"metadata": metadata, "spec": {"volumeName": format!("pv-{name}")}}));
        objects
            .attachments
            .push(json!({"metadata": {"name": format!("va-{name}"), "uid": name}, "status": {"attached": true},
            "spec": {"nodeName": node, "source": {"persistentVolumeName": format!("pv-{name}")}}}));
    }

    fn budget(name: &str, app: &str, allowed: i64) -> Value {
        json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"selector": {"matchLabels": {"app": app}}},
            "status": {"disruptionsAllowed": allowed, "expectedPods": 2, "currentHealthy": 2, "desiredHealthy": 2}})
    }

    fn objects(pods: Vec<Value>) -> Objects {
        let node = json!({"kind": "Node", "metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        Objects { node, pods, ..Objects::default() }
    }

    fn previewed(objects: &Objects) -> Preview {
        preview(objects, NOW.parse().unwrap()).unwrap()
    }

    #[test]
    fn pods_with_volumes_leave_one_by_one_and_the_others_at_once() {
        let mut all =
            objects(vec![pod("free", &json!({})), pod("bare", &json!({"metadata": {"ownerReferences": null}}))]);
        stateful(&mut all, "a", "n");
        stateful(&mut all, "b", "n");
        stateful(&mut all, "elsewhere", "other");
        all.pods[3]["spec"]["priority"] = 7.into();
        // Nobody uses it: the drain waits for it a while, and that is over.
        all.attachments.push(
            json!({"metadata": {"name": "loose"}, "spec": {"nodeName": "n", "source": {"persistentVolumeName": "x"}}}),
        );
        let leaving = previewed(&all).leaving;
        let turns: Vec<_> =
            leaving.iter().map(|it| (it.turn, it.pod.as_str(), it.volumes.join(","), it.comes_back)).collect();
        let expected = [
            (1, "default/b", "pv-b", true),
            (1, "default/bare", "", false),
            (1, "default/elsewhere", "", true),
            (1, "default/free", "", true),
            (2, "default/a", "pv-a", true),
        ];
        assert_eq!(turns, expected.map(|(turn, pod, volumes, comes)| (turn, pod, volumes.to_owned(), comes)));
        assert!(leaving.iter().all(|it| it.held.is_none()));
    }

    #[test]
    fn budgets_hold_pods_back() {
        let two = |name: &str| pod(name, &json!({"metadata": {"labels": {"app": "two"}}}));
        let mut all = objects(vec![two("one"), two("other"), pod("kept", &json!({})), pod("free", &json!({}))]);
        all.budgets = vec![budget("some", "two", 1), budget("none", "kept", 0)];
        let held = |pod: &str| previewed(&all).leaving.into_iter().find(|it| it.pod == pod).and_then(|it| it.held);
        assert_eq!(held("default/one"), None);
        assert!(held("default/other").unwrap().starts_with("disruption budget some: 1 pod goes at a time"));
        assert!(
            held("default/kept")
                .unwrap()
                .contains("budget none allows no disruption although all its 2 pods are healthy")
        );
        assert_eq!(held("default/free"), None);
    }

    #[test]
    fn what_stays_or_ends_already_does_not_leave() {
        let owner =
            json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": true}]);
        let all = objects(vec![
            pod("daemon", &json!({"metadata": {"ownerReferences": owner}})),
            pod("static", &json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}})),
            pod("ending", &json!({"metadata": {"deletionTimestamp": NOW}})),
        ]);
        let staying = [("default/daemon", "of a DaemonSet"), ("default/static", "a static pod")];
        let staying = staying.map(|(pod, what)| (pod.to_owned(), what)).to_vec();
        assert_eq!(previewed(&all), Preview { leaving: vec![], ending: vec!["default/ending".to_owned()], staying });
    }

    #[test]
    fn an_object_that_cannot_be_decoded_is_named() {
        let all = objects(vec![json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": {"priority": "high"}})]);
        let error = preview(&all, NOW.parse().unwrap()).unwrap_err();
        assert!(error.starts_with("Pod p cannot be decoded: field spec.priority"), "{error}");
    }
}
