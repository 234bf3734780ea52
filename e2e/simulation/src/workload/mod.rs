//! The pods of a run, as data, and the controllers that keep them: what kube-controller-manager and a CSI driver do for the
//! drain of a Node.
//!
//! | file | content |
//! |---|---|
//! | `keeper` | the task that reconciles all of it after each change |
//! | `pods` | owners that replace pods, a DaemonSet, mirror pods, the scheduler of these pods, the pods of deleted Nodes |
//! | `volumes` | the attach-detach controller |
//! | `budgets` | the disruption controller |
//! | `objects` | the objects in JSON |
//!
//! The kubelets of `nodewright_e2e_cloud` run and end the pods.
//!
//! # Caveats
//! * The controllers know the state of the API server at once, and write past it: no outage stops them. What is late or lost for
//!   managers is decided by the faults of a run.
//! * A pod with a volume is bound when its volume is free. A real scheduler binds it before, and its kubelet waits.

mod budgets;
mod keeper;
mod objects;
mod pods;
mod volumes;

use serde::{Deserialize, Serialize};

pub use self::keeper::Keeper;
pub(super) use self::objects::PROVIDER;

/// The pods of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Groups of equal pods.
    pub apps: Vec<App>,
    /// Whether each Node has a mirror pod, and a pod of a DaemonSet with a volume of the provider. A drain leaves them.
    #[serde(default)]
    pub daemons: bool,
}

/// Equal pods, whose owner replaces those that go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct App {
    /// The number of pods.
    pub pods: u32,
    /// The volume that each pod has. The owner of such pods is a `StatefulSet`, otherwise a `ReplicaSet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<Volume>,
    /// The disruption budgets that select the pods. The API server evicts no pod that two of them select.
    #[serde(default)]
    pub budgets: Vec<Budget>,
    /// How a pod ends.
    #[serde(default)]
    pub ends: Ending,
}

/// The volumes of an app.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    /// Where they are.
    pub storage: Storage,
    /// The seconds from the end of a pod until its volume is detached. Never while the Node exists, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detaches: Option<u32>,
}

/// Where a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Storage {
    /// At the provider of the machines, which attaches it.
    Provider,
    /// At another provider, which attaches it.
    Other,
    /// In the network: it is not attached.
    Network,
}

/// A disruption budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Budget {
    /// So many of the wanted pods may be unavailable.
    MaxUnavailable(u32),
    /// So many pods have to be available.
    MinAvailable(u32),
}

impl Budget {
    /// How many pods have to be healthy of those that the owner wants.
    pub(super) fn desired(self, wanted: u32) -> u32 {
        match self {
            Self::MaxUnavailable(unavailable) => wanted.saturating_sub(unavailable),
            Self::MinAvailable(available) => available,
        }
    }
}

/// A disruption budget of a workload, as its author meant it.
pub(super) struct Truth {
    pub(super) name: String,
    pub(super) app: String,
    pub(super) budget: Budget,
    /// How many pods the owner wants.
    pub(super) wanted: u32,
}

impl Workload {
    /// All disruption budgets.
    pub(super) fn budgets(&self) -> Vec<Truth> {
        let of = |(number, app): (usize, &App)| {
            let (app_name, wanted) = (objects::app_name(number), app.pods);
            let named = move |(place, budget): (usize, &Budget)| {
                let (name, app) = (objects::budget_name(&app_name, place), app_name.clone());
                Truth { name, app, budget: *budget, wanted }
            };
            app.budgets.iter().enumerate().map(named).collect::<Vec<_>>()
        };
        self.apps.iter().enumerate().flat_map(of).collect()
    }
}

/// How a pod ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// After a second.
    #[default]
    Soon,
    /// Its kubelet kills it at the end of its grace period.
    Killed,
    /// Never: only a deletion without a grace period removes it.
    Never,
}
