//! Lists: selectors, pages, and freshness.

use serde_json::json;

use super::{
    objects::{KINDS, Kind, with},
    probe::{Probe, Request},
};
use nodewright_e2e_lab::control_plane::testing::TestResult;

pub(super) async fn plain(probe: &mut Probe) -> TestResult {
    for kind in [KINDS.as_slice(), &[Kind::Lease, Kind::Pod, Kind::Secret]].concat() {
        let all = probe.all(kind);
        probe.ask("an empty list", Request::get(&all)).await?;
        for name in ["b", "a"] {
            probe.quietly(&Request::post(&all, &probe.object(kind, name))).await?;
        }
        probe.ask("a list", Request::get(&all)).await?;
    }
    Ok(())
}

pub(super) async fn selectors(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        let all = probe.all(kind);
        for (name, pool) in [("a", "blue"), ("b", "red"), ("c", "green")] {
            let object = with(probe.object(kind, name), "/metadata/labels/pool", pool);
            probe.quietly(&Request::post(&all, &object)).await?;
        }
        probe.quietly(&Request::post(&all, &probe.object(kind, "none"))).await?;
        for selector in [
            "pool=blue",
            "pool==blue",
            "pool!=blue",
            "pool",
            "!pool",
            "pool in (blue, red)",
            "pool notin (blue, red)",
            "pool=blue,first=1",
            "pool=blue,first=2",
            "pool=",
            "pool=no value!",
            "pool in blue",
            "pool=blue,",
        ] {
            let query = format!("labelSelector={}", encode(selector));
            probe.ask(&format!("those with labels {selector}"), Request::get(&all).query(&query)).await?;
        }
        for selector in
            ["metadata.name=a", "metadata.name!=a", "metadata.namespace=elsewhere", "metadata.uid=1", "spec.x=1", "a"]
        {
            let query = format!("fieldSelector={}", encode(selector));
            probe.ask(&format!("those with fields {selector}"), Request::get(&all).query(&query)).await?;
        }
    }
    let pods = probe.all(Kind::Pod);
    probe.quietly(&Request::post(&pods, &probe.object(Kind::Pod, "a"))).await?;
    for selector in
        ["spec.nodeName=nowhere", "spec.nodeName=elsewhere", "status.phase=Pending", "status.phase!=Pending"]
    {
        let query = format!("fieldSelector={}", encode(selector));
        probe.ask(&format!("pods with {selector}"), Request::get(&pods).query(&query)).await?;
    }
    Ok(())
}

/// Lists of metadata only.
pub(super) async fn metadata(probe: &mut Probe) -> TestResult {
    for kind in [KINDS.as_slice(), &[Kind::Secret]].concat() {
        let all = probe.all(kind);
        for name in ["b", "a"] {
            probe.quietly(&Request::post(&all, &probe.object(kind, name))).await?;
        }
        probe.ask("a list of metadata", Request::get(&all).metadata()).await?;
        probe.ask("a page of metadata", Request::get(&all).query("limit=1").metadata()).await?;
        probe
            .ask("the metadata of one", Request::get(&all).query("fieldSelector=metadata.name%3Da").metadata())
            .await?;
    }
    Ok(())
}

fn encode(text: &str) -> String {
    let escaped = text.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    escaped.collect()
}

pub(super) async fn pages(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        let all = probe.all(kind);
        for name in ["a", "b", "c", "d", "e"] {
            let pool = if name < "c" { "blue" } else { "red" };
            let object = with(probe.object(kind, name), "/metadata/labels/pool", pool);
            probe.quietly(&Request::post(&all, &object)).await?;
        }
        let mut query = "limit=2".to_owned();
        for number in 1..=3 {
            let page = probe.ask(&format!("page {number}"), Request::get(&all).query(&query)).await?;
            query = format!("limit=2&continue={}", encode(page.text("/metadata/continue")));
            // Later pages do not show objects created or deleted meanwhile.
            if number == 1 {
                probe.quietly(&Request::post(&all, &probe.object(kind, "bb"))).await?;
                probe.quietly(&Request::delete(probe.path(kind, "d"), &json!({}))).await?;
            }
        }
        probe.ask("a page of all", Request::get(&all).query("limit=100")).await?;
        let selected = Request::get(&all).query("limit=1").query("labelSelector=pool%3Dred");
        let page = probe.ask("a page of a selection", selected).await?;
        let next = format!("limit=10&labelSelector=pool%3Dred&continue={}", encode(page.text("/metadata/continue")));
        probe.ask("its next page", Request::get(&all).query(&next)).await?;
        probe.ask("a page of any version", Request::get(&all).query("limit=2&resourceVersion=0")).await?;
        // The message comes from Go's JSON decoder.
        let said = probe.silently(&Request::get(&all).query("limit=2&continue=nonsense")).await?;
        probe.note("a page that is none", &json!({"code": said.code, "reason": said.body["reason"]}));
    }
    Ok(())
}

/// The freshness of lists.
pub(super) async fn versions(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        let all = probe.all(kind);
        let first = probe.quietly(&Request::post(&all, &probe.object(kind, "a"))).await?;
        let second = probe.quietly(&Request::post(&all, &probe.object(kind, "b"))).await?;
        let list = |query: String| Request::get(&all).query(&query);
        let older = format!("resourceVersion={}", first.version());
        let newer = format!("resourceVersion={}", second.version());
        probe.ask("no older than a version", list(format!("{newer}&resourceVersionMatch=NotOlderThan"))).await?;
        probe.ask("no older, said otherwise", list(newer)).await?;
        probe.ask("exactly at a version", list(format!("{older}&resourceVersionMatch=Exact"))).await?;
        probe.ask("a page at a version", list(format!("{older}&limit=5"))).await?;
        probe.ask("any version", list("resourceVersion=0".to_owned())).await?;
        let any = "resourceVersion=0&resourceVersionMatch=NotOlderThan";
        probe.ask("any version, said otherwise", list(any.to_owned())).await?;
        let future = "resourceVersion=999999999";
        probe.ask("what is yet to come", list(format!("{future}&resourceVersionMatch=NotOlderThan"))).await?;
        probe.ask("exactly what is yet to come", list(format!("{future}&resourceVersionMatch=Exact"))).await?;
        probe.ask("a match without a version", list("resourceVersionMatch=Exact".to_owned())).await?;
        probe.ask("exactly any version", list("resourceVersion=0&resourceVersionMatch=Exact".to_owned())).await?;
        probe.ask("a match that is none", list("resourceVersion=5&resourceVersionMatch=Other".to_owned())).await?;
        probe.ask("a version that is none", list("resourceVersion=x".to_owned())).await?;
        probe.ask("a list with initial events", list("sendInitialEvents=true".to_owned())).await?;
    }
    Ok(())
}
