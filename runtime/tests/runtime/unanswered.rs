//! A write to another cluster whose outcome cannot be learnt: the object reports it, and nothing else is done meanwhile.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use nodewright_runtime::{
    apply_configuration::{ApplyConfiguration, STATUS},
    cache::Stores,
    controller::{Controller, Watches},
    effect::Never,
    leadership::{checked_clock, tokio_clock},
    manager::{Manager, Options},
    object::{ObjectRef, name, namespace},
    plan::{Context, Plan, Step},
};
use nodewright_testing::api_server::{ApiServer, Fault, Match};
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::{HOME, MAPS, clusters::FAR};

const POD: &str = "/api/v1/namespaces/default/pods/a";

#[derive(Clone, PartialEq, Serialize)]
struct Message {
    status: Value,
}

impl ApplyConfiguration for Message {
    type Of = Pod;
    const SUBRESOURCE: &'static str = STATUS;
    fn extract(live: &Pod) -> Self {
        Self { status: json!({"message": live.status.as_ref().and_then(|status| status.message.clone())}) }
    }
}

/// Keeps a ConfigMap in the far cluster for each Pod. The Pod's status names the request that fails.
struct Companion;

impl Controller for Companion {
    const NAME: &'static str = "companion";
    type Primary = Pod;
    type Snapshot = (Arc<Pod>, Option<Arc<ConfigMap>>);
    type Effect = Never;
    type Note = Never;

    fn watch(&self, on: &mut Watches<'_>) {
        on.primary::<Pod>(HOME, "default");
        on.kind::<ConfigMap>(FAR, "default").wakes(|change, _, wake| {
            for map in change.sides() {
                wake(ObjectRef::new(HOME, namespace(map.as_ref()), name(map.as_ref())));
            }
        });
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Self::Snapshot> {
        let pod = stores.of::<Pod>(HOME).get(key)?;
        Some((pod, stores.of::<ConfigMap>(FAR).by_name(&key.namespace, &key.name)))
    }

    fn plan(context: &Context<'_, Never>, (pod, map): &Self::Snapshot) -> Plan<Never> {
        let mut plan = Plan::idle();
        if let Some(failure) = context.failure {
            let status = Message { status: json!({"message": failure.to_string()}) };
            plan.then("a request fails", Step::apply(HOME, pod.as_ref(), status));
        }
        if map.is_none() {
            let mut map = ConfigMap::default();
            map.metadata.name.clone_from(&pod.metadata.name);
            map.metadata.namespace.clone_from(&pod.metadata.namespace);
            plan.beside("the pod has no companion", Step::create(FAR, &map));
        }
        plan
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_tells_that_another_cluster_does_not_answer() {
    let (home, far) = (ApiServer::new(), ApiServer::new());
    let mut manager = Manager::new(Options {
        clients: [(HOME, home.client()), (FAR, far.client())].into(),
        clock: checked_clock(tokio_clock("2026-06-01T12:00:00Z".parse().unwrap())),
        seed: 1,
        ..Options::new("test", "1", HOME, home.client())
    });
    manager.add(Companion);
    let stop = CancellationToken::new();
    let manager = tokio::spawn(manager.run(vec![], stop.clone()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    far.hold_watches(true);
    far.fail_always(Match::any(), Fault::Hang);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": []}});
    home.seed("/api/v1/namespaces/default/pods", pod);
    let message = || home.object(POD).and_then(|pod| Some(pod["status"]["message"].as_str()?.to_owned()));

    tokio::time::sleep(Duration::from_mins(4)).await;
    let text = message().unwrap();
    assert!(text.contains("ConfigMap"), "{text}");
    let asked: Vec<_> = far.take_requests().into_iter().map(|request| request.verb).collect();
    let count = |verb: &str| asked.iter().filter(|asked| **asked == verb).count();
    assert!(count("patch") == 1 && count("get") > 1, "it is looked up, and not created again: {asked:?}");

    far.heal();
    far.hold_watches(false);
    tokio::time::sleep(Duration::from_mins(3)).await;
    assert!(far.object(&format!("{MAPS}/a")).is_some());
    stop.cancel();
    assert_eq!(manager.await.unwrap(), Ok(()));
}
