//! What a folder of templates and a ControllerConfig become, and machine-config-operator's tables about it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use nodewright_api::RawJson;
use nodewright_api::machine_config::ControllerConfigSpec;
use nodewright_render::ignition::parse;
use nodewright_render::templates::{
    Generated, Inputs, LARGEST_FILE, LARGEST_FOLDER, MOST_FILES, MOST_FRAGMENTS, Templates, generate,
};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn rows(table: &str, count: usize) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/tables/{table}.yaml"));
    let table: Value = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let rows = table["rows"].as_array().unwrap().clone();
    assert_eq!(rows.len(), count);
    rows
}

fn folder<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Templates {
    let mut templates = Templates::default();
    files.into_iter().for_each(|(path, text)| templates.add(path, text.as_bytes().to_vec()).unwrap());
    templates
}

fn spec(infra: &Value) -> ControllerConfigSpec {
    let infra = Some(RawJson::from(infra));
    ControllerConfigSpec { infra, cluster_dns_ip: "10.0.0.10".to_owned(), ..ControllerConfigSpec::default() }
}

fn made(files: &[(&str, &str)], infra: &Value) -> Vec<Generated> {
    generate(&folder(files.iter().copied()), &Inputs::from(&spec(infra))).unwrap().made
}

fn errors(files: &[(&str, &str)]) -> Vec<String> {
    let errors = generate(&folder(files.iter().copied()), &Inputs::from(&spec(&json!({})))).unwrap_err();
    errors.iter().map(ToString::to_string).collect()
}

/// The files of a MachineConfig: path and decoded text.
fn files_of(generated: &Generated) -> Vec<(String, String)> {
    let config: Value = generated.spec.config.as_ref().unwrap().parse().unwrap();
    let file = |file: &Value| {
        let escaped = file["contents"]["source"].as_str().unwrap().strip_prefix("data:,").unwrap();
        let text = percent_encoding::percent_decode_str(escaped).decode_utf8().unwrap();
        (file["path"].as_str().unwrap().to_owned(), text.into_owned())
    };
    config["storage"]["files"].as_array().into_iter().flatten().map(file).collect()
}

fn fragment(path: &str, text: &str) -> String {
    format!("path: {path}\nmode: 0644\ncontents: {{inline: {text:?}}}\n")
}

/// Of the variants of a row exactly these apply, and each replaces the files of those before it.
#[test]
fn template_variants() {
    let all = [
        "_base",
        "on-prem",
        "aws",
        "baremetal",
        "gcp",
        "none",
        "cloud-platform-alt-dns",
        "sno",
        "two-node-with-fencing",
    ];
    for row in rows("template-variants", 5) {
        let platform = row["platform"].as_str().unwrap();
        let mut status = json!({"type": platform});
        if row["cluster_hosted_dns"] == true {
            let addresses = json!({"apiIntLoadBalancerIPs": ["10.0.0.1"]});
            status[platform.to_lowercase()]["cloudLoadBalancerConfig"] =
                json!({"dnsType": "ClusterHosted", "clusterHosted": addresses});
        }
        let infra = json!({"status": {"platformStatus": status, "controlPlaneTopology": row["topology"]}});
        let expected: Vec<_> = row["expect"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
        for count in (1..=expected.len()).rev() {
            // Those that do not apply are there, too.
            let there = all.iter().filter(|variant| !expected[count..].contains(variant));
            let texts: Vec<_> =
                there.map(|variant| (format!("worker/a/{variant}/files/a.yaml"), fragment("/a", variant))).collect();
            let generated = made(&texts.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect::<Vec<_>>(), &infra);
            let last = expected[count - 1].to_owned();
            assert_eq!(files_of(&generated[0]), [("/a".to_owned(), last)], "{}", row["name"]);
        }
    }
}

#[test]
fn template_skip() {
    for row in rows("template-skip", 4) {
        let template = format!("path: /a\ncontents:\n  inline: '{{{{skip {}}}}}'\n", row["key"]);
        let files = [("worker/a/_base/files/a.yaml", template.as_str())];
        let generated = generate(&folder(files), &Inputs::from(&spec(&json!({}))));
        match row["expect"].as_str().unwrap() {
            "error" => assert!(generated.unwrap_err()[0].detail.starts_with("skip: "), "{}", row["name"]),
            text => assert_eq!(files_of(&generated.unwrap().made[0])[0].1, text, "{}", row["name"]),
        }
    }
}

#[test]
fn a_folder_becomes_machine_configs_that_ignition_takes() {
    let (b, kubelet) = (fragment("/etc/b", "b"), "clusterDNS: [{{.ClusterDNSIP}}]\n");
    let kubelet = format!("path: /etc/kubernetes/kubelet.conf\nmode: 0644\ncontents:\n  inline: |\n    {kubelet}");
    let generated = made(
        &[
            ("common/_base/files/b.yaml", &b),
            ("common/_base/units/a.service.yaml", "name: a.service\nenabled: true\ncontents: |\n  [Unit]\n"),
            ("worker/00-worker/_base/files/a.yaml", &fragment("/etc/a", "a")),
            ("worker/00-worker/_base/files/gone.yaml", &fragment("/etc/gone", "x")),
            ("worker/00-worker/_base/files/kept.yaml", &fragment("/etc/kept", "x")),
            ("worker/00-worker/_base/files/blank.yaml", "{{if eq platformType \"AWS\"}}path: /etc/aws\n{{end}}\n"),
            // An empty file takes away, one that renders to nothing does not.
            ("worker/00-worker/none/files/gone.yaml", ""),
            ("worker/00-worker/none/files/kept.yaml", "{{if false}}path: /etc/other{{end}}\n"),
            ("worker/00-worker/_base/extensions/usb.yaml", "usbguard\n"),
            ("worker/01-worker-kubelet/_base/files/kubelet.yaml", &kubelet),
            ("worker/02-empty/aws/files/aws.yaml", &b),
        ],
        &json!({}),
    );
    let names: Vec<_> = generated.iter().map(|it| (it.role.as_str(), it.name.as_str())).collect();
    assert_eq!(names, [("worker", "00-worker"), ("worker", "01-worker-kubelet"), ("worker", "02-empty")]);
    let paths: Vec<_> = files_of(&generated[0]).into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["/etc/a", "/etc/b", "/etc/kept"], "in the order of the names of the files");
    assert_eq!(generated[0].spec.extensions, ["usbguard"]);
    assert_eq!(files_of(&generated[1])[0].1, "clusterDNS: [10.0.0.10]\n");
    assert!(generated[0].spec.os_image_url.is_empty());
    for each in &generated {
        let path = nodewright_api::field::FieldPath::new("spec");
        assert!(parse(each.spec.config.as_ref().unwrap().text(), &path).unwrap().unused.is_empty());
    }
    let config: Value = generated[0].spec.config.as_ref().unwrap().parse().unwrap();
    assert_eq!(config["systemd"]["units"][0]["name"], "a.service");
    assert_eq!(config["storage"]["files"][0]["overwrite"], true);
}

/// All errors at once, each with its file.
#[test]
fn what_is_wrong_is_named_by_its_file() {
    let found = errors(&[
        ("common/_base/files/c.yaml", "a: {{.none}}"),
        ("master/00-master/_base/files/a.yaml", &fragment("/etc/a", "a")),
        ("worker/00-worker/_base/files/a.yaml", "path: /etc/a\n\nmode: {{.infra.x}}\n"),
        ("worker/00-worker/_base/units/b.yaml", "name: b\nenable: true\n"),
        ("worker/01-worker/_base/files/a.yaml", "path: etc/a\n"),
        ("worker/01-worker/_base/units/b.yaml", "name: b\ncontents: hush\n"),
    ]);
    let begin = [
        "common/_base/files/c.yaml:1: there is no field none",
        "worker/00-worker/_base/files/a.yaml:3: there is no field x",
        "worker/00-worker/_base/units/b.yaml: enable: is no field",
        "worker/01-worker/_base/files/a.yaml: path: Invalid value: must be absolute",
        "worker/01-worker/_base/units/b.yaml: ",
    ];
    assert_eq!(found.len(), begin.len(), "{found:#?}");
    found.iter().zip(begin).for_each(|(error, begin)| assert!(error.starts_with(begin), "{error}"));
}

/// What the file `/a` of a template with this text has.
fn printed(text: &str, inputs: &Inputs<'_>) -> Result<String, String> {
    let template = format!("path: /a\ncontents:\n  inline: |-\n    {text}\n");
    let output = generate(&folder([("worker/a/_base/files/a.yaml", template.as_str())]), inputs);
    let output = output.map_err(|errors| errors[0].detail.clone())?;
    Ok(files_of(&output.made[0]).remove(0).1)
}

/// As in Go: a text is empty, a list has no elements, an object is there, a pointer is null.
#[test]
fn a_field_that_is_absent_has_the_zero_value_of_its_type() {
    let absent = json!({"status": {"platformStatus": {"aws": {}, "vsphere": null}}});
    for (text, expected) in [
        ("[{{.OSImageURL}}][{{.IPFamilies}}]", Ok("[][]")),
        ("[{{.Infra.Status.APIServerURL}}][{{.infra.status.apiServerURL}}]", Ok("[][]")),
        ("[{{.Infra.Status.APIServerInternalURL}}][{{.infra.status.apiServerInternalURI}}]", Ok("[][]")),
        ("[{{.Infra.Spec.CloudConfig.Name}}]", Ok("[]")),
        ("[{{if .Infra.Spec}}there{{end}}][{{if .Infra.Spec.PlatformSpec.Nutanix}}there{{end}}]", Ok("[there][]")),
        ("[{{if .Infra.Status.PlatformStatus.AWS}}there{{end}}]", Ok("[there]")),
        ("[{{if .Infra.Status.PlatformStatus.VSphere}}there{{end}}]", Ok("[]")),
        ("[{{if .Infra.Status.PlatformStatus.AWS.CloudLoadBalancerConfig}}there{{end}}]", Ok("[]")),
        ("[{{len .Infra.Status.PlatformStatus.AWS.ResourceTags}}][{{len .ImageRegistryBundleData}}]", Ok("[0][0]")),
        ("[{{if and .Proxy .Proxy.NoProxy}}there{{end}}][{{if .Network}}there{{end}}]", Ok("[][]")),
        ("[{{.AdditionalTrustBundle | toString}}][{{if .RootCAData}}there{{end}}]", Ok("[][]")),
        ("[{{index .infra.status \"apiServerURL\"}}]", Ok("[]")),
        ("{{.Infra.Status.PlatformStatus.VSphere.IngressIPs}}", Err("there is no IngressIPs in null")),
        ("{{.DNS.Spec.BaseDomain}}", Err("there is no Spec in null")),
        ("{{.Infra.Status.NoSuchField}}", Err("there is no field NoSuchField")),
        ("{{.Images.none}}", Err("there is no field none")),
        ("{{.EtcdDiscoveryDomain}}", Err("there is no field EtcdDiscoveryDomain")),
    ] {
        let spec = spec(&absent);
        let found = printed(text, &Inputs::from(&spec));
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{text}");
    }
}

#[test]
fn what_is_read_beside_the_controller_config_is_a_field() {
    let spec = ControllerConfigSpec {
        root_ca_data: Some("bGluZSBvbmUKbGluZSB0d28K".to_owned()),
        cloud_provider_ca_data: Some("/w==".to_owned()),
        pull_secret: serde_json::from_value(json!({"name": "pull-secret"})).unwrap(),
        ..spec(&json!({"status": {"apiServerInternalURI": "https://api-int.example.com"}}))
    };
    let profile = RawJson::from(&json!({"type": "Modern"}));
    let inputs = Inputs { pull_secret: Ok("{ \"a\": \"b c\" }\n"), tls_security_profile: Some(&profile), spec: &spec };
    for (text, expected) in [
        ("{{.PullSecret}} of {{.pullSecret.name}}", Ok("{\"a\":\"b c\"} of pull-secret")),
        (
            "{{.TLSMinVersion}} {{len .TLSCipherSuites}} {{index .TLSCipherSuites 0}}",
            Ok("VersionTLS13 3 TLS_AES_128_GCM_SHA256"),
        ),
        ("{{join .TLSCipherSuites \",\" | len}}", Ok("74")),
        ("{{.Constants.APIServerURLFile}}", Ok("/etc/kubernetes/apiserver-url.env")),
        ("{{.Infra.Status.APIServerInternalURL | urlHost}}", Ok("api-int.example.com")),
        ("{{.rootCAData}}\n{{.RootCAData | toString | indent 4}}", Ok("bGluZSBvbmUKbGluZSB0d28K\nline one\nline two")),
        ("{{.cloudProviderCAData}}", Ok("/w==")),
        (
            "{{.CloudProviderCAData}}",
            Err("CloudProviderCAData: its bytes are no text in UTF-8; cloudProviderCAData has"),
        ),
        ("{{.pullsecret}}", Err("pullsecret stands for several fields")),
    ] {
        match expected {
            Ok(expected) => assert_eq!(printed(text, &inputs).as_deref(), Ok(expected), "{text}"),
            Err(why) => assert!(printed(text, &inputs).unwrap_err().starts_with(why), "{text}"),
        }
    }
    let without = Inputs::from(&spec);
    assert_eq!(printed("{{.TLSMinVersion}} {{len .TLSCipherSuites}}", &without).as_deref(), Ok("VersionTLS12 9"));
    let error = printed("{{.PullSecret}}", &without).unwrap_err();
    assert_eq!(error, "PullSecret: the Secret that spec.pullSecret names is not read");
    let error = printed("x", &Inputs { pull_secret: Ok("hush"), ..without }).unwrap_err();
    assert!(error.ends_with(".dockerconfigjson is no JSON"), "{error}");
}

/// In the order of the names of their files, and at the place of the first.
#[test]
fn fragments_of_one_file_or_unit_are_one() {
    let unit = |text: &str| format!("name: a.service\n{text}");
    let files = [
        ("files/00.yaml", "path: /a\nmode: 0600\ncontents: {inline: first}".to_owned()),
        ("files/10.yaml", fragment("/b", "b")),
        ("files/20.yaml", "path: /a\nuser: {name: core}\ncontents: {inline: last}".to_owned()),
        ("units/00.yaml", unit("enabled: true\ncontents: |\n  [Unit]\n")),
        (
            "units/10.yaml",
            unit("dropins: [{name: a.conf, contents: \"[Unit]\"}, {name: b.conf, contents: \"[Unit]\"}]"),
        ),
        ("units/20.yaml", unit("enabled: false\ndropins: [{name: b.conf, contents: \"[Service]\"}]")),
    ];
    let files = files.map(|(path, text)| (format!("worker/a/_base/{path}"), text));
    let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let made = made(&files, &json!({})).remove(0);
    assert_eq!(files_of(&made), [("/a".to_owned(), "last".to_owned()), ("/b".to_owned(), "b".to_owned())]);
    let config: Value = made.spec.config.as_ref().unwrap().parse().unwrap();
    let file = &config["storage"]["files"][0];
    assert_eq!((&file["mode"], &file["user"]["name"]), (&json!(0o600), &json!("core")), "the fields of both");
    let unit = json!({"name": "a.service", "enabled": false, "contents": "[Unit]\n",
        "dropins": [{"name": "a.conf", "contents": "[Unit]"}, {"name": "b.conf", "contents": "[Service]"}]});
    assert_eq!(config["systemd"]["units"], json!([unit]));
    let found = errors(&[
        ("worker/a/_base/units/00.yaml", "name: a.service\nenabled: true"),
        ("worker/a/_base/units/10.yaml", "name: a.service\ncontents: '[hush'"),
        ("worker/b/_base/files/00.yaml", "path: /a\ncontents: {inline: a}"),
        ("worker/b/_base/files/10.yaml", "path: /a\nmode: 04755"),
        ("worker/c/_base/files/20.yaml", "mode: 0644"),
    ]);
    let begin = [
        "worker/a/_base/units/10.yaml: contents: Invalid value: ",
        "worker/b/_base/files/10.yaml: mode: Invalid value: must be at most 511",
        "worker/c/_base/files/20.yaml: path: ",
    ];
    assert_eq!(found.len(), begin.len(), "{found:#?}");
    found.iter().zip(begin).for_each(|(error, begin)| assert!(error.starts_with(begin), "{error}"));
    assert!(!found[0].contains("hush"), "{}", found[0]);
    // Each merge copies what there is.
    let many =
        |count: usize| (0..count).map(|index| format!("worker/a/_base/files/{index:03}.yaml")).collect::<Vec<_>>();
    let of = |paths: &[String]| {
        let files = paths.iter().map(|path| (path.as_str(), "path: /a\nappend: [{inline: a}]\n"));
        generate(&folder(files), &Inputs::from(&spec(&json!({}))))
    };
    assert_eq!(of(&many(MOST_FRAGMENTS)).unwrap().made.len(), 1);
    let found = of(&many(MOST_FRAGMENTS + 1)).unwrap_err();
    assert!(
        found[0].to_string().starts_with("worker/a/_base/files/064.yaml: is one of more than 64 templates"),
        "{found:?}"
    );
}

#[test]
fn extensions_are_named_by_their_files_and_what_is_doubtful_is_a_warning() {
    let files = [
        ("master/b/_base/files/a.yaml", "path: /a\nmode: 0644\nmode: 0644\n"),
        ("worker/a/_base/extensions/kerberos", "# The name counts.\n"),
        ("worker/a/_base/extensions/ipsec", "{{if eq platformType \"AWS\"}}wanted{{end}}"),
        ("worker/a/_base/extensions/other.yaml", "[usbguard, sysstat]"),
        ("worker/a/_base/extensions/two-node-ha", "wanted"),
        ("worker/a/none/extensions/two-node-ha", ""),
        ("worker/a/_base/units/a.target", "name: a.target\nenabled: true"),
        ("worker/a/OWNERS", "approvers: [a]"),
        ("common/aws/README.md", "about it"),
    ];
    let output = generate(&folder(files), &Inputs::from(&spec(&json!({})))).unwrap();
    assert_eq!(output.made[1].spec.extensions, ["kerberos", "usbguard", "sysstat"]);
    assert!(output.made[1].spec.config.as_ref().unwrap().text().contains("a.target"));
    let warnings: Vec<_> = output.warnings.iter().map(ToString::to_string).collect();
    let twice =
        "master/b/_base/files/a.yaml: renders to an object that has the key mode twice, with the same value, at line 3";
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert_eq!(warnings[0], "skipped, because they are no templates: common/aws/README.md, worker/a/OWNERS");
    assert!(warnings[1].starts_with(twice), "{}", warnings[1]);
    let found = errors(&[("worker/a/_base/files/a.yaml", "path: /a\nmode: 0644\nmode: 0600\n")]);
    let different =
        "worker/a/_base/files/a.yaml: renders to an object that has the key mode twice, with different values, at";
    assert!(found[0].starts_with(different), "{found:?}");
}

/// A ControllerConfig has pull secrets, and templates print them.
#[test]
fn no_value_of_a_controller_config_is_shown() {
    let secret = Some("hush".to_owned());
    let spec = ControllerConfigSpec { internal_registry_pull_secret: secret, ..ControllerConfigSpec::default() };
    let printed = "{{.internalRegistryPullSecret}}";
    for (path, text) in [
        ("files/a.yaml", format!("path: {printed}")),
        ("files/a.yaml", format!("path: /a\n{printed}: 1")),
        ("files/a.yaml", format!("path: /a\nmode: {printed}")),
        ("files/a.yaml", format!("path: /a\nuser: {{id: 1, name: {printed}}}")),
        ("files/a.yaml", format!("path: /a\ncontents:\n  {printed}: a")),
        ("files/a.yaml", format!("path: /a\ncontents: {{source: {printed}}}")),
        ("files/a.yaml", format!("path: /a\ncontents: {{inline: a, compression: {printed}}}")),
        ("files/a.yaml", format!("path: /a\ncontents: {{inline: a, verification: {{hash: {printed}}}}}")),
        ("units/a.yaml", format!("name: {printed}")),
        ("units/a.yaml", format!("name: a.service\ncontents: '[{printed}'")),
        ("units/a.yaml", format!("name: a.service\ndropins: [{{name: {printed}}}]")),
        ("units/a.yaml", format!("name: a.service\ndropins: {printed}")),
        ("extensions/a.yaml", format!("{{a: {printed}}}")),
    ] {
        let folder = folder([(format!("worker/a/_base/{path}").as_str(), text.as_str())]);
        let found = generate(&folder, &Inputs::from(&spec)).unwrap_err();
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        let shown = found[0].to_string();
        assert!(shown.starts_with(&format!("worker/a/_base/{path}: ")) && !shown.contains("hush"), "{text}: {shown}");
    }
}

#[test]
fn a_digest_follows_from_the_templates_that_apply_and_the_controller_config() {
    let a = fragment("/etc/a", "a");
    let files = [("worker/00-a/_base/files/a.yaml", a.as_str()), ("worker/01-b/_base/files/a.yaml", a.as_str())];
    let digests =
        |files: &[(&str, &str)], infra| made(files, &infra).into_iter().map(|it| it.digest).collect::<Vec<_>>();
    let before = digests(&files, json!({}));
    assert_eq!(before, digests(&files, json!({})));
    assert!(before[0] != before[1], "each has its own");
    let other = fragment("/etc/a", "b");
    let more = [files[0], ("worker/01-b/_base/files/a.yaml", other.as_str()), ("worker/00-a/aws/files/a.yaml", "x")];
    let after = digests(&more, json!({}));
    assert!(after[0] == before[0] && after[1] != before[1], "of another platform nothing counts");
    assert!(digests(&files, json!({"a": 1})).iter().zip(&before).all(|(a, b)| a != b));
    // The pull secret and the TLS profile count where a template reads them.
    let printing = fragment("/etc/a", "{{.PullSecret | len}}{{.TLSMinVersion}}");
    let files = [files[0], ("worker/01-b/_base/files/a.yaml", printing.as_str())];
    let digests = |secret, profile: Option<&Value>| {
        let (spec, profile) = (spec(&json!({})), profile.map(RawJson::from));
        let inputs = Inputs { spec: &spec, pull_secret: Ok(secret), tls_security_profile: profile.as_ref() };
        generate(&folder(files), &inputs).unwrap().made.into_iter().map(|it| it.digest).collect::<Vec<_>>()
    };
    let (first, other, modern) =
        (digests("{}", None), digests("[]", None), digests("{}", Some(&json!({"type": "Modern"}))));
    assert!([&first, &other, &modern].iter().all(|digests| digests[0] == before[0]));
    assert!(first[1] != other[1] && first[1] != modern[1] && other[1] != modern[1]);
    // Objects in clusters carry it: another digest would let a later release write them all.
    assert_eq!(before[0], "786ca6bad70ae3479f43ebc785e709cbcfbfbed01aa2d542640ab5ca8c56cdf6");
}

#[test]
fn a_folder_has_limits() {
    let mut templates = Templates::default();
    let error = templates.add("a", vec![b'x'; LARGEST_FILE + 1]).unwrap_err();
    assert!(error.to_string().starts_with("a: has more than"), "{error}");
    assert!(templates.add("a", vec![0xff]).unwrap_err().to_string().ends_with("is no text in UTF-8"));
    let mut many = Templates::default();
    (0..MOST_FILES).for_each(|index| many.add(&index.to_string(), vec![]).unwrap());
    assert!(many.add("more", vec![]).is_err());
    let mut large = Templates::default();
    let full = LARGEST_FOLDER / LARGEST_FILE;
    (0..full).for_each(|index| large.add(&index.to_string(), vec![b'x'; LARGEST_FILE]).unwrap());
    assert!(large.add("more", vec![b'x']).is_err());
}
