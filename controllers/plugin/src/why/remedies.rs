//! What ends a wait, or changes it: fields, flags, annotations, commands.

type Remedy = (&'static [&'static str], &'static [&'static str]);

/// What to change, by the reasons of conditions and events.
const REMEDIES: [Remedy; 64] = [
    (
        &["FailedTermination"],
        &[
            "what keeps the VM at the provider: its console, credentials, protection; it is tried again by itself",
            "label force-deletion=true of the Machine: without drain, and without waiting for the cluster of the node",
        ],
    ),
    (&["KeptForMachines"], &["name another class in spec.template.spec.class.name: it goes with the last machine"]),
    (
        &["ClassNotFound"],
        &["create the MachineClass, or correct spec.template.spec.class.name of the MachineDeployment"],
    ),
    (
        &["SecretNotFound"],
        &["create the Secret, of type Opaque, or correct secretRef and credentialsSecretRef of the MachineClass"],
    ),
    (
        &["SecretNotRead"],
        &["give the manager get, list and watch on Secrets of the namespace (config/rbac/control.yaml)"],
    ),
    (&["SecretForbidden"], &["name a Secret of the namespace of the MachineClass in secretRef"]),
    (&["UserDataMissing"], &["add the key userData to a Secret of the MachineClass"]),
    (
        &["ProviderMismatch"],
        &["correct provider of the MachineClass, or run the manager with the driver of that provider (--driver)"],
    ),
    (
        &["ClassIdentityChanged"],
        &["restore the fields of the MachineClass that its annotation nodewright.dev/identity lists"],
    ),
    (&["ValidationPending"], &["start the driver, or correct --driver-socket: until it answers no VM is made"]),
    (&["Invalid", "InvalidProviderSpec"], &["correct the field that the message names"]),
    (
        &["ResourceExhausted"],
        &[
            "raise the quota of the provider, or use another zone or size: spec.template.spec.class.name",
            "spec.template.spec.creationTimeout (--machine-creation-timeout): after it the machine fails and is replaced",
        ],
    ),
    (
        &["InvalidArgument", "OutOfRange", "FailedPrecondition"],
        &["correct providerSpec of a new MachineClass, and name that in spec.template.spec.class.name"],
    ),
    (
        &["PermissionDenied", "Unauthenticated"],
        &["correct the credentials in the Secret of the MachineClass (credentialsSecretRef or secretRef)"],
    ),
    (
        &["Unavailable"],
        &["see that the driver runs (--driver, --driver-socket) and reaches the provider; it is tried again by itself"],
    ),
    (
        &["DeadlineExceeded", "Aborted", "Canceled", "Unknown", "Internal", "DataLoss", "Unimplemented"],
        &["see the log of the driver and the provider's console; it is tried again by itself"],
    ),
    (&["NotFound"], &["nothing: the machine is replaced; or restore the VM at the provider"]),
    (&["ProviderIDMismatch", "VMNotOwned"], &["delete the Machine whose VM it is not; the VM and its Node are kept"]),
    (&["VMOwnerUnknown"], &["let the manager list machines in all namespaces: ClusterRole nodewright-machines"]),
    (&["ProviderIDNotUnique"], &["delete the Machines that do not own the VM"]),
    (&["ProviderIDChanged"], &["restore spec.providerID of the Machine"]),
    (&["SeveralNodes"], &["delete the Nodes that are not the VM's"]),
    (
        &[
            "NodeUnreadable",
            "PodUnreadable",
            "MachineUnreadable",
            "MachineSetUnreadable",
            "MachineClassUnreadable",
            "SecretUnreadable",
        ],
        &["correct the object that the message names"],
    ),
    (
        &["InvalidLedger"],
        &["restore the annotation nodewright.dev/ledger of the set, or delete its machines and remove the annotation"],
    ),
    (
        &["Joining"],
        &[
            "look at the VM's console: image, network, user data, bootstrap token",
            "spec.template.spec.creationTimeout (--machine-creation-timeout, 20m): after it the machine fails and is replaced",
        ],
    ),
    (
        &["ReplacementBlocked"],
        &[
            "annotation nodewright.dev/remediation-max-in-flight of the MachineDeployment (1): how many are replaced at once",
            "--fleet-brake-percent, --fleet-brake-zone-percent, --fleet-brake-timeout: the fleet brake",
            "kubectl nodewright replace MACHINE: replace it now",
        ],
    ),
    (
        &["Unhealthy", "ReportAwaited", "NodeUpdating", "VMNotFound", "Disabled"],
        &[
            "repair the node: kubelet, network, disk",
            "spec.template.spec.healthTimeout (--machine-health-timeout, 10m), or nodewright.dev/health-timeouts for one condition",
            "annotation nodewright.dev/disable-health-timeout=true of the Node, while it is being repaired",
        ],
    ),
    (&["Failed"], &["kubectl nodewright preserve MACHINE: keep the next one that fails, to look at it"]),
    (
        &["Preserved"],
        &[
            "kubectl nodewright release MACHINE: it is replaced then",
            "status.currentStatus.preserveExpiryTime of the Machine",
        ],
    ),
    (
        &["CreationBackoff"],
        &[
            "mend why machines do not join: image, network, user data, creationTimeout",
            "annotation nodewright.dev/creation-backoff of the set: remove it to replace the failed machines now",
            "--machine-creation-timeout-max: lets the creation timeout grow, if the provider is slow",
        ],
    ),
    (
        &["EvictionRefused"],
        &[
            "minAvailable or maxUnavailable of the PodDisruptionBudget, or more replicas of its pods",
            "spec.template.spec.drainTimeout (--machine-drain-timeout, 2h): after it pods are deleted without grace",
        ],
    ),
    (
        &["PodsLeft"],
        &[
            "see why the pods do not end: their finalizers, terminationGracePeriodSeconds, the kubelet",
            "spec.template.spec.drainTimeout (--machine-drain-timeout, 2h): after it pods are deleted without grace",
        ],
    ),
    (&["Attached"], &["--machine-pv-detach-timeout (2m): after it the next step begins although a volume is attached"]),
    (
        &["AwaitingDisruptionBudget"],
        &[
            "spec.maxUnavailable of the MachineConfigPool",
            "annotation nodewright.dev/shared-budget=\"false\" of the pool or the MachineDeployment",
        ],
    ),
    (&["RequestFailed"], &["the rights of the manager (config/rbac), or the policy or webhook that the message names"]),
    (
        &["CriticalComponentsNotReady"],
        &[
            "the taint node.gardener.cloud/critical-components-not-ready of the Node: the manager of these pods removes it",
        ],
    ),
    (
        &["InPlaceUpdateFailed"],
        &[
            "mend the Node and set its label node.machine.sapcloud.io/update-result=successful, or remove the label to try again",
        ],
    ),
    (
        &["InPlaceUpdating"],
        &["spec.template.spec.inPlaceUpdateTimeout (--machine-inplace-update-timeout): after it the update has failed"],
    ),
    (&["InPlaceUpdateUnsupported"], &["restore the template, or set spec.strategy.type to RollingUpdate"]),
    (
        &["Frozen"],
        &[
            "delete the machines that nobody wants",
            "annotation safety.machine.sapcloud.io/unfreeze on the set: unfreezes it once",
            "--safety-up, --safety-down: how many are too many",
        ],
    ),
    (
        &["TooManyMachines"],
        &["--max-machines, --max-machines-per-deployment; or lower spec.replicas, or delete machines"],
    ),
    (&["TemplateTooLarge"], &["spec.template: fewer labels, annotations or taints"]),
    (
        &["Finalizers"],
        &["the controller of each finalizer removes it; if that is gone, remove it from metadata.finalizers"],
    ),
    (
        &["NotSeen", "NoLeader"],
        &[
            "start the manager of this namespace, and see its log: kubectl logs deployment/nodewright",
            "its flags --namespace, --control-kubeconfig and --leader-elect",
        ],
    ),
    (&["WebhookDown"], &["start the webhook's pods (Deployment nodewright), or see why they are not ready"]),
    (&["InvalidSpec"], &["correct the field that the message names"]),
    (&["OldView"], &["wait: the API server is asked again; after a restore see docs/tasks/restore.md"]),
    (&["ClockSkew"], &["set the clock of the computer that the manager runs on"]),
    (&["ProgressDeadlineExceeded"], &["spec.progressDeadlineSeconds of the MachineDeployment"]),
    (&["RollingOut", "Scaling"], &["spec.strategy.rollingUpdate.maxSurge and maxUnavailable: how many at once"]),
    (&["NodeNotReady"], &["repair the node: kubelet, network, container runtime"]),
    (&["NoMachineConfigs", "SelectsAll"], &["spec.machineConfigSelector of the pool"]),
    (&["NotReconcilable"], &["undo the change of the MachineConfig, and make new nodes for it"]),
    (&["TooLarge"], &["make the files of the MachineConfigs smaller"]),
    (&["TooMuchRemoved"], &["annotation nodewright.dev/accept-render of the pool, if that is meant"]),
    (&["WaitingForInputs"], &["create or correct the object that the message names"]),
    (
        &["NodesDegraded", "NodeDegraded"],
        &[
            "undo the change of the MachineConfig: failed nodes go back first",
            "mend the node, and see the log of its agent",
        ],
    ),
    (&["Paused"], &["spec.paused of the MachineConfigPool"]),
    (&["Cordoned"], &["kubectl uncordon the node"]),
    (
        &["NodesBehind", "Waiting", "Updating"],
        &[
            "spec.maxUnavailable of the pool (1): how many nodes are disrupted at once",
            "annotation nodewright.dev/update-priority of a Node: which is next",
        ],
    ),
    (
        &["Draining"],
        &[
            "minAvailable or maxUnavailable of the PodDisruptionBudgets that hold its pods",
            "annotations nodewright.dev/drain-policy=Force and nodewright.dev/drain-timeout of the pool",
        ],
    ),
    (&["NoAgent"], &["run an agent on the nodes, such as machine-config-daemon"]),
    (&["MachineConfigOperatorRuns"], &["scale machine-config-operator's controllers down"]),
    (&["NotAccepted"], &["correct the field or the selector that the message names (spec.machineConfigPoolSelector)"]),
];

/// What to change, by the reason of a condition or event.
pub(super) fn of(reason: &str) -> Vec<String> {
    let found = REMEDIES.iter().find(|(reasons, _)| reasons.contains(&reason));
    found.iter().flat_map(|(_, changes)| *changes).map(|it| (*it).to_owned()).collect()
}

/// The same of a request of the manager that the API server has refused: why, only the message tells.
pub(super) fn of_refusal(reason: &str, message: &str) -> Vec<String> {
    let change = match message {
        _ if message.contains("webhook") => {
            "see that the webhook that the message names answers, or remove its configuration"
        }
        _ if message.contains("exceeded quota") => "the ResourceQuota that the message names",
        _ if message.contains("cannot ") => {
            "the rights of the manager: config/rbac, and its RoleBinding in this namespace"
        }
        _ => return of(reason),
    };
    vec![change.to_owned()]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nodewright_api::{annotations, labels, reasons};

    use super::*;

    #[test]
    fn each_reason_stands_once() {
        let all: Vec<_> = REMEDIES.iter().flat_map(|(reasons, _)| *reasons).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }

    /// The manager has each flag that is named.
    #[test]
    fn flags_exist() {
        let flags = include_str!("../../../manager/src/flags.rs");
        let words = REMEDIES
            .iter()
            .flat_map(|(_, changes)| *changes)
            .flat_map(|text| text.split([' ', ',', ')', '(', ':', ';']));
        let named: BTreeSet<_> = words.filter_map(|word| word.strip_prefix("--")).collect();
        assert!(named.len() > 10, "{named:?}");
        let is_known = |flag: &&str| flags.contains(&flag.replace('-', "_")) || flags.contains(*flag);
        assert!(named.iter().all(is_known), "{named:?}");
    }

    /// A name in a text is one that the product has.
    #[test]
    fn annotations_and_labels_exist() {
        let known = [
            annotations::OWN.as_slice(),
            &[
                annotations::DISABLE_HEALTH_TIMEOUT,
                annotations::UPDATE_PRIORITY,
                annotations::DRAIN_POLICY,
                annotations::DRAIN_TIMEOUT,
                annotations::ACCEPT_RENDER,
            ],
        ]
        .concat();
        let all = [
            "ReplacementBlocked",
            "Unhealthy",
            "CreationBackoff",
            "InvalidLedger",
            "ClassIdentityChanged",
            "AwaitingDisruptionBudget",
            "TooMuchRemoved",
            "NodesBehind",
            "Draining",
            "SecretNotFound",
        ];
        for text in all.iter().flat_map(|reason| of(reason)) {
            let words = text.split(|letter: char| !letter.is_alphanumeric() && !"./-".contains(letter));
            for word in words.filter(|word| word.starts_with("nodewright.dev/")) {
                assert!(known.contains(&word), "{word}");
            }
        }
        assert!(of("InPlaceUpdateFailed")[0].contains(labels::UPDATE_RESULT));
        assert!(of("Frozen")[1].contains(annotations::UNFREEZE));
    }

    #[test]
    fn each_reason_of_the_controllers_that_lasts_has_a_remedy() {
        let reasons = [
            reasons::machine_deployment::INVALID_SPEC,
            reasons::machine_deployment::CLOCK_SKEW,
            reasons::machine_deployment::OLD_VIEW,
            reasons::machine_deployment::PROGRESS_DEADLINE_EXCEEDED,
            reasons::machine_set::TOO_MANY_MACHINES,
            reasons::machine_set::TEMPLATE_TOO_LARGE,
            reasons::machine_set::CREATION_BACKOFF,
            reasons::unreadable::MACHINE,
            reasons::unreadable::LEDGER,
            reasons::machine::EVICTION_REFUSED,
            reasons::machine::PROVIDER_ID_MISMATCH,
            reasons::machine::VM_NOT_OWNED,
            reasons::machine::VM_OWNER_UNKNOWN,
            reasons::machine::PROVIDER_ID_NOT_UNIQUE,
            reasons::machine::PROVIDER_ID_CHANGED,
            reasons::machine::SEVERAL_NODES,
            reasons::machine_config_pool::NO_MACHINE_CONFIGS,
            reasons::machine_config_pool::SELECTS_ALL,
            reasons::machine_config_pool::INVALID,
            reasons::machine_config_pool::NOT_RECONCILABLE,
            reasons::machine_config_pool::TOO_LARGE,
            reasons::machine_config_pool::TOO_MUCH_REMOVED,
            reasons::machine_config_pool::WAITING_FOR_INPUTS,
            reasons::machine_config_pool::NODES_DEGRADED,
            reasons::machine_config_pool::PAUSED,
            reasons::machine_config_pool::NO_AGENT,
        ];
        for reason in reasons {
            assert!(!of(reason).is_empty(), "{reason}");
        }
    }
}
