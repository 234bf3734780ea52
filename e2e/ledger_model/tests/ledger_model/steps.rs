//! The possible transitions.

use std::fmt;

use super::{
    mutants::Mutant,
    product::{End, Product},
    server::{Answer, BEYOND, Broken, GHOST, SECOND_LIFE},
    state::{INDICES, Message, Phase, Request, Set, Slot, State},
};

/// The maximum number of late requests.
const LATE: usize = 4;

/// A transition. Planners, indices and places in a list are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// A late request arrives.
    Late(u8),
    /// A request and its answer arrive.
    Deliver(u8, u8),
    /// A planner reads the outcome of its requests.
    FindOut(u8),
    /// A planner's cache of the set catches up.
    SyncSet(u8),
    /// A planner's cache of the Machines catches up.
    SyncMachines(u8),
    /// A planner makes a plan and starts it.
    Plan(u8),
    /// A process creates the VM of a Machine.
    MakeVm(u8, u8),
    /// A process completes the deletion of a Machine whose VM is gone.
    End(u8, u8),
    /// The garbage collector deletes a Machine whose set is gone.
    Collect(u8),
    /// A process retires the name of a Machine whose deletion began long ago.
    RetireAlone(u8, u8),
    /// A request gets no answer, and may arrive later.
    Lose(u8, u8),
    /// A request and its answer arrive, and the request may arrive once more later.
    Repeat(u8, u8),
    /// A process dies, and another one takes over. The requests of the first may arrive later.
    Restart(u8),
    /// A user changes the replicas.
    Rescale(u8),
    /// A user deletes a Machine.
    Delete(u8),
    /// A Machine fails.
    Fail(u8),
    /// Another client creates a Machine of its own under a name.
    Intrude(u8),
    /// A user deletes the set.
    DeleteSet,
}

impl Action {
    /// Whether it is no disturbance.
    pub(super) fn is_undisturbed(self) -> bool {
        self.is_due() || matches!(self, Self::RetireAlone(..))
    }

    /// Whether it happens on its own, without a wait of a minute.
    pub(super) fn is_due(self) -> bool {
        matches!(
            self,
            Self::Late(_)
                | Self::Deliver(..)
                | Self::FindOut(_)
                | Self::SyncSet(_)
                | Self::SyncMachines(_)
                | Self::Plan(_)
                | Self::MakeVm(..)
                | Self::End(..)
                | Self::Collect(_)
        )
    }
}

/// The result of an action.
pub(super) enum Next {
    /// Nothing: the action is impossible, or changes nothing.
    Nothing,
    /// Another state, and whether it swaps the planners.
    State(Box<State>, bool),
    /// A violated property.
    Broken(Broken),
    /// A state beyond the bounds.
    Beyond,
}

/// The transition rules: the scheme, or a mutant of it.
pub(super) struct Rules {
    pub(super) product: Product,
    pub(super) mutant: Option<Mutant>,
    /// The highest number of replicas that users set.
    pub(super) most: u8,
}

impl Rules {
    /// All possible actions, including those that change nothing.
    pub(super) fn actions(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::with_capacity(48);
        let numbers = |count: usize| (0..count).filter_map(|number| u8::try_from(number).ok());
        actions.extend(numbers(state.late.len()).map(Action::Late));
        for planner in 0..2 {
            let sent = state.planners[usize::from(planner)].sent;
            actions.extend(numbers(sent).map(|step| Action::Deliver(planner, step)));
            actions.extend([Action::FindOut(planner), Action::SyncSet(planner), Action::SyncMachines(planner)]);
            actions.push(Action::Plan(planner));
            for index in numbers(INDICES) {
                actions.extend([Action::MakeVm(planner, index), Action::End(planner, index)]);
                actions.push(Action::RetireAlone(planner, index));
            }
            if state.budget.faults > 0 {
                actions.extend(numbers(sent).map(|step| Action::Lose(planner, step)));
                actions.extend(numbers(sent).map(|step| Action::Repeat(planner, step)));
                actions.push(Action::Restart(planner));
            }
        }
        if state.set.phase == Phase::Gone {
            actions.extend(state.indices(Slot::is_live).map(Action::Collect));
        }
        if state.budget.rescales > 0 && state.set.phase == Phase::Stays {
            actions.extend((0..=self.most).filter(|replicas| *replicas != state.set.replicas).map(Action::Rescale));
        }
        if state.budget.harms > 0 {
            actions.extend(state.indices(Slot::is_live).map(Action::Delete));
            actions.extend(state.indices(Slot::is_sound).map(Action::Fail));
            actions.extend(state.indices(Slot::is_empty).map(Action::Intrude));
            actions.push(Action::DeleteSet);
        }
        actions
    }

    /// The result of an action.
    pub(super) fn take(&self, state: &State, action: Action) -> Next {
        if !state.may(action) {
            return Next::Nothing;
        }
        let mut next = state.clone();
        match self.act(&mut next, action) {
            Err(BEYOND) => Next::Beyond,
            Err(broken) => Next::Broken(broken),
            Ok(()) => {
                next.forget_void(self.mutant);
                if next.late.len() > LATE {
                    return Next::Beyond;
                }
                next.rest();
                let swapped = next.order();
                if next == *state { Next::Nothing } else { Next::State(Box::new(next), swapped) }
            }
        }
    }

    fn act(&self, state: &mut State, action: Action) -> Result<(), Broken> {
        match action {
            Action::Late(place) => {
                let message = state.late.remove(usize::from(place));
                state.serve(message, self.mutant)?;
            }
            Action::Deliver(planner, step) => self.deliver(state, usize::from(planner), usize::from(step))?,
            Action::FindOut(planner) => state.find_out(usize::from(planner)),
            Action::SyncSet(planner) => state.sync_set(usize::from(planner)),
            Action::SyncMachines(planner) => state.sync_machines(usize::from(planner)),
            Action::Plan(planner) => return self.plan(state, usize::from(planner)),
            Action::MakeVm(planner, index) => return self.make_vm(state, usize::from(planner), usize::from(index)),
            Action::End(planner, index) => self.end(state, usize::from(planner), usize::from(index)),
            Action::Collect(index) => {
                let index = usize::from(index);
                state.write_machine(index, state.machines[index].deleted());
            }
            Action::RetireAlone(planner, index) => {
                let (known, index) = (&state.planners[usize::from(planner)], usize::from(index));
                let (slot, is_current) = (known.machines[index], known.is_current);
                if let End::Retires(request) = self.product.end(known.set, index, slot, true) {
                    state.serve(Message { request, stale: !is_current }, self.mutant)?;
                }
            }
            _ => return self.disturb(state, action),
        }
        Ok(())
    }

    /// Applies an action that uses the budget.
    fn disturb(&self, state: &mut State, action: Action) -> Result<(), Broken> {
        match action {
            Action::Lose(..) | Action::Repeat(..) | Action::Restart(_) => state.budget.faults -= 1,
            Action::Rescale(_) => state.budget.rescales -= 1,
            _ => state.budget.harms -= 1,
        }
        match action {
            Action::Lose(planner, step) => {
                let (planner, step) = (usize::from(planner), usize::from(step));
                state.late.push(state.planners[planner].steps[step]);
                self.answered(state, planner, step, None);
            }
            Action::Repeat(planner, step) => {
                let (planner, step) = (usize::from(planner), usize::from(step));
                let copy = state.planners[planner].steps[step];
                self.deliver(state, planner, step)?;
                state.late.push(copy);
            }
            Action::Restart(planner) => state.restart(usize::from(planner)),
            Action::Rescale(replicas) => {
                state.write_set(Set { replicas, ..state.set }, self.mutant);
                state.peak = state.peak.max(replicas);
            }
            Action::Delete(index) => {
                let index = usize::from(index);
                state.harm(index, state.machines[index].deleted());
            }
            Action::Fail(index) => state.harm(usize::from(index), Slot::Failed),
            Action::Intrude(index) => state.write_machine(usize::from(index), Slot::Foreign),
            _ => state.write_set(Set { phase: Phase::Leaves, ..state.set }, self.mutant),
        }
        Ok(())
    }

    fn plan(&self, state: &mut State, planner: usize) -> Result<(), Broken> {
        let known = &mut state.planners[planner];
        let taken = known.refused.take().map(|(index, _)| index);
        let decision = self.product.decide(known.set, known.machines, taken);
        if decision.is_beyond {
            return Err(BEYOND);
        }
        let is_stale = |request: &Request| match request {
            Request::Delete { index, .. } => known.machines[usize::from(*index)] != state.machines[usize::from(*index)],
            Request::Retire { .. } if self.mutant == Some(Mutant::PinnedToLedgerAlone) => {
                known.set.retired != state.set.retired
            }
            Request::Retire { .. } => !known.is_current,
            _ => false,
        };
        let pinned = |request: &Request| {
            matches!(request, Request::Retire { pinned: true, .. } | Request::Delete { pinned: true, .. })
        };
        let message = |request: &Request| Message { request: *request, stale: pinned(request) && is_stale(request) };
        known.steps = decision.steps.iter().map(message).collect();
        state.planners[planner].send();
        Ok(())
    }

    /// A request arrives, and its answer as well.
    fn deliver(&self, state: &mut State, planner: usize, step: usize) -> Result<(), Broken> {
        let message = state.planners[planner].steps[step];
        let answer = state.serve(message, self.mutant)?;
        self.answered(state, planner, step, Some(answer));
        Ok(())
    }

    /// A planner gets the answer to a request; without an answer the outcome stays unknown.
    fn answered(&self, state: &mut State, planner: usize, step: usize, answer: Option<Answer>) {
        let known = &mut state.planners[planner];
        let request = known.steps.remove(step).request;
        known.sent -= 1;
        if answer == Some(Answer::Done) {
            if self.mutant != Some(Mutant::OwnWritesUnseen) {
                state.show(planner, request);
            }
        } else {
            known.failed = true;
            known.note_failure(request, answer);
            if self.mutant == Some(Mutant::NothingFoundOut) {
                (known.unsure, known.unsure_of_set) = ([0, 0], false);
            }
        }
        let known = &mut state.planners[planner];
        if known.sent > 0 {
            return;
        }
        if known.failed {
            known.steps.clear();
        } else if known.steps.first().is_some_and(|next| !next.request.is_like(request)) {
            known.batch = 0;
        }
        known.send();
    }

    fn make_vm(&self, state: &mut State, planner: usize, index: usize) -> Result<(), Broken> {
        let known = &state.planners[planner];
        let (set, seen, truth) = (known.set, known.machines[index], state.machines[index]);
        if !self.product.gets_vm(set, index, seen, state.set) {
            return Ok(());
        }
        match truth {
            _ if seen == Slot::Again => Err(SECOND_LIFE),
            Slot::New => {
                state.write_machine(index, Slot::Ready);
                Ok(())
            }
            _ => Err(GHOST),
        }
    }

    fn end(&self, state: &mut State, planner: usize, index: usize) {
        let (set, slot) = (state.planners[planner].set, state.machines[index]);
        if self.product.end(set, index, slot, false) == End::Drops {
            state.write_machine(index, slot.gone());
        }
    }
}

impl State {
    /// Whether an action could change anything: a cheap check before the state is copied.
    fn may(&self, action: Action) -> bool {
        let of = |planner: u8| &self.planners[usize::from(planner)];
        let seen = |planner: u8, index: u8| of(planner).machines[usize::from(index)];
        let truth = |index: u8| self.machines[usize::from(index)];
        match action {
            Action::FindOut(planner) => of(planner).steps.is_empty() && of(planner).is_unsure(),
            Action::SyncSet(planner) => !of(planner).is_current,
            Action::SyncMachines(planner) => of(planner).machines != self.machines,
            Action::Plan(planner) => of(planner).is_free() && of(planner).set.phase != Phase::Gone,
            Action::MakeVm(planner, index) => {
                let (seen, truth) = (seen(planner, index), truth(index));
                let is_it = truth.life() == seen.life() && !truth.is_empty();
                matches!(seen, Slot::New | Slot::Again) && (truth == seen || !is_it)
            }
            Action::End(planner, index) => seen(planner, index).is_leaving() && truth(index) == seen(planner, index),
            Action::RetireAlone(planner, index) => {
                seen(planner, index).is_leaving() && !self.set.has_retired(usize::from(index))
            }
            Action::DeleteSet => self.set.phase == Phase::Stays,
            _ => true,
        }
    }

    fn sync_set(&mut self, planner: usize) {
        let known = &mut self.planners[planner];
        (known.set, known.is_current) = (self.set, true);
    }

    fn sync_machines(&mut self, planner: usize) {
        self.planners[planner].machines = self.machines;
    }

    /// The cache shows the last change of a Machine. If the cache already shows it, no later view is needed. Otherwise, a
    /// planner that read at the right moment before covers any earlier sufficient view.
    fn catch_up(&mut self, planner: usize, index: usize) {
        if self.planners[planner].machines[index] != self.machines[index] {
            self.sync_machines(planner);
        }
    }

    /// Reads the outcome of the first request with an unknown outcome.
    fn find_out(&mut self, planner: usize) {
        let known = &self.planners[planner];
        let first = |bits: u8| (0..INDICES).find(|index| bits >> index & 1 == 1);
        for of in [0, 1] {
            if let Some(index) = first(known.unsure[of]) {
                // After a creation that left no object, there is nothing to wait for.
                if of == 1 || !self.machines[index].is_empty() {
                    self.catch_up(planner, index);
                }
                self.planners[planner].unsure[of] &= !(1 << index);
                return;
            }
        }
        self.sync_set(planner);
        self.planners[planner].unsure_of_set = false;
    }

    /// The cache shows the planner's own write: the planner waits for that.
    fn show(&mut self, planner: usize, request: Request) {
        match request.index() {
            Some(index) => self.catch_up(planner, usize::from(index)),
            None => self.sync_set(planner),
        }
    }

    /// A change of a Machine that the set did not decide.
    fn harm(&mut self, index: usize, slot: Slot) {
        let before = self.sound();
        self.write_machine(index, slot);
        self.harmed += before - self.sound();
    }

    fn restart(&mut self, planner: usize) {
        let known = std::mem::take(&mut self.planners[planner]);
        self.late.extend(known.steps.into_iter().take(known.sent));
        self.sync_set(planner);
        self.sync_machines(planner);
    }
}

impl super::state::Planner {
    /// Sends the next batch: 1, 2, 4 steps of a stage.
    fn send(&mut self) {
        let Some(first) = self.steps.first() else {
            (self.sent, self.batch, self.failed) = (0, 0, false);
            self.refused = self.refused.filter(|(_, taken)| *taken);
            return;
        };
        self.batch = if self.batch == 0 { 1 } else { self.batch * 2 };
        let stage = self.steps.iter().take_while(|step| step.request.is_like(first.request)).count();
        self.sent = stage.min(self.batch);
    }

    fn note_failure(&mut self, request: Request, answer: Option<Answer>) {
        match request {
            Request::Create { index } => {
                self.unsure[0] |= 1 << index;
                let failure = (index, answer == Some(Answer::Taken));
                self.refused = Some(self.refused.map_or(failure, |known| known.min(failure)));
            }
            Request::Delete { index, .. } => self.unsure[1] |= 1 << index,
            Request::Retire { .. } | Request::Release => self.unsure_of_set = true,
        }
    }
}

/// The description of an action, with the state in which it happens and the names of the planners.
pub(super) struct Described<'a>(pub(super) &'a Rules, pub(super) &'a State, pub(super) Action, pub(super) [char; 2]);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(rules, state, action, names) = self;
        let who = |planner: u8| names[usize::from(planner)];
        let of = |planner: u8| &state.planners[usize::from(planner)];
        let request = |planner: u8, step: u8| of(planner).steps[usize::from(step)].request;
        match *action {
            Action::Late(place) => write!(f, "a late request arrives: {}", state.late[usize::from(place)].request),
            Action::Deliver(planner, step) => {
                write!(f, "{}'s request arrives: {}", who(planner), request(planner, step))
            }
            Action::FindOut(planner) => write!(f, "{} reads what became of its request", who(planner)),
            Action::SyncSet(planner) => write!(f, "{}'s cache of the set catches up", who(planner)),
            Action::SyncMachines(planner) => write!(f, "{}'s cache of the machines catches up", who(planner)),
            Action::Plan(planner) => {
                let known = of(planner);
                let taken = known.refused.map(|(index, _)| index);
                let decision = rules.product.decide(known.set, known.machines, taken);
                let steps: Vec<String> = decision.steps.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "{} sees {}, machines {:?}, and plans: {}",
                    who(planner),
                    known.set,
                    known.machines,
                    steps.join("; ")
                )
            }
            Action::MakeVm(planner, index) => write!(f, "{} makes the VM of machine {index}", who(planner)),
            Action::End(planner, index) => write!(f, "{} drops the finalizer of machine {index}", who(planner)),
            Action::Collect(index) => write!(f, "the garbage collector deletes machine {index}"),
            Action::RetireAlone(planner, index) => {
                write!(f, "{} retires machine {index}, which is being deleted for long", who(planner))
            }
            Action::Lose(planner, step) => {
                write!(f, "{} gets no answer, the request may arrive later: {}", who(planner), request(planner, step))
            }
            Action::Repeat(planner, step) => {
                write!(f, "{}'s request arrives and may arrive again: {}", who(planner), request(planner, step))
            }
            Action::Restart(planner) => write!(f, "{} dies; its successor has seen everything", who(planner)),
            Action::Rescale(replicas) => write!(f, "a user wants {replicas} machines"),
            Action::Delete(index) => write!(f, "a user deletes machine {index}"),
            Action::Fail(index) => write!(f, "machine {index} fails"),
            Action::Intrude(index) => write!(f, "somebody makes a machine of their own under the name of {index}"),
            Action::DeleteSet => f.write_str("a user deletes the set"),
        }
    }
}
