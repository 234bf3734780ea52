//! How many replicas each set of a deployment gets now.

use nodewright_api::{StrategyType, annotations};
use nodewright_runtime::object::uid;

use super::{
    rollout::{Goal, Share, Size, grow, scale_in, shrink},
    snapshot::{SetView, Snapshot},
};

/// How a rollout may proceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RolloutMode {
    /// Whether Machines of former templates are replaced. Otherwise the sets are only scaled.
    pub(super) rolls: bool,
    /// Whether all old Machines must be gone before the first new one is created.
    pub(super) recreates: bool,
}

impl RolloutMode {
    /// The mode that the spec asks for. A paused deployment only scales. So does one with in-place updates: its owner does not
    /// want its Machines to be replaced.
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let spec = &snapshot.deployment.spec;
        let strategy = spec.strategy.effective_type();
        let in_place = strategy == StrategyType::InPlaceUpdate;
        Self { rolls: !spec.paused && !in_place, recreates: strategy == StrategyType::Recreate }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    pub(super) view: &'a SetView,
    pub(super) replicas: i64,
    /// Whether the goal is noted on the set.
    pub(super) noted: bool,
}

/// The sizes of the sets that are not being deleted, oldest first.
pub(super) fn targets(snapshot: &Snapshot, goal: Goal, mode: RolloutMode) -> Vec<Target<'_>> {
    let sizes = SetSizes::of(snapshot, goal, mode);
    let replicas = if !mode.rolls || sizes.is_scaled() {
        sizes.scale()
    } else if mode.recreates {
        sizes.recreate()
    } else {
        sizes.roll()
    };
    let target = |(place, (&view, replicas)): (usize, (&&'_ SetView, i64))| {
        let is_current = sizes.current == Some(place);
        let before = i64::from(view.set.spec.replicas);
        let replicas = if is_current { replicas } else { view.unclaimed().unwrap_or(replicas) };
        // A set without replicas that will get some has no size yet, but the note would say that it has.
        let waits = replicas == 0 && goal.desired > 0;
        let noted = before > 0 || before != replicas || is_current && !waits;
        (replicas, noted)
    };
    let decided: Vec<_> = sizes.views.iter().zip(replicas).enumerate().map(target).collect();
    let targets = sizes.views.into_iter().zip(decided);
    targets.map(|(view, (replicas, noted))| Target { view, replicas, noted }).collect()
}

/// Whether a set for the present template may be created now.
pub(super) fn may_create(snapshot: &Snapshot, mode: RolloutMode) -> bool {
    match mode {
        // The very first set replaces nothing.
        RolloutMode { rolls: false, .. } => snapshot.sets.is_empty() && !snapshot.deployment.spec.paused,
        RolloutMode { recreates: true, .. } => snapshot.sets.iter().all(|view| is_gone(view.size())),
        RolloutMode { .. } => true,
    }
}

/// Whether a set has no Machine and will not get one.
fn is_gone(size: Size) -> bool {
    size.at_most() == 0 && size.observed
}

/// The sets of a deployment as numbers. The index of a set is its position among the sets that are not being deleted.
struct SetSizes<'a> {
    goal: Goal,
    mode: RolloutMode,
    views: Vec<&'a SetView>,
    sizes: Vec<Size>,
    /// The index of the set of the present template.
    current: Option<usize>,
    /// The sets that are being deleted. Their Machines still count.
    leaving: Vec<Size>,
}

impl<'a> SetSizes<'a> {
    fn of(snapshot: &'a Snapshot, goal: Goal, mode: RolloutMode) -> Self {
        let views: Vec<_> = snapshot.staying().collect();
        let current = snapshot.current().map(|view| uid(view.set.as_ref()));
        let leaving = snapshot.sets.iter().filter(|view| view.set.is_deleting()).map(SetView::size).collect();
        let sizes = views.iter().map(|view| view.size()).collect();
        let current = views.iter().position(|view| Some(uid(view.set.as_ref())) == current);
        Self { goal, mode, views, sizes, current, leaving }
    }

    fn replicas(&self) -> Vec<i64> {
        self.sizes.iter().map(|size| size.replicas).collect()
    }

    /// The indexes of the sets with replicas, oldest first.
    fn active(&self) -> Vec<usize> {
        (0..self.sizes.len()).filter(|&place| self.sizes.get(place).is_some_and(|size| size.replicas > 0)).collect()
    }

    fn others(&self, own: usize) -> Vec<Size> {
        let staying = self.sizes.iter().enumerate().filter(|(place, _)| *place != own).map(|(_, size)| *size);
        staying.chain(self.leaving.iter().copied()).collect()
    }

    /// Whether the notes on the active sets say that the deployment has been scaled since they were last sized.
    fn is_scaled(&self) -> bool {
        let outdated = |place: &usize| self.noted(*place).is_some_and(|noted| noted != self.goal.desired);
        self.current.is_some() && self.active().iter().any(outdated)
    }

    fn noted(&self, place: usize) -> Option<i64> {
        self.views.get(place)?.noted(annotations::DESIRED_REPLICAS)
    }

    /// Scaling, without replacing anything. The only active set gets all replicas. Of several active sets the newest grows,
    /// and all shrink in proportion.
    fn scale(&self) -> Vec<i64> {
        match *self.active() {
            [] => self.grown(self.growing(&[])),
            [only] if !self.mode.rolls || Some(only) == self.current => self.grown(Some(only)),
            [only] => self.with(only, |size| size.replicas.min(self.goal.desired)),
            ref active if self.is_saturated() => {
                let mut replicas = self.replicas();
                let old = active.iter().filter(|place| Some(**place) != self.current);
                old.for_each(|&place| put(&mut replicas, place, 0));
                replicas
            }
            ref active => self.scale_several(active),
        }
    }

    fn scale_several(&self, active: &[usize]) -> Vec<i64> {
        let total: i64 = self.replicas().iter().sum();
        if total <= self.goal.ceiling() {
            // In a rollout the next step lets the new set grow.
            return if self.mode.rolls { self.replicas() } else { self.grown(self.growing(active)) };
        }
        let share = |&place: &usize| {
            let replicas = self.sizes.get(place).map_or(0, |size| size.replicas);
            let ceiling_before = self.views.get(place).and_then(|view| view.noted(annotations::MAX_REPLICAS));
            Share { replicas, ceiling_before }
        };
        let shares: Vec<Share> = active.iter().map(share).collect();
        let mut replicas = self.replicas();
        for (&place, target) in active.iter().zip(scale_in(self.goal, &shares)) {
            put(&mut replicas, place, target);
        }
        replicas
    }

    /// Whether the new set is sufficient: it is as large as desired, was sized for the present goal, and all its
    /// Machines are available.
    fn is_saturated(&self) -> bool {
        let Some(place) = self.current else { return false };
        let full = |size: &Size| size.replicas == self.goal.desired && size.available == self.goal.desired;
        self.sizes.get(place).is_some_and(full) && self.noted(place) == Some(self.goal.desired)
    }

    /// The index of the set that grows if nothing is replaced: that of the present template, else the newest.
    fn growing(&self, active: &[usize]) -> Option<usize> {
        self.current.or(active.last().copied()).or(self.sizes.len().checked_sub(1))
    }

    /// The replicas if one set is as large as it may be, and all others keep theirs.
    fn grown(&self, place: Option<usize>) -> Vec<i64> {
        let Some(place) = place else { return self.replicas() };
        let others = self.others(place);
        let blocked = self.mode.recreates && !others.iter().all(|other| is_gone(*other));
        let desired = self.goal.desired;
        self.with(place, |size| if blocked { size.replicas.min(desired) } else { grow(self.goal, size, &others) })
    }

    fn with(&self, place: usize, change: impl Fn(Size) -> i64) -> Vec<i64> {
        let sizes = self.sizes.iter().enumerate();
        sizes.map(|(at, size)| if at == place { change(*size) } else { size.replicas }).collect()
    }

    /// One step of a rolling update. Growing and shrinking are independent decisions: each keeps its own bound.
    fn roll(&self) -> Vec<i64> {
        let Some((place, size)) = self.current.and_then(|place| Some((place, *self.sizes.get(place)?))) else {
            return self.replicas();
        };
        let mut replicas = self.grown(Some(place));
        let old = (0..self.sizes.len()).filter(|&at| at != place);
        let sizes: Vec<Size> = old.clone().filter_map(|at| self.sizes.get(at).copied()).collect();
        for (at, target) in old.zip(shrink(self.goal, size, &sizes)) {
            put(&mut replicas, at, target);
        }
        replicas
    }

    /// One step of the strategy Recreate: the old Machines are deleted; once they are gone the new ones are created.
    fn recreate(&self) -> Vec<i64> {
        let mut replicas = self.grown(self.current);
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
