//! A request of an audit log, changed as far as it must be to succeed on another control plane.

use http::Method;
use nodewright_e2e_lab::{
    control_plane::audit::Entry,
    devcluster::{ManagerProcess, table::Table},
};
use serde_json::Value;

use crate::measure::is_from;

/// The beginnings of the `User-Agent` of the stand-ins for kubelets, and of kubectl, by which the benchmark scales.
const KUBELETS: &str = "simulated-kubelet/";
const KUBECTL: &str = "kubectl";
/// In the replay nobody serves webhooks.
const LEFT_OUT: [&str; 2] = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];
/// The version by which the manager says that an object must not exist. It means the same on each control plane.
const OF_NO_OBJECT: &str = "1";
/// Parameters that name a version of the other control plane, or a position in one of its lists.
const PARAMETERS: [&str; 3] = ["resourceVersion", "resourceVersionMatch", "continue"];

/// Who sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    Manager,
    Kubelets,
    Kubectl,
}

impl Sender {
    fn of(entry: &Entry) -> Option<Self> {
        match entry.user_agent.as_str() {
            _ if is_from::<ManagerProcess>(entry) => Some(Self::Manager),
            agent if agent.starts_with(KUBELETS) => Some(Self::Kubelets),
            agent if agent.starts_with(KUBECTL) && entry.is_write() => Some(Self::Kubectl),
            _ => None,
        }
    }
}

/// A request to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) sender: Sender,
    /// How it writes or reads, and what; requests of one kind cost the API server the same.
    pub(crate) kind: String,
    pub(crate) method: Method,
    pub(crate) uri: String,
    pub(crate) content: &'static str,
    /// Null if it has none.
    pub(crate) body: Value,
}

impl Request {
    /// `None` if it is not replayed: a watch, what was refused, and what others sent, such as the API server itself.
    pub(crate) fn of(entry: &Entry) -> Option<Self> {
        let sender = Sender::of(entry)?;
        if entry.verb == "watch" || entry.code >= 400 || LEFT_OUT.contains(&entry.resource.as_str()) {
            return None;
        }
        let content = content(entry, sender);
        Some(Self {
            sender,
            kind: kind(entry, content),
            method: method(&entry.verb),
            uri: without_versions(&entry.uri),
            content,
            body: adjusted(&entry.body),
        })
    }

    /// Whether a VM has to boot before its kubelet sends this: the registration of its Node.
    pub(crate) fn needs_vm(&self) -> bool {
        self.sender == Sender::Kubelets
            && self.method == Method::POST
            && self.uri.split('?').next() == Some("/api/v1/nodes")
    }
}

/// The address of a watch, if it is one of the manager or the kubelets.
pub(crate) fn watched(entry: &Entry) -> Option<String> {
    let sender = Sender::of(entry)?;
    (entry.verb == "watch" && sender != Sender::Kubectl && entry.code < 400).then(|| without_versions(&entry.uri))
}

fn method(verb: &str) -> Method {
    match verb {
        "create" => Method::POST,
        "update" => Method::PUT,
        "patch" => Method::PATCH,
        "delete" | "deletecollection" => Method::DELETE,
        _ => Method::GET,
    }
}

/// The log does not say of which kind a patch is. Only the address of an apply says whether it is forced; a JSON patch is a list; and
/// kubelets send strategic merge patches of everything but Leases.
fn content(entry: &Entry, sender: Sender) -> &'static str {
    match sender {
        _ if entry.verb != "patch" => "application/json",
        _ if entry.body.is_array() => "application/json-patch+json",
        _ if entry.uri.contains("force=") => "application/apply-patch+yaml",
        Sender::Kubelets if entry.resource != "leases" => "application/strategic-merge-patch+json",
        _ => "application/merge-patch+json",
    }
}

fn kind(entry: &Entry, content: &str) -> String {
    let how = match content {
        "application/json-patch+json" => "JSON patch",
        "application/apply-patch+yaml" if entry.code == 201 => "create by apply",
        "application/apply-patch+yaml" => "apply",
        "application/strategic-merge-patch+json" => "strategic patch",
        "application/merge-patch+json" => "merge patch",
        _ => entry.verb.as_str(),
    };
    let what = match (entry.resource.as_str(), entry.subresource.as_str()) {
        ("", _) => "of no resource".to_owned(),
        (resource, "") => resource.to_owned(),
        (resource, subresource) => format!("{resource}/{subresource}"),
    };
    format!("{how} {what}")
}

fn without_versions(uri: &str) -> String {
    let Some((path, query)) = uri.split_once('?') else { return uri.to_owned() };
    let names = |parameter: &&str| parameter.split('=').next().is_some_and(|name| !PARAMETERS.contains(&name));
    let kept: Vec<_> = query.split('&').filter(names).collect();
    if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) }
}

/// Without the UIDs and versions that the object had on the other control plane. References to owners keep theirs: without a
/// controller manager, nobody looks at them.
fn adjusted(body: &Value) -> Value {
    let mut body = body.clone();
    if let Some(operations) = body.as_array_mut() {
        operations.retain(|operation| {
            let path = operation["path"].as_str().unwrap_or_default();
            operation["op"] != "test" || !["/metadata/uid", "/metadata/resourceVersion"].contains(&path)
        });
    }
    if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("uid");
        if metadata.get("resourceVersion").is_some_and(|version| version != OF_NO_OBJECT) {
            metadata.remove("resourceVersion");
        }
    }
    for options in ["", "/deleteOptions"] {
        if let Some(options) = body.pointer_mut(options).and_then(Value::as_object_mut) {
            options.remove("preconditions");
        }
    }
    body
}

/// How many requests of each kind were answered with which error. Its `Display` is a table, empty without errors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Errors(pub(crate) std::collections::BTreeMap<(String, u16), (u64, String)>);

impl Errors {
    pub(crate) fn add(&mut self, kind: &str, code: u16, message: &str) {
        let (count, _) = self.0.entry((kind.to_owned(), code)).or_insert_with(|| (0, message.to_owned()));
        *count += 1;
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.values().map(|(count, _)| count).sum()
    }
}

impl std::fmt::Display for Errors {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut table = Table::new(["REFUSED", "CODE", "REQUESTS", "THE FIRST"]);
        for ((kind, code), (count, message)) in &self.0 {
            let message: String = message.chars().take(100).collect();
            table.add([kind, &code.to_string(), &count.to_string(), &message]);
        }
        write!(formatter, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::entry, *};
    use serde_json::json;

    const MACHINE: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machines/a";

    #[test]
    fn only_what_succeeded_and_belongs_to_the_fleet_is_replayed() {
        let replayed = |entry: Entry| Request::of(&entry).map(|request| request.sender);
        assert_eq!(replayed(entry("nodewright/1 (machine)", "patch", "machines", "a")), Some(Sender::Manager));
        assert_eq!(replayed(entry("simulated-kubelet/1", "create", "nodes", "a")), Some(Sender::Kubelets));
        assert_eq!(replayed(entry("kubectl/v1", "patch", "machinedeployments", "a")), Some(Sender::Kubectl));
        for other in [
            entry("kubectl/v1", "get", "machinedeployments", "a"),
            entry("end-to-end/1", "patch", "machines", "a"),
            entry("kube-apiserver/v1", "update", "leases", "a"),
            entry("nodewright/1 (cache)", "watch", "machines", ""),
            entry("nodewright/1 (webhooks)", "patch", "validatingwebhookconfigurations", "a"),
            Entry { code: 409, ..entry("nodewright/1 (machine)", "patch", "machines", "a") },
        ] {
            assert_eq!(replayed(other.clone()), None, "{other:?}");
        }
    }

    #[test]
    fn the_kind_of_a_patch_follows_from_its_body_and_its_address() {
        let sent = |agent: &str, resource: &str, query: &str, body: Value, code| {
            let uri = format!("{MACHINE}?{query}");
            let request = Request::of(&Entry { uri, body, code, ..entry(agent, "patch", resource, "a") }).unwrap();
            (request.kind, request.content)
        };
        let (manager, apply) = ("nodewright/1 (machine)", "fieldManager=nodewright&force=true");
        for (agent, resource, query, body, code, kind, content) in [
            (manager, "machines", apply, json!({}), 201, "create by apply machines", "application/apply-patch+yaml"),
            (manager, "machines", apply, json!({}), 200, "apply machines", "application/apply-patch+yaml"),
            (
                manager,
                "nodes",
                "fieldManager=nodewright",
                json!([]),
                200,
                "JSON patch nodes",
                "application/json-patch+json",
            ),
            (manager, "events", "", json!({}), 200, "merge patch events", "application/merge-patch+json"),
            (
                "simulated-kubelet/1",
                "nodes",
                "",
                json!({}),
                200,
                "strategic patch nodes",
                "application/strategic-merge-patch+json",
            ),
            ("simulated-kubelet/1", "leases", "", json!({}), 200, "merge patch leases", "application/merge-patch+json"),
        ] {
            assert_eq!(sent(agent, resource, query, body, code), (kind.to_owned(), content));
        }
    }

    #[test]
    fn what_names_a_version_of_the_other_control_plane_is_removed() {
        let body = |body: Value| {
            Request::of(&Entry { body, ..entry("nodewright/1 (machine)", "patch", "machines", "a") }).unwrap().body
        };
        assert_eq!(
            body(json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": "7"}, "status": {"uid": "u"}})),
            json!({"metadata": {"name": "a"}, "status": {"uid": "u"}})
        );
        let created = json!({"metadata": {"name": "a", "resourceVersion": "1"}});
        assert_eq!(body(created.clone()), created, "that of a creation is the same everywhere");
        let rest = json!({"op": "test", "path": "/metadata/labels/a", "value": "b"});
        let tests = ["uid", "resourceVersion"].map(|field| json!({"op": "test", "path": format!("/metadata/{field}")}));
        assert_eq!(body(json!([tests[0], rest, tests[1]])), json!([rest]));
        let options = json!({"preconditions": {"uid": "u"}, "propagationPolicy": "Background"});
        assert_eq!(body(options), json!({"propagationPolicy": "Background"}));
        let eviction = json!({"metadata": {"name": "a"}, "deleteOptions": {"preconditions": {"uid": "u"}}});
        assert_eq!(body(eviction), json!({"metadata": {"name": "a"}, "deleteOptions": {}}));
    }

    #[test]
    fn addresses_name_no_version_either() {
        for (uri, expected) in [
            ("/api/v1/nodes", "/api/v1/nodes"),
            ("/api/v1/nodes?resourceVersion=7&resourceVersionMatch=NotOlderThan", "/api/v1/nodes"),
            ("/api/v1/nodes?limit=500&continue=abc&labelSelector=a%3Db", "/api/v1/nodes?limit=500&labelSelector=a%3Db"),
        ] {
            assert_eq!(without_versions(uri), expected);
        }
        let watch = "/api/v1/nodes?watch=true&resourceVersion=7";
        let watch = Entry { uri: watch.to_owned(), ..entry("nodewright/1 (cache)", "watch", "nodes", "") };
        assert_eq!(watched(&watch).as_deref(), Some("/api/v1/nodes?watch=true"));
        assert_eq!(watched(&entry("nodewright/1 (cache)", "list", "nodes", "")), None);
    }

    #[test]
    fn a_node_is_registered_when_its_vm_has_booted() {
        let needs_vm = |agent: &str, verb: &str, uri: &str| {
            let sent = Entry { uri: uri.to_owned(), ..entry(agent, verb, "nodes", "a") };
            Request::of(&sent).unwrap().needs_vm()
        };
        assert!(needs_vm("simulated-kubelet/1", "create", "/api/v1/nodes?"));
        assert!(!needs_vm("simulated-kubelet/1", "patch", "/api/v1/nodes/a/status"));
        assert!(!needs_vm("nodewright/1 (machine)", "create", "/api/v1/nodes"));
    }

    #[test]
    fn errors_are_counted_by_kind_and_code() {
        let mut errors = Errors::default();
        assert_eq!(errors.to_string(), "");
        for code in [409, 409, 404] {
            errors.add("apply machines", code, "because");
        }
        assert_eq!(errors.count(), 3);
        let text = errors.to_string();
        assert!(
            text.lines().any(|line| line.split_whitespace().eq("apply machines 409 2 because".split(' '))),
            "{text}"
        );
    }
}
