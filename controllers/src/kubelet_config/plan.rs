//! The plan of a KubeletConfig.

use nodewright_api::stored::is_operator_finalizer;
use nodewright_observability::trace::{SpanRecord, span_id};
use nodewright_render::kubelet;
use nodewright_runtime::{
    clip::clip,
    finalizers as finalizer,
    object::{Target, is_deleting, name, uid},
    plan::{Planned, Step},
};

use super::{
    call::Generate,
    decision::{Decision, decide},
    memory::{Context, Plan, StatusWrite},
    snapshot::{Part, Snapshot},
    status,
};
use crate::shared::{
    TARGET,
    generated::Generated,
    machine_config::{CachedConfig, Operator},
    pool_traces::{change, follow_change},
};

pub(super) fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
    let mut plan = Plan::idle();
    plan.scoped_watch(Operator::watch());
    if snapshot.operator.blocks(context, |renewal| renewal, &mut plan) {
        return plan;
    }
    if context.traces {
        let observed = snapshot.object.status.as_ref().map(|status| status.observed_generation);
        follow_change(snapshot.object.as_ref(), observed, &mut plan);
    }
    if let Some(finalizer) = foreign_finalizer(snapshot) {
        let remove = finalizer::remove(&snapshot.object.metadata, finalizer);
        plan.then("garbage collection deletes what it owns", Step::edit(TARGET, snapshot.object.as_ref(), remove));
        return plan;
    }
    if is_deleting(snapshot.object.as_ref()) {
        return plan;
    }
    let decisions: Vec<_> = snapshot.pools.iter().map(|part| (part, decide(context, part))).collect();
    plan.stage(decisions.iter().filter_map(|(part, decision)| write(snapshot, part, decision)));
    plan.stage(decisions.iter().filter_map(|(_, decision)| generate(decision)));
    if let Some(text) = &snapshot.unreadable {
        plan.wait("MachineConfigPoolUnreadable", format!("{text}; until then nothing is deleted"));
    } else {
        let delete = |config: &CachedConfig| Step::Delete(Target::of(TARGET, config).if_unchanged());
        let why = "it is of a pool that this KubeletConfig does not have";
        plan.stage(snapshot.stale.iter().map(|config| Planned { why: why.into(), step: delete(config) }));
    }
    let pending = decisions.iter().filter_map(|(_, decision)| match decision {
        Decision::Generate(_, at) => Some(*at),
        _ => None,
    });
    let pending: Vec<_> = pending.collect();
    if !pending.is_empty() {
        plan.wake_at(pending.into_iter().flatten().min());
        return plan;
    }
    // After what it speaks of.
    let wanted = status::of(context, snapshot, &decisions);
    if context.traces && matches!(wanted, StatusWrite::Now(_)) {
        let error = status::errors(snapshot, &decisions).join("; ");
        plan.spans.push(generation(context, snapshot, Some(error).filter(|error| !error.is_empty())));
    }
    for planned in wanted.plan().stages.into_iter().flatten() {
        plan.then(planned.why, planned.step);
    }
    plan
}

/// The status says what has become of the request: a moment in its trace.
fn generation(context: &Context<'_>, snapshot: &Snapshot, error: Option<String>) -> SpanRecord {
    let object = snapshot.object.as_ref();
    let request = change(object);
    let place = request.at(span_id(&format!("{}/{}/generation", uid(object), context.now)));
    let span = SpanRecord::at("generation", place, request, (context.now, context.now));
    let attributes = vec![("nodewright.kubelet_config.name", name(object).to_owned())];
    SpanRecord { attributes, error: error.map(|error| clip(&error)), ..span }
}

/// A finalizer of machine-config-operator, which has the name of a MachineConfig: one that only it would remove.
fn foreign_finalizer(snapshot: &Snapshot) -> Option<&str> {
    let mut finalizers = snapshot.object.metadata.finalizers.iter().flatten();
    finalizers.find(|it| is_operator_finalizer(it)).map(String::as_str)
}

/// The call that makes the content of a MachineConfig, or that drops what was made: it is of no use any more, and may be large.
fn generate(decision: &Decision) -> Option<Planned<Generate>> {
    let (why, call) = match decision {
        Decision::Generate(call, _) => ("make the content for the pool", call),
        Decision::Keep(call) => ("drop what was made", call),
        Decision::Write(..) | Decision::Refuse(_) => return None,
    };
    Planned::new(why, call.clone().map(Step::Call))
}

/// The step that makes the MachineConfig of a pool what it has to be.
fn write(snapshot: &Snapshot, part: &Part, decision: &Decision) -> Option<Planned<Generate>> {
    let Decision::Write(spec, inputs) = decision else { return None };
    let pool = name(part.pool.as_ref());
    let generated = Generated { name: &kubelet::name(pool), role: pool, spec, inputs };
    match &part.existing {
        None => {
            let why = "the pool has no MachineConfig of the KubeletConfig";
            Planned::new(why, generated.create(snapshot.object.as_ref()))
        }
        Some(existing) if is_deleting(existing.as_ref()) => None,
        Some(existing) => Planned::new("it is generated of other inputs, or was changed", generated.restore(existing)),
    }
}
