//! Why a disruption budget refuses an eviction.

use nodewright_api::selector;
use nodewright_runtime::object::{name, namespace};

use super::{
    Drain, PodView,
    view::{BudgetStatusView, BudgetView},
};

/// What the disruption budgets say about the eviction of a Pod.
pub(super) enum BudgetState<'a> {
    /// They are not known, or none selects the Pod: only the API server knows why it refuses.
    Unknown,
    /// The API server evicts no Pod that several budgets select.
    Several(Vec<&'a str>),
    /// The eviction may succeed now.
    Room,
    /// The status of the budget is older than its spec.
    Stale(&'a str),
    /// The budget allows no disruption although all its Pods are healthy: it will never allow one.
    Never(&'a BudgetView),
    /// The budget allows no disruption now.
    Full(&'a BudgetView),
    /// The same, and the Pod is not ready, so that its going would disrupt nothing; but the budget does not yet allow it.
    Unready(&'a BudgetView),
}

impl Drain<'_> {
    /// The budgets that select a Pod.
    pub(super) fn budgets_of(&self, pod: &PodView) -> Vec<&BudgetView> {
        let selects = |budget: &BudgetView| {
            namespace(budget) == namespace(pod)
                && selector::matches(budget.spec.selector.as_ref(), pod.metadata.labels.as_ref())
        };
        let budgets = self.view.budgets.iter().flatten().map(AsRef::as_ref);
        budgets.filter(|budget| selects(budget)).collect()
    }

    pub(super) fn budget_state(&self, pod: &PodView) -> BudgetState<'_> {
        let found = self.budgets_of(pod);
        match found[..] {
            [] => BudgetState::Unknown,
            [budget] => BudgetState::of(budget, pod),
            _ => BudgetState::Several(found.into_iter().map(name).collect()),
        }
    }
}

impl<'a> BudgetState<'a> {
    fn of(budget: &'a BudgetView, pod: &PodView) -> Self {
        let BudgetStatusView { observed_generation, disruptions_allowed, current_healthy, expected_pods, .. } =
            budget.status;
        if budget.metadata.generation.is_some_and(|generation| observed_generation < generation) {
            Self::Stale(name(budget))
        } else if disruptions_allowed > 0 {
            Self::Room
        } else if expected_pods > 0 && current_healthy >= expected_pods && budget.status.disrupted_pods.is_empty() {
            Self::Never(budget)
        } else if !pod.is_ready() && budget.spec.unhealthy_pod_eviction_policy.as_deref() != Some("AlwaysAllow") {
            Self::Unready(budget)
        } else {
            Self::Full(budget)
        }
    }

    /// Why the eviction is refused, and what to do about it. `answer` is the API server's.
    pub(super) fn why(&self, answer: &str) -> String {
        match self {
            Self::Unknown | Self::Room => answer.trim_end_matches('.').to_owned(),
            Self::Several(names) => format!(
                "the disruption budgets {} select it, and the API server evicts no pod that several select: narrow a selector",
                names.join(" and ")
            ),
            Self::Stale(budget) => format!("the status of disruption budget {budget} is older than its spec"),
            Self::Never(budget) => format!(
                "disruption budget {} allows no disruption although all its {} pods are healthy: raise its maxUnavailable or \
                 lower its minAvailable",
                name(*budget),
                budget.status.expected_pods
            ),
            Self::Full(budget) | Self::Unready(budget) if budget.status.expected_pods == 0 => format!(
                "disruption budget {} allows no disruption: no controller says how many pods there should be; give it a number as \
                 minAvailable",
                name(*budget)
            ),
            Self::Full(budget) => lacking(budget),
            Self::Unready(budget) => format!(
                "{}; this one is not ready, and goes if the budget's unhealthyPodEvictionPolicy is AlwaysAllow",
                lacking(budget)
            ),
        }
    }
}

fn lacking(budget: &BudgetView) -> String {
    let BudgetStatusView { desired_healthy, current_healthy, .. } = budget.status;
    format!("disruption budget {} wants {desired_healthy} healthy pods and has {current_healthy}", name(budget))
}
