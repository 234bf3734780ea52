//! `nodewright render` on real folders.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

/// What a run has printed, and its exit code.
#[derive(Debug)]
struct Run {
    code: i32,
    text: String,
    errors: String,
}

fn run_with(input: &str, arguments: &[&str]) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nodewright"))
        .arg("render")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code().unwrap(), text: text(output.stdout), errors: text(output.stderr) }
}

fn run(arguments: &[&str]) -> Run {
    run_with("", arguments)
}

/// The output of a run without an error.
fn printed(arguments: &[&str]) -> String {
    let run = run(arguments);
    assert_eq!((run.code, run.errors.as_str()), (0, ""));
    run.text
}

/// The lines on standard error of a run that ends with 1 and prints nothing.
fn errors(arguments: &[&str]) -> Vec<String> {
    let run = run(arguments);
    assert_eq!((run.code, run.text.as_str()), (1, ""), "{}", run.errors);
    run.errors.lines().map(str::to_owned).collect()
}

fn sample() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/samples/machine-config").to_str().unwrap().to_owned()
}

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

/// A folder with a pool `worker` and files.
fn folder(files: &[(&str, &str)]) -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let pool = "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfigPool\nmetadata: {name: worker}\n\
                spec: {machineConfigSelector: {matchLabels: {machineconfiguration.openshift.io/role: worker}}}\n";
    fs::write(folder.path().join("pool.yaml"), pool).unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let path = folder.path().to_str().unwrap().to_owned();
    (folder, path)
}

/// A MachineConfig that the pool selects, with this spec.
fn machine_config(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\n\
         metadata: {{name: {name}, labels: {{machineconfiguration.openshift.io/role: worker}}}}\nspec:\n{spec}"
    )
}

fn config(fields: &str) -> String {
    format!("  config:\n    ignition: {{version: 3.5.0}}\n{fields}")
}

fn file(path: &str, rest: &str) -> String {
    config(&format!("    storage: {{files: [{{path: {path}, {rest}}}]}}\n"))
}

#[test]
fn each_pool_of_the_sample_has_its_name() {
    let objects = documents(&printed(&["-f", &sample()]));
    let names: Vec<_> = objects.iter().map(|object| object["metadata"]["name"].as_str().unwrap()).collect();
    // No release may change them: it would make nodes reboot.
    assert_eq!(
        names,
        ["rendered-infra-06a0ecc1cb1cdcb408535b2ad9a75d91", "rendered-worker-3c9cb23ebc102893bdeacc793113b53a"]
    );
    let infra = &objects[0]["spec"];
    assert_eq!(infra["kernelArguments"], json!(["hugepagesz=2M", "hugepages=64", "nosmt"]));
    assert_eq!(infra["kernelType"], "realtime");
    assert!(infra["osImageURL"].as_str().unwrap().starts_with("registry.example.com/os@sha256:1111"));
    let motd = infra["config"]["storage"]["files"].as_array().unwrap().iter().find(|file| file["path"] == "/etc/motd");
    let expected =
        json!({"path": "/etc/motd", "mode": 420, "overwrite": true, "contents": {"source": "data:,infra%0A"}});
    assert_eq!(motd, Some(&expected), "new content is not compressed, the mode stays");
}

#[test]
fn one_pool_is_chosen_by_its_name() {
    let objects = documents(&printed(&["-f", &sample(), "--pool", "worker"]));
    assert_eq!(objects.len(), 1);
    let errors = errors(&["-f", &sample(), "--pool", "gpu"]);
    assert_eq!(errors, ["error: there is no MachineConfigPool gpu in the files, but infra, worker"]);
}

#[test]
fn files_lists_and_standard_input_are_the_same() {
    let whole = printed(&["-f", &sample()]);
    let files = ["infra.yaml", "worker.yaml", "kubelet_config.yaml", "controller_config.yaml", "pools.yaml"]
        .map(|file| format!("{}/{file}", sample()));
    let arguments: Vec<_> = files.iter().flat_map(|file| ["-f", file.as_str()]).collect();
    assert_eq!(printed(&arguments), whole);

    let items: Vec<Value> = files.iter().flat_map(|file| documents_of(file.into())).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let run = run_with(&list.to_string(), &["-f", "-"]);
    assert_eq!((run.code, run.text), (0, whole), "{}", run.errors);
}

/// The documents of a file, in which no mode has a zero at its beginning.
fn documents_of(path: PathBuf) -> Vec<Value> {
    documents(&fs::read_to_string(path).unwrap().replace("mode: 0644", "mode: 420"))
}

#[test]
fn ignition_configs_are_printed_alone() {
    let config: Value =
        serde_json::from_str(&printed(&["-f", &sample(), "--pool=infra", "-o=ignition", "--allow-incomplete"]))
            .unwrap();
    let object = &documents(&printed(&["-f", &sample(), "--pool", "infra"]))[0];
    assert_eq!(config, object["spec"]["config"]);
    let errors = errors(&["-f", &sample(), "-o", "ignition"]);
    assert_eq!(errors, ["error: there are several pools, choose one with --pool: infra, worker"]);
}

#[test]
fn what_is_printed_reads_back_as_what_was_rendered() {
    let text = "[Unit]\nDescription=Größe €\u{2028}\u{1f600} \\ \"q\" 'q' # no comment\n\n  A: = yes\n\tB= \n\n\n";
    let spec = json!({
        "config": {"ignition": {"version": "3.5.0"}, "systemd": {"units": [{"name": "a.service", "contents": text}]}},
        "kernelArguments": ["yes", "0644", "a: b", "- x", "", " ", "null", "~", "1e3", &"long ".repeat(40)],
    });
    let object = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": {"name": "a", "labels": {"machineconfiguration.openshift.io/role": "worker"}}, "spec": spec,
    });
    // JSON may have escapes that YAML does not have.
    let text = object.to_string().replace('\u{1f600}', "\\ud83d\\ude00");
    let (_folder, path) = folder(&[("a.json", &text)]);
    let printed = &documents(&printed(&["-f", &path]))[0]["spec"];
    assert_eq!(printed["config"], spec["config"]);
    assert_eq!(printed["kernelArguments"], spec["kernelArguments"]);
}

#[test]
fn explain_says_who_has_set_what_over_whom() {
    let explain = |path: &str| printed(&["-f", &sample(), "--pool", "infra", "--explain", path]);
    assert_eq!(
        explain("spec.config.storage.files[/etc/motd]"),
        "spec.config.storage.files[/etc/motd].contents.source: 00-infra-motd over 40-motd\n\
         spec.config.storage.files[/etc/motd].mode: 40-motd\n"
    );
    assert_eq!(explain("kernelArguments"), "spec.kernelArguments: 30-kernel, 10-infra-kernel\n");
    let errors = errors(&["-f", &sample(), "--pool", "infra", "--explain", "spec.fips"]);
    assert!(errors[0].starts_with("error: no MachineConfig sets anything at spec.fips: "), "{errors:?}");
}

#[test]
fn diff_says_what_a_change_costs() {
    let mode =
        |mode: &str| machine_config("a", &file("/etc/a", &format!("mode: {mode}, contents: {{source: 'data:,1'}}")));
    let pull_secret = |text: &str| {
        machine_config("b", &file("/var/lib/kubelet/config.json", &format!("contents: {{source: 'data:,{text}'}}")))
    };
    let (before, path) = folder(&[("a.yaml", &mode("0600")), ("b.yaml", &pull_secret("1"))]);
    let now = before.path().join("now.txt");
    fs::write(&now, printed(&["-f", &path])).unwrap();
    let diff = || printed(&["-f", &path, "--diff", now.to_str().unwrap()]);
    assert!(
        diff().starts_with("from rendered-worker-") && diff().ends_with("\ncost of each node: none\n"),
        "{}",
        diff()
    );

    fs::write(before.path().join("b.yaml"), pull_secret("2")).unwrap();
    let lines: Vec<_> = diff().lines().map(str::to_owned).collect();
    assert_eq!(lines[0], "~ spec.config.storage.files[/var/lib/kubelet/config.json]  by b");
    assert_eq!(lines[2], "cost of each node: none");

    fs::write(before.path().join("a.yaml"), mode("0644")).unwrap();
    assert!(diff().contains("~ spec.config.storage.files[/etc/a]  by a\n"), "{}", diff());
    assert!(diff().ends_with("\ncost of each node: reboot\n"), "{}", diff());

    fs::write(before.path().join("c.yaml"), machine_config("c", "  fips: true\n")).unwrap();
    let errors = errors(&["-f", &path, "--diff", now.to_str().unwrap()]);
    assert!(
        errors[0].starts_with("error: MachineConfigPool worker: spec.fips: Forbidden: a node cannot be"),
        "{errors:?}"
    );
}

#[test]
fn errors_name_file_object_and_field_and_all_are_shown() {
    let (_folder, path) = folder(&[
        ("good.yaml", &machine_config("good", &file("/etc/a", "mode: 0644"))),
        ("mode.yaml", &machine_config("mode", &file("/etc/b", "mode: 04755"))),
        ("old.yaml", &machine_config("old", "  config: {ignition: {version: 2.2.0}}\n")),
        ("type.yaml", &machine_config("type", &file("/etc/c", "mode: rw"))),
        ("spec.yaml", &machine_config("spec", "  kernelType: fast\n")),
    ]);
    let found = errors(&["-f", &path]);
    let expected = [
        format!(
            "error: {path}/mode.yaml: MachineConfig mode: spec.config.storage.files[0].mode: Invalid value: 2541: "
        ),
        format!("error: {path}/old.yaml: MachineConfig old: spec.config.ignition.version: Invalid value: \"2.2.0\": "),
        format!("error: {path}/spec.yaml: MachineConfig spec: spec.kernelType: Unsupported value: \"fast\": "),
        format!(
            "error: {path}/type.yaml: MachineConfig type: spec.config.storage.files[0].mode: Invalid value: must be an int"
        ),
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(&expected) {
        assert!(found.starts_with(expected), "{found}\n{expected}");
    }
}

#[test]
fn objects_that_cannot_be_read_are_named_with_their_file() {
    let good = machine_config("a", &file("/etc/a", "mode: 0644"));
    let (_folder, path) = folder(&[
        ("1.yaml", &good),
        ("2.yaml", &good),
        ("3.yaml", &machine_config("b", "  fips: [true]\n")),
        ("4.yaml", "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata: {}\n"),
        ("5.yaml", "a: [\n"),
        ("6.yaml", "kind: ConfigMap\napiVersion: v1\nmetadata: {name: not-ours}\n"),
        ("7.txt", "no object"),
    ]);
    let (_empty, empty) = folder(&[]);
    let found = errors(&["-f", &path]);
    // A file that is no YAML hides what is wrong in the others.
    assert!(
        found.len() == 1 && found[0].starts_with(&format!("error: {path}/5.yaml: must be YAML or JSON: ")),
        "{found:?}"
    );
    fs::remove_file(format!("{path}/5.yaml")).unwrap();
    assert_eq!(
        errors(&["-f", &path]),
        [
            format!("error: {path}/2.yaml: MachineConfig a: is in {path}/1.yaml as well"),
            format!("error: {path}/3.yaml: MachineConfig b: spec.fips: invalid type: sequence, expected a boolean"),
            format!("error: {path}/4.yaml: MachineConfig: metadata.name: Required value"),
        ]
    );
    let expected =
        "MachineConfigPool worker: spec.machineConfigSelector: Invalid value: no MachineConfig has these labels";
    assert_eq!(errors(&["-f", &empty]), [format!("error: {empty}/pool.yaml: {expected}")]);
    assert!(errors(&["-f", "/nowhere"])[0].starts_with("error: failed to read /nowhere: "));
}

#[test]
fn what_has_no_effect_is_a_warning_once() {
    let second = "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfigPool\nmetadata: {name: infra}\n\
                  spec: {machineConfigSelector: {matchLabels: {machineconfiguration.openshift.io/role: worker}}}\n";
    let (_folder, path) =
        folder(&[("a.yaml", &machine_config("a", &file("/etc/a", "Mode: 0644"))), ("infra.yaml", second)]);
    let run = run(&["-f", &path]);
    assert_eq!((run.code, documents(&run.text).len()), (0, 2), "{}", run.errors);
    let expected =
        [format!("warning: {path}/a.yaml: MachineConfig a: spec.config.storage.files[0].Mode: is no field of ")];
    let found: Vec<_> = run.errors.lines().collect();
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, expected) in found.iter().zip(&expected) {
        assert!(found.starts_with(expected), "{found}");
    }
}

/// Rendered MachineConfigs have no role. A selector may ask for just that, and those of other pools must not become parts.
#[test]
fn a_cluster_that_is_read_as_files_has_rendered_ones_that_are_no_inputs() {
    let object = |kind: &str, metadata: Value, spec: Value| {
        let version = "machineconfiguration.openshift.io/v1";
        json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
    };
    let role = "machineconfiguration.openshift.io/role";
    let selector = json!({"matchExpressions": [{"key": role, "operator": "NotIn", "values": ["master"]}]});
    let pool = object("MachineConfigPool", json!({"name": "edge"}), json!({"machineConfigSelector": selector}));
    let part =
        object("MachineConfig", json!({"name": "a", "labels": {role: "worker"}}), json!({"kernelArguments": ["a"]}));
    let generated = json!({"machineconfiguration.openshift.io/generated-by-controller-version": "any"});
    let owner = json!([{"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool", "name": "infra",
        "uid": "u", "controller": true}]);
    let rendered = |digit: &str, owners: &Value| {
        let name = format!("rendered-infra-{}", digit.repeat(32));
        let metadata = json!({"name": name, "annotations": generated, "ownerReferences": owners});
        object("MachineConfig", metadata, json!({"kernelArguments": ["b"]}))
    };
    let print = |items: &[Value]| {
        let run = run_with(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string(), &["-f", "-"]);
        assert_eq!((run.code, run.errors.as_str()), (0, ""));
        run.text
    };
    let files = print(&[pool.clone(), part.clone()]);
    // That of a pool, and one whose pool was deleted without it.
    assert_eq!(print(&[pool, part, rendered("1", &owner), rendered("2", &json!([]))]), files);
}

/// A KubeletConfig of all pools: what it makes of one pool is a part of what the other one inherits.
#[test]
fn what_kubelet_configs_make_is_rendered() {
    const ROLE: &str = "machineconfiguration.openshift.io/role";
    let object = |kind: &str, name: &str, rest: &str| {
        format!("apiVersion: machineconfiguration.openshift.io/v1\nkind: {kind}\nmetadata: {{name: {name}{rest}\n")
    };
    let pool = |name: &str, roles: &str| {
        let selector = format!("matchExpressions: [{{key: {ROLE}, operator: In, values: [{roles}]}}]");
        object("MachineConfigPool", name, &format!("}}\nspec: {{machineConfigSelector: {{{selector}}}}}"))
    };
    let kubelet = |name: &str, spec: &str| {
        let selector = "machineConfigPoolSelector: {matchExpressions: [{key: a, operator: DoesNotExist}]}";
        object("KubeletConfig", name, &format!("}}\nspec: {{{selector}, {spec}}}"))
    };
    let config = r#"{ignition: {version: 3.5.0}, storage: {files: [{path: /etc/kubernetes/kubelet.conf, contents: {source: "data:,maxPods:%20110"}}]}}"#;
    let base = object(
        "MachineConfig",
        "01-worker-kubelet",
        &format!(", labels: {{{ROLE}: worker}}}}\nspec: {{config: {config}}}"),
    );
    let files = |kubelets: &[String]| {
        let all = [vec![pool("worker", "worker"), pool("infra", "worker, infra"), base.clone()], kubelets.to_vec()];
        folder(&[("pool.yaml", &all.concat().join("---\n"))])
    };
    let first = kubelet("k", "kubeletConfig: {maxPods: 250}, logLevel: 4");
    let (_folder, path) = files(std::slice::from_ref(&first));
    for name in ["worker", "infra"] {
        let text = printed(&["-f", &path, "--pool", name, "--explain", "spec.config.storage.files"]);
        let set_by = format!(
            "spec.config.storage.files[/etc/kubernetes/kubelet.conf].contents.source: 99-{name}-generated-kubelet over"
        );
        assert!(text.contains(&set_by), "{text}");
        assert!(text.contains("files[/etc/systemd/system/kubelet.service.d/20-logging.conf]"), "{text}");
    }
    let (_folder, path) = files(&[first.clone(), kubelet("later", "kubeletConfig: {maxPods: 10}")]);
    let expected = "KubeletConfig later: pool infra: KubeletConfig k has the pool: merge the two";
    assert!(errors(&["-f", &path])[0].ends_with(expected));
    // Of the roles worker and infra, as for infra: what is generated for gpu has the role gpu.
    let (_folder, path) = folder(&[("pool.yaml", &[pool("gpu", "worker, infra"), base.clone(), first].join("---\n"))]);
    let expected = "KubeletConfig k: pool gpu: spec.machineConfigSelector: Invalid value: must include the role gpu, by which the \
                    pool has 99-gpu-generated-kubelet";
    assert!(errors(&["-f", &path])[0].ends_with(expected), "{:?}", errors(&["-f", &path]));
    let (_folder, path) = files(&[kubelet("wrong", "kubeletConfig: {maxPods: many}")]);
    let expected =
        "KubeletConfig wrong: pool infra: spec.kubeletConfig.maxPods: Invalid value: \"many\": must be an integer";
    assert!(errors(&["-f", &path])[0].ends_with(expected));
}

/// As `kubectl` reads them, so that a folder renders to what it is in a cluster.
#[test]
fn numbers_and_booleans_are_those_of_kubectl() {
    for (written, mode) in [("420", 420), ("0644", 420), ("0o644", 420), ("0x1a4", 420), ("0b110100100", 420)] {
        let (_folder, path) = folder(&[("a.yaml", &machine_config("a", &file("/etc/a", &format!("mode: {written}"))))]);
        let object = &documents(&printed(&["-f", &path]))[0];
        assert_eq!(object["spec"]["config"]["storage"]["files"][0]["mode"], mode, "{written}");
    }
    for (written, fips) in [("true", true), ("True", true), ("yes", true), ("on", true), ("no", false), ("off", false)]
    {
        let (_folder, path) = folder(&[("a.yaml", &machine_config("a", &format!("  fips: {written}\n")))]);
        assert_eq!(documents(&printed(&["-f", &path]))[0]["spec"]["fips"], fips, "{written}");
    }
}

#[test]
fn help_teaches() {
    let help = printed(&["--help"]);
    for text in ["--explain", "Who has set this file", "What would a change cost each node", "Exit codes"] {
        assert!(help.contains(text), "{text} is not in {help}");
    }
    assert_eq!(run(&[]).code, 2);
    assert_eq!(run(&["-f", ".", "-o", "toml"]).code, 2);
}

/// The paths of the files of a rendered MachineConfig.
fn paths(rendered: &Value) -> Vec<String> {
    let files = rendered["spec"]["config"]["storage"]["files"].as_array().unwrap();
    files.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_templates_make_of_the_controller_config_is_rendered() {
    let (sample, templates) = (sample(), format!("{}/templates", sample()));
    let rendered = documents(&printed(&["-f", &sample, "--templates", &templates, "--pool", "worker"])).remove(0);
    let paths_of_templates = ["/etc/crio/crio.conf.d/00-images.conf", "/etc/sysctl.d/20-metadata.conf"];
    assert!(
        paths_of_templates.iter().all(|path| paths(&rendered).iter().any(|it| it == path)),
        "{:?}",
        paths(&rendered)
    );
    assert!(!paths(&rendered).contains(&"/etc/kubernetes/ca.crt".to_owned()), "there are no certificates");
    let explained =
        printed(&["-f", &sample, "--templates", &templates, "--pool", "infra", "--explain", "spec.config.systemd"]);
    assert!(explained.contains("crio.service") && explained.contains("01-worker-container-runtime"), "{explained}");
    let without = documents(&printed(&["-f", &sample, "--pool", "worker"])).remove(0);
    assert_ne!(without["metadata"]["name"], rendered["metadata"]["name"]);
}

const CONTROLLER_CONFIG: &str = "apiVersion: machineconfiguration.openshift.io/v1\nkind: ControllerConfig\n\
                                 metadata: {name: machine-config-controller}\nspec: {clusterDNSIP: 10.0.0.10}\n";

/// In a cluster it would hold the targets of all pools.
#[test]
fn a_bad_controller_config_is_refused_by_path_and_rule() {
    let bad = CONTROLLER_CONFIG.replace("10.0.0.10", "10.0.0");
    let (_files, path) = folder(&[("controller.yaml", &bad), ("a.yaml", &machine_config("a", "  {}"))]);
    let object = format!("{path}/controller.yaml: ControllerConfig machine-config-controller");
    let rule = "spec.clusterDNSIP: Invalid value: \"10.0.0\": must be an IP address";
    assert_eq!(errors(&["-f", &path]), [format!("error: {object}: {rule}")]);
}

#[test]
fn what_is_wrong_with_templates_has_file_and_line() {
    let (_files, path) = folder(&[("controller.yaml", CONTROLLER_CONFIG), ("a.yaml", &machine_config("a", "  {}"))]);
    let templates = tempfile::tempdir().unwrap();
    let dir = templates.path().to_str().unwrap();
    let errors_of = |files: &[(&str, &str)]| {
        for (file, text) in files {
            let file = templates.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        errors(&["-f", &path, "--templates", dir])
    };
    assert!(errors_of(&[])[0].starts_with(&format!("error: {dir}: there is no template")));
    let file = "worker/b/_base/files/a.yaml";
    let found = errors_of(&[(file, "path: /a\nmode: {{.none}}\n")]);
    assert_eq!(found, [format!("error: {dir}/{file}:2: there is no field none")]);
    // As the controller, it takes no MachineConfig of others.
    let taken = "worker/a/_base/files/a.yaml";
    let found = errors_of(&[(file, "path: /a\n"), (taken, "path: /b\n")]);
    assert_eq!(found, [format!("error: {path}/a.yaml: MachineConfig a: {dir} makes one of this name, too")]);
    let (_files, path) = folder(&[("a.yaml", &machine_config("a", "  {}"))]);
    let found = errors(&["-f", &path, "--templates", dir]);
    assert!(found[0].starts_with("error: --templates: there is no ControllerConfig"), "{found:?}");
}

/// The Secret that the ControllerConfig names, and OpenShift's TLS profile.
#[test]
fn what_templates_read_beside_the_controller_config_is_among_the_files() {
    let named =
        CONTROLLER_CONFIG.replace("spec: {", "spec: {pullSecret: {namespace: openshift-config, name: pull-secret}, ");
    let secret = |kind: &str, key: &str| {
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{namespace: openshift-config, name: pull-secret}}\ntype: {kind}\ndata: {{{key}: e30=}}\n"
        )
    };
    let (kind, key) = ("kubernetes.io/dockerconfigjson", ".dockerconfigjson");
    let server = "apiVersion: config.openshift.io/v1\nkind: APIServer\nmetadata: {name: cluster}\n\
                  spec: {tlsSecurityProfile: {type: Modern}}\n";
    let templates = tempfile::tempdir().unwrap();
    let dir = templates.path().to_str().unwrap();
    let file = templates.path().join("worker/b/_base/files/a.yaml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "path: /a\ncontents: {inline: '{{.PullSecret}} {{.TLSMinVersion}}'}").unwrap();
    fs::write(templates.path().join("worker/OWNERS"), "approvers: [a]").unwrap();
    let base = [("controller.yaml", named.as_str()), ("a.yaml", &machine_config("a", "  {}")), ("server.yaml", server)];
    for (secret, error) in [
        (None, "PullSecret: there is no Secret openshift-config/pull-secret in the files"),
        (
            Some(secret("Opaque", key)),
            "Secret openshift-config/pull-secret: type: must be kubernetes.io/dockerconfigjson",
        ),
        (Some(secret(kind, "other")), "Secret openshift-config/pull-secret: data[.dockerconfigjson]: Required value"),
        (Some(secret(kind, "other: 5, x")), "Secret openshift-config/pull-secret: cannot be decoded"),
    ] {
        let more = secret.iter().map(|text| ("secret.yaml", text.as_str()));
        let (_files, path) = folder(&base.iter().copied().chain(more).collect::<Vec<_>>());
        let found = errors(&["-f", &path, "--templates", dir]);
        let found: Vec<_> = found.iter().filter(|line| line.starts_with("error: ")).collect();
        assert!(found.len() == 1 && found[0].ends_with(error), "{found:?}");
    }
    let secret = secret(kind, key);
    let (_files, path) = folder(&base.iter().copied().chain([("secret.yaml", secret.as_str())]).collect::<Vec<_>>());
    let run = run(&["-f", &path, "--templates", dir]);
    let warning = format!("warning: {dir}: skipped, because they are no templates: worker/OWNERS\n");
    assert_eq!((run.code, run.errors), (0, warning));
    let rendered = documents(&run.text).remove(0);
    let source = &rendered["spec"]["config"]["storage"]["files"][0]["contents"]["source"];
    assert_eq!(*source, json!("data:,%7B%7D%20VersionTLS13"));
}

/// What a cluster says, it has generated; another folder of templates makes others.
#[test]
fn what_a_cluster_has_generated_of_templates_is_left_out() {
    let owner = "ownerReferences: [{apiVersion: machineconfiguration.openshift.io/v1, kind: ControllerConfig, \
                 name: machine-config-controller, uid: u, controller: true}]";
    let generated = |name: &str| {
        machine_config(name, "  {kernelArguments: [old]}").replacen(
            "metadata: {",
            &format!("metadata: {{annotations: {{machineconfiguration.openshift.io/generated-by-controller-version: v}}, {owner}, "),
            1,
        )
    };
    let (_files, path) = folder(&[
        ("controller.yaml", CONTROLLER_CONFIG),
        ("a.yaml", &generated("a")),
        ("b.yaml", &generated("b")),
        ("c.yaml", &machine_config("c", "  {kernelArguments: [own]}")),
    ]);
    let templates = tempfile::tempdir().unwrap();
    let file = templates.path().join("role/a/_base/files/a.yaml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "path: /a\ncontents: {inline: '{{.clusterDNSIP}}'}").unwrap();
    let rendered = documents(&printed(&["-f", &path, "--templates", templates.path().to_str().unwrap()])).remove(0);
    assert_eq!(rendered["spec"]["kernelArguments"], json!(["own"]));
    let selected = documents(&printed(&["-f", &path])).remove(0);
    assert_eq!(selected["spec"]["kernelArguments"], json!(["old", "old", "own"]));
}

#[test]
fn what_an_ignition_config_cannot_express_is_an_error() {
    let spec = format!("{}  kernelType: realtime\n  kernelArguments: [quiet]\n", config(""));
    let (_folder, path) = folder(&[("a.yaml", &machine_config("a", &spec))]);
    let line = |field: &str| {
        format!(
            "error: MachineConfigPool worker: spec.{field}: an Ignition config cannot express it; --allow-incomplete prints the rest"
        )
    };
    assert_eq!(errors(&["-f", &path, "-o", "ignition"]), [line("kernelArguments"), line("kernelType")]);
    let rest: Value = serde_json::from_str(&printed(&["-f", &path, "-o", "ignition", "--allow-incomplete"])).unwrap();
    assert_eq!(rest["ignition"]["version"], "3.5.0");
}

#[test]
fn extensions_are_those_that_the_flag_allows() {
    let (_folder, path) = folder(&[("a.yaml", &machine_config("a", "  extensions: [own]\n"))]);
    assert!(errors(&["-f", &path])[0].contains("spec.extensions[0]"), "{:?}", errors(&["-f", &path]));
    for allowed in ["own,usbguard", "*"] {
        printed(&["-f", &path, &format!("--machine-config-extensions={allowed}")]);
    }
}

#[test]
fn what_an_api_server_would_not_take_is_an_error() {
    let files = |count: usize| {
        let large = format!("data:,{}", "x".repeat(700 << 10));
        let file = |n: usize| format!("      - {{path: /etc/{n}, contents: {{source: \"{large}\"}}}}\n");
        config(&format!("    storage:\n      files:\n{}", (0..count).map(file).collect::<String>()))
    };
    for (count, is_fine) in [(2, true), (3, false)] {
        let (_folder, path) = folder(&[("a.yaml", &machine_config("a", &files(count)))]);
        let run = run(&["-f", &path]);
        assert_eq!(run.code == 0, is_fine, "{}", run.errors);
        let expected = format!("error: {path}/pool.yaml: MachineConfigPool worker: it has ");
        assert!(is_fine || run.errors.starts_with(&expected), "{}", run.errors);
    }
}

#[test]
fn a_value_of_a_wrong_type_is_named_with_its_field() {
    for (spec, error) in [
        (
            "  config: {ignition: {version: 3.5}}\n",
            "spec.config.ignition.version: Invalid value: 3.5: must be text in quotes",
        ),
        (
            "  config: text\n",
            "spec.config: Invalid value: \"text\": must be an Ignition config, which is a JSON object",
        ),
        ("  kernelArguments: quiet\n", "spec.kernelArguments: invalid type: string \"quiet\", expected a sequence"),
    ] {
        let (_folder, path) = folder(&[("a.yaml", &machine_config("a", spec))]);
        let found = errors(&["-f", &path]);
        assert!(found[0].contains(error), "{found:?}");
    }
}
