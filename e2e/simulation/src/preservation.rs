//! The invariants of preserved machines: I32 to I34 of `docs/reference/simulation.md`; and what users ask for.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use nodewright_api::annotations;
use nodewright_testing::api_server::{ApiServer, RequestRecord};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    names::{MACHINES, NODES, POOL},
    schedule::{Act, Edit, Schedule},
};

/// How long a run preserves a machine. All of them have to be over after an hour.
pub(super) const TIMEOUT: SignedDuration = SignedDuration::from_mins(5);
/// All managers know of a change of the deployment, and of the end of a preservation.
const KNOWN: Duration = Duration::from_mins(1);

#[derive(Default)]
pub(super) struct Preservations {
    /// Whether managers see all Machines in time, and these keep their statuses.
    is_evaluated: bool,
    /// Whether no user writes what only sets write.
    only_sets_preserve: bool,
    /// Replicas and class of the deployment, and since when.
    wanted: Option<(Value, Value, Instant)>,
    /// How many failed machines the deployment preserves by itself, now and before, and since when.
    automatic: (u64, u64, Option<Instant>),
    /// Since when each Node asks for its machine to be preserved once it has failed, by name.
    asking: BTreeMap<String, Instant>,
}

impl Preservations {
    pub(super) fn of(schedule: &Schedule) -> Self {
        let only_sets_preserve = !schedule.acts().iter().any(|(_, act)| match act {
            Act::Edit(Edit::Preserve { value, .. }) => value == annotations::PRESERVE_AUTO,
            _ => false,
        });
        Self { is_evaluated: schedule.sees_machines_in_time(), only_sets_preserve, ..Self::default() }
    }

    /// Observes a Node.
    pub(super) fn node(&mut self, name: &str, new: Option<&Value>) {
        let value = new.and_then(|node| node["metadata"]["annotations"][annotations::PRESERVE].as_str());
        if value.is_some_and(|it| [annotations::PRESERVE_NOW, annotations::PRESERVE_WHEN_FAILED].contains(&it)) {
            self.asking.entry(name.to_owned()).or_insert_with(Instant::now);
        } else {
            self.asking.remove(name);
        }
    }

    /// Observes the deployment.
    pub(super) fn deployment(&mut self, pool: Option<&Value>) {
        let Some(pool) = pool else { return self.wanted = None };
        let automatic = pool["spec"]["autoPreserveFailedMachineMax"].as_u64().unwrap_or(0);
        if automatic != self.automatic.0 {
            self.automatic = (automatic, self.automatic.0, Some(Instant::now()));
        }
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
        if let Some(wrong) = self.automatic(request, name, server) {
            return Some(wrong);
        }
        let (replicas, class, since) =
            self.wanted.as_ref().filter(|_| self.is_evaluated && request.verb == "delete")?;
        let machine = server.object(&request.path)?;
        let is_gone = |machine: &Value| !machine["metadata"]["deletionTimestamp"].is_null();
        let current = &machine["status"]["currentStatus"];
        if is_gone(&machine) || current["phase"] != "Failed" {
            return None;
        }
        let expiry = current["preserveExpiryTime"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
        let node = machine["metadata"]["labels"]["node"].as_str().unwrap_or_default();
        let asked = self.asking.get(node).is_some_and(|since| since.elapsed() > KNOWN);
        if expiry.is_none() && asked && !is_gone(&*server.object(&format!("{NODES}/{node}"))?) {
            return Some(format!("I33: machine {name} is deleted as failed, and its node asks for it to be preserved"));
        }
        let expiry = expiry.filter(|expiry| at(*expiry) > Instant::now() + KNOWN)?;
        let is_other = |it: &Value| it["metadata"]["name"] != name && !is_gone(it);
        let others = server.objects(MACHINES).iter().filter(|it| is_other(it)).count() as u64;
        let is_needed = machine["spec"]["class"]["name"] == *class && replicas.as_u64().is_some_and(|it| others < it);
        (is_needed && since.elapsed() > KNOWN)
            .then(|| format!("I32: machine {name} is deleted, and preserved until {expiry}; {others} others are left"))
    }
}

impl Preservations {
    /// A set has one machine more preserved.
    fn automatic(&self, request: &RequestRecord, name: &str, server: &ApiServer) -> Option<String> {
        let operations = request.body.as_ref()?.as_array().filter(|_| request.verb == "patch")?;
        let asks = operations.iter().any(|it| it["value"] == annotations::PRESERVE_AUTO && it["op"] != "test");
        if !asks || !self.is_evaluated || !self.only_sets_preserve {
            return None;
        }
        let is_automatic =
            |it: &Value| it["metadata"]["annotations"][annotations::PRESERVE] == annotations::PRESERVE_AUTO;
        let is_other = |it: &Value| is_automatic(it) && it["metadata"]["name"] != name;
        let others = server.objects(MACHINES).iter().filter(|it| is_other(it)).count() as u64;
        let (now, before, since) = self.automatic;
        let most = if since.is_some_and(|since| since.elapsed() < KNOWN) { now.max(before) } else { now };
        (others >= most)
            .then(|| format!("I34: machine {name} is preserved by its set, and {others} others of {most} are"))
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
