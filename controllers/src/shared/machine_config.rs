//! What the controllers of node configuration share. All their objects are cluster-scoped, in the target cluster.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use nodewright_api::{
    machine_config::{GENERATED_BY, KubeletConfig, MachineConfig, MachineConfigPool, MachineConfigSpec, ROLE, WORKER},
    reasons::machine_config_pool::{MACHINE_CONFIG_OPERATOR_RUNS, MACHINE_CONFIG_OPERATOR_UNKNOWN},
    selector,
};
use nodewright_render::Input;
use nodewright_runtime::{
    cache::{Lookup, Stores, Unreadable},
    effect::Effect,
    object::{ObjectRef, annotation, created, label, name},
    plan::{Context, Plan},
    scoped_watch::ScopedWatch,
};
use serde::Deserialize;

use crate::shared::TARGET;

/// The value of [`GENERATED_BY`] on what we make.
pub(crate) const VERSION: &str = concat!("nodewright/", env!("CARGO_PKG_VERSION"));

/// A MachineConfig as the cache has it: of a rendered one, which may have a megabyte, the metadata alone.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "MachineConfig")]
pub(crate) struct CachedConfig {
    pub(crate) metadata: ObjectMeta,
    /// `None` for a rendered one.
    pub(crate) spec: Option<MachineConfigSpec>,
}

nodewright_runtime::view_of!(MachineConfig, CachedConfig);

impl From<MachineConfig> for CachedConfig {
    fn from(object: MachineConfig) -> Self {
        let is_rendered = object.is_rendered();
        Self { metadata: object.metadata, spec: (!is_rendered).then_some(object.spec) }
    }
}

impl CachedConfig {
    /// As an input of the rendering; `None` for a rendered one.
    pub(crate) fn input(&self) -> Option<Input<'_>> {
        let is_generated = annotation(self, GENERATED_BY).is_some();
        Some(Input { name: name(self), role: label(self, ROLE), is_generated, spec: self.spec.as_ref()? })
    }
}

/// The MachineConfigs that a pool selects, in the order of the merge. Rendered ones are none.
pub(crate) fn selected(stores: &Stores, pool: &MachineConfigPool) -> Vec<Arc<CachedConfig>> {
    let selector = pool.spec.machine_config_selector.as_ref();
    if selector::is_empty(selector) {
        return vec![];
    }
    let mut selected = stores.of::<CachedConfig>(TARGET).all();
    selected.retain(|config| config.spec.is_some() && selector::matches(selector, config.metadata.labels.as_ref()));
    let key = |config: &CachedConfig| (label(config, ROLE) != Some(WORKER), name(config).to_owned());
    selected.sort_by_cached_key(|config| key(config));
    selected
}

/// Whether a pool may select a MachineConfig that cannot be read.
pub(crate) fn may_be_selected(object: &Unreadable, pool: &MachineConfigPool) -> bool {
    let is_rendered = object.controller().is_some_and(|owner| owner.kind == "MachineConfigPool");
    let labels = object.metadata().map(|metadata| metadata.labels.as_ref());
    let selector = pool.spec.machine_config_selector.as_ref();
    !is_rendered && labels.is_none_or(|labels| selector::matches(selector, labels))
}

/// The KubeletConfigs that select a pool, the oldest first.
pub(crate) fn kubelet_configs_of(stores: &Stores, pool: &MachineConfigPool) -> Vec<Arc<KubeletConfig>> {
    let mut all = stores.of::<KubeletConfig>(TARGET).all();
    all.retain(|object| {
        let selector = object.spec.machine_config_pool_selector.as_ref();
        !selector::is_empty(selector) && selector::matches(selector, pool.metadata.labels.as_ref())
    });
    all.sort_by(|a, b| {
        created(a.as_ref()).cmp(&created(b.as_ref())).then_with(|| name(a.as_ref()).cmp(name(b.as_ref())))
    });
    all
}

/// A cluster-scoped object of the target cluster.
pub(crate) fn target_ref(name: &str) -> ObjectRef {
    ObjectRef::new(TARGET, "", name)
}

/// The Lease of machine-config-operator's controllers.
fn operator_lease() -> ObjectRef {
    ObjectRef::new(TARGET, "openshift-machine-config-operator", "machine-config-controller")
}

/// Machine-config-operator, which has the same objects: while it runs, we leave them alone.
#[derive(Clone, Debug)]
pub(crate) struct Operator(Lookup<Lease>);

/// When the Lease of machine-config-operator was last renewed, by its own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseRenewal(Option<Timestamp>);

impl Operator {
    /// The watch that [`Operator::of`] needs.
    pub(crate) fn watch() -> ScopedWatch {
        ScopedWatch::named::<Lease>(&operator_lease(), "")
    }

    pub(crate) fn of(stores: &Stores) -> Self {
        Self(stores.named::<Lease>(&operator_lease(), ""))
    }

    /// Whether nobody has its Lease; `None` while that has yet to be read.
    pub(crate) fn is_absent(&self) -> Option<bool> {
        match &self.0 {
            Lookup::Pending => None,
            Lookup::Missing => Some(true),
            Lookup::Found(_) => Some(self.renewal().is_none()),
            Lookup::Failed(_) | Lookup::Unreadable(_) => Some(false),
        }
    }

    /// Whether we must not act; then the plan says why, and when to look again.
    ///
    /// The plan notes the last renewal in both cases, so that a Lease that stands still blocks but once.
    pub(crate) fn blocks<E: Effect, N: Ord + 'static>(
        &self,
        context: &Context<'_, E, N>,
        note: fn(LeaseRenewal) -> N,
        plan: &mut Plan<E, N>,
    ) -> bool {
        if let Some((_, renewal, _)) = self.renewal() {
            plan.notes.add(note(renewal));
        }
        let Some(obstacle) = self.obstacle(context, note) else { return false };
        match obstacle.until {
            Some(_) => {
                plan.wait(MACHINE_CONFIG_OPERATOR_RUNS, format!("machine-config-operator runs: {}", obstacle.text))
            }
            None => plan
                .wait(MACHINE_CONFIG_OPERATOR_UNKNOWN, format!("machine-config-operator may run: {}", obstacle.text)),
        };
        plan.wake = obstacle.until;
        true
    }

    /// Who holds the Lease, a note of its last renewal, and for how long that counts.
    fn renewal(&self) -> Option<(&str, LeaseRenewal, SignedDuration)> {
        let Lookup::Found(lease) = &self.0 else { return None };
        let spec = lease.spec.as_ref()?;
        let holder = spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())?;
        let renewal = LeaseRenewal(spec.renew_time.as_ref().map(|time| time.0));
        let duration = SignedDuration::from_secs(spec.lease_duration_seconds.unwrap_or_default().into());
        Some((holder, renewal, duration))
    }

    /// Why we must not act, and when to look again.
    ///
    /// Its Lease counts as renewed until we have seen it unchanged for its own duration: clocks need not agree.
    fn obstacle<E: Effect, N: Ord + 'static>(
        &self,
        context: &Context<'_, E, N>,
        note: fn(LeaseRenewal) -> N,
    ) -> Option<Obstacle> {
        match &self.0 {
            Lookup::Missing | Lookup::Found(_) => {}
            Lookup::Pending => return Some(Obstacle::of("its Lease has yet to be read")),
            Lookup::Failed(why) => return Some(Obstacle::of(format!("its Lease cannot be read: {why}"))),
            Lookup::Unreadable(_) => return Some(Obstacle::of("its Lease cannot be read")),
        }
        let (holder, renewal, duration) = self.renewal()?;
        let over =
            context.noted_since(&note(renewal)).unwrap_or(context.now).checked_add(duration).unwrap_or(Timestamp::MAX);
        let text = format!("its Lease is held by {holder}; it has to be scaled down first");
        (over > context.now).then_some(Obstacle { text, until: Some(over) })
    }
}

/// Why machine-config-operator counts as running.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Obstacle {
    text: String,
    until: Option<Timestamp>,
}

impl Obstacle {
    fn of(text: impl Into<String>) -> Self {
        Self { text: text.into(), until: None }
    }
}

#[cfg(test)]
mod tests {
    use nodewright_runtime::{
        effect::{Never, Outcomes},
        plan::Context,
    };
    use nodewright_testing::object;
    use serde_json::json;

    use super::*;
    use crate::testing::NOW;

    #[test]
    fn of_a_rendered_machine_config_only_the_metadata_is_kept() {
        let pool: nodewright_api::machine_config::MachineConfigPool = object("worker").with("/spec", json!({})).build();
        let spec = json!({"kernelArguments": ["a"]});
        let own: CachedConfig = object("a").with("/spec", spec.clone()).build();
        assert!(own.spec.is_some() && own.input().is_some());
        let rendered: CachedConfig = object("b").owned_by(&pool).with("/spec", spec).build();
        assert!(rendered.spec.is_none() && rendered.input().is_none());
        // What `kubectl delete --cascade=orphan` of its pool leaves.
        let name = "rendered-infra-0123456789abcdef0123456789abcdef";
        let left = object(name).annotation(GENERATED_BY, VERSION).with("/spec", json!({"kernelArguments": ["a"]}));
        let left: CachedConfig = left.build();
        assert!(left.spec.is_none() && left.input().is_none());
    }

    fn lease(holder: &str, renewed: &str) -> Operator {
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 137, "renewTime": renewed});
        let lease: Lease = object("machine-config-controller").with("/spec", spec).build();
        Operator(Lookup::Found(lease.into()))
    }

    #[test]
    fn machine_config_operator_counts_as_running_until_its_lease_has_stood_still() {
        let outcomes = Outcomes::<Never>::default();
        let now: Timestamp = NOW.parse().unwrap();
        let fresh = Context::new(now, &outcomes);
        assert_eq!(Operator(Lookup::Missing).obstacle(&fresh, |renewal| renewal), None);
        assert!(
            Operator(Lookup::Failed("forbidden".into()))
                .obstacle(&fresh, |renewal| renewal)
                .unwrap()
                .text
                .contains("forbidden")
        );
        assert!(Operator(Lookup::Pending).obstacle(&fresh, |renewal| renewal).is_some());
        assert_eq!(lease("", "2026-06-01T11:59:00.000000Z").obstacle(&fresh, |renewal| renewal), None, "released");
        // Its clock may be years off.
        let held = lease("pod-1", "2020-01-01T00:00:00.000000Z");
        let obstacle = held.obstacle(&fresh, |renewal| renewal).unwrap();
        assert_eq!(obstacle.until, Some("2026-06-01T12:02:17Z".parse().unwrap()));
        let note = |since: &str| [(held.renewal().unwrap().1, since.parse().unwrap())].into();
        let (recent, old) = (note("2026-06-01T11:58:00Z"), note("2026-06-01T11:57:43Z"));
        assert!(
            held.obstacle(&Context { notes: &recent, ..Context::new(now, &outcomes) }, |renewal| renewal).is_some()
        );
        assert_eq!(held.obstacle(&Context { notes: &old, ..Context::new(now, &outcomes) }, |renewal| renewal), None);
        let renewed = lease("pod-1", "2020-01-01T00:00:26.000000Z");
        assert!(
            renewed.obstacle(&Context { notes: &old, ..Context::new(now, &outcomes) }, |renewal| renewal).is_some(),
            "another renewal"
        );
    }
}
