//! Evictions that the API server does not answer keep no other object waiting.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use nodewright_runtime::{
    cache::Stores,
    controller::{Controller, Watches},
    effect::Never,
    finalizers,
    manager::{Manager, Options},
    object::{Cluster, ObjectRef, Target, has_finalizer, label},
    plan::{Context, Plan, Step},
};
use nodewright_testing::api_server::{ApiServer, Fault, Match};
use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

const HOME: Cluster = Cluster::new("home");
const PODS: &str = "/api/v1/namespaces/default/pods";
const HELD: &str = "test.dev/held";
/// More than plans that are executed at once.
const EVICTED: usize = 600;

/// Evicts Pods with a label, and adds a finalizer to all others.
struct Evicting;

impl Controller for Evicting {
    const NAME: &'static str = "evicting";
    type Primary = Pod;
    type Snapshot = Arc<Pod>;
    type Effect = Never;
    type Note = Never;

    fn watch(&self, on: &mut Watches<'_>) {
        on.primary::<Pod>(HOME, "default");
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Arc<Pod>> {
        stores.of::<Pod>(HOME).get(key)
    }

    fn plan(_: &Context<'_, Never>, pod: &Arc<Pod>) -> Plan<Never> {
        let mut plan = Plan::idle();
        if label(pod.as_ref(), "evict").is_some() {
            plan.then("it has the label", Step::Evict(Target::of(HOME, pod.as_ref())));
        } else if !has_finalizer(pod.as_ref(), HELD) {
            plan.then("it stays", Step::edit(HOME, pod.as_ref(), finalizers::add(&pod.metadata, HELD)));
        }
        plan
    }
}

#[tokio::test(start_paused = true)]
async fn evictions_without_an_answer_keep_no_other_object_waiting() {
    let server = ApiServer::new();
    let pod =
        |name: &str, labels| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}});
    for number in 0..EVICTED {
        server.seed(PODS, pod(&format!("leaves-{number}"), json!({"evict": "true"})));
    }
    server.fail_always(Match::verb("create").path_end("/eviction"), Fault::Hang);
    let mut manager = Manager::new(Options { seed: 1, ..Options::new("test", "1", HOME, server.client()) });
    manager.add(Evicting);
    let stop = CancellationToken::new();
    tokio::spawn(manager.run(vec![], stop.clone()));
    sleep(Duration::from_secs(2)).await;
    server.seed(PODS, pod("stays", json!({})));
    sleep(Duration::from_secs(1)).await;
    let stays = server.objects(PODS).into_iter().find(|pod| pod["metadata"]["name"] == "stays").unwrap();
    assert_eq!(stays["metadata"]["finalizers"], json!([HELD]));
    let evictions = server.requests().iter().filter(|request| request.path.ends_with("/eviction")).count();
    assert_eq!(evictions, Options::new("test", "1", HOME, server.client()).evictions_at_once);
    stop.cancel();
}
