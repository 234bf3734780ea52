//! One state of the model: the API server's objects, the views of two planners, and the requests in flight.

use std::fmt;

/// The number of indices. A plan that requires a higher one is beyond the bounds.
pub(super) const INDICES: usize = 4;

/// The object under the name of an index.
///
/// A name passes through these in order and never goes back, so a view of it that equals the truth is up to date.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(super) enum Slot {
    /// No object, now or before.
    #[default]
    Free,
    /// A Machine without a VM.
    New,
    /// A Machine with a VM.
    Ready,
    /// A Machine in phase Failed.
    Failed,
    /// A Machine that is being deleted.
    Leaving,
    /// No object any more.
    Gone,
    /// A second Machine, created by a late request.
    Again,
    /// The second Machine is being deleted.
    LeavingAgain,
    /// No object any more, for the second time. A third Machine is beyond the bounds.
    GoneAgain,
    /// A Machine of another owner.
    Foreign,
}

impl Slot {
    /// Whether there is no object.
    pub(super) fn is_empty(self) -> bool {
        matches!(self, Self::Free | Self::Gone | Self::GoneAgain)
    }

    /// Whether it is a Machine of the set that is not being deleted.
    pub(super) fn is_live(self) -> bool {
        matches!(self, Self::New | Self::Ready | Self::Failed | Self::Again)
    }

    /// Whether it is a Machine of the set that is being deleted.
    pub(super) fn is_leaving(self) -> bool {
        matches!(self, Self::Leaving | Self::LeavingAgain)
    }

    /// Whether it is a Machine without a fault.
    pub(super) fn is_sound(self) -> bool {
        matches!(self, Self::New | Self::Ready)
    }

    /// The number of the object among the successive ones with this name.
    pub(super) fn life(self) -> u8 {
        match self {
            Self::Free => 0,
            Self::New | Self::Ready | Self::Failed | Self::Leaving | Self::Gone => 1,
            Self::Again | Self::LeavingAgain | Self::GoneAgain => 2,
            Self::Foreign => 3,
        }
    }

    /// The slot after the deletion of its Machine.
    pub(super) fn deleted(self) -> Self {
        if self == Self::Again { Self::LeavingAgain } else { Self::Leaving }
    }

    /// The slot after its Machine's finalizer is dropped.
    pub(super) fn gone(self) -> Self {
        if self == Self::LeavingAgain { Self::GoneAgain } else { Self::Gone }
    }
}

/// The slots of all names.
pub(super) type Table = [Slot; INDICES];

/// Whether a MachineSet exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(super) enum Phase {
    /// It exists.
    #[default]
    Stays,
    /// It is being deleted.
    Leaves,
    /// It is gone.
    Gone,
}

/// The MachineSet: its replicas and its ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Set {
    pub(super) replicas: u8,
    /// One bit for each index.
    pub(super) retired: u8,
    pub(super) phase: Phase,
}

impl Set {
    pub(super) fn has_retired(self, index: usize) -> bool {
        self.retired >> index & 1 == 1
    }

    /// The wanted number of Machines.
    pub(super) fn wanted(self) -> u8 {
        if self.phase == Phase::Stays { self.replicas } else { 0 }
    }

    pub(super) fn bits(self) -> u64 {
        u64::from(self.replicas) | u64::from(self.retired) << 2 | (self.phase as u64) << 6
    }
}

/// A request to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Request {
    /// Retires indices by a write of the ledger.
    Retire { retired: u8, pinned: bool },
    /// Creates the Machine of an index.
    Create { index: u8 },
    /// Deletes the Machine of an index, in its first or second life.
    Delete { index: u8, life: u8, pinned: bool },
    /// Removes the finalizer of the set.
    Release,
}

impl Request {
    /// Whether both belong to one stage of a plan: a stage has only one kind of request.
    pub(super) fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    /// The index of the request.
    pub(super) fn index(self) -> Option<u8> {
        match self {
            Self::Create { index } | Self::Delete { index, .. } => Some(index),
            Self::Retire { .. } | Self::Release => None,
        }
    }
}

/// A request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Message {
    pub(super) request: Request,
    /// Whether the object has changed since it was observed: a request with a version will be rejected.
    pub(super) stale: bool,
}

impl Message {
    /// At most 10 bits, and never 0.
    fn bits(self) -> u64 {
        let bits = match self.request {
            Request::Retire { retired, pinned } => 1 | u64::from(retired) << 3 | u64::from(pinned) << 7,
            Request::Create { index } => 2 | u64::from(index) << 3,
            Request::Delete { index, life, pinned } => {
                3 | u64::from(index) << 3 | u64::from(life) << 5 | u64::from(pinned) << 7
            }
            Request::Release => 4,
        };
        bits | u64::from(self.stale) << 8
    }
}

/// The views of one planner, and its current plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Planner {
    /// Its cache of the set, as of some moment.
    pub(super) set: Set,
    /// Whether the set is unchanged since then.
    pub(super) is_current: bool,
    /// Its cache of the Machines, as of some other moment.
    pub(super) machines: Table,
    /// The rest of its plan. The first `sent` requests are in flight.
    pub(super) steps: Vec<Message>,
    pub(super) sent: usize,
    /// The size of the last batch.
    pub(super) batch: usize,
    /// Whether a step has failed: no further batch is sent.
    pub(super) failed: bool,
    /// The first step that failed, and whether it failed because the name is taken.
    pub(super) refused: Option<(u8, bool)>,
    /// The Machines that it must still read, because it does not know the outcome of its creations and deletions.
    pub(super) unsure: [u8; 2],
    /// The same for the set.
    pub(super) unsure_of_set: bool,
}

impl Planner {
    pub(super) fn is_unsure(&self) -> bool {
        self.unsure_of_set || self.unsure != [0, 0]
    }

    /// Whether it can make a plan.
    pub(super) fn is_free(&self) -> bool {
        self.steps.is_empty() && !self.is_unsure()
    }

    fn bits(&self) -> [u64; 2] {
        let steps = self.steps.iter().rev().fold(0, |bits, step| bits << 10 | step.bits());
        let refused = self.refused.map_or(0, |(index, taken)| 1 | u64::from(index) << 1 | u64::from(taken) << 4);
        let flags = u64::from(self.is_current) | u64::from(self.failed) << 1 | u64::from(self.unsure_of_set) << 2;
        let counts = self.sent as u64 | (self.batch as u64) << 3;
        let unsure = u64::from(self.unsure[0]) | u64::from(self.unsure[1]) << 4;
        let seen = self.set.bits() | table_bits(self.machines) << 8;
        [steps | counts << 50, seen | flags << 24 | refused << 27 | unsure << 32]
    }
}

fn table_bits(table: Table) -> u64 {
    table.iter().fold(0, |bits, slot| bits << 4 | *slot as u64)
}

/// The disturbances that can still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Budget {
    /// Changes of the replicas.
    pub(super) rescales: u8,
    /// Machines deleted, failing or created by others; the set deleted.
    pub(super) harms: u8,
    /// Lost answers, repeated requests, restarts.
    pub(super) faults: u8,
}

/// One state of the whole model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) set: Set,
    pub(super) machines: Table,
    pub(super) planners: [Planner; 2],
    /// Requests that may still arrive although no planner waits for them; sorted.
    pub(super) late: Vec<Message>,
    pub(super) budget: Budget,
    /// The largest number of Machines wanted since the last moment of rest.
    pub(super) peak: u8,
    /// The number of Machines that users deleted, or that failed, since the last moment of rest.
    pub(super) harmed: u8,
}

/// The key of a state: equal states have equal keys.
pub(super) type ObjectRef = [u64; 6];

impl State {
    /// A set with this many replicas and no Machines, and two planners that have seen it.
    pub(super) fn start(replicas: u8, budget: Budget) -> Self {
        let set = Set { replicas, ..Set::default() };
        let planner = Planner { set, is_current: true, ..Planner::default() };
        Self { set, budget, peak: replicas, planners: [planner.clone(), planner], ..Self::default() }
    }

    pub(super) fn key(&self) -> ObjectRef {
        let Budget { rescales, harms, faults } = self.budget;
        let late = self.late.iter().fold(0, |bits, message| bits << 10 | message.bits());
        let small = [rescales, harms, faults, self.peak, self.harmed];
        let small = small.iter().fold(0, |bits, number| bits << 3 | u64::from(*number));
        let [[a, b], [c, d]] = [self.planners[0].bits(), self.planners[1].bits()];
        [self.set.bits() | table_bits(self.machines) << 8 | small << 24, late, a, b, c, d]
    }

    /// The number of Machines of the set that stay.
    pub(super) fn staying(&self) -> u8 {
        self.count(Slot::is_live)
    }

    /// The number of sound Machines among those.
    pub(super) fn sound(&self) -> u8 {
        self.count(Slot::is_sound)
    }

    fn count(&self, counts: impl Fn(Slot) -> bool) -> u8 {
        let mut count = 0;
        for (index, slot) in self.machines.iter().enumerate() {
            count += u8::from(counts(*slot) && !self.set.has_retired(index));
        }
        count
    }

    /// All messages.
    pub(super) fn messages(&mut self) -> impl Iterator<Item = &mut Message> {
        self.late.iter_mut().chain(self.planners.iter_mut().flat_map(|planner| planner.steps.iter_mut()))
    }

    /// Planners are interchangeable: of two states that differ only in their order, the search visits one. Returns whether they
    /// were swapped.
    pub(super) fn order(&mut self) -> bool {
        let swapped = self.planners[1].bits() < self.planners[0].bits();
        if swapped {
            self.planners.swap(0, 1);
        }
        swapped
    }

    /// Resets the history if no request is in flight and both planners are up to date.
    pub(super) fn rest(&mut self) {
        let knows_all =
            |planner: &Planner| planner.is_free() && planner.is_current && planner.machines == self.machines;
        if self.late.is_empty() && self.planners.iter().all(knows_all) {
            self.peak = self.set.wanted().max(self.staying());
            self.harmed = 0;
        }
    }

    /// Whether exactly the wanted Machines stay.
    pub(super) fn is_served(&self) -> bool {
        let is_well = |(index, slot): (usize, &Slot)| match slot {
            Slot::Ready => self.set.phase == Phase::Stays && !self.set.has_retired(index),
            slot => !slot.is_live(),
        };
        self.machines.iter().enumerate().all(is_well) && self.staying() == self.set.wanted()
    }

    /// Whether nothing is being deleted.
    pub(super) fn is_over(&self) -> bool {
        self.set.phase != Phase::Leaves && !self.machines.iter().any(|slot| slot.is_leaving())
    }
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let retired: Vec<usize> = (0..INDICES).filter(|index| self.has_retired(*index)).collect();
        match self.phase {
            Phase::Stays => write!(f, "{} wanted, retired {retired:?}", self.replicas),
            Phase::Leaves => write!(f, "set being deleted, retired {retired:?}"),
            Phase::Gone => write!(f, "set gone"),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let condition = |pinned| if pinned { " if it is as it was seen" } else { "" };
        match self {
            Self::Retire { retired, pinned } => {
                let set = Set { retired: *retired, ..Set::default() };
                let indices: Vec<usize> = (0..INDICES).filter(|index| set.has_retired(*index)).collect();
                write!(f, "write the ledger with {indices:?} retired{}", condition(*pinned))
            }
            Self::Create { index } => write!(f, "create machine {index}"),
            Self::Delete { index, life, pinned } => {
                let which = if *life == 2 { "second " } else { "" };
                write!(f, "delete {which}machine {index}{}", condition(*pinned))
            }
            Self::Release => f.write_str("take the finalizer off the set"),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, machines {:?}", self.set, self.machines)
    }
}
