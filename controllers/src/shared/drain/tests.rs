//! Views in, progress out.

use std::time::Duration;

use nodewright_runtime::{
    cache::{Store, Stores, Unreadable},
    plan::FailureClass,
};
use serde_json::{Value, json};

use super::{
    view::{AttachmentView, BudgetView, ClaimView, Volumes},
    *,
};
use crate::shared::TARGET;

const GRACE_PERIOD: SignedDuration = SignedDuration::from_hours(2);

/// A Node, and what a drain sees of it.
struct Fixture {
    node: Value,
    stores: Stores,
    pods: Vec<Value>,
    claims: Vec<Value>,
    attachments: Vec<Value>,
    budgets: Vec<Value>,
    /// Whether claims and attachments are listed.
    has_volumes: bool,
    force: Option<&'static str>,
    refusals: Vec<Refusal>,
    notes: BTreeMap<Note, Timestamp>,
    owners: Whose,
    traces: bool,
    now: Timestamp,
}

/// [`Owners`] that a fixture can have.
#[derive(Clone, Default)]
enum Whose {
    #[default]
    Unknown,
    Unasked,
    Asked,
    /// The volume of this name is another provider's.
    Foreign(BTreeSet<String>),
}

fn now() -> Timestamp {
    crate::testing::NOW.parse().unwrap()
}

fn after(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

fn fixture(pods: &[Value]) -> Fixture {
    Fixture {
        node: json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
        stores: Stores::default(),
        pods: pods.to_vec(),
        claims: vec![],
        attachments: vec![],
        budgets: vec![],
        has_volumes: true,
        force: None,
        refusals: vec![],
        notes: BTreeMap::new(),
        owners: Whose::Unknown,
        traces: false,
        now: now(),
    }
}

fn detaching_note() -> Note {
    Note::Detaching(Volume::Named("pv-a".into()))
}

fn attaching_note() -> Note {
    Note::Attaching(Volume::Named("pv-a".into()))
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": {"app": "a"}}})
}

fn of_daemon_set(pod: Value) -> Value {
    let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": true});
    merged(pod, json!({"metadata": {"ownerReferences": [owner]}}))
}

/// A Pod with the volume `pv-NAME`.
fn stateful(name: &str) -> Value {
    merged(pod(name), json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]}}))
}

fn leaving(pod: Value, ends_at: Timestamp) -> Value {
    merged(pod, json!({"metadata": {"deletionTimestamp": ends_at, "deletionGracePeriodSeconds": 30}}))
}

#[allow(clippy::needless_pass_by_value)] // a test gives its values away
fn merged(mut object: Value, patch: Value) -> Value {
    json_patch::merge(&mut object, &patch);
    object
}

fn budget(name: &str, status: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": "a"}}},
        "status": merged(json!({"observedGeneration": 1, "expectedPods": 3, "currentHealthy": 2, "desiredHealthy": 2}), status)})
}

impl Fixture {
    /// The volume of this name is claimed, and attached to a Node.
    fn attached(mut self, name: &str, node: &str) -> Self {
        let claim =
            json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"volumeName": format!("pv-{name}")}});
        self.claims.push(claim);
        self.attachments.push(json!({"metadata": {"name": format!("va-{name}-{node}"), "uid": name},
            "spec": {"nodeName": node, "source": {"persistentVolumeName": format!("pv-{name}")}},
            "status": {"attached": true}}));
        self
    }

    fn refused(mut self, pod: &str, since: i64, at: i64) -> Self {
        let uid = format!("uid-{pod}").into();
        let (since, at) = (after(since), after(at));
        let class = FailureClass::TooManyRequests;
        self.refusals.push(Refusal { uid, since, at, class, message: "no".into(), retry_after: None });
        self
    }

    fn noted(mut self, note: Note, seconds: i64) -> Self {
        self.notes.insert(note, after(seconds));
        self
    }

    fn with<T>(&self, look: impl FnOnce(Drain<'_>) -> T) -> T {
        let node: Node = serde_json::from_value(self.node.clone()).unwrap();
        add::<PodView>(&self.stores, "spec.nodeName=n", &self.pods);
        if self.has_volumes {
            add::<ClaimView>(&self.stores, "", &self.claims);
            add::<AttachmentView>(&self.stores, "", &self.attachments);
        }
        add::<BudgetView>(&self.stores, "", &self.budgets);
        let view = View::take(&self.stores, TARGET, &node);
        let rules = Rules {
            force: self.force,
            grace_period: GRACE_PERIOD,
            retry: SignedDuration::from_secs(20),
            detach_timeout: SignedDuration::from_mins(2),
            reattach_timeout: SignedDuration::from_secs(90),
        };
        let (refusals, notes) = (self.refusals.as_slice(), self.notes.clone());
        let owners = match &self.owners {
            Whose::Unknown => Owners::Unknown,
            Whose::Unasked => Owners::Unasked,
            Whose::Asked => Owners::Asked(after(30)),
            Whose::Foreign(volumes) => Owners::Foreign(volumes),
        };
        look(Drain { node: &node, view: &view, owners, rules, refusals, notes, traces: self.traces, now: self.now })
    }

    fn evictions(&self) -> DrainProgress {
        self.with(|drain| drain.evictions())
    }

    fn detachment(&self) -> DrainProgress {
        self.with(|drain| drain.detachment())
    }

    /// The removals of Pods, as words.
    fn reported(&self) -> Vec<String> {
        let removals = self.evictions().removals;
        removals.iter().map(|it| format!("{:?} {}", it.how, it.target.key().name)).collect()
    }
}

fn add<K: nodewright_runtime::object::Kind>(stores: &Stores, selector: &str, objects: &[Value]) {
    let store = Arc::new(Store::<K>::new(TARGET, ""));
    store.begin_list();
    for object in objects {
        store.apply(serde_json::from_value(object.clone()).unwrap());
    }
    store.end_list(1, tokio::time::Instant::now());
    stores.add_scoped(&ScopedWatch::at::<K>(TARGET, selector), store);
}

fn selectors(progress: &DrainProgress) -> usize {
    progress.watches.len()
}

#[test]
fn mirror_and_daemon_pods_stay() {
    let daemon = of_daemon_set(pod("d"));
    let mirror = merged(pod("m"), json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}));
    let finished = merged(pod("p"), json!({"status": {"phase": "Succeeded"}}));
    let full = fixture(&[daemon.clone(), mirror.clone(), finished]);
    assert_eq!(full.reported(), ["Evict p"]);
    assert_eq!((full.evictions().end, selectors(&full.evictions())), (None, 1));
    assert_eq!(fixture(&[daemon, mirror]).evictions().end, Some(End::Done));
}

#[test]
fn pods_without_volumes_leave_together_and_nothing_else_is_watched() {
    let progress = fixture(&[pod("a"), pod("b")]).evictions();
    assert_eq!((progress.removals.len(), progress.blockers.len(), selectors(&progress)), (2, 2, 1));
    let unlisted = Fixture { stores: Stores::default(), ..fixture(&[]) };
    let node: Node = serde_json::from_value(unlisted.node.clone()).unwrap();
    let view = View::take(&unlisted.stores, TARGET, &node);
    unlisted.with(|drain| {
        let progress = Drain { view: &view, ..drain }.evictions();
        assert!(progress.end.is_none() && progress.removals.is_empty() && selectors(&progress) == 1);
    });
}

#[test]
fn a_pod_on_a_silent_node_is_not_waited_for_once_its_time_is_up() {
    let silent = |ends: i64| {
        let node =
            json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
        Fixture { node, ..fixture(&[leaving(pod("p"), after(ends))]) }
    };
    assert_eq!((silent(0).evictions().end, silent(0).evictions().wake), (Some(End::Done), None));
    let progress = silent(10).evictions();
    assert_eq!((progress.end, progress.wake), (None, Some(after(10))));
    let forced = Fixture { force: Some("the drain timeout is over"), ..silent(10) }.noted(Note::Forced, 0).evictions();
    assert_eq!((forced.end, forced.wake), (None, Some(after(10))), "not at the end of the limit, which is later");
    let answers = fixture(&[leaving(pod("p"), after(-10))]).evictions();
    assert_eq!(answers.blockers, [Blocker::Overdue { pod: "default/p".into(), since: after(-10), finalizers: vec![] }]);
    let ended = fixture(&[leaving(pod("p"), after(0))]).evictions();
    assert_eq!(ended.blockers, [Blocker::Overdue { pod: "default/p".into(), since: after(0), finalizers: vec![] }]);
}

#[test]
fn a_pod_that_cannot_be_read_ends_no_drain_unless_it_stays_anyway() {
    let unreadable = |object: &Value, others: &[Value]| {
        let drain = fixture(&[]);
        let node: Node = serde_json::from_value(drain.node.clone()).unwrap();
        add::<PodView>(&drain.stores, "spec.nodeName=n", others);
        let pods = drain.stores.seen::<PodView>(TARGET, "spec.nodeName=n").unwrap();
        pods.add_unreadable(Unreadable::new(serde_json::from_value(object["metadata"].clone()).unwrap()));
        let view = View::take(&drain.stores, TARGET, &node);
        drain.with(|drain| Drain { view: &view, ..drain }.evictions())
    };
    let alone = unreadable(&pod("x"), &[]);
    assert!(alone.end.is_none() && describe(&alone.blockers).contains("default/x"), "{}", describe(&alone.blockers));
    assert_eq!(unreadable(&of_daemon_set(pod("x")), &[]).end, Some(End::Done));
    let beside = unreadable(&pod("x"), &[pod("a")]);
    assert_eq!((beside.end, beside.removals.len()), (None, 1), "the others leave meanwhile");
}

#[test]
fn a_refused_pod_is_asked_again_after_the_pause_and_deleted_in_the_end() {
    let held = |since, at| fixture(&[pod("p")]).refused("p", since, at);
    let progress = held(-5, -5).evictions();
    assert_eq!((progress.removals.len(), progress.wake), (0, Some(after(15))));
    assert_eq!(selectors(&progress), 2, "its disruption budget is watched");
    assert_eq!(held(-300, -20).reported(), ["Evict p"]);
    assert_eq!(held(-7_300, -200).reported(), ["Evict p"], "it has not been asked for long");
    assert_eq!(held(-7_205, -5).reported(), ["DeleteNow p"]);
    let mut asked = held(-5, -5);
    asked.refusals[0].retry_after = Some(Duration::from_mins(1));
    assert_eq!(asked.evictions().wake, Some(after(55)), "Retry-After counts");
}

#[test]
fn a_pod_that_its_finalizers_keep_says_which() {
    let held = |finalizers: Value| {
        let pod = merged(leaving(pod("p"), after(-10)), json!({"metadata": {"finalizers": finalizers}}));
        describe(&fixture(&[pod]).evictions().blockers)
    };
    let text = "pod default/p should have ended at 2026-06-01T11:59:50Z";
    assert_eq!(held(json!(["a.com/b"])), format!("{text}, and stays until its finalizers are removed: a.com/b"));
    assert_eq!(held(json!(null)), text);
    let many: Vec<_> = (0..50).map(|index| format!("{index}.com/{}", "x".repeat(60))).collect();
    assert!(held(json!(many)).ends_with(", and 47 more") && held(json!(many)).len() <= LONGEST_BLOCKER);
}

#[test]
fn a_pod_whose_eviction_was_refused_for_too_long_is_reported_once_though_it_is_asked_for_again() {
    let held = fixture(&[pod("p")]).refused("p", -7_205, -5);
    let forced = held.evictions().forced.unwrap().to_string();
    let text =
        "evictions were refused for too long: deleting without grace, ignoring disruption budgets, 1 pod: default/p";
    assert_eq!(forced, text);
    let again = held.noted(Note::Deleting("uid-p".into()), -1);
    assert_eq!((again.reported(), again.evictions().forced), (vec!["DeleteNow p".to_owned()], None));
    assert_eq!(fixture(&[pod("p")]).evictions().forced, None);
}

#[test]
fn a_budget_with_room_is_not_kept_waiting_and_one_without_says_why() {
    let held = |status: Value| {
        let mut fixture = fixture(&[pod("p")]).refused("p", -7_300, -1);
        fixture.budgets.push(budget("b", status));
        fixture
    };
    let room = || json!({"disruptionsAllowed": 1, "currentHealthy": 3});
    assert_eq!(held(room()).reported(), ["Evict p"], "not deleted, however long it took");
    let mut denied = held(room());
    denied.refusals[0].class = FailureClass::Forbidden;
    assert_eq!(denied.evictions().wake, Some(after(19)), "it is not the budget that refuses");
    let text = |fixture: &Fixture| describe(&fixture.evictions().blockers);
    let full = held(json!({}));
    assert_eq!(full.reported(), ["DeleteNow p"]);
    assert!(text(&full).contains("budget b wants 2 healthy pods and has 2"), "{}", text(&full));
    assert!(text(&full).contains("not ready, and goes if the budget's unhealthyPodEvictionPolicy"), "{}", text(&full));
    let mut ready = held(json!({}));
    ready.pods = vec![merged(pod("p"), json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}))];
    let mut allowed = held(json!({}));
    allowed.budgets[0]["spec"]["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow");
    assert!([ready, allowed].iter().all(|fixture| !text(fixture).contains("not ready")));
    let stale = held(json!({"observedGeneration": 0, "currentHealthy": 3}));
    assert!(text(&stale).contains("older than its spec"), "{}", text(&stale));
    let mut starting = held(json!({}));
    let not_ready = json!([{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}]);
    starting.pods = vec![merged(pod("p"), json!({"status": {"conditions": not_ready}}))];
    assert!(text(&starting).contains("not ready"), "{}", text(&starting));
    let uncounted = held(json!({"expectedPods": 0, "currentHealthy": 0, "desiredHealthy": 0}));
    assert!(text(&uncounted).contains("no controller says how many pods there should be"), "{}", text(&uncounted));
    let mut two = held(json!({}));
    two.budgets.push(budget("c", json!({})));
    assert!(text(&two).contains("b and c select it"), "{}", text(&two));
    let mut soon = fixture(&[pod("p")]).refused("p", -60, -1);
    soon.budgets.push(budget("b", json!({"disruptionsAllowed": 1})));
    assert_eq!(soon.reported(), ["Evict p"]);
}

/// MCM #1127: a budget is misconfigured only if its status is that of its spec.
#[test]
fn a_budget_that_can_never_allow_a_disruption_is_named_and_respected_until_the_drain_timeout() {
    let never = json!({"currentHealthy": 3, "desiredHealthy": 3});
    let mut held = fixture(&[pod("p")]).refused("p", -7_300, -1);
    held.budgets.push(budget("b", never));
    let progress = held.evictions();
    assert!(progress.removals.is_empty());
    assert!(describe(&progress.blockers).contains("although all its 3 pods are healthy: raise its maxUnavailable"));
    assert_eq!(Fixture { force: Some("the drain timeout is over"), ..held }.reported(), ["DeleteNow p"]);
}

#[test]
fn pods_with_volumes_leave_one_after_the_other_by_priority() {
    let urgent = merged(stateful("z"), json!({"spec": {"priority": 7}}));
    let two = |pods: &[Value]| fixture(pods).attached("a", "n").attached("z", "n");
    assert_eq!(two(&[stateful("a"), urgent.clone(), pod("p")]).reported(), ["Evict z", "Evict p"]);
    let first = two(&[stateful("a"), leaving(urgent, after(30))]);
    let progress = first.evictions();
    assert!(progress.removals.is_empty());
    let later = Fixture { now: after(31), ..first };
    assert_eq!(later.evictions().wake, Some(after(150)), "a pod that does not end blocks the others for a while only");
    assert_eq!(Fixture { now: after(150), ..later }.reported(), ["Evict a"]);
    assert_eq!(
        fixture(&[stateful("a"), stateful("z")]).reported().len(),
        2,
        "volumes that nobody attaches do not count"
    );
    let finished = merged(stateful("z"), json!({"status": {"phase": "Succeeded"}}));
    assert_eq!(two(&[finished]).reported(), ["Evict z"], "it uses its volume no more, and need not wait for others");
}

#[test]
fn the_next_pod_waits_until_the_volume_is_detached_here_and_attached_elsewhere() {
    let next = || fixture(&[stateful("b")]).attached("b", "n");
    let detaching = next().attached("a", "n");
    let progress = detaching.evictions();
    assert!(progress.removals.is_empty());
    assert_eq!((&progress.notes[1], progress.wake), (&detaching_note(), Some(after(120))));
    assert_eq!(next().attached("a", "n").noted(detaching_note(), -120).reported(), ["Evict b"], "not for ever");
    let detached = next().noted(detaching_note(), -30).evictions();
    assert_eq!((&detached.notes[1], detached.wake), (&attaching_note(), Some(after(90))));
    assert!(detached.removals.is_empty());
    assert_eq!(next().noted(attaching_note(), -90).reported(), ["Evict b"], "not for ever");
    assert_eq!(next().attached("a", "m").noted(attaching_note(), -1).reported(), ["Evict b"]);
    let mut begun = next().attached("a", "m").noted(attaching_note(), -1);
    begun.attachments[1]["status"]["attached"] = false.into();
    assert!(begun.reported().is_empty());
    let both = next().attached("a", "n").noted(Note::Attaching(Volume::Named("pv-z".into())), -1);
    assert!(both.reported().is_empty(), "one volume is being detached, and another one attached");
}

#[test]
fn a_drain_waits_for_the_list_of_volumes_and_goes_on_if_there_is_none() {
    let mut unlisted = fixture(&[pod("a"), stateful("b")]);
    unlisted.has_volumes = false;
    unlisted = unlisted.noted(Note::Attaching(Volume::Named("pv-z".into())), -9);
    assert_eq!(unlisted.reported(), ["Evict a"]);
    assert!(unlisted.evictions().notes.contains(&Note::Attaching(Volume::Named("pv-z".into()))), "its time goes on");
    let store = Arc::new(Store::<ClaimView>::new(TARGET, ""));
    store.fail("forbidden");
    unlisted.stores.add_scoped(&ScopedWatch::at::<ClaimView>(TARGET, ""), store);
    assert_eq!(unlisted.reported(), ["Evict a", "Evict b"]);
}

fn with_volumes(mut fixture: Fixture, names: &[&str]) -> Fixture {
    let volumes: Vec<_> = names.iter().map(|name| json!({"name": name, "devicePath": ""})).collect();
    fixture.node["status"]["volumesAttached"] = volumes.into();
    fixture
}

#[test]
fn the_end_of_a_detachment_is_waited_for_but_not_for_ever() {
    assert_eq!(fixture(&[]).detachment().end, Some(End::Done), "without volumes nothing is watched");
    let begun = with_volumes(fixture(&[]).attached("a", "n"), &["v"]);
    assert_eq!((begun.detachment().end, begun.detachment().wake), (None, Some(after(120))));
    // Kubernetes takes the volume off the Node when it begins, and deletes the attachment at the end.
    let last = fixture(&[leaving(stateful("a"), after(9))]).attached("a", "n").evictions();
    assert_eq!(last.notes[0], Note::WatchingVolumes);
    assert_eq!(fixture(&[]).attached("a", "n").noted(Note::WatchingVolumes, -1).detachment().wake, Some(after(120)));
    let under_way = fixture(&[]).attached("a", "n").noted(detaching_note(), -5);
    assert_eq!(under_way.detachment().wake, Some(after(115)));
    assert_eq!(fixture(&[]).noted(detaching_note(), -5).detachment().end, Some(End::Done));
    let stuck = with_volumes(fixture(&[]).attached("a", "n").noted(detaching_note(), -120), &["v"]);
    assert_eq!(stuck.detachment().end, Some(End::Done));
    let unnamed = with_volumes(fixture(&[]), &["v"]);
    assert_eq!(unnamed.detachment().blockers, [Blocker::Detaching { volume: "of the node".into(), since: now() }]);
    let both = with_volumes(fixture(&[]).attached("a", "n"), &["v", "w"]);
    assert_eq!(both.detachment().end, None, "one has an attachment, and another one has none");
}

#[test]
fn of_volumes_that_cannot_be_listed_those_count_that_the_node_names() {
    let unlisted = |names: &[&str]| {
        let drain =
            with_volumes(Fixture { has_volumes: false, ..fixture(&[]) }, names).noted(Note::WatchingVolumes, -1);
        let store = Arc::new(Store::<ClaimView>::new(TARGET, ""));
        store.fail("forbidden");
        drain.stores.add_scoped(&ScopedWatch::at::<ClaimView>(TARGET, ""), store);
        drain.detachment().end
    };
    assert_eq!(unlisted(&["v"]), None);
    assert_eq!(unlisted(&[]), Some(End::Done));
}

fn foreign(volumes: &[&str]) -> Whose {
    Whose::Foreign(volumes.iter().map(|&volume| volume.to_owned()).collect())
}

#[test]
fn pods_with_volumes_of_another_provider_leave_at_once() {
    let three = |owners| {
        let pods = ["a", "b", "c"].map(stateful);
        let fixture = fixture(&pods).attached("a", "n").attached("b", "n").attached("c", "n");
        Fixture { owners, ..fixture }
    };
    assert_eq!(three(Whose::Unknown).reported(), ["Evict a"]);
    assert_eq!(three(foreign(&[])).reported(), ["Evict a"]);
    assert_eq!(three(foreign(&["pv-a"])).reported(), ["Evict b", "Evict a"], "the queue is of the provider's volumes");
    assert_eq!(three(foreign(&["pv-a", "pv-b", "pv-c"])).reported().len(), 3);
    assert!(three(foreign(&["pv-a"])).evictions().question.is_empty(), "it is asked once");
}

#[test]
fn pods_with_volumes_wait_for_the_answer_whose_they_are_and_others_leave() {
    let waiting = |owners| {
        let fixture = fixture(&[pod("a"), stateful("b")]).attached("b", "n").attached("z", "m");
        Fixture { owners, ..fixture }
    };
    let unasked = waiting(Whose::Unasked).evictions();
    assert_eq!(unasked.question, ["pv-b".to_owned()].into(), "about the volumes of this node");
    let asked = waiting(Whose::Asked).evictions();
    assert_eq!((asked.question.len(), asked.wake), (0, Some(after(30))));
    for owners in [Whose::Unasked, Whose::Asked] {
        assert_eq!(waiting(owners.clone()).reported(), ["Evict a"]);
        let free = Fixture { owners: owners.clone(), ..fixture(&[pod("a")]).attached("z", "m") };
        assert!(free.evictions().question.is_empty(), "nobody waits for the answer");
        let forced = Fixture { force: Some("the drain timeout is over"), ..waiting(owners) };
        assert_eq!((forced.reported().len(), forced.evictions().question.len()), (2, 0));
    }
}

#[test]
fn volumes_of_another_provider_are_not_waited_for() {
    let next = |owners| Fixture { owners, ..fixture(&[stateful("b")]).attached("b", "n").attached("a", "n") };
    assert!(next(foreign(&[])).reported().is_empty(), "a is being detached");
    let others = next(foreign(&["pv-a"])).noted(detaching_note(), -5);
    assert_eq!(others.reported(), ["Evict b"]);
    assert!(!others.evictions().notes.contains(&detaching_note()), "what was noted before the answer is over");
    let mut gone = next(foreign(&["pv-a"])).noted(detaching_note(), -5);
    gone.attachments.retain(|attachment| attachment["metadata"]["uid"] != "a");
    assert_eq!(gone.reported(), ["Evict b"], "nor is it waited for elsewhere");

    let left = |owners| Fixture { owners, ..with_volumes(fixture(&[]).attached("a", "n"), &["v"]) };
    assert_eq!(left(foreign(&[])).detachment().end, None);
    assert_eq!(left(foreign(&["pv-a"])).detachment().end, Some(End::Done), "the node names it, and it does not count");
    let unasked = left(Whose::Unasked).detachment();
    assert_eq!((unasked.end, unasked.question), (None, ["pv-a".to_owned()].into()));
    assert_eq!((left(Whose::Asked).detachment().end, left(Whose::Asked).detachment().wake), (None, Some(after(30))));
    let overdue = left(Whose::Unasked).noted(detaching_note(), -120).detachment();
    assert_eq!((overdue.end, overdue.question.len()), (Some(End::Done), 0), "the answer would change nothing");
    let unnamed = Fixture { owners: foreign(&["pv-a"]), ..with_volumes(fixture(&[]).attached("a", "n"), &["v", "w"]) };
    assert_eq!(unnamed.detachment().end, None, "the node names another one, which may be the provider's");
}

/// MCM #937: volumes that nobody detaches are not waited for.
#[test]
fn the_volumes_of_pods_that_stay_are_not_waited_for() {
    let daemon = of_daemon_set(stateful("d"));
    let staying = with_volumes(fixture(&[daemon]).attached("d", "n"), &["v"]);
    assert_eq!((staying.evictions().end, staying.detachment().end), (Some(End::Done), Some(End::Done)));
}

#[test]
fn a_forced_drain_asks_for_everything_at_once_and_ends_whatever_is_answered() {
    let forced = |begun: i64| {
        let finalizer = json!({"metadata": {"deletionTimestamp": after(0), "deletionGracePeriodSeconds": 0}});
        let pods = [stateful("a"), leaving(stateful("b"), after(30)), merged(pod("c"), finalizer)];
        let fixture = with_volumes(fixture(&pods).attached("a", "n").attached("b", "n"), &["v", "w"]);
        let force = Some("the drain timeout is over");
        Fixture { force, ..fixture }.noted(Note::Forced, begun)
    };
    let fresh = Fixture { notes: BTreeMap::new(), ..forced(0) };
    assert_eq!(fresh.reported(), ["DeleteNow a", "DeleteNow b"], "however long the limit has been over");
    assert!(fresh.evictions().notes.contains(&Note::Forced));
    assert_eq!(forced(-20).evictions().wake, Some(after(40)));
    let given_up = forced(-60).evictions();
    assert_eq!((given_up.end, given_up.watches.len()), (Some(End::TimedOut), 3), "volumes are still to be seen");
    let detached = forced(-60).detachment();
    assert!(detached.removals.iter().all(|it| it.how == How::Delete) && detached.removals.len() == 2);
    assert_eq!(forced(-120).detachment().end, Some(End::TimedOut));
    let unlisted = Fixture { has_volumes: false, ..forced(-60) }.detachment();
    assert_eq!((unlisted.end, unlisted.wake), (None, Some(after(60))));
    let mut asked = forced(0);
    for attachment in &mut asked.attachments {
        attachment["metadata"]["deletionTimestamp"] = json!(now());
    }
    assert_eq!(asked.detachment().end, Some(End::Done), "their end is not waited for");
}

/// In machine-controller-manager, a Pod with volumes for which no time is left counts as drained.
#[test]
fn mcm_defect_11_a_drain_whose_time_is_over_is_not_done_while_pods_with_volumes_are_there() {
    let overdue = |seconds: i64| {
        let pods = [stateful("a"), leaving(stateful("b"), after(30))];
        let fixture = fixture(&pods).attached("a", "n").attached("b", "n");
        let fixture = fixture.noted(Note::Forced, 0).noted(Note::WatchingVolumes, 0);
        Fixture { force: Some("the drain timeout is over"), now: after(seconds), ..fixture }
    };
    for seconds in [0, 59] {
        assert_eq!(
            (overdue(seconds).evictions().end, overdue(seconds).reported().len()),
            (None, 2),
            "after {seconds} s"
        );
    }
    assert_eq!(overdue(60).evictions().end, Some(End::TimedOut), "not done");
    assert_eq!(overdue(60).detachment().removals.len(), 2, "their volumes are taken off the node");
    let empty = Fixture { pods: vec![], ..overdue(1) };
    assert_eq!(empty.evictions().end, Some(End::Done));
}

#[test]
fn a_text_names_what_needs_attention_first_and_has_a_limit() {
    let pods: Vec<_> = (0..60).map(|index| pod(&format!("p{index:02}{}", "x".repeat(200)))).collect();
    let mut crowd = fixture(&pods);
    for pod in &pods[40..] {
        let uid = pod["metadata"]["uid"].as_str().unwrap().into();
        let (class, message) = (FailureClass::Forbidden, "y".repeat(5_000));
        crowd.refusals.push(Refusal { uid, since: now(), at: now(), class, message, retry_after: None });
    }
    let text = describe(&crowd.evictions().blockers);
    assert!(text.contains("p40") && text.ends_with("and 57 more") && text.len() < 1_000, "{text}");
}

#[test]
fn an_ephemeral_volume_has_the_claim_that_kubernetes_makes() {
    let ephemeral =
        merged(pod("p"), json!({"spec": {"volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}]}}));
    let view: PodView = serde_json::from_value(ephemeral).unwrap();
    assert_eq!(view.claims().collect::<Vec<_>>(), ["p-v"]);
    assert!(matches!(View::empty(TARGET).volumes, Volumes::Pending));
}

mod departures;
