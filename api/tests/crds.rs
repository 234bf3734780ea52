//! Compares `config/crd` with the generated definitions. `UPDATE_CRDS=1` writes the files.

mod support;

use nodewright_api::crd;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};
use support::definitions;

const HEADER: &str = "# Made from the code of the crate nodewright-api by its tests (UPDATE_CRDS=1); do not edit.\n";

/// The content of `config/crd`, by path.
fn files() -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    let mut resources = String::new();
    for definition in definitions() {
        let plural = definition["spec"]["names"]["plural"].as_str().expect("a plural");
        let path = format!("bases/machine.sapcloud.io_{plural}.yaml");
        resources.extend(["- ", &path, "\n"]);
        let yaml = serde_saphyr::to_string(&definition).expect("writable as YAML");
        files.insert(PathBuf::from(path), format!("{HEADER}{yaml}"));
    }
    let kustomization =
        format!("{HEADER}apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n{resources}");
    files.insert(PathBuf::from("kustomization.yaml"), kustomization);
    files
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/crd")
}

#[test]
fn the_files_are_those_that_the_code_makes() {
    let update = env::var_os("UPDATE_CRDS").is_some_and(|value| value == "1");
    for (path, content) in files() {
        let path = directory().join(path);
        if update {
            fs::create_dir_all(path.parent().expect("a directory")).expect("the directory can be made");
            fs::write(&path, &content).expect("the file can be written");
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(found, content, "{} differs; run the test with UPDATE_CRDS=1", path.display());
    }
    check_that_no_other_file_lies_there(&files());
}

fn check_that_no_other_file_lies_there(known: &BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(directory().join("bases")).expect("config/crd/bases") {
        let path = Path::new("bases").join(entry.expect("an entry").file_name());
        assert!(known.contains_key(&path), "{} is not generated", path.display());
    }
}

#[test]
fn the_files_can_be_read_back() {
    for (path, content) in files() {
        if path.starts_with("bases") {
            let value: Value = serde_saphyr::from_str(&content).expect("YAML");
            assert!(definitions().contains(&value), "{} is another object", path.display());
        }
    }
}

#[test]
fn schemas_are_structural() {
    for definition in definitions() {
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        assert_eq!(schema["type"], "object");
        check_structural(schema, definition["metadata"]["name"].as_str().expect("a name"));
    }
}

/// Checks the rules of a structural schema, and ours: no defaults, nothing nullable, a description for each field.
fn check_structural(schema: &Value, path: &str) {
    let object = schema.as_object().expect("a schema is an object");
    for keyword in ["$ref", "default", "nullable", "oneOf", "anyOf", "allOf", "not", "title", "definitions"] {
        assert!(!object.contains_key(keyword), "{path} has {keyword}");
    }
    let int_or_string = schema["x-kubernetes-int-or-string"] == true;
    assert_ne!(schema["type"].is_string(), int_or_string, "{path} must have a type, or be an int or string");
    let properties = schema["properties"].as_object();
    assert!(properties.is_none() || !object.contains_key("additionalProperties"), "{path} has both");
    for (name, part) in properties.into_iter().flatten() {
        let path = format!("{path}.{name}");
        assert!(part["description"].is_string(), "{path} has no description");
        check_structural(part, &path);
    }
    for (keyword, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let Some(part) = object.get(keyword) {
            check_structural(part, &format!("{path}{mark}"));
        }
    }
}

#[test]
fn subresources_and_names_are_complete() {
    for definition in crd::all() {
        let version = &definition.spec.versions[0];
        let subresources = version.subresources.as_ref().expect("subresources");
        assert!(subresources.status.is_some());
        let scales = matches!(definition.spec.names.kind.as_str(), "MachineSet" | "MachineDeployment");
        let selector = subresources.scale.as_ref().and_then(|scale| scale.label_selector_path.as_deref());
        assert_eq!(selector, scales.then_some(".status.selector"));
    }
}
