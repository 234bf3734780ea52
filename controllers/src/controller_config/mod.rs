//! `ControllerConfig`: what a cluster says to templates. This controller makes MachineConfigs of a folder of them.
//!
//! ```text
//! folder of --machine-config-templates ──┐
//! ControllerConfig ──────────────────────┼─ call ─▶ nodewright_render::templates ─▶ MachineConfigs, or what is wrong where
//! Secret of spec.pullSecret ─────────────┘
//! ```
//!
//! # Guarantees
//! * While the templates of a MachineConfig and the ControllerConfig are the same, it is, in any release. What users change in it is
//!   undone.
//! * What cannot be made leaves all MachineConfigs as they are, and the status says why, with file and line. A folder that is
//!   missing or empty is such a failure: nothing is deleted. So is a ControllerConfig that a webhook would refuse: the status has
//!   path and rule, and its pools hold their targets.
//! * What has been made stays while a pool selects it: a finalizer keeps the ControllerConfig, which owns it.
//! * Of Secrets it requests the one that `spec.pullSecret` names alone, and only one of registries' credentials. Without it, templates
//!   that do not print it are rendered.
//! * It writes to no MachineConfig that another owner controls.
//! * While machine-config-operator runs, nothing is written.
//!
//! # Caveats
//! * Of several ControllerConfigs only `machine-config-controller` counts.
//! * The folder is read every ten seconds. Another file counts that much later.

mod call;
mod certificates;
mod decision;
mod folder;
mod memory;
mod plan;
mod pull_secret;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;

use std::{path::Path, sync::Arc};

use nodewright_api::machine_config::{ControllerConfig, MachineConfigPool};
use nodewright_runtime::{
    cache::Stores,
    controller::{Controller, Watches},
    object::{ObjectRef, is_deleting},
};

pub(crate) use self::call::Generator;
use self::{
    call::Generate,
    memory::{Context, Note, Plan},
    snapshot::Snapshot,
};
pub use self::{folder::read as read_templates, pull_secret::content as pull_secret_content};
use crate::shared::{TARGET, machine_config::CachedConfig, wake_every};

/// The controller of the ControllerConfig.
#[derive(Debug)]
pub struct ControllerConfigController {
    /// The folder of the templates. Without one nothing is generated.
    pub templates: Option<Arc<Path>>,
}

impl Controller for ControllerConfigController {
    const NAME: &'static str = "controller-config";
    type Primary = ControllerConfig;
    type Snapshot = Snapshot;
    type Effect = Generate;
    type Note = Note;

    fn watch(&self, on: &mut Watches<'_>) {
        on.primary::<ControllerConfig>(TARGET, "");
        // One that is to be generated may have an owner, or be unreadable, and then be gone.
        on.kind::<CachedConfig>(TARGET, "")
            .wakes_unreadable(|_, stores, wake| wake_every::<ControllerConfig>(stores, wake))
            .wakes(|change, stores, wake| {
                if change.sides().any(|config| config.spec.is_some()) {
                    wake_every::<ControllerConfig>(stores, wake);
                }
            });
        on.kind::<MachineConfigPool>(TARGET, "")
            .wakes_unreadable(|_, stores, wake| wake_every::<ControllerConfig>(stores, wake))
            .wakes(|change, stores, wake| {
                if change.differs_in(|pool| (pool.spec.machine_config_selector.clone(), is_deleting(pool))) {
                    wake_every::<ControllerConfig>(stores, wake);
                }
            });
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Snapshot> {
        Snapshot::take(stores, key, self.templates.clone())
    }

    fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
        plan::plan(context, snapshot)
    }
}
