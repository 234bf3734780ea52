//! `KubeletConfig`: changes fields of the kubelet's configuration on the nodes of the pools that it selects.
//!
//! For each pool it makes a MachineConfig, `99-<pool>-generated-kubelet`, with the whole file: what the pool's other MachineConfigs
//! merge to, and the user's fields over it.
//!
//! # Guarantees
//! * Of several KubeletConfigs that select a pool, the oldest has it. The others say which one that is.
//! * While the inputs are the same, the generated MachineConfig is, in any release. What users change in it is undone.
//! * What cannot be generated leaves the MachineConfig as it is, and the status says why.
//! * It writes to no MachineConfig that another owner controls.
//!
//! # Caveats
//! * There is no finalizer: the generated MachineConfigs go with their owner, by garbage collection.

mod call;
mod decision;
mod memory;
mod plan;
mod refusal;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;

use nodewright_api::machine_config::{KubeletConfig, MachineConfigPool};
use nodewright_runtime::{
    cache::Stores,
    controller::{Controller, Watches},
    object::ObjectRef,
};

pub(crate) use self::call::perform;
use self::{
    call::Generate,
    memory::{Context, Note, Plan},
    snapshot::Snapshot,
};
use crate::shared::{TARGET, machine_config::CachedConfig, wake_every};

/// The controller of KubeletConfigs.
#[derive(Debug)]
pub struct KubeletConfigController {
    /// The extensions of the operating system that a MachineConfig may ask for. `None`: any.
    pub extensions: Option<Vec<String>>,
}

impl Controller for KubeletConfigController {
    const NAME: &'static str = "kubelet-config";
    type Primary = KubeletConfig;
    type Snapshot = Snapshot;
    type Effect = Generate;
    type Note = Note;

    fn watch(&self, on: &mut Watches<'_>) {
        // Another one may become the first of a pool. There are few: about one for each pool.
        on.primary::<KubeletConfig>(TARGET, "").wakes(|change, stores, wake| {
            let spec = |object: &KubeletConfig| (object.spec.clone(), object.metadata.deletion_timestamp.is_some());
            if change.differs_in(spec) {
                wake_every::<KubeletConfig>(stores, wake);
            }
        });
        on.kind::<MachineConfigPool>(TARGET, "")
            .wakes_unreadable(|_, stores, wake| wake_every::<KubeletConfig>(stores, wake))
            .wakes(|change, stores, wake| {
                let selected = |pool: &MachineConfigPool| {
                    let spec = &pool.spec;
                    (pool.metadata.labels.clone(), spec.machine_config_selector.clone(), spec.node_selector.clone())
                };
                if change.differs_in(selected) {
                    wake_every::<KubeletConfig>(stores, wake);
                }
            });
        on.kind::<CachedConfig>(TARGET, "")
            .wakes_unreadable(|_, stores, wake| wake_every::<KubeletConfig>(stores, wake))
            .wakes(|change, stores, wake| {
                if change.sides().any(|config| config.spec.is_some()) {
                    wake_every::<KubeletConfig>(stores, wake);
                }
            });
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Snapshot> {
        Snapshot::take(stores, key, self.extensions.as_deref())
    }

    fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
        plan::plan(context, snapshot)
    }
}
