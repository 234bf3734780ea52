//! The server's behavior with hostile and slow clients.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::time::{Duration, Instant};

use http::Request;
use http_body_util::Full;
use nodewright_serving::raise_open_files;
use nodewright_webhooks::Limits;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use support::{Running, TEST_TIMEOUT};

const VALIDATE: &str = "/validate-machineclass";

fn review(object: &str) -> String {
    format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u",
           "kind":{{"group":"machine.sapcloud.io","version":"v1alpha1","kind":"MachineClass"}},
           "name":"small","namespace":"fleet","operation":"CREATE","object":{object}}}}}"#
    )
}

fn class(provider_spec: &str) -> String {
    review(&format!(
        r#"{{"metadata":{{"name":"small"}},"provider":"simulated","secretRef":{{"name":"small","namespace":"fleet"}},"providerSpec":{provider_spec}}}"#
    ))
}

fn good() -> String {
    class(r#"{"cluster":"demo"}"#)
}

async fn is_fine(server: &Running) {
    let (status, answer) = server.client().await.post(VALIDATE, good(), &[]).await;
    assert_eq!(status, 200);
    assert!(answer.ends_with(br#""allowed":true}}"#), "{answer:?}");
}

#[tokio::test]
async fn wrong_requests_are_refused_at_once() {
    let server = Running::start(Limits::default()).await;
    let mut client = server.client().await;
    let plain = [("content-type", "text/plain")];
    let packed = [("content-encoding", "gzip")];
    let mut post = async |path: &str, body: &str, headers: &[(&str, &str)]| {
        let (status, text) = client.post(path, body.to_owned(), headers).await;
        (status.as_u16(), String::from_utf8(text.to_vec()).unwrap())
    };
    assert_eq!(post(VALIDATE, &good(), &plain).await.0, 415);
    assert_eq!(post(VALIDATE, &good(), &packed).await.0, 415);
    assert_eq!(post(VALIDATE, &good(), &[("content-type", "application/json; charset=utf-8")]).await.0, 200);
    assert_eq!(post("/nothing", &good(), &[]).await.0, 404);
    assert_eq!(post("/healthz", "", &[]).await.0, 405);
    for garbage in ["", "{", "[]", "null", "\u{0}", "{}", r#"{"request":{}}"#, &"[".repeat(100_000)] {
        assert_eq!(post(VALIDATE, garbage, &[]).await.0, 400, "{garbage:.20}");
    }
    let health = Request::get("/healthz").header("host", "webhook").body(Full::default()).unwrap();
    let (status, text) = client.send(health).await.unwrap();
    assert_eq!((status.as_u16(), text.as_ref()), (200, b"ok".as_slice()));
    server.stop().await;
}

#[tokio::test]
async fn depth_and_size_are_endured() {
    let server = Running::start(Limits::default()).await;
    let mut client = server.client().await;
    let deep = |levels: usize| format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
    let (deepest, deep) = (deep(20_000), deep(9_000));
    // The provider's own parser has a depth limit, and reports nothing if it cannot parse.
    let (status, answer) = client.post(VALIDATE, class(&deep), &[]).await;
    assert_eq!((status.as_u16(), answer.ends_with(br#""allowed":true}}"#)), (200, true));
    let (status, answer) = client.post("/mutate-machineclass", class(&deep), &[]).await;
    assert_eq!((status.as_u16(), answer.ends_with(br#""allowed":true}}"#)), (200, true));
    for object in [
        deepest.clone(),
        format!(r#"{{"providerSpec":{deepest}}}"#),
        deep.clone(),
        format!(r#"{{"metadata":{deep}}}"#),
        format!(r#"{{"metadata":{{"labels":{deep}}}}}"#),
    ] {
        let (status, answer) = client.post(VALIDATE, review(&object), &[]).await;
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!((status.as_u16(), &answer["response"]["allowed"]), (200, &json!(false)), "{answer}");
    }
    let large = class(&format!(r#"{{"cluster":"{}"}}"#, "x".repeat(3 << 20)));
    let (status, _) = client.post(VALIDATE, large, &[]).await;
    assert_eq!(status, 200);
    let begun = Instant::now();
    let (status, _) = client.post(VALIDATE, vec![b'x'; 10 << 20], &[]).await;
    assert_eq!(status, 413);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    is_fine(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn any_bytes_have_an_answer() {
    let server = Running::start(Limits::default()).await;
    let mut client = server.client().await;
    let seeds = [good(), class("null"), review("null")];
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..2_000 {
        let mut body = seeds[random.usize(..seeds.len())].clone().into_bytes();
        for _ in 0..=random.usize(..4) {
            let at = random.usize(..body.len());
            match random.u8(..4) {
                0 => body[at] = random.u8(..),
                1 => drop(body.drain(at..body.len().min(at + 1 + random.usize(..9)))),
                2 => body.insert(at, *random.choice(br#"{}[]",:0-e\tn"#).unwrap()),
                _ => body.extend_from_within(at..),
            }
            if body.is_empty() {
                body.push(b'{');
            }
        }
        let path = if round % 2 == 0 { VALIDATE } else { "/mutate-machineclass" };
        let (status, _) = client.post(path, body, &[]).await;
        assert!(matches!(status.as_u16(), 200 | 400), "round {round}: {status}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_panic_costs_one_request() {
    let server = Running::start(Limits::default()).await;
    let mut client = server.client().await;
    let (status, _) = client.post(VALIDATE, class(r#"{"panic":true}"#), &[]).await;
    assert_eq!(status, 500);
    let (status, _) = client.post(VALIDATE, good(), &[]).await;
    assert_eq!(status, 200, "on the same connection");
    server.stop().await;
}

/// Whether the server closes a connection within [`TEST_TIMEOUT`].
async fn is_closed(stream: &mut (impl AsyncReadExt + Unpin)) -> bool {
    let mut rest = Vec::new();
    tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut rest)).await.is_ok()
}

#[tokio::test]
async fn what_is_no_tls_and_old_tls_is_closed() {
    let server = Running::start(Limits::default()).await;
    let mut plain = server.tcp().await;
    plain.write_all(b"POST /validate-machineclass HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    assert!(is_closed(&mut plain).await);
    // A ClientHello of TLS 1.0: version 3.1 in the record and in the ClientHello, one cipher suite, nothing else.
    let mut old = server.tcp().await;
    let mut greeting = vec![0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 1];
    greeting.extend([7; 32]);
    greeting.extend([0, 0, 2, 0, 0x2f, 1, 0]);
    old.write_all(&greeting).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(TEST_TIMEOUT, old.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert_eq!((answer[0], answer[5]), (0x15, 2), "a fatal alert: {answer:?}");
    is_fine(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn slow_clients_fail() {
    let (short, idle) = (Duration::from_millis(300), Duration::from_millis(900));
    let mut limits = Limits { body: short, ..Limits::default() };
    (limits.port.first_request, limits.port.idle) = (short, idle);
    let server = Running::start(limits).await;
    let mut silent = server.tcp().await;
    let mut half_a_head = server.tls().await;
    half_a_head.write_all(b"POST /validate-machineclass HTTP/1.1\r\nhost:").await.unwrap();
    let mut half_a_body = server.tls().await;
    let head = "POST /validate-machineclass HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{";
    half_a_body.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    half_a_body.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 408");
    assert!(is_closed(&mut silent).await && is_closed(&mut half_a_head).await && is_closed(&mut half_a_body).await);

    let mut used = server.tls().await;
    used.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let begun = Instant::now();
    assert!(is_closed(&mut used).await);
    assert!(begun.elapsed() >= idle, "an idle connection has more time");
    server.stop().await;
}

/// Twice as many connections as the server accepts: each takes two files of this process.
#[tokio::test]
async fn idle_and_slow_connections_make_room_for_reviews() {
    let files = raise_open_files().unwrap();
    assert!(files.is_none_or(|files| files >= 5_000), "5,000 open files are needed: {files:?}");
    let mut limits = Limits::default();
    limits.port.first_request = TEST_TIMEOUT;
    let server = Running::start(limits).await;
    let mut kept = Vec::new();
    for number in 0..2 * limits.port.connections {
        let mut stream = server.tcp().await;
        if number % 2 == 1 {
            // The beginning of a handshake; the server may have closed the connection already.
            let _ = stream.write_all(&[0x16, 3, 1]).await;
        }
        kept.push(stream);
        if number % 100 == 99 {
            let (status, _) =
                tokio::time::timeout(TEST_TIMEOUT, async { server.client().await.post(VALIDATE, good(), &[]).await })
                    .await
                    .unwrap();
            assert_eq!(status, 200, "after {number} connections");
        }
    }
    let last = kept.pop().unwrap();
    assert!(is_closed(&mut kept[0]).await, "the longest idle made room");
    let nothing = last.try_read(&mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock, "the last one is kept");
    server.stop().await;
}

/// The memory that slow clients hold is bounded by time.
#[tokio::test]
async fn slow_heads_and_bodies_make_room_for_reviews() {
    let mut limits = Limits { body: TEST_TIMEOUT, ..Limits::default() };
    (limits.port.connections, limits.port.first_request) = (16, TEST_TIMEOUT);
    let server = Running::start(limits).await;
    let head = "POST /validate-machineclass HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{";
    let mut kept = Vec::new();
    for number in 0..40 {
        let mut stream = server.tls().await;
        let part = if number % 2 == 0 { head.len() } else { 30 };
        stream.write_all(&head.as_bytes()[..part]).await.unwrap();
        kept.push(stream);
    }
    is_fine(&server).await;
    assert!(is_closed(&mut kept[0]).await && is_closed(&mut kept[1]).await);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_goes_away_harms_nobody() {
    let server = Running::start(Limits::default()).await;
    for part in [10, 100, 200] {
        let mut stream = server.tls().await;
        let body = good();
        let request = format!(
            "POST {VALIDATE} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(&request.as_bytes()[..part]).await.unwrap();
        drop(stream);
    }
    is_fine(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn the_end_waits_for_requests_and_not_for_idle_connections() {
    let server = Running::start(Limits::default()).await;
    let idle = server.client().await;
    let silent = server.tcp().await;
    let mut busy = server.tls().await;
    let body = good();
    let head = format!(
        "POST {VALIDATE} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    busy.write_all(head.as_bytes()).await.unwrap();
    busy.write_all(&body.as_bytes()[..10]).await.unwrap();
    // The head must arrive before the server stops.
    is_fine(&server).await;
    let begun = Instant::now();
    let finish = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        busy.write_all(&body.as_bytes()[10..]).await.unwrap();
        let mut answer = Vec::new();
        busy.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let ((), answer) = tokio::join!(server.stop(), finish);
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    drop((idle, silent));
}
