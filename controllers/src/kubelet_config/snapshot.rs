//! The snapshot of a KubeletConfig.

use std::sync::Arc;

use nodewright_api::{
    field,
    machine_config::{KubeletConfig, MachineConfig, MachineConfigPool, MachineConfigSpec},
    selector,
};
use nodewright_render::kubelet;
use nodewright_runtime::{
    cache::Stores,
    object::{ObjectRef, is_deleting, name, uid},
    offload::off_worker,
};

use crate::shared::{
    TARGET,
    generated::{conflict, is_as_generated},
    machine_config::{CachedConfig, Operator, kubelet_configs_of, may_be_selected, selected},
    renderer::{Inputs, Renderer},
};

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) object: Arc<KubeletConfig>,
    pub(super) operator: Operator,
    /// The pools that it selects, by name.
    pub(super) pools: Vec<Part>,
    /// What it has generated for pools that are not its own.
    pub(super) stale: Vec<Arc<CachedConfig>>,
    /// Why it is unknown which pools it selects.
    pub(super) unreadable: Option<String>,
}

/// A pool, and what is to be done for it.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) pool: String,
    pub(super) wanted: Result<Wanted, Problem>,
    /// The MachineConfig of the generated name.
    pub(super) existing: Option<Arc<CachedConfig>>,
}

#[derive(Clone, Debug)]
pub(super) enum Wanted {
    /// What exists, and nobody has changed.
    Present,
    /// Another content.
    Content { spec: MachineConfigSpec, inputs: String },
}

/// Why nothing can be generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// For users: what to correct.
    Refused(String),
    /// Another KubeletConfig has the pool.
    Taken(String),
}

impl Snapshot {
    pub(super) fn take(
        stores: &Stores,
        key: &ObjectRef,
        renderer: &Renderer,
        extensions: Option<&[String]>,
    ) -> Option<Self> {
        let object = stores.of::<KubeletConfig>(TARGET).get(key)?;
        let chosen = |pool: &Arc<MachineConfigPool>| {
            let selector = object.spec.machine_config_pool_selector.as_ref();
            !selector::is_empty(selector)
                && selector::matches(selector, pool.metadata.labels.as_ref())
                && !is_deleting(pool.as_ref())
        };
        let mut pools = stores.of::<MachineConfigPool>(TARGET).all();
        pools.retain(chosen);
        pools.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
        let parts: Vec<_> = pools.iter().map(|pool| part(stores, &object, pool, renderer, extensions)).collect();
        let is_own = |config: &CachedConfig| {
            let mut own = parts.iter().filter(|part| !matches!(part.wanted, Err(Problem::Taken(_))));
            own.any(|part| kubelet::name(&part.pool) == name(config))
        };
        let mut stale = stores.of::<CachedConfig>(TARGET).owned_by(uid(object.as_ref()));
        stale.retain(|config| !is_own(config) && !is_deleting(config.as_ref()));
        let unreadable = stores.of::<MachineConfigPool>(TARGET).unreadable();
        let unreadable = unreadable.first().map(|pool| pool.describe::<MachineConfigPool>());
        Some(Self { operator: Operator::of(stores), pools: parts, stale, unreadable, object })
    }

    /// Whether a MachineConfig has to be made or changed.
    pub(super) fn is_generating(&self) -> bool {
        self.pools.iter().any(|part| matches!(part.wanted, Ok(Wanted::Content { .. })))
    }
}

fn part(
    stores: &Stores,
    object: &Arc<KubeletConfig>,
    pool: &MachineConfigPool,
    renderer: &Renderer,
    extensions: Option<&[String]>,
) -> Part {
    let existing = stores.of::<CachedConfig>(TARGET).by_name("", &kubelet::name(name(pool)));
    let wanted = wanted(stores, object, pool, existing.as_deref(), renderer, extensions);
    Part { pool: name(pool).to_owned(), wanted, existing }
}

fn wanted(
    stores: &Stores,
    object: &Arc<KubeletConfig>,
    pool: &MachineConfigPool,
    existing: Option<&CachedConfig>,
    renderer: &Renderer,
    extensions: Option<&[String]>,
) -> Result<Wanted, Problem> {
    let refused = |text: String| Problem::Refused(text);
    let first = kubelet_configs_of(stores, pool).into_iter().find(|other| !is_deleting(other.as_ref()));
    if let Some(first) = first.filter(|first| uid(first.as_ref()) != uid(object.as_ref())) {
        return Err(Problem::Taken(name(first.as_ref()).to_owned()));
    }
    kubelet::check_pool(name(pool), &pool.spec).map_err(|error| refused(error.to_string()))?;
    let generated = kubelet::name(name(pool));
    if let Some(text) = existing.and_then(|existing| conflict(existing, object.as_ref())) {
        return Err(refused(text));
    }
    let unreadable = stores.of::<CachedConfig>(TARGET).unreadable();
    if let Some(config) = unreadable.iter().find(|config| may_be_selected(config, pool)) {
        return Err(refused(config.describe::<MachineConfig>()));
    }
    let mut configs = selected(stores, pool);
    configs.retain(|config| name(config.as_ref()) != generated);
    let purpose = format!("kubelet/{}", name(pool));
    let base = Inputs::new(&purpose, &configs, None, extensions);
    let digest = kubelet::digest(&renderer.digest(&base), name(pool), &pool.spec, &object.spec);
    if existing.is_some_and(|existing| is_as_generated(existing, name(pool), &digest)) {
        renderer.settle(&purpose);
        return Ok(Wanted::Present);
    }
    let outcome = renderer.render(&base);
    let merged = outcome.as_ref().as_ref().map_err(|errors| {
        let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
        refused(texts.join("; "))
    })?;
    let inputs: Vec<_> = configs.iter().filter_map(|config| config.input()).collect();
    off_worker(|| kubelet::check_order(name(pool), &inputs, &merged.rendered))
        .map_err(|error| refused(error.to_string()))?;
    let spec = off_worker(|| kubelet::generate(name(pool), &pool.spec, &merged.rendered.spec.config, &object.spec));
    let spec = spec.map_err(|errors| refused(field::summary(&errors)))?;
    Ok(Wanted::Content { spec, inputs: digest })
}
