//! The fields that a MachineDeployment writes to its sets and to itself.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use nodewright_api::{
    MachineDeployment, MachineSet, MachineSetSpec, annotations, finalizers, labels,
    stored::{DESIRED_REPLICAS, MAX_REPLICAS, REVISION, REVISION_HISTORY, SIZED_FOR, SizedFor, Updating},
};
use nodewright_runtime::{
    apply_configuration::ApplyConfiguration,
    object::{annotation, uid},
};
use serde::Serialize;

use super::{rollout::Goal, snapshot::SetView};
use crate::shared::{
    metadata::{ChildMeta, SomeAnnotations},
    template, traces,
};

/// Annotations of a MachineDeployment that are never copied to a set: MCM's list, and those that each set has of its own.
const NOT_COPIED: [&str; 14] = [
    annotations::KUBECTL_LAST_APPLIED_CONFIGURATION,
    annotations::REVISION,
    annotations::REVISION_HISTORY,
    annotations::DESIRED_REPLICAS,
    annotations::MAX_REPLICAS,
    annotations::PREFER_NO_SCHEDULE,
    annotations::UNFREEZE,
    annotations::TRIGGER_DELETION,
    annotations::LEDGER,
    annotations::CREATION_BACKOFF,
    annotations::SIZED_FOR,
    annotations::UPDATING,
    annotations::TRACEPARENT,
    annotations::TRACEPARENT_GENERATION,
];

const FOREIGN_ANNOTATIONS: [&str; 5] = [
    annotations::KUBECTL_LAST_APPLIED_CONFIGURATION,
    annotations::PREFER_NO_SCHEDULE,
    annotations::UNFREEZE,
    annotations::LEDGER,
    annotations::CREATION_BACKOFF,
];

const FOREIGN_LABELS: [&str; 2] = [labels::FREEZE, labels::SCALE_UP_DISABLED];

/// The fields of a MachineSet that its deployment owns: read from the set and then changed. Like MCM, it keeps annotations that
/// the set once got from its deployment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct SetPart {
    metadata: ChildMeta,
    pub(super) spec: MachineSetSpec,
}

impl ApplyConfiguration for SetPart {
    type Of = MachineSet;

    fn extract(live: &MachineSet) -> Self {
        let meta = &live.metadata;
        let metadata = ChildMeta {
            labels: without(meta.labels.as_ref(), &FOREIGN_LABELS),
            annotations: without(meta.annotations.as_ref(), &FOREIGN_ANNOTATIONS),
            owner_references: meta
                .owner_references
                .iter()
                .flatten()
                .filter(|it| it.controller == Some(true))
                .cloned()
                .collect(),
            finalizers: meta
                .finalizers
                .iter()
                .flatten()
                .filter(|it| *it == finalizers::MACHINE_CONTROLLER_MANAGER)
                .cloned()
                .collect(),
        };
        Self { metadata, spec: live.spec.clone() }
    }
}

impl SetPart {
    /// A set is created without replicas, so that its creation has no effect, and without a note of a goal.
    fn new(deployment: &MachineDeployment, revision: i64) -> Self {
        let hash = template::hash_label(deployment);
        let labels = deployment.spec.template.metadata.labels.clone().unwrap_or_default();
        let metadata = ChildMeta { labels, ..ChildMeta::default() }.owned_by(deployment);
        let spec = MachineSetSpec { selector: deployment.spec.selector.clone(), ..MachineSetSpec::default() };
        let mut part = Self { metadata, spec };
        part.label(&hash);
        part.follow(deployment, revision);
        part.sized_for(deployment);
        part
    }

    fn label(&mut self, hash: &str) {
        let own = || (labels::MACHINE_TEMPLATE_HASH.to_owned(), hash.to_owned());
        self.metadata.labels.extend([own()]);
        self.spec
            .selector
            .get_or_insert_with(LabelSelector::default)
            .match_labels
            .get_or_insert_default()
            .extend([own()]);
        self.spec.template.metadata.labels.get_or_insert_default().extend([own()]);
    }

    /// Copies from the deployment what may change without a rollout. The set keeps its own hash.
    pub(super) fn follow(&mut self, deployment: &MachineDeployment, revision: i64) {
        let hash =
            self.spec.template.metadata.labels.as_ref().and_then(|it| it.get(labels::MACHINE_TEMPLATE_HASH)).cloned();
        self.spec.template = deployment.spec.template.clone();
        self.spec.template.spec = std::mem::take(&mut self.spec.template.spec).within_bounds();
        let template_labels = self.spec.template.metadata.labels.get_or_insert_default();
        template_labels.remove(labels::MACHINE_TEMPLATE_HASH);
        template_labels.extend(hash.map(|hash| (labels::MACHINE_TEMPLATE_HASH.to_owned(), hash)));
        self.spec.min_ready_seconds = deployment.spec.min_ready_seconds.max(0);
        self.spec.auto_preserve_failed_machine_max = deployment.spec.auto_preserve_failed_machine_max.max(0);
        self.metadata.annotations.extend(copied(deployment.metadata.annotations.as_ref()));
        self.asked_by(deployment);
        self.advance(revision);
    }

    /// Makes the set the newest revision. Its former revision goes into its history.
    fn advance(&mut self, revision: i64) {
        let all = &mut self.metadata.annotations;
        if REVISION.within(all).is_some_and(|before| before.map_or(true, |before| before >= revision)) {
            return;
        }
        let before = REVISION.within(all).and_then(Result::ok);
        REVISION.insert(all, &revision);
        if let Some(before) = before {
            let mut history = REVISION_HISTORY.within(all).and_then(Result::ok).unwrap_or_default();
            history.push(before);
            REVISION_HISTORY.insert(all, &history);
        }
    }

    /// Sets the replicas, and notes the goal: by the notes a later plan recognizes that the deployment was scaled.
    pub(super) fn resize(&mut self, replicas: i64, goal: Goal, deployment: &MachineDeployment) {
        let replicas = i32::try_from(replicas).unwrap_or(i32::MAX);
        if self.spec.replicas != replicas {
            self.spec.replicas = replicas;
            self.sized_for(deployment);
            self.asked_by(deployment);
        }
        let all = &mut self.metadata.annotations;
        DESIRED_REPLICAS.insert(all, &goal.desired);
        MAX_REPLICAS.insert(all, &(goal.desired + goal.surge));
    }

    /// Names the trace of the request that the set follows from.
    fn asked_by(&mut self, deployment: &MachineDeployment) {
        let trace = traces::change(deployment).map(|trace| (annotations::TRACEPARENT.to_owned(), trace.to_string()));
        self.metadata.annotations.extend(trace);
    }

    /// Lists the Machines of other sets that are being updated in place to its template.
    pub(super) fn updates(&mut self, list: Option<&Updating>) {
        let all = &mut self.metadata.annotations;
        match list.filter(|list| !list.0.is_empty()) {
            Some(list) => all.insert(annotations::UPDATING.to_owned(), list.to_string()),
            None => all.remove(annotations::UPDATING),
        };
    }

    /// Notes the generation of the deployment that its size follows from.
    pub(super) fn sized_for(&mut self, deployment: &MachineDeployment) {
        let generation = deployment.metadata.generation.unwrap_or_default();
        let sized = SizedFor { uid: uid(deployment).to_owned(), generation };
        SIZED_FOR.insert(&mut self.metadata.annotations, &sized);
    }

    pub(super) fn adopted_by(self, deployment: &MachineDeployment) -> Self {
        Self { metadata: self.metadata.owned_by(deployment), ..self }
    }
}

pub(super) fn new_set(deployment: &MachineDeployment, revision: i64) -> MachineSet {
    let SetPart { metadata, spec } = SetPart::new(deployment, revision);
    MachineSet { metadata: metadata.named(deployment, template::set_name(deployment)), spec, status: None }
}

/// The revision of the set of the present template: at least one more than that of any other set.
pub(super) fn next_revision<'a>(others: impl Iterator<Item = &'a SetView>) -> i64 {
    others.map(SetView::revision).max().unwrap_or_default().saturating_add(1)
}

pub(super) fn copied(annotations: Option<&BTreeMap<String, String>>) -> BTreeMap<String, String> {
    without(annotations, &NOT_COPIED)
}

fn without(map: Option<&BTreeMap<String, String>>, keys: &[&str]) -> BTreeMap<String, String> {
    let kept = map.into_iter().flatten().filter(|(key, _)| !keys.contains(&key.as_str()));
    kept.map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct RevisionPart {
    metadata: SomeAnnotations,
}

impl RevisionPart {
    pub(super) fn of(current: &MachineSet) -> Self {
        Self { metadata: SomeAnnotations::of(annotations::REVISION, annotation(current, annotations::REVISION)) }
    }
}

impl ApplyConfiguration for RevisionPart {
    type Of = MachineDeployment;

    fn extract(live: &MachineDeployment) -> Self {
        Self { metadata: SomeAnnotations::of(annotations::REVISION, annotation(live, annotations::REVISION)) }
    }
}
