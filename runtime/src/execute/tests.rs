//! Steps against the in-process API server.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::core::Status;
use serde::Serialize;

use super::*;
use crate::testing::HOME;
use crate::{apply_configuration::ApplyConfiguration, leadership::Leadership, plan::Plan};
use nodewright_observability::metrics::Metrics;
use nodewright_testing::api_server::{ApiServer, Fault, Match, RequestRecord};

const PODS: &str = "/api/v1/namespaces/default/pods";
const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[derive(Clone, PartialEq, Serialize)]
struct Labels {
    metadata: LabelsMeta,
}

#[derive(Clone, PartialEq, Serialize)]
struct LabelsMeta {
    labels: BTreeMap<String, String>,
}

impl ApplyConfiguration for Labels {
    type Of = Pod;
    fn extract(live: &Pod) -> Self {
        Self { metadata: LabelsMeta { labels: live.metadata.labels.clone().unwrap_or_default() } }
    }
}

#[derive(Clone, PartialEq, Serialize)]
struct Phase {
    status: PhaseStatus,
}

#[derive(Clone, PartialEq, Serialize)]
struct PhaseStatus {
    phase: Option<String>,
}

impl ApplyConfiguration for Phase {
    type Of = Pod;
    const SUBRESOURCE: &'static str = STATUS;
    fn extract(live: &Pod) -> Self {
        Self { status: PhaseStatus { phase: live.status.as_ref().and_then(|status| status.phase.clone()) } }
    }
}

/// An apply to an existing Pod.
fn apply(live: &Pod) -> Step<()> {
    Step::apply(HOME, live, labels()).unwrap()
}

fn apply_if_unchanged(live: &Pod) -> Step<()> {
    Step::apply_if_unchanged(HOME, live, labels()).unwrap()
}

fn labels() -> Labels {
    Labels { metadata: LabelsMeta { labels: BTreeMap::from([("by".to_owned(), "us".to_owned())]) } }
}

fn apply_status(live: &Pod) -> Step<()> {
    Step::apply(HOME, live, Phase { status: PhaseStatus { phase: Some("Failed".into()) } }).unwrap()
}

fn edit(live: &Pod) -> Step<()> {
    let patch = json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]);
    Step::edit(HOME, live, serde_json::from_value(patch).unwrap()).unwrap()
}

fn confirm(live: &Pod) -> Step<()> {
    Step::confirm(HOME, live)
}

fn confirm_unchanged(live: &Pod) -> Step<()> {
    Step::confirm_unchanged(HOME, live)
}

fn delete(live: &Pod) -> Step<()> {
    Step::delete(HOME, live)
}

fn delete_pinned(live: &Pod) -> Step<()> {
    let mut plan = <Plan<_>>::idle();
    plan.then("as planned", delete(live)).pin_deletions();
    plan.stages.remove(0).remove(0).step
}

fn delete_now(live: &Pod) -> Step<()> {
    Step::DeleteNow(Target::of(HOME, live))
}

fn evict(live: &Pod) -> Step<()> {
    Step::Evict(Target::of(HOME, live))
}

fn create(name: &str) -> Step<()> {
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": name, "namespace": "default"}})).unwrap();
    Step::create(HOME, &pod).unwrap()
}

fn seed(server: &ApiServer) -> Pod {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "status": {"phase": "Running"}});
    serde_json::from_value(server.seed(PODS, pod)).unwrap()
}

async fn execute(server: &ApiServer, leadership: Leadership, stages: Vec<Vec<Step<()>>>) -> Execution {
    execute_again(server, leadership, 0, stages).await
}

fn executor(server: &ApiServer, leadership: Leadership) -> Executor {
    let metrics = Arc::new(Metrics::new());
    let connection = Connection::new(server.client(), agent("test/1", "test"), leadership, 100, metrics);
    Executor { connections: Arc::new([(HOME, connection)].into()), manager: "test".into() }
}

fn planned(step: Step<()>) -> Planned<()> {
    Planned { why: "as planned".into(), step }
}

/// Runs with this number of failed runs before.
async fn execute_again(
    server: &ApiServer,
    leadership: Leadership,
    attempt: u32,
    stages: Vec<Vec<Step<()>>>,
) -> Execution {
    let executor = executor(server, leadership);
    let stages: Vec<Vec<_>> = stages.into_iter().map(|stage| stage.into_iter().map(planned).collect()).collect();
    let sending = RequestContext { traceparent: TRACE.parse().ok(), ..RequestContext::default() };
    executor.run(&stages, attempt, &sending, |()| {}, &|| false).await
}

async fn execute_one(server: &ApiServer, step: Step<()>) -> Execution {
    execute(server, Leadership::unlimited(), vec![vec![step]]).await
}

/// The class of the failure: `None` if the steps succeeded.
fn class(execution: &Execution) -> Option<FailureClass> {
    let refused = execution.refused.first().map(|(_, error)| error.class);
    execution.failure.as_ref().map(|failure| failure.class).or(refused)
}

#[tokio::test]
async fn only_an_edit_that_does_not_fit_is_a_conflict() {
    let server = ApiServer::new();
    let live = seed(&server);
    let refused = || Status::failure("Pod \"a\" is invalid: metadata.labels: Too long", "Invalid").with_code(422);
    let invalid = serde_json::from_value(json!({"kind": "Pod", "name": "a"})).unwrap();
    // An answer of the API server itself, and one of a webhook.
    for refusal in [refused().with_details(invalid), refused()] {
        server.fail_next(Match::verb("patch"), Fault::Refuse(Box::new(refusal)));
        let execution = execute_one(&server, edit(&live)).await;
        assert_eq!(class(&execution), Some(FailureClass::Invalid));
        assert_eq!(execution.unsure, []);
    }
    assert_eq!(class(&execute_one(&server, edit(&live)).await), None);
}

#[tokio::test]
async fn what_a_step_rests_on_stands_in_its_request() {
    let server = ApiServer::new();
    let live = seed(&server);
    let (uid, version) = (live.metadata.uid.clone(), live.metadata.resource_version.clone());
    server.fail_always(Match::any(), Fault::Status(500));
    let both = json!({"uid": uid, "resourceVersion": version});
    let under_uid = json!({"uid": uid, "resourceVersion": null});
    let sent = |body: &Value| json!({"uid": body["uid"], "resourceVersion": body["resourceVersion"]});
    let cases: [(Step<()>, &str, &Value); 9] = [
        (apply(&live), "/metadata", &under_uid),
        (apply_if_unchanged(&live), "/metadata", &both),
        (apply_status(&live), "/metadata", &both),
        (delete(&live), "/preconditions", &under_uid),
        (delete_now(&live), "/preconditions", &under_uid),
        (delete_pinned(&live), "/preconditions", &both),
        (evict(&live), "/deleteOptions/preconditions", &under_uid),
        (create("b"), "/metadata", &json!({"uid": null, "resourceVersion": "1"})),
        (edit(&live), "/0", &json!({"uid": null, "resourceVersion": null})),
    ];
    for (step, place, expected) in cases {
        execute_one(&server, step.clone()).await;
        let request = server.take_requests().remove(0);
        let RequestRecord { body: Some(body), traceparent, user_agent, .. } = &request else { panic!("{request:?}") };
        assert_eq!(sent(body.pointer(place).unwrap()), *expected, "{step:?}");
        assert_eq!((traceparent.as_deref(), user_agent.as_str()), (Some(TRACE), "test/1 (test)"));
        if let Step::Edit { .. } = step {
            assert_eq!(body[0], json!({"op": "test", "path": "/metadata/uid", "value": uid}));
        }
    }
}

/// Of the answer to an apply the written fields are read as well.
#[tokio::test]
async fn only_an_apply_asks_for_more_than_the_version() {
    type Make = fn(&Pod) -> Step<()>;
    let cases: [(Make, bool); 5] =
        [(|_| create("b"), false), (edit, false), (apply, true), (apply_status, true), (delete, false)];
    for (step, is_whole) in cases {
        let server = ApiServer::new();
        let step = step(&seed(&server));
        let execution = execute_one(&server, step.clone()).await;
        let request = server.take_requests().remove(0);
        assert_eq!(request.accept.contains("as=PartialObjectMetadata"), !is_whole, "{step:?}");
        assert!(execution.failure.is_none() && execution.barriers.len() == 1, "{step:?}: {execution:?}");
    }
}

#[tokio::test]
async fn a_namesake_is_left_alone() {
    let all = [
        apply,
        apply_if_unchanged,
        apply_status,
        edit,
        confirm,
        confirm_unchanged,
        delete,
        delete_now,
        delete_pinned,
        evict,
    ];
    for step in all {
        let server = ApiServer::new();
        let live = seed(&server);
        server.remove(&format!("{PODS}/a"));
        seed(&server);
        let before = server.object(&format!("{PODS}/a"));
        let step = step(&live);
        let execution = execute_one(&server, step.clone()).await;
        assert_eq!(class(&execution), Some(FailureClass::Conflict), "{step:?}");
        assert_eq!(server.object(&format!("{PODS}/a")), before, "{step:?}");
        let refused = matches!(step, Step::Evict(_));
        assert!(refused || execution.unsure.len() == 1, "what is there has yet to be read");
    }
}

#[tokio::test]
async fn what_was_changed_meanwhile_is_left_alone_by_those_that_rest_on_all_of_it() {
    let if_unchanged: [fn(&Pod) -> Step<()>; 4] = [apply_if_unchanged, apply_status, confirm_unchanged, delete_pinned];
    let free: [fn(&Pod) -> Step<()>; 4] = [apply, edit, delete, evict];
    for (step, expected) in
        if_unchanged.map(|step| (step, Some(FailureClass::Conflict))).into_iter().chain(free.map(|step| (step, None)))
    {
        let server = ApiServer::new();
        let live = seed(&server);
        server.change(&format!("{PODS}/a"), |pod| pod["metadata"]["annotations"] = json!({"by": "somebody"}));
        let before = server.object(&format!("{PODS}/a"));
        let step = step(&live);
        assert_eq!(class(&execute_one(&server, step.clone()).await), expected, "{step:?}");
        assert_eq!(server.object(&format!("{PODS}/a")) == before, expected.is_some(), "{step:?}");
    }
}

/// Some existing objects cannot be patched by the API server itself: for example with a time in the year 10000.
#[tokio::test]
async fn what_cannot_be_patched_can_be_confirmed() {
    for step in [confirm, confirm_unchanged] {
        let server = ApiServer::new();
        let live = seed(&server);
        server.fail_always(Match::verb("patch"), Fault::Status(500));
        let execution = execute(&server, Leadership::unlimited(), vec![vec![step(&live)], vec![delete(&live)]]).await;
        assert_eq!((class(&execution), server.objects(PODS).len()), (None, 0));
    }
}

#[tokio::test]
async fn a_plan_ends_where_what_it_confirms_is_otherwise() {
    let changes = [
        ("changed", json!({"metadata": {"labels": {"by": "somebody"}}})),
        ("going", json!({"metadata": {"deletionTimestamp": "2026-06-01T12:00:00Z"}})),
        ("gone", Value::Null),
    ];
    let all = [confirm, confirm_unchanged].into_iter().enumerate();
    for (number, step) in all {
        for (what, change) in &changes {
            let server = ApiServer::new();
            let live = seed(&server);
            match change {
                Value::Null => server.remove(&format!("{PODS}/a")),
                change => server.change(&format!("{PODS}/a"), |pod| json_patch::merge(pod, change)),
            };
            let execution = execute(&server, Leadership::unlimited(), vec![vec![step(&live)], vec![create("b")]]).await;
            let goes_on = (number, *what) == (0, "changed");
            assert_eq!(class(&execution).is_none(), goes_on, "{what}: {:?}", step(&live));
            assert!(goes_on || class(&execution) == Some(FailureClass::Conflict));
            assert_eq!(server.object(&format!("{PODS}/b")).is_some(), goes_on);
            assert_eq!(execution.unsure.is_empty(), goes_on, "what is there has yet to be seen");
        }
    }
}

#[test]
fn each_step_of_a_stage_comes_first_in_time() {
    for steps in 0..=100_usize {
        let attempts = u32::try_from(steps).unwrap();
        let firsts: BTreeSet<_> = (0..attempts).map(|attempt| first_step(attempt, steps)).collect();
        assert_eq!(firsts, (0..steps).collect(), "{steps} steps");
    }
    assert_eq!((first_step(0, 20), first_step(1, 20)), (0, 9), "those that failed are not tried first again");
}

#[tokio::test]
async fn a_read_that_fails_leaves_nothing_to_find_out() {
    let server = ApiServer::new();
    let live = seed(&server);
    server.fail_next(Match::verb("get"), Fault::Status(500));
    let execution = execute_one(&server, confirm_unchanged(&live)).await;
    assert_eq!((class(&execution), execution.unsure.len()), (Some(FailureClass::Unknown), 0));
    let request = server.take_requests().remove(0);
    assert_eq!((request.verb, request.traceparent.as_deref()), ("get", Some(TRACE)));
}

#[tokio::test(start_paused = true)]
async fn a_stage_begins_with_one_step_and_doubles() {
    let server = ApiServer::new();
    let stage = || vec![(0..10).map(|n| create(&format!("pod-{n}"))).collect()];
    server.fail_always(Match::any(), Fault::Status(500));
    execute(&server, Leadership::unlimited(), stage()).await;
    assert_eq!(server.take_requests().len(), 1, "what one meets, all meet");
    server.heal();
    server.fail_always(Match::any(), Fault::Delay(Duration::from_secs(1)));
    let begun = Instant::now();
    let under_way = execute(&server, Leadership::unlimited(), stage());
    tokio::pin!(under_way);
    let mut sent = vec![];
    for _ in 0..4 {
        let _ = tokio::time::timeout(Duration::from_secs(1), &mut under_way).await;
        sent.push(server.take_requests().len());
    }
    assert_eq!((sent, begun.elapsed().as_secs()), (vec![1, 2, 4, 3], 4));
}

#[tokio::test(start_paused = true)]
async fn no_step_follows_the_end_of_leadership() {
    for stages in [vec![vec![create("a"), create("b")]], vec![vec![create("a")], vec![create("b")]]] {
        let server = ApiServer::new();
        let leadership = Leadership::unlimited();
        server.fail_always(Match::any(), Fault::Delay(Duration::from_secs(5)));
        let under_way = tokio::spawn({
            let (server, leadership) = (server.clone(), leadership.clone());
            async move { execute(&server, leadership, stages).await }
        });
        tokio::time::sleep(Duration::from_secs(3)).await;
        leadership.end();
        assert_eq!(class(&under_way.await.unwrap()), Some(FailureClass::Expired));
        assert_eq!(server.requests().len(), 1, "the one that was under way");
    }
}

/// Refuses every creation of these names, as an admission webhook does.
fn refuse(server: &ApiServer, names: impl Fn(&str) -> bool + Send + 'static) {
    server.decide(move |request| {
        let name = request.path.rsplit('/').next().unwrap_or_default();
        let denied = Status::failure("admission webhook denied the request", "Forbidden").with_code(403);
        (request.verb == "patch" && names(name)).then(|| Fault::Refuse(Box::new(denied)))
    });
}

#[tokio::test]
async fn a_name_that_is_refused_for_good_does_not_block_its_siblings() {
    let server = ApiServer::new();
    refuse(&server, |name| name == "pod-00");
    let steps = || (0..20).map(|n| create(&format!("pod-{n:02}"))).collect::<Vec<_>>();
    let execution = execute(&server, Leadership::unlimited(), vec![steps(), vec![create("rests-on-them")]]).await;
    assert_eq!(class(&execution), Some(FailureClass::Forbidden), "it is reported");
    assert_eq!(server.objects(PODS).len(), 19, "and the next stage is not begun");
}

#[tokio::test]
async fn who_refuses_all_is_asked_eight_times_and_the_next_run_begins_elsewhere() {
    let server = ApiServer::new();
    refuse(&server, |name| name < "pod-12");
    let steps = || (0..20).map(|n| create(&format!("pod-{n:02}"))).collect::<Vec<_>>();
    execute_again(&server, Leadership::unlimited(), 0, vec![steps()]).await;
    assert_eq!((server.take_requests().len(), server.objects(PODS).len()), (8, 0));
    execute_again(&server, Leadership::unlimited(), 1, vec![steps()]).await;
    assert_eq!(server.objects(PODS).len(), 8, "those from the twelfth on");
}

#[tokio::test]
async fn an_outdated_plan_sends_nothing_after_the_batch_that_is_on_its_way() {
    let server = ApiServer::new();
    let executor = executor(&server, Leadership::unlimited());
    let stage = |prefix: &str| (0..20).map(|n| planned(create(&format!("{prefix}-{n:02}")))).collect();
    let is_outdated = || server.objects(PODS).len() >= 3;
    let stages = [stage("a"), stage("b")];
    let execution = executor.run(&stages, 0, &RequestContext::default(), |()| {}, &is_outdated).await;
    assert!(execution.is_cut_short && execution.failure.is_none());
    assert_eq!(server.objects(PODS).len(), 3, "batches of one and two");
    let stages = [stage("c"), stage("d")];
    executor.run(&stages, 0, &RequestContext::default(), |()| {}, &is_outdated).await;
    assert_eq!(server.objects(PODS).len(), 4, "the first step is sent in any case, so that each plan makes progress");
}

#[tokio::test]
async fn a_failure_that_meets_every_request_ends_the_stage() {
    for fault in [Fault::Status(503), Fault::Status(401), Fault::Unreachable, Fault::too_many_requests("busy", 1)] {
        let server = ApiServer::new();
        server.fail_next(Match::any(), fault);
        let steps = (0..20).map(|n| create(&format!("pod-{n:02}"))).collect();
        execute(&server, Leadership::unlimited(), vec![steps]).await;
        assert_eq!(server.requests().len(), 1);
    }
}

/// Evicts Pods with the plan of one object.
async fn drain(executor: &Executor, object: &str, pods: &[Pod]) {
    let stage: Vec<_> = pods.iter().map(|pod| Planned { why: "as planned".into(), step: evict(pod) }).collect();
    let sending = RequestContext { object: Flow::of(object), ..RequestContext::default() };
    executor.run(&[stage], 0, &sending, |()| {}, &|| false).await;
}

#[tokio::test(start_paused = true)]
async fn evictions_of_several_objects_take_turns_and_leave_room_for_other_requests() {
    let server = ApiServer::new();
    let pods = ["a", "b"].map(|node| {
        let name = |number: u32| format!("{node}-{number}");
        let pod = |number| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name(number)}});
        (0..7).map(|number| serde_json::from_value(server.seed(PODS, pod(number))).unwrap()).collect::<Vec<Pod>>()
    });
    let other = seed(&server);
    server.take_requests();
    server.fail_always(Match::verb("create").path_end("/eviction"), Fault::Delay(Duration::from_secs(10)));
    let metrics = Arc::new(Metrics::new());
    let mut connection = Connection::new(server.client(), agent("test/1", "test"), Leadership::unlimited(), 2, metrics);
    connection.evictions = crate::fair::FairSemaphore::new(1, None);
    let executor = Executor { connections: Arc::new([(HOME, connection)].into()), manager: "test".into() };
    let edits = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let planned = Planned { why: "as planned".into(), step: edit(&other) };
        executor.run(&[vec![planned]], 0, &RequestContext::default(), |()| {}, &|| false).await;
        server.requests().len()
    };
    let (sent, (), ()) = tokio::join!(edits, drain(&executor, "a", &pods[0]), drain(&executor, "b", &pods[1]));
    assert_eq!(sent, 2, "the edit waits for no eviction but the first, which is in progress");
    let requests = server.requests();
    let evictions = requests.iter().filter(|request| request.path.ends_with("/eviction"));
    let nodes: String = evictions.filter_map(|request| request.path.split("/pods/").nth(1)?.chars().next()).collect();
    assert_eq!(nodes.len(), 14);
    // Batches grow, so that one object asks for four evictions at once while the other one asks for two.
    assert!(!nodes.contains("aaa") && !nodes.contains("bbb"), "{nodes}");
}
