//! Renders templates of generated clusters, and compares with machine-config-operator's own code, byte for byte: its own folder
//! of templates, and a small one with what that does not have.
//!
//! `NODEWRIGHT_MCO_SOURCE` names its source, as `make templates-oracle` does; without it the tests are skipped. `CLUSTERS` and
//! `SEED` of the environment set how many clusters are drawn, and where they begin.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod cluster;
mod difference;
mod oracle;

use cluster::Cluster;
use difference::difference;
use nodewright_render::templates::{TemplateError, Templates, generate};
use oracle::{Made, Oracle};
use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs};

/// How many clusters are drawn unless the environment sets it, besides one of each kind.
const CLUSTERS: u64 = 40;

/// Templates that machine-config-operator's folder has nothing like.
const MORE: [(&str, &str); 16] = [
    ("worker/00-a/_base/files/00.yaml", "path: /a\nmode: 0600\ncontents: {inline: first}\n"),
    ("worker/00-a/_base/files/05.yaml", "path: /b\nmode: 0644\ncontents: {inline: \"{{.ClusterDNSIP}}\"}\n"),
    ("worker/00-a/_base/files/10.yaml", "path: /a\nmode: 0755\nuser: {name: core}\n"),
    ("worker/00-a/_base/files/20.yaml", "path: /a\ncontents: {inline: last}\ngroup: {id: 5}\n"),
    ("worker/00-a/_base/files/30.yaml", "{{if .Proxy}}path: /b\ncontents: {inline: proxy}{{end}}"),
    ("worker/00-a/_base/files/40.yaml", "path: /c\ncontents: {inline: gone}"),
    ("worker/00-a/sno/files/40.yaml", ""),
    ("worker/00-a/_base/units/00.yaml", "name: a.service\nenabled: true\ncontents: |\n  [Unit]\n  Description=a\n"),
    ("worker/00-a/_base/units/10.yaml", "name: a.service\ndropins:\n- name: 10.conf\n  contents: \"[Unit]\\n\"\n"),
    (
        "worker/00-a/_base/units/20.yaml",
        "name: a.service\nenabled: false\ndropins:\n- name: 20.conf\n  contents: \"[Unit]\\n\"\n",
    ),
    ("worker/00-a/_base/units/b.service", "name: b.service\nmask: true\n"),
    ("worker/00-a/_base/extensions/usbguard", "# Its name counts.\n"),
    ("worker/00-a/_base/extensions/kerberos", "{{if .Proxy}}wanted{{end}}"),
    ("worker/00-a/_base/OWNERS", "approvers: [a]\n"),
    (
        "worker/01-b/_base/files/zero.yaml",
        "path: /zero\ncontents:\n  inline: |\n    [{{with .Infra.Status}}{{.APIServerURL}}{{.CPUPartitioning}}{{end}}]\
         [{{if .Infra.Status.PlatformStatus.AWS}}aws{{end}}][{{len .ImageRegistryBundleData}}][{{.OSImageURL}}]\
         [{{if .Network}}{{if .Network.MTUMigration}}mtu{{end}}{{end}}][{{if .Infra.Spec}}spec{{end}}]\
         [{{.Infra.Spec.CloudConfig.Name}}][{{if .KubeAPIServerServingCAData}}ca{{end}}][{{len .Images}}]\
         [{{.ReleaseImage | toString | len}}]\n{{.RootCAData | toString | indent 4}}\n{{indent 4 .CloudProviderConfig}}\n",
    ),
    (
        "worker/01-b/_base/files/functions.yaml",
        "path: /functions\ncontents:\n  inline: |\n    [{{cloudProvider .}}][{{credentialProviderConfigFlag .}}]\
         [{{onPremPlatformShortName .}}][{{isOpenShiftManagedDefaultLB .}}][{{dnsRecordsType .}}][{{platformType .}}]\
         [{{.TLSMinVersion}}][{{range .TLSCipherSuites}}{{.}} {{end}}][{{.PullSecret}}][{{.Constants.APIServerURLFile}}]\n",
    ),
];

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, is {text}")))
}

/// One cluster of each kind, and some that are drawn.
fn clusters() -> impl Iterator<Item = (String, Cluster)> {
    let count = number("CLUSTERS").unwrap_or(CLUSTERS);
    let seed = number("SEED").unwrap_or_else(|| if count == CLUSTERS { 0 } else { fastrand::u64(..1 << 40) });
    let drawn = (seed..seed + count).map(|seed| (format!("SEED={seed} CLUSTERS=1"), Cluster::draw(seed)));
    cluster::each_kind().into_iter().map(|cluster| ("one of each kind".to_owned(), cluster)).chain(drawn)
}

fn ours(templates: &Templates, cluster: &Cluster) -> Result<BTreeMap<String, Made>, Vec<TemplateError>> {
    let made = generate(templates, &cluster.inputs())?;
    Ok(made.made.into_iter().map(|made| (made.name.clone(), Made::from(made))).collect())
}

/// The files of a folder, without what has a name that begins with a dot.
fn read(folder: &Path, path: &str, templates: &mut Templates) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let path = if path.is_empty() { name } else { format!("{path}/{name}") };
        if entry.file_type().unwrap().is_dir() {
            read(&entry.path(), &path, templates);
        } else {
            templates.add(&path, fs::read(entry.path()).unwrap()).unwrap();
        }
    }
}

/// Renders the templates of a folder for all clusters. Fails at the first difference. Returns how many clusters both render, and
/// how many both refuse.
fn compare(oracle: &mut Oracle, folder: &Path) -> (u64, u64) {
    let mut templates = Templates::default();
    read(folder, "", &mut templates);
    let (mut rendered, mut refused) = (0, 0);
    for (name, cluster) in clusters() {
        let theirs = oracle.render(folder, &cluster);
        match (ours(&templates, &cluster), theirs) {
            (Ok(ours), Ok(theirs)) => {
                rendered += 1;
                if let Some(difference) = difference(&ours, &theirs) {
                    panic!("{name} differs: {difference}\n{}", cluster.json());
                }
            }
            (Err(_), Err(_)) => refused += 1,
            (Err(errors), Ok(_)) => panic!("{name}: Nodewright alone refuses it: {errors:#?}\n{}", cluster.json()),
            (Ok(_), Err(error)) => {
                panic!("{name}: machine-config-operator alone refuses it: {error}\n{}", cluster.json())
            }
        }
    }
    println!("{}: {rendered} clusters rendered, {refused} refused, none differs", folder.display());
    (rendered, refused)
}

#[test]
fn templates_render_as_by_machine_config_operator() {
    let Some(mut oracle) = Oracle::start() else {
        println!(
            "skipped: NODEWRIGHT_MCO_SOURCE names no source of machine-config-operator; `make templates-oracle` does"
        );
        return;
    };
    let folder = oracle.templates();
    let (rendered, refused) = compare(&mut oracle, &folder);
    // The comparison means little if most clusters end at an error, or if none does.
    assert!(rendered > 4 * refused && refused > 0, "{rendered} rendered, {refused} refused");
    let more = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mco-templates");
    fs::remove_dir_all(&more).ok();
    for (path, text) in MORE {
        let file = more.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    fs::create_dir_all(more.join("common")).unwrap();
    let (rendered, refused) = compare(&mut oracle, &more);
    assert!(rendered > 0 && refused == 0, "{rendered} rendered, {refused} refused");
}
