//! The recorder against the in-process API server.

use std::fmt::{Debug, Write as _};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::sleep;

use super::*;
use crate::leadership::tokio_clock;
use nodewright_testing::api_server::{ApiServer, Fault, Match};

const EVENTS: &str = "/api/v1/namespaces/shoot/events";

struct Bench {
    server: ApiServer,
    recorder: Recorder,
    drain: BoxFuture<'static, ()>,
    metrics: Arc<Metrics>,
}

fn bench() -> Bench {
    let (server, metrics) = (ApiServer::new(), Arc::new(Metrics::new()));
    let (recorder, drain) = start(&server, &metrics);
    Bench { server, recorder, drain, metrics }
}

fn start(server: &ApiServer, metrics: &Arc<Metrics>) -> (Recorder, BoxFuture<'static, ()>) {
    let clock = tokio_clock("2026-11-20T10:00:00Z".parse().unwrap());
    let agent = HeaderValue::from_static("nodewright/0.1.0 (events)");
    Recorder::start(server.client(), "nodewright", agent, metrics.clone(), clock)
}

fn created(message: &str) -> Event {
    let regarding = ObjectReference {
        api_version: Some("machine.sapcloud.io/v1alpha1".into()),
        kind: Some("Machine".into()),
        namespace: Some("shoot".into()),
        name: Some("machine-a".into()),
        uid: Some("uid-1".into()),
        ..ObjectReference::default()
    };
    Event::normal(regarding, "MachineCreated", message)
}

fn count(event: &Value) -> i64 {
    event["count"].as_i64().unwrap()
}

/// A log of the messages of level `info`.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::INFO
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn Debug| {
            write!(text, "{field}={value:?} ").unwrap();
        });
        self.0.lock().push(text);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn an_event_goes_to_the_cluster_of_its_object_and_to_the_log_if_it_asks_for_that() {
    let (home, other) = (bench(), bench());
    let cluster = Cluster::new("other");
    let recorder = home.recorder.clone().serving(cluster, &other.recorder);
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || {
        recorder.publish(created("here"));
        recorder.publish(created("there").of(cluster).logged());
        recorder.publish(created("unknown").of(Cluster::new("unknown")));
    });
    sleep(Duration::from_secs(1)).await;
    let messages = |bench: &Bench| -> Vec<_> {
        bench.server.objects(EVENTS).iter().map(|event| event["message"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(messages(&other), ["there"]);
    let mut at_home = messages(&home);
    at_home.sort();
    assert_eq!(at_home, ["here", "unknown"]);
    assert_eq!(*log.0.lock(), ["message=there reason=\"MachineCreated\" "]);
}

#[tokio::test(start_paused = true)]
async fn an_event_is_created_and_repeated() {
    let Bench { server, recorder, drain: _drain, .. } = bench();
    recorder.publish(created("VM is there"));
    sleep(Duration::from_mins(1)).await;
    recorder.named("machine", HeaderValue::from_static("nodewright/0.1.0 (machine)")).publish(created("VM is there"));
    sleep(Duration::from_secs(1)).await;
    let [event] = &server.objects(EVENTS)[..] else { panic!() };
    assert_eq!(count(event), 2);
    assert_eq!((&event["type"], &event["reason"]), (&"Normal".into(), &"MachineCreated".into()));
    assert_eq!(event["involvedObject"]["uid"], "uid-1");
    assert_eq!(event["source"]["component"], "nodewright");
    assert_eq!(event["firstTimestamp"], "2026-11-20T10:00:00Z");
    assert_eq!(event["lastTimestamp"], "2026-11-20T10:01:00Z");
    let agents: Vec<_> = server.requests().into_iter().map(|request| (request.verb, request.user_agent)).collect();
    let expected = [("create", "nodewright/0.1.0 (events)"), ("patch", "nodewright/0.1.0 (machine)")];
    assert_eq!(agents, expected.map(|(verb, agent)| (verb, agent.to_owned())));
}

#[tokio::test(start_paused = true)]
async fn a_restart_goes_on_counting() {
    let Bench { server, recorder, drain, metrics } = bench();
    recorder.publish(created("VM is there"));
    recorder.publish(created("VM is there"));
    drain.await;
    let (recorder, drain) = start(&server, &metrics);
    recorder.publish(created("VM is there"));
    recorder.publish(created("VM is there"));
    drain.await;
    let [event] = &server.objects(EVENTS)[..] else { panic!() };
    assert_eq!(count(event), 4);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_was_deleted_is_created_again() {
    let Bench { server, recorder, drain: _drain, .. } = bench();
    recorder.publish(created("VM is there"));
    sleep(Duration::from_secs(1)).await;
    let name = server.objects(EVENTS)[0]["metadata"]["name"].as_str().unwrap().to_owned();
    server.remove(&format!("{EVENTS}/{name}")).unwrap();
    recorder.publish(created("VM is there"));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(count(&server.objects(EVENTS)[0]), 1);
    recorder.publish(created("VM is there"));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(count(&server.objects(EVENTS)[0]), 2);
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_is_bridged_and_a_refusal_is_not_repeated() {
    let Bench { server, recorder, drain: _drain, metrics } = bench();
    server.fail_times(2, Match::verb("create"), Fault::Status(503));
    recorder.publish(created("one"));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(server.objects(EVENTS).len(), 1);
    server.take_requests();
    server.fail_next(Match::verb("create"), Fault::Status(403));
    recorder.publish(created("two"));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(server.requests().len(), 1);
    let text = metrics.encode().unwrap();
    assert!(text.contains(r#"events_total{result="sent"} 1"#), "{text}");
    assert!(text.contains(r#"events_total{result="refused"} 1"#), "{text}");
    recorder.publish(created("two"));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(server.objects(EVENTS).len(), 2, "what was refused is new again");
}

#[tokio::test(start_paused = true)]
async fn publishing_never_waits_and_the_overflow_is_dropped() {
    let Bench { server, recorder, drain, metrics } = bench();
    server.fail_always(Match::any(), Fault::Hang);
    for turn in 0..1_500 {
        recorder.publish(created(&turn.to_string()));
    }
    let text = metrics.encode().unwrap();
    assert!(text.contains(r#"events_total{result="dropped"} 500"#), "{text}");
    let begun = tokio::time::Instant::now();
    drain.await;
    assert!(begun.elapsed() <= DRAIN_TIMEOUT);
    recorder.publish(created("after the end"));
}

#[tokio::test(start_paused = true)]
async fn what_waits_when_leadership_ends_is_dropped() {
    let Bench { server, recorder, drain, .. } = bench();
    let leadership = Leadership::unlimited();
    let within = recorder.within(leadership.clone());
    server.fail_next(Match::verb("create"), Fault::Delay(Duration::from_secs(2)));
    within.publish(created("one"));
    within.publish(created("two"));
    sleep(Duration::from_secs(1)).await;
    leadership.end();
    within.publish(created("three"));
    recorder.publish(created("four"));
    sleep(Duration::from_mins(1)).await;
    drain.await;
    let messages: Vec<_> = server.objects(EVENTS).iter().map(|event| event["message"].clone()).collect();
    let is = |text: &str| messages.iter().any(|message| message == text);
    assert_eq!((is("one"), is("four"), messages.len()), (true, true, 2), "{messages:?}");
}

#[tokio::test(start_paused = true)]
async fn of_a_long_message_beginning_and_end_are_kept() {
    let Bench { server, recorder, drain, .. } = bench();
    recorder.publish(created(&format!("failed to patch {}: the cause", "ä".repeat(3_000))));
    drain.await;
    let [event] = &server.objects(EVENTS)[..] else { panic!() };
    let message = event["message"].as_str().unwrap();
    assert!(message.starts_with("failed to patch ä") && message.ends_with("ä: the cause"), "{message}");
    assert!((1_000..=1_024).contains(&message.len()), "{}", message.len());
}

#[tokio::test]
async fn a_discarding_recorder_sends_nothing() {
    Recorder::discarding().publish(created("VM is there"));
}
