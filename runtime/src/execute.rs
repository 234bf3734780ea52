//! Turns steps into requests, and answers into the state that the next plan needs.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use bytes::Bytes;
use futures::future::join_all;
use http::{HeaderValue, Method, Response};
use json_patch::Patch;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    apply_configuration::{Applied, STATUS, correction},
    cache::Until,
    fair::Flow,
    json,
    object::{Cluster, ObjectRef, ResourceType, Target, parse_version, standing},
    patch,
    plan::{Apply, Failure, FailureClass, Planned, Step, StepVerb},
    request::{Call, Connection, RequestError},
};
use nodewright_observability::trace::TraceContext;

const APPLY: &str = "application/apply-patch+yaml";
/// Takes fields over from other managers.
const FORCE: &str = "&force=true";
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const JSON: &str = "application/json";
/// Of the answer to most writes only the version is read. Of a Node, for example, the rest is tens of kilobytes of images.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// What a cache must show before the next plan for the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Barrier {
    pub(crate) resource: ResourceType,
    pub(crate) key: ObjectRef,
    pub(crate) until: Until,
}

/// An object with a write of unknown outcome. Only a consistent read can tell the outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnknownOutcome {
    pub(crate) resource: ResourceType,
    pub(crate) key: ObjectRef,
    /// The object of the write; `None` for a creation.
    pub(crate) uid: Option<Arc<str>>,
}

impl UnknownOutcome {
    /// The failure to report if it cannot be read.
    pub(crate) fn failure(&self, error: RequestError) -> Failure {
        failure(StepVerb::Read, &self.resource, &self.key, error)
    }

    fn of(at: &Target) -> Self {
        Self { resource: at.resource().clone(), key: at.key().clone(), uid: Some(at.uid().into()) }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct RequestContext {
    pub(crate) traceparent: Option<TraceContext>,
    pub(crate) flow: Flow,
    /// The object of the plan: evictions for several objects take turns.
    pub(crate) object: Flow,
}

impl RequestContext {
    fn read(&self, path: String) -> Call {
        Call { traceparent: self.traceparent, flow: self.flow.clone(), ..Call::get(path) }
    }

    /// A write whose answer is the metadata of the object.
    fn write_for_metadata(&self, method: Method, path: String, content: &'static str, body: &Value) -> Call {
        Call { accept: METADATA, ..self.write(method, path, content, body) }
    }

    fn write(&self, method: Method, path: String, content: &'static str, body: &Value) -> Call {
        self.write_bytes(method, path, content, body.to_string().into_bytes())
    }

    fn write_bytes(&self, method: Method, path: String, content: &'static str, body: Vec<u8>) -> Call {
        let (traceparent, flow) = (self.traceparent, self.flow.clone());
        Call { method, content, body, traceparent, flow, ..Call::get(path) }
    }
}

#[derive(Debug)]
pub(crate) enum StepOutcome {
    Done(Option<Barrier>),
    Refused { uid: Arc<str>, error: RequestError },
    Failed(Failure, Option<UnknownOutcome>),
}

#[derive(Debug, Default)]
pub(crate) struct Execution {
    pub(crate) barriers: Vec<Barrier>,
    pub(crate) unsure: Vec<UnknownOutcome>,
    pub(crate) refused: Vec<(Arc<str>, RequestError)>,
    pub(crate) evicted: Vec<Arc<str>>,
    pub(crate) failure: Option<Failure>,
    pub(crate) status_written: bool,
    /// Whether steps were left out because the plan is outdated.
    pub(crate) is_cut_short: bool,
}

/// A stage ends after this many failures of single steps, because the cause may affect all.
const MOST_FAILURES: usize = 8;

/// Executes steps with one field manager.
///
/// # Guarantees
/// * Stages run in order. The steps of a stage run concurrently in batches of 1, 2, 4, …. No stage runs after a failed one.
/// * After a failure of one step the batches begin at 1 again, and after eight the stage ends; the next run begins with other
///   steps. A failure that would hit every request (no connection, 429, 5xx, the end of leadership) ends it at once.
/// * A plan that is outdated ends before the next batch of its stage. The batch that was sent before is not taken back.
/// * Nothing is sent twice. The outcome of an unanswered write is learnt by a read, never by repeating the write. An
///   eviction may be repeated, and its failure ends no stage.
/// * At most so many evictions of a cluster wait for their answers at once ([`Connection::evictions`]). The objects whose plans
///   evict take turns.
/// * No write hits a namesake. A write that depends on a version hits no other version.
///
/// # Assumptions
/// The API server honours UIDs and versions as the conformance tests check. The steps of a stage are independent.
///
/// # Caveats
/// When a failure ends a stage, the other steps of its batch have been sent as well.
#[derive(Clone)]
pub(crate) struct Executor {
    pub(crate) connections: Arc<BTreeMap<Cluster, Connection>>,
    pub(crate) manager: Arc<str>,
}

/// With which step of a stage an attempt begins: otherwise steps that always fail would keep the others from being tried. By a stride
/// that has no divisor in common with the number of steps, each of them comes first in time: also one failure may end a stage.
fn first_step(attempt: u32, steps: usize) -> usize {
    if steps < 2 {
        return 0;
    }
    let divides_both = |stride: usize, divisor: usize| stride.is_multiple_of(divisor) && steps.is_multiple_of(divisor);
    let shares_none = |stride: &usize| (2..=*stride).all(|divisor| !divides_both(*stride, divisor));
    let stride = (MOST_FAILURES..=MOST_FAILURES + steps).find(shares_none).unwrap_or(1);
    (attempt as usize).wrapping_mul(stride) % steps
}

impl Executor {
    /// Runs the stages. `call` must not wait for the effect. `attempt` is the number of runs that have failed in a row.
    pub(crate) async fn run<E: Clone>(
        &self,
        stages: &[Vec<Planned<E>>],
        attempt: u32,
        sending: &RequestContext,
        call: impl Fn(&E),
        is_outdated: &(dyn Fn() -> bool + Send + Sync),
    ) -> Execution {
        let mut execution = Execution::default();
        for stage in stages {
            let first = first_step(attempt, stage.len());
            let steps = stage[first..].iter().chain(&stage[..first]);
            self.run_stage(steps, sending, &call, is_outdated, &mut execution).await;
            if execution.failure.is_some() || execution.is_cut_short {
                break;
            }
        }
        execution
    }

    async fn run_stage<'a, E: Clone + 'a>(
        &self,
        mut steps: impl Iterator<Item = &'a Planned<E>>,
        sending: &RequestContext,
        call: &impl Fn(&E),
        is_outdated: &(dyn Fn() -> bool + Send + Sync),
        execution: &mut Execution,
    ) {
        let (mut batch, mut failures) = (1, 0);
        loop {
            let now: Vec<_> = steps.by_ref().take(batch).collect();
            if now.is_empty() {
                return;
            }
            // The first step of a stage is sent in any case, so that an object that changes all the time still gets on.
            if batch > 1 && is_outdated() {
                execution.is_cut_short = true;
                return;
            }
            let ends = join_all(now.iter().map(|planned| self.step(&planned.step, sending, call))).await;
            batch *= 2;
            for (planned, end) in now.into_iter().zip(ends) {
                if let StepOutcome::Failed(failure, _) = &end {
                    failures = if failure.class.is_of_one_request() { failures + 1 } else { MOST_FAILURES };
                    batch = 1;
                }
                execution.note(&planned.step, end);
            }
            if failures >= MOST_FAILURES {
                return;
            }
        }
    }

    async fn step<E>(&self, step: &Step<E>, sending: &RequestContext, call: &impl Fn(&E)) -> StepOutcome {
        match step {
            Step::Apply(apply) => self.apply(apply, sending).await,
            Step::Create { key, resource, body, .. } => self.create(key, resource, body, sending).await,
            Step::Edit { at, subresource, patch, .. } => self.edit(at, subresource, patch, sending).await,
            Step::Confirm(at) => self.confirm(at, false, sending).await,
            Step::ConfirmUnchanged(at) => self.confirm(at, true, sending).await,
            Step::Delete(target) => self.delete(target, None, sending).await,
            Step::DeleteNow(target) => self.delete(target, Some(0), sending).await,
            Step::Evict(target) => self.evict(target, sending).await,
            Step::Call(effect) => {
                call(effect);
                StepOutcome::Done(None)
            }
        }
    }

    async fn send(&self, cluster: Cluster, call: Call) -> Result<Response<Bytes>, RequestError> {
        let Some(connection) = self.connections.get(&cluster) else {
            let message = format!("this manager has no connection to the {cluster} cluster");
            return Err(RequestError::local(FailureClass::Unreachable, message));
        };
        connection.send(call).await
    }

    /// The URL of a write, with the name of this manager.
    fn managed(&self, mut path: String) -> String {
        path.extend(["?fieldManager=", &self.manager]);
        path
    }

    async fn apply(&self, apply: &Apply, sending: &RequestContext) -> StepOutcome {
        let Apply { at, subresource, fields } = apply;
        let body = match fields.body(at) {
            Ok(body) => body,
            Err(error) => return unencodable(StepVerb::Apply, at.resource(), at.key(), &error),
        };
        let url = self.managed(path(at, subresource)) + FORCE;
        let call = sending.write_bytes(Method::PATCH, url, APPLY, body);
        let answer = match self.send(at.key().cluster, call).await {
            Ok(answer) => answer,
            Err(error) => return failed(StepVerb::Apply, at, error),
        };
        // The type's own decoder may panic. The write was made all the same.
        let read = catch_unwind(AssertUnwindSafe(|| fields.applied(answer.body())));
        let Ok(Ok(Applied { version, differs })) = read else { return done(at, &answer) };
        let correction = differs.and_then(|seen| correction(&seen, &apply.fragment()));
        // A field that should be gone is still there: another manager's PUT owns it, or managedFields were dropped.
        let (Some(correction), Some(version)) = (correction, version) else { return done_at(at, shown(at, version)) };
        let mut body = correction;
        body["metadata"]["resourceVersion"] = version.to_string().into();
        let url = self.managed(path(at, subresource));
        let call = sending.write_for_metadata(Method::PATCH, url, MERGE, &body);
        match self.send(at.key().cluster, call).await {
            Ok(answer) => done(at, &answer),
            Err(error) => {
                let mut end = failed(StepVerb::Correct, at, error);
                // The apply succeeded even if the correction failed: the next plan must see it.
                if let StepOutcome::Failed(_, unsure) = &mut end {
                    unsure.get_or_insert_with(|| UnknownOutcome::of(at));
                }
                end
            }
        }
    }

    async fn create(
        &self,
        key: &ObjectRef,
        resource: &ResourceType,
        body: &Value,
        sending: &RequestContext,
    ) -> StepOutcome {
        let body = match serde_json::to_vec(&Creation::of(body)) {
            Ok(body) => body,
            Err(error) => return unencodable(StepVerb::Create, resource, key, &error),
        };
        let url = self.managed(resource.object(key)) + FORCE;
        let call = Call { accept: METADATA, ..sending.write_bytes(Method::PATCH, url, APPLY, body) };
        match self.send(key.cluster, call).await {
            Ok(answer) => StepOutcome::Done(version_of(&answer).map(|version| Barrier {
                resource: resource.clone(),
                key: key.clone(),
                until: Until::Version(version, Instant::now()),
            })),
            Err(mut error) => {
                if error.class == FailureClass::Conflict {
                    error.class = FailureClass::AlreadyExists;
                }
                let unknown = UnknownOutcome { resource: resource.clone(), key: key.clone(), uid: None };
                let unsure = is_unsure(error.class).then_some(unknown);
                StepOutcome::Failed(failure(StepVerb::Create, resource, key, error), unsure)
            }
        }
    }

    async fn edit(&self, at: &Target, subresource: &str, changes: &Patch, sending: &RequestContext) -> StepOutcome {
        let is_same = patch::test(&["metadata", "uid"], at.uid().into());
        let operations: Vec<_> = [&is_same].into_iter().chain(&changes.0).collect();
        let Ok(body) = serde_json::to_vec(&operations) else { return StepOutcome::Done(None) };
        let url = self.managed(path(at, subresource));
        let call = Call { accept: METADATA, ..sending.write_bytes(Method::PATCH, url, JSON_PATCH, body) };
        match self.send(at.key().cluster, call).await {
            Ok(answer) => done(at, &answer),
            Err(mut error) => {
                if error.is_failed_test() {
                    error.class = FailureClass::Conflict;
                }
                failed(StepVerb::Patch, at, error)
            }
        }
    }

    async fn confirm(&self, at: &Target, must_be_unchanged: bool, sending: &RequestContext) -> StepOutcome {
        let difference = match self.send(at.key().cluster, sending.read(at.resource().object(at.key()))).await {
            Ok(answer) => match difference(&answer, at, must_be_unchanged) {
                None => return StepOutcome::Done(None),
                Some(difference) => difference,
            },
            Err(error) if error.is_not_found() => "it is gone",
            // A failed read leaves no unknown outcome.
            Err(error) => return StepOutcome::Failed(failure(StepVerb::Read, at.resource(), at.key(), error), None),
        };
        failed(StepVerb::Confirm, at, RequestError::local(FailureClass::Conflict, difference))
    }

    async fn delete(&self, at: &Target, grace_seconds: Option<u32>, sending: &RequestContext) -> StepOutcome {
        let mut preconditions = json!({"uid": at.uid()});
        if let Some(version) = at.version() {
            preconditions["resourceVersion"] = version.to_string().into();
        }
        let mut body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background",
            "preconditions": preconditions});
        if let Some(seconds) = grace_seconds {
            body["gracePeriodSeconds"] = seconds.into();
        }
        let call = sending.write_for_metadata(Method::DELETE, at.resource().object(at.key()), JSON, &body);
        match self.send(at.key().cluster, call).await {
            // The answer is the object if finalizers keep it, and else a Status without a version.
            Ok(answer) => done(at, &answer),
            Err(error) if error.is_not_found() => done_at(at, Until::Gone(at.key().clone(), at.uid().into())),
            Err(error) => failed(StepVerb::Delete, at, error),
        }
    }

    async fn evict(&self, at: &Target, sending: &RequestContext) -> StepOutcome {
        let key = at.key();
        let body = json!({"apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": &*key.name, "namespace": &*key.namespace},
            "deleteOptions": {"preconditions": {"uid": at.uid()}}});
        let url = format!("{}/eviction", at.resource().object(key));
        let call = sending.write(Method::POST, url, JSON, &body);
        let leaving = Until::Leaving(key.clone(), at.uid().into());
        let evictions = self.connections.get(&key.cluster).map(|connection| connection.evictions.clone());
        let _turn = match &evictions {
            Some(evictions) => Some(evictions.enter(&sending.object).await),
            None => None,
        };
        match self.send(key.cluster, call).await {
            Ok(_) => done_at(at, leaving),
            Err(error) if error.is_not_found() => done_at(at, leaving),
            Err(error)
                if matches!(
                    error.class,
                    FailureClass::Expired | FailureClass::Unreachable | FailureClass::Unauthorized
                ) =>
            {
                failed(StepVerb::Evict, at, error)
            }
            // What refuses one Pod, such as a disruption budget, must not stop the evictions of others.
            Err(error) => StepOutcome::Refused { uid: at.uid().into(), error },
        }
    }

    /// Reads the outcome of a write consistently. Returns what a cache must show of it.
    pub(crate) async fn find_out(&self, unsure: &UnknownOutcome) -> Result<Option<Barrier>, RequestError> {
        let UnknownOutcome { resource, key, uid } = unsure;
        let until = match self.send(key.cluster, Call::get(resource.object(key))).await {
            Ok(answer) => version_of(&answer).map(|version| Until::Version(version, Instant::now())),
            Err(error) if error.is_not_found() => uid.clone().map(|uid| Until::Gone(key.clone(), uid)),
            Err(error) => return Err(error),
        };
        Ok(until.map(|until| Barrier { resource: resource.clone(), key: key.clone(), until }))
    }
}

impl Execution {
    fn note<E>(&mut self, step: &Step<E>, end: StepOutcome) {
        match end {
            StepOutcome::Done(barrier) => {
                self.barriers.extend(barrier);
                match step {
                    Step::Apply(apply) if apply.subresource == STATUS => self.status_written = true,
                    Step::Evict(target) => self.evicted.push(target.uid().into()),
                    _ => {}
                }
            }
            StepOutcome::Refused { uid, error } => self.refused.push((uid, error)),
            StepOutcome::Failed(failure, unsure) => {
                self.unsure.extend(unsure);
                // The first failure, unless the next plan can handle a later one, or it was just the end of leadership.
                let weight = |class| match class {
                    FailureClass::Expired => 0,
                    FailureClass::AlreadyExists => 2,
                    _ => 1,
                };
                if self.failure.as_ref().is_none_or(|known| weight(known.class) < weight(failure.class)) {
                    self.failure = Some(failure);
                }
            }
        }
    }
}

pub(crate) fn agent(product: &str, name: &str) -> HeaderValue {
    HeaderValue::try_from(format!("{product} ({name})")).unwrap_or_else(|_| HeaderValue::from_static("controller"))
}

fn path(at: &Target, subresource: &str) -> String {
    let mut path = at.resource().object(at.key());
    if !subresource.is_empty() {
        path.extend(["/", subresource]);
    }
    path
}

fn done(at: &Target, answer: &Response<Bytes>) -> StepOutcome {
    done_at(at, shown(at, version_of(answer)))
}

fn shown(at: &Target, version: Option<u64>) -> Until {
    match version {
        Some(version) => Until::Version(version, Instant::now()),
        None => Until::Gone(at.key().clone(), at.uid().into()),
    }
}

fn done_at(at: &Target, until: Until) -> StepOutcome {
    StepOutcome::Done(Some(Barrier { resource: at.resource().clone(), key: at.key().clone(), until }))
}

fn failed(verb: StepVerb, at: &Target, mut error: RequestError) -> StepOutcome {
    // The object is gone, or a namesake has replaced it.
    if error.is_not_found() || error.is_of_namesake() {
        error.class = FailureClass::Conflict;
    }
    let unsure = is_unsure(error.class).then(|| UnknownOutcome::of(at));
    StepOutcome::Failed(failure(verb, at.resource(), at.key(), error), unsure)
}

/// The end of a step whose body cannot be encoded: nothing was sent.
fn unencodable(verb: StepVerb, resource: &ResourceType, key: &ObjectRef, error: &serde_json::Error) -> StepOutcome {
    let error = RequestError::local(FailureClass::Invalid, error.to_string());
    StepOutcome::Failed(failure(verb, resource, key, error), None)
}

fn failure(verb: StepVerb, resource: &ResourceType, key: &ObjectRef, error: RequestError) -> Failure {
    let RequestError { class, message, retry_after, .. } = error;
    Failure { verb, kind: resource.kind.clone(), key: key.clone(), class, message, retry_after }
}

/// Whether the write may have happened although it failed, so that the cache may be behind.
fn is_unsure(class: FailureClass) -> bool {
    matches!(class, FailureClass::Conflict | FailureClass::AlreadyExists | FailureClass::Unknown)
}

fn difference(answer: &Response<Bytes>, at: &Target, must_be_unchanged: bool) -> Option<&'static str> {
    let Ok(Versioned { metadata }) = json::from_slice(answer.body()) else { return Some("it cannot be read") };
    let version = metadata.resource_version.as_deref().and_then(parse_version);
    if metadata.uid.as_deref() != Some(at.uid()) {
        Some("another object has its name")
    } else if must_be_unchanged {
        (version != Some(at.seen())).then_some("it has changed")
    } else {
        metadata.deletion_timestamp.is_some().then_some("it is being deleted")
    }
}

/// The body of an apply that only creates.
#[derive(Serialize)]
struct Creation<'a> {
    metadata: CreationMeta<'a>,
    #[serde(flatten)]
    others: BTreeMap<&'a str, &'a Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CreationMeta<'a> {
    #[serde(flatten)]
    fields: &'a Value,
    resource_version: &'static str,
}

impl<'a> Creation<'a> {
    fn of(object: &'a Value) -> Self {
        let fields = object.as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value));
        // No object has version 1, that of the empty store: such an apply gets 409 if the object exists, and else creates it.
        let metadata = CreationMeta { fields: &object["metadata"], resource_version: "1" };
        Self { metadata, others: fields.filter(|(key, _)| *key != "metadata").collect() }
    }
}

#[derive(Default, Deserialize)]
struct Versioned {
    #[serde(default)]
    metadata: VersionedMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VersionedMeta {
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<String>,
    finalizers: Vec<String>,
}

/// The version of the object in an answer; `None` if the answer is a Status, or the object is gone with this write.
fn version_of(answer: &Response<Bytes>) -> Option<u64> {
    let Versioned { metadata } = json::from_slice(answer.body()).ok()?;
    standing(metadata.resource_version.as_deref(), metadata.deletion_timestamp.is_some(), &metadata.finalizers)
}

#[cfg(test)]
mod tests;
