//! What an apply of a file would create, replace and delete.
//!
//! A dry run of the API server says what each object would be, and refuses what an apply would be refused for.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs::File,
    io::{self, Read},
    path::Path,
    time::Duration,
};

use clap::Args;
use nodewright_api::MachineClass;
use nodewright_controllers::machine_config_pool::Objects;
use nodewright_runtime::object::name;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    Takes, client_side, decode, manager,
    pool::{self, planned},
    rollout::{Fleet, Plan},
};
use crate::{
    client::Patch,
    fault::{Fault, Outcome, fail},
    output::{Format, counted, document, print},
    read::Scope,
    resources::{CLASSES, DEPLOYMENTS, MACHINE_CONFIGS, POOLS, Resource},
};

/// The kinds whose apply is planned. Classes first: a deployment needs its class.
const KINDS: [Resource; 4] = [CLASSES, DEPLOYMENTS, MACHINE_CONFIGS, POOLS];
/// The largest file that is read, in bytes.
const LARGEST: u64 = 32 << 20;

/// That no server-side apply is planned.
const CLIENT_SIDE: &str = "kubectl applied it without --server-side, and would again: fields that it applied, and the file omits, go; --field-manager plans the apply of another one";

/// kubectl's word for an apply that changes nothing.
const UNCHANGED: &str = "unchanged";

/// The apply that is planned.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Apply {
    /// Who would apply it: a field that this manager applied before, and that the file does not have, would go. [default: kubectl,
    /// with or without --server-side as the object was applied before]
    #[arg(long, value_name = "NAME")]
    pub(crate) field_manager: Option<String>,
    /// Plan an apply that takes over fields of other managers, as kubectl apply --server-side --force-conflicts does.
    #[arg(long)]
    pub(crate) force_conflicts: bool,
}

/// A document of the file, and what it would become.
struct Applied {
    of: Resource,
    namespace: Option<String>,
    name: String,
    live: Option<Value>,
    after: Value,
}

impl Applied {
    /// In kubectl's words.
    fn result(&self) -> &'static str {
        let spec = |object: &Value| {
            let parts = ["/spec", "/providerSpec", "/secretRef", "/credentialsSecretRef", "/nodeTemplate", "/provider"];
            let of = ["/metadata/labels", "/metadata/annotations"].into_iter().chain(parts);
            of.map(|path| object.pointer(path).cloned()).collect::<Vec<_>>()
        };
        match &self.live {
            None => "created",
            Some(live) if spec(live) == spec(&self.after) => UNCHANGED,
            Some(_) => "configured",
        }
    }

    fn changes(&self) -> bool {
        self.result() != UNCHANGED
    }

    /// That what becomes of its machines is not foreseen, and why.
    fn unforeseen(&self, error: String) -> Part {
        let value = json!({"error": error});
        Part { title: self.title(), text: error + "\n", value, is_unforeseen: true }
    }

    fn title(&self) -> String {
        format!("{}/{} {}", self.of.kind.to_lowercase(), self.name, self.result())
    }
}

/// What becomes of an object of the file.
struct Part {
    title: String,
    text: String,
    value: Value,
    is_unforeseen: bool,
}

/// The plan of a file, for people or programs.
pub(crate) async fn file(
    scope: &Scope,
    path: &Path,
    (apply, takes): (&Apply, &Takes),
    format: Option<Format>,
) -> Outcome<String> {
    let mut applied = vec![];
    let documents = documents(&read(path)?)?;
    if documents.known.is_empty() && documents.others.is_empty() {
        let what = if path.as_os_str() == "-" { "standard input".into() } else { path.display().to_string() };
        return fail(format!("{what} has no object"));
    }
    for (of, object) in documents.known {
        applied.push(dry(scope, (of, object), apply).await?);
    }
    for kind in documents.others {
        eprintln!("note: what an apply of {kind} does is not planned");
    }
    let fleets = fleets(scope, &applied).await?;
    let mut parts = vec![];
    for object in &applied {
        if let Some(fleet) = fleets.get(&object.namespace) {
            match part(scope, fleet, object, (takes, format == Some(Format::Wide))).await {
                // What cannot be foreseen of one object is no reason to print nothing of the others.
                Err(Fault::Message(error)) => parts.push(object.unforeseen(error)),
                part => parts.extend(part?),
            }
        }
    }
    parts.extend(pools(scope, &applied, takes.update).await?);
    let absent = absent(scope, &applied, fleets.keys()).await;
    let printed = printed(&parts, &absent, format)?;
    match parts.iter().filter(|part| part.is_unforeseen).count() {
        0 => Ok(printed),
        count => {
            print(&printed);
            fail(format!("what becomes of {} is not foreseen", counted(count, "object")))
        }
    }
}

/// All parts, for people or programs.
fn printed(parts: &[Part], absent: &BTreeSet<String>, format: Option<Format>) -> Outcome<String> {
    if let Some(format @ (Format::Json | Format::Yaml)) = format {
        for text in absent {
            eprintln!("note: {text}");
        }
        let values = parts.iter().map(|part| json!({"object": part.title, "plan": part.value}));
        return document(&values.collect::<Vec<_>>(), format);
    }
    let parts = parts.iter().map(|part| format!("{}\n{}", part.title, part.text));
    let absent = absent.iter().map(|text| format!("{text}\n"));
    Ok(parts.chain(absent).collect::<Vec<_>>().join("\n"))
}

/// That no manager acts on the objects now: on those of each namespace, and on pools.
async fn absent(
    scope: &Scope,
    applied: &[Applied],
    namespaces: impl Iterator<Item = &Option<String>>,
) -> BTreeSet<String> {
    let mut absent = BTreeSet::new();
    for namespace in namespaces {
        absent.extend(manager::absent(scope, namespace.as_deref(), manager::OF_MACHINES).await);
    }
    if applied.iter().any(|it| !it.of.namespaced) {
        absent.extend(manager::absent(scope, scope.namespace.as_deref(), manager::OF_POOLS).await);
    }
    absent
}

fn read(path: &Path) -> Outcome<String> {
    let failed = |error: io::Error| Fault::Message(format!("failed to read {}: {error}", path.display()));
    let mut text = String::new();
    let input: Box<dyn Read> =
        if path.as_os_str() == "-" { Box::new(io::stdin()) } else { Box::new(File::open(path).map_err(failed)?) };
    let length = input.take(LARGEST + 1).read_to_string(&mut text).map_err(failed)?;
    if length as u64 > LARGEST {
        return fail(format!("{} is larger than {} MiB", path.display(), LARGEST >> 20));
    }
    Ok(text)
}

/// The objects of a file.
#[derive(Debug)]
struct Documents {
    /// Those whose apply is planned, in the order of [`KINDS`].
    known: Vec<(Resource, Value)>,
    /// The other kinds.
    others: Vec<String>,
}

fn documents(text: &str) -> Outcome<Documents> {
    let failed = |error: &dyn std::fmt::Display| Fault::Message(format!("the file is not YAML: {error}"));
    let all: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| failed(&error.without_snippet()))?;
    // A list has its objects in `items`.
    let all = all.into_iter().filter(|object| !object.is_null()).flat_map(|mut object| {
        match object.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => items,
            _ => vec![object],
        }
    });
    let (mut known, mut others) = (vec![], vec![]);
    for object in all {
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text("apiVersion"), text("kind"));
        match KINDS.iter().position(|of| of.kind == kind && of.api_version() == version) {
            Some(at) => known.push((at, object)),
            None if kind.is_empty() => return fail("an object of the file has no kind"),
            None if version.is_empty() => return fail(format!("a {kind} of the file has no apiVersion")),
            None => others.push(format!("{version} {kind}")),
        }
    }
    known.sort_by_key(|(at, _)| *at);
    others.sort();
    others.dedup();
    Ok(Documents { known: known.into_iter().map(|(at, object)| (KINDS[at], object)).collect(), others })
}

async fn dry(scope: &Scope, (of, object): (Resource, Value), apply: &Apply) -> Outcome<Applied> {
    let Some(name) = object.pointer("/metadata/name").and_then(Value::as_str).map(str::to_owned) else {
        return fail(format!("a {} of the file has no metadata.name", of.kind));
    };
    let named = object.pointer("/metadata/namespace").and_then(Value::as_str).map(str::to_owned);
    let given = scope.namespace.as_ref().filter(|_| scope.is_namespace_given && of.namespaced);
    if let (Some(named), Some(given)) = (&named, given)
        && named != given
    {
        return fail(format!(
            "{} {name} is of namespace {named}, and --namespace={given} is given: leave it out, or name that of the object",
            of.kind
        ));
    }
    let namespace = named.or_else(|| scope.namespace.clone()).filter(|_| of.namespaced);
    let cluster = if of.namespaced { &scope.control } else { &scope.target };
    let live = match cluster.get(of, namespace.as_deref(), &name).await {
        Err(error) if error.is_not_found() => None,
        live => Some(live?),
    };
    let at = (of, namespace.as_deref(), name.as_str());
    let live_of_kubectl = live.as_ref().filter(|_| apply.field_manager.is_none());
    let patch = live_of_kubectl.and_then(|live| client_side::patch(live, &object, at.1));
    let after = if let Some(patch) = patch {
        eprintln!("note: {} {name}: {CLIENT_SIDE}", of.kind);
        cluster.patch(at, &Patch::Merge(patch), true).await?
    } else {
        let by = apply.field_manager.as_deref().unwrap_or(client_side::KUBECTL);
        cluster.dry_apply(at, &object, by, apply.force_conflicts).await?
    };
    Ok(Applied { of, namespace, name, live, after })
}

/// The fleets of all namespaces of the file, with its classes.
async fn fleets(scope: &Scope, applied: &[Applied]) -> Outcome<BTreeMap<Option<String>, Fleet>> {
    let mut fleets = BTreeMap::new();
    for object in applied.iter().filter(|it| it.of.namespaced) {
        let fleet = match fleets.entry(object.namespace.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(Fleet::read(scope, object.namespace.as_deref()).await?),
        };
        if let (Some(known), true) = (&mut fleet.classes, object.of == CLASSES) {
            known.retain(|class| name(class) != object.name);
            let mut class: MachineClass = decode(CLASSES.kind, &object.after)?;
            // Its conditions are about the former one.
            class.status = class.status.filter(|_| !object.changes());
            known.push(class);
        }
        if object.of == CLASSES && object.changes() {
            fleet.new_classes.insert(object.name.clone());
        }
        if object.of == DEPLOYMENTS {
            fleet.read_nodes(scope, &decode(DEPLOYMENTS.kind, &object.after)?).await?;
        }
    }
    Ok(fleets)
}

/// The Secrets that a class names. They are never read.
fn secrets(class: &MachineClass) -> String {
    let names: Vec<_> = class.secret_names().map(|(namespace, name)| format!("{namespace}/{name}")).collect();
    if names.is_empty() {
        return String::new();
    }
    format!("it needs Secret {}: whether that exists is not looked at\n", names.join(", "))
}

/// What becomes of the machines of an object.
async fn part(scope: &Scope, fleet: &Fleet, object: &Applied, (takes, wide): (&Takes, bool)) -> Outcome<Option<Part>> {
    let title = object.title();
    if object.of == CLASSES {
        let of_class = fleet.objects.machines.iter().filter(|machine| machine.class_name() == object.name);
        let machines = of_class.filter(|machine| machine.provider_id().is_some()).count();
        let text = match machines {
            0 => "no machine of it has a VM yet\n".to_owned(),
            1 => "1 machine of it keeps its VM; those that are created after that follow it\n".to_owned(),
            count => format!("{count} machines of it keep their VMs; those that are created after that follow it\n"),
        };
        let text = if object.changes() { text + &secrets(&decode(CLASSES.kind, &object.after)?) } else { text };
        return Ok(Some(Part { title, text, value: json!({"machines": machines}), is_unforeseen: false }));
    }
    if object.of != DEPLOYMENTS {
        return Ok(None);
    }
    let plan = Plan::read(scope, fleet.clone(), decode(DEPLOYMENTS.kind, &object.after)?, takes).await?;
    Ok(Some(Part { title, text: plan.text(wide), value: plan.value(), is_unforeseen: false }))
}

/// What becomes of the pools, if the file has node configuration: of those whose target or rounds would be others.
async fn pools(scope: &Scope, applied: &[Applied], update: Option<Duration>) -> Outcome<Vec<Part>> {
    let of_pools: Vec<_> = applied.iter().filter(|it| !it.of.namespaced).collect();
    if of_pools.is_empty() {
        return Ok(vec![]);
    }
    let mut objects = pool::objects(&scope.target).await?;
    let before: BTreeMap<_, _> = of_each_pool(&objects, update).map(|part| (part.title, part.text)).collect();
    let mut parts = vec![];
    for object in of_pools {
        objects = with(objects, object)?;
        parts.push(Part { title: object.title(), text: String::new(), value: Value::Null, is_unforeseen: false });
    }
    parts.extend(of_each_pool(&objects, update).filter(|part| before.get(&part.title) != Some(&part.text)));
    Ok(parts)
}

/// What becomes of each pool.
fn of_each_pool(objects: &Objects, update: Option<Duration>) -> impl Iterator<Item = Part> {
    objects.pools.iter().map(move |pool| {
        let (name, plan) = (name(pool), planned(objects, name(pool)));
        let (text, value) = match plan {
            Ok(plan) => (pool::text(name, &plan, update), pool::value(name, &plan, update)),
            Err(error) => (format!("{error}\n"), Value::Null),
        };
        Part { title: format!("machineconfigpool/{name}"), text, value, is_unforeseen: false }
    })
}

/// The objects, with one as it would be.
fn with(mut objects: Objects, applied: &Applied) -> Outcome<Objects> {
    fn replace<K: nodewright_runtime::object::Kind + DeserializeOwned>(
        all: &mut Vec<K>,
        applied: &Applied,
    ) -> Outcome<()> {
        all.retain(|object| name(object) != applied.name);
        all.push(decode(applied.of.kind, &applied.after)?);
        Ok(())
    }
    if applied.of == POOLS {
        replace(&mut objects.pools, applied)?;
    } else {
        replace(&mut objects.machine_configs, applied)?;
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(kind: &str, version: &str, name: &str) -> String {
        format!("apiVersion: {version}\nkind: {kind}\nmetadata:\n  name: {name}\n")
    }

    #[test]
    fn classes_come_first_lists_are_taken_apart_and_other_kinds_are_named() {
        let machine = "machine.sapcloud.io/v1alpha1";
        let deployment = object("MachineDeployment", machine, "a");
        let class = object("MachineClass", machine, "b");
        let list = r#"{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Secret"}]}"#;
        let pool = object("MachineConfigPool", "machineconfiguration.openshift.io/v1", "c");
        let file = [deployment.as_str(), "", &class, list, &pool, &object("Secret", "v1", "d")].join("\n---\n");
        let Documents { known, others } = documents(&file).unwrap();
        let names: Vec<_> = known.iter().map(|(_, object)| object["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!((names, others), (vec!["b", "a", "c"], vec!["v1 Secret".to_owned()]));
        assert!(known.iter().all(|(_, object)| object.as_object().unwrap().len() == 3), "no field is added: {known:?}");
    }

    #[test]
    fn what_is_no_manifest_is_an_error_without_its_content() {
        for (text, part) in [("a: [hunter2", "not YAML"), ("token: hunter2", "no kind")] {
            let error = documents(text).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("hunter2"), "{error}");
        }
    }
}
