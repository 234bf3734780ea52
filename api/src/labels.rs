//! Label keys and their values.

/// On a Machine: the name of its Node. Absent until the VM exists, and without a target cluster.
pub const NODE: &str = "node";
/// On a Machine, by convention: the name of its MachineDeployment. The autoscaler finds the machines of a node group by it.
pub const NAME: &str = "name";
/// On a MachineSet or Machine, and in selectors: the hash of the template.
pub const MACHINE_TEMPLATE_HASH: &str = "machine-template-hash";
/// On a MachineSet or MachineDeployment, value [`FREEZE_VALUE`]: there are too many machines, and none is created.
pub const FREEZE: &str = "freeze";
/// The value of [`FREEZE`].
pub const FREEZE_VALUE: &str = "True";
/// On a Machine, with a value that Go's `strconv.ParseBool` takes for true: delete its VM without a drain.
///
/// See [`parse_bool`].
pub const FORCE_DELETION: &str = "force-deletion";
/// On a Machine, value [`FORCE_DRAIN_VALUE`]: the Pods of its Node are deleted without grace when the Node is drained and its VM
/// stays: because the failed machine is preserved.
pub const FORCE_DRAIN: &str = "force-drain";
/// The value of [`FORCE_DRAIN`].
pub const FORCE_DRAIN_VALUE: &str = "True";
/// On a Node: the name of its Machine.
pub const MACHINE_NAME: &str = "node.gardener.cloud/machine-name";
/// On an old MachineSet, value [`SCALE_UP_DISABLED_VALUE`]: create no machine during an update in place.
pub const SCALE_UP_DISABLED: &str = "node.machine.sapcloud.io/scale-up-disabled";
/// The value of [`SCALE_UP_DISABLED`].
pub const SCALE_UP_DISABLED_VALUE: &str = "true";
/// On a Node, value [`UPDATE_LABEL_VALUE`]: its machine is of a former template, and is to be updated in place.
pub const CANDIDATE_FOR_UPDATE: &str = "node.machine.sapcloud.io/candidate-for-update";
/// On a Node that is a candidate, value [`UPDATE_LABEL_VALUE`]: its machine is updated now. A user sets it, or the controller.
pub const SELECTED_FOR_UPDATE: &str = "node.machine.sapcloud.io/selected-for-update";
/// The value of [`CANDIDATE_FOR_UPDATE`] and [`SELECTED_FOR_UPDATE`].
pub const UPDATE_LABEL_VALUE: &str = "true";
/// On a Node: what became of its update, [`UPDATE_SUCCESSFUL`] or [`UPDATE_FAILED`]; the program on the Node sets it. On a Machine,
/// with the value [`UPDATE_SUCCESSFUL`]: it is moving to the set of its new template, which may not count it yet.
pub const UPDATE_RESULT: &str = "node.machine.sapcloud.io/update-result";
/// A value of [`UPDATE_RESULT`].
pub const UPDATE_SUCCESSFUL: &str = "successful";
/// A value of [`UPDATE_RESULT`].
pub const UPDATE_FAILED: &str = "failed";
/// Ours, on the namespace of an installation, value [`IN_USE_VALUE`]: it has machines, or objects from which they are made. By it
/// the policies of `config/guard` refuse deletions.
pub const IN_USE: &str = "nodewright.dev/in-use";
/// The value of [`IN_USE`], and of labels that begin with [`IN_USE_PREFIX`].
pub const IN_USE_VALUE: &str = "true";
/// Ours, on a `CustomResourceDefinition`, followed by the namespace of an installation that has objects of the kind.
pub const IN_USE_PREFIX: &str = "in-use.nodewright.dev/";
/// On a `CustomResourceDefinition`: Nodewright's manifests have made it.
pub const PART_OF: &str = "app.kubernetes.io/part-of";
/// The value of [`PART_OF`].
pub const PART_OF_VALUE: &str = "nodewright";

/// On a Node: load balancers send it no new connection. The machine controller sets it before a drain.
pub const EXCLUDE_FROM_LOAD_BALANCERS: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// On a Node: the zone of its VM.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// On a Node: what a provider says of its VM, each with the deprecated twin that Kubernetes keeps equal.
pub const OF_CLOUD: [(&str, &str); 3] = [
    ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"),
    (ZONE, "failure-domain.beta.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"),
];

/// What Go's `strconv.ParseBool` returns; `None` for its error.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::parse_bool;

    #[test]
    fn only_what_go_takes_for_true_is_true() {
        assert_eq!((parse_bool("True"), parse_bool("1")), (Some(true), Some(true)));
        assert_eq!((parse_bool("False"), parse_bool("0")), (Some(false), Some(false)));
        assert_eq!((parse_bool("tRUE"), parse_bool("yes"), parse_bool("")), (None, None, None));
    }
}
