//! Compares `config/crd` with the generated definitions. `UPDATE_CRDS=1` writes the files.

mod support;

use nodewright_api::crd;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};
use support::{as_json, definitions};

const HEADER: &str = "# Made from the code of the crate nodewright-api by its tests (UPDATE_CRDS=1); do not edit.\n";

/// Folders of `config/crd`: its own definitions, and those that are installed by themselves.
fn folders() -> [(&'static str, Vec<Value>); 2] {
    [("", definitions()), ("machine-config/", as_json(&crd::machine_config()))]
}

/// The content of `config/crd`, by path.
fn files() -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    for (folder, definitions) in folders() {
        let mut resources = String::new();
        for definition in definitions {
            let plural = definition["spec"]["names"]["plural"].as_str().expect("a plural");
            let group = definition["spec"]["group"].as_str().expect("a group");
            let path = format!("bases/{group}_{plural}.yaml");
            resources.extend(["- ", &path, "\n"]);
            let yaml = serde_saphyr::to_string(&definition).expect("writable as YAML");
            files.insert(PathBuf::from(format!("{folder}{path}")), format!("{HEADER}{yaml}"));
        }
        let kustomization = format!(
            "{HEADER}apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n{resources}"
        );
        files.insert(PathBuf::from(format!("{folder}kustomization.yaml")), kustomization);
    }
    files
}

fn all_definitions() -> Vec<Value> {
    folders().into_iter().flat_map(|(_, definitions)| definitions).collect()
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
    for (folder, _) in folders() {
        let bases = Path::new(folder).join("bases");
        for entry in fs::read_dir(directory().join(&bases)).expect("a folder of definitions") {
            let path = bases.join(entry.expect("an entry").file_name());
            assert!(known.contains_key(&path), "{} is not generated", path.display());
        }
    }
}

#[test]
fn the_files_can_be_read_back() {
    for (path, content) in files() {
        if path.parent().is_some_and(|folder| folder.ends_with("bases")) {
            let value: Value = serde_saphyr::from_str(&content).expect("YAML");
            assert!(all_definitions().contains(&value), "{} is another object", path.display());
        }
    }
}

#[test]
fn schemas_are_structural() {
    for definition in all_definitions() {
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

/// OpenShift's names, columns and subresources. `mc` is the short name of a Machine.
#[test]
fn node_configuration_has_the_names_of_openshift_and_a_column_for_the_target_after_them() {
    let found: Vec<_> = crd::machine_config()
        .into_iter()
        .map(|definition| {
            let version = &definition.spec.versions[0];
            let columns = version.additional_printer_columns.iter().flatten().map(|column| column.name.clone());
            let columns = columns.collect::<Vec<_>>().join(" ");
            let short = definition.spec.names.short_names.unwrap_or_default().join(" ");
            let status = version.subresources.as_ref().is_some_and(|subresources| subresources.status.is_some());
            assert_eq!((definition.spec.scope.as_str(), version.name.as_str()), ("Cluster", "v1"));
            format!("{} [{short}] {columns} {status}", definition.spec.names.plural)
        })
        .collect();
    assert_eq!(
        found,
        [
            "controllerconfigs []  true",
            "kubeletconfigs []  true",
            "machineconfigpools [mcp] Config Updated Updating Degraded MachineCount ReadyMachineCount UpdatedMachineCount \
             DegradedMachineCount Age Target true",
            "machineconfigs [] GeneratedByController IgnitionVersion Age false",
        ]
    );
}

/// Each field of a spec may be absent: what an older or newer operator leaves out is no error.
#[test]
fn no_field_of_a_spec_of_node_configuration_is_required() {
    for definition in as_json(&crd::machine_config()) {
        let spec = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        assert!(spec["properties"].is_object() && spec["required"].is_null(), "{}", definition["metadata"]["name"]);
    }
}
