//! What keeps a KubeletConfig from a part in a pool that it selects.

use std::sync::Arc;

use nodewright_api::machine_config::{KubeletConfig, MachineConfig, MachineConfigPool};
use nodewright_render::kubelet;
use nodewright_runtime::{
    cache::Stores,
    object::{is_deleting, name, uid},
};

use crate::shared::{
    TARGET,
    generated::conflict,
    machine_config::{CachedConfig, kubelet_configs_of, may_be_selected},
};

/// Why nothing can be generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// For users: what to correct.
    Refused(String),
    /// Another KubeletConfig has the pool.
    Taken(String),
}

/// The first of: an older KubeletConfig has the pool, the pool cannot have one, a foreign MachineConfig has the name of the generated
/// one, a MachineConfig of the pool cannot be read. `existing`: the MachineConfig of the generated name.
pub(super) fn refusal(
    stores: &Stores,
    object: &Arc<KubeletConfig>,
    pool: &Arc<MachineConfigPool>,
    existing: Option<&CachedConfig>,
) -> Option<Refusal> {
    let oldest = kubelet_configs_of(stores, pool).into_iter().find(|other| !is_deleting(other.as_ref()));
    if let Some(oldest) = oldest.filter(|oldest| uid(oldest.as_ref()) != uid(object.as_ref())) {
        return Some(Refusal::Taken(name(oldest.as_ref()).to_owned()));
    }
    let unreadable = || {
        let all = stores.of::<CachedConfig>(TARGET).unreadable();
        all.iter().find(|config| may_be_selected(config, pool)).map(|config| config.describe::<MachineConfig>())
    };
    let wrong_pool = kubelet::check_pool(name(pool.as_ref()), &pool.spec).err().map(|error| error.to_string());
    let foreign = || existing.and_then(|existing| conflict(existing, object.as_ref()));
    wrong_pool.or_else(foreign).or_else(unreadable).map(Refusal::Refused)
}
