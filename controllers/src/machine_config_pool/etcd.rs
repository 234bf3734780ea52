//! Whether etcd can lose a member: its Pods run on the Nodes of the control plane.

use std::collections::BTreeMap;

use nodewright_api::{machine_config::MachineConfigPool, selector};
use nodewright_runtime::{
    cache::Stores,
    object::{name, namespace},
    scoped_watch::ScopedWatch,
};

use crate::shared::{TARGET, drain::BudgetView, pools::MASTER};

/// Where OpenShift's etcd runs, and what guards its quorum.
const NAMESPACE: &str = "openshift-etcd";
/// The labels of kubeadm's etcd, of which the first one is its own, and its namespace.
const KUBEADM: [(&str, &str); 2] = [("component", "etcd"), ("tier", "control-plane")];
const KUBEADM_NAMESPACE: &str = "kube-system";
/// The reason of a budget of which the disruption controller cannot count the Pods.
const SYNC_FAILED: &str = "SyncFailed";
/// The field selector of all disruption budgets.
const ALL: &str = "";

/// Whether a Node of a pool may be chosen, by etcd's disruption budgets.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Etcd {
    /// It may: the pool is not the control plane's, or there is room, or there is no such budget.
    Room,
    /// The budgets have yet to be read.
    Pending,
    /// Why not.
    Full(String),
}

impl Etcd {
    pub(super) fn of(stores: &Stores, pool: &MachineConfigPool) -> Self {
        if name(pool) != MASTER {
            return Self::Room;
        }
        let Some(budgets) = stores.seen::<BudgetView>(TARGET, ALL) else {
            let failed = stores.unseen::<BudgetView>(TARGET, ALL);
            return failed
                .map_or(Self::Pending, |why| Self::Full(format!("etcd's disruption budget cannot be read: {why}")));
        };
        let mut full: Vec<_> = budgets.all().into_iter().filter(|it| is_of_etcd(it) && !has_room(it)).collect();
        full.sort_by_cached_key(|budget| name(budget.as_ref()).to_owned());
        let text = |budget: &BudgetView| {
            format!("disruption budget {}/{} of etcd allows no disruption", namespace(budget), name(budget))
        };
        full.first().map_or(Self::Room, |budget| Self::Full(text(budget)))
    }

    /// The watch that shows it.
    pub(super) fn watch() -> ScopedWatch {
        ScopedWatch::at::<BudgetView>(TARGET, ALL)
    }
}

/// Whether a budget is for the Pods of etcd.
fn is_of_etcd(budget: &BudgetView) -> bool {
    let selects = |labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        selector::matches(budget.spec.selector.as_ref(), Some(&labels.collect::<BTreeMap<_, _>>()))
    };
    // One for all Pods of the namespace says nothing about etcd.
    let is_kubeadm = || selects(&KUBEADM) && !selects(&KUBEADM[1..]);
    namespace(budget) == NAMESPACE || namespace(budget) == KUBEADM_NAMESPACE && is_kubeadm()
}

/// A status that is older than the spec shows nothing. Of mirror Pods a budget may be unable to tell how many there should be: it then
/// never allows anything, and reports that. A drain leaves them.
fn has_room(budget: &BudgetView) -> bool {
    if budget.status.conditions.iter().any(|condition| condition.reason == SYNC_FAILED) {
        return true;
    }
    let is_current =
        budget.metadata.generation.is_none_or(|generation| budget.status.observed_generation >= generation);
    is_current && budget.status.disruptions_allowed > 0
}
