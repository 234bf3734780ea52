//! What it costs the API server to write the same fields in different ways.

use std::collections::BTreeSet;

use http::Method;
use nodewright_e2e_lab::devcluster::table::Table;
use serde_json::{Value, json};

use super::{
    kinds::{Costs, Used},
    recording::Chains,
    replay::Replay,
    request::Request,
};
use crate::error::BenchError;

/// How often each way is tried. The first round is not counted: it changes who owns the fields.
const ROUNDS: usize = 4;
/// At most so many objects are written.
const MOST: usize = 500;

const STATUS: &str = "apply machines/status";
const CREATION: &str = "create by apply machines";

/// A way to write the fields of a request in a round. `None` if it cannot be written so.
type Way = fn(&Request, usize) -> Option<Request>;

/// The ways that are compared.
const WAYS: [(&str, &str, Way); 5] = [
    ("status of a Machine", "apply", apply_status),
    ("status of a Machine", "merge patch", merge_status),
    ("status of a Machine", "JSON patch of the whole status", replace_status),
    ("creation of a Machine", "apply", create_by_apply),
    ("creation of a Machine", "POST", create_by_post),
];

/// Compares them for the machines of a part that has been replayed. Leaves Machines behind.
pub(crate) async fn compare(replay: &Replay, costs: &Costs, chains: &Chains) -> Result<String, BenchError> {
    let mut table = Table::new(["FIELDS", "WRITTEN BY", "REQUESTS", "CPU MS EACH", "ETCD MS EACH"]);
    for (fields, name, way) in WAYS {
        let kind = if fields.starts_with("status") { STATUS } else { CREATION };
        let recorded: Vec<_> = chains.values().filter_map(|chain| last_of(chain, kind)).take(MOST).collect();
        let mut sum = Costs::default();
        for round in 0..ROUNDS {
            let requests: Vec<_> = recorded.iter().filter_map(|request| way(request, round)).collect();
            let used: Used = costs.measure(replay, &requests.iter().collect::<Vec<_>>()).await?;
            if round > 0 {
                sum.add(name, requests.len(), used);
            }
        }
        let numbers = sum.each(name).unwrap_or_default().map(|number| format!("{number:.2}"));
        table.add([fields, name, &(recorded.len() * (ROUNDS - 1)).to_string(), &numbers[0], &numbers[1]]);
    }
    Ok(table.to_string())
}

fn last_of<'a>(chain: &'a [Request], kind: &str) -> Option<&'a Request> {
    chain.iter().rev().find(|request| request.kind == kind)
}

/// The same status, with another text in each round, so that there is something to write.
fn apply_status(recorded: &Request, round: usize) -> Option<Request> {
    let mut request = recorded.clone();
    request.body.pointer_mut("/status/lastOperation")?["description"] = format!("round {round}").into();
    Some(request)
}

fn merge_status(recorded: &Request, round: usize) -> Option<Request> {
    let mut request = apply_status(recorded, round)?;
    request.body = json!({"status": request.body["status"].take()});
    request.content = "application/merge-patch+json";
    Some(Request { uri: unforced(&request.uri), ..request })
}

fn replace_status(recorded: &Request, round: usize) -> Option<Request> {
    let mut request = apply_status(recorded, round)?;
    request.body = json!([{"op": "add", "path": "/status", "value": request.body["status"].take()}]);
    request.content = "application/json-patch+json";
    Some(Request { uri: unforced(&request.uri), ..request })
}

/// Another Machine in each round.
fn create_by_apply(recorded: &Request, round: usize) -> Option<Request> {
    renamed(recorded, &format!("apply-{round}"))
}

fn create_by_post(recorded: &Request, round: usize) -> Option<Request> {
    let mut request = renamed(recorded, &format!("post-{round}"))?;
    request.body["metadata"].as_object_mut()?.remove("resourceVersion");
    let (path, query) = request.uri.split_once('?')?;
    let collection = path.rsplit_once('/')?.0;
    request.uri = unforced(&format!("{collection}?{query}"));
    Some(Request { method: Method::POST, content: "application/json", ..request })
}

fn renamed(recorded: &Request, suffix: &str) -> Option<Request> {
    let name = recorded.body.pointer("/metadata/name").and_then(Value::as_str)?;
    let other = format!("{name}-{suffix}");
    let uri = recorded.uri.replace(&format!("/{name}?"), &format!("/{other}?"));
    let mut request = Request { uri, ..recorded.clone() };
    request.body["metadata"]["name"] = other.into();
    Some(request)
}

/// Only an apply can be forced.
fn unforced(uri: &str) -> String {
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    let kept: BTreeSet<_> = query.split('&').filter(|parameter| !parameter.starts_with("force=")).collect();
    format!("{path}?{}", kept.into_iter().collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::{super::testing::entry, *};
    use nodewright_e2e_lab::control_plane::audit::Entry;

    fn recorded(subresource: &str, code: u16, body: Value) -> Request {
        let subresource = subresource.to_owned();
        let uri = format!("/ns/machines/a{subresource}?fieldManager=nodewright&force=true");
        Request::of(&Entry { uri, code, body, ..entry("nodewright/1", "patch", "machines", "a") }).unwrap()
    }

    #[test]
    fn each_way_writes_the_same_status() {
        let body = json!({"kind": "Machine", "metadata": {"name": "a"},
            "status": {"lastOperation": {"description": "", "state": "Successful"}, "node": "n"}});
        let recorded = recorded("/status", 200, body);
        let status = |round: &str| json!({"lastOperation": {"description": round, "state": "Successful"}, "node": "n"});
        assert_eq!(apply_status(&recorded, 1).unwrap().body["status"], status("round 1"));
        let merge = merge_status(&recorded, 2).unwrap();
        assert_eq!(merge.uri, "/ns/machines/a/status?fieldManager=nodewright");
        assert_eq!((merge.body, merge.content), (json!({"status": status("round 2")}), "application/merge-patch+json"));
        let replace = replace_status(&recorded, 3).unwrap();
        assert_eq!(replace.body, json!([{"op": "add", "path": "/status", "value": status("round 3")}]));
    }

    #[test]
    fn each_creation_has_a_name_of_its_own() {
        let body = json!({"kind": "Machine", "metadata": {"name": "a", "resourceVersion": "1"}, "spec": {}});
        let recorded = recorded("", 201, body);
        let apply = create_by_apply(&recorded, 2).unwrap();
        assert_eq!(apply.uri, "/ns/machines/a-apply-2?fieldManager=nodewright&force=true");
        assert_eq!(apply.body["metadata"], json!({"name": "a-apply-2", "resourceVersion": "1"}));
        let post = create_by_post(&recorded, 2).unwrap();
        assert_eq!((post.method, post.uri.as_str()), (Method::POST, "/ns/machines?fieldManager=nodewright"));
        assert_eq!(post.body, json!({"kind": "Machine", "metadata": {"name": "a-post-2"}, "spec": {}}));
    }
}
