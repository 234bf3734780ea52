//! A port from a client's point of view.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use http::StatusCode;
use nodewright_observability::telemetry::{Telemetry, TelemetryConfig};
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::ServiceExt;

use crate::connection::Peer;
use crate::endpoints::{Endpoints, OTHERS, leave_room};
use crate::limits::Limits;
use crate::server::Server;

struct Running {
    address: SocketAddr,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

async fn serve(router: Router) -> Running {
    let server = Server::bind(SocketAddr::from(([127, 0, 0, 1], 0)), "--port").await.unwrap();
    let (address, stop) = (server.address(), CancellationToken::new());
    let task = tokio::spawn(server.serve(None, router, stop.clone()));
    Running { address, stop, task }
}

async fn fetch(address: SocketAddr, path: &str) -> (u16, String) {
    let (head, body) = exchange(address, path, "").await;
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
}

/// Sends a request with more headers, each with its end of line, and returns the head and the body of the answer.
async fn exchange(address: SocketAddr, path: &str, headers: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[tokio::test]
async fn checks_are_answered_as_kubernetes_does() {
    let endpoints = Endpoints::default();
    let synced = Arc::new(AtomicBool::new(false));
    endpoints.ready.add("informer-sync", {
        let synced = synced.clone();
        move || synced.load(Ordering::SeqCst).then_some(()).ok_or("not yet".to_owned())
    });
    endpoints.ready.add("api-server", || Err("no answer for 30s".to_owned()));
    endpoints.health.add("ping", || Ok(()));
    let checks = endpoints.ready.clone();
    let Running { address, .. } = serve(endpoints.router()).await;
    let not_ready = "[-]informer-sync failed: not yet\n[-]api-server failed: no answer for 30s\nreadyz check failed\n";
    assert_eq!(fetch(address, "/readyz").await, (500, not_ready.to_owned()));
    assert_eq!(fetch(address, "/healthz").await, (200, "ok".to_owned()));
    assert_eq!(fetch(address, "/livez?verbose").await, (200, "[+]ping ok\nlivez check passed\n".to_owned()));
    synced.store(true, Ordering::SeqCst);
    assert_eq!(fetch(address, "/readyz?exclude=api-server").await, (200, "ok".to_owned()));
    assert_eq!(fetch(address, "/readyz/informer-sync").await, (200, "ok".to_owned()));
    assert_eq!(fetch(address, "/readyz/unknown").await.0, 404);
    assert_eq!(fetch(address, "/readyz/api-server").await.0, 500);
    checks.add("api-server", || Ok(()));
    assert_eq!(fetch(address, "/readyz").await, (200, "ok".to_owned()));
}

#[tokio::test]
async fn metrics_are_served_as_openmetrics_to_those_who_ask_for_it() {
    let endpoints = Endpoints::default();
    endpoints.metrics.reconcile_panicked("machine");
    let Running { address, .. } = serve(endpoints.router()).await;
    for (headers, content_type, is_openmetrics) in [
        ("", "text/plain; version=0.0.4; charset=utf-8", false),
        ("Accept: */*\r\n", "text/plain; version=0.0.4; charset=utf-8", false),
        (
            "Accept: text/plain;q=0.2\r\nAccept: application/openmetrics-text;version=1.0.0;q=0.5\r\n",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            true,
        ),
    ] {
        let (head, body) = exchange(address, "/metrics", headers).await;
        assert!(head.contains(&format!("content-type: {content_type}\r\n")), "{headers}: {head}");
        assert_eq!(body.ends_with("# EOF\n"), is_openmetrics, "{headers}");
        let family = if is_openmetrics { "reconcile_panics" } else { "reconcile_panics_total" };
        assert!(body.contains(&format!("# TYPE controller_runtime_{family} counter\n")), "{headers}: {body}");
    }
    let (code, text) = fetch(address, "/metrics").await;
    assert_eq!(code, 200);
    assert!(text.contains("controller_runtime_reconcile_panics_total{controller=\"machine\"} 1"), "{text}");
    assert_eq!(fetch(address, "/unknown").await.0, 404);
}

#[tokio::test]
async fn a_port_in_use_is_one_clear_line() {
    let Running { address, .. } = serve(Router::new()).await;
    let error = Server::bind(address, "--port").await.unwrap_err();
    let expected =
        format!("failed to listen on {address}: Address already in use (os error 98); choose another with --port");
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn a_stop_answers_what_is_under_way_and_closes_the_rest() {
    let slow = get(|| async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        "done"
    });
    let Running { address, stop, task } = serve(Router::new().route("/slow", slow)).await;
    let idle = TcpStream::connect(address).await.unwrap();
    let under_way = tokio::spawn(async move { fetch(address, "/slow").await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    stop.cancel();
    let begun = tokio::time::Instant::now();
    assert_eq!(under_way.await.unwrap(), (200, "done".to_owned()));
    task.await.unwrap();
    assert!(begun.elapsed() < Limits::default().end * 2);
    assert!(TcpStream::connect(address).await.is_err());
    drop(idle);
}

#[tokio::test]
async fn what_is_logged_is_changed_from_this_host_only() {
    let (telemetry, _subscriber) = Telemetry::build(&TelemetryConfig::default(), std::io::sink).unwrap();
    let levels = &telemetry.levels;
    let routes = Endpoints { levels: Some(levels.clone()), ..Endpoints::default() }.router();
    let set = async |peer: &str, wanted: &str| {
        let request = Request::builder().method("PUT").uri("/debug/log-level");
        let request =
            request.extension(Peer(peer.parse().unwrap())).body(axum::body::Body::from(wanted.to_owned())).unwrap();
        routes.clone().oneshot(request).await.unwrap().status()
    };
    assert_eq!(set("10.0.0.7:1", "debug").await, StatusCode::FORBIDDEN);
    assert_eq!(set("[::1]:1", "nonsense=loud").await, StatusCode::BAD_REQUEST);
    assert_eq!(levels.current(), "info");
    assert_eq!(set("[::ffff:127.0.0.1]:1", "debug\n").await, StatusCode::OK);
    assert_eq!(levels.current(), "debug");
}

/// Waits for asynchronous work of the server. The limit is generous: a busy computer is slow.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("an answer in time")
}

#[tokio::test]
async fn idle_and_slow_connections_do_not_silence_a_probe() {
    let Running { address, .. } = serve(Endpoints::default().router()).await;
    let mut kept = vec![];
    for number in 0..Limits::default().connections * 2 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        if number % 2 == 1 {
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost:").await.unwrap();
        }
        kept.push(stream);
        if number >= Limits::default().connections {
            assert_eq!(in_time(fetch(address, "/healthz")).await, (200, "ok".to_owned()));
        }
    }
    // A single byte protects no connection: the first ones are closed.
    let mut first = kept.swap_remove(0);
    let _ = first.write_all(b"G").await;
    assert!(matches!(in_time(first.read(&mut [0])).await, Ok(0) | Err(_)), "the longest idle was closed");
}

#[tokio::test]
async fn requests_that_hang_leave_room_for_probes() {
    let hung = Arc::new(Semaphore::new(0));
    let begun = Arc::new(Semaphore::new(0));
    let endpoints = Endpoints::default();
    let slow = get({
        let (hung, begun) = (hung.clone(), begun.clone());
        move || async move {
            begun.add_permits(1);
            let _ = hung.acquire().await;
            "done"
        }
    });
    let others = leave_room(Router::new().route("/slow", slow));
    let Running { address, .. } = serve(endpoints.router().merge(others)).await;
    let calls: Vec<_> = (0..OTHERS).map(|_| tokio::spawn(fetch(address, "/slow"))).collect();
    let _ = in_time(begun.acquire_many(u32::try_from(OTHERS).unwrap())).await.unwrap();
    assert_eq!(in_time(fetch(address, "/slow")).await.0, 503);
    assert_eq!(in_time(fetch(address, "/healthz")).await.0, 200);
    hung.add_permits(OTHERS);
    for call in calls {
        assert_eq!(in_time(call).await.unwrap(), (200, "done".to_owned()));
    }
}

#[tokio::test]
async fn headers_without_end_are_refused() {
    let Running { address, .. } = serve(Router::new()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let huge = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(Limits::default().head_size * 2));
    // The server may close the connection before everything is written.
    let _ = stream.write_all(huge.as_bytes()).await;
    let mut answer = vec![];
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
}
