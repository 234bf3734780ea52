//! What has to end before a rollout does, as objects have it now. The controllers of deployments and sets plan without it.

use std::collections::BTreeSet;

use jiff::Timestamp;
use nodewright_api::{
    ConditionStatus, Machine, MachineClass, MachineDeployment, MachinePhase,
    conditions::{
        machine::{DRAINED, INSTANCE_TERMINATED, NODE_DELETED, VOLUMES_DETACHED},
        machine_class::{PROVIDER_SPEC_VALID, SECRETS_FOUND},
        machine_deployment::{REPLICA_FAILURE, STALLED},
    },
};
use nodewright_runtime::object::name;

use crate::output::age;

/// The reasons while a class or its Secret is missing.
const NOT_FOUND: [&str; 2] = ["ClassNotFound", "SecretNotFound"];
/// Of how many machines that are being deleted there is a line.
const SHOWN: usize = 3;

/// Whether the class is known to be missing, and why no machine of it gets a VM.
pub(super) fn of_class(classes: Option<&[MachineClass]>, class: &str) -> (bool, Vec<String>) {
    let Some(classes) = classes else { return (false, vec![]) };
    let Some(found) = classes.iter().find(|it| name(*it) == class) else {
        let text = format!("MachineClass {class} does not exist: no machine of it gets a VM before it does");
        return (true, vec![text]);
    };
    let conditions = [SECRETS_FOUND, PROVIDER_SPEC_VALID].into_iter().filter_map(|kind| found.condition(kind));
    let wrong = conditions.filter(|it| it.status == ConditionStatus::False);
    (false, wrong.map(|it| format!("machineclass/{class}: {}: {}", it.reason, it.message)).collect())
}

/// Ends what waits for a class that is created or changed with the deployment: its machines get VMs then.
pub(super) fn end_with_new_classes(
    new: &BTreeSet<String>,
    deployment: &mut MachineDeployment,
    machines: &mut [Machine],
) {
    let waits = |machine: &&mut Machine| {
        new.contains(machine.class_name())
            && *machine.phase() == MachinePhase::CrashLoopBackOff
            && machine.provider_id().is_none()
    };
    for machine in machines.iter_mut().filter(waits) {
        // As one that was created just now.
        machine.status = None;
        machine.metadata.creation_timestamp = None;
    }
    if let Some(status) = deployment.status.as_mut().filter(|_| new.contains(&deployment.spec.template.spec.class.name))
    {
        status.conditions.retain(|condition| !NOT_FOUND.contains(&condition.reason.as_str()));
    }
}

/// What the deployment reports as wrong, and what the machines wait for that are being deleted: each takes the place of another.
pub(super) fn of_machines<'a>(
    deployment: &MachineDeployment,
    own: impl Iterator<Item = &'a Machine>,
    now: Timestamp,
) -> Vec<String> {
    let conditions = [REPLICA_FAILURE, STALLED].into_iter().filter_map(|kind| deployment.condition(kind));
    let wrong = conditions.filter(|it| it.status == ConditionStatus::True);
    let of_deployment =
        wrong.map(|it| format!("machinedeployment/{}: {}: {}", name(deployment), it.reason, it.message));
    let deleting = own.filter_map(|machine| {
        let since = machine.metadata.deletion_timestamp.as_ref()?.0;
        let stages = [DRAINED, VOLUMES_DETACHED, INSTANCE_TERMINATED, NODE_DELETED];
        let waits = stages.into_iter().filter_map(|kind| machine.condition(kind)).find(|it| it.status == "False")?;
        let message = waits.message.as_deref().unwrap_or_default();
        Some(format!("machine/{} is in deletion for {}: {message}", name(machine), age(since, now)))
    });
    of_deployment.chain(deleting.take(SHOWN)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-06-01T12:05:00Z";

    #[test]
    fn a_class_without_its_secret_is_an_obstacle() {
        let class = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass", "metadata": {"name": "small"},
            "status": {"conditions": [{"type": "SecretsFound", "status": "False", "reason": "SecretNotFound", "message": "create it"},
                {"type": "ProviderSpecValid", "status": "True", "reason": "Valid", "message": "well"}]}});
        let classes: [MachineClass; 1] = [serde_json::from_value(class).unwrap()];
        let (lacks, texts) = of_class(Some(&classes), "small");
        assert_eq!(
            (lacks, texts.as_slice()),
            (false, ["machineclass/small: SecretNotFound: create it".to_owned()].as_slice())
        );
        assert!(of_class(Some(&classes), "large").0 && of_class(None, "large") == (false, vec![]));
    }

    #[test]
    fn what_waits_for_a_class_ends_with_its_creation() {
        let condition = |kind: &str, reason: &str| json!({"type": kind, "status": "True", "reason": reason, "message": "create it"});
        let deployment = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment", "metadata": {"name": "pool"},
            "spec": {"replicas": 1, "selector": {}, "template": {"spec": {"class": {"name": "new"}}}},
            "status": {"conditions": [condition("Stalled", "ClassNotFound"), condition("ReplicaFailure", "FailedCreate")]}});
        let machine = |class: &str, phase: &str| {
            serde_json::from_value(json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "spec": {"class": {"name": class}},
                "metadata": {"name": "m"}, "status": {"currentStatus": {"phase": phase}}}))
            .unwrap()
        };
        let mut deployment: MachineDeployment = serde_json::from_value(deployment).unwrap();
        let mut machines =
            [machine("new", "CrashLoopBackOff"), machine("old", "CrashLoopBackOff"), machine("new", "Failed")];
        end_with_new_classes(&["new".to_owned()].into(), &mut deployment, &mut machines);
        let phases: Vec<_> = machines.iter().map(|machine| machine.phase().to_string()).collect();
        assert_eq!(phases, ["", "CrashLoopBackOff", "Failed"]);
        let reasons: Vec<_> = deployment.status.unwrap().conditions.into_iter().map(|it| it.reason).collect();
        assert_eq!(reasons, ["FailedCreate"]);
    }

    #[test]
    fn refused_creations_and_deletions_that_wait_are_obstacles() {
        let deployment = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment", "metadata": {"name": "pool"},
            "spec": {"replicas": 1, "selector": {}, "template": {"spec": {"class": {"name": "small"}}}},
            "status": {"conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota"},
                {"type": "Progressing", "status": "True", "reason": "MachineSetUpdated", "message": "well"}]}});
        let machine = |named: &str, deleted: bool| {
            let drained = json!({"type": "Drained", "status": "False", "reason": "EvictionRefused", "message": "pod a/b is left"});
            serde_json::from_value(json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "spec": {"class": {"name": "small"}},
                "metadata": {"name": named, "deletionTimestamp": deleted.then_some("2026-06-01T12:00:00Z")},
                "status": {"conditions": if deleted { json!([drained]) } else { json!([]) }}}))
            .unwrap()
        };
        let machines: [Machine; 2] = [machine("a", true), machine("b", false)];
        let texts = of_machines(&serde_json::from_value(deployment).unwrap(), machines.iter(), NOW.parse().unwrap());
        let expected = [
            "machinedeployment/pool: FailedCreate: exceeded quota",
            "machine/a is in deletion for 5m: pod a/b is left",
        ];
        assert_eq!(texts, expected);
    }
}
