//! One controller over three clusters: the first holds the wanted state, and the copies are in the second or the third.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use nodewright_runtime::{
    apply_configuration::ApplyConfiguration,
    cache::Stores,
    controller::{Controller, Watches},
    effect::Never,
    leadership::{checked_clock, tokio_clock},
    manager::{Ended, Manager, Options},
    object::{Cluster, ObjectRef, label, name, namespace},
    plan::{Context, Plan, Step},
};
use nodewright_testing::api_server::ApiServer;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{HOME, MAPS};

/// A cluster of copies.
pub(crate) const NEAR: Cluster = Cluster::new("near");
pub(crate) const FAR: Cluster = Cluster::new("far");

/// Copies a ConfigMap into the cluster that its label names.
struct Mirror;

#[derive(Clone, PartialEq, Serialize)]
struct Content {
    data: BTreeMap<String, String>,
}

impl ApplyConfiguration for Content {
    type Of = ConfigMap;
    fn extract(live: &ConfigMap) -> Self {
        Self { data: live.data.clone().unwrap_or_default() }
    }
}

impl Controller for Mirror {
    const NAME: &'static str = "mirror";
    type Primary = ConfigMap;
    type Snapshot = (Arc<ConfigMap>, Cluster, Option<Arc<ConfigMap>>);
    type Effect = Never;
    type Note = Never;

    fn watch(&self, on: &mut Watches<'_>) {
        on.primary::<ConfigMap>(HOME, "default");
        for cluster in [NEAR, FAR] {
            on.kind::<ConfigMap>(cluster, "default").wakes(|change, _, wake| {
                for map in change.sides() {
                    wake(ObjectRef::new(HOME, namespace(map.as_ref()), name(map.as_ref())));
                }
            });
        }
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Self::Snapshot> {
        let wanted = stores.of::<ConfigMap>(HOME).get(key)?;
        let named = label(wanted.as_ref(), "cluster")?;
        let cluster = [NEAR, FAR].into_iter().find(|cluster| cluster.to_string() == named)?;
        let copy = stores.of::<ConfigMap>(cluster).by_name(&key.namespace, &key.name);
        Some((wanted, cluster, copy))
    }

    fn tolerates_unavailable(&self, wanted: &ConfigMap, cluster: Cluster, _: Timestamp) -> bool {
        label(wanted, "without").is_some_and(|without| without == cluster.to_string())
    }

    fn plan(_: &Context<'_, Never>, (wanted, cluster, copy): &Self::Snapshot) -> Plan<Never> {
        let mut plan = Plan::idle();
        let step = if let Some(copy) = copy {
            Step::apply(*cluster, copy.as_ref(), Content::extract(wanted))
        } else {
            let mut copy = ConfigMap { data: wanted.data.clone(), ..ConfigMap::default() };
            copy.metadata.name.clone_from(&wanted.metadata.name);
            copy.metadata.namespace.clone_from(&wanted.metadata.namespace);
            Step::create(*cluster, &copy)
        };
        plan.then("the copy is not as it should be", step);
        plan
    }
}

/// One API server, with access to the data of its `ConfigMaps`.
pub(crate) struct Place(pub(crate) ApiServer);

impl Place {
    pub(crate) fn value(&self, name: &str) -> Option<String> {
        Some(self.0.object(&format!("{MAPS}/{name}"))?["data"]["key"].as_str()?.to_owned())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.objects(MAPS).len()
    }
}

/// A manager of three clusters.
pub(crate) struct Mirrors {
    pub(crate) control: ApiServer,
    pub(crate) near: Place,
    pub(crate) far: Place,
    pub(crate) readiness: Box<dyn Fn() -> Result<(), String>>,
    stop: CancellationToken,
    manager: JoinHandle<Result<(), Ended>>,
}

impl Mirrors {
    /// Starts it after `prepare` has changed the control cluster and the far one.
    pub(crate) async fn start(prepare: impl FnOnce(&ApiServer, &ApiServer)) -> Self {
        let (control, near, far) = (ApiServer::new(), ApiServer::new(), ApiServer::new());
        prepare(&control, &far);
        let mut manager = Manager::new(Options {
            clients: [(HOME, control.client()), (NEAR, near.client()), (FAR, far.client())].into(),
            requests_at_once: 8,
            clock: checked_clock(tokio_clock("2026-06-01T12:00:00Z".parse().unwrap())),
            seed: 1,
            ..Options::new("test", "1", HOME, control.client())
        });
        manager.add(Mirror);
        let (readiness, stop) = (Box::new(manager.readiness()), CancellationToken::new());
        let manager = tokio::spawn(manager.run(vec![], stop.clone()));
        tokio::time::sleep(Duration::from_secs(1)).await;
        Self { control, near: Place(near), far: Place(far), readiness, stop, manager }
    }

    /// From now on a copy with this value is wanted in a cluster.
    pub(crate) fn wanted(&self, name: &str, cluster: Cluster, value: &str) -> Value {
        let metadata = json!({"name": name, "labels": {"cluster": cluster.to_string()}});
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"key": value}});
        self.control.seed(MAPS, map)
    }

    /// From now on a copy is wanted in another cluster. `without`: do not wait for what happens in the former cluster.
    pub(crate) fn moved(&self, name: &str, cluster: Cluster, without: Option<Cluster>) {
        self.control.change(&format!("{MAPS}/{name}"), |map| {
            map["metadata"]["labels"] = match without {
                Some(without) => json!({"cluster": cluster.to_string(), "without": without.to_string()}),
                None => json!({"cluster": cluster.to_string()}),
            };
        });
    }

    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        for _ in 0..60_000 {
            if condition(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{what} did not happen");
    }

    pub(crate) async fn end(self) {
        self.stop.cancel();
        assert_eq!(self.manager.await.unwrap(), Ok(()));
    }
}
