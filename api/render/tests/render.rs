//! Rendering as its users see it: order, provenance, errors, differences.

#![allow(clippy::unwrap_used, clippy::panic, clippy::needless_pass_by_value, reason = "a test may")]

use nodewright_api::machine_config::{MachineConfig, MachineConfigSpec};
use nodewright_render::change::{Kind, differences};
use nodewright_render::{Input, Options, Origin, Rendered, RenderedSpec, render};
use serde_json::{Value, json};

fn object(name: &str, role: &str, spec: &Value) -> MachineConfig {
    let metadata = json!({"name": name, "labels": {"machineconfiguration.openshift.io/role": role}});
    serde_json::from_str(&json!({"metadata": metadata, "spec": spec}).to_string()).unwrap()
}

fn config(fields: Value) -> Value {
    let mut config = json!({"ignition": {"version": "3.5.0"}});
    config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({"config": config})
}

fn files(files: Value) -> Value {
    config(json!({"storage": {"files": files}}))
}

fn result(objects: &[MachineConfig]) -> Result<Rendered, Vec<String>> {
    let inputs: Vec<_> = objects.iter().map(Input::from).collect();
    render(&inputs, &Options::default()).map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

fn rendered(objects: &[MachineConfig]) -> Rendered {
    result(objects).unwrap()
}

#[test]
fn worker_comes_first_then_the_others_each_by_name() {
    let objects = [("a", "infra"), ("c", "worker"), ("b", "worker"), ("Z", "worker")];
    let objects = objects.map(|(name, role)| object(name, role, &json!({"kernelArguments": [name]})));
    let result = rendered(&objects);
    assert_eq!(result.provenance.at("kernelArguments").next().unwrap().set_by, ["Z", "b", "c", "a"]);
    assert_eq!(result.spec.kernel_arguments, ["Z", "b", "c", "a"]);
}

fn generated(mut object: MachineConfig) -> MachineConfig {
    let annotations = object.metadata.annotations.get_or_insert_default();
    annotations.insert("machineconfiguration.openshift.io/generated-by-controller-version".to_owned(), "v1".to_owned());
    object
}

#[test]
fn images_of_generated_objects_are_no_wish() {
    let generated = generated(object("b", "worker", &json!({"osImageURL": "of-the-release"})));
    let own = object("a", "worker", &json!({"osImageURL": "own"}));
    assert_eq!(rendered(&[own, generated.clone()]).spec.os_image_url, "own");
    assert_eq!(rendered(&[generated]).spec.os_image_url, "");
}

#[test]
fn each_key_knows_who_has_set_it_over_whom() {
    let file = |text: &str| json!([{"path": "/etc/a", "contents": {"source": text}}]);
    let keys = |keys: &[&str]| config(json!({"passwd": {"users": [{"name": "core", "sshAuthorizedKeys": keys}]}}));
    let provenance = rendered(&[
        object("1-base", "worker", &files(json!([{"path": "/etc/a", "mode": 420, "contents": {"source": "data:,1"}}]))),
        object("2-own", "worker", &files(file("data:,2"))),
        object("3-last", "worker", &files(file("data:,3"))),
        object("4-keys", "worker", &keys(&["x"])),
        object("5-keys", "worker", &keys(&["x", "y"])),
        object("6-rest", "worker", &json!({"kernelArguments": ["a"], "kernelType": "realtime"})),
        object("7-rest", "worker", &json!({"kernelArguments": ["a"], "kernelType": "default"})),
    ])
    .provenance;
    let origins = |path: &str| {
        let text = |Origin { key, set_by, over }: Origin<'_>| format!("{key}: {set_by:?} over {over:?}");
        provenance.at(path).map(text).collect::<Vec<_>>()
    };
    assert_eq!(
        origins("spec.config.storage.files[/etc/a]"),
        [
            r#"config.storage.files[/etc/a].contents.source: ["3-last"] over ["2-own", "1-base"]"#,
            r#"config.storage.files[/etc/a].mode: ["1-base"] over []"#,
        ]
    );
    assert_eq!(
        origins("config.passwd.users[core].sshAuthorizedKeys"),
        [
            r#"config.passwd.users[core].sshAuthorizedKeys[x]: ["5-keys"] over ["4-keys"]"#,
            r#"config.passwd.users[core].sshAuthorizedKeys[y]: ["5-keys"] over []"#,
        ]
    );
    assert_eq!(origins("kernelArguments"), [r#"kernelArguments: ["6-rest", "7-rest"] over []"#]);
    assert_eq!(origins("kernelType"), [r#"kernelType: ["6-rest"] over []"#]);
    assert_eq!(origins("config.storage.file"), [] as [&str; 0]);
    assert_eq!(origins("").len(), provenance.at("spec").count());
}

#[test]
fn what_another_config_removes_has_no_source() {
    let link = config(json!({"storage": {"links": [{"path": "/etc/a", "target": "/b"}]}}));
    let file = files(json!([{"path": "/etc/a", "contents": {"source": "data:,1"}}]));
    let result = rendered(&[object("a", "worker", &link), object("b", "worker", &file)]);
    assert_eq!(result.spec.config.list("/storage/links"), [] as [Value; 0]);
    assert_eq!(result.provenance.at("config.storage.links").count(), 0);
}

#[test]
fn errors_name_the_object_and_the_field() {
    let objects = [
        object("good", "worker", &files(json!([{"path": "/etc/a"}]))),
        object("mode", "worker", &files(json!([{"path": "/etc/a"}, {"path": "/etc/b", "mode": 2541}]))),
        object("type", "worker", &files(json!([{"path": "/etc/a", "mode": "0644"}]))),
        object("kernel", "worker", &json!({"kernelType": "fast", "extensions": ["sysstat", "emacs"]})),
        object("data", "worker", &files(json!([{"path": "/etc/a", "contents": {"source": "data:,a secret"}}]))),
    ];
    let errors = result(&objects).unwrap_err();
    let expected = [
        "MachineConfig data: spec.config.storage.files[0].contents.source: Invalid value: must have data that is",
        r#"MachineConfig kernel: spec.kernelType: Unsupported value: "fast": supported values: "default", "realtime""#,
        r#"MachineConfig kernel: spec.extensions[1]: Unsupported value: "emacs": supported values: "ipsec""#,
        "MachineConfig mode: spec.config.storage.files[1].mode: Invalid value: 2541: must be at most 511",
        "MachineConfig type: spec.config.storage.files[0].mode: Invalid value: must be an integer",
    ];
    assert_eq!(errors.len(), expected.len(), "{errors:#?}");
    for (error, expected) in errors.iter().zip(expected) {
        assert!(error.starts_with(expected), "{error}");
    }
    assert!(!errors.concat().contains("secret"), "{errors:?}");
}

#[test]
fn no_error_shows_what_may_be_secret() {
    let secret = "hunter2";
    let of_file = |contents: Value| files(json!([{"path": "/etc/a", "contents": contents}]));
    let of_user = |user: Value| config(json!({"passwd": {"users": [user]}}));
    let unit = |text: &str| config(json!({"systemd": {"units": [{"name": "a.service", "contents": text}]}}));
    let tang = |tang: Value| {
        config(json!({"storage": {"luks": [{"name": "a", "device": "/dev/a", "clevis": {"tang": [tang]}}]}}))
    };
    let with_password = format!("https://user:{secret}@[");
    for spec in [
        of_file(json!(secret)),
        of_file(json!({"source": secret})),
        of_file(json!({"source": [secret]})),
        of_file(json!({"source": format!("data:;base64,%{secret}")})),
        of_file(json!({"source": format!("data:{secret}")})),
        of_file(json!({"source": with_password})),
        of_file(json!({"source": "data:,a", "verification": {"hash": secret}})),
        of_file(json!({"verification": {"hash": secret}})),
        unit(&format!("[Service\nEnvironment={secret}")),
        unit(&format!("[Service]\n{secret}\n")),
        of_user(json!(secret)),
        of_user(json!({"name": "core", "passwordHash": [secret]})),
        of_user(json!({"name": "core", "sshAuthorizedKeys": secret})),
        of_user(json!({"name": "core", "sshAuthorizedKeys": [secret, secret]})),
        config(json!({"kernelArguments": {"shouldExist": [secret, secret]}})),
        config(json!({"ignition": {"version": "3.5.0", "proxy": {"httpProxy": with_password}}})),
        tang(json!({"url": with_password, "thumbprint": "a"})),
        tang(json!({"url": "https://a", "thumbprint": "a", "advertisement": secret})),
        json!({"config": secret}),
    ] {
        let errors = result(&[object("a", "worker", &spec)]).unwrap_err().join("\n");
        assert!(errors.starts_with("MachineConfig a: spec.config") && !errors.contains(secret), "{spec}: {errors}");
    }
}

/// Templates may print what is secret in a ControllerConfig.
#[test]
fn values_of_what_is_generated_are_not_shown() {
    let errors = result(&[generated(object("kernel", "worker", &json!({"extensions": ["emacs"]})))]).unwrap_err();
    assert!(
        errors[0].starts_with("MachineConfig kernel: spec.extensions[0]: Unsupported value: supported"),
        "{errors:?}"
    );
}

#[test]
fn valid_parts_that_do_not_fit_together_are_refused_with_their_authors() {
    let link = config(json!({"storage": {"links": [{"path": "/etc/a", "target": "/b"}]}}));
    let below = files(json!([{"path": "/etc/c"}, {"path": "/etc/a/b", "contents": {"source": "data:,1"}}]));
    let errors = result(&[object("linked", "worker", &link), object("below", "worker", &below)]).unwrap_err();
    let expected = r#"merged: spec.config.storage.files[/etc/a/b]: Invalid value: "/etc/a/b": must not be beneath the link /etc/a (set by below)"#;
    assert_eq!(errors, [expected]);

    let devel = [("a", json!({"extensions": ["kernel-devel"]})), ("b", json!({"kernelType": "realtime"}))];
    let errors = result(&devel.map(|(name, spec)| object(name, "worker", &spec))).unwrap_err();
    assert!(errors[0].starts_with("merged: spec.extensions: Forbidden: kernel-devel"), "{errors:?}");
}

#[test]
fn fields_that_the_version_does_not_have_are_named() {
    let spec = json!({"config": {
        "ignition": {"version": "3.2.0"},
        "kernelArguments": {"shouldExist": ["a"]},
        "storage": {"files": [{"path": "/etc/a", "Mode": 420}]},
    }});
    let unused: Vec<_> = rendered(&[object("a", "worker", &spec)]).unused;
    let unused: Vec<_> = unused.iter().map(|(name, path)| format!("{name} {path}")).collect();
    assert_eq!(unused, ["a spec.config.kernelArguments", "a spec.config.storage.files[0].Mode"]);
}

#[test]
fn nothing_makes_an_empty_configuration() {
    let spec = rendered(&[]).spec;
    let expected = json!({
        "config": {"ignition": {"version": "3.5.0"}}, "extensions": [], "fips": false, "kernelArguments": [],
        "kernelType": "default", "osImageURL": "",
    });
    assert_eq!(serde_json::to_value(spec).unwrap(), expected);
}

#[test]
fn the_image_with_extensions_is_written_where_it_is_set() {
    let spec = json!({"baseOSExtensionsContainerImage": "extensions"});
    let result = rendered(&[object("a", "worker", &spec)]);
    let written = serde_json::to_value(&result.spec).unwrap();
    assert_eq!(written["baseOSExtensionsContainerImage"], "extensions");
    assert_eq!(result.provenance.at("baseOSExtensionsContainerImage").count(), 1);
}

#[test]
fn a_rendered_spec_reads_back_as_itself() {
    let objects = [
        object("a", "worker", &files(json!([{"path": "/etc/a", "contents": {"source": "data:,1"}}]))),
        object("b", "worker", &json!({"kernelArguments": ["a"], "fips": true, "osImageURL": "image"})),
    ];
    let spec = rendered(&objects).spec;
    let text = serde_json::to_string(&spec).unwrap();
    let object: MachineConfigSpec = serde_json::from_str(&text).unwrap();
    assert_eq!(RenderedSpec::read(&object).unwrap(), spec);
    // To render what was rendered changes nothing.
    let again = rendered(&[MachineConfig { spec: object, ..MachineConfig::default() }]).spec;
    assert_eq!(again, spec);
}

#[test]
fn differences_are_files_units_and_fields() {
    let file = |path: &str, text: &str| json!({"path": path, "contents": {"source": format!("data:,{text}")}});
    let old = rendered(&[
        object("a", "worker", &files(json!([file("/etc/a", "1"), file("/etc/b", "1"), file("/etc/c", "1")]))),
        object("b", "worker", &json!({"kernelArguments": ["a"]})),
    ]);
    let new = rendered(&[
        object("a", "worker", &files(json!([file("/etc/c", "1"), file("/etc/b", "2")]))),
        object("b", "worker", &config(json!({"systemd": {"units": [{"name": "a.service", "enabled": true}]}}))),
    ]);
    let found = differences(&old.spec, &new.spec);
    let found: Vec<_> = found.iter().map(|difference| (difference.key.as_str(), difference.kind)).collect();
    assert_eq!(
        found,
        [
            ("config.storage.files[/etc/a]", Kind::Removed),
            ("config.storage.files[/etc/b]", Kind::Changed),
            ("config.systemd.units[a.service]", Kind::Added),
            ("kernelArguments", Kind::Changed),
        ]
    );
    assert!(differences(&new.spec, &new.spec).is_empty());
}
