#![allow(clippy::unwrap_used, clippy::panic)]

//! What the log says. A process of its own: whether a line is wanted is remembered for the whole process, and tests beside
//! this one want none.

mod support;

use std::sync::Arc;

use nodewright_runtime::{
    telemetry::{LogFormat, Telemetry, TelemetryConfig},
    testing::api_server::{ApiServer, Fault, Match},
};
use parking_lot::Mutex;
use serde_json::json;

use self::support::{MAPS, Running, annotate, annotated, source};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A log that can be read again.
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

#[tokio::test(start_paused = true)]
async fn each_line_says_what_it_is_about() {
    let log = Log::default();
    let writer = log.clone();
    let config = TelemetryConfig { format: LogFormat::Json, levels: "debug".into(), ..TelemetryConfig::default() };
    let (_telemetry, subscriber) = Telemetry::build(&config, move || writer.clone()).unwrap();
    let _guard = tracing::dispatcher::set_default(&subscriber);
    let server = ApiServer::new();
    source(&server, "s", 1);
    annotate(&server, "s", &json!({"ask": "panics", "traceparent": TRACE}));
    let owner = json!([{"apiVersion": "v1", "kind": "Fleet", "name": "f", "uid": "uid-f", "controller": true}]);
    server.change(&format!("{MAPS}/s"), |map| map["metadata"]["ownerReferences"] = owner);
    server.fail_next(Match::verb("patch").path("s-0"), Fault::Status(403));
    let running = Running::start(server, vec![]);
    running.until("its outcome", |it| annotated(&it.server, "s", "asked").is_some()).await;
    let text = String::from_utf8(log.0.lock().clone()).unwrap();
    for message in ["step", "a step was refused", "a call panicked", "a call ended"] {
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let mut about = lines.filter(|line| line["message"] == message).map(|line| line["spans"][0].clone());
        let span = about.find(|span| span["object"] == "default/s").unwrap_or_else(|| panic!("{message} in {text}"));
        let said = [&span["controller"], &span["owner"], &span["trace_id"]];
        assert_eq!(said, ["copies", "Fleet/f", "0af7651916cd43dd8448eb211c80319c"], "{message}");
    }
    running.end().await;
}
