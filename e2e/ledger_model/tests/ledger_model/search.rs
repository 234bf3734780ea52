//! Breadth-first search of all reachable states.

use std::{
    collections::{HashMap, VecDeque},
    fmt::Write,
    hash::{BuildHasherDefault, Hasher},
};

use super::{
    server::{BAD_END, Broken, NO_END, WAITS},
    state::{ObjectRef, State},
    steps::{Action, Described, Next, Rules},
};

/// The coverage of a search without a violation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) states: usize,
    /// Transitions from one state to another.
    pub(super) transitions: usize,
    /// Transitions that lead beyond the bounds.
    pub(super) beyond: usize,
    /// The largest distance of a state from the start.
    pub(super) depth: usize,
    /// States in which nothing more happens without a disturbance.
    pub(super) ends: usize,
}

/// A violated property, with its path.
#[derive(Debug)]
pub(super) struct Violation {
    pub(super) broken: Broken,
    /// The shortest path to it, in words.
    pub(super) trace: String,
}

/// The number of each state, in the order of discovery. A 128-bit hash identifies a state: the probability that two of ten
/// million states collide is 10⁻²⁴.
type Numbers = HashMap<u128, u32, BuildHasherDefault<Mixed>>;

fn fingerprint(key: ObjectRef) -> u128 {
    const ODD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    let mut mixed: u128 = 0;
    for word in key {
        mixed = (mixed ^ u128::from(word)).wrapping_mul(ODD);
        mixed ^= mixed >> 67;
    }
    mixed
}

/// A fingerprint is already a good hash.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are hashed")
    }
    fn write_u128(&mut self, mixed: u128) {
        self.0 = u64::try_from(mixed >> 64).unwrap_or_default();
    }
}

struct Search<'a> {
    rules: &'a Rules,
    start: State,
    numbers: Numbers,
    /// For each state, the state and the action that first reached it.
    origins: Vec<(u32, Action)>,
    /// For each state, the end of its range of `undisturbed`.
    ends_at: Vec<u32>,
    /// For each state, its successors without disturbances.
    undisturbed: Vec<u32>,
    tally: Tally,
}

/// Checks every state reachable from `start`.
pub(super) fn explore(rules: &Rules, start: State) -> Result<Tally, Box<Violation>> {
    let mut search = Search {
        rules,
        start: start.clone(),
        numbers: Numbers::default(),
        origins: vec![(0, Action::Plan(0))],
        ends_at: vec![],
        undisturbed: vec![],
        tally: Tally::default(),
    };
    search.numbers.insert(fingerprint(start.key()), 0);
    let mut open = VecDeque::from([(start, 0)]);
    let mut number = 0;
    while let Some((state, depth)) = open.pop_front() {
        search.tally.depth = depth;
        search.expand(number, &state, &mut |next| open.push_back((next, depth + 1)))?;
        number += 1;
    }
    search.tally.states = search.origins.len();
    search.all_ends()?;
    Ok(search.tally)
}

impl Search<'_> {
    fn expand(&mut self, number: u32, state: &State, found: &mut impl FnMut(State)) -> Result<(), Box<Violation>> {
        // Whether nothing more happens without a disturbance, and whether only the end of deleting Machines remains.
        let (mut is_end, mut is_waiting) = (true, true);
        for action in self.rules.actions(state) {
            match self.rules.take(state, action) {
                Next::Nothing => {}
                Next::Beyond => {
                    self.tally.beyond += 1;
                    (is_end, is_waiting) = (is_end && !action.is_due(), is_waiting && !action.is_due());
                }
                Next::Broken(broken) => return Err(self.violation(broken, number, &[action]).into()),
                Next::State(next, _) => {
                    is_end &= !action.is_due();
                    is_waiting &= !action.is_due() || matches!(action, Action::End(..));
                    self.tally.transitions += 1;
                    let new = u32::try_from(self.origins.len()).unwrap();
                    let known = *self.numbers.entry(fingerprint(next.key())).or_insert(new);
                    if known == new {
                        self.origins.push((number, action));
                        found(*next);
                    }
                    if action.is_undisturbed() {
                        self.undisturbed.push(known);
                    }
                }
            }
        }
        self.ends_at.push(u32::try_from(self.undisturbed.len()).unwrap());
        self.tally.ends += usize::from(is_end);
        let broken = match (is_end, is_waiting) {
            (true, _) if !state.is_served() || !state.is_over() => BAD_END,
            (false, true) if !state.is_served() => WAITS,
            _ => return Ok(()),
        };
        Err(self.violation(broken, number, &[]).into())
    }

    /// Without disturbances, every path ends: there is no cycle. States without a predecessor are removed repeatedly (Kahn's
    /// algorithm); the remaining states lie on a cycle, or behind one.
    fn all_ends(&self) -> Result<(), Box<Violation>> {
        let mut incoming = vec![0_u32; self.origins.len()];
        for next in &self.undisturbed {
            incoming[*next as usize] += 1;
        }
        let is_free = |number: &usize| incoming[*number] == 0;
        let mut free: Vec<usize> = (0..incoming.len()).filter(is_free).collect();
        let mut left = incoming.len();
        while let Some(number) = free.pop() {
            left -= 1;
            for next in self.undisturbed_from(number) {
                let count = &mut incoming[*next as usize];
                *count -= 1;
                if *count == 0 {
                    free.push(*next as usize);
                }
            }
        }
        let Some(first) = incoming.iter().position(|count| *count > 0).filter(|_| left > 0) else { return Ok(()) };
        Err(self.circle(first, &incoming).into())
    }

    fn undisturbed_from(&self, number: usize) -> &[u32] {
        let begin = number.checked_sub(1).map_or(0, |before| self.ends_at[before]);
        &self.undisturbed[begin as usize..self.ends_at[number] as usize]
    }

    /// A cycle among the remaining states, with the path to it.
    fn circle(&self, first: usize, left: &[u32]) -> Violation {
        // Each of these has a predecessor among them, so going back from any of them leads into a cycle.
        let mut before: HashMap<u32, u32> = HashMap::new();
        for number in (0..left.len()).filter(|number| left[*number] > 0) {
            for next in self.undisturbed_from(number).iter().filter(|next| left[**next as usize] > 0) {
                before.insert(*next, u32::try_from(number).unwrap());
            }
        }
        let mut here = u32::try_from(first).unwrap();
        for _ in 0..left.len() {
            here = before[&here];
        }
        let mut round = vec![here];
        while before[round.last().unwrap()] != here {
            round.push(before[round.last().unwrap()]);
        }
        round.reverse();
        let (state, _) = self.replay(here, &mut |_, _, _| {});
        let mut actions = vec![];
        let mut state = state;
        for next in round {
            let (action, after) = self.transition(&state, next);
            actions.push(action);
            state = after;
        }
        self.violation(NO_END, here, &actions)
    }

    /// The undisturbed action that leads from a state to the state with this number.
    fn transition(&self, state: &State, number: u32) -> (Action, State) {
        let undisturbed = self.rules.actions(state).into_iter().filter(|action| action.is_undisturbed());
        let mut found = undisturbed.filter_map(|action| match self.rules.take(state, action) {
            Next::State(next, _) => Some((action, *next)),
            _ => None,
        });
        found.find(|(_, next)| self.numbers.get(&fingerprint(next.key())) == Some(&number)).unwrap()
    }

    /// Replays the shortest path to a state, and passes each action and the state before it to `show`.
    fn replay(&self, number: u32, show: &mut dyn FnMut(&State, Action, [char; 2])) -> (State, [char; 2]) {
        let mut actions = vec![];
        let mut here = number;
        while here != 0 {
            let (before, action) = self.origins[here as usize];
            actions.push(action);
            here = before;
        }
        let (mut state, mut names) = (self.start.clone(), ['A', 'B']);
        for action in actions.into_iter().rev() {
            show(&state, action, names);
            self.go(&mut state, action, &mut names);
        }
        (state, names)
    }

    fn go(&self, state: &mut State, action: Action, names: &mut [char; 2]) {
        if let Next::State(next, swapped) = self.rules.take(state, action) {
            *state = *next;
            if swapped {
                names.swap(0, 1);
            }
        }
    }

    fn violation(&self, broken: Broken, number: u32, last: &[Action]) -> Violation {
        let mut trace = format!("  {}", self.start);
        let mut show = |state: &State, action: Action, names: [char; 2]| {
            write!(trace, "\n      ({state})\n  {}", Described(self.rules, state, action, names)).unwrap();
        };
        let (mut state, mut names) = self.replay(number, &mut show);
        for action in last {
            show(&state, *action, names);
            self.go(&mut state, *action, &mut names);
        }
        writeln!(trace, "\n  so {broken}").unwrap();
        Violation { broken, trace }
    }
}
