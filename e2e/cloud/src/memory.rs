//! What the cloud remembers, and the changes that it is made of.
//!
//! All that must survive the process changes by [`Memory::apply`] alone. The live cloud and the reading of a journal
//! after a restart go through the same function, so what is read back is what was there.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::api::{CreateVm, Event, Fault, PROVIDER_ID_PREFIX, Quota, Vm, VmState};

/// How many entries of history are kept; the oldest are forgotten first.
pub const HISTORY_LIMIT: usize = 100_000;

/// What the kubelet of a VM was told to do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletMood {
    /// It says nothing.
    pub silent: bool,
    /// It beats, but reports `NotReady`.
    pub not_ready: bool,
    /// It is `NotReady` for so many seconds, then Ready for as long, and so on, from `since` on.
    pub flap_seconds: Option<f64>,
    /// Since when the mood is as it is.
    pub since: Option<Timestamp>,
    /// The names that it registers under, if others than the first.
    pub node_names: Vec<String>,
}

/// A VM, with all that the cloud knows of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VmRecord {
    /// The sequence number that its id was made from.
    pub number: u64,
    /// The id.
    pub id: String,
    /// The order that made it.
    pub order: CreateVm,
    /// What it is doing.
    pub state: VmState,
    /// When it was made.
    pub created_at: Timestamp,
    /// From when on get and list show it.
    pub visible_from: Timestamp,
    /// When it runs, or since when it has run.
    pub boots_at: Timestamp,
    /// When it is gone, once it is being deleted.
    pub gone_at: Option<Timestamp>,
    /// What its kubelet was told.
    pub kubelet: KubeletMood,
}

impl VmRecord {
    /// The names that its kubelet registers under.
    pub fn node_names(&self) -> Vec<String> {
        match self.kubelet.node_names.as_slice() {
            [] => vec![self.order.node_name().to_owned()],
            names => names.to_vec(),
        }
    }

    /// What `spec.providerID` of its Node says.
    pub fn provider_id(&self) -> String {
        format!("{PROVIDER_ID_PREFIX}{}", self.id)
    }

    /// Its address within 10.0.0.0/8, made from its number.
    pub fn address(&self) -> String {
        // Never .0 nor .255 at the end: some parsers take those for networks.
        let (high, low) = ((self.number / 250) % 65_536, self.number % 250 + 1);
        format!("10.{}.{}.{low}", high / 256, high % 256)
    }

    /// When the cloud has to do something about it by itself.
    pub fn due(&self) -> Option<Timestamp> {
        match self.state {
            VmState::Pending => Some(self.boots_at),
            VmState::Deleting => self.gone_at,
            VmState::Running | VmState::Stopped => None,
        }
    }

    /// How the API shows it.
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
            created_at: self.created_at,
        }
    }
}

/// A call that was answered by an error and is applied later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Postponed {
    /// A create call.
    Create {
        /// What was ordered.
        order: Box<CreateVm>,
        /// What the faults said of the VM to be.
        shape: Shape,
    },
    /// A delete call.
    Delete {
        /// The VM's id.
        id: String,
    },
}

/// How a new VM differs from what its order says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shape {
    /// Get and list do not show it for so many seconds.
    pub invisible_seconds: f64,
    /// It boots in so many seconds.
    pub boot_seconds: Option<f64>,
    /// Its kubelet is silent from the start.
    pub never_joins: bool,
}

/// All that survives the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// The last number that was given to a VM, a fault or a postponed call.
    pub sequence: u64,
    /// The VMs by id.
    pub vms: BTreeMap<String, VmRecord>,
    /// Which VM a client token made. Stays when the VM is gone.
    pub tokens: BTreeMap<String, String>,
    /// Calls to be applied later, by number.
    pub postponed: BTreeMap<u64, (Timestamp, Postponed)>,
    /// The faults in force, by id.
    pub faults: BTreeMap<u64, Fault>,
    /// The quota in force.
    pub quota: Quota,
    /// The history, oldest first.
    pub history: VecDeque<Event>,
    /// The number of the newest entry of the history.
    pub last_event: u64,
    /// VMs ever made.
    pub created: u64,
    /// VMs that are gone.
    pub deleted: u64,
    /// The most VMs there ever were at once.
    pub most_live_at_once: u64,
}

/// A change of the memory: a line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// All of it; what came before does not count.
    Everything(Box<Memory>),
    /// A VM is new or different.
    Vm(Box<VmRecord>),
    /// A VM is gone.
    VmGone(String),
    /// A call is to be applied at a later time.
    Postponed(u64, Timestamp, Postponed),
    /// A postponed call was dealt with.
    PostponedDone(u64),
    /// A fault is new or different.
    Fault(Box<Fault>),
    /// A fault is over.
    FaultOver(u64),
    /// There is another quota.
    Quota(Quota),
    /// Something happened.
    Event(Box<Event>),
    /// The count of most VMs at once starts anew.
    MostLiveReset,
}

impl Memory {
    /// How many VMs there are, those in deletion included.
    pub fn live(&self) -> u64 {
        self.vms.len() as u64
    }

    /// Makes a change.
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
