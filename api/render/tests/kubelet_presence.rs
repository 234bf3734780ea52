//! What null, empty and zero values of a KubeletConfig do to each field that the nodes of a pool have: a table of all fields of the
//! kubelet. `UPDATE_GOLDEN=1` writes it; a change of it changes nodes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::{env, fs, path::Path};

use nodewright_api::machine_config::{KubeletConfigSpec, MachineConfigPoolSpec, MachineConfigSpec};
use nodewright_render::{
    RenderedSpec,
    ignition::Config,
    kubelet::{KUBELET_CONF, generate},
};
use serde_json::{Value, json};

const FIELDS: &str = include_str!("../src/kubelet/fields.txt");

/// A value of a type, and its empty and zero values as far as it has them.
fn values(field: &str, kind: &str) -> (Value, Option<Value>, Option<Value>) {
    match kind {
        "boolean" => (json!(true), None, Some(json!(false))),
        "duration" => (json!("1m0s"), Some(json!("")), Some(json!("0s"))),
        "integer" => (json!(7), None, Some(json!(0))),
        "number" => (json!(0.7), None, Some(json!(0))),
        "string" => (json!("x"), Some(json!("")), None),
        "list" => (json!([{"a": "b"}]), Some(json!([])), None),
        "strings" => (json!(["x"]), Some(json!([])), None),
        "texts" if field.starts_with("eviction") => (json!({"memory.available": "100Mi"}), Some(json!({})), None),
        "texts" => (json!({"a": "1"}), Some(json!({})), None),
        _ => (json!({"a": "b"}), Some(json!({})), None),
    }
}

fn nested(path: &str, value: Value) -> Value {
    path.rsplit('.').fold(value, |value, key| json!({key: value}))
}

fn of_pool(kubelet: &Value) -> Config {
    let text = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, kubelet.to_string());
    let files = json!([{"path": KUBELET_CONF, "contents": {"source": format!("data:;base64,{text}")}}]);
    let config = json!({"ignition": {"version": "3.5.0"}, "storage": {"files": files}});
    let spec: MachineConfigSpec = serde_json::from_value(json!({"config": config})).unwrap();
    RenderedSpec::read(&spec).unwrap().config
}

/// What a value of a user makes of one that a pool has.
fn outcome(pool: &str, path: &str, has: &Value, user: &Value) -> &'static str {
    let spec: KubeletConfigSpec = serde_json::from_value(json!({"kubeletConfig": nested(path, user.clone())})).unwrap();
    let base = of_pool(&nested(path, has.clone()));
    let Ok(made) = generate(pool, &MachineConfigPoolSpec::default(), &base, &spec) else { return "refused" };
    let config = RenderedSpec::read(&made).unwrap().config;
    let file = config.list("/storage/files").iter().find(|file| file["path"] == KUBELET_CONF).unwrap();
    let digits = file["contents"]["source"].as_str().unwrap().rsplit(',').next().unwrap();
    let text = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, digits).unwrap();
    let found: Value = serde_saphyr::from_slice(&text).unwrap();
    match found.pointer(&format!("/{}", path.replace('.', "/"))) {
        None => "removed",
        Some(found) if found == has => "kept",
        Some(found) if found == user => "set",
        Some(_) => "changed",
    }
}

/// The outcomes for a worker; behind a slash that for the control plane, if it is another one.
fn cell(path: &str, has: &Value, user: Option<&Value>) -> String {
    let Some(user) = user else { return "-".to_owned() };
    let [worker, master] = ["worker", "master"].map(|pool| outcome(pool, path, has, user));
    if worker == master { worker.to_owned() } else { format!("{worker}/{master}") }
}

#[test]
fn null_empty_and_zero_of_each_field() {
    let mut table = "field\tnull\tempty\tzero\n".to_owned();
    for (path, kind) in FIELDS.lines().filter_map(|line| line.split_once(' ')) {
        let (has, empty, zero) = values(path, kind);
        let [null, empty, zero] =
            [Some(&Value::Null), empty.as_ref(), zero.as_ref()].map(|user| cell(path, &has, user));
        table.extend([path, "\t", &null, "\t", &empty, "\t", &zero, "\n"]);
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubelet-presence.tsv");
    if env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        fs::write(&golden, &table).unwrap();
    }
    let known = fs::read_to_string(&golden).unwrap_or_default();
    for (found, known) in table.lines().zip(known.lines()) {
        assert_eq!(found, known);
    }
    assert_eq!(table, known);
}

/// What others set is never changed by a value that says nothing.
#[test]
fn what_others_set_is_refused_or_kept() {
    for line in
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubelet-presence.tsv")).unwrap().lines()
    {
        let mut cells = line.split('\t');
        let field = cells.next().unwrap();
        let is_others = ["cgroupDriver", "clusterDNS", "clusterDomain", "failSwapOn", "featureGates"].contains(&field)
            || field.starts_with("memorySwap");
        for cell in cells.filter(|_| is_others) {
            assert!(["refused", "kept", "-"].contains(&cell), "{line}");
        }
        if field == "staticPodPath" {
            assert_eq!(line, "staticPodPath\tkept/refused\tset/refused\t-");
        }
    }
}
