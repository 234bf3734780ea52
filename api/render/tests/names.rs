//! Names of rendered configurations: the rules of machine-config-operator, and forty that no release may change.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use nodewright_api::machine_config::MachineConfigSpec;
use nodewright_render::{Input, Options, RenderedSpec, name, render};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const POOL: &str = "worker";

/// Renders MachineConfigs with `name`, `role` and `spec`.
fn rendered(inputs: &[Value]) -> RenderedSpec {
    let specs: Vec<MachineConfigSpec> =
        inputs.iter().map(|input| serde_json::from_str(&input["spec"].to_string()).unwrap()).collect();
    let inputs: Vec<_> = inputs
        .iter()
        .zip(&specs)
        .map(|(input, spec)| Input {
            name: input["name"].as_str().unwrap(),
            role: input["role"].as_str(),
            is_generated: input["generated"] == true,
            spec,
        })
        .collect();
    render(&inputs, &Options { extensions: None, ..Options::default() }).unwrap().spec
}

fn name_of(inputs: &[Value]) -> String {
    name(POOL, &rendered(inputs))
}

fn input(name: &str, spec: &Value) -> Value {
    json!({"name": name, "role": "worker", "spec": spec})
}

fn file(name: &str, path: &str, text: &str) -> Value {
    let file = json!({"path": path, "contents": {"source": format!("data:,{text}")}});
    input(name, &json!({"config": {"ignition": {"version": "3.5.0"}, "storage": {"files": [file]}}}))
}

#[test]
fn names_are_made_of_the_pool_and_thirty_two_digits() {
    let name = name_of(&[]);
    let digits = name.strip_prefix("rendered-worker-").unwrap();
    assert!(digits.len() == 32 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{name}");
}

#[test]
fn another_pool_has_the_same_digits() {
    let spec = rendered(&[file("a", "/etc/a", "1")]);
    let digits = |pool: &str| name(pool, &spec).strip_prefix(&format!("rendered-{pool}-")).unwrap().to_owned();
    assert_eq!(digits("worker"), digits("infra"));
}

#[test]
fn the_order_in_which_inputs_are_listed_makes_no_difference() {
    let inputs = [file("b", "/etc/a", "1"), file("a", "/etc/a", "2"), file("c", "/etc/c", "3")];
    let mut turned = inputs.clone();
    for _ in 0..inputs.len() {
        turned.rotate_left(1);
        assert_eq!(name_of(&inputs), name_of(&turned));
        turned.swap(0, 1);
        assert_eq!(name_of(&inputs), name_of(&turned));
    }
}

#[test]
fn names_of_inputs_only_matter_for_their_order() {
    let inputs = |first: &str, last: &str| [file(first, "/etc/a", "1"), file(last, "/etc/a", "2")];
    assert_eq!(name_of(&inputs("a", "b")), name_of(&inputs("00-base", "99-last")));
    assert_ne!(name_of(&inputs("a", "b")), name_of(&inputs("b", "a")));
}

#[test]
fn an_explicit_default_makes_no_difference() {
    let plain = [file("a", "/etc/a", "1")];
    let explicit = [file("a", "/etc/a", "1"), input("b", &json!({"kernelType": "default"})), input("c", &json!({}))];
    assert_eq!(name_of(&plain), name_of(&explicit));
    let empty = json!({"kernelArguments": [], "extensions": null, "fips": false, "osImageURL": ""});
    assert_eq!(name_of(&plain), name_of(&[file("a", "/etc/a", "1"), input("b", &empty)]));
}

#[test]
fn what_ignition_reads_as_absent_makes_no_difference() {
    let config = json!({
        "ignition": {"version": "3.2.0", "config": {"merge": []}, "timeouts": null},
        "passwd": {"users": []},
        "storage": {"files": [{"path": "/etc/a", "user": {}, "append": [], "mode": null, "contents": {"source": "data:,1"}}]},
    });
    assert_eq!(name_of(&[file("a", "/etc/a", "1")]), name_of(&[input("a", &json!({"config": config}))]));
}

#[test]
fn order_of_arguments_and_files_makes_another_name() {
    let arguments = |list: &[&str]| name_of(&[input("a", &json!({"kernelArguments": list}))]);
    assert_ne!(arguments(&["a", "b"]), arguments(&["b", "a"]));
    assert_ne!(arguments(&["a"]), arguments(&["a", "a"]));
    let files = |first: &str, last: &str| name_of(&[file("a", first, "1"), file("b", last, "1")]);
    assert_ne!(files("/etc/a", "/etc/b"), files("/etc/b", "/etc/a"));
}

#[test]
fn lists_are_written_even_if_they_are_empty() {
    let spec = serde_json::to_value(rendered(&[])).unwrap();
    assert_eq!((&spec["kernelArguments"], &spec["extensions"]), (&json!([]), &json!([])));
}

/// `golden-names.json` has inputs, the spec that is rendered of them, and its name. A test that fails here means that an
/// upgrade would make nodes reboot: the code is to be changed, not the file.
#[test]
fn forty_golden_names_stay() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden-names.json");
    let cases: Vec<Value> = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(cases.len(), 40);
    for (index, case) in cases.iter().enumerate() {
        let spec = rendered(case["inputs"].as_array().unwrap());
        assert_eq!(serde_json::to_value(&spec).unwrap(), case["spec"], "case {index}");
        assert_eq!(name(case["pool"].as_str().unwrap(), &spec), case["name"], "case {index}");
    }
}
