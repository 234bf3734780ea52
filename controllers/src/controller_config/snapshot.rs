//! The snapshot of a ControllerConfig.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use nodewright_api::{
    machine_config::{ControllerConfig, MachineConfig, MachineConfigPool},
    selector,
};
use nodewright_runtime::{
    cache::Stores,
    object::{ObjectRef, is_deleting, name, uid},
};

use super::pull_secret::PullSecret;
use crate::shared::{
    TARGET,
    machine_config::{CachedConfig, Operator, may_be_selected},
};

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) object: Arc<ControllerConfig>,
    pub(super) operator: Operator,
    /// All MachineConfigs that are not rendered, by name.
    pub(super) configs: BTreeMap<String, Arc<CachedConfig>>,
    /// MachineConfigs that cannot be read, by name: why.
    pub(super) unreadable: BTreeMap<String, String>,
    /// What was generated of the object.
    pub(super) owned: Vec<Arc<CachedConfig>>,
    /// Who needs what was generated.
    pub(super) needed: Option<String>,
    /// The folder of the templates. Without one nothing is generated.
    pub(super) templates: Option<Arc<Path>>,
    /// What templates may print. None before it has been read.
    pub(super) pull_secret: Option<PullSecret>,
}

impl Snapshot {
    pub(super) fn take(stores: &Stores, key: &ObjectRef, templates: Option<Arc<Path>>) -> Option<Self> {
        let object = stores.of::<ControllerConfig>(TARGET).get(key)?;
        let configs = stores.of::<CachedConfig>(TARGET);
        let mut owned = configs.owned_by(uid(object.as_ref()));
        owned.retain(|config| !is_deleting(config.as_ref()));
        owned.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
        let all = configs.all().into_iter().filter(|config| config.spec.is_some());
        let unreadable = configs.unreadable();
        let unreadable = unreadable.iter().map(|it| (it.name().to_owned(), it.describe::<MachineConfig>()));
        Some(Self {
            operator: Operator::of(stores),
            configs: all.map(|config| (name(config.as_ref()).to_owned(), config)).collect(),
            unreadable: unreadable.collect(),
            needed: needed(stores, &object, &owned),
            pull_secret: PullSecret::of(stores, &object.spec),
            owned,
            object,
            templates,
        })
    }
}

/// A pool that selects one of these MachineConfigs, or may, or may select another one that was generated and cannot be read.
fn needed(stores: &Stores, object: &ControllerConfig, owned: &[Arc<CachedConfig>]) -> Option<String> {
    let pools = stores.of::<MachineConfigPool>(TARGET);
    let mut unreadable = stores.of::<CachedConfig>(TARGET).unreadable();
    unreadable.retain(|config| config.may_be_controlled_by(uid(object)));
    if let Some(pool) = pools.unreadable().first()
        && !(owned.is_empty() && unreadable.is_empty())
    {
        return Some(pool.describe::<MachineConfigPool>());
    }
    let mut pools = pools.all();
    pools.retain(|pool| !is_deleting(pool.as_ref()));
    pools.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
    pools.iter().find_map(|pool| {
        if let Some(config) = unreadable.iter().find(|config| may_be_selected(config, pool)) {
            let config = config.describe::<MachineConfig>();
            return Some(format!("MachineConfigPool {} may select what cannot be read: {config}", name(pool.as_ref())));
        }
        let selector = pool.spec.machine_config_selector.as_ref();
        let selects = |config: &&Arc<CachedConfig>| {
            !selector::is_empty(selector) && selector::matches(selector, config.metadata.labels.as_ref())
        };
        let config = owned.iter().find(selects)?;
        Some(format!("MachineConfigPool {} selects MachineConfig {}", name(pool.as_ref()), name(config.as_ref())))
    })
}
