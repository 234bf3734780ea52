#![allow(clippy::unwrap_used, clippy::panic)]

//! The log lines. A separate process: tracing caches for the whole process whether a line is enabled, and other tests
//! enable none.

mod support;

use std::sync::Arc;

use nodewright_observability::telemetry::{LogFormat, Telemetry, TelemetryConfig};
use nodewright_testing::api_server::{ApiServer, Fault, Match};
use parking_lot::Mutex;
use serde_json::{Value, json};

use self::support::{MAPS, Running, annotate, annotated, source};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Records the lines of this thread at these levels from now on.
    fn keep(&self, levels: &str) -> (Telemetry, tracing::dispatcher::DefaultGuard) {
        let config = TelemetryConfig { format: LogFormat::Json, levels: levels.into(), ..TelemetryConfig::default() };
        let writer = self.clone();
        let (telemetry, subscriber) = Telemetry::build(&config, move || writer.clone()).unwrap();
        (telemetry, tracing::dispatcher::set_default(&subscriber))
    }

    /// The lines whose message begins with `beginning`.
    fn lines(&self, beginning: &str) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().clone()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["message"].as_str().is_some_and(|message| message.starts_with(beginning))).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_logged_when_it_begins_and_not_again() {
    let log = Log::default();
    let _kept = log.keep("info");
    let server = ApiServer::new();
    source(&server, "s", 0);
    let running = Running::start(server, vec![]);
    let logged = async |annotations: Value| {
        annotate(&running.server, "s", &annotations);
        running.passes(5).await;
        let lines = std::mem::take(&mut *log.0.lock());
        let lines = Log(Arc::new(Mutex::new(lines))).lines("waiting: ");
        assert!(lines.iter().all(|line| line["spans"][0]["object"] == "default/s"), "{lines:#?}");
        lines.iter().map(|line| format!("{} {}", line["reason"], line["message"])).collect::<Vec<_>>()
    };
    assert_eq!(logged(json!({"First": "1 of 3"})).await, [r#""First" "waiting: 1 of 3""#]);
    assert!(logged(json!({"First": "2 of 3"})).await.is_empty(), "it goes on");
    assert_eq!(logged(json!({"First": "3 of 3", "Second": "x"})).await, [r#""Second" "waiting: x""#]);
    assert!(logged(json!({})).await.is_empty());
    assert_eq!(logged(json!({"First": "again"})).await, [r#""First" "waiting: again""#]);
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_execution_that_sends_nothing_is_no_trace_of_its_own() {
    let log = Log::default();
    let _kept = log.keep("debug");
    let server = ApiServer::new();
    for name in ["s", "t"] {
        source(&server, name, 0);
    }
    let running = Running::start(server, vec![]);
    running.passes(5).await;
    annotate(&running.server, "s", &json!({"copies": "0", "ask": "somebody"}));
    annotate(&running.server, "t", &json!({"copies": "0", "ask": "somebody else", "traceparent": TRACE}));
    running.until("the second call", |it| annotated(&it.server, "t", "asked").is_some()).await;
    running.until("the first call", |it| annotated(&it.server, "s", "asked").is_some()).await;
    let spans = |object: &str, why: &str| -> Vec<String> {
        let about = |line: &&Value| line["why"] == why && line["spans"][0]["object"] == object;
        let lines = log.lines("step");
        lines.iter().filter(about).map(|line| line["spans"][0]["name"].to_string()).collect()
    };
    let call = "the provider was not called yet";
    assert_eq!(spans("default/s", call), [r#""plan""#], "it belongs to no trace");
    assert_eq!(spans("default/t", call), [r#""reconcile""#]);
    assert_eq!(spans("default/s", "the note is out of date"), [r#""reconcile""#; 2], "it sends a request");
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn each_line_says_what_it_is_about() {
    let log = Log::default();
    let _kept = log.keep("debug");
    let server = ApiServer::new();
    source(&server, "s", 1);
    annotate(&server, "s", &json!({"ask": "panics", "traceparent": TRACE}));
    let owner = json!([{"apiVersion": "v1", "kind": "Fleet", "name": "f", "uid": "uid-f", "controller": true}]);
    server.change(&format!("{MAPS}/s"), |map| map["metadata"]["ownerReferences"] = owner);
    server.fail_next(Match::verb("patch").path("s-0"), Fault::Status(403));
    let running = Running::start(server, vec![]);
    running.until("its outcome", |it| annotated(&it.server, "s", "asked").is_some()).await;
    for message in ["step", "a step was refused", "a call panicked", "a call ended"] {
        let lines = log.lines(message);
        let mut about = lines.iter().map(|line| &line["spans"][0]);
        let span = about.find(|span| span["object"] == "default/s").unwrap_or_else(|| panic!("{message}: {lines:#?}"));
        let fields = [&span["controller"], &span["owner"], &span["trace_id"]];
        assert_eq!(fields, ["copies", "Fleet/f", "0af7651916cd43dd8448eb211c80319c"], "{message}");
    }
    let strays = running.writes().into_iter().filter(|request| request.traceparent.as_deref() != Some(TRACE));
    assert_eq!(strays.count(), 0, "each request has a span");
    running.end().await;
}

/// Plans, calls, snapshots and listeners that panic say `as planned`; a message of a panic may quote a secret.
#[tokio::test(start_paused = true)]
async fn no_line_quotes_what_a_panic_said() {
    let log = Log::default();
    let _kept = log.keep("trace");
    let server = ApiServer::new();
    for (name, panics) in
        [("call", "ask"), ("plan", "panic"), ("snapshot", "panic-observe"), ("listener", "panic-listen")]
    {
        source(&server, name, 1);
        annotate(&server, name, &json!({panics: "panics"}));
    }
    let running = Running::start(server, vec![]);
    running.until("the outcome of the call", |it| annotated(&it.server, "call", "asked").is_some()).await;
    running.passes(1).await;
    for message in ["a call panicked", "the plan panicked", "the handler of a change panicked"] {
        assert!(!log.lines(message).is_empty(), "{message}");
    }
    let text = String::from_utf8(log.0.lock().clone()).unwrap();
    let quoting = text.lines().find(|line| line.contains("as planned"));
    assert_eq!(quoting, None);
    running.end().await;
}
