//! `nodewright plan pool` against a server that answers lists.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    process::Command,
    sync::Arc,
    thread,
};

use serde_json::{Value, json};
use tempfile::TempDir;

const API_VERSION: &str = "machineconfiguration.openshift.io/v1";
const PREFIX: &str = "machineconfiguration.openshift.io/";
const ROLE: &str = "machineconfiguration.openshift.io/role";
const WORKER: &str = "node-role.kubernetes.io/worker";
const KINDS: [(&str, &str); 4] = [
    ("MachineConfigPool", "machineconfigpools"),
    ("MachineConfig", "machineconfigs"),
    ("KubeletConfig", "kubeletconfigs"),
    ("ControllerConfig", "controllerconfigs"),
];

/// An API server that knows lists, and the folder with its kubeconfig.
struct Cluster {
    folder: TempDir,
    objects: Vec<Value>,
}

/// What a run has printed, and its exit code.
struct Run {
    code: i32,
    text: String,
    errors: String,
}

impl Cluster {
    /// One with a pool `worker` that runs a file with the content `old`, which its target has, and these nodes.
    fn new(nodes: Vec<Value>, pool: &Value) -> Self {
        let mut cluster = Self { folder: tempfile::tempdir().unwrap(), objects: vec![] };
        let (mut target, name) = cluster.rendered(&[pool_of(&json!({})), config("old")]);
        target["metadata"] =
            json!({"name": name, "annotations": {format!("{PREFIX}generated-by-controller-version"): ""}});
        let mut spec = json!({"configuration": {"name": name}});
        pool.as_object().unwrap().iter().for_each(|(key, value)| spec[key] = value.clone());
        cluster.objects = vec![pool_of(&spec), config("old"), target];
        let nodes = nodes.into_iter().map(|mut node| {
            for key in ["currentConfig", "desiredConfig"] {
                let annotations = node["metadata"].get_mut("annotations");
                let said = annotations.and_then(|annotations| annotations.get_mut(format!("{PREFIX}{key}")));
                said.into_iter().filter(|said| **said == "TARGET").for_each(|said| *said = json!(name));
            }
            node
        });
        cluster.objects.extend(nodes);
        cluster
    }

    fn write(&self, file: &str, objects: &[Value]) -> String {
        let path = self.folder.path().join(file);
        fs::write(&path, json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// What `nodewright render` makes of objects: the object, and its name.
    fn rendered(&self, objects: &[Value]) -> (Value, String) {
        let path = self.write("render.json", objects);
        let run = run(&["render", "-f", &path, "--pool", "worker"]);
        assert_eq!(run.code, 0, "{}", run.errors);
        let object: Value = serde_saphyr::from_str(&run.text).unwrap();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        (object, name)
    }

    /// Serves the lists, with `refused` as the path that it refuses; returns the kubeconfig.
    fn serve(&self, refused: Option<&'static str>) -> String {
        let mut lists = BTreeMap::from([("/api/v1/nodes".to_owned(), list("Node", &self.objects))]);
        lists.extend(KINDS.map(|(kind, plural)| (format!("/apis/{API_VERSION}/{plural}"), list(kind, &self.objects))));
        let lists = Arc::new(lists);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let lists = lists.clone();
                thread::spawn(move || answer(&stream.unwrap(), &lists, refused));
            }
        });
        let cluster = json!([{"name": "c", "cluster": {"server": format!("http://{address}")}}]);
        let context = json!([{"name": "c", "context": {"cluster": "c", "user": "u"}}]);
        let config = json!({"apiVersion": "v1", "kind": "Config", "clusters": cluster, "contexts": context,
            "users": [{"name": "u", "user": {}}], "current-context": "c"});
        let path = self.folder.path().join("kubeconfig");
        fs::write(&path, config.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn plan(&self, arguments: &[&str]) -> Run {
        let kubeconfig = self.serve(None);
        run(&[&["plan", "pool", "--kubeconfig", &kubeconfig], arguments].concat())
    }

    fn printed(&self, arguments: &[&str]) -> String {
        let run = self.plan(arguments);
        assert_eq!((run.code, run.errors.as_str()), (0, ""));
        run.text
    }

    fn value(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.printed(&[arguments, &["-o", "json"]].concat())).unwrap()
    }
}

fn list(kind: &str, objects: &[Value]) -> Vec<Value> {
    let mut items: Vec<_> = objects.iter().filter(|it| it["kind"] == kind).cloned().collect();
    // As an API server lists them.
    items.iter_mut().filter_map(Value::as_object_mut).for_each(|item| {
        item.remove("apiVersion");
        item.remove("kind");
    });
    items
}

/// Answers requests of a connection, in pages.
fn answer(stream: &TcpStream, lists: &BTreeMap<String, Vec<Value>>, refused: Option<&str>) {
    const PAGE: usize = 40;
    let mut lines = BufReader::new(stream).lines();
    while let Some(Ok(line)) = lines.next() {
        let Some(path) = line.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()) else { continue };
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let begin: usize = query.rsplit('=').next().and_then(|token| token.parse().ok()).unwrap_or_default();
        let (code, body) = match lists.get(path) {
            Some(_) if refused == path.rsplit('/').next() => {
                let text = "nodes is forbidden: User \"u\" cannot list resource \"nodes\" in API group \"\" at the cluster scope";
                (403, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": text, "code": 403}))
            }
            Some(items) => {
                let end = items.len().min(begin + PAGE);
                let next = if end < items.len() { end.to_string() } else { String::new() };
                let metadata = json!({"resourceVersion": "1", "continue": next});
                (200, json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items[begin..end]}))
            }
            None => (
                404,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "none", "code": 404}),
            ),
        };
        let body = body.to_string();
        let head =
            format!("HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
        (&*stream).write_all((head + &body).as_bytes()).unwrap();
    }
}

fn run(arguments: &[&str]) -> Run {
    let output = Command::new(env!("CARGO_BIN_EXE_nodewright")).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code().unwrap(), text: text(output.stdout), errors: text(output.stderr) }
}

fn pool_of(spec: &Value) -> Value {
    let mut all = json!({"nodeSelector": {"matchLabels": {WORKER: ""}}, "machineConfigSelector": {"matchLabels": {ROLE: "worker"}}});
    spec.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
    json!({"apiVersion": API_VERSION, "kind": "MachineConfigPool", "metadata": {"name": "worker", "uid": "w", "labels": {"p": "w"}}, "spec": all})
}

fn config(content: &str) -> Value {
    let files = json!([{"path": "/etc/a", "contents": {"source": format!("data:,{content}")}}]);
    json!({"apiVersion": API_VERSION, "kind": "MachineConfig", "metadata": {"name": "00-a", "uid": "a", "labels": {ROLE: "worker"}},
        "spec": {"config": {"ignition": {"version": "3.5.0"}, "storage": {"files": files}}}})
}

/// A node that runs a configuration; `TARGET` for the pool's.
fn node(name: &str, zone: &str, current: &str) -> Value {
    let said = json!({format!("{PREFIX}currentConfig"): current, format!("{PREFIX}desiredConfig"): current, format!("{PREFIX}state"): "Done"});
    let labels = json!({WORKER: "", "topology.kubernetes.io/zone": zone});
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name, "labels": labels, "annotations": said},
        "spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

fn nodes(count: usize) -> Vec<Value> {
    (0..count).map(|at| node(&format!("n-{at:03}"), &format!("z{}", at * 2 / count), "TARGET")).collect()
}

#[test]
fn a_change_in_a_file_is_planned_with_its_cost() {
    let mut all = nodes(3);
    all[0]["spec"]["unschedulable"] = true.into();
    all.push(node("n-old", "z0", "rendered-worker-gone"));
    all.push(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n-bare", "labels": {WORKER: ""}}}));
    let cluster = Cluster::new(all, &json!({"maxUnavailable": "50%"}));
    let present = cluster.rendered(&[pool_of(&json!({})), config("old")]).1;
    let wanted = cluster.rendered(&[pool_of(&json!({})), config("secret")]).1;
    let file = cluster.write("change.json", &[config("secret")]);
    let short = format!("{}…", &present[..24]);
    let expected = format!(
        "pool worker: {present} -> {wanted} (would be made)\n\
         maxUnavailable: 2 (50% of 5), 1 unavailable now\n\
         cost from {present}: reboot\n  ~ spec.config.storage.files[/etc/a]  by 00-a\n\
         cost from rendered-worker-gone: unknown\n  MachineConfig rendered-worker-gone does not exist any more\n\n\
         ROUND  NODE   ZONE  FROM                       COST\n\
         1      n-001  z0    {short}  reboot\n\
         2      n-old  z0    rendered-worker-gone       unknown\n\
         3      n-002  z1    {short}  reboot\n\n\
         3 of 5 nodes move in 3 rounds; 0 run the target\n\
         n-000 is cordoned (unavailable)\n\
         n-bare has no agent: the annotation machineconfiguration.openshift.io/currentConfig is not set\n"
    );
    assert_eq!(cluster.printed(&["worker", "-f", &file]), expected);
    let value = cluster.value(&["worker", "-f", &file, "--node-name", "n-001"]);
    let order: Vec<_> = value["rounds"].as_array().unwrap().iter().map(|round| &round[0]["node"]).collect();
    assert_eq!(order, ["n-old", "n-002", "n-001"], "the manager's own node is last");
    assert_eq!((&value["rounds"][0][0]["drains"], &value["rounds"][1][0]["reboots"]), (&Value::Null, &json!(true)));
    let yaml = cluster.printed(&["worker", "-f", &file, "--node-name", "n-001", "-o", "yaml"]);
    assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), value);
}

#[test]
fn a_cluster_as_it_is_has_nothing_to_do_or_says_what_is_in_the_way() {
    let cluster = Cluster::new(nodes(2), &json!({}));
    let text = cluster.printed(&["worker"]);
    assert!(
        text.ends_with(
            "maxUnavailable: 1 (default), 0 unavailable now\n\n0 of 2 nodes move in 0 rounds; 2 run the target\n"
        ),
        "{text}"
    );
    let mut all = vec![node("a", "z", "TARGET"), node("b", "z", "other")];
    all[0]["status"]["conditions"][0]["status"] = "Unknown".into();
    let cluster = Cluster::new(all, &json!({"paused": true, "maxUnavailable": 0}));
    let text = cluster.printed(&["worker"]);
    assert!(text.contains("the pool is paused: the rounds begin once spec.paused is false\nmaxUnavailable: 1 (spec: 0), 1 unavailable now"), "{text}");
    let end = "0 of 2 nodes move in 0 rounds; 1 run the target; no round can begin, as 1 are unavailable: a is not ready\n\
               a is not ready (unavailable)\nb waits, as no more nodes may be unavailable\n";
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn many_nodes_are_printed_by_group() {
    let mut all = nodes(300);
    all.extend((0..120).map(|at| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("x-{at:03}"), "labels": {WORKER: ""}}})));
    let cluster = Cluster::new(all, &json!({"maxUnavailable": 7}));
    let file = cluster.write("change.json", &[config("new")]);
    let text = cluster.printed(&["worker", "-f", &file]);
    let lines: Vec<_> =
        text.lines().skip(5).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert!(lines[1].starts_with("1-22 150: n-000, n-001 and 148 more z0 rendered-worker-"), "{text}");
    assert!(lines[2].starts_with("22-43 150: n-150, n-151 and 148 more z1 rendered-worker-"), "{text}");
    assert_eq!(lines[4], "300 of 420 nodes move in 43 rounds; 0 run the target");
    assert!(lines[5].starts_with("120: x-000, x-001 and 118 more: has no agent"), "{text}");
    assert_eq!(cluster.value(&["worker", "-f", &file])["rounds"].as_array().unwrap().len(), 43);
}

/// The manager would generate a MachineConfig of it, which the pool selects.
#[test]
fn a_kubelet_config_is_planned_as_it_is_rendered() {
    let mut cluster = Cluster::new(nodes(1), &json!({}));
    let mut base = config("%7B%7D");
    base["metadata"]["name"] = "01-kubelet".into();
    base["spec"]["config"]["storage"]["files"][0]["path"] = "/etc/kubernetes/kubelet.conf".into();
    cluster.objects.push(base.clone());
    let kubelet = json!({"apiVersion": API_VERSION, "kind": "KubeletConfig", "metadata": {"name": "k"},
        "spec": {"kubeletConfig": {"maxPods": 100}, "machineConfigPoolSelector": {"matchLabels": {"p": "w"}}}});
    let wanted = cluster.rendered(&[pool_of(&json!({})), config("old"), base, kubelet.clone()]).1;
    let file = cluster.write("kubelet.json", &[kubelet]);
    let value = cluster.value(&["worker", "-f", &file]);
    assert_eq!(value["target"], json!({"name": wanted, "exists": false, "held": null}));
    assert_eq!(
        value["costs"][0]["changes"][0],
        "+ spec.config.storage.files[/etc/kubernetes/kubelet.conf]  by 99-worker-generated-kubelet"
    );
}

#[test]
fn errors_name_what_is_wrong_and_what_to_do() {
    let cluster = Cluster::new(nodes(1), &json!({}));
    let error = |arguments: &[&str]| {
        let run = cluster.plan(arguments);
        assert_eq!((run.code, run.text.as_str()), (1, ""), "{}", run.errors);
        run.errors
    };
    assert_eq!(error(&["gpu"]), "error: MachineConfigPool gpu: not found: there are worker\n");
    let mut wrong = config("x");
    wrong["spec"]["config"]["storage"]["files"][0]["mode"] = 2541.into();
    let file = cluster.write("wrong.json", &[wrong]);
    let text = error(&["worker", "-f", &file]);
    assert!(
        text.starts_with(&format!(
            "error: {file}: MachineConfig 00-a: spec.config.storage.files[0].mode: Invalid value"
        )),
        "{text}"
    );
    let mut refused = config("old");
    refused["spec"]["fips"] = true.into();
    let text = error(&["worker", "-f", &cluster.write("fips.json", &[refused])]);
    assert!(text.starts_with("error: MachineConfigPool worker: the target stays: spec.fips: Forbidden"), "{text}");
    let file = cluster.write("empty.json", &[]);
    assert_eq!(error(&["worker", "-f", &file]), format!("error: there is no object of {API_VERSION} in the files\n"));
    let kubeconfig = cluster.serve(Some("nodes"));
    let denied = run(&["plan", "pool", "worker", "--kubeconfig", &kubeconfig]);
    let text = "error: failed to list nodes: nodes is forbidden: User \"u\" cannot list resource \"nodes\" in API group \"\" at the cluster scope\n";
    assert_eq!((denied.code, denied.errors.as_str()), (1, text));
    let context = run(&["plan", "pool", "worker", "--kubeconfig", &kubeconfig, "--context", "none"]);
    assert!(
        context.code == 1 && context.errors.contains("--context") && context.errors.contains("none"),
        "{}",
        context.errors
    );
    assert_eq!(run(&["plan", "pool"]).code, 2);
    assert_eq!(run(&["plan", "pool", "worker", "-o", "wide"]).code, 2);
}
