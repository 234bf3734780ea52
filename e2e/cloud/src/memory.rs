//! The memory of the cloud, and its changes.
//!
//! Everything that must survive the process changes only by [`Memory::apply`]. The live cloud and the reader of the
//! journal call the same function, so that both have the same state.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::address::node_address;
use super::api::{Address, CreateVm, Event, Fault, PROVIDER_ID_PREFIX, Quota, Vm, VmState};

/// How many events are kept.
pub const HISTORY_LIMIT: usize = 100_000;

/// The ordered behavior of a VM's kubelet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletBehavior {
    /// It reports nothing.
    pub silent: bool,
    /// It sends heartbeats, but reports `NotReady`.
    pub not_ready: bool,
    /// It alternates between `NotReady` and Ready in phases of this many seconds, starting at `since`.
    pub flap_seconds: Option<f64>,
    /// When the behavior was ordered.
    pub since: Option<Timestamp>,
    /// The names that it registers. Empty: the original name.
    pub node_names: Vec<String>,
    /// How often it was ended. A real one starts again each time; a stand-in does not notice.
    #[serde(default)]
    pub restarts: u64,
}

/// The ordered faults of a VM's hardware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hardware {
    /// It does nothing, but has not ended.
    pub hung: bool,
    /// Nothing reaches it, and it reaches nothing.
    pub network_cut: bool,
    /// How many bytes it may read and write per second. `None`: no limit.
    pub disk_bytes_per_second: Option<u64>,
}

/// A VM, as the cloud stores it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VmRecord {
    /// The sequence number that its id was made from.
    pub number: u64,
    /// The id.
    pub id: String,
    /// The create call.
    pub order: CreateVm,
    /// The state.
    pub state: VmState,
    /// When it was created.
    pub created_at: Timestamp,
    /// When get and list start to show it.
    pub visible_from: Timestamp,
    /// When it boots, or has booted.
    pub boots_at: Timestamp,
    /// When the deletion ends, once it has begun.
    pub gone_at: Option<Timestamp>,
    /// The ordered behavior of its kubelet.
    pub kubelet: KubeletBehavior,
    /// The ordered faults of its hardware.
    #[serde(default)]
    pub hardware: Hardware,
    /// The addresses that were ordered.
    #[serde(default)]
    pub addresses: Option<Vec<Address>>,
}

impl VmRecord {
    /// The names that its kubelet registers.
    pub fn node_names(&self) -> Vec<String> {
        match self.kubelet.node_names.as_slice() {
            [] => vec![self.order.node_name().to_owned()],
            names => names.to_vec(),
        }
    }

    /// The value of `spec.providerID` of its Node.
    pub fn provider_id(&self) -> String {
        format!("{PROVIDER_ID_PREFIX}{}", self.id)
    }

    /// The address within 10.64.0.0/10, made from its number.
    pub fn address(&self) -> String {
        node_address(self.number).to_string()
    }

    /// All addresses that the cloud shows.
    fn addresses(&self) -> Vec<Address> {
        let own = || vec![Address { kind: "InternalIP".to_owned(), address: self.address() }];
        self.addresses.clone().unwrap_or_else(own)
    }

    /// When its next state change is due.
    pub fn due(&self) -> Option<Timestamp> {
        match self.state {
            VmState::Pending => Some(self.boots_at),
            VmState::Deleting => self.gone_at,
            VmState::Running | VmState::Stopped => None,
        }
    }

    /// The VM as the API shows it.
    pub fn view(&self) -> Vm {
        Vm {
            id: self.id.clone(),
            name: self.order.name.clone(),
            state: self.state,
            tags: self.order.tags.clone(),
            provider_id: self.provider_id(),
            node_name: self.node_names().swap_remove(0),
            size: self.order.size.clone().unwrap_or_else(|| super::api::SIZES[0].name.to_owned()),
            address: self.address(),
            addresses: self.addresses(),
            zone: self.order.zone.clone(),
            region: self.order.region.clone(),
            created_at: self.created_at,
        }
    }
}

/// A call that was answered with an error, and is applied later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Postponed {
    /// A create call.
    Create {
        /// The order.
        order: Box<CreateVm>,
        /// How the VM differs from the order.
        shape: Shape,
    },
    /// A delete call.
    Delete {
        /// The id of the VM.
        id: String,
    },
}

/// How a new VM differs from its order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shape {
    /// How long get and list do not show it, in seconds.
    pub invisible_seconds: f64,
    /// The boot time in seconds.
    pub boot_seconds: Option<f64>,
    /// Whether its kubelet is silent from the start.
    pub never_joins: bool,
}

/// The state that survives the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// The last number of a VM, a fault or a postponed call.
    pub sequence: u64,
    /// The VMs by id.
    pub vms: BTreeMap<String, VmRecord>,
    /// The VM of each client token. Tokens stay when their VM is gone.
    pub tokens: BTreeMap<String, String>,
    /// Postponed calls, by number.
    pub postponed: BTreeMap<u64, (Timestamp, Postponed)>,
    /// The active faults, by id.
    pub faults: BTreeMap<u64, Fault>,
    /// The quota.
    pub quota: Quota,
    /// The history, oldest first.
    pub history: VecDeque<Event>,
    /// The number of the newest event.
    pub last_event: u64,
    /// The number of created VMs.
    pub created: u64,
    /// The number of deleted VMs.
    pub deleted: u64,
    /// The maximum number of VMs at once.
    pub most_live_at_once: u64,
}

/// A change of the memory: a line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// The whole memory, which replaces everything before.
    Everything(Box<Memory>),
    /// A VM was created or changed.
    Vm(Box<VmRecord>),
    /// A VM is gone.
    VmGone(String),
    /// A call was postponed.
    Postponed(u64, Timestamp, Postponed),
    /// A postponed call was applied.
    PostponedDone(u64),
    /// A fault was added or changed.
    Fault(Box<Fault>),
    /// A fault ended.
    FaultOver(u64),
    /// The quota changed.
    Quota(Quota),
    /// An event.
    Event(Box<Event>),
    /// The maximum number of VMs was reset.
    MostLiveReset,
}

impl Memory {
    /// The number of VMs, including those in deletion.
    pub fn live(&self) -> u64 {
        self.vms.len() as u64
    }

    /// Applies a change.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Everything(memory) => *self = *memory,
            Change::Vm(vm) => self.store(*vm),
            Change::VmGone(id) => {
                if self.vms.remove(&id).is_some() {
                    self.deleted += 1;
                }
            }
            Change::Postponed(number, at, call) => {
                self.sequence = self.sequence.max(number);
                self.postponed.insert(number, (at, call));
            }
            Change::PostponedDone(number) => drop(self.postponed.remove(&number)),
            Change::Fault(fault) => {
                self.sequence = self.sequence.max(fault.id);
                self.faults.insert(fault.id, *fault);
            }
            Change::FaultOver(id) => drop(self.faults.remove(&id)),
            Change::Quota(quota) => self.quota = quota,
            Change::Event(event) => self.note(*event),
            Change::MostLiveReset => self.most_live_at_once = self.live(),
        }
    }

    fn store(&mut self, vm: VmRecord) {
        self.sequence = self.sequence.max(vm.number);
        self.tokens.entry(vm.order.token.clone()).or_insert_with(|| vm.id.clone());
        if self.vms.insert(vm.id.clone(), vm).is_none() {
            self.created += 1;
            self.most_live_at_once = self.most_live_at_once.max(self.live());
        }
    }

    fn note(&mut self, event: Event) {
        self.last_event = event.number;
        self.history.push_back(event);
        while self.history.len() > HISTORY_LIMIT {
            self.history.pop_front();
        }
    }
}
