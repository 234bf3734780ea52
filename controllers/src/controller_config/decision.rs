//! What becomes of a `ControllerConfig`: whether it may go, and what its templates make of it.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{field, finalizers::CONTROLLER_CONFIG as FINALIZER, validation::Validate};
use nodewright_runtime::object::is_deleting;

use super::{
    call::{Generate, Made, revision},
    memory::Context,
    snapshot::Snapshot,
};

/// How old what was read of the folder may be.
const PERIOD: SignedDuration = SignedDuration::from_secs(10);

pub(super) enum Decision<'a> {
    /// It is being deleted, and no pool selects what was generated.
    RemoveFinalizer,
    /// It is being deleted, and stays while pools select what was generated: its garbage collection would take that along.
    AwaitPools(String),
    /// It is invalid. What was made of it before stays.
    Fail(String),
    NoTemplates,
    /// The Secret with what templates may print has yet to be read.
    AwaitPullSecret,
    /// What the templates make of the object as it is, or why they make nothing; `None` until that is known.
    Generate(Look, Option<&'a Result<Made, String>>),
}

/// When the folder is read again.
pub(super) enum Look {
    At(Timestamp),
    Now(Generate),
    Running,
}

pub(super) fn decide<'a>(context: &Context<'a>, snapshot: &Snapshot) -> Decision<'a> {
    if is_deleting(snapshot.object.as_ref()) {
        return snapshot.needed.as_ref().map_or(Decision::RemoveFinalizer, |needed| {
            Decision::AwaitPools(format!(
                "it is being deleted, and stays because {needed}, which would go with it. If that was an error: save its spec, \
                 remove the finalizer {FINALIZER}, and create it again at once"
            ))
        });
    }
    let errors = snapshot.object.validate();
    if !errors.is_empty() {
        // No webhook has reviewed it.
        return Decision::Fail(field::summary(&errors));
    }
    let Some(folder) = &snapshot.templates else { return Decision::NoTemplates };
    let Some(pull_secret) = snapshot.pull_secret.clone() else { return Decision::AwaitPullSecret };
    generation(context, Generate { folder: folder.clone(), object: snapshot.object.clone(), pull_secret })
}

fn generation<'a>(context: &Context<'a>, call: Generate) -> Decision<'a> {
    let last = context.outcomes.get(&call).and_then(|known| known.last.as_ref());
    let last = last.filter(|(_, outcome)| outcome.revision == revision(&call));
    let due = last.map_or(context.now, |(ended, _)| ended.checked_add(PERIOD).unwrap_or(context.now));
    let look = if due > context.now {
        Look::At(due)
    } else if context.outcomes.is_running(&call) {
        Look::Running
    } else {
        Look::Now(call)
    };
    Decision::Generate(look, last.map(|(_, outcome)| &outcome.result))
}
