//! The cluster of a run: an API server, a cloud with its kubelets, the other controllers of the control plane, managers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    adversary::Adversary,
    clock::JumpingClock,
    cloud_nodes::CloudNodes,
    control_plane::{self, ControlPlane, agent_client},
    design::{Design, pool},
    drains::{Drains, Expectations},
    edits,
    foreign::{check_foreign, provider_id, seed_bystander, written_node},
    lost,
    names::{CLASSES, DEPLOYMENTS, FIRST, LEASES, NAMESPACE, SECOND},
    oracles::Oracles,
    pools::{self, has_pool},
    process::{Slot, Surroundings},
    rollouts::{self, Agents, Rollout, Rollouts},
    schedule::Schedule,
    trace::Trace,
    updates::Programs,
    workload::Keeper,
};
use jiff::Timestamp;
use nodewright_e2e_cloud::{
    self as cloud, LocalCloud,
    kubelet::{self, Fleet},
    memory::Memory,
};
use nodewright_runtime::leadership::{Clock, tokio_clock};
use nodewright_testing::api_server::{ApiServer, Backup, Bookmarks, ChangeRecord, Controllers, RequestRecord};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{sync::Notify, time::Instant};

/// A value in the Secret of the classes that must appear nowhere else, neither encoded nor decoded.
const SECRET: &str = "aHVudGVyMi1uZXZlci1zZWVu";
const SECRET_TEXT: &str = "hunter2-never-seen";
/// A manager may write for this long after it has renewed a lease.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Parts of the paths of what the keeper of pods looks at.
const KEPT: [&str; 4] = ["/pods/", "/nodes/", "/volumeattachments/", "/poddisruptionbudgets/"];
/// The time at which each run begins.
const BEGIN: &str = "2026-06-01T12:00:00Z";

/// The cluster of a run.
pub(super) struct SimulatedCluster {
    pub(super) around: Surroundings,
    /// The same for the second manager, which has its own clock.
    pub(super) around_second: Surroundings,
    /// Its time passes as well while managers sleep.
    pub(super) cloud_clock: Arc<JumpingClock>,
    pub(super) oracles: Arc<Mutex<Oracles>>,
    pub(super) trace: Trace,
    pub(super) first: Slot,
    pub(super) second: Option<Slot>,
    /// The state to which the store will be set back.
    pub(super) backup: Option<Backup>,
    keeper: Option<Keeper>,
    _programs: Option<Programs>,
    /// The stand-ins on the Nodes of pools.
    pub(super) agents: Option<Agents>,
    plane: Option<ControlPlane>,
    time: Arc<dyn Clock>,
}

/// What is watched of a run of this schedule.
fn oracles(design: &Design, schedule: &Schedule) -> Oracles {
    let mut oracles = Oracles::limited(design.limits);
    oracles.watch_joins(schedule);
    oracles.watch_set_backs(schedule);
    oracles.watch_preservations(schedule);
    oracles.watch_updates(design.in_place);
    if schedule.only_users_err() {
        oracles.only_users_err();
    }
    if !schedule.has_wrong_clocks() {
        oracles.trust_clocks();
    }
    if design.quiet {
        oracles.expect_replacements(schedule.deaths());
    }
    if design.cloud_nodes {
        let is_alone = design.elects || schedule.managers() == 1;
        oracles.cloud_nodes = Some(CloudNodes::watch(is_alone && !schedule.has_wrong_clocks()));
    }
    if design.rollout.is_some() {
        oracles.rollouts = Rollouts::watch(rollouts::sight(schedule));
    }
    if let Some(workload) = &design.workload {
        oracles.watch_drains(Drains::of(workload, expectations(schedule)));
    }
    oracles
}

/// The controllers of pools that a run needs.
fn pool_controllers(design: &Design, schedule: &Schedule) -> &'static [&'static str] {
    match &design.rollout {
        Some(_) => rollouts::CONTROLLERS,
        None if has_pool(schedule) => pools::CONTROLLERS,
        None => &[],
    }
}

impl SimulatedCluster {
    /// Builds the cluster, and starts the first manager. Needs a tokio runtime.
    pub(super) fn build(design: &Design, schedule: &Schedule) -> Self {
        let begin: Timestamp = BEGIN.parse().unwrap_or_default();
        let time: Arc<dyn Clock> = tokio_clock(begin);
        let (wall, trace) = (time.clone(), Trace::new(design.detail));
        let server = ApiServer::with_time(move || wall.wall());
        seed(&server, design);
        server.keep_no_requests();
        server.send_bookmarks(match design.bookmarks {
            None => Bookmarks::default(),
            Some(0) => Bookmarks::Never,
            Some(seconds) => Bookmarks::Every(Duration::from_secs(seconds.into())),
        });
        let settings = kubelet::Settings { heartbeats: design.heartbeats, seed: design.seed, ..Default::default() };
        let fleet = Fleet::with_client(agent_client(&server, kubelet::AGENT), settings, time.clone());
        let settings = cloud::Settings { seed: design.seed, ..Default::default() };
        let [clock, second, of_cloud] = [(); 3].map(|()| Arc::new(JumpingClock::starting_at(begin)));
        let cloud = LocalCloud::start(settings, Memory::default(), of_cloud.clone(), Some(fleet));
        let clocks = BTreeMap::from([(FIRST, clock.clone()), (SECOND, second.clone())]);
        let adversary = Adversary::new(schedule, design, clocks, trace.clone());
        adversary.keep_secret(SECRET);
        adversary.keep_secret(SECRET_TEXT);
        let oracles = Arc::new(Mutex::new(oracles(design, schedule)));
        seed_bystander(&cloud);
        let pods_changed = Arc::new(Notify::new());
        let zero = (!schedule.has_wrong_clocks()).then(|| (begin, Instant::now()));
        watch_over(&server, &cloud, &adversary, &oracles, &trace, (zero, &pods_changed));
        let start = |workload| Keeper::start(server.clone(), workload, pods_changed);
        let keeper = design.workload.clone().map(start);
        let start = |orchestration| Programs::start(server.clone(), design.seed, orchestration);
        let programs = design.in_place.map(start);
        let start = |rollout| start_agents(&server, &oracles, rollout, design.seed);
        let agents = design.rollout.as_ref().map(start);
        server.run_controllers(Controllers { namespaces: false, budgets: false, ..Controllers::all() });
        let plane = design.heartbeats.then(|| start_control_plane(&server, &time));
        let around = Surroundings {
            server,
            cloud,
            clock,
            adversary,
            seed: design.seed,
            elects: design.elects,
            calls_at_once: design.calls_at_once,
            limits: design.limits,
            cloud_nodes: design.cloud_nodes,
            pool_controllers: pool_controllers(design, schedule),
        };
        let around_second = Surroundings { clock: second, ..around.clone() };
        let first = Slot::start(FIRST, &around);
        Self {
            around,
            around_second,
            cloud_clock: of_cloud,
            oracles,
            trace,
            first,
            second: None,
            backup: None,
            keeper,
            _programs: programs,
            agents,
            plane,
            time,
        }
    }

    /// Whether a manager may not have left the VM of another namespace alone yet: it is an orphan at first.
    pub(super) fn is_neighbours_vm_new(&self) -> bool {
        let since = self.oracles.lock().neighbour_since();
        since.is_some_and(|since| {
            let since = self.around.adversary.youngest().map_or(since, |youngest| youngest.max(since));
            since.elapsed() < lost::settled_within()
        })
    }

    /// Whether something outside of the store knows what is in it.
    pub(super) fn has_pods(&self) -> bool {
        self.keeper.is_some() || self.agents.is_some()
    }

    /// Restarts the controllers of the control plane, if the run has them.
    pub(super) fn restart_control_plane(&mut self) {
        if self.plane.take().is_some() {
            self.plane = Some(start_control_plane(self.server(), &self.time));
        }
    }

    /// The time by the clock of the API server.
    pub(super) fn now(&self) -> Timestamp {
        self.time.wall()
    }

    pub(super) fn server(&self) -> &ApiServer {
        &self.around.server
    }

    /// Stops the disruption controller for a while. `edited`: a user changes the budgets.
    pub(super) fn stop_counting(&self, time: Duration, edited: bool) {
        let Some(keeper) = &self.keeper else { return };
        keeper.stop_counting(time);
        if edited {
            keeper.edit_budgets();
        }
    }

    pub(super) fn cloud(&self) -> &LocalCloud {
        &self.around.cloud
    }

    /// Shows the oracles what has happened in the cloud. Not all of it is followed by a change at the API server.
    pub(super) fn look_at_cloud(&self) {
        check_cloud(&self.around.cloud, &self.around.adversary, &self.oracles, |_, _| {});
    }

    /// Ends the cluster. Removes the observers from the servers, because the observers hold the servers in turn.
    pub(super) fn end(self) {
        self.around.adversary.set_user(None);
        self.around.server.decide_no_more();
        self.around.server.observe(|_| {});
    }
}

fn start_control_plane(server: &ApiServer, time: &Arc<dyn Clock>) -> ControlPlane {
    let client = agent_client(server, control_plane::AGENT);
    ControlPlane::start(client, control_plane::Settings::default(), time.clone())
}

/// Creates the pools of a run and their Nodes, of which the oracles hear, and starts the stand-ins there.
fn start_agents(server: &ApiServer, oracles: &Arc<Mutex<Oracles>>, rollout: &Rollout, seed: u64) -> Agents {
    rollouts::seed(server, rollout);
    Agents::start(server.clone(), oracles.clone(), rollout, seed)
}

/// Connects the adversary and the oracles to all requests and changes.
fn watch_over(
    server: &ApiServer,
    cloud: &LocalCloud,
    adversary: &Adversary,
    oracles: &Arc<Mutex<Oracles>>,
    trace: &Trace,
    (begun, pods_changed): (Option<(Timestamp, Instant)>, &Arc<Notify>),
) {
    let (decides, edited, excusing, reported) = (adversary.clone(), server.clone(), oracles.clone(), trace.clone());
    adversary.set_user(Some(Box::new(move |edit| edits::edit(&edited, &excusing, &reported, edit))));
    let (evaluating, seen, clouded) = (oracles.clone(), server.clone(), cloud.clone());
    server.decide(move |request| {
        // Read this before the decision: the decision may kill the sender.
        if let Some(connected_since) = decides.connected_since(request) {
            if let Some(wrong) = check_foreign(request, &seen, &clouded) {
                evaluating.lock().blame(wrong);
            }
            if let Some(id) = written_node(request).and_then(|node| provider_id(&seen, node)) {
                evaluating.lock().node_write(request, &id);
            }
            evaluating.lock().pod_request(request);
            check_node(request, &seen, &clouded, &evaluating);
            if let Some((wall, instant)) = begun {
                let at = |time: Timestamp| instant + Duration::try_from(time.duration_since(wall)).unwrap_or_default();
                evaluating.lock().machine_request(request, &seen, at);
                if let Some(body) = request.body.as_ref() {
                    let has_vm = |name: &str| clouded.vms().iter().any(|vm| vm.name == name);
                    evaluating.lock().write(&request.path, body, (connected_since, has_vm), at);
                }
            }
        }
        decides.request(request)
    });
    let (adversary, oracles, cloud, trace) = (adversary.clone(), oracles.clone(), cloud.clone(), trace.clone());
    let pods_changed = pods_changed.clone();
    server.observe(move |change| {
        note_lease(&adversary, change);
        adversary.note_version(change.version);
        trace.line(format_args!("{} {}", change.path, describe(change)));
        check_cloud(&cloud, &adversary, &oracles, |oracles, memory| oracles.change(change, memory));
        if KEPT.iter().any(|kind| change.path.contains(kind)) {
            pods_changed.notify_one();
        }
    });
}

/// Shows the oracles a request for a Node.
fn check_node(request: &RequestRecord, server: &ApiServer, cloud: &LocalCloud, oracles: &Mutex<Oracles>) {
    // Most runs are not about that, and most requests delete nothing.
    if request.verb != "delete" || oracles.lock().cloud_nodes.is_none() {
        return;
    }
    cloud.with(|cloud, now| {
        cloud.advance(now);
        let mut oracles = oracles.lock();
        let nodes = oracles.cloud_nodes.as_mut();
        if let Some(wrong) = nodes.and_then(|nodes| nodes.request(request, server, cloud.memory())) {
            oracles.blame(wrong);
        }
    });
}

fn expectations(schedule: &Schedule) -> Expectations {
    Expectations {
        trusts_clocks: !schedule.has_wrong_clocks(),
        is_lagging: schedule.is_lagging(),
        faults: schedule.aimed(),
    }
}

/// A manager that renews a lease may write until its renewal deadline.
fn note_lease(adversary: &Adversary, change: &ChangeRecord) {
    let Some(lease) = LEASES.into_iter().find(|lease| change.path.ends_with(&format!("/leases/{lease}"))) else {
        return;
    };
    let holder = change.new.as_deref().and_then(|lease| lease["spec"]["holderIdentity"].as_str());
    adversary.note_lease(lease, holder, RENEW_DEADLINE);
}

fn describe(change: &ChangeRecord) -> String {
    let Some(new) = &change.new else { return "is gone".to_owned() };
    let phase = new["status"]["currentStatus"]["phase"].as_str().unwrap_or_default();
    let deleting = if new["metadata"]["deletionTimestamp"].is_null() { "" } else { ", deleting" };
    let replicas = new["spec"]["replicas"].as_i64().map(|replicas| format!(" of {replicas}")).unwrap_or_default();
    format!("is at {}{replicas} {phase}{deleting}", change.version)
}

fn seed(server: &ApiServer, design: &Design) {
    for name in ["default", "kube-node-lease", "kube-system"] {
        server.seed("/api/v1/namespaces", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    }
    server.seed(
        "/api/v1/namespaces/default/secrets",
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cloud", "namespace": NAMESPACE},
            "data": {"password": SECRET, "userData": SECRET}}),
    );
    for class in ["small", "large"] {
        let mut spec = json!({"cluster": "simulation", "size": class});
        if design.cloud_nodes {
            spec["externalCloudProvider"] = true.into();
        }
        server.seed(
            CLASSES,
            json!({"apiVersion": nodewright_api::API_VERSION, "kind": "MachineClass",
                "metadata": {"name": class, "namespace": NAMESPACE}, "provider": "simulated",
                "providerSpec": spec, "secretRef": {"name": "cloud", "namespace": NAMESPACE}}),
        );
    }
    server.seed(DEPLOYMENTS, pool(design));
}

/// Lets the oracles evaluate what has happened in the cloud, and then `more`.
fn check_cloud(
    cloud: &LocalCloud,
    adversary: &Adversary,
    oracles: &Mutex<Oracles>,
    more: impl FnOnce(&mut Oracles, &Memory),
) {
    cloud.with(|cloud, now| {
        cloud.advance(now);
        let mut oracles = oracles.lock();
        oracles.note_youngest(adversary.youngest());
        oracles.cloud(cloud.memory());
        more(&mut oracles, cloud.memory());
    });
}
