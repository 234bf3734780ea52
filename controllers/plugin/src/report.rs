//! An archive for a bug report: objects, events, flags and metrics of the manager, versions, and what `why` and `tree` say. Secrets are never
//! requested, and of other objects only what the manager reads is kept.

use std::{collections::BTreeSet, fs::File, io::Write, path::Path};

use jiff::Timestamp;
use nodewright_runtime::object::name;
use serde_json::{Value, json};

use crate::{
    fault::{Fault, Outcome},
    metrics::{self, is_manager},
    names::{Target, TargetKind},
    output::{Colours, Format, document},
    read::{LEASE_NAMES, Scope},
    redact::{Redaction, cut},
    resources::{
        APPS, BUDGETS, CLASSES, CONTROLLER_CONFIGS, DEPLOYMENTS, EVENTS, KUBELET_CONFIGS, LEASES, MACHINES, MUTATING,
        NODES, POOLS, Resource, SETS, VALIDATING,
    },
    snapshot::Snapshot,
    tree::Forest,
    why,
};

/// The kinds in the archive, and whether they are in the cluster of the nodes.
const KINDS: [(Resource, bool); 13] = [
    (DEPLOYMENTS, false),
    (SETS, false),
    (MACHINES, false),
    (CLASSES, false),
    (EVENTS, false),
    (LEASES, false),
    (APPS, false),
    (VALIDATING, false),
    (MUTATING, false),
    (NODES, true),
    (POOLS, true),
    (KUBELET_CONFIGS, true),
    (CONTROLLER_CONFIGS, true),
];

/// A file of the archive.
pub(crate) struct Entry {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Collects what a report consists of.
pub(crate) async fn collect(scope: &Scope) -> Outcome<Vec<Entry>> {
    let (mut files, mut gaps) = match scope.snapshot().await {
        Ok(snapshot) => (explained(&snapshot)?, snapshot.gaps),
        // What may be read helps as well.
        Err(error) if error.is_forbidden() => (vec![], vec![format!("no tree.txt and no why.txt: {}", error.short())]),
        Err(error) => return Err(error),
    };
    let mut objects: Vec<(Resource, Vec<Value>)> = vec![];
    for (resource, of_target) in KINDS {
        let cluster = if of_target { &scope.target } else { &scope.control };
        match cluster.list(resource, scope.namespace.as_deref(), "").await {
            Ok(all) => objects.push((resource, all.into_iter().filter(is_wanted).collect())),
            Err(error) if error.is_not_served() => {}
            Err(error) => gaps.push(format!("not read: {}", error.short())),
        }
    }
    if let Ok(all) = scope.target.list(BUDGETS, None, "").await {
        objects.push((BUDGETS, all));
    }
    let (texts, without) = metrics::collect(&scope.control, objects.iter().flat_map(|(_, all)| all)).await;
    files.extend(texts.into_iter().map(|(pod, text)| Entry { path: format!("metrics/{pod}.txt"), text }));
    gaps.extend(without);
    files.push(Entry { path: "versions.json".to_owned(), text: versions(scope).await? });
    gaps.sort();
    gaps.dedup();
    files.push(Entry { path: "gaps.txt".to_owned(), text: gaps.into_iter().map(|gap| gap + "\n").collect() });
    redacted(objects, files)
}

/// Removes from all texts what is removed from objects: a message may quote it.
fn redacted(objects: Vec<(Resource, Vec<Value>)>, files: Vec<Entry>) -> Outcome<Vec<Entry>> {
    let mut redaction = Redaction::default();
    for (_, all) in &objects {
        for object in all {
            redaction.learn(object);
        }
    }
    let mut archive = vec![];
    for (resource, all) in objects {
        let kept: Vec<_> = all.into_iter().map(cut).collect();
        let text = document(&json!({"kind": "List", "apiVersion": "v1", "items": kept}), Format::Yaml)?;
        archive.push(Entry { path: format!("objects/{}.yaml", resource.plural), text });
    }
    archive.extend(files);
    Ok(archive.into_iter().map(|entry| Entry { text: redaction.apply(&entry.text), ..entry }).collect())
}

/// Of Leases and Deployments only those of managers, and of webhooks only those of our kinds.
fn is_wanted(object: &Value) -> bool {
    let named = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    match object["kind"].as_str().unwrap_or_default() {
        "Lease" => LEASE_NAMES.contains(&named),
        "Deployment" => is_manager(object),
        "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => {
            object["webhooks"].to_string().contains(nodewright_api::GROUP)
        }
        _ => true,
    }
}

async fn versions(scope: &Scope) -> Outcome<String> {
    let server = scope.control.version().await.map_or_else(|error| error.short().into(), |it| it["gitVersion"].clone());
    let now = format!("{:.0}", Timestamp::now());
    let versions = json!({
        "plugin": env!("CARGO_PKG_VERSION"), "apiServer": server, "namespace": scope.namespace, "time": now,
    });
    document(&versions, Format::Json)
}

/// What `tree` and `why` say.
fn explained(snapshot: &Snapshot) -> Outcome<Vec<Entry>> {
    let tree = Forest::of(snapshot, None, true).wide_text(snapshot.now, Colours::default());
    let deployments = snapshot.deployments.iter().map(|it| Target::new(TargetKind::Deployment, name(it)));
    let pools = snapshot.pools.iter().map(|it| Target::new(TargetKind::Pool, name(it)));
    let mut text = String::new();
    for target in deployments.chain(pools) {
        text.push_str(&why::explain(snapshot, &target)?.text(Colours::default()));
        text.push('\n');
    }
    let named = |path: &str, text: String| Entry { path: path.to_owned(), text };
    Ok(vec![named("tree.txt", tree), named("why.txt", text)])
}

/// Writes the archive, for the user alone to read; `-` is standard output.
pub(crate) fn write(path: &Path, entries: &[Entry]) -> Outcome<()> {
    let failed = |error: std::io::Error| Fault::Message(format!("failed to write {}: {error}", path.display()));
    if path == Path::new("-") {
        return archive(std::io::stdout().lock(), entries).map_err(failed);
    }
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    archive(options.open(path).map_err(failed)?, entries).map_err(failed)
}

fn archive(to: impl Write, entries: &[Entry]) -> std::io::Result<()> {
    let mut builder = tar::Builder::new(to);
    let time = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
    for Entry { path, text } in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(time);
        builder.append_data(&mut header, format!("nodewright-report/{path}"), text.as_bytes())?;
    }
    builder.into_inner()?.flush()
}

/// The paths of an archive, for people.
pub(crate) fn listing(entries: &[Entry]) -> String {
    let paths: BTreeSet<_> = entries.iter().map(|entry| entry.path.as_str()).collect();
    paths.into_iter().collect::<Vec<_>>().join(", ")
}
