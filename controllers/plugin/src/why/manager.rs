//! Whether the manager runs, its clock is right, and its webhooks answer.

use std::{collections::BTreeMap, fmt};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    admissionregistration::v1::{ServiceReference, WebhookClientConfig},
    coordination::v1::Lease,
    discovery::v1::EndpointSlice,
};
use nodewright_runtime::object::{label, name, namespace};
use serde::Serialize;

use super::{explanation::Finding, remedies};
use crate::{
    names::TargetKind,
    output::age,
    read::{LEASE_NAMES, OF_SERVICE},
    snapshot::Snapshot,
};

/// How long after its end a Lease says that nobody leads. A manager that takes over needs some seconds.
const TAKE_OVER: SignedDuration = SignedDuration::from_secs(15);
/// How far the clock of a manager may be off.
const SKEW: SignedDuration = SignedDuration::from_mins(1);
/// The duration of a Lease that does not say it, in seconds.
const DURATION: i32 = 15;

/// The Lease of the controllers that look after a kind.
fn lease(snapshot: &Snapshot, kind: TargetKind) -> Option<&Lease> {
    let wanted = match kind {
        TargetKind::Deployment | TargetKind::Set => LEASE_NAMES[0],
        TargetKind::Machine | TargetKind::Class | TargetKind::Node => LEASE_NAMES[1],
        TargetKind::Pool | TargetKind::KubeletConfig => LEASE_NAMES[2],
    };
    snapshot.leases.iter().find(|lease| name(*lease) == wanted)
}

/// When a Lease was last written, by the clock of the API server, or else by that of the manager.
fn written(lease: &Lease) -> Option<Timestamp> {
    let fields = lease.metadata.managed_fields.iter().flatten();
    let stored = fields.filter_map(|entry| entry.time.as_ref()).map(|time| time.0).max();
    stored.or_else(|| renewed(lease))
}

fn renewed(lease: &Lease) -> Option<Timestamp> {
    lease.spec.as_ref()?.renew_time.as_ref().map(|time| time.0)
}

/// That no manager leads: what objects say may be old.
pub(crate) fn absent(snapshot: &Snapshot, kind: TargetKind) -> Option<Finding> {
    expired(lease(snapshot, kind)?, snapshot.now)
}

/// That nobody holds a Lease.
fn expired(lease: &Lease, now: Timestamp) -> Option<Finding> {
    let spec = lease.spec.as_ref()?;
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    let last = written(lease)?;
    let lasts = SignedDuration::from_secs(i64::from(spec.lease_duration_seconds.unwrap_or(DURATION)));
    let ended = last.checked_add(lasts).ok()?.checked_add(TAKE_OVER).ok()?;
    let text = match holder {
        "" => format!("no manager runs: the last one gave the lease back {} ago", age(last, now)),
        holder => format!("no manager runs: {holder} has not renewed the lease for {}", age(last, now)),
    };
    let found = Finding::blocked(format!("lease/{}", name(lease)), "NoLeader", text).since(Some(last));
    (ended < now).then(|| found.changed_by_all(remedies::of("NoLeader")))
}

/// That no manager leads in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Absence {
    pub(crate) namespace: String,
    /// The Leases that nobody holds, such as `lease/machine-controller`.
    pub(crate) leases: Vec<String>,
    pub(crate) cause: String,
    pub(crate) since: Option<Timestamp>,
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.since.map(|since| format!(" (since {since:.0})")).unwrap_or_default();
        let (cause, leases) = (&self.cause, self.leases.join(", "));
        write!(f, "{cause}{since}: {leases} in namespace {}; what follows may be old", self.namespace)
    }
}

/// The Leases that nobody holds, by namespace. Empty if Leases may not be read.
pub(crate) fn absences(snapshot: &Snapshot) -> Vec<Absence> {
    let mut all: BTreeMap<&str, Absence> = BTreeMap::new();
    for lease in snapshot.leases.iter().filter(|lease| LEASE_NAMES.contains(&name(*lease))) {
        let Some(Finding { subject, cause, since, .. }) = expired(lease, snapshot.now) else { continue };
        let place = namespace(lease);
        let new = || Absence { namespace: place.to_owned(), leases: vec![], cause, since };
        all.entry(place).or_insert_with(new).leases.push(subject);
    }
    all.into_values().collect()
}

/// How far the clock of a manager is ahead of that of the API server, if that is far.
fn skew(lease: &Lease) -> Option<SignedDuration> {
    let stored = lease.metadata.managed_fields.as_ref()?.iter().filter_map(|entry| entry.time.as_ref()).max()?.0;
    Some(renewed(lease)?.duration_since(stored)).filter(|skew| skew.abs() > SKEW)
}

/// That the clock of the manager is not that of the API server.
pub(crate) fn clock(snapshot: &Snapshot) -> Option<String> {
    let (skew, lease) = snapshot.leases.iter().find_map(|lease| Some((skew(lease)?, lease)))?;
    let (by, where_) = (skew.abs(), if skew.is_negative() { "behind" } else { "ahead of" });
    let minutes = by.as_mins();
    Some(format!(
        "the clock of the manager that holds lease/{} is {minutes} min {where_} that of the API server: set it",
        name(lease)
    ))
}

/// That the webhooks of a kind have no endpoint, so that changes of its objects are refused.
pub(crate) fn webhooks_down(snapshot: &Snapshot, kind: TargetKind) -> Option<Finding> {
    let plural = kind.resource().plural;
    let validating = snapshot
        .validating
        .iter()
        .flat_map(|it| it.webhooks.iter().flatten())
        .map(|it| (&it.client_config, it.rules.as_deref().unwrap_or_default(), it.failure_policy.as_deref()));
    let mutating = snapshot
        .mutating
        .iter()
        .flat_map(|it| it.webhooks.iter().flatten())
        .map(|it| (&it.client_config, it.rules.as_deref().unwrap_or_default(), it.failure_policy.as_deref()));
    let is_of = |rules: &[k8s_openapi::api::admissionregistration::v1::RuleWithOperations]| {
        rules.iter().any(|rule| rule.resources.iter().flatten().any(|it| it == plural))
    };
    let mut required =
        validating.chain(mutating).filter(|(_, rules, policy)| is_of(rules) && *policy != Some("Ignore"));
    let service = required.find_map(|(config, _, _)| silent_service(snapshot, config))?;
    let ServiceReference { name, namespace, .. } = service;
    let text = format!("changes of {plural} are refused: the webhook service {namespace}/{name} has no ready endpoint");
    let found = Finding::blocked(format!("service/{name}"), "WebhookDown", text);
    Some(found.changed_by_all(remedies::of("WebhookDown")))
}

fn silent_service<'a>(snapshot: &Snapshot, config: &'a WebhookClientConfig) -> Option<&'a ServiceReference> {
    let service = config.service.as_ref()?;
    let is_of = |slice: &&EndpointSlice| {
        namespace(*slice) == service.namespace && label(*slice, OF_SERVICE) == Some(service.name.as_str())
    };
    let is_ready = |slice: &EndpointSlice| {
        let mut endpoints = slice.endpoints.iter();
        endpoints.any(|it| it.conditions.as_ref().is_none_or(|conditions| conditions.ready != Some(false)))
    };
    (!snapshot.endpoints.iter().filter(is_of).any(is_ready)).then_some(service)
}
