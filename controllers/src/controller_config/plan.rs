//! The plan of a ControllerConfig.

use std::{collections::BTreeSet, sync::Arc};

use nodewright_api::{
    finalizers::CONTROLLER_CONFIG as FINALIZER,
    machine_config::{CONTROLLER_CONFIG, MachineConfig},
};
use nodewright_render::LARGEST;
use nodewright_render::templates::Generated as MadeConfig;
use nodewright_runtime::{
    finalizers as finalizer,
    object::{Target, is_deleting, name},
    plan::{Planned, Step},
};

use super::{
    call::{Generate, Made},
    decision::{Decision, Look, decide},
    memory::{Context, Plan},
    pull_secret,
    snapshot::Snapshot,
    status::{self, State},
};
use crate::shared::{
    TARGET,
    generated::{Generated, conflict, is_as_generated},
    machine_config::{CachedConfig, Operator},
    pool_traces::follow_change,
};

pub(super) fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
    let mut plan = Plan::idle();
    plan.scoped_watch(Operator::watch());
    let object = snapshot.object.as_ref();
    if name(object) != CONTROLLER_CONFIG || snapshot.operator.blocks(context, |renewal| renewal, &mut plan) {
        return plan;
    }
    if context.traces {
        follow_change(object, object.status.as_ref().map(|status| status.observed_generation), &mut plan);
    }
    if snapshot.templates.is_some() {
        plan.scoped_watches.extend(pull_secret::watch(&object.spec));
    }
    match decide(context, snapshot) {
        Decision::RemoveFinalizer => {
            let remove = finalizer::remove(&object.metadata, FINALIZER);
            plan.then("no pool selects what was generated", Step::edit(TARGET, object, remove));
        }
        Decision::AwaitPools(text) => {
            plan.wait("InUse", text.clone());
            status::of(context, snapshot, &State::Failing(text)).add_to(&mut plan);
        }
        Decision::Fail(text) => status::of(context, snapshot, &State::Failing(text)).add_to(&mut plan),
        Decision::NoTemplates => {
            let text = "there are no templates: --machine-config-templates is not set";
            status::of(context, snapshot, &State::Done(text.into())).add_to(&mut plan);
        }
        Decision::AwaitPullSecret => {
            plan.wait("PullSecretPending", "the Secret that spec.pullSecret names has yet to be read");
        }
        Decision::Generate(look, made) => {
            match look {
                Look::At(due) => drop(plan.wake_at(due)),
                Look::Now(call) => drop(plan.then("read and render the templates", Step::Call(call))),
                Look::Running => {}
            }
            match made {
                None => drop(plan.wait("TemplatesUnread", "the templates have yet to be read and rendered")),
                Some(Ok(made)) => generate(context, snapshot, made, &mut plan),
                Some(Err(text)) => status::of(context, snapshot, &State::Failing(text.clone())).add_to(&mut plan),
            }
        }
    }
    plan
}

fn generate(context: &Context<'_>, snapshot: &Snapshot, made: &Made, plan: &mut Plan) {
    let (mut writes, mut errors) = (vec![], vec![]);
    for each in made.configs.iter() {
        match write(snapshot, each) {
            Ok(planned) => writes.extend(planned),
            Err(text) => errors.push(text),
        }
    }
    let stale = if errors.is_empty() { stale(snapshot, &made.configs) } else { vec![] };
    let early = state_before(context, snapshot, &errors, writes.len() + stale.len());
    let early = early.map(|state| status::of(context, snapshot, &state).plan().stages).unwrap_or_default();
    let is_reported = !early.is_empty();
    let add = finalizer::add(&snapshot.object.metadata, FINALIZER);
    plan.then("what is generated stays while a pool selects it", Step::edit(TARGET, snapshot.object.as_ref(), add));
    plan.stages.extend(early);
    plan.stage(writes);
    plan.stage(stale);
    // After what it speaks of, and not in one plan with another one.
    if !is_reported && errors.is_empty() {
        plan.stages.extend(status::of(context, snapshot, &State::Done(made.warnings.clone())).plan().stages);
    }
}

/// What the status has to say before something is written: whatever becomes of the writes, no pool may take a part of them for
/// all. A pool waits anyway if the status is not of the present generation, or does not say that the work is done.
fn state_before(context: &Context<'_>, snapshot: &Snapshot, errors: &[String], writes: usize) -> Option<State> {
    if !errors.is_empty() {
        return Some(State::Failing(errors.join("; ")));
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
fn write(snapshot: &Snapshot, made: &MadeConfig) -> Result<Option<Planned<Generate>>, String> {
    let MadeConfig { name, role, spec, digest } = made;
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
    Ok(Planned::new(why, step))
}

/// Deletes what templates no longer make.
fn stale(snapshot: &Snapshot, made: &[MadeConfig]) -> Vec<Planned<Generate>> {
    let names: BTreeSet<_> = made.iter().map(|made| made.name.as_str()).collect();
    let stale = snapshot.owned.iter().filter(|config| !names.contains(name(config.as_ref())));
    let delete = |config: &Arc<CachedConfig>| Step::Delete(Target::of(TARGET, config.as_ref()).if_unchanged());
    stale.map(|config| Planned { why: "the templates no longer make it".into(), step: delete(config) }).collect()
}
