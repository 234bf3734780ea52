//! Copies the ConfigMap `shared` of namespace `default` into every namespace that has the label `share=true`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::ResourceExt;
use nodewright_runtime::{
    apply_configuration::ApplyConfiguration,
    cache::Stores,
    controller::{Controller, Watches},
    effect::Never,
    manager::Manager,
    object::{Cluster, ObjectRef, child_of},
    plan::{Context, Plan, Step},
};

/// The only cluster.
pub const HOME: Cluster = Cluster::new("home");
const SOURCE: (&str, &str) = ("default", "shared");

/// The controller. It plans for one namespace at a time.
pub struct Share;

/// The fields of a copy that the controller owns.
#[derive(Clone, PartialEq, serde::Serialize)]
struct Content(ConfigMap);

impl ApplyConfiguration for Content {
    type Of = ConfigMap;
    fn extract(live: &ConfigMap) -> Self {
        Self(ConfigMap { data: live.data.clone(), ..ConfigMap::default() })
    }
}

impl Controller for Share {
    const NAME: &'static str = "share";
    type Primary = Namespace;
    /// The namespace, the source, and the ConfigMap that has the name of the copy.
    type Snapshot = (Arc<Namespace>, Option<Arc<ConfigMap>>, Option<Arc<ConfigMap>>);
    type Effect = Never;
    type Note = Never;

    fn watch(&self, on: &mut Watches<'_>) {
        on.primary::<Namespace>(HOME, "");
        on.kind::<ConfigMap>(HOME, "").wakes(|change, stores, wake| {
            let Some(map) = change.sides().last().filter(|map| map.name_any() == SOURCE.1) else { return };
            let (place, spaces) = (map.namespace().unwrap_or_default(), stores.of::<Namespace>(HOME).keys());
            spaces.into_iter().filter(|space| place == SOURCE.0 || *space.name == *place).for_each(wake);
        });
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Self::Snapshot> {
        let (spaces, maps) = (stores.of::<Namespace>(key.cluster), stores.of::<ConfigMap>(key.cluster));
        Some((spaces.get(key)?, maps.by_name(SOURCE.0, SOURCE.1), maps.by_name(&key.name, SOURCE.1)))
    }

    fn plan(_: &Context<'_, Never>, (space, source, copy): &Self::Snapshot) -> Plan<Never> {
        let (space, name, mut plan) = (space.as_ref(), space.name_any(), Plan::idle());
        let is_wanted = space.labels().get("share").is_some_and(|share| share == "true");
        let is_shared = is_wanted && space.metadata.deletion_timestamp.is_none() && name != SOURCE.0;
        let is_ours =
            |map: &&ConfigMap| map.owner_references().iter().any(|owner| Some(&owner.uid) == space.uid().as_ref());
        let fresh = |Content(map)| ConfigMap { metadata: child_of(space, &name, SOURCE.1), ..map };
        match (source.as_deref().filter(|_| is_shared).map(Content::extract), copy.as_deref().filter(is_ours)) {
            (Some(_), None) if copy.is_some() => plan.wait("NameTaken", "somebody else has a ConfigMap of that name"),
            (Some(new), None) => plan.then("the copy is missing", Step::create(HOME, &fresh(new))),
            (Some(content), Some(ours)) => plan.then("the source has changed", Step::apply(HOME, ours, content)),
            (None, ours) => plan.then("it is not to be shared", ours.map(|ours| Step::delete(HOME, ours))),
        };
        plan
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt::init();
    let mut manager = Manager::connect("share", "1", HOME).await?;
    manager.add(Share);
    let stop = tokio_util::sync::CancellationToken::new();
    let asked = stop.clone();
    tokio::spawn(async move { tokio::signal::ctrl_c().await.map(|()| asked.cancel()) });
    Ok(manager.run(vec![], stop).await?)
}
