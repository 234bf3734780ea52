//! Is a Machine well, and may it be given up?
//!
//! A Machine that is not well is `Unknown`, and after its health timeout `Failed`; then its MachineSet replaces it. What was
//! reported of its Node before this process led, and was in contact with the API servers, proves nothing at first: they may
//! have been away, so that no kubelet could report. A kubelet that lives does so within six minutes.
//!
//! # Guarantees
//! * A Machine is Failed at the time that its condition `HealthTimeout` and its last operation name. That is the end of its
//!   health timeout; or, if that is later, six minutes after this process began to lead or contact was regained, unless its
//!   Node was reported of since. Where that moves the time, status, event and log say so.
//! * So all outages and changes of leaders together cost at most six minutes after the last of them. An outage is a time of
//!   more than a minute in which an API server does not answer; an idle server is asked ([`Moment::in_touch`]).
//! * Before it is Failed for the sake of its Node, the Node is read from the API server. One that has changed stops that.
//!
//! # Caveats
//! * If its watch is a dead connection, a Node's report is seen up to four minutes late.
//! * The replacement budget may hold a Machine back for longer ([`budget`](super::budget)); its status says so.
//!
//! [`Moment::in_touch`]: nodewright_runtime::plan::Moment::in_touch

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::NodeCondition;
use nodewright_api::{Machine, MachinePhase, conditions, taints};
use nodewright_runtime::{clip::clip_to, object::is_deleting};

use super::{
    Settings,
    status::{StatusDraft, own_condition},
};
use crate::shared::{node::Node, ownership::is_disputed};

/// Within this time a kubelet that lives has reported, whatever was before: it posts its status at least every five
/// minutes (`nodeStatusReportFrequency`), and at once when the API server shows another one than it knows.
const REPORTS_WITHIN: SignedDuration = SignedDuration::from_mins(6);

/// A time that moves by no more has not moved.
const NO_NEWS: SignedDuration = SignedDuration::from_secs(5);

/// The most bytes of what a Node says of its health: more follows it in statuses.
const LONGEST_CAUSE: usize = 512;

/// What a Node says of its health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// Ready, and no listed condition against it.
    Healthy,
    /// Not so, and why.
    Unhealthy(String),
}

/// Judges a Node as machine-controller-manager does: Ready has to be True and each listed condition that the Node has
/// has to be False; Unknown counts as unhealthy.
pub(super) fn judge(machine: &Machine, node: &Node, settings: &Settings) -> Health {
    let tell = |condition: &NodeCondition| {
        let reason = condition.reason.as_deref().unwrap_or_default();
        clip_to(LONGEST_CAUSE, format!("node condition {} is {} ({reason})", condition.type_, condition.status))
    };
    let Some(ready) = ready(node) else {
        return Health::Unhealthy("the node has no condition Ready yet".to_owned());
    };
    if ready.status != "True" {
        return Health::Unhealthy(tell(ready));
    }
    let listed = |condition: &&NodeCondition| match &machine.spec.node_conditions {
        Some(list) => list.split(',').any(|kind| kind.trim() == condition.type_),
        None => settings.node_conditions.contains(&condition.type_),
    };
    match node.conditions().iter().filter(listed).find(|condition| condition.status != "False") {
        Some(condition) => Health::Unhealthy(tell(condition)),
        None => Health::Healthy,
    }
}

/// Whether a Node's kubelet, or whoever watches over it, has said anything of its health since then.
///
/// What was said before a process was in touch with its servers proves nothing to it: the API server may have been away,
/// and no kubelet could report.
pub(super) fn is_reported_since(node: &Node, since: Timestamp) -> bool {
    let ready = ready(node);
    let told = ready.and_then(|it| it.last_heartbeat_time.as_ref().max(it.last_transition_time.as_ref()));
    told.is_some_and(|told| told.0 > since)
}

/// Until when bad health that was reported before this process was in touch is ignored; `None` when that time is over.
pub(super) fn held_until(node: &Node, since: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let until = since.checked_add(REPORTS_WITHIN).ok()?;
    (now < until && !is_reported_since(node, since)).then_some(until)
}

fn ready(node: &Node) -> Option<&NodeCondition> {
    node.conditions().iter().find(|condition| condition.type_ == conditions::node::READY)
}

/// Whether components without which no workload may run have yet to come up.
pub(super) fn lacks_critical_components(node: &Node) -> bool {
    let all = node.taints();
    all.iter().any(|taint| taint.key == taints::CRITICAL_COMPONENTS_NOT_READY && taint.effect == "NoSchedule")
}

/// Since when a Node has not been ready, if it is not.
pub(super) fn not_ready_since(node: &Node) -> Option<Timestamp> {
    let ready = ready(node)?;
    ready.last_transition_time.as_ref().filter(|_| ready.status != "True").map(|time| time.0)
}

/// Whether a Machine is one whose replacement is limited by the budget. One that is disputed is not judged: it would hold
/// up those that come after it.
pub(crate) fn may_be_replaced(machine: &Machine) -> bool {
    let waits = matches!(machine.phase(), MachinePhase::Unknown | MachinePhase::InPlaceUpdateFailed);
    waits && !is_deleting(machine) && !is_disputed(machine)
}

/// Since when a Machine is not well whose phase says so.
pub(super) fn unwell_since(machine: &Machine) -> Option<Timestamp> {
    Some(machine.status.as_ref()?.current_status.last_update_time.as_ref()?.0)
}

/// When the health timeout of a Machine ends that is not well; `None` when it has none.
pub(super) fn timeout_at(machine: &Machine, settings: &Settings) -> Option<Timestamp> {
    timeout_from(machine, settings, unwell_since(machine)?)
}

/// When the health timeout of a Machine ends that is not well since then.
pub(super) fn timeout_from(machine: &Machine, settings: &Settings, since: Timestamp) -> Option<Timestamp> {
    if machine.spec.disable_health_timeout == Some(true) {
        return None;
    }
    let limit = machine.spec.health_timeout.as_ref().map_or(settings.health_timeout, |own| own.to_std());
    since.checked_add(SignedDuration::try_from(limit).ok()?).ok()
}

/// When a Machine is given up, and whether that is later than the end of its health timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GivenUp {
    pub(super) at: Timestamp,
    is_extended: bool,
}

impl GivenUp {
    /// Of a Machine with this timeout. While nothing newer is known of its Node than what was reported before `in_touch`, a
    /// kubelet that lives gets the time to report.
    pub(super) fn of(timeout: Timestamp, node: Option<&Node>, in_touch: Timestamp) -> Self {
        if node.is_some_and(|node| is_reported_since(node, in_touch)) {
            return Self { at: timeout, is_extended: false };
        }
        let at = timeout.max(in_touch.saturating_add(REPORTS_WITHIN).unwrap_or(timeout));
        Self { at, is_extended: at > timeout }
    }

    /// The word for it in the condition and in logs.
    pub(super) fn reason(self) -> &'static str {
        if self.is_extended { "ReportAwaited" } else { "Unhealthy" }
    }

    /// What people are told.
    pub(super) fn text(self, why: &str) -> String {
        let (at, outdated) = (self.at, "that was reported before this manager led, or while an API server was away");
        if self.is_extended {
            format!("{why}; {outdated}: without a new report it is given up at {at:.0}")
        } else {
            format!("{why}; it is given up at {at:.0}")
        }
    }

    /// Whether the status of a Machine names this time already. Clocks differ a little: a few seconds are no news.
    pub(super) fn is_announced(self, machine: &Machine) -> bool {
        let noted = own_condition(machine, conditions::machine::HEALTH_TIMEOUT);
        let noted: Option<Timestamp> = noted.and_then(|noted| noted.message.as_deref()?.parse().ok());
        noted.is_some_and(|noted| noted.duration_since(self.at).abs() <= NO_NEWS)
    }
}

impl StatusDraft {
    /// Announces when the Machine is given up.
    pub(super) fn given_up(self, given_up: GivenUp) -> Self {
        self.condition(conditions::machine::HEALTH_TIMEOUT, true, given_up.reason(), format!("{:.0}", given_up.at))
    }
}
