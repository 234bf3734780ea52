//! The plan of a KubeletConfig.

use std::collections::BTreeMap;

use kube::Resource;
use nodewright_api::{
    annotations::{GENERATED_CONTENT, RENDER_INPUTS},
    machine_config::{GENERATED_BY, MachineConfig, MachineConfigSpec, ROLE},
};
use nodewright_render::{inputs, kubelet};
use nodewright_runtime::{
    apply_configuration::ApplyConfiguration,
    effect::Never,
    finalizers as finalizer,
    object::{Target, child_of, is_deleting},
    plan::{Context, Plan, Planned, Step},
};
use serde::Serialize;
use serde_json::Value;

use super::{
    snapshot::{Part, Snapshot, Wanted},
    status,
};
use crate::shared::{
    TARGET,
    machine_config::{CachedConfig, Operator, VERSION},
};

pub(super) fn plan(context: &Context<'_, Never>, snapshot: &Snapshot) -> Plan<Never> {
    let mut plan = Plan::idle();
    plan.scoped_watch(Operator::watch());
    if snapshot.operator.holds_up(context, &mut plan) {
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
    let generated = Generated::new(&part.pool, spec, inputs);
    match &part.existing {
        None => Some(Planned {
            why: "the pool has no MachineConfig of the KubeletConfig".into(),
            step: create(snapshot, part, spec, &generated)?,
        }),
        Some(existing) if is_deleting(existing.as_ref()) => None,
        Some(existing) => Some(Planned {
            why: "it is generated of other inputs, or was changed".into(),
            step: Step::apply(TARGET, existing.as_ref(), &generated)?,
        }),
    }
}

fn create(snapshot: &Snapshot, part: &Part, spec: &MachineConfigSpec, generated: &Generated) -> Option<Step<Never>> {
    let mut metadata = child_of(snapshot.object.as_ref(), "", &kubelet::name(&part.pool));
    metadata.labels = Some(generated.metadata.labels.clone());
    metadata.annotations = Some(generated.metadata.annotations.clone());
    Step::create(TARGET, &MachineConfig { metadata, spec: spec.clone() })
}

/// What we write of a generated MachineConfig.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Generated {
    metadata: GeneratedMeta,
    spec: Value,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct GeneratedMeta {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

const ANNOTATIONS: [&str; 3] = [GENERATED_BY, RENDER_INPUTS, GENERATED_CONTENT];

impl Generated {
    fn new(pool: &str, spec: &MachineConfigSpec, digest: &str) -> Self {
        let values = [VERSION.to_owned(), digest.to_owned(), inputs::content(spec)];
        let annotations = ANNOTATIONS.map(str::to_owned).into_iter().zip(values).collect();
        let labels = BTreeMap::from([(ROLE.to_owned(), pool.to_owned())]);
        let spec = serde_json::to_value(spec).unwrap_or_default();
        Self { metadata: GeneratedMeta { labels, annotations }, spec }
    }
}

impl ApplyConfiguration for Generated {
    type Of = CachedConfig;

    fn extract(live: &CachedConfig) -> Self {
        let meta = live.meta();
        let of = |all: &Option<BTreeMap<String, String>>, keys: &[&str]| {
            let all = all.iter().flatten().filter(|(key, _)| keys.contains(&key.as_str()));
            all.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        let metadata =
            GeneratedMeta { labels: of(&meta.labels, &[ROLE]), annotations: of(&meta.annotations, &ANNOTATIONS) };
        Self { metadata, spec: serde_json::to_value(&live.spec).unwrap_or_default() }
    }
}
