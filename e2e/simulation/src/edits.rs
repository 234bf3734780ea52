//! Changes that users make with a single request.

use std::sync::Arc;

use nodewright_api::labels;
use nodewright_testing::api_server::ApiServer;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    names::{COPY, MACHINES, POOL, SETS, node_labels},
    oracles::Oracles,
    preservation,
    schedule::Edit,
    trace::Trace,
};

/// Makes a user's change at once.
pub(super) fn edit(server: &ApiServer, oracles: &Mutex<Oracles>, trace: &Trace, edit: &Edit) {
    oracles.lock().user_acts();
    if !is_done(server, oracles, edit) {
        trace.line(format_args!("{edit:?} is left out: users do not do that now"));
    }
}

/// Makes the change, and returns whether it was made. It needs an existing target, and users wait until the manager has adopted
/// orphaned machines.
fn is_done(server: &ApiServer, oracles: &Mutex<Oracles>, edit: &Edit) -> bool {
    match edit {
        Edit::Scale(replicas) => server.change(POOL, |pool| pool["spec"]["replicas"] = (*replicas).into()).is_some(),
        Edit::Relabel(name) => {
            let template = "/spec/template/spec/nodeTemplate/metadata";
            let relabel = |pool: &mut Value| {
                if let Some(metadata) = pool.pointer_mut(template) {
                    metadata["labels"] = node_labels(name);
                }
            };
            server.change(POOL, relabel).is_some()
        }
        Edit::Preserve { machine: number, on_node, value } => {
            machine(server, *number).is_some_and(|machine| preservation::annotate(server, &machine, *on_node, value))
        }
        Edit::AutoPreserve(maximum) => preservation::preserve_some(server, *maximum),
        // Orphaned machines would then have an old template, and no set would ever adopt them.
        Edit::Roll(class) => {
            !are_left_behind(server)
                && server
                    .change(POOL, |pool| {
                        pool["spec"]["template"]["spec"]["class"]["name"] = class.as_str().into();
                    })
                    .is_some()
        }
        Edit::DeleteMachine(number) => machine(server, *number).is_some_and(|machine| {
            // The set that lost the machine does not know that the name was used.
            if !is_owned(&machine) {
                oracles.lock().excuse(machine["metadata"]["name"].as_str().unwrap_or_default());
            }
            // A machine that was restored without its finalizer is gone at once.
            if machine["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty) {
                excuse_force(oracles, &machine);
            }
            server.delete(&path_of(&machine))
        }),
        Edit::ForceDeleteMachine(number) => machine(server, *number).is_some_and(|machine| {
            oracles.lock().excuse_node(machine["metadata"]["name"].as_str().unwrap_or_default());
            server.change(&path_of(&machine), |machine| {
                machine["metadata"]["labels"][labels::FORCE_DELETION] = "true".into();
            });
            is_done(server, oracles, &Edit::DeleteMachine(*number))
        }),
        Edit::RecreateMachine(number) => {
            machine(server, *number).map(|machine| recreate(server, oracles, machine)).is_some()
        }
        // Orphans after a restore would not be deleted with the deployment.
        Edit::DeletePool => {
            [SETS, MACHINES].iter().all(|collection| server.objects(collection).iter().all(|it| is_owned(it)))
                && server.delete(POOL)
        }
    }
}

/// Whether there are machines without an owner that no set selects.
fn are_left_behind(server: &ApiServer) -> bool {
    let sets = server.objects(SETS);
    let selects = |set: &Value, machine: &Value| {
        let wanted = set["spec"]["selector"]["matchLabels"].as_object();
        wanted.is_some_and(|wanted| wanted.iter().all(|(key, value)| machine["metadata"]["labels"][key] == *value))
    };
    let is_selected = |machine: &Value| sets.iter().any(|set| selects(set, machine));
    server.objects(MACHINES).iter().any(|machine| !is_owned(machine) && !is_selected(machine))
}

pub(super) fn is_owned(object: &Value) -> bool {
    object["metadata"]["ownerReferences"].as_array().is_some_and(|owners| !owners.is_empty())
}

/// The n-th machine by name, modulo their number.
fn machine(server: &ApiServer, number: usize) -> Option<Value> {
    let mut machines = server.objects(MACHINES);
    machines.retain(|machine| !machine["metadata"]["name"].as_str().unwrap_or_default().starts_with(COPY));
    (!machines.is_empty()).then(|| Arc::unwrap_or_clone(machines.swap_remove(number % machines.len())))
}

fn path_of(machine: &Value) -> String {
    format!("{MACHINES}/{}", machine["metadata"]["name"].as_str().unwrap_or_default())
}

pub(super) fn excuse_force(oracles: &Mutex<Oracles>, machine: &Value) {
    oracles.lock().excuse_force(machine["metadata"]["name"].as_str().unwrap_or_default());
}

fn recreate(server: &ApiServer, oracles: &Mutex<Oracles>, mut machine: Value) {
    excuse_force(oracles, &machine);
    server.remove(&path_of(&machine));
    strip(&mut machine, &["uid", "resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds"]);
    server.seed(MACHINES, machine);
}

pub(super) fn wipe_status(object: &mut Value) {
    if let Some(parts) = object.as_object_mut() {
        parts.remove("status");
    }
}

/// Removes the status of an object, and these fields of its metadata.
pub(super) fn strip(object: &mut Value, fields: &[&str]) {
    wipe_status(object);
    remove_fields(object, fields);
}

pub(super) fn remove_fields(object: &mut Value, fields: &[&str]) {
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    for field in fields {
        metadata.remove(*field);
    }
    if metadata.get("annotations") == Some(&json!({})) {
        metadata.remove("annotations");
    }
}
