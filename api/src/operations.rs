//! Texts of `lastOperation.description` that other programs match on.
//!
//! MCM keeps the stage of a deletion in these texts. Nodewright writes them so that MCM can take over, and never reads
//! them.

/// Creation: the driver was asked for a VM.
pub const CREATING_ON_PROVIDER: &str = "Creating machine on cloud provider";
/// Creation: the prefix of a driver's error.
pub const PROVIDER_MESSAGE_PREFIX: &str = "Cloud provider message - ";
/// Deletion: look up the VM next.
pub const GET_VM_STATUS: &str = "Set machine status to termination. Now, getting VM Status";
/// Deletion: drain the Node next.
pub const INITIATE_DRAIN: &str = "Initiate node drain";
/// Deletion: delete the volume attachments next.
pub const DELETE_VOLUME_ATTACHMENTS: &str = "Delete Volume Attachments";
/// Deletion: delete the VM next.
pub const INITIATE_VM_DELETION: &str = "Initiate VM deletion";
/// Deletion: delete the Node next.
pub const INITIATE_NODE_DELETION: &str = "Initiate node object deletion";
/// Placeholder in user data: the bootstrap token.
pub const BOOTSTRAP_TOKEN_PLACEHOLDER: &str = "<<BOOTSTRAP_TOKEN>>";
/// Placeholder in user data: the name of the Machine.
pub const MACHINE_NAME_PLACEHOLDER: &str = "<<MACHINE_NAME>>";
