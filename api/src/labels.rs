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
/// On a Machine: force its drain and deletion, if [`parse_bool`] reads the value as true.
pub const FORCE_DELETION: &str = "force-deletion";
/// On a Node: the name of its Machine.
pub const MACHINE_NAME: &str = "node.gardener.cloud/machine-name";
/// On an old MachineSet, value [`SCALE_UP_DISABLED_VALUE`]: create no machine during an update in place.
pub const SCALE_UP_DISABLED: &str = "node.machine.sapcloud.io/scale-up-disabled";
/// The value of [`SCALE_UP_DISABLED`].
pub const SCALE_UP_DISABLED_VALUE: &str = "true";

/// Whether Go's `strconv.ParseBool` returns true.
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
