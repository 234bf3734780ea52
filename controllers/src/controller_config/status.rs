//! The status of a ControllerConfig: the three conditions of machine-config-operator's template controller, and the certificates.

use nodewright_api::{
    ConditionStatus,
    conditions::controller_config::{COMPLETED, FAILING, RUNNING},
    machine_config::ControllerConfig,
};

use super::{
    certificates,
    memory::{Context, StatusWrite},
    snapshot::Snapshot,
};
use crate::shared::{
    conditions,
    status_writer::{Urgency, write_status},
};

/// How it went, with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Several MachineConfigs are about to change.
    Running,
    Done(String),
    Failing(String),
}

/// Whether the status says of the present generation that the work is done.
pub(super) fn is_done(object: &ControllerConfig) -> bool {
    let Some(status) = &object.status else { return false };
    let is_current = object.metadata.generation.is_none_or(|generation| generation == status.observed_generation);
    is_current && conditions::holding(&status.conditions, COMPLETED).is_some()
}

pub(super) fn of(context: &Context<'_>, snapshot: &Snapshot, state: &State) -> StatusWrite {
    let object = snapshot.object.as_ref();
    let mut wanted = object.status.clone().unwrap_or_default();
    wanted.observed_generation = object.metadata.generation.unwrap_or_default();
    let (running, done, failing) = match state {
        State::Running => (Some(""), None, None),
        State::Done(text) => (None, Some(text.as_str()), None),
        State::Failing(text) => (None, None, Some(text.as_str())),
    };
    wanted.controller_certificates = certificates::list(&object.spec);
    for (kind, holds) in [(RUNNING, running), (COMPLETED, done), (FAILING, failing)] {
        let status = if holds.is_some() { ConditionStatus::True } else { ConditionStatus::False };
        let finding = (status, "", holds.unwrap_or_default().to_owned());
        conditions::set(&mut wanted.conditions, context.now, kind, finding);
    }
    write_status(context, object, wanted, Urgency::Now)
}
