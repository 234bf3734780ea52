//! The plan of a MachineConfigPool.

use nodewright_api::{
    annotations::RENDER_INPUTS,
    machine_config::{MachineConfigPool, PoolConfiguration},
    reasons::machine_config_pool as reasons,
};
use nodewright_runtime::{
    annotations,
    apply_configuration::ApplyConfiguration,
    effect::Never,
    object::{annotation, is_deleting, name},
    plan::{Context, Plan, Planned, Step},
};
use serde::Serialize;
use serde_json::Value;

use super::{
    Settings,
    decision::{Decision, QUIET_PERIOD, decide, source},
    garbage,
    snapshot::{Rendering, Snapshot},
    status,
};
use crate::shared::{
    TARGET,
    machine_config::CachedConfig,
    patch::{same_version, set},
};

pub(super) fn plan(settings: &Settings, context: &Context<'_, Never>, snapshot: &Snapshot) -> Plan<Never> {
    let mut plan = Plan::idle();
    plan.scoped_watches.extend(snapshot.scoped_watches.iter().cloned());
    if is_deleting(snapshot.pool.as_ref()) {
        // Garbage collection deletes what it owns.
        return plan;
    }
    if snapshot.operator.holds_up(context, &mut plan) {
        return plan;
    }
    let decision = decide(context, snapshot);
    say(&decision, &mut plan);
    plan.stage(prepare(&decision, snapshot));
    let garbage = garbage::collect(snapshot, decision.wanted(), settings.rendered_retention, context.now);
    plan.append(garbage);
    match target(&decision, snapshot) {
        // It makes another generation, of which the next plan writes the status.
        Some(step) => drop(plan.then("it is what the pool selects, and has been for a while", step)),
        None => status::write(context, snapshot, &decision).add_to(&mut plan),
    }
    plan
}

/// The waits of a decision.
fn say(decision: &Decision<'_>, plan: &mut Plan<Never>) {
    match decision {
        Decision::Hold(reason, text) => drop(plan.wait(reason, format!("the target stays: {text}"))),
        Decision::Wait(text) => drop(plan.wait(reasons::WAITING_FOR_INPUTS, text.clone())),
        Decision::Ripen(name, until) => {
            let text = format!("{name} becomes the target at {until}, if nothing else is selected until then");
            plan.wait_until(*until, QUIET_PERIOD, text);
        }
        Decision::Keep(_) | Decision::Create(..) | Decision::Adopt(_) | Decision::Target(_) => {}
    }
}

impl Decision<'_> {
    /// The name of what is wanted, if it is known.
    fn wanted(&self) -> Option<&str> {
        match self {
            Self::Keep(name) | Self::Create(name, _) | Self::Ripen(name, _) | Self::Target(name) => Some(name),
            Self::Adopt(config) => Some(name(*config)),
            Self::Hold(..) | Self::Wait(_) => None,
        }
    }
}

/// The steps before the target is written: what it names exists, belongs to the pool, is marked by nobody, and says of what it
/// is rendered.
fn prepare(decision: &Decision<'_>, snapshot: &Snapshot) -> Vec<Planned<Never>> {
    let mut steps = vec![];
    match decision {
        Decision::Create(_, step) => {
            steps.push(Planned { why: "it is what the pool selects".into(), step: (**step).clone() });
        }
        Decision::Adopt(config) => steps.extend(adopt(config, &snapshot.pool)),
        Decision::Keep(wanted) | Decision::Ripen(wanted, _) | Decision::Target(wanted) => {
            let existing = snapshot.existing.iter().filter(|existing| name(existing.as_ref()) == *wanted);
            for existing in existing {
                steps.extend(garbage::unmark(existing));
                steps.extend(note_inputs(existing, &snapshot.rendering));
            }
        }
        Decision::Hold(..) | Decision::Wait(_) => {}
    }
    steps
}

/// Makes the pool the owner of an object that has none: it was left when a former pool of the name was deleted.
fn adopt(config: &CachedConfig, pool: &MachineConfigPool) -> Option<Planned<Never>> {
    let owner = kube::Resource::controller_owner_ref(pool, &())?;
    let patch = json_patch::Patch(vec![
        same_version(&config.metadata),
        set(&["metadata", "ownerReferences"], serde_json::to_value([owner]).ok()?),
    ]);
    let step = Step::edit(TARGET, config, patch)?;
    Some(Planned { why: "it is what the pool selects, and belongs to nobody".into(), step })
}

/// Other inputs may render to the same.
fn note_inputs(config: &CachedConfig, rendering: &Rendering) -> Option<Planned<Never>> {
    let Rendering::Done(_, digest) = rendering else { return None };
    if annotation(config, RENDER_INPUTS) == Some(digest) {
        return None;
    }
    let step = Step::edit(TARGET, config, annotations::set(&config.metadata, RENDER_INPUTS, Some(digest)))?;
    Some(Planned { why: "it is rendered of other inputs now, and is the same".into(), step })
}

/// The step that writes the target, and what it is rendered of.
fn target(decision: &Decision<'_>, snapshot: &Snapshot) -> Option<Step<Never>> {
    let (Decision::Keep(wanted) | Decision::Target(wanted)) = decision else { return None };
    let source = snapshot.sources.iter().map(|name| source(name)).collect();
    let part = PoolTarget { spec: Spec { configuration: Configuration { name: (*wanted).to_owned(), source } } };
    Step::apply_if_unchanged(TARGET, snapshot.pool.as_ref(), &part)
}

/// What we write of the spec of a pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct PoolTarget {
    spec: Spec,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Spec {
    configuration: Configuration,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Configuration {
    name: String,
    source: Vec<Value>,
}

impl ApplyConfiguration for PoolTarget {
    type Of = MachineConfigPool;

    fn extract(live: &MachineConfigPool) -> Self {
        let PoolConfiguration { name, source, .. } = live.spec.configuration.clone();
        let source = source.iter().map(|source| serde_json::to_value(source).unwrap_or_default()).collect();
        Self { spec: Spec { configuration: Configuration { name: name.unwrap_or_default(), source } } }
    }
}
