//! The snapshot of a MachineConfigPool.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use nodewright_api::{
    ConditionStatus,
    annotations::RENDER_INPUTS,
    conditions::{
        controller_config::{FAILING, RUNNING},
        kubelet_config::ACCEPTED,
        machine_config_pool::RENDERED,
    },
    field::FieldError,
    machine_config::{
        CONTROLLER_CONFIG, ControllerConfig, GENERATED_BY, KubeletConfig, MachineConfig, MachineConfigPool,
    },
    selector,
    stored::PoolTarget,
    validation::Validate,
};
use nodewright_render::kubelet;
use nodewright_runtime::{
    cache::{Lookup, Stores, Unreadable},
    object::{ObjectRef, annotation, controller_uid, created, is_deleting, name, uid},
};

use super::{PoolSettings, etcd::Etcd, members::Members, traced::Traced};
use crate::shared::{
    TARGET,
    conditions::holding,
    indexes::{NODES_BY_CURRENT_CONFIG, NODES_BY_DESIRED_CONFIG},
    machine_config::{CachedConfig, Operator, kubelet_configs_of, may_be_selected, selected, target_ref},
    node::Node,
    rendering::Inputs,
};

#[derive(Clone)]
pub struct Snapshot {
    pub(super) pool: Arc<MachineConfigPool>,
    pub(super) operator: Operator,
    pub(super) selection: Selection,
    /// What is yet to be generated of what goes into the rendering.
    pub(super) ungenerated: Option<String>,
    /// Why the MachineConfigs of the ControllerConfig, or that of the KubeletConfig, may not be what they should be.
    pub(super) failing: Option<String>,
    /// The name of the target, by the spec; by the status if the spec has none.
    pub(super) target_name: Option<String>,
    /// The object of that name, as the cache has it.
    pub(super) present: Option<Arc<CachedConfig>>,
    /// The MachineConfigs whose names are those of rendered ones of the pool, by name.
    named: BTreeMap<String, Arc<CachedConfig>>,
    /// Those of them, and the target, that are watched as a whole.
    pub(super) whole: BTreeMap<String, Lookup<MachineConfig>>,
    /// The selected MachineConfigs in the order of the merge.
    pub(super) selected: Vec<Arc<CachedConfig>>,
    /// The rendered MachineConfigs of the pool, the newest first, each with whether a pool or a Node names it.
    pub(super) rendered: Vec<(Arc<CachedConfig>, bool)>,
    /// Why it is unknown what is in use.
    pub(super) unknown_use: Option<String>,
    /// How long a rendered MachineConfig that nothing names is kept.
    pub(super) rendered_retention: Duration,
    /// The name of the Node that this process runs on.
    pub(super) own_node: Option<String>,
    pub(super) members: Members,
    pub(super) etcd: Etcd,
    /// For spans.
    pub(super) traced: Traced,
    /// What is wrong with the pool, if no webhook has reviewed it.
    pub(super) errors: Vec<FieldError>,
}

/// What the pool selects.
#[derive(Clone)]
pub(super) enum Selection {
    /// The selector is empty.
    All,
    /// Nothing has the labels.
    Empty,
    /// What may be selected cannot be read.
    Unreadable(String),
    /// What is rendered.
    Inputs(Arc<Inputs>),
}

impl Snapshot {
    pub(super) fn take(stores: &Stores, key: &ObjectRef, settings: &PoolSettings) -> Option<Self> {
        let pool = stores.of::<MachineConfigPool>(TARGET).get(key)?;
        let configs = stores.of::<CachedConfig>(TARGET);
        let selected = selected(stores, &pool);
        let owned = owned(stores, &pool);
        let target_name = target_name(&pool);
        let present = target_name.as_deref().and_then(|target| configs.by_name("", target));
        let named = named(stores, &pool);
        let wanted = named.keys().chain(&target_name).cloned().collect::<BTreeSet<_>>();
        let read = |name: String| {
            let whole = stores.named::<MachineConfig>(&target_ref(&name), "");
            (!matches!(whole, Lookup::Pending)).then_some((name, whole))
        };
        let uses = owned.into_iter().map(|config| {
            let config_name = name(config.as_ref());
            let is_named = target_name.as_deref() == Some(config_name) || is_named(stores, config_name);
            (config, is_named)
        });
        let members = Members::of(stores, &pool);
        let traced = settings.traces.then(|| Traced::of(stores, &selected, members.claims.as_ref()));
        Some(Self {
            operator: Operator::of(stores),
            selection: selection(stores, &pool, &selected, settings.extensions.as_deref()),
            present,
            whole: wanted.into_iter().filter_map(read).collect(),
            named,
            selected,
            rendered: uses.collect(),
            unknown_use: unknown_use(stores),
            ungenerated: ungenerated(stores, &pool),
            failing: controller_config(stores).and_then(|object| failing(&object)).or_else(|| {
                // Before there is a target, nothing would be taken from nodes.
                target_name.as_ref().and_then(|_| refused_kubelet_config(stores, &pool))
            }),
            target_name,
            members,
            traced: traced.unwrap_or_default(),
            etcd: Etcd::of(stores, &pool),
            errors: pool.validate(),
            pool,
            rendered_retention: settings.rendered_retention,
            own_node: settings.own_node.clone(),
        })
    }
}

impl Snapshot {
    /// The object of a name that a rendered MachineConfig of the pool has, or of the target's.
    pub(super) fn by_name(&self, wanted: &str) -> Option<&Arc<CachedConfig>> {
        self.named.get(wanted).or_else(|| self.present.as_ref().filter(|present| name(present.as_ref()) == wanted))
    }

    /// The whole object, if it is needed.
    pub(super) fn whole(&self, config: Option<&str>) -> &Lookup<MachineConfig> {
        config.map_or(&Lookup::Missing, |config| self.whole.get(config).unwrap_or(&Lookup::Pending))
    }

    /// Whether the cache has the target.
    pub(super) fn has_target(&self) -> bool {
        self.present.is_some()
    }

    /// Why no Node may be given the target.
    pub(super) fn unusable_target(&self) -> Option<String> {
        let present = self.present.as_deref()?;
        let config = name(present);
        if is_deleting(present) {
            return Some(format!("MachineConfig {config} is being deleted"));
        }
        (!has_first_spec(present)).then(|| {
            format!("MachineConfig {config} was changed after it was rendered; delete it, and it is made again")
        })
    }

    /// What a pool is left with that cannot have what it selects.
    pub(super) fn consequence(&self) -> &'static str {
        if self.target_name.is_some() { "the target stays" } else { "there is no target yet" }
    }
}

/// The name of the target. `kubectl replace` takes it from the spec if the file does not have it: what the status has noted counts
/// then, or the next rendering would become the target whatever it does to nodes.
fn target_name(pool: &MachineConfigPool) -> Option<String> {
    let named = pool.spec.configuration.name.clone().filter(|target| !target.is_empty());
    named.or_else(|| noted_target(pool).map(str::to_owned))
}

/// The last target that was seen to exist.
pub(super) fn noted_target(pool: &MachineConfigPool) -> Option<&str> {
    let mut conditions = pool.status.iter().flat_map(|status| &status.conditions);
    let noted = conditions.find(|it| it.condition_type == RENDERED)?;
    Some(PoolTarget::of(&noted.message)?.name)
}

/// The rendered MachineConfigs that the pool controls, the newest first.
fn owned(stores: &Stores, pool: &MachineConfigPool) -> Vec<Arc<CachedConfig>> {
    let mut owned = stores.of::<CachedConfig>(TARGET).owned_by(uid(pool));
    owned.sort_by(|a, b| {
        created(b.as_ref()).cmp(&created(a.as_ref())).then_with(|| name(a.as_ref()).cmp(name(b.as_ref())))
    });
    owned
}

fn controller_config(stores: &Stores) -> Option<Arc<ControllerConfig>> {
    stores.of::<ControllerConfig>(TARGET).by_name("", CONTROLLER_CONFIG)
}

/// Why the ControllerConfig's MachineConfigs could not be generated, or will not be any more.
pub(super) fn failing(object: &ControllerConfig) -> Option<String> {
    let failing = holding(&object.status.as_ref()?.conditions, FAILING)?;
    Some(format!("ControllerConfig {}: {}", name(object), failing.message))
}

/// Why nothing can be made of the KubeletConfig of a pool as it is now. Without it, or with what was made of it before, nodes would
/// get a mixture that nobody has asked for.
fn refused_kubelet_config(stores: &Stores, pool: &MachineConfigPool) -> Option<String> {
    let unreadable = stores.of::<KubeletConfig>(TARGET).unreadable();
    let is_its = |object: &&Arc<Unreadable>| {
        let generated = stores.of::<CachedConfig>(TARGET).by_name("", &kubelet::name(name(pool)));
        generated.is_some_and(|generated| controller_uid(generated.as_ref()) == Some(object.uid()))
    };
    if let Some(object) = unreadable.iter().find(is_its) {
        return Some(object.describe::<KubeletConfig>());
    }
    // Others that select the pool are refused as well, and the first one has it.
    let first = kubelet_configs_of(stores, pool).into_iter().find(|object| !is_deleting(object.as_ref()))?;
    let text = refusal(&first)?;
    // Its status is one for all of its pools: what is wrong may be another pool's trouble.
    let pools = stores.of::<MachineConfigPool>(TARGET).all();
    let selector = first.spec.machine_config_pool_selector.as_ref();
    let has_others = pools.iter().filter(|it| selector::matches(selector, it.metadata.labels.as_ref())).count() > 1;
    let is_of_all = !first.validate().is_empty() || kubelet::check_pool(name(pool), &pool.spec).is_err();
    (is_of_all || !has_others).then(|| format!("KubeletConfig {}: {text}", name(first.as_ref())))
}

/// Why a KubeletConfig is not accepted, by its status.
pub(super) fn refusal(object: &KubeletConfig) -> Option<&str> {
    let accepted = object.status.as_ref()?.conditions.iter().find(|it| it.condition_type == ACCEPTED)?;
    (accepted.status == ConditionStatus::False).then_some(accepted.message.as_str())
}

/// Whether some of the ControllerConfig's MachineConfigs may be written already, and others not yet.
pub(super) fn is_running(object: &ControllerConfig) -> bool {
    object.status.as_ref().is_some_and(|status| holding(&status.conditions, RUNNING).is_some())
}

/// A ControllerConfig or KubeletConfig of which no MachineConfig has been generated in its present form.
fn ungenerated(stores: &Stores, pool: &MachineConfigPool) -> Option<String> {
    let is_ahead = |object: &Arc<ControllerConfig>| {
        let observed = object.status.as_ref().map(|status| status.observed_generation);
        object.metadata.generation.is_some_and(|generation| observed != Some(generation))
    };
    if let Some(object) = controller_config(stores).filter(|object| is_ahead(object) || is_running(object)) {
        let name = name(object.as_ref());
        return Some(format!(
            "ControllerConfig {name} or its templates have changed, and its MachineConfigs are yet to be generated"
        ));
    }
    let mut configs = kubelet_configs_of(stores, pool).into_iter().filter(|config| !is_deleting(config.as_ref()));
    let is_behind = |config: &KubeletConfig| {
        let observed = config.status.as_ref().map(|status| status.observed_generation);
        observed != config.metadata.generation
    };
    let behind = configs.find(|config| is_behind(config))?;
    Some(format!("KubeletConfig {} has changed, and its MachineConfig is yet to be generated", name(behind.as_ref())))
}

fn selection(
    stores: &Stores,
    pool: &MachineConfigPool,
    selected: &[Arc<CachedConfig>],
    extensions: Option<&[String]>,
) -> Selection {
    if selector::is_empty(pool.spec.machine_config_selector.as_ref()) {
        return Selection::All;
    }
    if let Some(text) = unreadable_input(stores, pool) {
        return Selection::Unreadable(text);
    }
    if selected.is_empty() {
        return Selection::Empty;
    }
    let controller_config = controller_config(stores);
    Selection::Inputs(Inputs::new(selected.to_vec(), controller_config.as_deref(), extensions).into())
}

/// The MachineConfigs whose names are those of rendered ones of the pool.
fn named(stores: &Stores, pool: &MachineConfigPool) -> BTreeMap<String, Arc<CachedConfig>> {
    let prefix = format!("rendered-{}-", name(pool));
    let all = stores.of::<CachedConfig>(TARGET).all().into_iter();
    let named = all.filter(|config| config.spec.is_none() && name(config.as_ref()).starts_with(&prefix));
    named.map(|config| (name(config.as_ref()).to_owned(), config)).collect()
}

/// What may be an input of the pool, and cannot be read.
fn unreadable_input(stores: &Stores, pool: &MachineConfigPool) -> Option<String> {
    let configs = stores.of::<CachedConfig>(TARGET).unreadable();
    let config = configs.iter().find(|object| may_be_selected(object, pool));
    let controller_configs = stores.of::<ControllerConfig>(TARGET).unreadable();
    let controller_config = controller_configs.iter().find(|object| object.name() == CONTROLLER_CONFIG);
    let config = config.map(|object| object.describe::<MachineConfig>());
    config.or_else(|| controller_config.map(|object| object.describe::<ControllerConfig>()))
}

/// Whether a MachineConfig is one that we have created for the pool, and whose spec has not been changed.
pub(super) fn is_as_created(config: &CachedConfig, pool: &MachineConfigPool) -> bool {
    controller_uid(config) == Some(uid(pool))
        && has_first_spec(config)
        && annotation(config, GENERATED_BY).is_some()
        && annotation(config, RENDER_INPUTS).is_some()
}

/// Whether the spec of a MachineConfig is the one that it was created with. Without a subresource for a status, each change of it makes
/// another generation.
fn has_first_spec(config: &CachedConfig) -> bool {
    config.metadata.generation.is_none_or(|generation| generation == 1)
}

fn is_named(stores: &Stores, config: &str) -> bool {
    let named_by = |pool: &Arc<MachineConfigPool>| {
        let target = pool.spec.configuration.name.as_deref();
        let done = pool.status.as_ref().and_then(|status| status.configuration.name.as_deref());
        target == Some(config) || done == Some(config)
    };
    let nodes = stores.of::<Node>(TARGET);
    nodes.count(NODES_BY_CURRENT_CONFIG, config) > 0
        || nodes.count(NODES_BY_DESIRED_CONFIG, config) > 0
        || stores.of::<MachineConfigPool>(TARGET).all().iter().any(named_by)
}

/// What cannot be read may name anything.
fn unknown_use(stores: &Stores) -> Option<String> {
    let pools = stores.of::<MachineConfigPool>(TARGET).unreadable();
    let nodes = stores.of::<Node>(TARGET).unreadable();
    let pool = pools.first().map(|pool| pool.describe::<MachineConfigPool>());
    pool.or_else(|| nodes.first().map(|node| node.describe::<Node>()))
}
