//! The plan of a ControllerConfig.

use std::{collections::BTreeSet, sync::Arc};

use jiff::SignedDuration;
use nodewright_api::{
    field,
    finalizers::CONTROLLER_CONFIG as FINALIZER,
    machine_config::{CONTROLLER_CONFIG, MachineConfig},
    validation::Validate,
};
use nodewright_render::templates::Generated as Made;
use nodewright_runtime::{
    finalizers as finalizer,
    object::{Target, is_deleting, name},
    plan::{Planned, Step},
};

use super::{
    call::{Generate, Outcome, revision},
    memory::{Context, Plan},
    snapshot::Snapshot,
    status::{self, State},
};
use crate::shared::{
    TARGET,
    generated::{Generated, conflict, is_as_generated},
    machine_config::{CachedConfig, LARGEST, Operator},
};

/// How old what was read of the folder may be.
const PERIOD: SignedDuration = SignedDuration::from_secs(10);

pub(super) fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
    let mut plan = Plan::idle();
    plan.scoped_watch(Operator::watch());
    if name(snapshot.object.as_ref()) != CONTROLLER_CONFIG
        || snapshot.operator.blocks(context, |renewal| renewal, &mut plan)
    {
        return plan;
    }
    if is_deleting(snapshot.object.as_ref()) {
        finalize(context, snapshot, &mut plan);
        return plan;
    }
    let errors = snapshot.object.validate();
    if !errors.is_empty() {
        // No webhook has reviewed it. What was made of it before stays.
        status::of(context, snapshot, &State::Failing(field::summary(&errors))).add_to(&mut plan);
        return plan;
    }
    let Some(folder) = &snapshot.templates else {
        status::of(
            context,
            snapshot,
            &State::Done("there are no templates: --machine-config-templates is not set".into()),
        )
        .add_to(&mut plan);
        return plan;
    };
    let call = Generate { folder: folder.clone(), object: snapshot.object.clone() };
    let outcome = outcome(context, call, &mut plan);
    match outcome.map(|outcome| outcome.result.as_ref()) {
        None => drop(plan.wait("TemplatesUnread", "the templates have yet to be read and rendered")),
        Some(Ok(made)) => generate(context, snapshot, made, &mut plan),
        Some(Err(text)) => {
            status::of(context, snapshot, &State::Failing(text.clone())).add_to(&mut plan);
        }
    }
    plan
}

/// What the templates make of the object as it is, if that is known. Looks into the folder again if that was long ago.
fn outcome<'a>(context: &Context<'a>, call: Generate, plan: &mut Plan) -> Option<&'a Outcome> {
    let known = context.outcomes.get(&call);
    let last = known.and_then(|known| known.last.as_ref());
    let last = last.filter(|(_, outcome)| outcome.revision == revision(&call.object));
    let due = last.map_or(context.now, |(ended, _)| ended.checked_add(PERIOD).unwrap_or(context.now));
    if due > context.now {
        plan.wake_at(due);
    } else if !context.outcomes.is_running(&call) {
        plan.then("what do the templates make of it?", Step::Call(call));
    }
    last.map(|(_, outcome)| outcome)
}

/// Lets the object go once no pool selects what was generated: its garbage collection would take that along.
fn finalize(context: &Context<'_>, snapshot: &Snapshot, plan: &mut Plan) {
    let Some(needed) = &snapshot.needed else {
        let remove = finalizer::remove(&snapshot.object.metadata, FINALIZER);
        plan.then("no pool selects what was generated", Step::edit(TARGET, snapshot.object.as_ref(), remove));
        return;
    };
    let text = format!(
        "it is being deleted, and stays because {needed}, which would go with it. If that was a mistake: save its spec, remove the \
         finalizer {FINALIZER}, and create it again at once"
    );
    plan.wait("InUse", text.clone());
    status::of(context, snapshot, &State::Failing(text)).add_to(plan);
}

fn generate(context: &Context<'_>, snapshot: &Snapshot, made: &[Made], plan: &mut Plan) {
    let (mut writes, mut problems) = (vec![], vec![]);
    for each in made {
        match write(snapshot, each) {
            Ok(planned) => writes.extend(planned),
            Err(text) => problems.push(text),
        }
    }
    let stale = if problems.is_empty() { stale(snapshot, made) } else { vec![] };
    let told = state_before(context, snapshot, &problems, writes.len() + stale.len());
    let told = told.map(|state| status::of(context, snapshot, &state).plan().stages).unwrap_or_default();
    let is_told = !told.is_empty();
    let add = finalizer::add(&snapshot.object.metadata, FINALIZER);
    plan.then("what is generated stays while a pool selects it", Step::edit(TARGET, snapshot.object.as_ref(), add));
    plan.stages.extend(told);
    plan.stage(writes);
    plan.stage(stale);
    // After what it speaks of, and not in one plan with another one.
    if !is_told && problems.is_empty() {
        plan.stages.extend(status::of(context, snapshot, &State::Done(String::new())).plan().stages);
    }
}

/// What the status has to say before something is written: whatever becomes of the writes, no pool may take a part of them for
/// all. A pool waits anyway if the status is not of the present generation, or does not say that the work is done.
fn state_before(context: &Context<'_>, snapshot: &Snapshot, problems: &[String], writes: usize) -> Option<State> {
    if !problems.is_empty() {
        return Some(State::Failing(problems.join("; ")));
    }
    if writes == 0 {
        return None;
    }
    let failure = context.failure.filter(|failure| failure.is_of::<MachineConfig>() && !failure.is_passing());
    if let Some(failure) = failure {
        return Some(State::Failing(failure.to_string()));
    }
    (writes > 1 && status::is_done(&snapshot.object)).then_some(State::Running)
}

/// The step that makes a MachineConfig what it has to be, if it is not; else why that cannot be.
fn write(snapshot: &Snapshot, made: &Made) -> Result<Option<Planned<Generate>>, String> {
    let Made { name, role, spec, digest } = made;
    if let Some(text) = snapshot.unreadable.get(name) {
        return Err(text.clone());
    }
    let generated = Generated { name, role, spec, inputs: digest };
    let existing = match snapshot.configs.get(name) {
        None => None,
        // It is made again once it is gone.
        Some(existing) if is_deleting(existing.as_ref()) => return Ok(None),
        Some(existing) => {
            if let Some(text) = conflict(existing, snapshot.object.as_ref()) {
                return Err(text);
            }
            if is_as_generated(existing, role, digest) {
                return Ok(None);
            }
            Some(existing)
        }
    };
    let size = serde_json::to_string(spec).map_or(usize::MAX, |text| text.len());
    if size > LARGEST {
        return Err(format!("MachineConfig {name} has {size} bytes, and an API server takes at most {LARGEST}"));
    }
    let (why, step) = match existing {
        None => ("the templates make it", generated.create(snapshot.object.as_ref())),
        Some(existing) => ("it is made of other inputs, or was changed", generated.restore(existing)),
    };
    Ok(step.map(|step| Planned { why: why.into(), step }))
}

/// Deletes what templates no longer make.
fn stale(snapshot: &Snapshot, made: &[Made]) -> Vec<Planned<Generate>> {
    let names: BTreeSet<_> = made.iter().map(|made| made.name.as_str()).collect();
    let stale = snapshot.owned.iter().filter(|config| !names.contains(name(config.as_ref())));
    let delete = |config: &Arc<CachedConfig>| Step::Delete(Target::of(TARGET, config.as_ref()).if_unchanged());
    stale.map(|config| Planned { why: "the templates no longer make it".into(), step: delete(config) }).collect()
}
