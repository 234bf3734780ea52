//! The stages at which machine-controller-manager may be stopped, with what it has written by then. The texts are those of its
//! release 0.62; `{name}` is the name of the Machine.

/// What there is of the Machine's VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vm {
    None,
    /// It boots, and does not join in time.
    Booting,
    /// It runs, and its Node has joined or soon will.
    Running,
    /// It has lost its power, and its Node is no longer ready.
    Stopped,
    /// It is being deleted.
    Leaving,
    /// It was deleted.
    Gone,
}

/// What machine-controller-manager has done to the Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// Nothing: it may not even have joined.
    Unseen,
    /// It has joined, and nothing was written to it.
    Joined,
    /// It has its finalizer, label and annotation.
    Synced,
    /// It is cordoned besides, and says that it goes.
    Cordoned,
    /// A user deletes it; the finalizer keeps it.
    Deleting,
    /// Before its deletion, the finalizer was taken off.
    Freed,
    /// It was deleted.
    Gone,
}

/// `status.lastOperation`: type, state, description, error code.
pub(super) type Operation = [&'static str; 4];

/// Something else that there is at a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extra {
    /// A bootstrap token.
    Token,
    /// Two Pods on the Node, of which one is being evicted.
    Pods,
    /// A `VolumeAttachment` of the Node, and a drain timeout that is over.
    Attachment,
    /// The label `force-deletion`.
    ForceLabel,
}

/// How it has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The same Machine is Running, on the VM that there was.
    Running,
    /// Machine, VM and Node are gone.
    Gone,
    /// They are gone, and the set has another Machine.
    Replaced,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Stage {
    /// A part of the Machine's name.
    pub(super) name: &'static str,
    pub(super) vm: Vm,
    pub(super) node: Node,
    pub(super) has_finalizer: bool,
    /// Whether the Machine names its VM and its Node.
    pub(super) is_linked: bool,
    pub(super) is_deleted: bool,
    pub(super) phase: &'static str,
    pub(super) operation: Option<Operation>,
    pub(super) extra: Option<Extra>,
    pub(super) end: End,
}

impl Stage {
    /// A stage of a creation, without a VM and without a status.
    const fn creation(name: &'static str) -> Self {
        Self {
            name,
            vm: Vm::None,
            node: Node::Unseen,
            has_finalizer: true,
            is_linked: false,
            is_deleted: false,
            phase: "",
            operation: None,
            extra: None,
            end: End::Running,
        }
    }

    /// A stage of the deletion of a Machine that was Running.
    const fn deletion(name: &'static str, state: &'static str, description: &'static str) -> Self {
        let operation = ["Delete", state, description, ""];
        let running = Self::creation(name).linked(Vm::Running, Node::Synced);
        Self { is_deleted: true, end: End::Gone, ..running.status("Terminating", operation) }
    }

    const fn linked(self, vm: Vm, node: Node) -> Self {
        Self { vm, node, is_linked: true, ..self }
    }

    const fn unlinked(self, vm: Vm) -> Self {
        Self { vm, node: Node::Unseen, is_linked: false, ..self }
    }

    const fn status(self, phase: &'static str, operation: Operation) -> Self {
        Self { phase, operation: Some(operation), ..self }
    }

    const fn with(self, extra: Extra) -> Self {
        Self { extra: Some(extra), ..self }
    }

    const fn replaced(self) -> Self {
        Self { end: End::Replaced, ..self }
    }
}

const CREATING: Operation = ["Create", "Processing", "Creating machine on cloud provider", ""];
const JOINED: Operation = ["Create", "Successful", "Machine {name} successfully joined the cluster", ""];
const REJOINED: Operation = ["HealthCheck", "Successful", "Machine {name} successfully re-joined the cluster", ""];

/// The stages of a creation, and of a Machine that lives.
pub(super) const CREATIONS: [Stage; 18] = [
    Stage { has_finalizer: false, ..Stage::creation("made") },
    Stage::creation("finalizer"),
    Stage::creation("token").with(Extra::Token),
    Stage::creation("vm").unlinked(Vm::Running).with(Extra::Token),
    Stage::creation("linked").linked(Vm::Running, Node::Unseen),
    Stage::creation("pending").linked(Vm::Running, Node::Unseen).status("Pending", CREATING),
    Stage::creation("joined").linked(Vm::Running, Node::Joined).status("Pending", CREATING),
    Stage::creation("running").linked(Vm::Running, Node::Synced).status("Running", JOINED),
    Stage::creation("exhausted").status(
        "CrashLoopBackOff",
        [
            "Create",
            "Failed",
            "Cloud provider message - machine codes error: code = [ResourceExhausted] message = [no small vm is left]",
            "ResourceExhausted",
        ],
    ),
    Stage::creation("refused").status(
        "CrashLoopBackOff",
        [
            "Create",
            "Failed",
            "Cloud provider message - machine codes error: code = [Internal] message = [Initiate VM deletion]",
            "Internal",
        ],
    ),
    Stage::creation("unanswered").unlinked(Vm::Running).status(
        "CrashLoopBackOff",
        [
            "Create",
            "Failed",
            "Cloud provider message - machine codes error: code = [DeadlineExceeded] message = [no answer]",
            "DeadlineExceeded",
        ],
    ),
    Stage::creation("uninitialized").linked(Vm::Running, Node::Unseen).status(
        "CrashLoopBackOff",
        [
            "Create",
            "Failed",
            "Provider error: machine codes error: code = [Internal] message = [no disk]. Initialize VM Instance",
            "Internal",
        ],
    ),
    Stage::creation("unknown").linked(Vm::Running, Node::Synced).status(
        "Unknown",
        [
            "HealthCheck",
            "Processing",
            "Machine {name} is unhealthy - changing MachinePhase to Unknown. Node conditions: [{Type:Ready Status:Unknown}]",
            "",
        ],
    ),
    Stage::creation("rejoined").linked(Vm::Running, Node::Synced).status("Running", REJOINED),
    Stage::creation("reset").linked(Vm::Running, Node::Synced).status(
        "Running",
        [
            "HealthCheck",
            "Successful",
            "Machine Health Timeout was reset due to APIServer being unreachable",
            "",
        ],
    ),
    Stage::creation("late")
        .linked(Vm::Booting, Node::Unseen)
        .status("Failed", ["Create", "Failed", "Machine {name} failed to join the cluster in 20m0s minutes.", ""])
        .replaced(),
    Stage::creation("old-node")
        .unlinked(Vm::Gone)
        .status("Failed", ["Create", "Failed", "VM using old node obj", ""])
        .replaced(),
    Stage::creation("sick")
        .linked(Vm::Stopped, Node::Synced)
        .status(
            "Failed",
            [
                "HealthCheck",
                "Failed",
                "Machine {name} health checks failing since last 10m0s minutes. Updating machine phase to Failed. Node \
                 Conditions: [{Type:Ready Status:Unknown}]",
                "",
            ],
        )
        .replaced(),
];

const BEGUN: &str = "Set machine status to termination. Now, getting VM Status";
const VM_DELETED: &str = "VM deletion was successful. Initiate node object deletion";

/// The stages of a deletion.
pub(super) const DELETIONS: [Stage; 26] = [
    Stage::deletion("deleted", "", "").status("Running", JOINED),
    Stage::deletion("unseen", "", "").linked(Vm::Running, Node::Unseen).status("Pending", CREATING),
    Stage::deletion("by-set", "Processing", "Deleting machine from cloud provider"),
    Stage::deletion("begun", "Processing", BEGUN),
    Stage::deletion("begun-unlinked", "Processing", BEGUN).unlinked(Vm::Running),
    Stage::deletion("begun-no-vm", "Processing", BEGUN).unlinked(Vm::None).with(Extra::Token),
    Stage::deletion(
        "unclear",
        "Failed",
        "Error occurred with decoding machine error status while getting VM status, aborting without retry. machine code: \
         machine codes error: code = [Internal] message = [no answer] Set machine status to termination. Now, getting VM Status",
    )
    .unlinked(Vm::Running),
    Stage::deletion(
        "vm-unknown",
        "Processing",
        "VM was not found at provider. Moving forward to node drain. Initiate node drain",
    )
    .unlinked(Vm::None),
    Stage::deletion("drain", "Processing", "Initiate node drain"),
    Stage::deletion("draining", "Processing", "Initiate node drain")
        .linked(Vm::Running, Node::Cordoned)
        .with(Extra::Pods),
    Stage::deletion(
        "drain-failed",
        "Failed",
        "Drain failed due to - timed out waiting for the condition. Will retry in next sync. Initiate node drain",
    )
    .linked(Vm::Running, Node::Cordoned)
    .with(Extra::Pods),
    Stage::deletion("node-deleted", "Processing", "Initiate node drain").linked(Vm::Running, Node::Deleting),
    Stage::deletion("drained", "Processing", "Drain successful. Initiate VM deletion")
        .linked(Vm::Running, Node::Cordoned),
    Stage::deletion("attached", "Processing", "Force Drain successful. Delete Volume Attachments")
        .linked(Vm::Running, Node::Cordoned)
        .with(Extra::Attachment),
    Stage::deletion(
        "forced",
        "Processing",
        "Drain failed due to - timed out waiting for the condition. However, since it's a force deletion shall continue \
         deletion of VM. Delete Volume Attachments",
    )
    .linked(Vm::Running, Node::Cordoned)
    .with(Extra::ForceLabel),
    Stage::deletion(
        "detached",
        "Processing",
        "Node Volumes for node: {name} are already detached. Moving to VM Deletion. Initiate VM deletion",
    )
    .linked(Vm::Running, Node::Cordoned),
    Stage::deletion(
        "vm-refused",
        "Failed",
        "VM deletion failed due to - machine codes error: code = [Internal] message = [Initiate machine object finalizer \
         removal]. Aborting operation. Initiate VM deletion",
    )
    .linked(Vm::Running, Node::Cordoned),
    Stage::deletion(
        "vm-unanswered",
        "Failed",
        "VM deletion failed due to - machine codes error: code = [Unavailable] message = [no answer]. However, will re-try in \
         the next resync. Initiate VM deletion",
    )
    .linked(Vm::Running, Node::Cordoned),
    Stage::deletion("vm-leaving", "Processing", "Drain successful. Initiate VM deletion")
        .linked(Vm::Leaving, Node::Cordoned),
    Stage::deletion("vm-left", "Processing", "Drain successful. Initiate VM deletion")
        .linked(Vm::Gone, Node::Cordoned),
    Stage::deletion("vm-deleted", "Processing", VM_DELETED).linked(Vm::Gone, Node::Cordoned),
    Stage::deletion("vm-missing", "Processing", "VM not found. Continuing deletion flow. Initiate node object deletion")
        .linked(Vm::Gone, Node::Cordoned),
    Stage::deletion("node-freed", "Processing", VM_DELETED).linked(Vm::Gone, Node::Freed),
    Stage::deletion(
        "node-kept",
        "Failed",
        "Deletion of Node Object \"{name}\" failed due to error: no answer. Initiate node object deletion",
    )
    .linked(Vm::Gone, Node::Freed),
    Stage::deletion(
        "last",
        "Processing",
        "Deletion of Node Object \"{name}\" is successful. Initiate machine object finalizer removal",
    )
    .linked(Vm::Gone, Node::Gone),
    Stage::deletion(
        "last-unlinked",
        "Processing",
        "Label \"node\" not present on machine \"{name}\", continuing deletion flow. Initiate machine object finalizer removal",
    )
    .unlinked(Vm::None),
];
