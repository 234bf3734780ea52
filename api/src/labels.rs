//! Label keys and their values.

/// On a Machine: name of its Node. Absent until the instance exists, and without a target cluster.
pub const NODE: &str = "node";

/// On a Machine, by convention of its template: name of its MachineDeployment. The autoscaler finds the
/// machines of a group by it; nothing enforces it.
pub const NAME: &str = "name";

/// On a MachineSet or Machine, and in selectors: hash of the template.
pub const MACHINE_TEMPLATE_HASH: &str = "machine-template-hash";

/// On a MachineSet or MachineDeployment, value [`FREEZE_VALUE`]: there are too many machines, and no more
/// are created.
pub const FREEZE: &str = "freeze";

/// The value of [`FREEZE`].
pub const FREEZE_VALUE: &str = "True";

/// On a Machine, a value that [`parse_bool`] takes for true: drain and deletion are forced.
pub const FORCE_DELETION: &str = "force-deletion";

/// On a Machine, value [`FORCE_DRAIN_VALUE`]: drains for updates in place and for preservation are forced.
pub const FORCE_DRAIN: &str = "force-drain";

/// The value of [`FORCE_DRAIN`].
pub const FORCE_DRAIN_VALUE: &str = "True";

/// On a Node: name of its Machine.
pub const MACHINE_NAME: &str = "node.gardener.cloud/machine-name";

/// On a Node: it may be chosen for an update in place.
pub const CANDIDATE_FOR_UPDATE: &str = "node.machine.sapcloud.io/candidate-for-update";

/// On a Node: it has been chosen for an update in place.
pub const SELECTED_FOR_UPDATE: &str = "node.machine.sapcloud.io/selected-for-update";

/// On a Node, and on a Machine while it is handed to its new set: how an update in place ended.
pub const UPDATE_RESULT: &str = "node.machine.sapcloud.io/update-result";

/// [`UPDATE_RESULT`]: the update was successful.
pub const UPDATE_RESULT_SUCCESSFUL: &str = "successful";

/// [`UPDATE_RESULT`]: the update failed.
pub const UPDATE_RESULT_FAILED: &str = "failed";

/// On an old MachineSet, value [`SCALE_UP_DISABLED_VALUE`]: no machine is created while machines are
/// handed over.
pub const SCALE_UP_DISABLED: &str = "node.machine.sapcloud.io/scale-up-disabled";

/// The value of [`SCALE_UP_DISABLED`].
pub const SCALE_UP_DISABLED_VALUE: &str = "true";

/// On a Node: the worker pool, by which the autoscaler finds a node to copy.
pub const WORKER_POOL: &str = "worker.gardener.cloud/pool";

/// Whether Go's `strconv.ParseBool` would take a value for true.
pub fn parse_bool(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_what_go_takes_for_true_is_true() {
        assert!(super::parse_bool("True") && super::parse_bool("1"));
        assert!(!super::parse_bool("tRUE") && !super::parse_bool("yes") && !super::parse_bool(""));
    }
}
