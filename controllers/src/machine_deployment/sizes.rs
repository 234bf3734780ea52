//! How many replicas each set of a deployment gets now.

use nodewright_api::{StrategyType, annotations};
use nodewright_runtime::object::uid;

use super::rollout::{Goal, Share, Size, grow, scale_in, shrink};
use super::world::{SetView, World};

/// How the deployment may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Manner {
    /// Whether machines of former templates are replaced. Otherwise the sets are only scaled.
    pub(super) rolls: bool,
    /// Whether all old machines have to be gone before there is a new one.
    pub(super) recreates: bool,
}

impl Manner {
    /// What the spec asks for. A paused deployment only scales, and so does one whose machines are to be updated in
    /// place: replacing them would be what its owner wanted to avoid.
    pub(super) fn of(world: &World) -> Self {
        let spec = &world.deployment.spec;
        let strategy = spec.strategy.effective_type();
        let in_place = strategy == StrategyType::InPlaceUpdate;
        Self { rolls: !spec.paused && !in_place, recreates: strategy == StrategyType::Recreate }
    }
}

/// What becomes of one set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    /// The set.
    pub(super) view: &'a SetView,
    /// Its replicas.
    pub(super) replicas: i64,
    /// Whether the goal is noted on it.
    pub(super) noted: bool,
}

/// What becomes of the sets that are not being deleted, oldest first.
pub(super) fn targets(world: &World, goal: Goal, manner: Manner) -> Vec<Target<'_>> {
    let field = Field::of(world);
    let replicas = if !manner.rolls || field.is_scaled(goal) {
        field.scale(goal, manner)
    } else if manner.recreates {
        field.recreate(goal)
    } else {
        field.roll(goal)
    };
    let mut targets = vec![];
    for (place, (&view, replicas)) in field.views.iter().zip(replicas).enumerate() {
        let before = i64::from(view.set.spec.replicas);
        let replicas = if field.current == Some(place) { replicas } else { view.unclaimed().unwrap_or(replicas) };
        // A set that is to have machines and has yet to get its first has no size: the note would say that it has.
        let waits = replicas == 0 && goal.desired > 0;
        let noted = before > 0 || before != replicas || field.current == Some(place) && !waits;
        targets.push(Target { view, replicas, noted });
    }
    targets
}

/// Whether a set for the present template may be created now.
pub(super) fn may_create(world: &World, manner: Manner) -> bool {
    match manner {
        // The first set of all replaces nothing.
        Manner { rolls: false, .. } => world.sets.is_empty() && !world.deployment.spec.paused,
        Manner { recreates: true, .. } => world.sets.iter().all(|view| is_gone(view.size())),
        Manner { .. } => true,
    }
}

/// Whether a set has no machine and will get none.
fn is_gone(size: Size) -> bool {
    size.at_most() == 0 && size.observed
}

/// The sets of a deployment as numbers.
struct Field<'a> {
    views: Vec<&'a SetView>,
    sizes: Vec<Size>,
    /// The place of the set of the present template.
    current: Option<usize>,
    /// The sets that are being deleted. Their machines still count.
    leaving: Vec<Size>,
}

impl<'a> Field<'a> {
    fn of(world: &'a World) -> Self {
        let views: Vec<_> = world.staying().collect();
        let current = world.current().map(|view| uid(view.set.as_ref()));
        let leaving = world.sets.iter().filter(|view| view.set.is_deleting()).map(SetView::size).collect();
        Self {
            sizes: views.iter().map(|view| view.size()).collect(),
            current: views.iter().position(|view| Some(uid(view.set.as_ref())) == current),
            views,
            leaving,
        }
    }

    fn replicas(&self) -> Vec<i64> {
        self.sizes.iter().map(|size| size.replicas).collect()
    }

    /// The places of the sets with replicas, oldest first.
    fn active(&self) -> Vec<usize> {
        (0..self.sizes.len()).filter(|&place| self.sizes.get(place).is_some_and(|size| size.replicas > 0)).collect()
    }

    fn others(&self, own: usize) -> Vec<Size> {
        let staying = self.sizes.iter().enumerate().filter(|(place, _)| *place != own).map(|(_, size)| *size);
        staying.chain(self.leaving.iter().copied()).collect()
    }

    /// Whether the deployment has been scaled since its active sets were last looked at: their notes say so.
    fn is_scaled(&self, goal: Goal) -> bool {
        let outdated = |place: &usize| self.noted(*place).is_some_and(|noted| noted != goal.desired);
        self.current.is_some() && self.active().iter().any(outdated)
    }

    fn noted(&self, place: usize) -> Option<i64> {
        self.views.get(place)?.noted(annotations::DESIRED_REPLICAS)
    }

    /// Scaling, without replacing anything: a set that is the only active one is the deployment. Among several,
    /// the newest one grows, and all shrink in proportion.
    fn scale(&self, goal: Goal, manner: Manner) -> Vec<i64> {
        match *self.active() {
            [] => self.grown(goal, manner, self.heir(&[])),
            [only] if !manner.rolls || Some(only) == self.current => self.grown(goal, manner, Some(only)),
            [only] => self.with(only, |size| size.replicas.min(goal.desired)),
            ref active if self.is_saturated(goal) => {
                let mut replicas = self.replicas();
                let old = active.iter().filter(|place| Some(**place) != self.current);
                old.for_each(|&place| put(&mut replicas, place, 0));
                replicas
            }
            ref active => self.scale_several(goal, manner, active),
        }
    }

    fn scale_several(&self, goal: Goal, manner: Manner, active: &[usize]) -> Vec<i64> {
        let total: i64 = self.replicas().iter().sum();
        if total <= goal.ceiling() {
            // A rollout lets its new set grow by itself.
            return if manner.rolls { self.replicas() } else { self.grown(goal, manner, self.heir(active)) };
        }
        let share = |&place: &usize| {
            let replicas = self.sizes.get(place).map_or(0, |size| size.replicas);
            let ceiling_before = self.views.get(place).and_then(|view| view.noted(annotations::MAX_REPLICAS));
            Share { replicas, ceiling_before }
        };
        let shares: Vec<Share> = active.iter().map(share).collect();
        let mut replicas = self.replicas();
        for (&place, target) in active.iter().zip(scale_in(goal, &shares)) {
            put(&mut replicas, place, target);
        }
        replicas
    }

    /// Whether the new set is all that is needed: it is as large as desired, was made so for the present goal, and
    /// all its machines are available.
    fn is_saturated(&self, goal: Goal) -> bool {
        let Some(place) = self.current else { return false };
        let full = |size: &Size| size.replicas == goal.desired && size.available == goal.desired;
        self.sizes.get(place).is_some_and(full) && self.noted(place) == Some(goal.desired)
    }

    /// The set that gets more machines when nothing is replaced: that of the present template, else the newest.
    fn heir(&self, active: &[usize]) -> Option<usize> {
        self.current.or(active.last().copied()).or(self.sizes.len().checked_sub(1))
    }

    /// All as it is, but for one set, which becomes as large as it may.
    fn grown(&self, goal: Goal, manner: Manner, place: Option<usize>) -> Vec<i64> {
        let Some(place) = place else { return self.replicas() };
        let others = self.others(place);
        let blocked = manner.recreates && !others.iter().all(|other| is_gone(*other));
        self.with(place, |size| if blocked { size.replicas.min(goal.desired) } else { grow(goal, size, &others) })
    }

    fn with(&self, place: usize, change: impl Fn(Size) -> i64) -> Vec<i64> {
        let sizes = self.sizes.iter().enumerate();
        sizes.map(|(at, size)| if at == place { change(*size) } else { size.replicas }).collect()
    }

    /// One step of a rolling update. Growing and shrinking are decided side by side: each keeps its own bound,
    /// whatever becomes of the other.
    fn roll(&self, goal: Goal) -> Vec<i64> {
        let manner = Manner { rolls: true, recreates: false };
        let Some((place, size)) = self.current.and_then(|place| Some((place, *self.sizes.get(place)?))) else {
            return self.replicas();
        };
        let mut replicas = self.grown(goal, manner, Some(place));
        let old = (0..self.sizes.len()).filter(|&at| at != place);
        let sizes: Vec<Size> = old.clone().filter_map(|at| self.sizes.get(at).copied()).collect();
        for (at, target) in old.zip(shrink(goal, size, &sizes)) {
            put(&mut replicas, at, target);
        }
        replicas
    }

    /// One step of a re-creation: the old machines go, and once they are gone the new ones come.
    fn recreate(&self, goal: Goal) -> Vec<i64> {
        let manner = Manner { rolls: true, recreates: true };
        let mut replicas = self.grown(goal, manner, self.current);
        for (place, target) in replicas.iter_mut().enumerate() {
            if Some(place) != self.current {
                *target = 0;
            }
        }
        replicas
    }
}

fn put(replicas: &mut [i64], place: usize, value: i64) {
    if let Some(slot) = replicas.get_mut(place) {
        *slot = value;
    }
}
