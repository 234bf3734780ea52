//! The Machines that a set adopts and creates, and the fields that they get from its template: then, and later.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use nodewright_api::{
    ClassRef, Machine, MachineSet, MachineSpec, NodeTemplate, annotations, validation::template_size,
};
use nodewright_observability::trace::TraceContext;
use nodewright_runtime::{
    apply_configuration::ApplyConfiguration,
    effect::Never,
    object::{annotation, is_deleting, name},
    plan::{FailureClass, Planned, Step},
};
use serde::Serialize;

use super::{
    creation_timeout,
    memory::Context,
    snapshot::{BATCH, Members},
};
use crate::shared::{CONTROL, ledger::Ordinal, metadata::ChildMeta};

/// The fields that a Machine gets from its set: all fields of its creation. The Machine controller owns the rest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct MachinePart {
    metadata: ChildMeta,
    spec: MachineSpec,
}

impl MachinePart {
    pub(super) fn of(set: &MachineSet, ordinal: Option<Ordinal>) -> Self {
        let template = &set.spec.template;
        let mut annotations = template.metadata.annotations.clone().unwrap_or_default();
        annotations.extend(ordinal.map(|ordinal| (annotations::INDEX.to_owned(), ordinal.to_string())));
        for key in [annotations::TRACEPARENT, annotations::EFFECTIVE_CREATION_TIMEOUT] {
            annotations.extend(annotation(set, key).map(|value| (key.to_owned(), value.to_owned())));
        }
        TraceContext::normalize(&mut annotations, annotations::TRACEPARENT);
        let mut spec = template.spec.clone().within_bounds();
        spec.provider_id = String::new();
        let labels = template.metadata.labels.clone().unwrap_or_default();
        Self { metadata: ChildMeta { labels, annotations, ..ChildMeta::default() }.owned_by(set), spec }
    }

    /// The fields that an existing Machine takes over from the template: node template, timeouts, class kind. It keeps its
    /// class, from which its VM was created, its metadata as far as it still has what it was created with, and, in deletion, a
    /// shorter drain timeout of its own.
    pub(super) fn for_live(mut self, live: &Machine) -> Self {
        let mut metadata = self.extract_like(live).metadata;
        let is_own = |key: &String| self.metadata.annotations.contains_key(key);
        metadata.annotations = live.metadata.annotations.clone().unwrap_or_default();
        // It may have grown since the Machine was created, or before.
        let is_timeout = |key: &String| key == annotations::EFFECTIVE_CREATION_TIMEOUT;
        metadata.annotations.retain(|key, _| is_own(key) || is_timeout(key));
        self.metadata = metadata;
        self.spec.class = ClassRef { kind: self.spec.class.kind, ..live.spec.class.clone() };
        if is_deleting(live) {
            // A user shortens a drain that has begun by a change of the Machine.
            let timeouts = [self.spec.drain_timeout, live.spec.drain_timeout];
            self.spec.drain_timeout = timeouts.into_iter().flatten().min_by_key(|timeout| timeout.to_std());
        }
        self
    }

    /// The fields of a Machine without an owner that the set adopts: the same, with an owner and the finalizer.
    pub(super) fn adopting(self, set: &MachineSet, live: &Machine) -> Self {
        let part = self.for_live(live);
        Self { metadata: part.metadata.owned_by(set), ..part }
    }

    pub(super) fn machine(self, set: &MachineSet, name: String) -> Machine {
        Machine { metadata: self.metadata.named(set, name), spec: self.spec, status: None }
    }
}

impl ApplyConfiguration for MachinePart {
    type Of = Machine;

    fn extract(live: &Machine) -> Self {
        let meta = &live.metadata;
        let metadata = ChildMeta {
            labels: meta.labels.clone().unwrap_or_default(),
            annotations: meta.annotations.clone().unwrap_or_default(),
            owner_references: meta.owner_references.clone().unwrap_or_default(),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
        };
        let spec = MachineSpec { provider_id: String::new(), ..live.spec.clone() };
        Self { metadata, spec }
    }

    fn extract_like(&self, live: &Machine) -> Self {
        let mut seen = Self::extract(live);
        let wanted = &self.metadata;
        seen.metadata.labels.retain(|key, _| wanted.labels.contains_key(key));
        seen.metadata.annotations.retain(|key, _| wanted.annotations.contains_key(key));
        seen.metadata.owner_references.retain(|owner| wanted.owner_references.iter().any(|own| own.uid == owner.uid));
        seen.metadata.finalizers.retain(|finalizer| wanted.finalizers.contains(finalizer));
        seen
    }
}

pub(super) fn updates(members: &Members<'_>) -> Vec<Planned<Never>> {
    let set = members.snapshot.set.as_ref();
    // Usually none of thousands of Machines differs, so they are compared first, and only those that differ are converted.
    let update = |machine: &Arc<Machine>| {
        let part = MachinePart::of(set, members.ordinal(machine)).for_live(machine);
        let step = Step::apply(CONTROL, machine.as_ref(), part);
        Planned::new("the template changed in what machines take over in place", step)
    };
    if template_size(&set.spec.template).is_some() {
        return vec![];
    }
    differing(&set.spec.template.spec, members).filter_map(update).take(BATCH).collect()
}

fn differing<'a>(template: &'a MachineSpec, members: &'a Members<'_>) -> impl Iterator<Item = &'a Arc<Machine>> {
    // Machines share their node template: compare an equal one only once.
    let mut equal: Option<&Arc<NodeTemplate>> = None;
    members.snapshot.machines.iter().filter(move |machine| {
        let known = equal.is_some_and(|equal| Arc::ptr_eq(equal, &machine.spec.node_template));
        let same = known || machine.spec.node_template == template.node_template;
        equal = Some(&machine.spec.node_template).filter(|_| same).or(equal);
        !same || !is_same_beside_node_template(template, &machine.spec)
    })
}

/// Lists all fields, so that a new field cannot be forgotten.
fn is_same_beside_node_template(template: &MachineSpec, live: &MachineSpec) -> bool {
    let MachineSpec {
        class,
        provider_id: _,
        node_template: _,
        drain_timeout,
        health_timeout,
        creation_timeout,
        in_place_update_timeout,
        machine_preserve_timeout,
        disable_health_timeout,
        max_evict_retries,
        node_conditions,
    } = template;
    class.kind == live.class.kind
        && *drain_timeout == live.drain_timeout
        && *health_timeout == live.health_timeout
        && *creation_timeout == live.creation_timeout
        && *in_place_update_timeout == live.in_place_update_timeout
        && *machine_preserve_timeout == live.machine_preserve_timeout
        && *disable_health_timeout == live.disable_health_timeout
        && *max_evict_retries == live.max_evict_retries
        && *node_conditions == live.node_conditions
}

/// The adoption of up to `count` orphans, before any Machine is created: after a restore they are the fleet.
pub(super) fn adoptions(members: &Members<'_>, count: usize) -> Vec<Planned<Never>> {
    let adopt = |machine: &Arc<Machine>| {
        let set = members.snapshot.set.as_ref();
        let part = MachinePart::of(set, members.ordinal(machine)).adopting(set, machine);
        let step = Step::apply_if_unchanged(CONTROL, machine.as_ref(), part);
        Planned::new("the set selects the machine, which has no owner", step)
    };
    members.snapshot.orphans.iter().take(count).filter_map(adopt).collect()
}

pub(super) fn taken(context: &Context<'_>, members: &Members<'_>, next: &[Ordinal]) -> Vec<Ordinal> {
    if next.is_empty() {
        return vec![];
    }
    let snapshot = members.snapshot;
    let unnumbered = snapshot.machines.iter().filter(|machine| members.ordinal(machine).is_none());
    let held = snapshot.namesakes.iter().chain(unnumbered).chain(&snapshot.orphans);
    let held: BTreeSet<&str> = held.map(|machine| name(machine.as_ref())).collect();
    // The cache has caught up with the server since. If it does not show the Machine with this name, that one is gone.
    let refused = context.failure.filter(|failure| failure.class == FailureClass::AlreadyExists);
    let refused = refused.map(|failure| &*failure.key.name);
    let is_taken = |ordinal: &&Ordinal| {
        let name = members.name(**ordinal);
        held.contains(name.as_str()) || refused == Some(name.as_str())
    };
    next.iter().filter(is_taken).copied().collect()
}

pub(super) fn creations(members: &Members<'_>, ordinals: Vec<Ordinal>, now: Timestamp) -> Vec<Machine> {
    let set = members.snapshot.set.as_ref();
    let timeout = creation_timeout::grown(set, members.snapshot.settings.fleet.creation_timeouts, now);
    let timeout = timeout.map(|grown| (annotations::EFFECTIVE_CREATION_TIMEOUT.to_owned(), grown.to_string()));
    let create = |ordinal: Ordinal| {
        let mut part = MachinePart::of(set, Some(ordinal));
        part.metadata.annotations.extend(timeout.clone());
        part.machine(set, members.name(ordinal))
    };
    ordinals.into_iter().map(create).collect()
}
