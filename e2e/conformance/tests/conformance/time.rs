//! How often an idle server sends events, and when it ends a watch. The runtime's definition of contact with a server depends
//! on it, and the in-process server must be as silent as the real one.

use std::time::Duration;

use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use http::Request;
use kube::{Api, Client, api::PostParams};
use nodewright_api::API_VERSION;
use nodewright_e2e_lab::control_plane::testing::{Cluster, TestResult, ensure};
use nodewright_testing::api_server::ApiServer;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Longer than two intervals of bookmarks.
const LONG: Duration = Duration::from_secs(135);
const SHORT: Duration = Duration::from_secs(5);
/// The slack for a busy computer.
const SLACK: Duration = Duration::from_secs(4);
/// A server may send a last bookmark this long before it ends a watch.
const BEFORE_END: Duration = Duration::from_secs(2);

/// The result of a watch without changes.
#[derive(Debug)]
struct Quiet {
    bookmarks: Vec<Duration>,
    ended: Duration,
}

/// Watches an idle collection until the server ends the watch.
async fn quiet(client: &Client, collection: &str, lasts: Duration) -> TestResult<Quiet> {
    let list: Value = client.request(Request::get(format!("{collection}?limit=1")).body(vec![])?).await?;
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let query = format!("watch=true&allowWatchBookmarks=true&timeoutSeconds={}", lasts.as_secs());
    let request = Request::get(format!("{collection}?{query}&resourceVersion={version}")).body(vec![])?;
    let begun = Instant::now();
    let mut lines = Box::pin(client.request_stream(request).await?.lines().into_stream());
    let mut bookmarks = vec![];
    while let Some(line) = lines.next().await.transpose()? {
        let line: Value = serde_json::from_str(&line)?;
        ensure(line["type"] == "BOOKMARK", || format!("nothing happened, and yet: {line}"))?;
        bookmarks.push(begun.elapsed());
    }
    Ok(Quiet { bookmarks, ended: begun.elapsed() })
}

/// A built-in kind and a custom one, in a namespace of their own.
async fn both_kinds(client: &Client, lasts: Duration) -> TestResult<[Quiet; 2]> {
    let suffix: String = std::iter::repeat_with(fastrand::lowercase).take(4).collect();
    let namespace = format!("conformance-time-{suffix}");
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    let object = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
    namespaces.create(&PostParams::default(), &object).await?;
    let built_in = format!("/api/v1/namespaces/{namespace}/podtemplates");
    let custom = format!("/apis/{API_VERSION}/namespaces/{namespace}/machines");
    let (built_in, custom) = tokio::join!(quiet(client, &built_in, lasts), quiet(client, &custom, lasts));
    namespaces.delete(&namespace, &kube::api::DeleteParams::default()).await?;
    Ok([built_in?, custom?])
}

async fn both_servers(lasts: Duration) -> TestResult<Vec<(&'static str, Quiet)>> {
    let real = Cluster::shared().await?.client().await?;
    let in_process = ApiServer::new().client();
    let (real, in_process) = tokio::join!(both_kinds(&real, lasts), both_kinds(&in_process, lasts));
    let named = |server, quiet: [Quiet; 2]| quiet.into_iter().map(move |quiet| (server, quiet));
    Ok(named("the real server", real?).chain(named("the one in process", in_process?)).collect())
}

/// The first bookmark comes after one or two minutes, or never, so a silence of 90 s proves nothing.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes two minutes: make test-real"]
async fn the_bookmarks_of_an_idle_kind_come_after_one_or_two_minutes_or_never() -> TestResult {
    for (server, quiet) in both_servers(LONG).await? {
        eprintln!("{server}: {quiet:?}");
        let last = LONG.saturating_sub(BEFORE_END);
        let is_regular = |at: &Duration| *at >= Duration::from_secs(55) && *at <= Duration::from_secs(130);
        let is_expected = |at: &Duration| is_regular(at) || at.abs_diff(last) <= SLACK;
        ensure(quiet.bookmarks.iter().all(is_expected), || format!("{server}: {quiet:?}"))?;
        ensure(quiet.ended.abs_diff(LONG) <= SLACK, || format!("{server}: {quiet:?}"))?;
    }
    Ok(())
}

/// A watch ends after its timeout: one that lasts much longer is dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_after_its_timeout() -> TestResult {
    for (server, quiet) in both_servers(SHORT).await? {
        ensure(quiet.ended.abs_diff(SHORT) <= SLACK, || format!("{server}: {quiet:?}"))?;
        let is_last = |at: &Duration| at.abs_diff(SHORT.saturating_sub(BEFORE_END)) <= SLACK;
        ensure(quiet.bookmarks.iter().all(is_last), || format!("{server}: {quiet:?}"))?;
    }
    Ok(())
}
