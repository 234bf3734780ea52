//! The unit tables of machine-config-operator, as data in `tables/`. Each test has the name of the table's own test. What differs
//! on purpose stands in `docs/reference/mco-tables.md`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use nodewright_api::RawJson;
use nodewright_api::field::FieldPath;
use nodewright_api::machine_config::MachineConfigSpec;
use nodewright_render::change::{Action, FilePolicy, Policy, Waiver, cost, irreconcilable};
use nodewright_render::ignition::{VERSION, parse};
use nodewright_render::{Input, Options, RenderError, Rendered, RenderedSpec, render, rules};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// The rows of a table, of which there must be so many.
fn rows(table: &str, count: usize) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/tables/{table}.yaml"));
    let table: Value = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let rows = table["rows"].as_array().unwrap().clone();
    assert_eq!(rows.len(), count);
    rows
}

fn name(row: &Value) -> &str {
    row["name"].as_str().unwrap()
}

/// The rows of a table that belong to one of its tests.
fn rows_of(table: &str, count: usize, test: &str) -> Vec<Value> {
    rows(table, count).into_iter().filter(|row| row["test"] == test).collect()
}

fn spec(value: &Value) -> MachineConfigSpec {
    serde_json::from_str(&value.to_string()).unwrap()
}

/// Renders MachineConfigs as a table writes them.
fn render_inputs(inputs: &Value, options: &Options) -> Result<Rendered, Vec<RenderError>> {
    let inputs = inputs.as_array().unwrap();
    let specs: Vec<_> = inputs.iter().map(|input| spec(&input["spec"])).collect();
    let inputs: Vec<_> = inputs
        .iter()
        .zip(&specs)
        .map(|(input, spec)| Input { name: name(input), role: input["role"].as_str(), is_generated: false, spec })
        .collect();
    render(&inputs, options)
}

/// Renders one MachineConfig with files.
fn render_files(files: &Value) -> Rendered {
    let config = json!({"ignition": {"version": VERSION}, "storage": {"files": files}});
    let inputs = json!([{"name": "a", "role": "worker", "spec": {"config": config}}]);
    render_inputs(&inputs, &Options::default()).unwrap()
}

/// A rendered spec with what is added to an empty config.
fn rendered(added: &Value, fips: bool) -> Result<RenderedSpec, Vec<nodewright_api::field::FieldError>> {
    let mut config = json!({"ignition": {"version": VERSION}});
    for (field, value) in added.as_object().unwrap() {
        config[field] = value.clone();
    }
    let config = Some(RawJson::from(&config));
    RenderedSpec::read(&MachineConfigSpec { config, fips, ..MachineConfigSpec::default() })
}

#[test]
fn test_parse_and_convert() {
    for row in rows("ignition-parse", 9) {
        let keys = row.get("keys").cloned().unwrap_or(json!(["5678", "abc"]));
        let passwd = json!({"users": [{"name": "core", "sshAuthorizedKeys": keys}]});
        let config = json!({"ignition": {"version": row["version"]}, "passwd": passwd});
        let result = parse(&config.to_string(), &FieldPath::new("spec"));
        if row["expect"] == "error" || row["version"] == "2.2.0" {
            let errors = result.expect_err(name(&row));
            assert_eq!(errors[0].path.as_str(), "spec.ignition.version", "{}", name(&row));
            assert_eq!(errors[0].value, row["version"]);
            assert!(errors[0].detail.contains("supported versions: 3.0.0, 3.1.0"), "{}", errors[0]);
            continue;
        }
        let config = result.unwrap_or_else(|errors| panic!("{}: {errors:?}", name(&row))).config;
        assert_eq!(config.get("/ignition/version"), Some(&row["expect"]), "{}", name(&row));
        assert_eq!(config.get("/passwd"), Some(&passwd), "{}", name(&row));
    }
}

#[test]
fn versions_between_and_above_are_raised_and_refused() {
    let config = |version: &str| json!({"ignition": {"version": version}}).to_string();
    let at = FieldPath::new("spec");
    assert_eq!(parse(&config("3.2.0"), &at).unwrap().config.get("/ignition/version"), Some(&json!("3.5.0")));
    for (version, text) in [("3.6.0", "\"3.6.0\": this version"), ("2.2.0", "\"2.2.0\": configs of Ignition 2")] {
        let errors = parse(&config(version), &at).unwrap_err();
        assert!(errors[0].to_string().contains(text), "{}", errors[0]);
    }
}

#[test]
fn test_validate_ignition() {
    for row in rows("ignition-validate", 4) {
        let config = Some(&row["config"]).filter(|config| !config.is_null()).map(RawJson::from);
        let result = rules::read(&MachineConfigSpec { config, ..MachineConfigSpec::default() }, None);
        assert_eq!(result.is_ok(), row["expect"] == "valid", "{}: {result:?}", name(&row));
    }
}

#[test]
fn test_merge_machine_configs() {
    for row in rows("ignition-merge", 3) {
        let default = row["default_os_image"].as_str().unwrap().to_owned();
        // The extension is none of OpenShift's.
        let options = Options { os_image_url: default, extensions: None, ..Options::default() };
        let result =
            render_inputs(&row["inputs"], &options).unwrap_or_else(|errors| panic!("{}: {errors:?}", name(&row)));
        assert_eq!(serde_json::to_value(&result.spec).unwrap(), row["expect"], "{}", name(&row));
    }
}

#[test]
fn test_ignition_merge_compressed() {
    for row in rows("ignition-compression", 2) {
        let input = |name: &str, file: &Value| {
            let config = json!({"ignition": {"version": VERSION}, "storage": {"files": [file]}});
            json!({"name": name, "role": "worker", "spec": {"config": config}})
        };
        let inputs = json!([input("a", &row["parent"]), input("b", &row["child"])]);
        let result = render_inputs(&inputs, &Options::default()).unwrap();
        let contents = &result.spec.config.list("/storage/files")[0]["contents"];
        assert_eq!(contents.get("compression"), None, "{}", name(&row));
        let text = contents["source"].as_str().unwrap().strip_prefix("data:,").unwrap().replace("%20", " ");
        assert_eq!(text, row["expect"]["content"], "{}", name(&row));
    }
}

#[test]
fn a_child_without_content_leaves_the_compression_of_its_parent() {
    let input = |name: &str, file: Value| {
        let config = json!({"ignition": {"version": VERSION}, "storage": {"files": [file]}});
        json!({"name": name, "role": "worker", "spec": {"config": config}})
    };
    let contents = json!({"compression": "gzip", "source": "data:;base64,H4sIAAAAAAAAA0vLz+cCAKhlMn4EAAAA"});
    let inputs = json!([
        input("a", json!({"path": "/etc/a", "contents": contents})),
        input("b", json!({"path": "/etc/a", "mode": 384})),
    ]);
    let result = render_inputs(&inputs, &Options::default()).unwrap();
    assert_eq!(result.spec.config.list("/storage/files")[0]["contents"], contents);
}

#[test]
fn test_set_default_file_overwrite() {
    for row in rows("ignition-overwrite", 1) {
        let result = render_files(&row["files"]);
        for (file, expected) in result.spec.config.list("/storage/files").iter().zip(row["expect"].as_array().unwrap())
        {
            assert_eq!((&file["path"], &file["overwrite"]), (&expected["path"], &expected["overwrite"]));
        }
        let spec = serde_json::to_value(&result.spec).unwrap();
        let empty = json!([]);
        assert_eq!((&spec["kernelArguments"], &spec["extensions"]), (&empty, &empty));
        assert_eq!(spec["kernelType"], "default");
    }
}

fn is_reconcilable(row: &Value) -> bool {
    let waived = row["waive"].as_array().into_iter().flatten().map(|part| match part.as_str().unwrap() {
        "Disks" => Waiver::Disks,
        "FileSystems" => Waiver::FileSystems,
        "Raid" => Waiver::Raid,
        other => panic!("unknown waiver {other}"),
    });
    let waived: Vec<_> = waived.collect();
    let old = rendered(&row["old"], false).unwrap();
    // A config that cannot be read cannot be reached.
    let Ok(new) = rendered(&row["new"], row["new_fips"] == true) else { return false };
    irreconcilable(&old, &new, &waived).is_empty()
}

#[test]
fn test_is_rendered_config_reconcilable() {
    for row in rows("reconcile", 17) {
        assert_eq!(is_reconcilable(&row), row["expect"] == true, "{}", name(&row));
    }
}

#[test]
fn test_reconcilable_ssh() {
    for row in rows("reconcile-ssh", 6) {
        assert_eq!(is_reconcilable(&row), row["expect"] == true, "{}", name(&row));
    }
}

/// Sections of which no row speaks.
#[test]
fn what_else_is_reconcilable() {
    let link = json!({"storage": {"links": [{"path": "/a", "target": "/b"}]}});
    let directory = json!({"storage": {"directories": [{"path": "/a"}]}});
    let append = json!({"storage": {"files": [{"path": "/a", "append": [{"source": "data:,a"}]}]}});
    let hash = |hash: &str| json!({"passwd": {"users": [{"name": "core", "passwordHash": hash}]}});
    for (case, old, new, expected) in [
        ("link added", json!({}), link.clone(), false),
        ("link removed", link.clone(), json!({}), true),
        ("same link", link.clone(), link, true),
        ("directory added", json!({}), directory.clone(), false),
        ("directory removed", directory, json!({}), true),
        ("append", append.clone(), append, false),
        ("password", hash("a"), hash("b"), true),
    ] {
        assert_eq!(is_reconcilable(&json!({"old": old, "new": new})), expected, "{case}");
    }
    let disks = json!({"old": {"storage": {"disks": [{"device": "/one"}]}}, "new": {}, "waive": ["Raid"]});
    assert!(!is_reconcilable(&disks), "a waiver of another section");
    let on = rendered(&json!({}), true).unwrap();
    assert_eq!(irreconcilable(&on, &rendered(&json!({}), false).unwrap(), &[]).len(), 1, "fips switched off");
}

#[test]
fn test_validate_machine_config_extensions() {
    for row in rows("extensions", 2) {
        let result =
            rules::read(&spec(&json!({"extensions": row["extensions"]})), Options::default().extensions.as_deref());
        assert_eq!(result.is_ok(), row["expect"] == "valid", "{}", name(&row));
        let errors = result.err().map(|errors| nodewright_api::field::summary(&errors)).unwrap_or_default();
        for extension in row["names_in_error"].as_array().into_iter().flatten() {
            assert!(errors.contains(extension.as_str().unwrap()), "{errors}");
        }
    }
}

#[test]
fn test_ign_validation_generate_rendered_machine_config() {
    for row in rows_of("render-rules", 8, "TestIgnValidationGenerateRenderedMachineConfig") {
        let result = render_inputs(&row["inputs"], &Options::default());
        assert_eq!(result.is_ok(), row["expect"] == "rendered", "{}: {result:?}", name(&row));
    }
}

#[test]
fn test_generate_machine_config_override_os_image_url() {
    for row in rows_of("render-rules", 8, "TestGenerateMachineConfigOverrideOSImageURL") {
        let result = render_inputs(&row["inputs"], &Options::default())
            .unwrap_or_else(|errors| panic!("{}: {errors:?}", name(&row)));
        assert_eq!(result.spec.os_image_url, row["expect"]["osImageURL"].as_str().unwrap(), "{}", name(&row));
    }
}

#[test]
fn test_generate_machine_config_validation() {
    for row in rows_of("render-rules", 8, "TestGenerateMachineConfigValidation") {
        let present = rendered(&json!({}), row["present"]["fips"] == true).unwrap();
        let result = render_inputs(&row["inputs"], &Options::default()).unwrap();
        assert_eq!(irreconcilable(&present, &result.spec, &[]).is_empty(), row["expect"] != "error", "{}", name(&row));
    }
}

/// A rendered spec as the rows of `change-cost` write it.
fn with_files(side: &Value) -> RenderedSpec {
    let files: Vec<_> = side["files"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(path, text)| json!({"path": path, "contents": {"source": format!("data:,{}", text.as_str().unwrap())}}))
        .collect();
    let users: Vec<_> =
        side.get("key").map(|key| json!({"name": "core", "sshAuthorizedKeys": [key]})).into_iter().collect();
    let mut spec = rendered(&json!({"storage": {"files": files}, "passwd": {"users": users}}), false).unwrap();
    side["osImageURL"].as_str().unwrap_or("image-1").clone_into(&mut spec.os_image_url);
    spec.kernel_arguments = serde_json::from_value(side.get("kernelArguments").cloned().unwrap_or(json!([]))).unwrap();
    spec
}

#[test]
fn test_calculate_post_config_change_action() {
    for row in rows("change-cost", 14) {
        let found = cost(&with_files(&row["old"]), &with_files(&row["new"]), &Policy::default()).to_string();
        let expected = match name(&row) {
            // Newer than the table: registries may need a drain, which the daemon knows better.
            "registries" | "reload-beats-none" | "registries-removed" => "drain, reload crio.service",
            // Newer than the table: the bundle is read by a service of its own as well.
            "user-ca" | "restart-beats-reload" => "restart coreos-update-ca-trust.service, restart crio.service",
            _ => match row["expect"].as_str().unwrap() {
                "reload crio" => "reload crio.service",
                expected => expected,
            },
        };
        assert_eq!(found, expected, "{}", name(&row));
    }
}

#[test]
fn test_find_closest_file_policy_path_match() {
    let actions = |text: &str| match text {
        "none" => vec![],
        "reboot" => vec![Action::Reboot],
        text => vec![Action::Reload(text.trim_start_matches("reload ").to_owned())],
    };
    let policy = |row: &Value| {
        let files = row["policies"].as_array().unwrap().iter().map(|policy| FilePolicy {
            path: policy["path"].as_str().unwrap().to_owned(),
            actions: actions(policy["action"].as_str().unwrap()),
        });
        Policy { files: files.collect() }
    };
    for row in rows("change-policy-path", 5) {
        let expected = row["expect"].as_str().map(actions);
        let policy = policy(&row);
        assert_eq!(policy.of_file(row["path"].as_str().unwrap()), expected.as_deref(), "{}", name(&row));
    }
    // A prefix of the text is no folder of the path.
    let neighbour = policy(&json!({"policies": [{"path": "/etc/mco/f", "action": "none"}]}));
    assert_eq!(neighbour.of_file("/etc/mco/f1"), None);
}
