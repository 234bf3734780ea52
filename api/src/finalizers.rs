//! Finalizers. Those of machines are MCM's, so that a script that removes MCM's removes all.

/// On Machine, MachineSet, MachineDeployment and MachineClass.
pub const MACHINE_CONTROLLER_MANAGER: &str = "machine.sapcloud.io/machine-controller-manager";
/// On the Secrets of a MachineClass.
pub const MACHINE_CONTROLLER: &str = "machine.sapcloud.io/machine-controller";
/// On the Nodes of machines.
pub const NODE: &str = "node.machine.sapcloud.io/machine-controller";
/// On a ControllerConfig of which MachineConfigs are generated: these go with it, and stay while a pool selects them.
pub const CONTROLLER_CONFIG: &str = "nodewright.dev/generated-machine-configs";
