//! The invariant of preserved machines: I32 of `docs/reference/simulation.md`; and what users ask for.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::annotations;
use nodewright_testing::api_server::{ApiServer, RequestRecord};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    names::{MACHINES, NODES, POOL},
    schedule::Schedule,
};

/// How long a run preserves a machine. All of them have to be over after an hour.
pub(super) const TIMEOUT: SignedDuration = SignedDuration::from_mins(5);
/// All managers know of a change of the deployment, and of the end of a preservation.
const KNOWN: Duration = Duration::from_mins(1);

#[derive(Default)]
pub(super) struct Preservations {
    /// Whether managers see all Machines in time, and these keep their statuses.
    is_evaluated: bool,
    /// Replicas and class of the deployment, and since when.
    wanted: Option<(Value, Value, Instant)>,
}

impl Preservations {
    pub(super) fn of(schedule: &Schedule) -> Self {
        Self { is_evaluated: schedule.sees_machines_in_time(), wanted: None }
    }

    /// Observes the deployment.
    pub(super) fn deployment(&mut self, pool: Option<&Value>) {
        let Some(pool) = pool else { return self.wanted = None };
        let (replicas, class) = (&pool["spec"]["replicas"], &pool["spec"]["template"]["spec"]["class"]["name"]);
        let is_known = |(known, of, _): &(Value, Value, Instant)| known == replicas && of == class;
        if !self.wanted.as_ref().is_some_and(is_known) {
            self.wanted = Some((replicas.clone(), class.clone(), Instant::now()));
        }
    }

    /// Evaluates a request of a manager. Returns the violation, if any.
    pub(super) fn request(
        &self,
        request: &RequestRecord,
        server: &ApiServer,
        at: impl Fn(Timestamp) -> Instant,
    ) -> Option<String> {
        let name = request.path.strip_prefix(MACHINES)?.strip_prefix('/').filter(|name| !name.contains('/'))?;
        let (replicas, class, since) =
            self.wanted.as_ref().filter(|_| self.is_evaluated && request.verb == "delete")?;
        let machine = server.object(&request.path)?;
        let is_gone = |machine: &Value| !machine["metadata"]["deletionTimestamp"].is_null();
        let current = &machine["status"]["currentStatus"];
        let expiry = current["preserveExpiryTime"].as_str()?.parse::<Timestamp>().ok()?;
        if is_gone(&machine) || current["phase"] != "Failed" || at(expiry) < Instant::now() + KNOWN {
            return None;
        }
        let is_other = |it: &Value| it["metadata"]["name"] != name && !is_gone(it);
        let others = server.objects(MACHINES).iter().filter(|it| is_other(it)).count() as u64;
        let is_needed = machine["spec"]["class"]["name"] == *class && replicas.as_u64().is_some_and(|it| others < it);
        (is_needed && since.elapsed() > KNOWN)
            .then(|| format!("I32: machine {name} is deleted, and preserved until {expiry}; {others} others are left"))
    }
}

/// A user annotates the machine of this path, or its Node. Returns whether there is one.
pub(super) fn annotate(server: &ApiServer, machine: &Value, on_node: bool, value: &str) -> bool {
    let path = if on_node {
        let Some(node) = machine["metadata"]["labels"]["node"].as_str() else { return false };
        format!("{NODES}/{node}")
    } else {
        format!("{MACHINES}/{}", machine["metadata"]["name"].as_str().unwrap_or_default())
    };
    let set = |object: &mut Value| {
        if value.is_empty() {
            if let Some(all) = object["metadata"]["annotations"].as_object_mut() {
                all.remove(annotations::PRESERVE);
            }
        } else {
            object["metadata"]["annotations"][annotations::PRESERVE] = value.into();
        }
    };
    server.change(&path, set).is_some()
}

pub(super) fn preserve_some(server: &ApiServer, maximum: u32) -> bool {
    server.change(POOL, |pool| pool["spec"]["autoPreserveFailedMachineMax"] = maximum.into()).is_some()
}

/// The first Node that shows a preservation which its machine does not have.
pub(super) fn marked_for_nothing(server: &ApiServer) -> Option<String> {
    let machines = server.objects(MACHINES);
    let is_preserved = |node: &Value| {
        let of_node = |machine: &&std::sync::Arc<Value>| machine["spec"]["providerID"] == node["spec"]["providerID"];
        let machine = machines.iter().find(of_node);
        machine.is_none_or(|machine| !machine["status"]["currentStatus"]["preserveExpiryTime"].is_null())
    };
    let is_marked = |node: &Value| {
        let is_true = |it: &Value| it["type"] == "Preserved" && it["status"] == "True";
        let conditions = node["status"]["conditions"].as_array();
        let taints = node["spec"]["taints"].as_array();
        conditions.is_some_and(|all| all.iter().any(is_true))
            || taints.is_some_and(|all| all.iter().any(|it| it["key"] == nodewright_api::taints::PRESERVED))
            || !node["metadata"]["annotations"][annotations::SCALE_DOWN_DISABLED_BY_MCM].is_null()
    };
    let nodes = server.objects(NODES);
    let node = nodes.iter().find(|node| is_marked(node) && !is_preserved(node))?;
    Some(format!("node {} shows a preservation that its machine does not have", node["metadata"]["name"]))
}
