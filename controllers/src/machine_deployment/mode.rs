//! Whether Machines of former templates are replaced now, and how: not while the deployment is paused.

use nodewright_api::StrategyType;

use super::snapshot::Snapshot;
use crate::shared::pause;

/// What becomes of Machines of former templates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// They are replaced one by one.
    Replace,
    /// All of them are gone before the first new one is created.
    Recreate,
    /// They are updated in place.
    Update,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RolloutMode {
    /// Whether Machines of former templates are replaced or updated. Otherwise the sets are only scaled.
    pub(super) rolls: bool,
    pub(super) method: Method,
    /// Whether the rollout is so young that no Machine of a former template goes yet.
    pub(super) settles: bool,
}

impl RolloutMode {
    /// A paused deployment only scales, as does one with updates in place and without Nodes: its Machines must not be replaced.
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let deployment = snapshot.deployment.as_ref();
        let strategy = deployment.spec.strategy.effective_type();
        let in_place = strategy == StrategyType::InPlaceUpdate;
        let rolls = pause::permits_rollout(deployment) && (!in_place || snapshot.has_target);
        let method = match strategy {
            StrategyType::Recreate => Method::Recreate,
            StrategyType::InPlaceUpdate => Method::Update,
            StrategyType::Unset | StrategyType::RollingUpdate | StrategyType::Other(_) => Method::Replace,
        };
        Self { rolls, method, settles: false }
    }

    /// Whether Machines are updated in place now.
    pub(super) fn updates(self) -> bool {
        self.rolls && self.method == Method::Update
    }
}

/// Whether a set of the present template is created.
pub(super) fn may_create(snapshot: &Snapshot, mode: RolloutMode) -> bool {
    match mode {
        // The very first set replaces nothing.
        RolloutMode { rolls: false, .. } => snapshot.sets.is_empty() && pause::permits_rollout(&snapshot.deployment),
        RolloutMode { method: Method::Recreate, .. } => snapshot.sets.iter().all(|view| view.size().is_gone()),
        RolloutMode { .. } => true,
    }
}
