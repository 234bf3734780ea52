//! Machines that come and go after the time that they usually take.

use std::collections::BTreeMap;

use jiff::Timestamp;
use nodewright_api::{Machine, MachinePhase};
use nodewright_runtime::object::{ObjectRef, created, is_deleting};
use serde_json::{Value, json};

use super::Durations;
use crate::shared::{CONTROL, ownership::vm_id};

/// What happens to a Machine by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Vm,
    Running,
    Gone,
    /// Its Node was selected for an update in place, and is drained.
    Permitted,
    /// The program on its Node has updated it.
    Updated,
    /// The Node takes Pods again.
    Opened,
}

/// What happens when. Of the same moment, in the order in which it was foreseen.
#[derive(Debug, Default)]
pub(super) struct Events {
    of: BTreeMap<(Timestamp, usize), (ObjectRef, Event)>,
    foreseen: usize,
}

impl Events {
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.of.keys().next().map(|(at, _)| *at)
    }

    /// What is due, one after the other.
    pub(super) fn pop(&mut self, now: Timestamp) -> Option<(ObjectRef, Event)> {
        let first = self.of.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }

    /// Something happens to a Machine, or its Node.
    pub(super) fn add(&mut self, at: Timestamp, key: ObjectRef, event: Event) {
        self.foreseen += 1;
        self.of.insert((at, self.foreseen), (key, event));
    }

    /// What a Machine does that exists already, or was created or deleted just now.
    pub(super) fn foresee(&mut self, machine: &Machine, durations: Durations, now: Timestamp) {
        let key = ObjectRef::of(CONTROL, machine);
        let mut add = |since: Option<Timestamp>, takes, event| {
            let at = since.unwrap_or(now).saturating_add(takes).unwrap_or(now).max(now);
            self.add(at, key.clone(), event);
        };
        if let Some(deleted) = &machine.metadata.deletion_timestamp {
            return add(Some(deleted.0), durations.deletion, Event::Gone);
        }
        let created = created(machine);
        // One whose creation fails stays so.
        if matches!(machine.phase(), MachinePhase::Unset | MachinePhase::Pending) {
            if vm_id(machine).is_none() {
                add(created, durations.vm, Event::Vm);
            }
            add(created, durations.creation, Event::Running);
        }
    }
}

/// The machine after an event; `None` if that does not concern it any more.
pub(super) fn after(mut machine: Value, decoded: &Machine, event: Event, now: Timestamp) -> Option<Value> {
    if is_deleting(decoded) {
        return None;
    }
    let phase = match event {
        Event::Gone | Event::Permitted | Event::Updated | Event::Opened => return None,
        Event::Vm => {
            machine["spec"]["providerID"] = format!("preview:///{}", decoded.metadata.name.as_deref()?).into();
            "Pending"
        }
        Event::Running => "Running",
    };
    with_phase(machine, phase, now)
}

/// The machine in another phase.
pub(super) fn with_phase(mut machine: Value, phase: &str, now: Timestamp) -> Option<Value> {
    let status = machine.as_object_mut()?.entry("status").or_insert_with(|| json!({}));
    status["currentStatus"] = json!({"phase": phase, "lastUpdateTime": now.to_string()});
    Some(machine)
}
