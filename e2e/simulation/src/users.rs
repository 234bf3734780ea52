//! Users' errors that no controller expects: copies, references to objects of others, unreadable objects; and their
//! correction.

use std::{sync::Arc, time::Duration};

use nodewright_api::annotations;
use nodewright_api::stored::Ledger;
use nodewright_testing::api_server::ApiServer;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    acts::vanish,
    cluster::SimulatedCluster,
    foreign::seed_neighbour,
    names::{BY_HAND, BYSTANDER, CLASSES, COPY, MACHINES, NAMESPACE, NODES, POOL, SETS, is_foreign},
    oracles::Oracles,
    schedule::UserError,
};
use nodewright_e2e_cloud::LocalCloud;

/// Makes the error, and corrects it after this many seconds.
pub(super) fn err(cluster: &SimulatedCluster, user_error: &UserError, seconds: u32) {
    let server = cluster.server().clone();
    let mended: Mend = match user_error {
        UserError::Copy { machine, labelled } => copy(&server, *machine, *labelled),
        UserError::Claim => bystander_id(cluster.cloud()).and_then(|id| claim(&server, &id)),
        UserError::RunningClaim => bystander_id(cluster.cloud()).and_then(|id| running_claim(&server, &id)),
        UserError::ForgeRecord(machine) => forge_record(&server, &cluster.oracles, *machine),
        UserError::ProviderId(machine) => bystander_id(cluster.cloud())
            .and_then(|id| change(&server, &nth(&server, MACHINES, *machine)?, "/spec/providerID", id.into())),
        UserError::NodeLabel(machine) => nth(&server, MACHINES, *machine)
            .and_then(|path| change(&server, &path, "/metadata/labels/node", BYSTANDER.into())),
        UserError::ClassCluster => Some(mend_all(["small", "large"].iter().filter_map(|class| {
            change(&server, &format!("{CLASSES}/{class}"), "/providerSpec/cluster", "elsewhere".into())
        }))),
        UserError::ClassSecret(class) => {
            change(&server, &format!("{CLASSES}/{class}"), "/secretRef/name", "missing".into())
        }
        UserError::ShortTimeout => change(&server, POOL, "/spec/template/spec/creationTimeout", "1s".into()),
        UserError::NodeByHand(machine) => make_node(&server, *machine),
        UserError::NodeNamesake(machine) => make_namesake(cluster, *machine),
        UserError::Neighbour(machine) => {
            seed_neighbour(&server, cluster.cloud(), nth(&server, MACHINES, *machine).as_deref().and_then(last_part));
            None
        }
        UserError::NeighbourAhead => {
            seed_neighbour(&server, cluster.cloud(), next_name(&server).as_deref());
            None
        }
        UserError::EditLedger(set) => {
            edit_ledger(&server, &cluster.oracles, *set);
            None
        }
        UserError::Garble(plural, number) => {
            let mended = garble(&server, plural, *number);
            cluster.first.crash();
            mended
        }
    };
    let Some(mend) = mended else { return };
    tokio::spawn(async move {
        sleep(Duration::from_secs(seconds.into())).await;
        mend();
    });
}

fn bystander_id(cloud: &LocalCloud) -> Option<String> {
    cloud.vms().into_iter().find(|vm| vm.name == BYSTANDER).map(|vm| vm.provider_id)
}

type Mend = Option<Box<dyn FnOnce() + Send>>;

fn mend_all(all: impl Iterator<Item = Box<dyn FnOnce() + Send>>) -> Box<dyn FnOnce() + Send> {
    let all: Vec<_> = all.collect();
    Box::new(move || all.into_iter().for_each(|mend| mend()))
}

/// The path of the n-th object by name, modulo their number; copies do not count.
fn nth(server: &ApiServer, collection: &str, number: usize) -> Option<String> {
    let names = server.objects(collection);
    let names = names.iter().filter_map(|object| object["metadata"]["name"].as_str());
    let names: Vec<_> = names.filter(|name| !name.starts_with(COPY) && !is_foreign(name)).collect();
    (!names.is_empty()).then(|| format!("{collection}/{}", names[number % names.len()]))
}

/// Sets a field of an object. The result restores the old value.
fn change(server: &ApiServer, path: &str, field: &str, value: Value) -> Mend {
    let before = server.object(path)?.pointer(field).cloned();
    server.change(path, |object| set(object, field, Some(value)))?;
    let (server, path, field) = (server.clone(), path.to_owned(), field.to_owned());
    Some(Box::new(move || drop(server.change(&path, |object| set(object, &field, before)))))
}

fn set(object: &mut Value, field: &str, value: Option<Value>) {
    let Some((parent, key)) = field.rsplit_once('/') else { return };
    let Some(parent) = object.pointer_mut(parent).and_then(Value::as_object_mut) else { return };
    match value {
        Some(value) => drop(parent.insert(key.to_owned(), value)),
        None => drop(parent.remove(key)),
    }
}

/// `kubectl get machine -o yaml`, then `kubectl create` under another name.
fn copy(server: &ApiServer, machine: usize, labelled: bool) -> Mend {
    let original = server.object(&nth(server, MACHINES, machine)?)?;
    let labels = if labelled { original["metadata"]["labels"].clone() } else { json!({}) };
    make_machine(server, &format!("{COPY}-{machine}"), &original["spec"], &labels, &Value::Null)
}

/// Creates a machine that names a VM.
fn claim(server: &ApiServer, id: &str) -> Mend {
    let mut spec = server.object(&nth(server, MACHINES, 0)?)?["spec"].clone();
    spec["providerID"] = id.into();
    make_machine(server, &format!("{COPY}-claim"), &spec, &json!({}), &Value::Null)
}

/// Creates a running machine as machine-controller-manager leaves it, with a VM, and without a record that it is its own.
fn running_claim(server: &ApiServer, id: &str) -> Mend {
    let mut spec = server.object(&nth(server, MACHINES, 0)?)?["spec"].clone();
    spec["providerID"] = id.into();
    let status = json!({"currentStatus": {"phase": "Running"}});
    make_machine(server, &format!("{COPY}-running"), &spec, &json!({"node": BYSTANDER}), &status)
}

fn last_part(path: &str) -> Option<&str> {
    path.rsplit('/').next()
}

/// The name that the next machine of the first set will have.
fn next_name(server: &ApiServer) -> Option<String> {
    let set = server.object(&nth(server, SETS, 0)?)?;
    let name = set["metadata"]["name"].as_str()?;
    let ledger: Ledger = set["metadata"]["annotations"][annotations::LEDGER].as_str()?.parse().ok()?;
    let machines = server.objects(MACHINES);
    let ordinal = |it: &Arc<Value>| {
        let index = it["metadata"]["annotations"][annotations::INDEX].as_str();
        ledger.ordinal(name, it["metadata"]["name"].as_str()?, index)
    };
    let seen = machines.iter().filter_map(ordinal).collect();
    ledger.lowest_free(&seen, 1).pop().map(|next| ledger.name(name, next))
}

/// Retires the ordinals of all machines of a set, as an edit of the annotation does.
fn edit_ledger(server: &ApiServer, oracles: &Arc<Mutex<Oracles>>, set: usize) {
    let Some(path) = nth(server, SETS, set) else { return };
    let machines = server.objects(MACHINES);
    let ordinal = |it: &Arc<Value>| it["metadata"]["annotations"][annotations::INDEX].as_str()?.parse::<u32>().ok();
    let Some(last) = machines.iter().filter_map(ordinal).max() else { return };
    let before = server.object(&path).map(|set| set["metadata"]["annotations"][annotations::LEDGER].clone());
    let retired =
        before.as_ref().and_then(Value::as_str).and_then(|text| text.split_once(';')).map(|(_, retired)| retired);
    // Names that are free again would be used a second time.
    let retired = retired.into_iter().flat_map(|it| it.split([',', '-'])).filter_map(|it| it.parse().ok());
    let last = retired.fold(last, u32::max);
    let edited = server.change(&path, |set| {
        let ledger = &mut set["metadata"]["annotations"][annotations::LEDGER];
        let seed = ledger.as_str().and_then(|text| text.split(';').next()).unwrap_or_default().to_owned();
        *ledger = format!("{seed};0-{last}").into();
    });
    if edited.is_some() {
        oracles.lock().keep_ready();
    }
}

/// The key of the label and annotation that another client has put on a Node.
const OTHERS: &str = "example.com/others";

/// Makes a Node record another client's label and annotation as its machine's own. In the end both must still exist.
fn forge_record(server: &ApiServer, oracles: &Arc<Mutex<Oracles>>, machine: usize) -> Mend {
    let machine = server.object(&nth(server, MACHINES, machine)?)?;
    let name = machine["metadata"]["labels"]["node"].as_str().filter(|name| !is_foreign(name))?.to_owned();
    let path = format!("{NODES}/{name}");
    let has_it = |node: &Value| ["labels", "annotations"].map(|map| node["metadata"][map][OTHERS] == "1");
    let before = server.object(&path).filter(|node| has_it(node) == [false, false])?;
    let forged = json!({"metadata": {"labels": {OTHERS: "1"}, "annotations": {OTHERS: "1"}}, "spec": {}});
    server.change(&path, |node| {
        node["metadata"]["labels"][OTHERS] = "1".into();
        node["metadata"]["annotations"][OTHERS] = "1".into();
        node["metadata"]["annotations"][annotations::LAST_APPLIED_ANNOTATIONS_LABELS_TAINTS] =
            forged.to_string().into();
    })?;
    let (server, oracles) = (server.clone(), oracles.clone());
    Some(Box::new(move || {
        let is_same = |node: &Arc<Value>| node["metadata"]["uid"] == before["metadata"]["uid"];
        let Some(node) = server.object(&path).filter(is_same) else { return };
        if has_it(&node) != [true, true] {
            oracles.lock().blame(format!("I12: what others had put on node {name} was taken away"));
        }
        server.change(&path, |node| {
            for map in ["labels", "annotations"] {
                if let Some(map) = node["metadata"][map].as_object_mut() {
                    map.remove(OTHERS);
                }
            }
        });
    }))
}

/// `kubectl create`; the correction is `kubectl delete`.
fn make_machine(server: &ApiServer, name: &str, spec: &Value, labels: &Value, status: &Value) -> Mend {
    let path = format!("{MACHINES}/{name}");
    if server.object(&path).is_some() {
        return None;
    }
    let mut machine = json!({
        "apiVersion": nodewright_api::API_VERSION, "kind": "Machine", "spec": spec,
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
    });
    if !status.is_null() {
        machine["status"] = status.clone();
    }
    server.seed(MACHINES, machine);
    let server = server.clone();
    Some(Box::new(move || _ = server.delete(&path)))
}

/// Creates a second Node that claims to belong to the VM of a machine. While it was the only one, nobody could tell.
fn make_node(server: &ApiServer, machine: usize) -> Mend {
    let machine = server.object(&nth(server, MACHINES, machine)?)?;
    let path = format!("{NODES}/{BY_HAND}");
    let id = &machine["spec"]["providerID"];
    if server.object(&path).is_some() || !server.objects(NODES).iter().any(|node| node["spec"]["providerID"] == *id) {
        return None;
    }
    server.seed(
        NODES,
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": BY_HAND},
            "spec": {"providerID": id}}),
    );
    let server = server.clone();
    Some(Box::new(move || _ = server.delete(&path)))
}

/// Deletes the VM of a machine, and creates its Node again as that of a VM of another cluster.
fn make_namesake(cluster: &SimulatedCluster, machine: usize) -> Mend {
    let server = cluster.server().clone();
    let machine = server.object(&nth(&server, MACHINES, machine)?)?;
    let id = machine["spec"]["providerID"].as_str()?;
    let vm = cluster.cloud().vms().into_iter().find(|vm| vm.provider_id == id)?;
    let path = format!("{NODES}/{}", machine["metadata"]["labels"]["node"].as_str()?);
    let before = server.object(&path)?;
    let others = bystander_id(cluster.cloud())?;
    vanish(cluster, &vm);
    server.remove(&path);
    server.seed(
        NODES,
        json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": before["metadata"]["name"], "labels": before["metadata"]["labels"]},
            "spec": {"providerID": others},
            "status": {"addresses": before["status"]["addresses"],
                "conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]}}),
    );
    Some(Box::new(move || _ = server.delete(&path)))
}

/// Writes valid JSON that our types cannot decode.
fn garble(server: &ApiServer, plural: &str, number: usize) -> Mend {
    let (collection, field, value) = match plural {
        "nodes" => (NODES, "/spec/taints", json!([{"key": "garbled", "effect": 7}])),
        "machines" => (MACHINES, "/spec/drainTimeout", json!("as long as it takes")),
        "machinesets" => (SETS, "/spec/minReadySeconds", json!("some")),
        _ => (CLASSES, "/secretRef", json!("cloud")),
    };
    change(server, &nth(server, collection, number)?, field, value)
}
