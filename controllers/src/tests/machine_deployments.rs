//! The controllers of deployments, sets and classes in the real runtime, against the API server in process, in simulated time.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use nodewright_runtime::{
    leadership::{Clock, tokio_clock},
    manager::{Manager, Options},
};
use nodewright_testing::api_server::{ApiServer, Fault, Match, RequestRecord};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::shared::{CONTROL, fleet::FleetSettings};
use crate::{
    machine_class::{MachineClassController, Refused, Validator},
    machine_class_secret::MachineClassSecretController,
    machine_deployment::MachineDeploymentController,
    machine_set::{MachineSetController, StaleMachines},
    shared::cloud_manager::CloudNodeMode,
    testing::{Uncalled, machine_deployment, rolling},
};

const API: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default";
const DEPLOYMENT: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machinedeployments/pool";

/// A server, the controllers, and a stand-in for the machine controller.
struct Plane {
    server: ApiServer,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
    running: tokio::task::JoinHandle<()>,
}

impl Plane {
    fn start((server, clock): (ApiServer, Arc<dyn Clock>)) -> Self {
        let options = Options { clock: clock.clone(), ..Options::new("nodewright", "test", CONTROL, server.client()) };
        let mut manager = Manager::new(options);
        let namespace = || "default".to_owned();
        manager.add(MachineDeploymentController {
            has_pools: false,
            namespace: namespace(),
            full_schema: true.into(),
            fleet: FleetSettings::default(),
            nodes: None,
        });
        manager.add(MachineSetController {
            namespace: namespace(),
            full_schema: true.into(),
            fleet: FleetSettings::default(),
            stale: StaleMachines::default(),
        });
        let (full_schema, driver) = (true.into(), Arc::new(Uncalled) as Arc<dyn nodewright_driver::Driver>);
        let validator = Arc::new(Validator { driver: driver.clone(), refused: Refused::default() });
        let classes = MachineClassController { namespace: namespace(), full_schema, driver, mode: CloudNodeMode::Off };
        manager.add_with(classes, move |call| validator.clone().perform(call));
        manager.add(MachineClassSecretController { namespace: namespace() });
        let stop = CancellationToken::new();
        let token = stop.clone();
        let running = tokio::spawn(async move { manager.run(vec![], token).await.unwrap() });
        Self { server, clock, stop, running }
    }

    async fn end(self) {
        self.stop.cancel();
        self.running.await.unwrap();
    }

    fn machines(&self) -> Vec<Arc<Value>> {
        self.server.objects(&format!("{API}/machines"))
    }

    /// Acts for the machine controller: one machine becomes ready, one in deletion is removed.
    fn pretend(&self) {
        let machines = self.machines();
        let path = |machine: &Value| format!("{API}/machines/{}", machine["metadata"]["name"].as_str().unwrap());
        if let Some(leaving) = machines.iter().find(|machine| machine["metadata"]["deletionTimestamp"].is_string()) {
            self.server.remove(&path(leaving));
        }
        if let Some(young) = machines.iter().find(|machine| !is_ready(machine)) {
            self.server.change(&path(young), |machine| machine["status"]["currentStatus"]["phase"] = "Running".into());
        }
    }

    /// Lets time pass until `reached`, and calls `check` meanwhile.
    async fn until(&self, what: &str, reached: impl Fn(&Self) -> bool, check: impl Fn(&Self)) {
        let begun = Instant::now();
        let mut rounds = 0_u32;
        while !reached(self) {
            check(self);
            sleep(Duration::from_millis(1)).await;
            rounds += 1;
            if rounds.is_multiple_of(10) {
                self.pretend();
            }
            assert!(begun.elapsed() < Duration::from_mins(1), "{what}: {:#?}", self.server.object(DEPLOYMENT));
        }
    }

    fn is_at_rest(&self, replicas: i64) -> bool {
        let Some(live) = self.server.object(DEPLOYMENT) else { return false };
        let status = &live["status"];
        let counts = ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"];
        let conditions = status["conditions"].as_array().map_or(0, Vec::len);
        counts.iter().all(|count| status[count] == replicas)
            && status["observedGeneration"] == live["metadata"]["generation"]
            && conditions == 2
    }

    fn ready(&self) -> usize {
        self.machines().iter().filter(|machine| is_ready(machine)).count()
    }
}

fn is_ready(machine: &Value) -> bool {
    machine["status"]["currentStatus"]["phase"] == "Running" && machine["metadata"]["deletionTimestamp"].is_null()
}

fn change_spec(server: &ApiServer, edit: impl FnOnce(&mut Value)) {
    let generation = |live: &mut Value| live["metadata"]["generation"].as_i64().unwrap();
    server.change(DEPLOYMENT, |live| {
        let before = generation(live);
        edit(&mut live["spec"]);
        if generation(live) == before {
            live["metadata"]["generation"] = (before + 1).into();
        }
    });
}

fn writes(requests: &[RequestRecord]) -> Vec<String> {
    let writes = requests.iter().filter(|request| !["get", "list", "watch"].contains(&request.verb));
    writes.map(|request| format!("{} {} {} {:?}", request.verb, request.path, request.status, request.body)).collect()
}

fn seeded() -> (ApiServer, Arc<dyn Clock>) {
    let clock = tokio_clock(Timestamp::now());
    let time = clock.clone();
    let server = ApiServer::with_time(move || time.wall());
    server.seed(
        "/api/v1/namespaces/default/secrets",
        json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "cloud", "namespace": "default"}, "data": {"password": "c2VjcmV0"}}),
    );
    for class in ["v1", "v2"] {
        server.seed(
            &format!("{API}/machineclasses"),
            json!({"apiVersion": "machine.sapcloud.io/v1alpha1",
            "kind": "MachineClass", "metadata": {"name": class, "namespace": "default"}, "provider": "simulated",
            "providerSpec": {"size": "small"}, "secretRef": {"name": "cloud", "namespace": "default"}}),
        );
    }
    let mut pool = machine_deployment(3, &rolling(1, 0));
    for field in ["uid", "resourceVersion", "finalizers"] {
        pool["metadata"].as_object_mut().unwrap().remove(field);
    }
    pool["apiVersion"] = "machine.sapcloud.io/v1alpha1".into();
    pool["kind"] = "MachineDeployment".into();
    server.seed(&format!("{API}/machinedeployments"), pool);
    (server, clock)
}

#[tokio::test(start_paused = true)]
async fn up_roll_scale_and_away() {
    let plane = Plane::start(seeded());
    plane.until("up", |plane| plane.is_at_rest(3), |_| {}).await;
    let secret = plane.server.object("/api/v1/namespaces/default/secrets/cloud").unwrap();
    assert_eq!(secret["metadata"]["finalizers"], json!(["machine.sapcloud.io/machine-controller"]));

    change_spec(&plane.server, |spec| spec["template"]["spec"]["class"]["name"] = "v2".into());
    plane.until("rolled", |plane| plane.is_at_rest(3), keeps_bounds).await;
    assert!(plane.machines().iter().all(|machine| machine["spec"]["class"]["name"] == "v2"));

    for replicas in [20, 2] {
        change_spec(&plane.server, |spec| spec["replicas"] = replicas.into());
        plane.until("scaled", |plane| plane.is_at_rest(replicas), |_| {}).await;
    }

    // A last write of changed counts may be due.
    sleep(Duration::from_secs(3)).await;
    let corrections = plane.server.take_requests().into_iter().filter(|it| it.content_type.contains("merge-patch"));
    assert_eq!(corrections.count(), 0, "what is applied is what is read back");
    sleep(Duration::from_mins(10)).await;
    assert_eq!(writes(&plane.server.take_requests()), Vec::<String>::new(), "at rest nothing is written");

    for (plural, name) in [("machineclasses", "v1"), ("machineclasses", "v2"), ("machinedeployments", "pool")] {
        let path = format!("{API}/{plural}/{name}");
        let request = http::Request::delete(&path).body(vec![]).unwrap();
        let _: Value = plane.server.client().request(request).await.unwrap_or_default();
    }
    let empty = |plane: &Plane| {
        let kinds = ["machinedeployments", "machinesets", "machines", "machineclasses"];
        kinds.iter().all(|plural| plane.server.objects(&format!("{API}/{plural}")).is_empty())
    };
    plane.until("gone", empty, |_| {}).await;
    let free = |plane: &Plane| {
        let secret = plane.server.object("/api/v1/namespaces/default/secrets/cloud").unwrap();
        secret["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty)
    };
    plane.until("the secret is free", free, |_| {}).await;
    plane.end().await;
}

/// The names of all requested creations of a kind.
fn created(requests: &[RequestRecord], plural: &str) -> std::collections::BTreeSet<String> {
    let asks = |request: &&RequestRecord| {
        let version = request.body.as_ref().map(|body| &body["metadata"]["resourceVersion"]);
        request.path.contains(&format!("/{plural}/")) && version == Some(&json!("1"))
    };
    requests.iter().filter(asks).map(|request| request.path.clone()).collect()
}

fn keeps_bounds(plane: &Plane) {
    let (all, ready) = (plane.machines().len(), plane.ready());
    assert!(all <= 4 && ready >= 3, "{all} machines, {ready} ready");
}

#[tokio::test(start_paused = true)]
async fn lost_answers_make_no_second_set_and_no_machine_too_many() {
    let plane = Plane::start(seeded());
    plane.until("up", |plane| plane.is_at_rest(3), |_| {}).await;
    for controller in ["machine-deployment", "machine-set"] {
        let writes = Match::verb("patch").user_agent(format!("({controller})"));
        plane.server.fail_times(4, writes, Fault::LoseAnswer);
    }
    change_spec(&plane.server, |spec| spec["template"]["spec"]["class"]["name"] = "v2".into());
    plane.until("rolled", |plane| plane.is_at_rest(3), keeps_bounds).await;
    let requests = plane.server.requests();
    assert_eq!((created(&requests, "machinesets").len(), created(&requests, "machines").len()), (2, 6));
    plane.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_starts_again_amid_a_rollout_goes_on_with_it() {
    let mut plane = Plane::start(seeded());
    plane.until("up", |plane| plane.is_at_rest(3), |_| {}).await;
    change_spec(&plane.server, |spec| spec["template"]["spec"]["class"]["name"] = "v2".into());
    for _ in 0..5 {
        let until = Instant::now() + Duration::from_millis(40);
        plane.until("a moment has passed", |_| Instant::now() > until, keeps_bounds).await;
        let cluster = (plane.server.clone(), plane.clock.clone());
        plane.end().await;
        plane = Plane::start(cluster);
    }
    plane.until("rolled", |plane| plane.is_at_rest(3), keeps_bounds).await;
    let requests = plane.server.requests();
    assert_eq!((created(&requests, "machinesets").len(), created(&requests, "machines").len()), (2, 6));
    plane.end().await;
}

/// Reason and status of a condition of an object.
fn condition(object: &Value, conditions: &str, kind: &str) -> Option<(String, String)> {
    let all = object["status"][conditions].as_array()?;
    let found = all.iter().find(|condition| condition["type"] == kind)?;
    assert!(found["lastTransitionTime"].is_string(), "{found}");
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Some((text("reason"), text("status")))
}

#[tokio::test(start_paused = true)]
async fn a_set_whose_ledger_is_spoilt_says_so_until_it_is_restored() {
    let plane = Plane::start(seeded());
    plane.until("up", |plane| plane.is_at_rest(3), |_| {}).await;
    let set = plane.server.objects(&format!("{API}/machinesets")).remove(0);
    let path = format!("{API}/machinesets/{}", set["metadata"]["name"].as_str().unwrap());
    let ledger = &set["metadata"]["annotations"]["nodewright.dev/ledger"];
    let write = |text: &Value| {
        let annotate = |set: &mut Value| set["metadata"]["annotations"]["nodewright.dev/ledger"] = text.clone();
        plane.server.change(&path, annotate).unwrap();
    };
    write(&json!("spoilt"));
    let said = |plane: &Plane, wanted: Option<&str>| {
        let wanted = wanted.map(|reason| (reason.to_owned(), "True".to_owned()));
        let of_set = plane.server.object(&path).map(|set| condition(&set, "machineSetCondition", "ReplicaFailure"));
        let of_pool = plane.server.object(DEPLOYMENT).map(|pool| condition(&pool, "conditions", "ReplicaFailure"));
        of_set == Some(wanted.clone()) && of_pool == Some(wanted)
    };
    plane.until("it is said", |plane| said(plane, Some("InvalidLedger")), |_| {}).await;
    change_spec(&plane.server, |spec| spec["replicas"] = 5.into());
    let has_seen = |plane: &Plane| plane.server.object(&path).is_some_and(|set| is_observed(&set, 5));
    plane.until("the set sees its new size", has_seen, |plane| assert_eq!(plane.machines().len(), 3)).await;
    write(ledger);
    plane.until("it goes on", |plane| plane.is_at_rest(5) && said(plane, None), |_| {}).await;
    plane.end().await;
}

fn is_observed(set: &Value, replicas: i64) -> bool {
    set["spec"]["replicas"] == replicas && set["status"]["observedGeneration"] == set["metadata"]["generation"]
}

/// The UIDs of all machines that are not being deleted.
fn staying(plane: &Plane) -> std::collections::BTreeSet<String> {
    let machines = plane.machines();
    let staying = machines.iter().filter(|machine| machine["metadata"]["deletionTimestamp"].is_null());
    staying.map(|machine| machine["metadata"]["uid"].as_str().unwrap().to_owned()).collect()
}

/// Makes two changes within a second, the second of which reverts the first. The existing machines must stay, and no machine
/// is created except those that were requested before the second change.
async fn is_taken_back(change: impl Fn(&mut Value), back: impl Fn(&mut Value)) {
    let plane = Plane::start(seeded());
    change_spec(&plane.server, |spec| spec["strategy"] = rolling(1, 1));
    plane.until("up", |plane| plane.is_at_rest(3), |_| {}).await;
    let first = staying(&plane);
    // Long enough for the second change to be seen before the next creations.
    let creations = Match::verb("patch").path("/machines/").user_agent("(machine-set)");
    plane.server.fail_always(creations, Fault::AnswerLate(Duration::from_millis(300)));
    change_spec(&plane.server, &change);
    // No machine becomes ready within such a short time.
    let begun = Instant::now();
    while staying(&plane).is_subset(&first) {
        sleep(Duration::from_millis(1)).await;
        assert!(begun.elapsed() < Duration::from_mins(1), "no machine is made");
    }
    change_spec(&plane.server, &back);
    let asked = created(&plane.server.requests(), "machines");
    plane.server.heal();
    while staying(&plane) != first {
        sleep(Duration::from_millis(1)).await;
        assert!(
            begun.elapsed() < Duration::from_mins(1),
            "{:?} are to stay, and there are {:?}",
            first,
            staying(&plane)
        );
    }
    plane.until("taken back", |plane| plane.is_at_rest(3), |_| {}).await;
    assert_eq!(staying(&plane), first, "those that were there before stay");
    let more: Vec<_> = created(&plane.server.requests(), "machines").difference(&asked).cloned().collect();
    assert!(more.is_empty(), "made after the change was taken back: {more:?}");
    plane.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_template_that_is_taken_back_at_once_costs_no_machine() {
    let class = |name: &'static str| move |spec: &mut Value| spec["template"]["spec"]["class"]["name"] = name.into();
    is_taken_back(class("v2"), class("v1")).await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_count_that_is_taken_back_at_once_costs_no_machine() {
    let replicas = |count: i64| move |spec: &mut Value| spec["replicas"] = count.into();
    is_taken_back(replicas(20), replicas(3)).await;
}
