//! By when an unhealthy Machine fails. `decision` evaluates whether that time has come.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::NodeCondition;
use nodewright_api::{
    HealthTimeouts, conditions,
    stored::{DeadlineCause, HEALTH_TIMEOUTS, HealthDeadline},
};

use super::node::{disables_health_timeout, is_reported_since, unhealthy_conditions};
use crate::{
    machine::{
        scope::{REPORTS_WITHIN, Scope},
        snapshot::Owner,
        status::{StatusDraft, announced_deadline},
        update,
    },
    shared::{node::Node, node_agent::configured_since},
};

/// A deadline that moves by no more is not written again.
const SAME_TIME: SignedDuration = SignedDuration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deadline {
    pub(super) at: Timestamp,
    /// Why it is not the end of the health timeout.
    cause: DeadlineCause,
}

impl Deadline {
    /// The deadline of a Machine that is unhealthy since then; `None` if it has none.
    pub(super) fn of(
        scope: &Scope<'_>,
        node: Option<&Node>,
        since: Timestamp,
        gone: Option<Timestamp>,
    ) -> Option<Self> {
        if node.is_some_and(disables_health_timeout) {
            return None;
        }
        let timeout = health_timeout(scope, node, since)?;
        // After an update in place that has failed, no report counts.
        let has_failed = node.is_some_and(|node| update::failure(scope.machine, node).is_some());
        let own = if has_failed {
            Self { at: timeout, cause: DeadlineCause::Timeout }
        } else {
            Self::with_time_to_report(timeout, node, scope.context.connected_since).with_time_to_update(scope, node)
        };
        let gone = gone.filter(|gone| *gone < own.at).map(|at| Self { at, cause: DeadlineCause::VmGone });
        Some(gone.unwrap_or(own))
    }

    /// While all reports on the Node are older than our connection, a live kubelet gets the time to report.
    fn with_time_to_report(timeout: Timestamp, node: Option<&Node>, connected: Timestamp) -> Self {
        if node.is_some_and(|node| is_reported_since(node, connected)) {
            return Self { at: timeout, cause: DeadlineCause::Timeout };
        }
        let at = timeout.max(connected.saturating_add(REPORTS_WITHIN).unwrap_or(timeout));
        Self { at, cause: if at > timeout { DeadlineCause::ReportAwaited } else { DeadlineCause::Timeout } }
    }

    /// While an agent applies another configuration to the Node, which may reboot, it gets the time that this takes.
    fn with_time_to_update(self, scope: &Scope<'_>, node: Option<&Node>) -> Self {
        let begun = node.and_then(configured_since).map(|begun| begun.min(scope.now()));
        let over = begun.and_then(|begun| begun.checked_add(scope.settings.config_update_timeout).ok());
        // Its agent may be done before the Node is ready again.
        let known = scope.machine.condition(conditions::machine::HEALTH_TIMEOUT).and_then(HealthDeadline::of);
        let known = known.filter(|known| known.cause == DeadlineCause::NodeUpdating).map(|known| known.at);
        let limit = scope.now().checked_add(scope.settings.config_update_timeout).unwrap_or(Timestamp::MAX);
        let over = over.or(known.filter(|known| *known <= limit));
        over.filter(|over| *over > self.at).map_or(self, |at| Self { at, cause: DeadlineCause::NodeUpdating })
    }

    /// When the Machine fails, if its status names that time. Its replacement is ordered by what all Machines of its deployment can see
    /// ([`budget`]): what its status names, or, if that names nothing, the end of its health timeout.
    ///
    /// [`budget`]: crate::machine::budget
    pub(super) fn announced(self, scope: &Scope<'_>, since: Timestamp) -> Option<Timestamp> {
        let now = scope.now();
        if scope.machine.is_health_timeout_disabled() {
            return None;
        }
        let timeout = || scope.settings.health_deadline(scope.machine, since).filter(|at| *at <= now);
        let known = announced_deadline(scope.machine).or_else(timeout)?;
        let at = self.at.max(known);
        let is_named = known.duration_since(self.at).abs() <= SAME_TIME || is_anothers(scope, known);
        (at <= now || is_named).then_some(at)
    }

    pub(super) fn reason(self) -> &'static str {
        self.cause.reason()
    }

    pub(super) fn text(self, why: &str) -> String {
        let (at, outdated) = (self.at, "that was reported before this manager led, or while an API server was away");
        match self.cause {
            DeadlineCause::Timeout => format!("{why}; it fails at {at:.0}"),
            DeadlineCause::ReportAwaited => {
                format!("{why}; {outdated}: without a new report it fails at {at:.0}")
            }
            DeadlineCause::NodeUpdating => {
                format!("{why}; another configuration is being applied to the node: it fails at {at:.0}")
            }
            DeadlineCause::VmGone => format!("{why}; the provider knows no VM of it any more: it fails at {at:.0}"),
        }
    }
}

/// When the health timeout ends: the earliest of those of the Node's unhealthy conditions. One with a timeout of its own counts
/// from when the Node reported it, at the earliest from `since`.
fn health_timeout(scope: &Scope<'_>, node: Option<&Node>, since: Timestamp) -> Option<Timestamp> {
    let (machine, settings) = (scope.machine, scope.settings);
    let whole = settings.health_deadline(machine, since)?;
    let own = timeouts(scope);
    let Some(node) = node.filter(|_| !own.is_empty()) else { return Some(whole) };
    let of = |condition: &NodeCondition| {
        let timeout = own.get(&condition.type_)?;
        let reported = condition.last_transition_time.as_ref().map_or(since, |time| time.0.max(since));
        reported.checked_add(timeout).ok()
    };
    unhealthy_conditions(scope, node).map(|condition| of(condition).unwrap_or(whole)).min().or(Some(whole))
}

/// The annotation of the Machine, or else that of its set, which has it from the deployment.
fn timeouts(scope: &Scope<'_>) -> HealthTimeouts {
    let of_set = || match &scope.snapshot.owner {
        Owner::Set(set) => HEALTH_TIMEOUTS.read(set.as_ref()),
        _ => None,
    };
    HEALTH_TIMEOUTS.read(scope.machine).or_else(of_set).and_then(Result::ok).unwrap_or_default()
}

/// Whether another manager, which connected later, gave the kubelet the time to report until `known`. That is kept while it is
/// plausible: two managers without leader election would otherwise write their own times without end. Of two times the later one
/// lasts, so this manager writes its own after an outage.
fn is_anothers(scope: &Scope<'_>, known: Timestamp) -> bool {
    let cause = scope.machine.condition(conditions::machine::HEALTH_TIMEOUT).map(DeadlineCause::of);
    let connected = scope.context.connected_since;
    let own = connected.saturating_add(REPORTS_WITHIN).unwrap_or(Timestamp::MAX);
    let latest = scope.now().saturating_add(REPORTS_WITHIN).unwrap_or(Timestamp::MAX);
    cause == Some(DeadlineCause::ReportAwaited) && known.duration_since(own) > SAME_TIME && known <= latest
}

impl StatusDraft<'_> {
    pub(super) fn health_deadline(self, deadline: Deadline) -> Self {
        self.fact(HealthDeadline { at: deadline.at, cause: deadline.cause }.text())
    }
}
