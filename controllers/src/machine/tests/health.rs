//! Snapshots in, plans out: the health of a Machine, and when it fails.

use nodewright_runtime::plan::Notes;

use super::*;
use crate::{
    machine::memory::{Note, Plan},
    shared::TARGET,
};

#[test]
fn a_node_that_joins_gets_its_share_and_makes_the_machine_running_in_one_go() {
    let creating =
        json!({"type": "Create", "state": "Processing", "description": "Creating machine on cloud provider"});
    let joined = fixture(linked("Pending").with("/status/lastOperation", creating)).node(conditions(READY));
    assert_eq!(joined.steps(), ["status Running", "edit Node n"]);
    let plan = Fixture { traces: true, ..joined }.plan();
    assert_eq!(plan.stages.len(), 1, "side by side");
    assert_eq!(
        plan.spans.iter().map(|span| &span.name).collect::<Vec<_>>(),
        ["VM creation", "boot and join", "machine creation"]
    );
}

#[test]
fn a_running_machine_with_a_healthy_node_needs_nothing() {
    let mut running = fixture(linked("Running")).node(synced(READY));
    let status = status_of(&fixture(linked("Pending")).node(synced(READY)).plan());
    let mut machine: Value = serde_json::to_value(running.snapshot.machine.as_ref()).unwrap();
    machine["status"] = status;
    running.snapshot.machine = Arc::new(serde_json::from_value(machine).unwrap());
    assert!(running.plan().is_idle(), "{:?}", running.steps());
}

/// A Machine that runs, and whose status is up to date.
fn settled(machine: MachineBuilder, node: &Value) -> Fixture {
    let status = status_of(&fixture(linked("Pending")).node(node.clone()).plan());
    fixture(machine.with("/status", status)).node(node.clone())
}

#[test]
fn the_record_of_what_a_node_got_grows_first_and_shrinks_last() {
    let steps = |template: Value, record: Option<&str>, node: &Value| {
        let machine = linked("Running").with("/spec/nodeTemplate", json!({"metadata": {"labels": template}}));
        let machine = match record {
            Some(record) => machine.annotation("nodewright.dev/applied-node-template", record),
            None => machine,
        };
        settled(machine, node).steps()
    };
    let (record, node) = (["edit Machine default/m"], ["edit Node n"]);
    let mut has_a = synced(READY);
    has_a["metadata"]["labels"]["a"] = "1".into();
    let applied = r#"{"metadata":{"labels":{"a":"1"}},"spec":{}}"#;
    has_a["metadata"]["annotations"] = json!({"node.machine.sapcloud.io/last-applied-anno-labels-taints": applied});
    let (a, only_a) = (|| json!({"a": "1"}), Some(r#"{"labels":["a"]}"#));
    // As it is born.
    assert_eq!(steps(a(), only_a, &synced(READY)), node);
    assert!(steps(a(), only_a, &has_a).is_empty());
    // Taken over: nothing is removed, and what is there is remembered.
    assert_eq!(steps(a(), None, &has_a), record);
    // The template gains a label, and loses one.
    assert_eq!(steps(json!({"a": "1", "b": "1"}), only_a, &has_a), record);
    assert_eq!(steps(json!({"a": "1", "b": "1"}), Some(r#"{"labels":["a","b"]}"#), &has_a), node);
    assert_eq!(steps(json!({}), only_a, &has_a), node);
    let mut bare = synced(READY);
    bare["metadata"]["annotations"] =
        json!({"node.machine.sapcloud.io/last-applied-anno-labels-taints": r#"{"metadata":{},"spec":{}}"#});
    assert_eq!(steps(json!({}), only_a, &bare), record);
}

#[test]
fn a_running_machine_forgets_what_was_said_once_the_provider_shows_what_it_has_made() {
    let running =
        |seconds| fixture(linked("Running")).node(synced(READY)).answered(Verb::Create, seconds, Outcome::Done);
    let young = running(2).plan();
    assert!(!young.forgets_outcomes && young.wake.is_some_and(|wake| wake > at(NOW)), "{:?}", young.wake);
    assert!(running(60).plan().forgets_outcomes);
}

#[test]
fn a_critical_component_that_is_missing_keeps_the_machine_pending() {
    let mut node = synced(READY);
    node["spec"]["taints"] =
        json!([{"key": "node.gardener.cloud/critical-components-not-ready", "effect": "NoSchedule"}]);
    let waiting =
        fixture(linked("Pending").with("/spec/providerID", json!("p:///1")).created("2026-06-01T11:59:00Z")).node(node);
    assert_eq!(waiting.steps(), ["status Pending"], "only the conditions are copied");
    assert_eq!(waiting.plan().waits[0].reason, "CriticalComponentsNotReady");
    // As in machine-controller-manager, the creation timeout holds for them, too.
    assert_eq!(waiting.plan().wake, Some(at("2026-06-01T12:19:00Z")));
    let late = Fixture { now: at("2026-06-01T12:19:00Z"), ..waiting };
    assert_eq!(late.steps(), ["status Failed"]);
    let text = status_of(&late.plan())["lastOperation"]["description"].as_str().unwrap().to_owned();
    assert!(text.contains("its critical components are not"), "{text}");
}

/// An Unknown Machine whose node is silent for two minutes, and the answers of its provider.
fn silent(answers: &[(i64, Outcome)], noted: Option<i64>) -> Fixture {
    let since = "2026-06-01T11:58:00Z";
    let unknown = linked("Unknown").with("/status/currentStatus/lastUpdateTime", json!(since));
    let mut fixture = fixture(unknown).node(heard_at("Unknown", LONG_AGO, LONG_AGO));
    let note = |seconds| (Note::NoVm(at(since)), at(NOW) - SignedDuration::from_secs(seconds));
    fixture.notes = noted.map(note).into_iter().collect();
    answers.iter().fold(fixture, |fixture, (ago, outcome)| fixture.answered(Verb::Status, *ago, outcome.clone()))
}

#[test]
fn a_vm_that_is_gone_at_the_provider_is_noticed_before_the_health_timeout() {
    let asks = |fixture: &Fixture| fixture.steps().contains(&"call Status".to_owned());
    let due = |fixture: &Fixture| match status_of(&fixture.plan())["conditions"].as_array().unwrap().last() {
        Some(condition) if condition["type"] == "HealthTimeout" => {
            (condition["reason"].as_str().unwrap().to_owned(), at(condition["message"].as_str().unwrap()))
        }
        other => panic!("{other:?}"),
    };
    let timeout = ("Unhealthy".to_owned(), at("2026-06-01T12:08:00Z"));
    let nothing_known = silent(&[], None);
    assert!(asks(&nothing_known));
    assert_eq!(due(&nothing_known), timeout);
    assert!(!asks(&silent(&[], None).running(Verb::Status)));
    // One question a minute, whatever the answer is.
    for answer in [vm(), failed(Code::Unavailable), failed(Code::PermissionDenied)] {
        assert!(!asks(&silent(&[(59, answer.clone())], None)), "{answer:?}");
        let fixture = silent(&[(60, answer)], None);
        assert!(asks(&fixture));
        assert_eq!(due(&fixture), timeout);
    }
    assert!(!asks(&silent(&[(60, failed(Code::Unimplemented))], None)), "it never knows");
    // An answer from before the Node was silent says nothing.
    assert!(asks(&silent(&[(121, vm())], None)));
    let mut of_another = silent(&[], None);
    let own = of_another.snapshot.machine.clone();
    Arc::make_mut(&mut of_another.snapshot.machine).spec.provider_id = "p:///9".to_owned();
    let mut of_another = of_another.answered(Verb::Status, 1, vm());
    of_another.snapshot.machine = own;
    assert!(asks(&of_another), "an answer about another VM says nothing");
    // The first time that there is none is confirmed half a minute later.
    let first = silent(&[(1, failed(Code::NotFound))], None);
    assert!(!asks(&first));
    assert_eq!(
        (due(&first), first.plan().notes),
        (timeout.clone(), Notes::Replace(vec![Note::NoVm(at("2026-06-01T11:58:00Z"))]))
    );
    assert!(asks(&silent(&[(30, failed(Code::NotFound))], Some(30))));
    let sure = silent(&[(9, failed(Code::NotFound))], Some(40));
    assert_eq!(due(&sure), ("VMNotFound".to_owned(), at("2026-06-01T11:59:50Z")));
    assert_eq!(silent(&[(9, vm())], Some(40)).plan().notes, Notes::Clear, "it was found again");
    assert_eq!(silent(&[(9, failed(Code::Internal))], Some(40)).plan().notes, Notes::Keep, "an error says nothing");
    // The Machine's own VM would be found before another's of its name.
    let found = |owner: Option<&str>, id: &str| {
        let Outcome::Instance(instance) = vm() else { unreachable!() };
        let owner_uid = owner.map(str::to_owned);
        let answer = Outcome::Instance(Instance { owner_uid, provider_id: id.into(), ..instance });
        due(&silent(&[(9, answer)], Some(40))).0
    };
    assert_eq!(found(Some("uid-x"), "p:///9"), "VMNotFound", "there is only another's VM of its name");
    assert_eq!(found(Some("uid-x"), "p:///1"), "Unhealthy", "its VM has been made for another");
    assert_eq!(found(Some("uid-m"), "p:///9"), "Unhealthy", "it has another VM");
    assert_eq!(found(None, "p:///9"), "Unhealthy", "nothing says whose it is");
    // Once all can see the time, the machine is replaced within the budget.
    let reported = |mut fixture: Fixture| {
        let mut machine = (*fixture.snapshot.machine).clone();
        machine.status = serde_json::from_value(status_of(&fixture.plan())).unwrap();
        fixture.snapshot.machine = Arc::new(machine);
        fixture
    };
    assert_eq!(reported(sure).steps(), ["confirm Node n", "status Failed"]);
    let held = reported(silent(&[(9, failed(Code::NotFound))], Some(40))).set(machine_set("set", 2, Some("k7f;")));
    let held = held.beside([machine("a").phase("Pending").created("2026-06-01T11:59:00Z").build()]);
    assert_eq!(held.plan().waits[0].reason, "ReplacementBlocked");
    let other = machine("a").phase("Pending").created("2026-06-01T11:59:00Z").build();
    let alone = reported(silent(&[(9, failed(Code::NotFound))], Some(40))).beside([other]).plan();
    let text = "it belongs to no machine set, and of such machines one at a time goes for bad health";
    assert_eq!(alone.waits[0].message, text);
    let conditions = status_of(&alone)["conditions"].to_string();
    assert!(conditions.contains(&format!("Machine m is unhealthy for too long; {text}")), "{conditions}");
}

#[test]
fn a_phase_unknown_is_a_span_once_it_has_ended() {
    let since = "2026-06-01T11:50:00Z";
    let unknown = || linked("Unknown").with("/status/currentStatus/lastUpdateTime", json!(since));
    let spans = |fixture: Fixture| Fixture { traces: true, ..fixture }.plan().spans;
    assert!(fixture(unknown()).node(synced(READY)).plan().spans.is_empty(), "spans are not exported");
    let recovered = spans(fixture(unknown()).node(synced(READY)));
    assert_eq!((recovered.len(), recovered[0].name.as_ref(), &recovered[0].error), (1, "unhealthy", &None));
    assert_eq!((recovered[0].start, recovered[0].end), (at(since), at(NOW)));
    let failed = spans(fixture(unknown()));
    assert_eq!((failed.len(), failed[0].id), (1, recovered[0].id), "the same phase");
    assert!(failed[0].error.is_some());
    let again = spans(fixture(linked("Unknown").with("/status/currentStatus/lastUpdateTime", json!(LONG_AGO))));
    assert_ne!(again[0].id, failed[0].id, "another phase");
    assert!(spans(silent(&[], None)).is_empty(), "it lasts");
}

#[test]
fn conditions_may_have_health_timeouts_of_their_own() {
    let unknown = || linked("Unknown").with("/status/currentStatus/lastUpdateTime", json!("2026-06-01T11:58:00Z"));
    let node = |ready: &str, disk: &str, since: &str| {
        let mut node = heard_at(ready, "2026-06-01T11:59:00Z", LONG_AGO);
        let disk = json!({"type": "DiskPressure", "status": disk, "lastTransitionTime": since});
        node["status"]["conditions"].as_array_mut().unwrap().push(disk);
        node
    };
    let due = |machine: MachineBuilder, node: Value| fixture(machine).node(node).plan().wake.unwrap();
    let key = "nodewright.dev/health-timeouts";
    let own = || unknown().annotation(key, "DiskPressure=30m,Ready=5m");
    let full = || node("True", "True", "2026-06-01T11:59:00Z");
    assert_eq!(due(unknown(), full()), at("2026-06-01T12:08:00Z"), "without the annotation");
    assert_eq!(due(own(), full()), at("2026-06-01T12:29:00Z"), "from when the Node reported it");
    assert_eq!(due(own(), node("True", "True", LONG_AGO)), at("2026-06-01T12:28:00Z"), "but not from before");
    assert_eq!(due(own(), node("False", "True", LONG_AGO)), at("2026-06-01T12:03:00Z"), "the earliest of several");
    let other = unknown().annotation(key, "KernelDeadlock=1m");
    assert_eq!(due(other, full()), at("2026-06-01T12:08:00Z"));
    let mut set = machine_set("set", 2, Some("k7f;"));
    set.metadata.annotations.get_or_insert_default().insert(key.to_owned(), "DiskPressure=1h".to_owned());
    assert_eq!(fixture(unknown()).node(full()).set(set.clone()).plan().wake, Some(at("2026-06-01T12:59:00Z")));
    assert_eq!(fixture(own()).node(full()).set(set).plan().wake, Some(at("2026-06-01T12:29:00Z")), "its own wins");
    let broken = unknown().annotation(key, "DiskPressure");
    assert_eq!(due(broken, full()), at("2026-06-01T12:08:00Z"));
    let off = own().with("/spec/disableHealthTimeout", json!(true));
    assert_eq!(fixture(off).node(full()).plan().waits[0].reason, "Unhealthy");
}

#[test]
fn an_annotation_of_the_node_switches_the_health_timeout_off() {
    let kept = || {
        let mut node = synced("Unknown");
        node["metadata"]["annotations"]["nodewright.dev/disable-health-timeout"] = "true".into();
        node
    };
    let condition = |status: &Value| {
        let mut all = status["conditions"].as_array().unwrap().iter();
        let found = all.find(|condition| condition["type"] == "HealthTimeout").unwrap();
        (found["status"].as_str().unwrap().to_owned(), found["message"].as_str().unwrap().to_owned())
    };
    let disabled =
        || ("False".to_owned(), "the node has the annotation nodewright.dev/disable-health-timeout: true".to_owned());
    let sick = lasting(fixture(linked("Running")).node(kept()));
    assert_eq!(sick.steps(), ["status Unknown"]);
    let status = status_of(&sick.plan());
    assert_eq!(condition(&status), disabled());
    // The timeout is over long ago.
    let unknown = |status: Value| {
        linked("Unknown").with("/status", status).with("/status/currentStatus/lastUpdateTime", json!(LONG_AGO))
    };
    let kept_on = fixture(unknown(status.clone())).node(kept());
    assert!(kept_on.plan().is_idle(), "{}", kept_on.plan());
    assert!(!may_be_replaced(&unknown(status.clone()).build()), "it keeps no other machine from being replaced");
    let late = fixture(linked("Unknown").with("/status/currentStatus/lastUpdateTime", json!(LONG_AGO))).node(kept());
    assert_eq!(condition(&status_of(&late.plan())), disabled(), "the annotation is new");
    let removed = fixture(unknown(status)).node(synced("Unknown"));
    let announced = status_of(&removed.plan());
    assert_eq!((removed.steps(), condition(&announced).0), (vec!["status Unknown".to_owned()], "True".to_owned()));
    assert_eq!(announced["currentStatus"]["phase"], "Unknown", "the end is announced before the machine fails");
}

#[test]
fn a_node_that_is_given_another_configuration_has_the_time_to_reboot() {
    let at = |time: &str| time.parse::<Timestamp>().unwrap();
    let rebooting = |drain: &str, desired: &str| {
        let mut node = synced("Unknown");
        for (key, value) in [
            ("machineconfiguration.openshift.io/currentConfig", "old"),
            ("machineconfiguration.openshift.io/desiredConfig", desired),
            ("nodewright.dev/config-drain", drain),
        ] {
            node["metadata"]["annotations"][key] = value.into();
        }
        node
    };
    let unknown = || linked("Unknown").with("/status/currentStatus/lastUpdateTime", json!("2026-06-01T11:58:00Z"));
    let due = |node: Value| fixture(unknown()).node(node).plan().wake;
    let normal = Some(at("2026-06-01T12:08:00Z"));
    let later = Some(at("2026-06-01T12:25:00Z"));
    assert_eq!(due(rebooting("cordoned;drain-new;2026-06-01T11:55:00Z", "new")), later);
    assert_eq!(due(rebooting("closed;drain-new;2026-06-01T11:55:00Z", "new")), later);
    assert_eq!(due(rebooting("open", "new")), normal, "it was not drained");
    assert_eq!(due(rebooting("cordoned;drain-old;2026-06-01T11:55:00Z", "old")), normal, "it runs what it is to run");
    assert_eq!(due(rebooting("cordoned;drain-new;2026-06-01T11:00:00Z", "new")), normal, "it takes too long");
    let ahead = due(rebooting("cordoned;drain-new;2026-06-01T15:00:00Z", "new"));
    assert_eq!(ahead, Some(at("2026-06-01T12:30:00Z")), "a time that is yet to come counts as now");
    // The agent is done, and the Node is not ready yet: what was announced stays.
    let announced = |reason: &str| {
        let condition =
            json!({"type": "HealthTimeout", "status": "True", "reason": reason, "message": "2026-06-01T12:25:00Z"});
        let machine = unknown().with("/status/conditions", json!([condition]));
        fixture(machine).node(rebooting("open", "old")).plan().wake
    };
    assert_eq!(announced("NodeUpdating"), later);
}

/// The same, if its Node has been unhealthy for ten seconds.
fn lasting(mut fixture: Fixture) -> Fixture {
    let since = fixture.now - SignedDuration::from_secs(10);
    fixture.notes.insert(Note::Unhealthy, since);
    fixture
}

#[test]
fn a_trouble_of_less_than_ten_seconds_costs_no_write() {
    let sick = |noted: Option<i64>, health_timeout: &str| {
        let machine = linked("Running").with("/spec/healthTimeout", json!(health_timeout));
        let mut fixture = fixture(machine).node(synced("False"));
        let since = |seconds| fixture.now - SignedDuration::from_secs(seconds);
        fixture.notes = noted.map(|ago| (Note::Unhealthy, since(ago))).into_iter().collect();
        fixture
    };
    let fresh = sick(None, "10m").plan();
    assert!(fresh.is_idle() && fresh.events.is_empty(), "{fresh}");
    assert_eq!((fresh.wake, fresh.waits[0].reason), (Some(at("2026-06-01T12:00:10Z")), "Unhealthy"));
    assert_eq!(fresh.notes, Notes::Replace(vec![Note::Unhealthy]));
    let later = sick(Some(4), "10m").plan();
    assert_eq!((later.is_idle(), later.wake), (true, Some(at("2026-06-01T12:00:06Z"))));
    assert_eq!(sick(Some(10), "10m").steps(), ["status Unknown"]);
    assert_eq!(sick(Some(10), "10m").plan().notes, Notes::Keep, "it is not forgotten if the write fails");
    assert_eq!(sick(Some(4), "40s").steps(), ["status Unknown"], "at most a tenth of the health timeout");
    let well = Fixture { notes: sick(Some(4), "10m").notes, ..fixture(linked("Running")).node(synced(READY)) };
    assert_eq!(well.plan().notes, Notes::Clear, "the next trouble is another one");
}

#[test]
fn a_sick_node_makes_the_machine_unknown_and_in_time_failed() {
    let sick = lasting(fixture(linked("Running")).node(synced("Unknown")));
    assert_eq!(sick.steps(), ["status Unknown"]);
    assert_eq!(fixture(linked("Running")).steps(), ["status Unknown"], "a missing node is a sick one");
    let since = |time: &str| linked("Unknown").with("/status/currentStatus/lastUpdateTime", json!(time));
    let young = fixture(since("2026-06-01T11:55:00Z"));
    let steps = ["call Status", "status Unknown"];
    assert_eq!(young.steps(), steps, "it says when the machine fails, unless the VM is gone");
    assert_eq!(young.plan().wake, Some(at("2026-06-01T12:05:00Z")));
    assert_eq!(fixture(since("2026-06-01T11:50:00Z")).steps(), ["status Failed"]);
    let off = fixture(since("2026-06-01T01:00:00Z").with("/spec/disableHealthTimeout", json!(true)));
    assert!(off.steps().is_empty());
    assert_eq!(fixture(since("2026-06-01T01:00:00Z")).node(synced(READY)).steps(), ["status Running"]);
}

/// A Node that was last heard of at this time.
fn heard_at(ready: &str, heartbeat: &str, transition: &str) -> Value {
    let mut node = synced(ready);
    let times = json!({"lastHeartbeatTime": heartbeat, "lastTransitionTime": transition});
    json_patch::merge(&mut node["status"]["conditions"][0], &times);
    node
}

const LONG_AGO: &str = "2026-06-01T08:00:00Z";

#[test]
fn a_report_from_before_this_process_led_makes_no_machine_unknown() {
    let at_time = |now: &str, node: Value| Fixture { now: at(now), ..fixture(linked("Running")).node(node) };
    let old = |ready: &str| heard_at(ready, LONG_AGO, LONG_AGO);
    for ready in ["Unknown", "False"] {
        let held = at_time("2026-06-01T09:05:59Z", old(ready));
        assert_eq!(held.steps(), ["status Running"], "only the conditions are copied");
        assert_eq!(
            (held.plan().waits[0].reason, held.plan().wake),
            ("ReportAwaited", Some(at("2026-06-01T09:06:00Z")))
        );
        assert!(held.plan().events.is_empty());
        // A live kubelet has reported by then.
        assert_eq!(lasting(at_time("2026-06-01T09:06:00Z", old(ready))).steps(), ["status Unknown"]);
    }
    // Reports since this process leads count at once: those of the kubelet, and those of the controller that misses it.
    let beats = heard_at("False", "2026-06-01T09:00:01Z", LONG_AGO);
    assert_eq!(lasting(at_time("2026-06-01T09:00:02Z", beats)).steps(), ["status Unknown"]);
    let missed = heard_at("Unknown", LONG_AGO, "2026-06-01T09:00:01Z");
    assert_eq!(lasting(at_time("2026-06-01T09:00:02Z", missed)).steps(), ["status Unknown"]);
    let same_moment = heard_at("Unknown", LONG_AGO, "2026-06-01T09:00:00Z");
    assert_eq!(at_time("2026-06-01T09:00:02Z", same_moment).plan().waits[0].reason, "ReportAwaited");
    let gone = Fixture { now: at("2026-06-01T09:00:02Z"), ..fixture(linked("Running")) };
    assert_eq!(gone.steps(), ["status Unknown"], "a missing node is not one that is silent");
}

/// machine-controller-manager freezes all of its work by a flag that one more failed probe may set, and that may stay for good.
#[test]
fn mcm_defect_25_an_outage_of_an_api_server_holds_nothing_up_for_longer_than_kubelets_need() {
    let at_time = |now: &str, connected: &str, node: Value| Fixture {
        now: at(now),
        connected_since: Some(at(connected)),
        ..fixture(linked("Running")).node(node)
    };
    let silent = || heard_at("Unknown", LONG_AGO, LONG_AGO);
    // Each time that it is connected again, kubelets have six minutes. An earlier outage does not count.
    for (connected, held, evaluated) in [
        ("2026-06-01T12:00:00Z", "2026-06-01T12:05:59Z", "2026-06-01T12:06:00Z"),
        ("2026-06-01T12:06:01Z", "2026-06-01T12:12:00Z", "2026-06-01T12:12:01Z"),
    ] {
        assert_eq!(at_time(held, connected, silent()).plan().waits[0].reason, "ReportAwaited");
        assert_eq!(lasting(at_time(evaluated, connected, silent())).steps(), ["status Unknown"]);
    }
    // What was reported since then counts at once, and other work goes on.
    let (connected, moment) = ("2026-06-01T12:00:00Z", "2026-06-01T12:00:01Z");
    let fresh = heard_at("False", "2026-06-01T12:00:01Z", LONG_AGO);
    assert_eq!(lasting(at_time(moment, connected, fresh)).steps(), ["status Unknown"]);
    let others = |machine| Fixture { now: at(moment), connected_since: Some(at(connected)), ..fixture(machine) };
    assert_eq!(others(machine("m")).steps(), ["call Status"]);
    assert_eq!(others(linked("Unknown")).node(synced(READY)).steps()[0], "status Running");
    assert_eq!(others(linked("Running").deleting()).steps(), ["status Terminating"]);
}

#[test]
fn a_machine_fails_when_its_timeout_ends_and_a_kubelet_that_lives_had_time_to_report() {
    // This process is connected since 9:00.
    let at_time = |now: &str, since: &str, node: Option<Value>| {
        let unknown = linked("Unknown").with("/status/currentStatus/lastUpdateTime", json!(since));
        let mut fixture = Fixture { now: at(now), ..fixture(unknown) };
        fixture.snapshot.unseen_node = Lookup::Missing;
        node.into_iter().fold(fixture, Fixture::node)
    };
    let wait_of = |fixture: &Fixture| {
        let plan = fixture.plan();
        (plan.waits[0].reason, plan.wake)
    };
    let condemned = ["confirm Node n", "status Failed"];
    // Silent since long before.
    let old = || Some(heard_at("Unknown", LONG_AGO, LONG_AGO));
    let due = Some(at("2026-06-01T09:06:00Z"));
    assert_eq!(wait_of(&at_time("2026-06-01T09:01:00Z", LONG_AGO, old())), ("ReportAwaited", due));
    assert_eq!(at_time("2026-06-01T09:06:00Z", LONG_AGO, old()).steps(), condemned);
    // Unknown since a minute before: its timeout ends later than those six minutes, and is kept.
    let (recently, due) = ("2026-06-01T08:59:00Z", Some(at("2026-06-01T09:09:00Z")));
    assert_eq!(wait_of(&at_time("2026-06-01T09:01:00Z", recently, old())), ("Unhealthy", due));
    assert_eq!(at_time("2026-06-01T09:09:00Z", recently, old()).steps(), condemned);
    // Heard of since: it has been Unknown for too long.
    let heard = Some(heard_at("False", "2026-06-01T09:00:30Z", LONG_AGO));
    assert_eq!(at_time("2026-06-01T09:01:00Z", LONG_AGO, heard).steps(), condemned);
    // Missing: with the same time to come back.
    assert_eq!(wait_of(&at_time("2026-06-01T09:01:00Z", LONG_AGO, None)).0, "ReportAwaited");
    assert_eq!(at_time("2026-06-01T09:06:00Z", LONG_AGO, None).steps(), ["status Failed"]);
    // A short timeout does not run out before a kubelet that lives has reported.
    let short = linked("Unknown")
        .with("/status/currentStatus/lastUpdateTime", json!(LONG_AGO))
        .with("/spec/healthTimeout", json!("5s"));
    let short =
        Fixture { now: at("2026-06-01T09:05:59Z"), ..fixture(short) }.node(heard_at("Unknown", LONG_AGO, LONG_AGO));
    assert_eq!(wait_of(&short), ("ReportAwaited", Some(at("2026-06-01T09:06:00Z"))));
    assert_eq!(Fixture { now: at("2026-06-01T09:06:00Z"), ..short }.steps(), condemned);
}

#[test]
fn the_time_at_which_a_machine_fails_stands_in_its_status_and_is_written_again_only_when_it_moves() {
    let description = |plan: &Plan| status_of(plan)["lastOperation"]["description"].as_str().unwrap().to_owned();
    let unwell = |machine: MachineBuilder| fixture(machine).node(synced("Unknown"));
    let becomes = lasting(unwell(linked("Running"))).plan();
    let text = description(&becomes);
    assert!(text.ends_with("; it fails at 2026-06-01T12:10:00Z"), "{text}");
    // What is known of the time does not hang on that text.
    let announced = |by: &Plan| {
        let machine = linked("Unknown").with("/status", status_of(by));
        unwell(machine.with("/status/lastOperation/description", json!("somebody else's")))
    };
    let timeout = |plan: &Plan| {
        let status = status_of(plan);
        let mut all = status["conditions"].as_array().unwrap().iter();
        all.find(|condition| condition["type"] == "HealthTimeout")
            .map(|it| (it["reason"].clone(), it["message"].clone()))
    };
    assert_eq!(timeout(&becomes), Some((json!("Unhealthy"), json!("2026-06-01T12:10:00Z"))));
    let standing = announced(&becomes);
    assert_eq!(standing.steps(), ["call Status"], "nothing is written again");
    assert_eq!(standing.plan().waits[0].until, Some(at("2026-06-01T12:10:00Z")));
    // An API server was away until now: what was reported proves nothing for six minutes.
    let outage = Fixture { since: at("2026-06-01T12:09:00Z"), now: at("2026-06-01T12:09:01Z"), ..announced(&becomes) };
    let moved = description(&outage.plan());
    assert!(moved.contains("without a new report it fails at 2026-06-01T12:15:00Z"), "{moved}");
    assert_eq!(outage.plan().events.len(), 1);
    assert_eq!(timeout(&outage.plan()), Some((json!("ReportAwaited"), json!("2026-06-01T12:15:00Z"))));
    let outage = outage.plan();
    let again = Fixture { since: at("2026-06-01T12:09:02Z"), now: at("2026-06-01T12:09:09Z"), ..announced(&outage) };
    assert_eq!(again.steps(), ["call Status"], "two seconds are no news");
    // A manager beside it, without leader election, has been connected all the time, and would say 12:10 again.
    let other = Fixture { now: at("2026-06-01T12:09:10Z"), ..announced(&outage) };
    assert_eq!(other.steps(), ["call Status"], "the two do not write in turns");
    assert_eq!(other.plan().waits[0].until, Some(at("2026-06-01T12:15:00Z")));
    // After another outage the time that its end allows is the later one, and is announced, too: the former one has passed.
    let second = Fixture { since: at("2026-06-01T12:14:50Z"), now: at("2026-06-01T12:15:10Z"), ..announced(&outage) };
    let second = timeout(&second.plan());
    assert_eq!(second, Some((json!("ReportAwaited"), json!("2026-06-01T12:20:50Z"))));
    // A status of machine-controller-manager's says nothing of it.
    let by_mcm = linked("Unknown")
        .with("/status/currentStatus", json!({"phase": "Unknown", "lastUpdateTime": NOW, "timeoutActive": true}));
    assert_eq!(description(&unwell(by_mcm).plan()).rsplit("; ").next(), text.rsplit("; ").next());
    // Once it is over, the failure says since when, and nothing is announced any more.
    let over = Fixture { now: at("2026-06-01T12:10:00Z"), ..announced(&becomes) };
    assert!(description(&over.plan()).contains("health checks failing since 2026-06-01T12:00:00Z"));
    assert_eq!(timeout(&over.plan()), None);
    let well = fixture(linked("Unknown").with("/status", status_of(&becomes))).node(synced(READY));
    assert_eq!(timeout(&well.plan()), None);
}

#[test]
fn a_machine_without_a_node_fails_once_the_api_server_has_shown_none() {
    let mut fixture = fixture(linked("Unknown").with("/status/currentStatus/lastUpdateTime", json!(LONG_AGO)));
    fixture.snapshot.unseen_node = Lookup::Pending;
    let plan = fixture.plan();
    assert_eq!((plan.waits[0].reason, plan.scoped_watches.len()), ("LookingForNode", 1));
    assert_eq!(plan.waits[0].message, "the API server is asked whether there is a node n");
    let node = serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"providerID": "p:///1"}})).unwrap();
    fixture.snapshot.unseen_node = Lookup::Found(Arc::new(node));
    assert_eq!(fixture.plan().waits[0].reason, "LookingForNode");
    assert_eq!(fixture.plan().waits[0].message, "node n is there again, and is yet to show in the cache");
    fixture.snapshot.unseen_node = Lookup::Missing;
    assert_eq!(fixture.steps(), ["status Failed"]);
}

#[test]
fn a_listed_condition_that_is_not_false_is_a_sickness() {
    let mut node = synced(READY);
    node["status"]["conditions"].as_array_mut().unwrap().push(json!({"type": "DiskPressure", "status": "Unknown"}));
    assert_eq!(lasting(fixture(linked("Running")).node(node.clone())).steps(), ["status Unknown"]);
    let own = linked("Pending").with("/spec/nodeConditions", json!("Other"));
    assert_eq!(fixture(own).node(node).steps(), ["status Running"]);
}

#[test]
fn one_machine_of_a_deployment_fails_at_a_time_in_any_order() {
    let sick = |name: &str, since: &str| {
        machine(name)
            .phase("Unknown")
            .with("/spec/providerID", json!(format!("p:///{name}")))
            .with("/status/currentStatus/lastUpdateTime", json!(since))
    };
    let set = machine_set("set", 2, Some("k7f;"));
    let scene_of = |own: MachineBuilder, others: Vec<Machine>| fixture(own).set(set.clone()).beside(others);
    let (a, b) = (|| sick("a", "2026-06-01T11:00:00Z"), || sick("b", "2026-06-01T11:01:00Z"));
    assert_eq!(scene_of(a(), vec![b().build()]).steps(), ["status Failed"]);
    let held = scene_of(b(), vec![a().build()]);
    assert_eq!(held.steps(), ["status Unknown"], "only the reason of the wait");
    assert_eq!(held.plan().waits[0].reason, "ReplacementBlocked");
    let in_progress = [
        sick("a", "2026-06-01T11:59:00Z").phase("Failed"),
        a().phase("Running").deleting(),
        machine("new").phase("Pending").created("2026-06-01T11:59:00Z"),
        machine("new").phase("").created("2026-06-01T11:59:00Z"),
    ];
    for peer in in_progress {
        assert_eq!(scene_of(b(), vec![peer.build()]).plan().waits[0].reason, "ReplacementBlocked");
    }
    assert_eq!(scene_of(b(), vec![machine("new").phase("Running").build()]).steps(), ["status Failed"]);
    for (limit, goes) in [(Limit::Percent(100), true), (Limit::Count(0), false), (Limit::Percent(0), false)] {
        let mut fixture = scene_of(b(), vec![a().build()]);
        fixture.snapshot.pool.limit = limit;
        assert_eq!(fixture.steps() == ["status Failed"], goes, "{limit:?}");
    }
}

#[test]
fn the_set_of_a_machine_shows_what_the_brake_does_with_it() {
    let sick = |name: &str, since: &str| {
        let machine = machine(name).phase("Unknown").with("/spec/providerID", json!(format!("p:///{name}")));
        machine.with("/status/currentStatus/lastUpdateTime", json!(since))
    };
    let braked = |own: MachineBuilder, level, lost_vm: bool| {
        let other = sick("a", "2026-06-01T11:00:00Z").build();
        let mut fixture = fixture(own).set(machine_set("set", 2, Some("k7f;"))).beside([other]);
        let pool = &mut fixture.snapshot.pool;
        pool.candidates.iter_mut().for_each(|candidate| candidate.has_lost_vm = lost_vm);
        pool.brake = Brake { level, cause: "so many are unhealthy".to_owned(), timeout: SignedDuration::from_hours(1) };
        let plan = fixture.plan();
        let events: Vec<_> = plan.events.iter().filter(|event| event.reason == "FleetBrake").collect();
        let set = |event: &&nodewright_runtime::events::Event| {
            event.is_warning && event.regarding.kind.as_deref() == Some("MachineSet")
        };
        assert!(events.iter().all(set), "{events:?}");
        let texts = events.iter().map(|event| event.message.clone()).collect::<Vec<_>>();
        let waits = plan.waits.first().map(|wait| wait.message.clone());
        (texts, waits, plan.wake)
    };
    let (first, second) = (|| sick("0", "2026-06-01T10:59:00Z"), || sick("b", "2026-06-01T11:01:00Z"));

    let (events, waits, wake) = braked(second(), Level::Trickle, false);
    let text = "the fleet brake holds: so many are unhealthy; until fewer are, one machine of the namespace is replaced at a time (flags \
        --fleet-brake-percent, --fleet-brake-zone-percent, --fleet-brake-timeout)";
    assert_eq!((events, waits.as_deref()), (vec![text.to_owned()], Some(text)));
    assert_eq!(wake, Some(at(NOW) + SignedDuration::from_mins(1)), "nothing else wakes it");
    let (events, waits, _) = braked(second(), Level::Off, false);
    assert!(
        events.is_empty() && waits.is_some_and(|text| !text.contains("brake")),
        "the budget holds it, and not the brake"
    );

    let (events, ..) = braked(first(), Level::Stop, false);
    let text =
        "so many are unhealthy, and that for so long that machine 0 is replaced: the fleet brake ends for it after 1h";
    assert_eq!(events, [text]);
    assert!(braked(first(), Level::Stop, true).0.is_empty(), "its VM is gone");
    assert!(braked(first(), Level::Trickle, false).0.is_empty(), "it goes in its turn");
}

#[test]
fn a_deletion_that_is_stuck_gives_its_place_back() {
    let sick = || linked("Unknown").with("/status/currentStatus/lastUpdateTime", json!("2026-06-01T11:00:00Z"));
    let held_by = |peer: MachineBuilder| {
        let fixture = fixture(sick()).set(machine_set("set", 2, Some("k7f;"))).beside([peer.build()]);
        let plan = fixture.plan();
        let is_held = plan.waits.first().is_some_and(|wait| wait.reason == "ReplacementBlocked");
        is_held.then_some(plan.wake).flatten()
    };
    let deleted = |machine: MachineBuilder, at: &str| machine.deleting().with("/metadata/deletionTimestamp", at);
    // Without a VM there is nothing to drain: only the provider has to be asked.
    assert_eq!(held_by(deleted(machine("a"), "2026-06-01T11:50:00Z")), Some(at("2026-06-01T12:05:00Z")));
    assert_eq!(held_by(deleted(machine("a"), "2026-06-01T11:45:00Z")), None);
    let with_vm = |at| deleted(machine("a").with("/spec/providerID", json!("p:///a")), at);
    assert_eq!(held_by(with_vm("2026-06-01T09:50:00Z")), Some(at("2026-06-01T12:07:00Z")));
    assert_eq!(held_by(with_vm("2026-06-01T09:43:00Z")), None);
    let short = with_vm("2026-06-01T11:45:00Z").with("/spec/drainTimeout", json!("1m"));
    assert_eq!(held_by(short), Some(at("2026-06-01T12:03:00Z")));
    let forced = with_vm("2026-06-01T11:45:00Z").label("force-deletion", "true");
    assert_eq!(held_by(forced), None);
}

#[test]
fn a_machine_that_waits_for_a_place_says_who_holds_it_and_until_when() {
    let sick = linked("Unknown").with("/status/currentStatus/lastUpdateTime", json!("2026-06-01T11:00:00Z"));
    let fixture = |others: Vec<Machine>| fixture(sick.clone()).set(machine_set("set", 2, Some("k7f;"))).beside(others);
    let stuck = machine("b").deleting().with("/metadata/deletionTimestamp", "2026-06-01T11:50:00Z");
    let coming = |name: &str| machine(name).phase("Pending").created("2026-06-01T11:55:00Z");
    let said =
        |fixture: Fixture| status_of(&fixture.plan())["lastOperation"]["description"].as_str().unwrap().to_owned();
    let text = said(fixture(vec![coming("a").build(), stuck.build()]));
    let until = |minute| format!("(until 2026-06-01T12:{minute}:00Z at the latest)");
    assert!(text.ends_with(&format!("now these are: a {}, b {}", until("05"), until("05"))), "{text}");
    let text = said(fixture(["e", "d", "c", "b", "a"].map(|name| coming(name).build()).to_vec()));
    assert!(text.ends_with(&format!("b {0}, c {0} and 2 more", until("05"))), "{text}");
}

/// The number of machine-controller-manager's defect: one stuck Machine blocks each replacement in its deployment.
#[test]
fn mcm_defect_24_one_stuck_machine_does_not_block_the_others() {
    let sick = || linked("Unknown").with("/status/currentStatus/lastUpdateTime", json!("2026-06-01T11:00:00Z"));
    let waits_until = |others: Vec<MachineBuilder>| {
        let others = others.into_iter().map(MachineBuilder::build);
        let plan = fixture(sick()).set(machine_set("set", 2, Some("k7f;"))).beside(others).plan();
        plan.waits.first().filter(|wait| wait.reason == "ReplacementBlocked").map(|_| plan.wake)
    };
    // Half of the creation timeout of 20 min, whatever it waits for: capacity, its class, its Node.
    let coming = |name: &str, at: &str| machine(name).created(at);
    let (young, old) = ("2026-06-01T11:52:00Z", "2026-06-01T11:50:00Z");
    let phases = ["", "CrashLoopBackOff", "Pending"];
    for phase in phases {
        assert_eq!(waits_until(vec![coming("a", young).phase(phase)]), Some(Some(at("2026-06-01T12:02:00Z"))));
        assert_eq!(waits_until(vec![coming("a", old).phase(phase)]), None, "{phase:?}");
    }
    let slow = coming("a", old).with("/spec/creationTimeout", json!("1h"));
    assert_eq!(waits_until(vec![slow]), Some(Some(at("2026-06-01T12:20:00Z"))));
    // Two show that replacements do not come up.
    assert_eq!(waits_until(vec![coming("a", old), coming("b", old)]), Some(None));
    let failed = |since: &str| machine("a").phase("Failed").with("/status/currentStatus/lastUpdateTime", json!(since));
    assert_eq!(waits_until(vec![failed("2026-06-01T11:46:00Z")]), Some(Some(at("2026-06-01T12:01:00Z"))));
    assert_eq!(waits_until(vec![failed("2026-06-01T11:45:00Z")]), None, "its set does not delete it");
}

#[test]
fn a_failed_machine_whose_node_is_healthy_again_runs_unless_the_node_goes() {
    let with = |change: Value| {
        let mut node = synced(READY);
        json_patch::merge(&mut node, &change);
        fixture(linked("Failed")).set(machine_set("set", 1, Some("k7f;"))).node(node)
    };
    assert_eq!(with(json!({})).steps(), ["status Running"]);
    assert!(!with(json!({"metadata": {"deletionTimestamp": NOW}})).steps().contains(&"status Running".to_owned()));
    let not_ready = fixture(linked("Failed")).set(machine_set("set", 1, Some("k7f;"))).node(synced("False"));
    assert!(not_ready.steps().is_empty(), "its set replaces it: {:?}", not_ready.steps());
}

#[test]
fn an_event_names_the_node_that_has_joined_or_is_healthy_again() {
    for (operation, message) in [("Create", "node n is ready"), ("HealthCheck", "node n is healthy again")] {
        let machine =
            linked("Pending").with("/status/lastOperation", json!({"type": operation, "state": "Processing"}));
        let joined = fixture(machine.created("2026-06-01T11:59:00Z")).node(synced(READY)).plan();
        let messages: Vec<_> = joined.events.iter().map(|event| event.message.as_str()).collect();
        assert_eq!(messages, [message]);
    }
}

#[test]
fn a_machine_that_does_not_join_in_time_is_failed() {
    let late = fixture(linked("Pending").created("2026-06-01T11:30:00Z"));
    assert_eq!(late.steps(), ["status Failed"]);
    let waiting = fixture(linked("Pending").created("2026-06-01T11:50:00Z"));
    assert!(waiting.steps().is_empty());
    assert_eq!(waiting.plan().wake, Some(at("2026-06-01T12:00:30Z")), "by then the status tells the wait");
}

/// A Machine since 11:59 without a Node, beside a Node of another VM with this name that is as old.
#[allow(clippy::needless_pass_by_value)] // a test gives its values away
fn beside_foreign_node(phase: &str, name: &str, created: &str, changes: Value) -> Fixture {
    let mut fixture = fixture(linked(phase).created("2026-06-01T11:59:00Z"));
    let mut foreign_node = json!({
        "metadata": {"name": name, "uid": "other", "resourceVersion": "3", "creationTimestamp": created},
        "spec": {"providerID": "p:///old"}, "status": {}
    });
    json_patch::merge(&mut foreign_node, &changes);
    fixture.snapshot.foreign_node = Some(Arc::new(serde_json::from_value(foreign_node).unwrap()));
    fixture
}

const OLD: &str = "2026-06-01T09:00:00Z";

#[test]
fn a_node_of_another_vm_is_not_taken_for_the_machines() {
    let going = json!({"metadata": {"deletionTimestamp": NOW}});
    let draining = json!({"status": {"conditions": [{"type": "Terminating", "status": "True"}]}});
    let waiting = [
        ("younger than the machine", beside_foreign_node("Pending", "n", "2026-06-01T11:59:30Z", json!({}))),
        ("of the same second", beside_foreign_node("Pending", "n", "2026-06-01T11:59:00Z", json!({}))),
        ("about to go", beside_foreign_node("Pending", "n", OLD, going)),
        ("drained", beside_foreign_node("Pending", "n", OLD, draining)),
        ("with the machine's own name", beside_foreign_node("Pending", "m", OLD, json!({}))),
    ];
    for (what, fixture) in waiting {
        assert!(fixture.steps().is_empty(), "{what}: {:?}", fixture.steps());
        assert!(fixture.plan().waits[0].message.contains("belongs to another VM"), "{what}");
    }
    let joined = beside_foreign_node("Running", "n", OLD, json!({}));
    assert_eq!(joined.steps(), ["status Unknown"], "it had a Node, and has time to get it back");
}

/// Machine-controller-manager's issues 633, 645 and 707.
#[test]
fn a_machine_whose_vm_comes_up_under_the_name_of_an_old_node_is_replaced_at_once() {
    let stale = beside_foreign_node("Pending", "n", OLD, json!({}));
    assert_eq!(stale.steps(), ["confirm Node n", "status Failed"]);
    let plan = stale.plan();
    assert_eq!(plan.stages.len(), 2, "one after the other");
    let text = "VM using old node obj: node n is older than machine m, and belongs to VM p:///old";
    assert_eq!(status_of(&plan)["lastOperation"]["description"], text);
}

/// A Node that was deleted so many seconds ago.
fn deleted_node(seconds_ago: i64) -> Value {
    let mut node = synced(READY);
    node["metadata"]["deletionTimestamp"] = json!((at(NOW) - SignedDuration::from_secs(seconds_ago)).to_string());
    node
}

#[test]
fn who_deletes_a_node_deletes_its_machine_once_the_server_has_confirmed_it() {
    let deleted = fixture(linked("Running")).node(deleted_node(1));
    assert_eq!(deleted.steps(), ["confirm Node n", "delete Machine default/m"]);
    let plan = deleted.plan();
    assert_eq!(plan.stages.len(), 2, "one after the other");
    let Step::ConfirmUnchanged(at) = &plan.stages[0][0].step else { panic!("{:?}", plan.stages) };
    assert_eq!(at.seen(), 7);
}

#[test]
fn machines_whose_nodes_were_deleted_at_once_go_one_after_the_other() {
    let set = || machine_set("set", 3, Some("k7f;"));
    let other = |name: &str| {
        let other = machine(name).phase("Running").with("/metadata/uid", json!(format!("uid-{name}")));
        other.with("/spec/providerID", json!(format!("p:///{name}")))
    };
    let deleted = |seconds_ago: i64, other_ago: i64, name: &str| {
        let mut fixture = fixture(linked("Running")).set(set()).node(deleted_node(seconds_ago)).beside([]);
        let without_node = vec![(Arc::new(other(name).build()), at(NOW) - SignedDuration::from_secs(other_ago))];
        fixture.snapshot.pool.add(&[], &[], &without_node, &MachineSettings::default());
        fixture
    };
    let goes = ["confirm Node n", "delete Machine default/m"];
    // The other one may have been allowed to go in this moment.
    let young = deleted(1, 1, "z");
    assert_eq!(young.steps(), ["status Running"]);
    assert_eq!(
        (young.plan().waits[0].reason, young.plan().wake),
        ("ReplacementBlocked", Some(at("2026-06-01T12:00:02Z")))
    );
    assert_eq!(deleted(3, 3, "z").steps(), goes, "the first by name of those of one second");
    assert_eq!(deleted(4, 3, "a").steps(), goes, "the first by time");
    for held in [deleted(3, 3, "a"), deleted(3, 4, "z")] {
        assert_eq!(held.steps(), ["status Running"]);
        let status = status_of(&held.plan());
        let condition = status["conditions"].as_array().unwrap().last().unwrap();
        let words = ["type", "status", "reason"].map(|field| condition[field].as_str().unwrap());
        assert_eq!(words, ["RemediationAllowed", "False", "ReplacementBlocked"]);
        assert!(condition["message"].as_str().unwrap().contains("remediation-max-in-flight"), "{condition}");
        let reported = fixture(linked("Running").with("/status", status)).set(set()).node(deleted_node(3));
        let mut again = Fixture {
            snapshot: Snapshot { pool: held.snapshot.pool.clone(), ..reported.snapshot.clone() },
            ..reported
        };
        assert!(again.steps().is_empty(), "said once");
        again.snapshot.pool = BudgetGroup::default();
        assert_eq!(again.steps(), goes);
    }
    // Nor beside one that is being replaced for another reason, and beside one that is stuck.
    let beside = |peer: MachineBuilder| {
        fixture(linked("Running")).set(set()).node(deleted_node(9)).beside([peer.build()]).steps()
    };
    assert_eq!(beside(other("a").phase("Failed")), ["status Running"]);
    assert_eq!(beside(other("a").deleting()), ["status Running"]);
    assert_eq!(beside(other("a").deleting().with("/metadata/deletionTimestamp", "2026-06-01T09:00:00Z")), goes);
    // Nor for ever beside one that another manager was about to update in place.
    for phase in ["InPlaceUpdating", "InPlaceUpdateSuccessful", "of-another"] {
        let left = |since: &str| other("a").phase(phase).with("/status/currentStatus/lastUpdateTime", json!(since));
        assert_eq!(beside(left("2026-06-01T11:50:00Z")), ["status Running"], "{phase}");
        assert_eq!(beside(left(LONG_AGO)), goes, "{phase}");
    }
}

#[test]
fn one_whose_update_in_place_failed_fails_as_an_unknown_one_is() {
    let failed = |since: &str| {
        let machine = linked("InPlaceUpdateFailed").with("/status/currentStatus/lastUpdateTime", json!(since));
        fixture(machine).node(heard_at("Unknown", LONG_AGO, "2026-06-01T11:00:00Z"))
    };
    let announced = failed("2026-06-01T11:58:00Z");
    assert!(announced.plan().waits[0].message.contains("it fails at"), "{:?}", announced.plan().waits);
    assert!(announced.plan().wake.is_some());
    assert_eq!(failed(LONG_AGO).steps(), ["confirm Node n", "status Failed"]);
    let mut without_node =
        fixture(linked("InPlaceUpdateFailed").with("/status/currentStatus/lastUpdateTime", json!(LONG_AGO)));
    without_node.snapshot.unseen_node = Lookup::Missing;
    assert_eq!(without_node.steps(), ["status Failed"]);
}

#[test]
fn a_machine_that_may_be_replaced_names_the_request_that_fails_and_not_the_budget() {
    let held = "it is replaced once fewer machines of its deployment are being replaced";
    let unwell = |status: Value| fixture(linked("Unknown").with("/status", status)).node(synced("Unknown"));
    let budget_blamed = json!({
        "currentStatus": {"phase": "Unknown", "lastUpdateTime": LONG_AGO},
        "lastOperation": {"description": held, "state": "Processing", "type": "HealthCheck"},
        "conditions": [{"type": "RemediationAllowed", "status": "False", "reason": "ReplacementBlocked", "message": held}]});
    let deleted = linked("Running").with("/status/conditions", budget_blamed["conditions"].clone());
    let failing = |mut fixture: Fixture, attempt: u32| {
        fixture.attempt = attempt;
        fixture.failure = Some(Failure::of::<Node>(
            StepVerb::Read,
            ObjectRef::new(TARGET, "", "n"),
            FailureClass::Unknown,
            "year is out of range",
        ));
        fixture
    };
    let goes = [["confirm Node n", "status Failed"], ["confirm Node n", "delete Machine default/m"]];
    let tells = [
        vec!["status Unknown", "confirm Node n"],
        vec!["status Running", "confirm Node n", "delete Machine default/m"],
    ];
    let scenes = || [unwell(budget_blamed.clone()), fixture(deleted.clone()).node(deleted_node(9))];
    for (fixture, (goes, tells)) in scenes().into_iter().zip(goes.iter().zip(&tells)) {
        let first = failing(fixture, 1);
        assert_eq!(first.steps(), *tells);
        let status = status_of(&first.plan());
        let text = status["lastOperation"]["description"].as_str().unwrap();
        assert!(text.contains("failed to read Node n: year is out of range"), "{text}");
        assert!(!status.to_string().contains("ReplacementBlocked"), "{status}");
        let reported = |mut fixture: Fixture| {
            let mut machine = (*fixture.snapshot.machine).clone();
            machine.status = serde_json::from_value(status.clone()).unwrap();
            fixture.snapshot.machine = Arc::new(machine);
            fixture
        };
        assert_eq!(reported(failing(first, 1)).steps(), *goes, "said once");
    }
    for (fixture, goes) in scenes().into_iter().zip(goes) {
        assert_eq!(failing(fixture, 2).steps(), goes, "it may have been the status that was refused");
    }
}

#[test]
fn a_machine_that_is_well_again_waits_for_no_replacement() {
    let held = json!([{"type": "RemediationAllowed", "status": "False", "reason": "ReplacementBlocked"}]);
    let well = fixture(linked("Unknown").with("/status/conditions", held)).node(synced(READY));
    let status = status_of(&well.plan());
    assert!(!status.to_string().contains("RemediationAllowed"), "{status}");
}

#[test]
fn names_the_cluster_of_its_nodes() {
    let plan = fixture(linked("Pending")).node(conditions(READY)).plan();
    let Step::Edit { at, .. } = &plan.stages[0][1].step else { panic!() };
    assert_eq!(at.key().cluster, TARGET);
}

#[test]
fn an_outage_gives_a_machine_that_is_being_created_the_time_to_join() {
    let pending = |connected: Option<&str>, now: &str| {
        let machine = linked("Pending").with("/metadata/creationTimestamp", "2026-06-01T11:00:00Z");
        Fixture { connected_since: connected.map(at), now: at(now), ..fixture(machine).node(synced("False")) }
    };
    let fails = |fixture: &Fixture| fixture.steps().contains(&"status Failed".to_owned());
    assert!(fails(&pending(None, NOW)), "there was no outage");
    assert!(fails(&pending(Some("2026-06-01T10:30:00Z"), NOW)), "it was over before the machine was made");
    let (back, later) = (Some("2026-06-01T11:57:00Z"), "2026-06-01T12:03:00Z");
    assert!(!fails(&pending(back, NOW)), "its kubelet can report for three minutes only");
    assert!(!fails(&pending(Some(NOW), NOW)), "the API server is away");
    assert_eq!(pending(back, NOW).plan().wake, Some(at(later)));
    assert!(fails(&pending(back, later)));
}
