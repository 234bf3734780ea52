//! A deployment of many machines.

use std::{sync::Arc, time::Duration};

use nodewright_controllers::wiring::{MACHINE_CONTROLLERS, SET_CONTROLLERS};
use nodewright_e2e_cloud::{
    self as cloud, KubeletOrder, LocalCloud,
    kubelet::{self, Fleet},
    memory::Memory,
};
use nodewright_e2e_simulation::{
    control_plane::agent_client,
    workload::{App, Budget, Keeper, Storage, Volume, Workload},
};
use nodewright_runtime::leadership::{Clock, tokio_clock};
use nodewright_testing::api_server::{ApiServer, Controllers};
use serde_json::{Value, json};
use tokio::{sync::Notify, time::sleep};

use super::{
    manager::{Counted, NAMESPACE, SEED},
    table::Table,
};

const RESOURCES: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default";
const NODES: &str = "/api/v1/nodes";
/// What a workload consists of, in the order in which it is removed.
const OF_WORKLOAD: [&str; 5] = [
    "/api/v1/namespaces/default/pods",
    "/apis/storage.k8s.io/v1/volumeattachments",
    "/api/v1/namespaces/default/persistentvolumeclaims",
    "/api/v1/persistentvolumes",
    "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
];
/// Parts of the paths of what the controllers of a workload go by.
const KEPT: [&str; 4] = ["/pods/", "/nodes/", "/volumeattachments/", "/poddisruptionbudgets/"];
/// Kubelets post their status this often. Each post is a change of a Node that the manager sees.
const BEAT: Duration = Duration::from_mins(1);
/// How often they renew their Leases, which it does not watch: seldom, as half of the time of a run would go into it.
const RENEWAL: Duration = Duration::from_mins(10);
/// How late the garbage collector is. It looks at all objects after each change.
const COLLECTION: Duration = Duration::from_secs(1);
const REST: Duration = Duration::from_mins(10);
/// How often Nodes become not ready, and for how long.
const FLAPS: u32 = 3;
const FLAP: Duration = Duration::from_secs(30);

struct Cluster {
    server: ApiServer,
    cloud: LocalCloud,
}

/// Creates so many machines, lets them rest and flap, replaces them, drains half of them and deletes all.
pub(crate) async fn run(machines: u32) -> Table {
    let clock = tokio_clock("2026-06-01T12:00:00Z".parse().expect("a time"));
    let cluster = Cluster::start(&clock);
    let controllers = [SET_CONTROLLERS, MACHINE_CONTROLLERS].concat();
    let mut counted =
        Counted::start(format!("{machines} machines"), &cluster.server, Some(&cluster.cloud), clock, &controllers);
    counted.settle("the start", || cluster.has(0)).await;

    counted.begin();
    cluster.scale(machines);
    counted.settle("the creation", || cluster.has(machines)).await;
    counted.end("1 created");

    counted.begin();
    sleep(REST).await;
    counted.end("2 at rest");

    counted.begin();
    for _ in 0..FLAPS {
        for order in [KubeletOrder::NotReady, KubeletOrder::Ready] {
            cluster.order_kubelets(machines / 10, &order);
            sleep(FLAP).await;
        }
    }
    counted.settle("the flapping", || cluster.has(machines)).await;
    counted.end("3 flapping");

    counted.begin();
    cluster.edit(|spec| spec["template"]["spec"]["class"]["name"] = "large".into());
    counted.settle("the rollout", || cluster.has(machines)).await;
    counted.end("4 rolled");

    let keeper = cluster.add_pods(machines);
    counted.settle("the start of the pods", || cluster.has(machines) && cluster.runs_all_pods()).await;
    counted.begin();
    cluster.scale(machines / 2);
    counted.settle("the drain", || cluster.has(machines / 2) && cluster.runs_all_pods()).await;
    counted.end("5 drained");
    cluster.remove_pods(keeper);
    counted.settle("the end of the pods", || cluster.has(machines / 2)).await;

    counted.begin();
    cluster.server.delete(&format!("{RESOURCES}/machinedeployments/pool"));
    counted.settle("the deletion", || cluster.is_empty()).await;
    counted.end("6 deleted");
    cluster.server.observe(|_| {});
    counted.into_table()
}

impl Cluster {
    fn start(clock: &Arc<dyn Clock>) -> Self {
        let wall = clock.clone();
        let server = ApiServer::with_time(move || wall.wall());
        seed(&server);
        server.keep_no_requests();
        server.run_controllers(Controllers {
            namespaces: false,
            budgets: false,
            delay: COLLECTION,
            ..Controllers::all()
        });
        let settings = kubelet::Settings {
            lease_period: RENEWAL,
            status_period: BEAT,
            seed: SEED,
            ..kubelet::Settings::default()
        };
        let fleet = Fleet::with_client(agent_client(&server, kubelet::AGENT), settings, clock.clone());
        let settings = cloud::Settings { seed: SEED, ..cloud::Settings::default() };
        let cloud = LocalCloud::start(settings, Memory::default(), clock.clone(), Some(fleet));
        Self { server, cloud }
    }

    fn edit(&self, edit: impl FnOnce(&mut Value)) {
        self.server.change(&format!("{RESOURCES}/machinedeployments/pool"), |pool| {
            edit(&mut pool["spec"]);
            let generation = pool["metadata"]["generation"].as_i64().unwrap_or_default();
            pool["metadata"]["generation"] = (generation + 1).into();
        });
    }

    fn scale(&self, machines: u32) {
        self.edit(|spec| spec["replicas"] = machines.into());
    }

    /// Whether there are so many machines, all up to date and well.
    fn has(&self, machines: u32) -> bool {
        let Some(pool) = self.server.object(&format!("{RESOURCES}/machinedeployments/pool")) else { return false };
        let counts = ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"];
        let is_all = |count: &&str| pool["status"][count].as_u64().unwrap_or(0) == u64::from(machines);
        pool["status"]["observedGeneration"] == pool["metadata"]["generation"]
            && counts.iter().all(is_all)
            && [format!("{RESOURCES}/machines"), NODES.to_owned()].iter().all(|kind| self.count(kind) == machines)
    }

    fn is_empty(&self) -> bool {
        let resources = ["machinedeployments", "machinesets", "machines"].map(|kind| format!("{RESOURCES}/{kind}"));
        resources.iter().all(|kind| self.count(kind) == 0) && self.count(NODES) == 0 && self.cloud.vms().is_empty()
    }

    fn count(&self, collection: &str) -> u32 {
        u32::try_from(self.server.objects(collection).len()).unwrap_or(u32::MAX)
    }

    /// Gives an order to the kubelets of the oldest VMs.
    fn order_kubelets(&self, number: u32, order: &KubeletOrder) {
        for vm in self.cloud.vms().into_iter().take(number as usize) {
            self.cloud.kubelet(&vm.id, order.clone()).expect("the VM exists");
        }
    }

    /// A pod for each machine, of which a tenth may be disrupted, and one with a volume for every tenth.
    fn add_pods(&self, machines: u32) -> Keeper {
        let volume = Volume { storage: Storage::Provider, detaches: Some(1) };
        let budget = Budget::MaxUnavailable(machines / 10);
        let apps = vec![
            App { pods: machines, budgets: vec![budget], ..App::default() },
            App { pods: machines / 10, volume: Some(volume), ..App::default() },
        ];
        let changed = Arc::new(Notify::new());
        let notified = Arc::clone(&changed);
        self.server.observe(move |change| {
            if KEPT.iter().any(|kind| change.path.contains(kind)) {
                notified.notify_one();
            }
        });
        Keeper::start(self.server.clone(), Workload { apps, daemons: false }, changed)
    }

    fn runs_all_pods(&self) -> bool {
        let is_running =
            |pod: &Arc<Value>| pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null();
        self.server.objects(OF_WORKLOAD[0]).iter().all(is_running)
    }

    fn remove_pods(&self, keeper: Keeper) {
        drop(keeper);
        for collection in OF_WORKLOAD {
            for object in self.server.objects(collection) {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                self.server.remove(&format!("{collection}/{name}"));
            }
        }
    }
}

/// The namespaces, the Secret, two classes, and a deployment without machines.
fn seed(server: &ApiServer) {
    for name in [NAMESPACE, "kube-node-lease", "kube-system"] {
        server.seed("/api/v1/namespaces", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    }
    server.seed(
        "/api/v1/namespaces/default/secrets",
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cloud", "namespace": NAMESPACE},
            "data": {"userData": "aGk="}}),
    );
    for class in ["small", "large"] {
        server.seed(
            &format!("{RESOURCES}/machineclasses"),
            json!({"apiVersion": nodewright_api::API_VERSION, "kind": "MachineClass",
                "metadata": {"name": class, "namespace": NAMESPACE}, "provider": "simulated",
                "providerSpec": {"cluster": "simulation", "size": class},
                "secretRef": {"name": "cloud", "namespace": NAMESPACE}}),
        );
    }
    let template = json!({
        "metadata": {"labels": {"pool": "pool"}},
        "spec": {"class": {"kind": "MachineClass", "name": "small"}, "healthTimeout": "1h0m0s", "creationTimeout": "1h0m0s",
            "drainTimeout": "4h0m0s", "nodeTemplate": {"metadata": {"labels": {"pool.example.com/first": "1"}}}},
    });
    server.seed(
        &format!("{RESOURCES}/machinedeployments"),
        json!({"apiVersion": nodewright_api::API_VERSION, "kind": "MachineDeployment",
            "metadata": {"name": "pool", "namespace": NAMESPACE},
            "spec": {"replicas": 0, "selector": {"matchLabels": {"pool": "pool"}}, "template": template,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "10%", "maxUnavailable": 0}}}}),
    );
}
