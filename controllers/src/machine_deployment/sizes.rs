//! How many replicas each set of a deployment gets now.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{
    conditions::machine_set,
    reasons::unreadable,
    stored::{DESIRED_REPLICAS, MAX_REPLICAS},
};
use nodewright_runtime::object::uid;

use super::{
    mode::{Method, RolloutMode},
    rollout::{Goal, Size, grow, shrink, take},
    scale_in::{Share, scale_in, scale_in_rollout},
    snapshot::{Scope, SetView},
};

/// After this time, a rollout continues without the Machines of a set whose ledger cannot be read. They still exist, and no
/// controller may delete them: meanwhile there are as many more than the strategy allows.
const EXCLUDED_AFTER: SignedDuration = SignedDuration::from_mins(15);

#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    pub(super) view: &'a SetView,
    pub(super) replicas: i64,
    pub(super) noted: bool,
}

/// The sizes of the sets that are not being deleted, oldest first.
pub(super) fn targets<'a>(scope: &Scope<'a>, mode: RolloutMode) -> Vec<Target<'a>> {
    let goal = scope.goal;
    let sizes = SetSizes::of(scope, mode);
    let replicas = if let Some(counted) = sizes.counted() {
        counted
    } else if !mode.rolls || sizes.is_scaled() {
        sizes.scale()
    } else {
        match mode.method {
            Method::Replace => sizes.roll(),
            Method::Recreate => sizes.recreate(),
            Method::Update => sizes.update(),
        }
    };
    let target = |(at, (view, replicas)): (usize, (&&'a SetView, i64))| {
        let is_current = sizes.current == Some(at);
        let before = i64::from(view.set.spec.replicas);
        let replicas = if is_current { replicas } else { view.unclaimed().unwrap_or(replicas) };
        // A set that may not delete a Machine that has moved to it would grow again at once.
        let is_kept = sizes.may_have_moved && view.has_moving();
        let replicas = if is_kept { replicas.max(before) } else { replicas };
        // A set without replicas that will get some has no size yet, but the note would say that it has.
        let waits = replicas == 0 && goal.desired > 0;
        let noted = before > 0 || before != replicas || is_current && !waits;
        Target { view, replicas, noted }
    };
    sizes.views.iter().zip(replicas).enumerate().map(target).collect()
}

/// When a rollout continues without the Machines of this set, if its ledger cannot be read.
pub(super) fn excluded_at(view: &SetView) -> Option<Timestamp> {
    let failure =
        view.set.condition(machine_set::REPLICA_FAILURE).filter(|failure| failure.reason == unreadable::LEDGER)?;
    failure.last_transition_time.as_ref()?.0.checked_add(EXCLUDED_AFTER).ok()
}

/// The sets of a deployment as numbers; positions are those among the sets that are not being deleted, oldest first.
struct SetSizes<'a> {
    goal: Goal,
    mode: RolloutMode,
    views: Vec<&'a SetView>,
    sizes: Vec<Size>,
    current: Option<usize>,
    /// The sets that are being deleted. Their Machines still count.
    leaving: Vec<Size>,
    /// Whether Machines may have moved from one set to another.
    may_have_moved: bool,
}

impl<'a> SetSizes<'a> {
    fn of(scope: &Scope<'a>, mode: RolloutMode) -> Self {
        let (snapshot, goal) = (scope.snapshot, scope.goal);
        let views: Vec<_> = snapshot.staying().collect();
        let current = snapshot.current().map(|view| uid(view.set.as_ref()));
        let leaving = snapshot.sets.iter().filter(|view| view.set.is_deleting()).map(SetView::size).collect();
        let current = views.iter().position(|view| Some(uid(view.set.as_ref())) == current);
        let is_excluded = |view: &SetView| excluded_at(view).is_some_and(|at| at <= scope.context.now);
        let size = |(at, view): (usize, &&SetView)| match view.size() {
            size if current != Some(at) && is_excluded(view) => size.without_machines(),
            size => size,
        };
        let sizes = views.iter().enumerate().map(size).collect();
        Self { goal, mode, views, sizes, current, leaving, may_have_moved: snapshot.may_have_moved() }
    }

    fn replicas(&self) -> Vec<i64> {
        self.sizes.iter().map(|size| size.replicas).collect()
    }

    fn active(&self) -> Vec<usize> {
        (0..self.sizes.len()).filter(|&at| self.sizes[at].replicas > 0).collect()
    }

    /// Whether the notes on the active sets say that the deployment has been scaled since they were last sized.
    fn is_scaled(&self) -> bool {
        let outdated = |&at: &usize| self.noted(at).is_some_and(|noted| noted != self.goal.desired);
        self.current.is_some() && self.active().iter().any(outdated)
    }

    fn noted(&self, at: usize) -> Option<i64> {
        DESIRED_REPLICAS.of(self.views[at].set.as_ref())
    }

    /// Scaling, without replacing anything. Of several active sets the newest grows. In a rollout those of former templates shrink
    /// first; if it is paused, all shrink in proportion.
    fn scale(&self) -> Vec<i64> {
        let mut replicas = self.replicas();
        match *self.active() {
            [] => self.grown(self.growing(&[])),
            [only] if !self.mode.rolls || Some(only) == self.current => self.grown(Some(only)),
            [only] => {
                replicas[only] = replicas[only].min(self.goal.desired);
                replicas
            }
            ref active if self.is_saturated() => {
                active.iter().filter(|&&at| Some(at) != self.current).for_each(|&at| replicas[at] = 0);
                replicas
            }
            ref active => self.scale_several(active),
        }
    }

    fn scale_several(&self, active: &[usize]) -> Vec<i64> {
        let mut replicas = self.replicas();
        if replicas.iter().sum::<i64>() <= self.goal.ceiling() {
            // In a rollout the next step lets the new set grow.
            return if self.mode.rolls { replicas } else { self.grown(self.growing(active)) };
        }
        if let Some(current) = self.current.filter(|_| self.mode.rolls) {
            let mut old = self.sizes.clone();
            let size = old.remove(current);
            let (kept, old) = scale_in_rollout(self.goal, size, &old);
            replicas = old;
            replicas.insert(current, kept);
            return replicas;
        }
        let share = |&at: &usize| {
            let ceiling_before = MAX_REPLICAS.of(self.views[at].set.as_ref());
            Share { replicas: self.sizes[at].replicas, ceiling_before }
        };
        let shares: Vec<Share> = active.iter().map(share).collect();
        for (&at, target) in active.iter().zip(scale_in(self.goal, &shares)) {
            replicas[at] = target;
        }
        replicas
    }

    /// Whether the new set is as large as desired, was sized for the present goal, and has all its Machines available.
    fn is_saturated(&self) -> bool {
        let Some(at) = self.current else { return false };
        let (size, desired) = (self.sizes[at], self.goal.desired);
        size.replicas == desired && size.available == desired && self.noted(at) == Some(desired)
    }

    /// The position of the set that grows if nothing is replaced: that of the present template, else the newest.
    fn growing(&self, active: &[usize]) -> Option<usize> {
        self.current.or(active.last().copied()).or(self.sizes.len().checked_sub(1))
    }

    /// The replicas if one set is as large as it may be, and all others keep theirs.
    fn grown(&self, at: Option<usize>) -> Vec<i64> {
        let mut replicas = self.replicas();
        let Some(at) = at else { return replicas };
        let mut others = self.sizes.clone();
        let size = others.remove(at);
        others.extend(&self.leaving);
        let is_blocked = self.mode.method == Method::Recreate && !others.iter().all(|other| other.is_gone());
        replicas[at] = if is_blocked { size.replicas.min(self.goal.desired) } else { grow(self.goal, size, &others) };
        replicas
    }

    /// Whether the former sets keep their replicas for now. There is nothing to keep them for once the new set is complete.
    fn keeps_old(&self) -> bool {
        self.mode.settles && self.current.is_none_or(|at| self.sizes[at].available < self.goal.desired)
    }

    /// One step of a rolling update. Growing and shrinking are independent decisions: each keeps its own bound.
    fn roll(&self) -> Vec<i64> {
        let mut replicas = self.grown(self.current);
        let Some(current) = self.current.filter(|_| !self.keeps_old()) else { return replicas };
        let mut old = self.sizes.clone();
        let size = old.remove(current);
        let old_replicas = replicas.iter_mut().enumerate().filter(|(at, _)| *at != current);
        for ((_, replicas), target) in old_replicas.zip(shrink(self.goal, size, &old)) {
            *replicas = target;
        }
        replicas
    }

    /// The replicas once the Machines count that have moved, if there are any that do not: those of the sets that they have left, too. All
    /// replicas together stay.
    fn counted(&self) -> Option<Vec<i64>> {
        let more = if self.may_have_moved { self.views.iter().map(|view| view.uncounted()).collect() } else { vec![] };
        let mut moved: i64 = more.iter().sum();
        if moved == 0 {
            return None;
        }
        let mut replicas: Vec<_> =
            self.replicas().into_iter().zip(&more).map(|(replicas, more)| replicas + more).collect();
        let left =
            self.views.iter().zip(&self.sizes).zip(&mut replicas).filter(|((view, _), _)| view.is_scale_up_disabled());
        for ((_, size), replicas) in left {
            moved -= take(replicas, moved.min(size.replicas - size.live));
        }
        Some(replicas)
    }

    /// The replicas without Machines that the set lacks and may not create.
    fn present(&self) -> Vec<i64> {
        let of = |(view, size): (&&SetView, &Size)| {
            let is_known = view.is_scale_up_disabled() && size.observed;
            if is_known { size.replicas.min(size.live) } else { size.replicas }
        };
        self.views.iter().zip(&self.sizes).map(of).collect()
    }

    /// One step of an update in place. The new set takes the room that is left, for the surge and for Machines that were lost; once it
    /// is complete, the others are a surplus.
    fn update(&self) -> Vec<i64> {
        let mut replicas = self.present();
        let Some(current) = self.current else { return replicas };
        let with = |(size, replicas): (&Size, &i64)| Size { replicas: *replicas, ..*size };
        let mut others: Vec<_> = self.sizes.iter().zip(&replicas).map(with).collect();
        let size = others.remove(current);
        let old = others.clone();
        others.extend(&self.leaving);
        replicas[current] = grow(self.goal, size, &others);
        if size.replicas < self.goal.desired || self.keeps_old() {
            return replicas;
        }
        let old_replicas = replicas.iter_mut().enumerate().filter(|(at, _)| *at != current);
        for ((_, replicas), target) in old_replicas.zip(shrink(self.goal, size, &old)) {
            *replicas = target;
        }
        replicas
    }

    /// One step of the strategy Recreate: the old Machines are deleted; once they are gone the new ones are created.
    fn recreate(&self) -> Vec<i64> {
        if self.keeps_old() {
            return self.replicas();
        }
        let grown = self.grown(self.current).into_iter().enumerate();
        grown.map(|(at, replicas)| if Some(at) == self.current { replicas } else { 0 }).collect()
    }
}
