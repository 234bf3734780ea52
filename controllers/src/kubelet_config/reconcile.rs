//! The plan of a KubeletConfig.

use nodewright_render::kubelet;
use nodewright_runtime::{
    effect::Never,
    finalizers as finalizer,
    object::{Target, is_deleting},
    plan::{Planned, Step},
};

use super::{
    memory::{Context, Plan},
    snapshot::{Part, Snapshot, Wanted},
    status,
};
use crate::shared::{
    TARGET,
    generated::Generated,
    machine_config::{CachedConfig, Operator},
};

pub(super) fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
    let mut plan = Plan::idle();
    plan.scoped_watch(Operator::watch());
    if snapshot.operator.blocks(context, |renewal| renewal, &mut plan) {
        return plan;
    }
    if let Some(finalizer) = foreign_finalizer(snapshot) {
        let remove = finalizer::remove(&snapshot.object.metadata, finalizer);
        plan.then("garbage collection deletes what it owns", Step::edit(TARGET, snapshot.object.as_ref(), remove));
        return plan;
    }
    if is_deleting(snapshot.object.as_ref()) {
        return plan;
    }
    let writes = snapshot.pools.iter().filter_map(|part| write(snapshot, part));
    plan.stage(writes);
    if let Some(text) = &snapshot.unreadable {
        plan.wait("MachineConfigPoolUnreadable", format!("{text}; until then nothing is deleted"));
    } else {
        let delete = |config: &CachedConfig| Step::Delete(Target::of(TARGET, config).if_unchanged());
        let why = "it is of a pool that this KubeletConfig does not have";
        plan.stage(snapshot.stale.iter().map(|config| Planned { why: why.into(), step: delete(config) }));
    }
    // After what it speaks of.
    let wanted = status::of(context, snapshot);
    for planned in wanted.plan().stages.into_iter().flatten() {
        plan.then(planned.why, planned.step);
    }
    plan
}

/// A finalizer of machine-config-operator, which has the name of a MachineConfig: one that only it would remove.
fn foreign_finalizer(snapshot: &Snapshot) -> Option<&str> {
    let mut finalizers = snapshot.object.metadata.finalizers.iter().flatten();
    finalizers.find(|it| it.starts_with("99-") && it.contains("-generated-kubelet")).map(String::as_str)
}

/// The step that makes the MachineConfig of a pool what it has to be.
fn write(snapshot: &Snapshot, part: &Part) -> Option<Planned<Never>> {
    let Ok(Wanted::Content { spec, inputs }) = &part.wanted else { return None };
    let generated = Generated { name: &kubelet::name(&part.pool), role: &part.pool, spec, inputs };
    match &part.existing {
        None => Some(Planned {
            why: "the pool has no MachineConfig of the KubeletConfig".into(),
            step: generated.create(snapshot.object.as_ref())?,
        }),
        Some(existing) if is_deleting(existing.as_ref()) => None,
        Some(existing) => Some(Planned {
            why: "it is generated of other inputs, or was changed".into(),
            step: generated.restore(existing)?,
        }),
    }
}
