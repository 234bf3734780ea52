//! An object that is planned while the cache of another cluster has not been listed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use nodewright_runtime::{
    cache::Stores,
    controller::{Controller, Watches},
    effect::Never,
    leadership::{checked_clock, tokio_clock},
    manager::{Manager, Options},
    object::{Cluster, ObjectRef},
    plan::{Context, Plan},
};
use nodewright_testing::api_server::{ApiServer, Fault, Match};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::support::{HOME, clusters::FAR};

/// Counts its plans. Each reads a cache of the far cluster first, which may be empty, and then one at home, which may not.
struct Counter(Arc<AtomicUsize>);

impl Controller for Counter {
    const NAME: &'static str = "counter";
    type Primary = Pod;
    type Snapshot = Arc<AtomicUsize>;
    type Effect = Never;
    type Note = Never;

    fn watch(&self, on: &mut Watches<'_>) {
        on.primary::<Pod>(HOME, "default");
        on.kind::<ConfigMap>(FAR, "default");
        on.kind::<Secret>(HOME, "default");
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Arc<AtomicUsize>> {
        let (_, _) = (stores.of::<ConfigMap>(FAR), stores.of::<Secret>(HOME));
        stores.of::<Pod>(HOME).get(key).map(|_| self.0.clone())
    }

    fn plans_unlisted(&self, _: &Pod, cluster: Cluster) -> bool {
        cluster == FAR
    }

    fn plan(_: &Context<'_, Never>, plans: &Arc<AtomicUsize>) -> Plan<Never> {
        plans.fetch_add(1, Ordering::Relaxed);
        Plan::idle()
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_waits_for_its_own_cluster_even_if_the_other_one_is_away() {
    let (home, far) = (ApiServer::new(), ApiServer::new());
    far.fail_always(Match::any(), Fault::Unreachable);
    home.fail_always(Match::verb("list").path("/secrets"), Fault::Unreachable);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": []}});
    home.seed("/api/v1/namespaces/default/pods", pod);
    let mut manager = Manager::new(Options {
        clients: [(HOME, home.client()), (FAR, far.client())].into(),
        clock: checked_clock(tokio_clock("2026-06-01T12:00:00Z".parse().unwrap())),
        seed: 1,
        ..Options::new("test", "1", HOME, home.client())
    });
    let plans = Arc::new(AtomicUsize::new(0));
    manager.add(Counter(plans.clone()));
    let stop = CancellationToken::new();
    let manager = tokio::spawn(manager.run(vec![], stop.clone()));

    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(plans.load(Ordering::Relaxed), 0, "the Secrets have not been listed");
    home.heal();
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(plans.load(Ordering::Relaxed) > 0, "the Secrets have been listed, and nothing else is waited for");
    stop.cancel();
    assert_eq!(manager.await.unwrap(), Ok(()));
}
