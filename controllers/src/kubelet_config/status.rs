//! The status of a KubeletConfig: `Accepted`, and the older `Success` and `Failure` of machine-config-operator.

use nodewright_api::{
    ConditionStatus, conditions::kubelet_config::ACCEPTED, machine_config::KubeletConfigStatus, validation::Validate,
};
use nodewright_runtime::object::name;

use super::{
    decision::Decision,
    memory::{Context, StatusWrite},
    refusal::Refusal,
    snapshot::{Part, Snapshot},
};
use crate::shared::{
    conditions::condition,
    status_writer::{Urgency, write_status},
};

pub(super) fn of(context: &Context<'_>, snapshot: &Snapshot, decisions: &[(&Part, Decision)]) -> StatusWrite {
    let object = snapshot.object.as_ref();
    let errors = errors(snapshot, decisions);
    let (is_accepted, message) = match errors.as_slice() {
        [] => (true, "Success".to_owned()),
        errors => (false, format!("Error: {}", errors.join("; "))),
    };
    let known = object.status.iter().flat_map(|status| &status.conditions).cloned().collect::<Vec<_>>();
    let condition = |kind: &str, holds: bool| {
        let status = if holds { ConditionStatus::True } else { ConditionStatus::False };
        condition(&known, context.now, kind, (status, "", message.clone()))
    };
    let wanted = KubeletConfigStatus {
        observed_generation: object.metadata.generation.unwrap_or_default(),
        conditions: vec![
            condition(ACCEPTED, is_accepted),
            condition("Success", is_accepted),
            condition("Failure", !is_accepted),
        ],
    };
    write_status(context, object, wanted, Urgency::Now)
}

pub(super) fn errors(snapshot: &Snapshot, decisions: &[(&Part, Decision)]) -> Vec<String> {
    let errors = snapshot.object.validate();
    if !errors.is_empty() {
        return errors.iter().map(ToString::to_string).collect();
    }
    if snapshot.pools.is_empty() {
        let text = "spec.machineConfigPoolSelector: Invalid value: no MachineConfigPool has these labels";
        return vec![snapshot.unreadable.clone().unwrap_or_else(|| text.to_owned())];
    }
    let text = |refusal: &Refusal| match refusal {
        Refusal::Refused(text) => text.clone(),
        Refusal::Taken(first) => format!("KubeletConfig {first} has the pool: merge the two"),
    };
    let text = |(part, decision): &(&Part, Decision)| match decision {
        Decision::Refuse(it) => Some(format!("pool {}: {}", name(part.pool.as_ref()), text(it))),
        Decision::Keep(_) | Decision::Write(..) | Decision::Generate(..) => None,
    };
    decisions.iter().filter_map(text).collect()
}
