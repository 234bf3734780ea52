//! Deletes objects.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::checks::FieldError;
use super::kinds::Kind;
use super::refusal;
use super::route::{Id, Resource};
use super::store::{Refused, Store, Writer, Written, said, seconds};
use super::write::{bump_generation, finalizers, has_finalizers};

/// The garbage collector removes these finalizers after it has handled the dependents.
pub(super) const ORPHAN: &str = "orphan";
pub(super) const FOREGROUND: &str = "foregroundDeletion";

/// How the dependents of a deleted object are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// The preconditions and options of a deletion.
#[derive(Clone, Debug, Default)]
pub(super) struct DeleteOptions {
    pub(super) uid: Option<String>,
    pub(super) version: Option<String>,
    pub(super) grace_seconds: Option<i64>,
    pub(super) propagation: Option<Propagation>,
    pub(super) dry_run: bool,
}

impl DeleteOptions {
    pub(super) fn read(body: &Value) -> Result<Self, Refused> {
        let precondition = |field: &str| body["preconditions"][field].as_str().map(str::to_owned);
        let policy = body["propagationPolicy"].as_str();
        let propagation = match (policy, body["orphanDependents"].as_bool()) {
            (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
            (None, None) => None,
            (Some(policy), _) => {
                let known = ["Foreground", "Background", "Orphan", "nil"];
                let error = FieldError::not_supported("propagationPolicy", policy, &known);
                return Err(refusal::invalid_options("DeleteOptions", &[error]));
            }
        };
        Ok(Self {
            uid: precondition("uid"),
            version: precondition("resourceVersion"),
            grace_seconds: body["gracePeriodSeconds"].as_i64(),
            propagation,
            dry_run: body["dryRun"].as_array().is_some_and(|list| !list.is_empty()),
        })
    }
}

impl Store {
    pub(super) fn delete(&mut self, id: &Id, options: &DeleteOptions, writer: &Writer<'_>) -> Result<Written, Refused> {
        if id.resource == Resource::namespaces() {
            return self.delete_namespace(id, options, writer);
        }
        let live = self.get(id)?;
        let kind = self.kind(&id.resource);
        check_preconditions(id, &kind, &live, options)?;
        let grace = match grace(id, &live, options, writer.now) {
            Grace::Pending => return Ok(Written::Deleted(live)),
            Grace::None => None,
            Grace::Until { seconds, at } => Some((seconds, at)),
        };
        let wanted = finalizers_for(&kind, &live, options);
        let mut object = (*live).clone();
        let keeps = wanted.as_ref().map_or_else(|| has_finalizers(&live), |wanted| !wanted.is_empty());
        if let Some(wanted) = wanted {
            object["metadata"]["finalizers"] = wanted.into();
        }
        match grace {
            Some((seconds, at)) => mark(&mut object, seconds, Some(at)),
            None if keeps => mark_now(&mut object, writer.now),
            None => {}
        }
        super::form::trim(&kind, &mut object);
        if keeps || grace.is_some_and(|(seconds, _)| seconds > 0) {
            return Ok(Written::Updated(self.store_deleting(id, &live, object, writer)));
        }
        if writer.dry_run {
            return Ok(Written::Deleted(Arc::new(object)));
        }
        if grace.is_some() {
            self.store_deleting(id, &live, object, writer);
        }
        self.evaporate(id).map(Written::Deleted)
    }

    fn store_deleting(&mut self, id: &Id, live: &Arc<Value>, object: Value, writer: &Writer<'_>) -> Arc<Value> {
        if object == **live {
            return live.clone();
        }
        if writer.dry_run { Arc::new(object) } else { self.commit(id, object) }
    }
}

/// The grace period of a deletion.
enum Grace {
    /// The object does not run, or no longer.
    None,
    /// A deletion is in progress and gets a shorter grace period.
    Pending,
    Until {
        seconds: i64,
        at: Timestamp,
    },
}

/// A Pod on a node stays until its kubelet deletes it without a grace period; all other objects have none.
fn grace(id: &Id, live: &Value, options: &DeleteOptions, now: Timestamp) -> Grace {
    if !id.resource.is_pod() {
        return Grace::None;
    }
    let asked = options.grace_seconds.map(|seconds| if seconds < 0 { 1 } else { seconds });
    let after = |at: Timestamp, seconds: i64| at.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(at);
    let metadata = &live["metadata"];
    if let Some(end) = metadata["deletionTimestamp"].as_str().and_then(|at| at.parse::<Timestamp>().ok()) {
        let left = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        return match asked {
            _ if left == 0 => Grace::None,
            Some(seconds) if seconds < left => {
                let at = after(after(end, -left), seconds);
                let (seconds, at) = if at < now { (seconds.min(1), now) } else { (seconds, at) };
                Grace::Until { seconds, at }
            }
            _ => Grace::Pending,
        };
    }
    let default = live["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    let is_over = matches!(live["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
    let is_idle = live["spec"]["nodeName"].as_str().is_none_or(str::is_empty);
    let seconds = if is_idle || is_over { 0 } else { asked.unwrap_or(default) };
    Grace::Until { seconds, at: after(now, seconds) }
}

fn mark(object: &mut Value, grace: i64, at: Option<Timestamp>) {
    if object["metadata"]["deletionTimestamp"].is_null() {
        bump_generation(object);
    }
    if let Some(at) = at {
        object["metadata"]["deletionTimestamp"] = seconds(at).into();
    }
    object["metadata"]["deletionGracePeriodSeconds"] = grace.into();
}

/// Sets the deletion timestamp to now: the object waits for finalizers only.
fn mark_now(object: &mut Value, now: Timestamp) {
    let due = object["metadata"]["deletionTimestamp"].as_str().and_then(|at| at.parse::<Timestamp>().ok());
    let at = due.is_none_or(|due| due > now).then_some(now);
    mark(object, 0, at);
}

fn check_preconditions(id: &Id, kind: &Kind, live: &Value, options: &DeleteOptions) -> Result<(), Refused> {
    let check = |name: &str, asked: Option<&String>, field: &str| match asked {
        Some(asked) if live["metadata"][field] != asked.as_str() => {
            Err(refusal::precondition(id, &kind.name, name, asked, said(live, field).unwrap_or("")))
        }
        _ => Ok(()),
    };
    check("UID", options.uid.as_ref(), "uid")?;
    check("ResourceVersion", options.version.as_ref(), "resourceVersion")
}

/// The finalizers together with the garbage collector's, if they differ.
fn finalizers_for(kind: &Kind, live: &Value, options: &DeleteOptions) -> Option<Vec<String>> {
    if kind.name == "Event" {
        return None;
    }
    let has = |finalizer: &str| finalizers(live).any(|it| it == finalizer);
    let (orphan, foreground) = match options.propagation {
        Some(propagation) => (propagation == Propagation::Orphan, propagation == Propagation::Foreground),
        None => (has(ORPHAN), has(FOREGROUND) && !has(ORPHAN)),
    };
    if orphan == has(ORPHAN) && foreground == has(FOREGROUND) {
        return None;
    }
    let others = finalizers(live).filter(|it| ![ORPHAN, FOREGROUND].contains(it)).map(str::to_owned);
    let ours = [(orphan, ORPHAN), (foreground, FOREGROUND)];
    Some(others.chain(ours.into_iter().filter(|(is, _)| *is).map(|(_, name)| name.to_owned())).collect())
}
