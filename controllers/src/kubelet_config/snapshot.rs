//! The snapshot of a KubeletConfig.

use std::sync::Arc;

use nodewright_api::{
    annotations::RENDER_INPUTS,
    machine_config::{KubeletConfig, MachineConfigPool},
    selector,
};
use nodewright_render::kubelet;
use nodewright_runtime::{
    cache::Stores,
    object::{ObjectRef, annotation, is_deleting, name, uid},
};

use super::{
    call::Generate,
    refusal::{Refusal, refusal},
};
use crate::shared::{
    TARGET,
    generated::is_as_generated,
    machine_config::{CachedConfig, Operator, selected},
    rendering::Inputs,
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
    pub(super) pool: Arc<MachineConfigPool>,
    /// What makes its content; else why nothing can be made.
    pub(super) content: Result<Generate, Refusal>,
    /// The MachineConfig of the generated name.
    pub(super) existing: Option<Arc<CachedConfig>>,
}

impl Snapshot {
    pub(super) fn take(stores: &Stores, key: &ObjectRef, extensions: Option<&[String]>) -> Option<Self> {
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
        let parts: Vec<_> = pools.iter().map(|pool| part(stores, &object, pool, extensions)).collect();
        let is_own = |config: &CachedConfig| {
            let mut own = parts.iter().filter(|part| !matches!(part.content, Err(Refusal::Taken(_))));
            own.any(|part| kubelet::name(name(part.pool.as_ref())) == name(config))
        };
        let mut stale = stores.of::<CachedConfig>(TARGET).owned_by(uid(object.as_ref()));
        stale.retain(|config| !is_own(config) && !is_deleting(config.as_ref()));
        let unreadable = stores.of::<MachineConfigPool>(TARGET).unreadable();
        let unreadable = unreadable.first().map(|pool| pool.describe::<MachineConfigPool>());
        Some(Self { operator: Operator::of(stores), pools: parts, stale, unreadable, object })
    }
}

fn part(
    stores: &Stores,
    object: &Arc<KubeletConfig>,
    pool: &Arc<MachineConfigPool>,
    extensions: Option<&[String]>,
) -> Part {
    let existing = stores.of::<CachedConfig>(TARGET).by_name("", &kubelet::name(name(pool.as_ref())));
    let content = content(stores, object, pool, existing.as_deref(), extensions);
    Part { pool: pool.clone(), content, existing }
}

fn content(
    stores: &Stores,
    object: &Arc<KubeletConfig>,
    pool: &Arc<MachineConfigPool>,
    existing: Option<&CachedConfig>,
    extensions: Option<&[String]>,
) -> Result<Generate, Refusal> {
    if let Some(found) = refusal(stores, object, pool, existing) {
        return Err(found);
    }
    let pool_name = name(pool.as_ref());
    let generated = kubelet::name(pool_name);
    let mut configs = selected(stores, pool);
    configs.retain(|config| name(config.as_ref()) != generated);
    let base = Inputs::new(configs, None, extensions).into();
    let present = existing.and_then(|existing| {
        let digest = annotation(existing, RENDER_INPUTS)?;
        is_as_generated(existing, pool_name, digest).then(|| digest.to_owned())
    });
    Ok(Generate { object: object.clone(), pool: pool.clone(), base, present, digest: None })
}
