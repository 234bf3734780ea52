//! The state machine of the cloud, without clock and network.
//!
//! Each method takes the time, and randomness comes from a seed. The same calls at the same times lead to the same
//! cloud, behind HTTP and in a simulation.
//!
//! # Guarantees
//! * A call is executed when the method returns. An [`Answer`] only says when and how the caller learns of it.
//! * A client token never creates two VMs: not by repeated calls, not by a call that is applied late, and not after its
//!   VM is gone.
//! * Ids are never reused, not even after a restart with the same memory.
//!
//! # Caveats
//! * A create call with the token of a postponed call is applied at once. The postponed call then does nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

use super::{
    api::{
        AddressOrder, Code, Event, EventKind, Failure, Fault, FaultOperation, FaultOrder, HardwareOrder, KubeletOrder,
        NAME_LIMIT, PAGE_LIMIT, Page, Quota, Stats, Vm, VmState, duration,
    },
    fault::{self, About, Strike},
    memory::{Change, Hardware, KubeletBehavior, Memory, Postponed, VmRecord},
};

/// The maximum number of active faults: each call checks all of them.
const FAULTS_LIMIT: usize = 1_000;

/// The behavior of the cloud without faults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Seconds until a new VM runs.
    pub boot_seconds: f64,
    /// The relative deviation of the boot time: 0.3 means up to 30 % shorter or longer.
    pub boot_jitter: f64,
    /// Seconds from an accepted delete until the VM is gone.
    pub delete_seconds: f64,
    /// Seconds until a create call is answered.
    pub create_latency_seconds: f64,
    /// Seconds until any other call is answered.
    pub latency_seconds: f64,
    /// Seconds until get and list show a new VM.
    pub visible_after_seconds: f64,
    /// The seed of random values.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            boot_seconds: 2.0,
            boot_jitter: 0.3,
            delete_seconds: 1.0,
            create_latency_seconds: 0.1,
            latency_seconds: 0.0,
            visible_after_seconds: 0.0,
            seed: 0,
        }
    }
}

/// When and how the caller learns of the result of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The delay.
    pub after: Duration,
    /// The reply.
    pub reply: Reply,
}

/// The reply to a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A VM.
    Vm {
        /// The HTTP status: 200, 201 or 202.
        status: u16,
        /// The VM.
        vm: Box<Vm>,
    },
    /// A page of VMs.
    Page(Page<Vm>),
    /// An error.
    Failed(Failure),
    /// None. The connection stays open.
    Never,
    /// None. The connection is closed.
    Cut,
    /// A response that is not part of this API.
    Garbage,
}

/// Something that is due at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Vm(String),
    Postponed(u64),
}

/// The cloud.
#[derive(Debug)]
pub struct Cloud {
    pub(super) settings: Settings,
    pub(super) random: fastrand::Rng,
    pub(super) memory: Memory,
    pub(super) calls: BTreeMap<String, BTreeMap<String, u64>>,
    callers: BTreeMap<String, u64>,
    /// An index of what is due, derived from the memory.
    due: BTreeSet<(Timestamp, Due)>,
    /// Changes that are not stored yet.
    changes: Vec<Change>,
    /// VMs whose kubelets must be updated.
    touched: BTreeSet<String>,
}

impl Cloud {
    /// A cloud with this memory. `Memory::default()` is empty.
    pub fn new(settings: Settings, memory: Memory) -> Self {
        // Do not repeat the random numbers after a restart: ids are made of them.
        let random = fastrand::Rng::with_seed(settings.seed.wrapping_add(memory.sequence));
        let vms = memory.vms.values().filter_map(|vm| Some((vm.due()?, Due::Vm(vm.id.clone()))));
        let postponed = memory.postponed.iter().map(|(number, (at, _))| (*at, Due::Postponed(*number)));
        let due = vms.chain(postponed).collect();
        let touched = memory.vms.keys().cloned().collect();
        Self {
            settings,
            random,
            memory,
            calls: BTreeMap::new(),
            callers: BTreeMap::new(),
            due,
            changes: vec![],
            touched,
        }
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The next time at which [`advance`](Self::advance) changes something.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes the changes since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Takes the ids of VMs that changed since the last call; of a new cloud, all ids.
    pub fn take_touched(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.touched)
    }

    /// Applies what is due: VMs boot, VMs are gone, postponed calls are applied.
    pub fn advance(&mut self, now: Timestamp) {
        while let Some((at, _)) = self.due.first()
            && *at <= now
            && let Some((at, due)) = self.due.pop_first()
        {
            match due {
                Due::Vm(id) => self.mature(at, &id),
                Due::Postponed(number) => self.apply_postponed(at, number),
            }
        }
    }

    fn mature(&mut self, now: Timestamp, id: &str) {
        let Some(vm) = self.memory.vms.get(id) else { return };
        match vm.state {
            VmState::Pending => {
                let vm = VmRecord { state: VmState::Running, ..vm.clone() };
                self.store(vm);
                self.note_vm(now, EventKind::VmRunning, id, None);
            }
            VmState::Deleting => {
                let (name, token) = (vm.order.name.clone(), vm.order.token.clone());
                self.commit(Change::VmGone(id.to_owned()));
                self.touched.insert(id.to_owned());
                self.note(now, EventKind::VmGone, Some(id), Some(&name), Some(&token), None);
            }
            VmState::Running | VmState::Stopped => {}
        }
    }

    fn apply_postponed(&mut self, now: Timestamp, number: u64) {
        let Some((_, call)) = self.memory.postponed.get(&number).cloned() else { return };
        self.commit(Change::PostponedDone(number));
        // No caller waits for the result. The history has a rejection.
        match call {
            Postponed::Create { order, shape } => drop(self.create(now, &order, shape)),
            Postponed::Delete { id } => drop(self.delete(now, &id)),
        }
    }

    pub(super) fn postpone(&mut self, at: Timestamp, call: Postponed) {
        let number = self.memory.sequence + 1;
        self.commit(Change::Postponed(number, at, call));
        self.due.insert((at, Due::Postponed(number)));
    }

    /// Applies a change, and keeps it for the journal.
    pub(super) fn commit(&mut self, change: Change) {
        self.changes.push(change.clone());
        self.memory.apply(change);
    }

    /// Stores a VM.
    pub(super) fn store(&mut self, vm: VmRecord) {
        if let Some(due) = self.memory.vms.get(&vm.id).and_then(VmRecord::due) {
            self.due.remove(&(due, Due::Vm(vm.id.clone())));
        }
        if let Some(due) = vm.due() {
            self.due.insert((due, Due::Vm(vm.id.clone())));
        }
        self.touched.insert(vm.id.clone());
        self.commit(Change::Vm(Box::new(vm)));
    }

    pub(super) fn note_vm(&mut self, now: Timestamp, kind: EventKind, id: &str, note: Option<String>) {
        let Some(vm) = self.memory.vms.get(id) else { return };
        let (name, token) = (vm.order.name.clone(), vm.order.token.clone());
        self.note(now, kind, Some(id), Some(&name), Some(&token), note);
    }

    pub(super) fn note(
        &mut self,
        at: Timestamp,
        kind: EventKind,
        vm: Option<&str>,
        name: Option<&str>,
        token: Option<&str>,
        note: Option<String>,
    ) {
        let event = Event {
            number: self.memory.last_event + 1,
            at,
            kind,
            vm: vm.map(str::to_owned),
            name: name.map(str::to_owned),
            token: token.map(str::to_owned),
            live: self.memory.live(),
            note,
        };
        self.commit(Change::Event(Box::new(event)));
    }

    fn known(&self, id: &str) -> Result<&VmRecord, Failure> {
        self.memory.vms.get(id).ok_or_else(|| Failure::unknown_vm(id))
    }

    /// Stops a VM. It stays as `stopped`, and its kubelet stops. VMs in deletion stay as they are.
    pub fn kill(&mut self, now: Timestamp, id: &str) -> Result<Vm, Failure> {
        self.advance(now);
        let vm = self.known(id)?;
        if matches!(vm.state, VmState::Pending | VmState::Running) {
            let hardware = Hardware { hung: false, ..vm.hardware };
            let vm = VmRecord { state: VmState::Stopped, hardware, ..vm.clone() };
            self.store(vm);
            self.note_vm(now, EventKind::VmStopped, id, None);
        }
        Ok(self.known(id)?.view())
    }

    /// Starts a stopped VM. It runs at once.
    pub fn start(&mut self, now: Timestamp, id: &str) -> Result<Vm, Failure> {
        self.advance(now);
        let vm = self.known(id)?;
        if vm.state == VmState::Stopped {
            let vm = VmRecord { state: VmState::Running, boots_at: now, ..vm.clone() };
            self.store(vm);
            self.note_vm(now, EventKind::VmStarted, id, None);
        }
        Ok(self.known(id)?.view())
    }

    /// Sets the behavior of a VM's kubelet.
    pub fn order_kubelet(&mut self, now: Timestamp, id: &str, order: KubeletOrder) -> Result<Vm, Failure> {
        self.advance(now);
        let vm = self.known(id)?;
        let mut names = vm.node_names();
        let behavior = KubeletBehavior { since: Some(now), ..vm.kubelet.clone() };
        let behavior = match order {
            KubeletOrder::Silence => KubeletBehavior { silent: true, ..behavior },
            KubeletOrder::Revive => KubeletBehavior { silent: false, ..behavior },
            KubeletOrder::Restart => KubeletBehavior { restarts: behavior.restarts + 1, ..behavior },
            KubeletOrder::NotReady => KubeletBehavior { not_ready: true, flap_seconds: None, ..behavior },
            KubeletOrder::Ready => KubeletBehavior { not_ready: false, flap_seconds: None, ..behavior },
            KubeletOrder::Flap { seconds } => {
                if duration("seconds", seconds)? < Duration::from_millis(100) {
                    return Err(Failure::invalid("seconds must be at least 0.1"));
                }
                KubeletBehavior { not_ready: false, flap_seconds: Some(seconds), ..behavior }
            }
            KubeletOrder::Rename { node_name } => KubeletBehavior { node_names: vec![node_name], ..behavior },
            KubeletOrder::RegisterAlso { node_name } => {
                if !names.contains(&node_name) {
                    names.push(node_name);
                }
                KubeletBehavior { node_names: names, ..behavior }
            }
        };
        if behavior.node_names.len() > 8
            || behavior.node_names.iter().any(|name| name.is_empty() || name.len() > NAME_LIMIT)
        {
            return Err(Failure::invalid("a kubelet has at most 8 names of 1 to 253 bytes"));
        }
        let vm = VmRecord { kubelet: behavior, ..vm.clone() };
        let view = vm.view();
        self.store(vm);
        Ok(view)
    }

    /// Sets the state of a VM's hardware.
    pub fn order_hardware(&mut self, now: Timestamp, id: &str, order: HardwareOrder) -> Result<Vm, Failure> {
        self.advance(now);
        let vm = self.known(id)?;
        let hardware = match order {
            HardwareOrder::Hang => Hardware { hung: true, ..vm.hardware },
            HardwareOrder::Resume => Hardware { hung: false, ..vm.hardware },
            HardwareOrder::CutNetwork => Hardware { network_cut: true, ..vm.hardware },
            HardwareOrder::RestoreNetwork => Hardware { network_cut: false, ..vm.hardware },
            HardwareOrder::LimitDisk { bytes_per_second: 0 } => {
                return Err(Failure::invalid("bytesPerSecond must be at least 1"));
            }
            HardwareOrder::LimitDisk { bytes_per_second } => {
                Hardware { disk_bytes_per_second: Some(bytes_per_second), ..vm.hardware }
            }
            HardwareOrder::UnlimitDisk => Hardware { disk_bytes_per_second: None, ..vm.hardware },
        };
        let vm = VmRecord { hardware, ..vm.clone() };
        let view = vm.view();
        self.store(vm);
        Ok(view)
    }

    /// Sets the addresses that the cloud shows of a VM.
    pub fn order_addresses(&mut self, now: Timestamp, id: &str, order: AddressOrder) -> Result<Vm, Failure> {
        self.advance(now);
        let vm = VmRecord { addresses: order.addresses, ..self.known(id)?.clone() };
        let view = vm.view();
        self.store(vm);
        Ok(view)
    }

    /// Adds a fault.
    pub fn add_fault(&mut self, now: Timestamp, order: FaultOrder) -> Result<Fault, Failure> {
        self.advance(now);
        fault::validate(&order)?;
        self.forget_faults_that_are_over(now);
        if self.memory.faults.len() >= FAULTS_LIMIT {
            let message = format!("there are {FAULTS_LIMIT} faults in force; end some first");
            return Err(Failure::new(Code::ResourceExhausted, message));
        }
        let until = match order.for_seconds {
            Some(seconds) => Some(now + duration("for_seconds", seconds)?),
            None => None,
        };
        let fault = Fault { id: self.memory.sequence + 1, until, struck: 0, order };
        self.commit(Change::Fault(Box::new(fault.clone())));
        Ok(fault)
    }

    /// The active faults, oldest first.
    pub fn faults(&mut self, now: Timestamp) -> Vec<Fault> {
        self.forget_faults_that_are_over(now);
        self.memory.faults.values().cloned().collect()
    }

    /// Removes one fault, or all. Returns their number.
    pub fn end_faults(&mut self, which: Option<u64>) -> usize {
        let ids: Vec<u64> =
            self.memory.faults.keys().copied().filter(|id| which.is_none_or(|which| which == *id)).collect();
        for id in &ids {
            self.commit(Change::FaultOver(*id));
        }
        ids.len()
    }

    fn forget_faults_that_are_over(&mut self, now: Timestamp) {
        let over: Vec<u64> =
            self.memory.faults.values().filter(|fault| fault::is_over(fault, now)).map(|fault| fault.id).collect();
        for id in over {
            self.commit(Change::FaultOver(id));
        }
    }

    /// The effect of all faults on a call. Counts it.
    pub(super) fn strike(&mut self, now: Timestamp, operation: FaultOperation, about: &About) -> Strike {
        self.forget_faults_that_are_over(now);
        let mut strike = Strike::default();
        let faults: Vec<Fault> =
            self.memory.faults.values().filter(|fault| fault::matches(fault, operation, about)).cloned().collect();
        for mut fault in faults {
            if fault.order.probability.is_some_and(|probability| self.random.f64() >= probability) {
                continue;
            }
            if !strike.add(&fault.order.effect) {
                continue;
            }
            fault.struck += 1;
            fault.order.count = fault.order.count.map(|count| count.saturating_sub(1));
            let note = format!("fault {} struck {operation:?}", fault.id);
            self.commit(Change::Fault(Box::new(fault)));
            self.note(now, EventKind::FaultStruck, None, about.machine.as_deref(), None, Some(note));
        }
        strike
    }

    /// The quota.
    pub fn quota(&self) -> Quota {
        self.memory.quota
    }

    /// Sets the quota. VMs beyond it stay.
    pub fn set_quota(&mut self, quota: Quota) {
        self.commit(Change::Quota(quota));
    }

    /// The statistics.
    pub fn stats(&self) -> Stats {
        Stats {
            created: self.memory.created,
            deleted: self.memory.deleted,
            live: self.memory.live(),
            most_live_at_once: self.memory.most_live_at_once,
            calls: self.calls.clone(),
            callers: self.callers.clone(),
        }
    }

    /// Counts a request of a named caller.
    pub fn count_caller(&mut self, name: String) {
        *self.callers.entry(name).or_default() += 1;
    }

    /// Resets `most_live_at_once`, `calls` and `callers`.
    pub fn reset_stats(&mut self) {
        self.calls.clear();
        self.callers.clear();
        self.commit(Change::MostLiveReset);
    }

    /// The events after this number.
    pub fn events(&self, after: u64, limit: usize) -> Page<Event> {
        let oldest = self.memory.history.front().map_or(0, |event| event.number);
        // Numbers have no gaps, so they determine the position.
        let skip = usize::try_from(after.saturating_add(1).saturating_sub(oldest)).unwrap_or(usize::MAX);
        let items: Vec<Event> =
            self.memory.history.iter().skip(skip).take(limit.clamp(1, PAGE_LIMIT)).cloned().collect();
        let next = items.last().filter(|last| last.number < self.memory.last_event).map(|last| last.number.to_string());
        Page { items, next }
    }
}
