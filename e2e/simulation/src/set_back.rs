//! Sets the store back under a manager that runs. The invariants for that: I30 and I31 of `docs/reference/simulation.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use nodewright_api::annotations;
use nodewright_e2e_cloud::{VmState, memory::Memory};
use nodewright_testing::api_server::{ApiServer, ChangeRecord};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    cluster::SimulatedCluster,
    edits::is_owned,
    names::{DEPLOYMENTS, MACHINES, NODES, POOL, SETS},
};

/// The API server starts again within this time.
const RESTART: Duration = Duration::from_secs(3);
/// After this time without a fault a deployment is followed, or says why not.
const FOLLOWED: Duration = Duration::from_mins(2);
/// The extra time for each fault of a single step.
const EACH: Duration = Duration::from_secs(150);

/// Backs up the store, if it can be restored: machines without an owner would wait for one that a user has yet to create again.
pub(super) fn back_up(cluster: &mut SimulatedCluster) {
    let server = cluster.server().clone();
    let is_complete = server.object(POOL).is_some_and(|pool| !is_deleting(&pool))
        && [SETS, MACHINES].iter().all(|collection| server.objects(collection).iter().all(|it| is_owned(it)));
    cluster.backup = (is_complete && !cluster.has_pods()).then(|| server.back_up());
    cluster.oracles.lock().backed_up();
}

/// Undoes all writes since the backup. The API server and the control plane's controllers start again, as Kubernetes recommends;
/// the manager does not. The cloud keeps what it has.
pub(super) fn set_back(cluster: &mut SimulatedCluster) {
    let Some(backup) = cluster.backup.take() else { return };
    let server = cluster.server().clone();
    let lost = Objects::of(&server);
    server.restore(&backup);
    let restored = Objects::of(&server);
    cluster.around.adversary.silence_api(RESTART);
    server.break_watches();
    cluster.restart_control_plane();
    let oracles = &cluster.oracles;
    cluster.cloud().with(|cloud, _| oracles.lock().set_back(&lost, &restored, cloud.memory()));
}

/// The objects that oracles evaluate, by path.
pub(super) struct Objects(BTreeMap<String, Arc<Value>>);

impl Objects {
    fn of(server: &ApiServer) -> Self {
        let all = [DEPLOYMENTS, SETS, MACHINES, NODES].into_iter().flat_map(|collection| {
            let objects = server.objects(collection).into_iter();
            objects.map(move |it| (format!("{collection}/{}", it["metadata"]["name"].as_str().unwrap_or_default()), it))
        });
        Self(all.collect())
    }

    fn machines(&self) -> impl Iterator<Item = (&str, &Value)> {
        let machines = self.0.iter().filter(|(path, _)| path.starts_with(MACHINES));
        machines.map(|(_, machine)| (machine["metadata"]["name"].as_str().unwrap_or_default(), &**machine))
    }

    /// What changes when these objects take the place of others.
    pub(super) fn changes_from(&self, lost: &Self) -> Vec<ChangeRecord> {
        let paths: BTreeSet<_> = self.0.keys().chain(lost.0.keys()).collect();
        let change = |path: &String| {
            let (old, new) = (lost.0.get(path).cloned(), self.0.get(path).cloned());
            (old != new).then(|| ChangeRecord { version: 0, path: path.clone(), old, new })
        };
        paths.into_iter().filter_map(change).collect()
    }

    /// The names of machines that are not the same as among the others, or are not being deleted in only one of both states: calls
    /// for them may be on their way, and their VMs may be gone or unknown.
    pub(super) fn differing_machines(&self, others: &Self) -> BTreeSet<String> {
        let states = |objects: &Self| -> BTreeSet<(String, String, bool)> {
            let state = |(name, machine): (&str, &Value)| (name.to_owned(), uid(machine), is_deleting(machine));
            objects.machines().map(state).collect()
        };
        let (ours, theirs) = (states(self), states(others));
        ours.symmetric_difference(&theirs).map(|(name, ..)| name.clone()).collect()
    }

    /// The UIDs of the machines that have a VM, if the deployment wants all machines as they are.
    fn settled(&self, cloud: &Memory) -> BTreeSet<String> {
        let Some(pool) = self.0.get(POOL).filter(|pool| !is_deleting(pool)) else { return BTreeSet::new() };
        let class = &pool["spec"]["template"]["spec"]["class"]["name"];
        let is_wanted = |machine: &Value| machine["spec"]["class"]["name"] == *class && !is_deleting(machine);
        let sets = self.0.iter().filter(|(path, set)| path.starts_with(SETS) && set["spec"]["replicas"] != 0).count();
        let count = self.machines().count() as u64;
        if sets != 1
            || !self.machines().all(|(_, machine)| is_wanted(machine))
            || pool["spec"]["replicas"].as_u64().is_none_or(|wanted| wanted < count)
        {
            return BTreeSet::new();
        }
        let has_vm = |machine: &Value| {
            let mut running = cloud.vms.values().filter(|vm| vm.state == VmState::Running);
            running.any(|vm| *vm.provider_id() == machine["spec"]["providerID"])
        };
        let runs = |machine: &Value| machine["status"]["currentStatus"]["phase"] == "Running" && has_vm(machine);
        self.machines().filter(|(_, machine)| runs(machine)).map(|(_, machine)| uid(machine)).collect()
    }
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// What must hold after the store was set back.
#[derive(Default)]
pub(super) struct SetBacks {
    /// The UIDs of machines that ran before and after, until a user changes something or a VM dies.
    kept: BTreeSet<String>,
    /// How many faults of single steps the run has.
    aimed: u32,
    /// The end of the last fault that has a time.
    calm: Option<Instant>,
    /// Since when the deployment is not followed, and does not say why.
    ignored: Option<Instant>,
}

impl SetBacks {
    pub(super) fn of(aimed: u32) -> Self {
        Self { aimed, ..Self::default() }
    }

    /// Notes that an act disturbs the managers for this long.
    pub(super) fn disturbed(&mut self, lasts: Duration) {
        self.calm = self.calm.max(Some(Instant::now() + lasts));
    }

    /// From now on, machines that ran when the store was set back may go.
    pub(super) fn release(&mut self) {
        self.kept.clear();
    }

    pub(super) fn keep(&mut self, lost: &Objects, restored: &Objects, cloud: &Memory) {
        let running = lost.machines().filter(|(_, machine)| !is_deleting(machine)).map(|(_, machine)| uid(machine));
        let running: BTreeSet<_> = running.collect();
        self.kept = restored.settled(cloud).intersection(&running).cloned().collect();
        self.disturbed(RESTART);
    }

    /// Observes a change of a machine. Returns the violation, if any.
    pub(super) fn machine(&mut self, name: &str, old: Option<&Value>, new: Option<&Value>) -> Option<String> {
        let uid = uid(new.or(old)?);
        let goes = new.is_none_or(is_deleting) && self.kept.remove(&uid);
        goes.then(|| format!("I30: machine {name} ran before and after the store was set back, is wanted, and goes"))
    }

    /// Checks whether the manager follows the deployment. Returns the violation, if any.
    pub(super) fn look(&mut self, server: &ApiServer) -> Option<String> {
        let Some(text) = unfollowed(server) else {
            self.ignored = None;
            return None;
        };
        let since = (*self.ignored.get_or_insert_with(Instant::now)).max(self.calm.unwrap_or_else(Instant::now));
        let is_late = since.elapsed() > FOLLOWED + EACH * self.aimed;
        is_late.then(|| format!("I31: {text}, for {:?}, and the deployment is not Stalled", since.elapsed()))
    }
}

/// Why the deployment is not followed, if it does not say so itself.
fn unfollowed(server: &ApiServer) -> Option<String> {
    let pool = server.object(POOL).filter(|pool| !is_deleting(pool))?;
    let conditions = pool["status"]["conditions"].as_array().into_iter().flatten();
    if conditions.into_iter().any(|it| it["type"] == "Stalled" && it["status"] == "True") {
        return None;
    }
    let (generation, seen) = (pool["metadata"]["generation"].as_i64()?, &pool["status"]["observedGeneration"]);
    if *seen != generation {
        return Some(format!("generation {generation} of the deployment is not observed: {seen}"));
    }
    let sized_for = |set: &Arc<Value>| {
        let (of, number) = set["metadata"]["annotations"][annotations::SIZED_FOR].as_str()?.rsplit_once('/')?;
        number.parse().ok().filter(|number: &i64| of == uid(&pool) && *number > generation)
    };
    let newer = server.objects(SETS).iter().filter(|set| !is_deleting(set)).find_map(sized_for)?;
    Some(format!("a set was sized for generation {newer} of {generation}"))
}
