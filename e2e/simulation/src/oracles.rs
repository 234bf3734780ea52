//! The invariants that must hold at every instant of every run: I1 to I5, I7, I12 to I14, I16 and N of
//! `docs/reference/simulation.md`.
//!
//! [`super::run`] evaluates I6, I9 and I11 at the end; [`super::adversary`] evaluates I8, I10, I12 and I15 at each request.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use nodewright_testing::api_server::{ApiServer, ChangeRecord, RequestRecord};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    cloud_nodes::CloudNodes,
    disputes::Disputes,
    drains::Drains,
    foresight::Foresight,
    joins::Joins,
    limits::{Limited, Limits},
    lost::LostVms,
    names::{COPY, MACHINES, NEIGHBOUR, NEIGHBOURS, is_foreign, is_lost},
    pools::Pools,
    preservation::Preservations,
    replacements::Replacements,
    rollouts::Rollouts,
    schedule::{Act, Schedule},
    set_back::{Objects, SetBacks},
    updates::{Orchestration, Updates, is_selected},
};

use nodewright_e2e_cloud::{
    Event, EventKind, VmState,
    memory::{Memory, VmRecord},
};

/// Managers know of a Node that has been ready for this long.
const JOINED: Duration = Duration::from_secs(5);

/// The observed state, and the violations.
#[derive(Default)]
pub(super) struct Oracles {
    violations: Vec<String>,
    machines: BTreeMap<String, Machine>,
    /// Whether users make the only errors, and no machine is removed by force.
    only_users_err: bool,
    /// Whether there has been a machine without an owner: only those can be too many for a set.
    some_lost_owners: bool,
    cordoned: BTreeSet<String>,
    /// The names of ready Nodes.
    ready_nodes: BTreeSet<String>,
    /// Names that had a VM, and those that a user uses a second time.
    lived: BTreeSet<String>,
    excused: BTreeSet<String>,
    /// Those of them whose machine was removed by force, with any operation in progress.
    forced: BTreeSet<String>,
    /// Machines whose status another client removed while they were being deleted.
    wiped: BTreeSet<String>,
    wanted: Wanted,
    /// The last event of the cloud that was observed.
    seen: u64,
    pub(super) counts: Counts,
    replacements: Replacements,
    disputes: Disputes,
    lost: LostVms,
    limited: Limited,
    joins: Joins,
    set_backs: SetBacks,
    preservations: Preservations,
    updates: Updates,
    /// The names that had a VM when the store was backed up.
    lived_before: BTreeSet<String>,
    /// When the youngest VM of a neighbour was made.
    neighbour_since: Option<Instant>,
    pub(super) pools: Pools,
    /// Set in runs without a cloud controller manager.
    pub(super) cloud_nodes: Option<CloudNodes>,
    /// What was foreseen of the last change of a user, if the run compares that with what happens.
    pub(super) foresight: Option<Foresight>,
    /// The names of machines whose VM somebody else deleted.
    vanished: BTreeSet<String>,
    /// Evaluated in runs with pools that update their Nodes.
    pub(super) rollouts: Rollouts,
    /// Set in runs with pods.
    drains: Option<Drains>,
    /// When the youngest running manager started.
    youngest: Option<Instant>,
    /// Set in runs with default settings, in which dead machines must be replaced in time: the number of deaths in the run.
    deaths: Option<u32>,
}

/// The numbers of creations and deletions by kind. They must equal those of a run without faults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(pub BTreeMap<String, (u64, u64)>);

/// The fields of a machine that the oracles need.
struct Machine {
    name: String,
    node: String,
    provider_id: String,
    is_owned: bool,
    is_deleting: bool,
}

/// The wanted number of machines.
#[derive(Default)]
struct Wanted {
    now: u64,
    surge: u64,
    unavailable: u64,
    /// The highest number, with surge, and the lowest, since the cluster was last quiescent.
    most: u64,
    fewest: Option<u64>,
    /// While the deployment is absent for a moment, the wanted number stays.
    stays: bool,
}

impl Oracles {
    /// The oracles of a run with these limits.
    pub(super) fn limited(limits: Limits) -> Self {
        Self { limited: Limited::by(limits), ..Self::default() }
    }

    pub(super) fn violations(&self) -> &[String] {
        &self.violations
    }

    pub(super) fn blame(&mut self, what: impl Into<String>) {
        self.violations.push(what.into());
    }

    /// The cluster has the wanted state: from here on, managers must not create more machines than wanted, and where only the
    /// manager and the servers that it talks to fail, this many machines must stay ready.
    pub(super) fn quiesced(&mut self, controller_side: bool) {
        self.wanted.most = self.wanted.now + self.wanted.surge;
        self.wanted.fewest = controller_side.then_some(self.wanted.now);
    }

    /// An edited ledger is no excuse: no fewer machines may be ready than now, except as many as may be unavailable.
    pub(super) fn keep_ready(&mut self) {
        let is_ready = |machine: &&Machine| !machine.is_deleting && self.ready_nodes.contains(&machine.node);
        let ready = self.machines.values().filter(is_ready).count() as u64;
        self.wanted.fewest = Some(ready.min(self.wanted.now));
    }

    /// From now on, fewer machines than wanted may be ready: the faults are not only on the managers' side.
    pub(super) fn excuse_unready(&mut self) {
        self.wanted.fewest = None;
        self.user_acts();
    }

    /// A user changes something: what a restore had to keep may go.
    pub(super) fn user_acts(&mut self) {
        self.set_backs.release();
    }

    pub(super) fn neighbour_since(&self) -> Option<Instant> {
        self.neighbour_since
    }

    /// A backup of the store is made.
    pub(super) fn backed_up(&mut self) {
        self.lived_before.clone_from(&self.lived);
    }

    /// The store was set back. It has forgotten the names that were used since the backup.
    pub(super) fn set_back(&mut self, lost: &Objects, restored: &Objects, cloud: &Memory) {
        let forgotten: Vec<_> = self.lived.difference(&self.lived_before).cloned().collect();
        for name in restored.differing_machines(lost).into_iter().chain(forgotten) {
            self.excuse_force(&name);
        }
        for change in restored.changes_from(lost) {
            if change.path.starts_with(MACHINES) {
                self.replacements.machine(change.old.as_deref(), None);
            }
            self.change(&change, cloud);
        }
        self.set_backs.keep(lost, restored, cloud);
        self.replacements.restored();
    }

    /// Sets whether the wanted number stays while the deployment is absent.
    pub(super) fn keep_wanting(&mut self, stays: bool) {
        self.wanted.stays = stays;
    }

    /// From now on, users may do anything with these names.
    pub(super) fn excuse(&mut self, name: &str) {
        self.excused.insert(name.to_owned());
    }

    /// A user removes a machine of this name, which has no finalizer or loses it. Its VM and Node stay behind, and a VM that is
    /// being created for it may appear after no manager asks for it any more.
    pub(super) fn excuse_force(&mut self, name: &str) {
        self.excuse(name);
        self.forced.insert(name.to_owned());
    }

    /// Whether a user has removed the machine of this name together with its finalizer.
    pub(super) fn was_forced(&self, name: &str) -> bool {
        self.forced.contains(name)
    }

    /// A user removes the machine of this name by force: its Node stays if the API server of the target cluster is away.
    pub(super) fn excuse_node(&mut self, name: &str) {
        self.wiped.insert(name.to_owned());
    }

    /// Whether the machine of this name lost its status while it was being deleted. If its VM has gone by then, nothing proves
    /// any longer that the Node is its own, and the Node stays.
    pub(super) fn was_wiped(&self, name: &str) -> bool {
        self.wiped.contains(name)
    }

    /// From now on, users make the only errors.
    pub(super) fn only_users_err(&mut self) {
        self.only_users_err = true;
    }

    /// From now on, machines that do not join are evaluated.
    pub(super) fn watch_joins(&mut self, schedule: &Schedule) {
        self.joins = Joins::of(schedule);
    }

    /// From now on, what happens after the store was set back is evaluated.
    pub(super) fn watch_set_backs(&mut self, schedule: &Schedule) {
        self.set_backs = SetBacks::of(schedule.aimed());
    }

    /// From now on, deletions of preserved machines are evaluated.
    pub(super) fn watch_preservations(&mut self, schedule: &Schedule) {
        self.preservations = Preservations::of(schedule);
    }

    /// From now on, updates in place are evaluated.
    pub(super) fn watch_updates(&mut self, orchestration: Option<Orchestration>) {
        self.updates = Updates::of(orchestration);
    }

    /// How many times a Node was selected for an update in place.
    pub(super) fn updates(&self) -> u64 {
        self.updates.begun
    }

    /// Checks a request of a manager for a machine.
    pub(super) fn machine_request(
        &mut self,
        request: &RequestRecord,
        server: &ApiServer,
        at: impl Fn(Timestamp) -> Instant,
    ) {
        let wrong = self.preservations.request(request, server, at);
        self.violations.extend(wrong);
    }

    /// Notes that all clocks are right in this run.
    pub(super) fn trust_clocks(&mut self) {
        self.replacements.trusts_clocks = true;
    }

    /// Notes that dead machines must be replaced in time, and the number of deaths in the run.
    pub(super) fn expect_replacements(&mut self, deaths: u32) {
        self.deaths = Some(deaths);
    }

    /// From now on, drains are evaluated.
    pub(super) fn watch_drains(&mut self, drains: Drains) {
        self.drains = Some(drains);
    }

    /// Notes when the youngest running manager started.
    pub(super) fn note_youngest(&mut self, youngest: Option<Instant>) {
        self.youngest = youngest;
    }

    /// Checks a request of a manager for a pod.
    pub(super) fn pod_request(&mut self, request: &RequestRecord) {
        let was_removed = |name: &str| self.was_forced(name) || self.was_wiped(name);
        let wrong = self.drains.as_ref().and_then(|drains| drains.request(request, was_removed));
        let wrong = wrong.or_else(|| self.rollouts.request(request));
        self.violations.extend(wrong);
    }

    /// Notes the death of the VM of the machine with this name.
    pub(super) fn died(&mut self, name: &str) {
        self.replacements.is_dead(name);
        self.limited.died(name);
        if let Some(deaths) = self.deaths {
            self.replacements.died(name, deaths.saturating_sub(1));
        }
    }

    /// Notes that somebody deletes the VM of the machine with this name.
    pub(super) fn vanishes(&mut self, name: &str) {
        self.died(name);
        self.vanished.insert(name.to_owned());
    }

    /// Notes that an act disturbs the managers for this long.
    pub(super) fn disturbed(&mut self, act: &Act, lasts: Duration) {
        self.set_backs.disturbed(lasts);
        if !matches!(act, Act::KillVm(_) | Act::VanishVm(_) | Act::LoseMachine(_)) {
            self.replacements.disturbed(lasts, self.deaths.unwrap_or(0));
        }
        if let Some(drains) = self.drains.as_mut().filter(|_| !act.is_of_target()) {
            drains.disturbed(lasts);
        }
        if let (Some(drains), Act::TargetDown(_)) = (&mut self.drains, act) {
            drains.target_away(lasts);
        }
    }

    /// Checks for overdue replacements and drains, and whether the deployment is followed. `has_vm`: whether a machine has a VM
    /// that runs.
    pub(super) fn look(&mut self, server: &ApiServer, has_vm: impl Fn(&str) -> bool) {
        let unfollowed = self.set_backs.look(server);
        self.violations.extend(unfollowed);
        let overdue = self.replacements.overdue();
        self.violations.extend(overdue);
        let (forced, wiped) = (&self.forced, &self.wiped);
        let is_evaluated = |name: &str| has_vm(name) && !forced.contains(name) && !wiped.contains(name);
        let overdue = self.drains.as_mut().and_then(|drains| drains.overdue(is_evaluated));
        self.violations.extend(overdue);
    }

    /// Checks a write of a manager that has been connected since `connected_since`. `has_vm`: whether there is a VM of a machine.
    pub(super) fn write(
        &mut self,
        path: &str,
        body: &Value,
        (connected_since, has_vm): (Instant, impl Fn(&str) -> bool),
        at: impl Fn(Timestamp) -> Instant,
    ) {
        let Some(name) = path.strip_suffix("/status").and_then(|path| path.strip_prefix(MACHINES)) else { return };
        let wrong = self.replacements.verdict(name.trim_start_matches('/'), body, (connected_since, has_vm), at);
        self.violations.extend(wrong);
    }

    /// Checks a write of a manager to the Node with this providerID.
    pub(super) fn node_write(&mut self, request: &RequestRecord, provider_id: &str) {
        if self.only_users_err && self.disputes.are_known(provider_id) {
            self.blame(format!(
                "I12: a manager sent {} {}, whose VM several machines name",
                request.verb, request.path
            ));
        }
    }

    /// Checks a change of an object.
    pub(super) fn change(&mut self, change: &ChangeRecord, cloud: &Memory) {
        if change.path.starts_with(NEIGHBOURS) {
            return;
        }
        let Some((plural, name)) = kind_and_name(&change.path) else { return };
        let (old, new) = (change.old.as_deref(), change.new.as_deref());
        if let Some(drains) = &mut self.drains {
            self.violations.extend(drains.change(plural, name, change));
        }
        self.violations.extend(self.pools.change(change));
        self.violations.extend(self.rollouts.change(plural, name, change));
        let freeze = |state: Option<&Value>| state.is_some_and(|it| it["metadata"]["labels"]["freeze"] == "True");
        if freeze(new) && !freeze(old) && !self.some_lost_owners {
            self.violations.push(format!("I23: {plural} {name} is frozen, and has not too many machines"));
        }
        let counted = ["machinedeployments", "machinesets", "machines", "nodes"].contains(&plural);
        if counted && !is_foreign(name) {
            let counts = self.counts.0.entry(plural.to_owned()).or_default();
            counts.0 += u64::from(old.is_none());
            counts.1 += u64::from(new.is_none());
        }
        if let (Some(foresight), "machines") = (&mut self.foresight, plural) {
            foresight.machine(name, old, new);
        }
        match plural {
            "machines" => {
                self.machine(name, old, new, cloud);
                self.disputes.machine(old, new);
                let wrong = self.replacements.machine(old, new);
                self.violations.extend(wrong);
                let wrong = self.limited.machine(name, old, new);
                self.violations.extend(wrong);
                let wrong = self.set_backs.machine(name, old, new);
                self.violations.extend(wrong);
                let wrong = self.joins.machine(name, (old, new), self.wanted.most);
                self.violations.extend(wrong);
            }
            "machinedeployments" => {
                self.deployment(new);
                self.preservations.deployment(new);
            }
            "nodes" => {
                self.node(name, old, new);
                if self.cloud_nodes.is_some() && !is_foreign(name) {
                    self.violations.extend(CloudNodes::change(name, new));
                }
                self.replacements.node(name, new);
                self.preservations.node(name, new);
            }
            _ => {}
        }
        if matches!(plural, "machines" | "nodes") {
            self.are_enough_ready(&change.path);
        }
    }

    fn deployment(&mut self, new: Option<&Value>) {
        let spec = new.filter(|new| new["metadata"]["deletionTimestamp"].is_null()).map(|new| &new["spec"]);
        if self.wanted.stays && spec.is_none() {
            return;
        }
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        self.wanted.now = spec.map_or(0, |spec| number(&spec["replicas"]));
        if let Some(spec) = spec {
            let strategy = &spec["strategy"];
            let of_type = if strategy["type"] == "InPlaceUpdate" { "inPlaceUpdate" } else { "rollingUpdate" };
            self.wanted.surge = number(&strategy[of_type]["maxSurge"]);
            self.wanted.unavailable = number(&strategy[of_type]["maxUnavailable"]);
        }
        self.wanted.most = self.wanted.most.max(self.wanted.now + self.wanted.surge);
        self.wanted.fewest = self.wanted.fewest.map(|fewest| fewest.min(self.wanted.now));
    }

    fn machine(&mut self, name: &str, old: Option<&Value>, new: Option<&Value>, cloud: &Memory) {
        let claimed = new.and_then(|new| new["spec"]["providerID"].as_str()).filter(|id| !id.is_empty());
        let is_neighbours = |vm: &VmRecord| vm.order.name.starts_with(NEIGHBOUR) && Some(&*vm.provider_id()) == claimed;
        if claimed.is_some() && cloud.vms.values().any(is_neighbours) {
            self.blame(format!("I27: machine {name} has the VM that was made for the machine of another namespace"));
        }
        match (old, new) {
            (_, Some(new)) => {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let machine = Machine {
                    name: name.to_owned(),
                    node: text(&new["metadata"]["labels"]["node"]),
                    provider_id: text(&new["spec"]["providerID"]),
                    is_owned: !new["metadata"]["ownerReferences"].is_null(),
                    is_deleting: !new["metadata"]["deletionTimestamp"].is_null(),
                };
                self.some_lost_owners |= !machine.is_owned;
                self.look_at_copy(&machine);
                let had_status = old.is_some_and(|old| !old["status"].is_null());
                if machine.is_deleting && had_status && new["status"].is_null() {
                    self.wiped.insert(name.to_owned());
                }
                self.machines.insert(text(&new["metadata"]["uid"]), machine);
            }
            (Some(old), None) => {
                let uid = old["metadata"]["uid"].as_str().unwrap_or_default();
                self.machines.remove(uid);
                if let Some(vm) = cloud.vms.values().find(|vm| vm.order.token == uid)
                    && !self.excused.contains(name)
                {
                    self.blame(format!("I5: machine {name} is gone, and its VM {} is {:?}", vm.id, vm.state));
                }
            }
            (None, None) => {}
        }
    }

    /// Checks that no set adopts a copy of an existing machine.
    fn look_at_copy(&mut self, copy: &Machine) {
        let is_original = |it: &Machine| it.name != copy.name && it.provider_id == copy.provider_id;
        if copy.is_owned && copy.name.starts_with(COPY) && self.machines.values().any(is_original) {
            self.blame(format!("I12: a set has taken {}, the copy of a machine", copy.name));
        }
    }

    fn node(&mut self, name: &str, old: Option<&Value>, new: Option<&Value>) {
        let cordoned = |node: Option<&Value>| node.is_some_and(|node| node["spec"]["unschedulable"] == true);
        let stays = |name: &str| self.machines.values().any(|it| it.node == name && !it.is_deleting);
        let wrong = self.updates.node(name, new, self.wanted.surge + self.wanted.unavailable, stays);
        self.violations.extend(wrong);
        if !cordoned(old) && cordoned(new) && !new.is_some_and(is_selected) {
            // A machine that was recreated may get a cordon that was meant for its predecessor.
            let is_kept = |it: &Machine| it.node == name && !it.is_deleting && !self.was_forced(&it.name);
            if self.machines.values().any(is_kept) {
                self.blame(format!("I7: node {name} was cordoned, and its machine is not being deleted"));
            }
        }
        if cordoned(new) {
            self.cordoned.insert(name.to_owned())
        } else {
            self.cordoned.remove(name)
        };
        let conditions = new.and_then(|new| new["status"]["conditions"].as_array());
        let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        if conditions.is_some_and(|conditions| conditions.iter().any(is_ready)) {
            self.ready_nodes.insert(name.to_owned());
        } else {
            self.ready_nodes.remove(name);
        }
    }

    fn are_enough_ready(&mut self, path: &str) {
        let Some(fewest) = self.wanted.fewest else { return };
        let is_ready = |machine: &&Machine| !machine.is_deleting && self.ready_nodes.contains(&machine.node);
        let (ready, needed) =
            (self.machines.values().filter(is_ready).count() as u64, fewest.saturating_sub(self.wanted.unavailable));
        if ready < needed {
            self.blame(format!("I4: {ready} machines are ready, at least {needed} have to be (after {path})"));
            self.wanted.fewest = None;
        }
    }

    /// Checks the cloud's events since the last call.
    pub(super) fn cloud(&mut self, cloud: &Memory) {
        let oldest = cloud.history.front().map_or(0, |event| event.number);
        let skip = usize::try_from((self.seen + 1).saturating_sub(oldest)).unwrap_or(usize::MAX);
        let events: Vec<&Event> = cloud.history.iter().skip(skip).collect();
        for event in events {
            self.seen = event.number;
            match event.kind {
                EventKind::CreateAccepted => self.vm_made(event, cloud),
                EventKind::DeleteAccepted => self.vm_deleted(event),
                EventKind::FaultStruck if event.name.is_none() && is_list(event) => self.lost.list_spoilt(),
                EventKind::VmGone if event.name.as_deref().is_some_and(|name| is_foreign(name) || is_lost(name)) => {}
                EventKind::VmGone => self.counts.0.entry("vms".to_owned()).or_default().1 += 1,
                _ => {}
            }
        }
    }

    fn vm_made(&mut self, event: &Event, cloud: &Memory) {
        let name = event.name.as_deref().unwrap_or_default();
        if name.starts_with(NEIGHBOUR) {
            self.neighbour_since = Some(Instant::now());
        }
        if is_foreign(name) {
            return;
        }
        if is_lost(name) {
            self.lost.made(name);
            return;
        }
        self.counts.0.entry("vms".to_owned()).or_default().0 += 1;
        let others = cloud.vms.values().filter(|vm| vm.order.name == name && Some(&vm.id) != event.vm.as_ref());
        let other = others.into_iter().find(|vm| vm.state != VmState::Deleting);
        if let Some(other) = other.filter(|_| !self.was_forced(name)) {
            self.blame(format!("I1: machine {name} has a second VM {:?} beside {}", event.vm, other.id));
        }
        if !self.lived.insert(name.to_owned()) && !self.excused.contains(name) {
            self.blame(format!("N: a second machine {name} has got a VM, {:?}", event.vm));
        }
        // By name: a machine that was recreated by force may have two.
        let is_kept = |vm: &&VmRecord| {
            vm.state != VmState::Deleting
                && !is_foreign(&vm.order.name)
                && !is_lost(&vm.order.name)
                && self.is_wanted(vm)
        };
        let kept = cloud.vms.values().filter(is_kept);
        let kept = kept.map(|vm| vm.order.name.as_str()).collect::<BTreeSet<_>>().len();
        if kept as u64 > self.wanted.most {
            self.blame(format!("I2: {kept} VMs, and at most {} were wanted (after {name})", self.wanted.most));
        }
    }

    /// Whether the machine of a VM stays. A machine recreated under the same name takes over the VM. A VM left behind by a
    /// forced removal belongs to no machine.
    fn is_wanted(&self, vm: &VmRecord) -> bool {
        let heir = || self.machines.values().find(|machine| machine.name == vm.order.name);
        let machine = self.machines.get(&vm.order.token).or_else(heir);
        machine.map_or_else(|| !self.was_forced(&vm.order.name), |machine| !machine.is_deleting)
    }

    fn vm_deleted(&mut self, event: &Event) {
        let name = event.name.as_deref().unwrap_or_default();
        if self.vanished.contains(name) {
            return;
        }
        if is_lost(name) {
            self.violations.extend(self.lost.deleted(name, self.youngest));
            return;
        }
        let wrong = self.drains.as_mut().and_then(|drains| drains.vm_deleted(name, self.youngest));
        if !self.was_forced(name) && !self.was_wiped(name) {
            self.violations.extend(wrong);
        }
        if self.only_users_err && !self.cordoned.contains(name) && self.replacements.has_been_ready(name, JOINED) {
            self.blame(format!("I3: VM {name} was deleted, and its node was not cordoned"));
        }
        if self.only_users_err && event.vm.as_deref().is_some_and(|vm| self.disputes.are_known(vm)) {
            self.blame(format!("I12: VM {name} was deleted, and several machines name it"));
        }
        let machine = event.token.as_ref().and_then(|token| self.machines.get(token));
        if name.starts_with(NEIGHBOUR) {
            self.blame(format!("I27: VM {name} was made for the machine of another namespace, and was deleted"));
            return;
        }
        if is_foreign(name) {
            self.blame(format!("I12: VM {name} is no machine's, and was deleted"));
            return;
        }
        // A machine recreated under the same name has taken over the VM.
        let heirs = self.machines.values().filter(|machine| machine.name == name);
        let is_kept = machine.map_or_else(|| heirs.into_iter().any(|heir| !heir.is_deleting), |it| !it.is_deleting);
        // A call in progress for a machine that was removed by force can hit the VM that its successor has taken over.
        if is_kept && !self.was_forced(name) {
            self.blame(format!("I3: VM {:?} was deleted, and its machine {name} was not", event.vm));
        }
    }
}

/// The plural and the name of the object at a path.
fn kind_and_name(path: &str) -> Option<(&str, &str)> {
    let mut parts = path.rsplit('/');
    let (name, plural) = (parts.next()?, parts.next()?);
    Some((plural, name))
}

/// Whether a fault struck a list. One of all VMs names no machine.
fn is_list(event: &Event) -> bool {
    event.note.as_deref().is_some_and(|note| note.ends_with("struck List"))
}
