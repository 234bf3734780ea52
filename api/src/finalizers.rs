//! Finalizers. There are no others, so that whatever strips MCM's strips all.

/// On Machine, MachineSet, MachineDeployment and MachineClass.
pub const MACHINE_CONTROLLER_MANAGER: &str = "machine.sapcloud.io/machine-controller-manager";

/// On the Secrets that a MachineClass refers to.
pub const MACHINE_CONTROLLER: &str = "machine.sapcloud.io/machine-controller";

/// On the Nodes of machines.
pub const NODE: &str = "node.machine.sapcloud.io/machine-controller";
