//! Rules of annotations that people set.

use kube::ResourceExt;

use crate::field::{FieldError, FieldPath};
use crate::stored::{
    Annotation, DRAIN_TIMEOUT, EFFECTIVE_CREATION_TIMEOUT, HEALTH_TIMEOUTS, MACHINE_PRIORITY, Malformed, removals,
};
use crate::{GoDuration, MachineSpec, annotations, conditions::node};

/// The prefix of our keys.
const OWN: &str = "nodewright.dev/";

pub(super) fn path(key: &str) -> FieldPath {
    FieldPath::new("metadata").child("annotations").key(key)
}

pub(super) fn health_timeouts_error(object: &impl ResourceExt) -> Option<FieldError> {
    let key = annotations::HEALTH_TIMEOUTS;
    let text = object.annotations().get(key)?;
    let error = HEALTH_TIMEOUTS.read(object)?.err()?;
    Some(FieldError::invalid(path(key), text.as_str(), error.to_string()))
}

/// The error of [`annotations::DELETION_ORDER`]. The annotation is ours, so no other program relies on another value.
pub(super) fn deletion_order_error(object: &impl ResourceExt) -> Option<FieldError> {
    let (key, values) = (annotations::DELETION_ORDER, annotations::DELETION_ORDER_VALUES);
    let value = object.annotations().get(key)?;
    (!values.contains(&value.as_str())).then(|| FieldError::not_supported(path(key), value.as_str(), &values))
}

/// Warnings about annotations of any of the kinds, but for those of [`health_timeouts_warning`].
pub(super) fn warnings(object: &impl ResourceExt) -> Vec<String> {
    let values = duration_warning(object, &EFFECTIVE_CREATION_TIMEOUT).into_iter().chain(shared_budget_warning(object));
    values.chain(unknown_warnings(object)).collect()
}

/// Warns about an [`annotations::SHARED_BUDGET`] that is no boolean.
fn shared_budget_warning(object: &impl ResourceExt) -> Option<String> {
    let key = annotations::SHARED_BUDGET;
    let value = object.annotations().get(key).filter(|value| !["true", "false"].contains(&value.as_str()))?;
    Some(format!("{}: {value:?} has no effect: it must be \"true\" or \"false\"", path(key)))
}

/// Warns about an annotation that is not a duration, or not a positive one.
fn duration_warning(object: &impl ResourceExt, setting: &Annotation<GoDuration>) -> Option<String> {
    let value = object.annotations().get(setting.key)?;
    let detail = match setting.read(object)? {
        Err(error) => error.to_string(),
        Ok(timeout) if timeout <= GoDuration::ZERO => "must be greater than 0s".to_owned(),
        Ok(_) => return None,
    };
    Some(format!("{}: {value:?} has no effect: it {detail}", path(setting.key)))
}

/// Warns about an [`annotations::MACHINE_PRIORITY`] that is no integer.
pub(super) fn priority_warning(object: &impl ResourceExt) -> Option<String> {
    let key = annotations::MACHINE_PRIORITY;
    let value = object.annotations().get(key).filter(|_| MACHINE_PRIORITY.of(object).is_none())?;
    let default = annotations::MACHINE_PRIORITY_DEFAULT;
    Some(format!("{}: {value:?} has no effect: it is no integer; the priority is {default}", path(key)))
}

/// Warns about entries of [`annotations::TRIGGER_DELETION`] whose time cannot be read.
pub(super) fn trigger_deletion_warnings(object: &impl ResourceExt) -> Vec<String> {
    let key = annotations::TRIGGER_DELETION;
    let entries = object.annotations().get(key).into_iter().flat_map(|list| removals(list));
    let warning = |error: Malformed| {
        let entry = error.text();
        let (path, example) = (path(key), "machine~2006-01-02T15:04:05Z");
        format!("{path}: {entry:?} has no effect: its time must be RFC 3339, as in {example}")
    };
    entries.filter_map(Result::err).take(super::MOST_ERRORS).map(warning).collect()
}

/// Warns about a forced drain that a MachineConfigPool does not get, because the timeout is missing or none, or the policy is another one;
/// and about other annotations of pools.
pub(super) fn drain_warnings(pool: &impl ResourceExt) -> Vec<String> {
    let (policy, timeout) = (annotations::DRAIN_POLICY, annotations::DRAIN_TIMEOUT);
    let (force, all) = (annotations::DRAIN_POLICY_FORCE, pool.annotations());
    let is_forced = all.get(policy).is_some_and(|value| value == force);
    let unknown = all
        .get(policy)
        .filter(|_| !is_forced)
        .map(|value| format!("{}: {value:?} has no effect: drains are forced with {force:?} alone", path(policy)));
    let useless = duration_warning(pool, &DRAIN_TIMEOUT).or_else(|| match all.get(timeout) {
        Some(value) if !all.contains_key(policy) => {
            Some(format!("{}: {value:?} has no effect without {policy}={force}", path(timeout)))
        }
        None if is_forced => Some(format!("{}: {force:?} has no effect without {timeout}", path(policy))),
        _ => None,
    });
    unknown.into_iter().chain(useless).chain(shared_budget_warning(pool)).collect()
}

/// Warns about keys with our prefix that mean nothing: they are misspelled.
fn unknown_warnings(object: &impl ResourceExt) -> impl Iterator<Item = String> {
    let unknown = object.annotations().keys().filter(|key| key.starts_with(OWN));
    let unknown = unknown.filter(|key| !annotations::OWN.contains(&key.as_str()));
    unknown.take(super::MOST_ERRORS).map(|key| {
        let valid = annotations::OWN_SETTINGS.join(", ");
        format!("{}: has no effect: there is no such annotation; there are {valid}", path(key))
    })
}

/// Warns about [`annotations::HEALTH_TIMEOUTS`] of Node conditions that make no machine of this spec unhealthy.
pub(super) fn health_timeouts_warning(object: &impl ResourceExt, spec: &MachineSpec) -> Option<String> {
    let key = annotations::HEALTH_TIMEOUTS;
    let timeouts = HEALTH_TIMEOUTS.of(object)?;
    let listed = spec.node_conditions.as_deref().map(|list| list.split(',').map(str::trim).collect::<Vec<_>>());
    let counts: &[&str] = listed.as_deref().unwrap_or(&node::DEFAULT_UNHEALTHY);
    let unlisted = timeouts.conditions().filter(|name| *name != node::READY && !counts.contains(name));
    let unlisted: Vec<_> = unlisted.map(|name| format!("{name:?}")).collect();
    let unless = if listed.is_some() { "" } else { ", unless the manager's flag --node-conditions lists it" };
    (!unlisted.is_empty()).then(|| {
        let (names, counts) = (unlisted.join(", "), counts.join(", "));
        format!("{}: {names} has no effect{unless}: only Ready and {counts} make a machine unhealthy", path(key))
    })
}
