//! The plan of a MachineConfigPool.

use jiff::Timestamp;
use nodewright_api::{
    annotations::{POOL_ROLLOUT, RENDER_INPUTS},
    machine_config::{MachineConfig, MachineConfigPool, PoolConfiguration},
    reasons::machine_config_pool as reasons,
};
use nodewright_runtime::{
    annotations,
    apply_configuration::ApplyConfiguration,
    events::Event,
    object::{ResourceType, annotation, is_deleting, name},
    plan::{Notes, Planned, Step, reference},
};
use serde::Serialize;
use serde_json::Value;

use super::{
    call::Render,
    decision::{Decision, QUIET_PERIOD, SETTLING, decide, source},
    etcd::Etcd,
    garbage, members,
    memory::{Context, Note, Plan, StatusWrite},
    nodes,
    progress::{self, PoolView},
    rendering::{Rendering, Scope},
    rollout::Blocked,
    snapshot::Snapshot,
    status, trace,
};
use crate::shared::{
    TARGET,
    machine_config::{CachedConfig, Operator, target_ref},
    metadata::SomeAnnotations,
    patch::{same_version, set},
};

/// The reason of a pool that waits to know which of its Nodes are disrupted.
const READING_NODES: &str = "ReadingNodes";

pub(super) fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
    let mut plan = Plan::idle();
    plan.scoped_watch(Operator::watch());
    if is_deleting(snapshot.pool.as_ref()) {
        // Garbage collection deletes what it owns.
        return plan;
    }
    if snapshot.operator.blocks(context, Note::Operator, &mut plan) {
        let event = operator_event(context, snapshot, &plan);
        plan.events.extend(event);
        return plan;
    }
    let scope = Scope::of(context, snapshot);
    plan.scoped_watches.extend(scope.scoped_watches());
    let decision = decide(context, &scope);
    if let Decision::Render(call, at) = decision {
        roll(context, snapshot, None, &mut plan);
        render(context, call, at, &mut plan);
        return plan;
    }
    wait(&decision, snapshot, &mut plan);
    if let Rendering::Settled(Some(call)) = &scope.rendering {
        // What it was rendered to is of no use any more, and may be large.
        plan.then("drop what was rendered", Step::Call(call.clone()));
    }
    if let Decision::Wait(_) = &decision {
        // Until it is known what is desired, the notes stay.
        plan.notes = Notes::Keep;
    } else {
        // Of the target, too: if another writer changes it, it is written back at once.
        plan.notes.extend(Notes::Clear);
        plan.notes.extend(decision.wanted().map(|name| Note::Desired(name.to_owned())).into_iter().collect());
    }
    plan.stage(prepare(&decision, &scope));
    // It makes another generation, of which the next plan writes the status.
    if let Some(step) = target(context, &decision, snapshot) {
        plan.then("it is what the pool selects, and has been for a while", step);
        plan.events.extend(target_event(&decision, snapshot));
        trace::targeted(context, snapshot, decision.wanted().unwrap_or_default(), &mut plan);
    } else if let Some(step) = restored(context, snapshot) {
        plan.then("it was the target, and no other one has been chosen", step);
    } else {
        roll(context, snapshot, Some(&decision), &mut plan);
    }
    // Nothing waits for that.
    plan.append(garbage::collect(snapshot, decision.wanted(), context.now));
    plan
}

/// Moves Nodes to the target, and reports how far they are. The claims are a write of the pool: its status follows in the next plan.
/// The write of the pool comes first: that of a Node may be refused. Without a decision about the target, it stays, and nothing is said.
fn roll(context: &Context<'_>, snapshot: &Snapshot, decision: Option<&Decision<'_>>, plan: &mut Plan) {
    let pool = snapshot.pool.as_ref();
    if snapshot.members.is_lost {
        plan.scoped_watch(members::watch(pool));
    }
    if snapshot.members.claims.is_none() {
        plan.wait(READING_NODES, "the list of the nodes that are disrupted is lost: the nodes are being read");
        return;
    }
    let progress = PoolView::of(snapshot, context.now);
    if decision.is_some() {
        trace::failed(context, snapshot, plan);
    }
    let mut decision = decision;
    if let Some(Blocked::Etcd(etcd)) = &progress.rollout.held {
        plan.scoped_watch(Etcd::watch());
        // The next plan knows more.
        decision = decision.filter(|_| *etcd != Etcd::Pending);
    }
    let (rollout, target) = (&progress.rollout, progress.target.filter(|_| progress.moves));
    let claims = nodes::claims(pool, &rollout.claims);
    trace::progressed(context, snapshot, &progress, claims.is_some(), plan);
    if let Some(claims) = claims {
        plan.then(claims.why, claims.step);
    } else if let Some(decision) = decision {
        let report = status::report(context, snapshot, decision, &progress);
        plan.events.extend(progress::completed(pool, &report.status));
        if matches!(report.write, StatusWrite::Now(_)) {
            trace::held(context, snapshot, &report.status, plan);
        }
        plan.wake_at(report.wake);
        plan.wake_at(progress.wake(context.now));
        report.write.add_to(plan);
        trace::completed(context, snapshot, &report.status, plan);
    }
    for planned in nodes::steps(&progress.nodes, rollout, target) {
        plan.beside(planned.why, planned.step);
    }
    plan.events.extend(target.and_then(|target| nodes::event(pool, rollout, target)));
}

/// Has it rendered first. Until then the notes stay, and so do waits: it is the same wait afterwards.
fn render(context: &Context<'_>, call: Option<&Render>, at: Option<Timestamp>, plan: &mut Plan) {
    plan.notes = Notes::Keep;
    let known = |reason: &&str| context.waits.iter().any(|waiting| waiting.reason == *reason);
    for reason in [SETTLING, QUIET_PERIOD, reasons::WAITING_FOR_INPUTS].into_iter().filter(known) {
        plan.wait(reason, "what the pool selects is being rendered");
    }
    plan.wake_at(at);
    plan.beside("render what the pool selects", call.cloned().map(Step::Call));
}

/// The waits of a decision.
fn wait(decision: &Decision<'_>, snapshot: &Snapshot, plan: &mut Plan) {
    match decision {
        Decision::Hold(reason, text) => drop(plan.wait(reason, format!("{}: {text}", snapshot.consequence()))),
        Decision::Wait(text) => drop(plan.wait(reasons::WAITING_FOR_INPUTS, text.clone())),
        Decision::Settle(name, until) => {
            let text = format!("{name} is made at {until}, if nothing else is selected until then");
            plan.wait_until(*until, SETTLING, text);
        }
        Decision::Pending(name, until) => {
            let text = format!("{name} becomes the target at {until}, if nothing else is selected until then");
            plan.wait_until(*until, QUIET_PERIOD, text);
        }
        Decision::Keep(_) | Decision::Create(..) | Decision::Adopt(_) | Decision::Target(_) | Decision::Render(..) => {}
    }
}

impl Decision<'_> {
    /// The name of what is wanted, if it is known.
    pub(super) fn wanted(&self) -> Option<&str> {
        match self {
            Self::Keep(name)
            | Self::Create(name, _)
            | Self::Settle(name, _)
            | Self::Pending(name, _)
            | Self::Target(name) => Some(name),
            Self::Adopt(config) => Some(name(*config)),
            Self::Hold(..) | Self::Wait(_) | Self::Render(..) => None,
        }
    }
}

/// The steps before the target is written: what it names exists, belongs to the pool, bears no mark, and says of what it
/// is rendered.
fn prepare(decision: &Decision<'_>, scope: &Scope<'_>) -> Vec<Planned<Render>> {
    let mut steps = vec![];
    match decision {
        Decision::Create(wanted, object) => {
            let (key, resource) = (target_ref(wanted), ResourceType::of::<MachineConfig>());
            let step = Step::Create { key, resource, body: (**object).clone(), is_confidential: true };
            steps.push(Planned { why: "it is what the pool selects".into(), step });
        }
        Decision::Adopt(config) => steps.extend(adopt(config, &scope.snapshot.pool)),
        Decision::Keep(wanted) | Decision::Pending(wanted, _) | Decision::Target(wanted) => {
            let existing = scope.existing.iter().filter(|existing| name(existing.as_ref()) == *wanted);
            for existing in existing {
                steps.extend(garbage::unmark(existing));
                steps.extend(note_inputs(existing, &scope.rendering));
            }
        }
        Decision::Hold(..) | Decision::Wait(_) | Decision::Settle(..) | Decision::Render(..) => {}
    }
    steps
}

/// Makes the pool the owner of an object that has none: it was left when a former pool of the name was deleted.
fn adopt(config: &CachedConfig, pool: &MachineConfigPool) -> Option<Planned<Render>> {
    let owner = kube::Resource::controller_owner_ref(pool, &())?;
    let patch = json_patch::Patch(vec![
        same_version(&config.metadata),
        set(&["metadata", "ownerReferences"], serde_json::to_value([owner]).ok()?),
    ]);
    Planned::new("it is what the pool selects, and has no owner", Step::edit(TARGET, config, patch))
}

/// Other inputs may render to the same.
fn note_inputs(config: &CachedConfig, rendering: &Rendering) -> Option<Planned<Render>> {
    let Rendering::Done(_, digest) = rendering else { return None };
    if annotation(config, RENDER_INPUTS) == Some(digest) {
        return None;
    }
    let note = annotations::set(&config.metadata, RENDER_INPUTS, Some(digest));
    Planned::new("it is rendered of other inputs now, and is the same", Step::edit(TARGET, config, note))
}

/// The step that writes the target, and what it is rendered of.
fn target(context: &Context<'_>, decision: &Decision<'_>, snapshot: &Snapshot) -> Option<Step<Render>> {
    let (Decision::Keep(wanted) | Decision::Target(wanted)) = decision else { return None };
    let sources = snapshot.selected.iter().map(|config| source(name(config.as_ref()))).collect();
    write(context, wanted, sources, snapshot)
}

/// The step that writes the target back if the spec has none any more. Of what that was rendered is not known.
fn restored(context: &Context<'_>, snapshot: &Snapshot) -> Option<Step<Render>> {
    let is_lost = snapshot.pool.spec.configuration.name.as_deref().is_none_or(str::is_empty);
    let target = snapshot.target_name.as_deref().filter(|_| is_lost && snapshot.has_target())?;
    write(context, target, vec![], snapshot)
}

fn write(context: &Context<'_>, target: &str, source: Vec<Value>, snapshot: &Snapshot) -> Option<Step<Render>> {
    let metadata =
        trace::record(context, snapshot, target).map(|rollout| SomeAnnotations::of(POOL_ROLLOUT, Some(&rollout)));
    let part = PoolTarget { metadata, spec: Spec { configuration: Configuration { name: target.to_owned(), source } } };
    Step::apply_if_unchanged(TARGET, snapshot.pool.as_ref(), part)
}

/// That the pool waits for machine-config-operator, when that begins. The status is that one's: two writers would write for ever.
fn operator_event(context: &Context<'_>, snapshot: &Snapshot, plan: &Plan) -> Option<Event> {
    let wait = plan.waits.iter().find(|wait| wait.reason == reasons::MACHINE_CONFIG_OPERATOR_RUNS)?;
    let is_known = context.waits.iter().any(|known| known.reason == wait.reason);
    let event = || Event::normal(reference(snapshot.pool.as_ref()), wait.reason, wait.message.clone());
    (!is_known).then(|| event().of(TARGET))
}

/// That the pool has another target, once that is written.
fn target_event(decision: &Decision<'_>, snapshot: &Snapshot) -> Option<Event> {
    let wanted = decision.wanted()?;
    let before = snapshot.pool.spec.configuration.name.as_deref().unwrap_or_default();
    let former = match before {
        _ if before == wanted => return None,
        "" => "there was none".to_owned(),
        _ => format!("it was {before}"),
    };
    let text = format!("the target is {wanted}, rendered of {} MachineConfigs; {former}", snapshot.selected.len());
    let event = Event::normal(reference(snapshot.pool.as_ref()), reasons::TARGET_CHANGED, text);
    Some(event.of(TARGET).logged())
}

/// What we write of the spec of a pool, and the record of its rollout, if that has a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct PoolTarget {
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<SomeAnnotations>,
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
        let metadata = annotation(live, POOL_ROLLOUT).map(|rollout| SomeAnnotations::of(POOL_ROLLOUT, Some(rollout)));
        Self { metadata, spec: Spec { configuration: Configuration { name: name.unwrap_or_default(), source } } }
    }

    /// A record that is left of a rollout with a trace stays, and means nothing.
    fn extract_like(&self, live: &MachineConfigPool) -> Self {
        let live = Self::extract(live);
        Self { metadata: live.metadata.filter(|_| self.metadata.is_some()), ..live }
    }
}
