//! Texts of `lastOperation.description` that others match on.
//!
//! MCM keeps the stage of a deletion in these texts. Nodewright writes them where MCM would, so that MCM
//! can go on from there, and never reads them.

/// Creation: the driver has been asked for an instance.
pub const CREATING_ON_PROVIDER: &str = "Creating machine on cloud provider";

/// Creation: the instance is being initialised.
pub const INITIALIZE_INSTANCE: &str = "Initialize VM Instance";

/// Creation: what precedes the driver's error.
pub const PROVIDER_MESSAGE_PREFIX: &str = "Cloud provider message - ";

/// Creation: the instance took the name of a Node that was there already.
pub const USING_OLD_NODE: &str = "VM using old node obj";

/// Deletion, as the machine set controller begins it.
pub const DELETING_FROM_PROVIDER: &str = "Deleting machine from cloud provider";

/// Deletion: next is a look at the instance.
pub const GET_VM_STATUS: &str = "Set machine status to termination. Now, getting VM Status";

/// Deletion: next is the drain.
pub const INITIATE_DRAIN: &str = "Initiate node drain";

/// Deletion: next is the deletion of volume attachments.
pub const DELETE_VOLUME_ATTACHMENTS: &str = "Delete Volume Attachments";

/// Deletion: next is the deletion of the instance.
pub const INITIATE_VM_DELETION: &str = "Initiate VM deletion";

/// Deletion: next is the deletion of the Node.
pub const INITIATE_NODE_DELETION: &str = "Initiate node object deletion";

/// Deletion: next is the removal of the finalizer.
pub const INITIATE_FINALIZER_REMOVAL: &str = "Initiate machine object finalizer removal";

/// Update in place: the node is drained.
pub const NODE_READY_FOR_UPDATE: &str = "Node drain successful. Node is ready for update";

/// Health: all machines in phase Unknown were taken for Running again after an outage of an API server.
pub const HEALTH_TIMEOUT_RESET: &str = "Machine Health Timeout was reset due to APIServer being unreachable";

/// Preservation, in the message of the Node's condition: the drain was successful.
pub const PRESERVED_NODE_DRAINED: &str = "Preserved node drained successfully.";

/// Preservation, in the message of the Node's condition: the drain was not successful.
pub const PRESERVED_NODE_NOT_DRAINED: &str = "Preserved node could not be drained.";

/// Placeholder in user data: the bootstrap token.
pub const BOOTSTRAP_TOKEN_PLACEHOLDER: &str = "<<BOOTSTRAP_TOKEN>>";

/// Placeholder in user data: the name of the machine.
pub const MACHINE_NAME_PLACEHOLDER: &str = "<<MACHINE_NAME>>";
