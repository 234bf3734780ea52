//! The API server's handling of requests, and the results that violate a property.

use super::{
    mutants::Mutant,
    state::{INDICES, Message, Phase, Request, Set, Slot, State},
};

/// The answer to a planner's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The request was applied, now or before.
    Done,
    /// The object has changed, or is gone.
    Conflict,
    /// The name is taken.
    Taken,
}

/// The description of a violated property.
pub(super) type Broken = &'static str;

pub(super) const TOO_MANY: Broken = "there are more machines than were ever wanted since all was at rest";
pub(super) const TOO_FEW: Broken = "a machine failed that was not one too many";
pub(super) const SECOND_LIFE: Broken =
    "a name has a second life: a VM was made for a machine whose name had been retired";
pub(super) const GHOST: Broken = "a VM was made for a machine that is gone";
pub(super) const FORGOTTEN: Broken = "a name that had been retired is so no more";
pub(super) const FOREIGN: Broken = "a machine of somebody else was touched";
pub(super) const BAD_END: Broken = "nothing more happens, and there are not so many machines as wanted, or others";
pub(super) const WAITS: Broken = "machines that are being deleted keep others from being made, or from being deleted";
pub(super) const NO_END: Broken = "it can go on for ever although nothing disturbs it";
/// Not a property: the state is beyond the bounds, and the search stops there.
pub(super) const BEYOND: Broken = "beyond the bounds";

impl State {
    /// Executes a request.
    pub(super) fn serve(&mut self, message: Message, mutant: Option<Mutant>) -> Result<Answer, Broken> {
        match message.request {
            Request::Create { index } => self.create(usize::from(index), mutant),
            Request::Delete { index, life, pinned } => {
                if pinned && message.stale {
                    return Ok(Answer::Conflict);
                }
                self.delete(usize::from(index), life, mutant)
            }
            Request::Retire { pinned, .. } if self.set.phase == Phase::Gone || pinned && message.stale => {
                Ok(Answer::Conflict)
            }
            Request::Retire { retired, .. } => self.retire(retired, mutant).map(|()| Answer::Done),
            Request::Release if self.set.phase == Phase::Gone => Ok(Answer::Conflict),
            Request::Release => {
                self.write_set(Set { phase: Phase::Gone, ..self.set }, mutant);
                Ok(Answer::Done)
            }
        }
    }

    /// 201 when the name is free, 409 when it is taken.
    fn create(&mut self, index: usize, mutant: Option<Mutant>) -> Result<Answer, Broken> {
        let made = match self.machines[index] {
            Slot::Free => Slot::New,
            Slot::Gone => Slot::Again,
            Slot::GoneAgain => return Err(BEYOND),
            Slot::Foreign if mutant == Some(Mutant::PlainApply) => return Err(FOREIGN),
            _ if mutant == Some(Mutant::PlainApply) => return Ok(Answer::Done),
            _ => return Ok(Answer::Taken),
        };
        self.write_machine(index, made);
        if self.staying() > self.peak { Err(TOO_MANY) } else { Ok(Answer::Done) }
    }

    /// Deletes the object only if it is the observed one.
    fn delete(&mut self, index: usize, life: u8, mutant: Option<Mutant>) -> Result<Answer, Broken> {
        let slot = self.machines[index];
        let is_it = slot.life() == life || mutant == Some(Mutant::DeleteByName);
        match slot {
            _ if slot.is_empty() || (is_it && slot.is_leaving()) => Ok(Answer::Done),
            _ if !is_it => Ok(Answer::Conflict),
            Slot::Foreign => Err(FOREIGN),
            _ => {
                let before = self.sound();
                self.write_machine(index, slot.deleted());
                self.not_too_few(before).map(|()| Answer::Done)
            }
        }
    }

    /// Writes the ledger.
    fn retire(&mut self, retired: u8, mutant: Option<Mutant>) -> Result<(), Broken> {
        if self.set.retired & !retired != 0 {
            return Err(FORGOTTEN);
        }
        let before = self.sound();
        self.write_set(Set { retired, ..self.set }, mutant);
        self.not_too_few(before)
    }

    /// When a sound Machine is removed, the wanted number must stay, less the Machines that users have deleted.
    fn not_too_few(&self, before: u8) -> Result<(), Broken> {
        let after = self.sound();
        if after < before && after + self.harmed < self.set.wanted() { Err(TOO_FEW) } else { Ok(()) }
    }

    /// Writes the set, which makes the planners' views of it outdated.
    pub(super) fn write_set(&mut self, set: Set, mutant: Option<Mutant>) {
        let same_ledger = set.retired == self.set.retired;
        self.set = set;
        self.planners.iter_mut().for_each(|planner| planner.is_current = false);
        if same_ledger && mutant == Some(Mutant::PinnedToLedgerAlone) {
            return;
        }
        for message in self.messages().filter(|message| matches!(message.request, Request::Retire { .. })) {
            message.stale = true;
        }
    }

    /// Writes a Machine.
    pub(super) fn write_machine(&mut self, index: usize, slot: Slot) {
        self.machines[index] = slot;
        for message in self.messages() {
            if let Request::Delete { index: of, pinned: true, .. } = message.request
                && usize::from(of) == index
            {
                message.stale = true;
            }
        }
    }

    /// Drops late requests that can no longer have an effect.
    pub(super) fn forget_void(&mut self, mutant: Option<Mutant>) {
        let Self { set, machines, late, .. } = self;
        late.retain(|message| match message.request {
            Request::Retire { pinned, .. } => set.phase != Phase::Gone && !(pinned && message.stale),
            Request::Create { index } => machines[usize::from(index)] != Slot::GoneAgain,
            Request::Delete { pinned, .. } if pinned && message.stale => false,
            Request::Delete { index, life, .. } => {
                let slot = machines[usize::from(index)];
                mutant == Some(Mutant::DeleteByName) || (slot.is_live() && slot.life() == life)
            }
            Request::Release => set.phase != Phase::Gone,
        });
        late.sort_unstable();
    }

    /// The indices of names that fit a condition.
    pub(super) fn indices(&self, fits: impl Fn(Slot) -> bool) -> impl Iterator<Item = u8> {
        (0..INDICES).filter(move |index| fits(self.machines[*index])).filter_map(|index| u8::try_from(index).ok())
    }
}
