use super::{
    terminate::{cordoned, dying},
    *,
};
use crate::{machine::MachineMetrics, shared::CONTROL};

fn forced() -> MachineBuilder {
    dying().label("force-deletion", "true")
}

#[test]
fn a_forced_deletion_asks_nothing_of_the_target_cluster_before_the_vm_is_gone() {
    let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "uid-p"}});
    let mut volumes = synced(READY);
    volumes["status"]["volumesAttached"] = json!([{"name": "v", "devicePath": ""}]);
    let mut silent = synced("Unknown");
    silent["status"]["conditions"][0]["lastTransitionTime"] = NOW.into();
    for node in [synced(READY), cordoned(), volumes, silent] {
        for fixture in
            [fixture(forced()).node(node.clone()), fixture(forced()).node(node).pods(std::slice::from_ref(&pod))]
        {
            assert_eq!(fixture.steps(), ["call Delete"]);
            assert!(fixture.plan().scoped_watches.is_empty());
        }
    }
}

#[test]
fn a_forced_deletion_ends_without_a_target_cluster_that_is_away() {
    let gone = |fixture: Fixture| {
        fixture.answered(Verb::Delete, 2, Outcome::Done).answered(Verb::Status, 1, failed(Code::NotFound))
    };
    let end = ["edit Machine default/m"];
    // As long as it answers, or may do so, the Node goes first.
    assert_eq!(gone(fixture(forced()).node(synced(READY))).steps(), ["delete Node n"]);
    let mut away = gone(fixture(forced()).node(synced(READY)));
    away.attempt = 1;
    assert_eq!(away.steps(), ["delete Node n"], "a request has failed, and the watch goes on");
    away.connected_since = Some(away.now);
    assert_eq!(away.steps(), end);
    away.snapshot.machine = Arc::new(dying().build());
    assert_eq!(away.steps(), ["delete Node n"], "only a forced one");
    // An API server that answers may refuse for good, as one that cannot patch the Node.
    let refused = |times: u32, machine: MachineBuilder| {
        let mut refused = gone(fixture(machine).node(synced(READY)));
        (refused.attempt, refused.failure) = (times, Some(refusal()));
        refused.steps()
    };
    assert_eq!(refused(2, forced()), ["delete Node n"]);
    assert_eq!(refused(4, forced()), end);
    assert_eq!(refused(4, dying()), ["delete Node n"], "only a forced one");
    // The Nodes have not been listed since this process began.
    let mut unlisted = gone(fixture(forced()));
    unlisted.snapshot.nodes_listed = false;
    assert_eq!(unlisted.steps(), end);
    unlisted.since = unlisted.now - SignedDuration::from_secs(20);
    assert_eq!(unlisted.plan().waits[0].reason, "ListingNodes");
    assert_eq!(unlisted.plan().wake, Some(unlisted.now + SignedDuration::from_secs(10)));
}

fn deleted_at_eleven(timeout: &str) -> MachineBuilder {
    dying().with("/metadata/deletionTimestamp", "2026-06-01T11:00:00Z").with("/spec/drainTimeout", json!(timeout))
}

#[test]
fn an_overdue_deletion_removes_the_vm_though_this_manager_never_saw_the_target_cluster() {
    let unlisted = |timeout: &str, led_for: i64| {
        let mut fixture = fixture(deleted_at_eleven(timeout));
        fixture.snapshot.nodes_listed = false;
        fixture.since = fixture.now - SignedDuration::from_secs(led_for);
        fixture
    };
    let wake = |fixture: &Fixture| {
        let plan = fixture.plan();
        assert_eq!((plan.waits[0].reason, plan.is_idle()), ("ListingNodes", true));
        plan.wake
    };
    // It has just started: the list may be on its way.
    assert_eq!(wake(&unlisted("1m", 20)), Some(at("2026-06-01T12:00:10Z")));
    assert_eq!(wake(&unlisted("1h", 600)), Some(at("2026-06-01T12:00:30Z")), "by then the status tells the wait");
    assert_eq!(wake(&unlisted("58m10s", 600)), Some(at("2026-06-01T12:00:10Z")), "two minutes after the timeout");
    let mut overdue = unlisted("58m", 30);
    assert_eq!(overdue.steps(), ["call Delete"]);
    overdue.since = overdue.now - SignedDuration::from_mins(5);
    let gone = overdue.answered(Verb::Delete, 60, Outcome::Done).answered(Verb::Status, 50, failed(Code::NotFound));
    let plan = gone.plan();
    assert!(plan.is_idle(), "its Node goes once the target cluster is there again");
    assert_eq!(
        (plan.waits[0].reason, plan.wake),
        ("ListingNodes", Some(at("2026-06-01T12:00:30Z"))),
        "the status tells"
    );
}

#[test]
fn a_machine_says_that_the_target_cluster_has_not_listed_its_nodes() {
    let unlisted = |phase: &str, led_for: i64| {
        let mut fixture = fixture(linked(phase));
        fixture.snapshot.nodes_listed = false;
        fixture.since = fixture.now - SignedDuration::from_secs(led_for);
        fixture
    };
    for phase in ["Pending", "Running", "Unknown"] {
        let starting = unlisted(phase, 20).plan();
        assert!(starting.is_idle() && starting.waits.is_empty(), "{phase}: the list is on its way");
        assert_eq!(starting.wake, Some(at("2026-06-01T12:00:10Z")));
        let away = unlisted(phase, 31).plan();
        assert_eq!((away.is_idle(), away.waits[0].reason), (true, "ListingNodes"), "{phase}");
    }
}

#[test]
fn a_deletion_tolerates_unavailable_the_target_cluster_if_it_is_forced_or_its_drain_fails() {
    let (settings, driver) = (Arc::default(), Arc::new(Uncalled));
    let controller =
        MachineController { namespace: "default".into(), settings, driver, metrics: MachineMetrics::default() };
    let goes_on = |machine: MachineBuilder, cluster, after: i64| {
        controller.tolerates_unavailable(&machine.build(), cluster, at(NOW) + SignedDuration::from_secs(after))
    };
    assert!(goes_on(forced(), TARGET, 0) && !goes_on(forced(), CONTROL, 0));
    assert!(!goes_on(linked("Running").label("force-deletion", "true"), TARGET, 0));
    let timed = || dying().with("/spec/drainTimeout", json!("10m"));
    assert!(!goes_on(timed(), TARGET, 600) && goes_on(timed(), TARGET, 720), "a drain that failed");
}

#[test]
fn a_deletion_that_waits_for_the_target_cluster_says_so_once() {
    let since =
        |machine: MachineBuilder| machine.with("/status/currentStatus/lastUpdateTime", json!("2026-06-01T11:59:00Z"));
    let failing = |machine: MachineBuilder, class: FailureClass| {
        let mut fixture = fixture(since(machine)).node(synced(READY));
        fixture.attempt = 1;
        fixture.failure =
            Some(Failure::of::<Node>(StepVerb::Patch, ObjectRef::new(TARGET, "", "n"), class, "connection refused"));
        fixture
    };
    let first = failing(dying(), FailureClass::Unreachable);
    assert_eq!(first.steps(), ["status Terminating"]);
    let status = status_of(&first.plan());
    let condition = status["conditions"].as_array().unwrap().last().unwrap();
    assert_eq!((&condition["type"], &condition["reason"]), (&json!("Drained"), &json!("RequestFailed")));
    let description = status["lastOperation"]["description"].as_str().unwrap();
    assert!(
        description.starts_with("Initiate node drain") && description.contains("connection refused"),
        "{description}"
    );
    let refused = Fixture { attempt: 2, ..failing(dying(), FailureClass::Unreachable) };
    assert_eq!(refused.steps(), ["edit Node n", "edit Node n"], "it may have been the status that was refused");
    let reported = failing(dying().with("/status", status), FailureClass::Unreachable);
    assert_eq!(reported.steps(), ["edit Node n", "edit Node n"]);
    assert_eq!(failing(dying(), FailureClass::Conflict).steps(), ["edit Node n", "edit Node n"]);
}
