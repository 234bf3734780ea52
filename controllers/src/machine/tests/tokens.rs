//! A token that was made before, under a role that may not change it, as that of machine-controller-manager.

use http::HeaderValue;
use k8s_openapi::ByteString;
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::{leadership::Leadership, request::Connection};
use nodewright_testing::api_server::{ApiServer, Fault, Match};

use super::*;
use crate::machine::token;

const TOKENS: &str = "/api/v1/namespaces/kube-system/secrets";

/// The token that a creation at noon gets if there is one already that ends then.
async fn ensured(ends: &str) -> (String, String) {
    let (server, fixture) = (ApiServer::new(), fixture(machine("m")));
    server.fail_always(Match::verb("patch").path(TOKENS), Fault::Status(403));
    let agent = HeaderValue::from_static("test");
    let target = Connection::new(server.client(), agent, Leadership::unlimited(), 1, Arc::new(Metrics::new()));
    let request = fixture.call(Verb::Create).request;
    let first = token::ensure(&target, &request, "", fixture.now).await.unwrap();
    let made = server.objects(TOKENS)[0].clone();
    let path = format!("{TOKENS}/{}", made["metadata"]["name"].as_str().unwrap());
    // The API server in process does not turn text into data.
    let (id, secret) = first.split_once('.').unwrap();
    let data = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
    let data = json!({"token-id": data(id), "token-secret": data(secret), "expiration": data(ends)});
    server.change(&path, |token| token["data"] = data);
    (first.clone(), token::ensure(&target, &request, "", fixture.now).await.unwrap())
}

#[tokio::test]
async fn a_token_that_cannot_be_renewed_is_used_to_its_end_and_then_made_again() {
    let (first, again) = ensured("2026-06-01T12:19:00Z").await;
    assert_eq!(first, again, "it is as good as new");
    let (first, again) = ensured("2026-06-01T12:00:30Z").await;
    assert_eq!(first, again, "it is valid yet");
    let (first, again) = ensured("2026-06-01T11:59:59Z").await;
    assert!(first != again && first.split_once('.').unwrap().0 == again.split_once('.').unwrap().0, "{first} {again}");
}
