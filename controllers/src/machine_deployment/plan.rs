//! What a MachineDeployment decides.

use nodewright_api::{
    MachineDeployment, MachineDeploymentStatus, MachineSet, StrategyType, annotations, conditions,
    field::FieldError,
    finalizers,
    int_or_percent::ABOVE_ALL,
    reasons::{events, machine_deployment as reasons, unreadable},
    selector,
    validation::Validate,
};
use nodewright_observability::trace::TraceContext;
use nodewright_runtime::{
    effect::Never,
    events::Event,
    finalizers as finalizer,
    object::{annotation, controller_uid, has_finalizer, is_deleting, name, uid},
    owned::Owned,
    plan::{Failure, FailureClass, Moment, Plan, Planned, Step, reference},
};

use super::rollout::Goal;
use super::{
    conditions::{IN_PLACE_UPDATE_UNSUPPORTED, ROLLING_OUT, SCALING, Story, deadline, refused_creation},
    owned::{RevisionPart, SetPart, birth, next_revision},
    removal::mark,
    rollback::roll_back,
    sizes::{Manner, Target, may_create, targets},
    status::{is_complete, next_collision, status, tell},
    world::World,
};
use crate::shared::clusters::CONTROL;
use crate::shared::{ledger::Ledger, membership::ORPHAN_FINALIZER};

/// What every decision of one plan has before it.
struct Scene<'a> {
    at: &'a Moment<'a, Never>,
    world: &'a World,
    deployment: &'a MachineDeployment,
    goal: Goal,
    full_schema: bool,
}

pub(super) fn plan(at: &Moment<'_, Never>, world: &World, full_schema: bool) -> Plan<Never> {
    let deployment = world.deployment.as_ref();
    let scene = Scene { at, world, deployment, goal: goal(deployment), full_schema };
    let mut plan = Plan::idle();
    plan.traceparent =
        TraceContext::from_annotation(deployment.metadata.annotations.as_ref(), annotations::TRACEPARENT);
    if deployment.is_deleting() {
        scene.end(&mut plan);
    } else if !has_finalizer(deployment, finalizers::MACHINE_CONTROLLER_MANAGER) {
        let add = finalizer::add(&deployment.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
        plan.then("nothing is owned before the finalizer stands", Step::edit(CONTROL, deployment, add));
    } else if let Some(problem) = problem(deployment) {
        scene.refuse(&mut plan, problem);
    } else {
        scene.keep(&mut plan);
    }
    plan
}

fn goal(deployment: &MachineDeployment) -> Goal {
    // A bound that cannot be read is an invalid spec: nothing is done with it.
    let (surge, unavailable) =
        deployment.update_bounds().map_or((0, 0), |bounds| (bounds.max_surge, bounds.max_unavailable));
    Goal {
        desired: i64::from(deployment.spec.replicas.max(0)),
        surge: i64::from(surge),
        unavailable: i64::from(unavailable),
    }
}

/// The fields that have to be valid for anything to be done. In the others the webhook refuses mistakes too; but what
/// machine-controller-manager has acted on is acted on here as well.
const NEEDED: [&str; 5] =
    ["spec.replicas", "spec.selector", "spec.strategy", "spec.template.metadata.labels", "spec.template.spec.class"];

/// Why a spec cannot be acted on.
fn problem(deployment: &MachineDeployment) -> Option<String> {
    let is_needed = |error: &FieldError| NEEDED.iter().any(|field| error.path.as_str().starts_with(field));
    // More than all machines was allowed once, and has a meaning.
    let errors = deployment.validate().into_iter().filter(is_needed).filter(|error| error.detail != ABOVE_ALL);
    let errors: Vec<String> = errors.map(|error| error.to_string()).collect();
    (!errors.is_empty()).then(|| errors.join("; "))
}

impl Scene<'_> {
    /// A deployment that is being deleted: all sets go, then the finalizer.
    fn end(&self, plan: &mut Plan<Never>) {
        if has_finalizer(self.deployment, ORPHAN_FINALIZER) {
            plan.wait(
                "Orphaning",
                "the garbage collector takes the deployment's name off its machine sets, which stay",
            );
            return;
        }
        let stalled = self.unreadable_set().or_else(|| self.invalid_ledger());
        if let Some((reason, text)) = &stalled {
            self.stall(plan, reason, reason, text);
        }
        if self.world.sets.is_empty() && !self.world.unreadable.is_empty() {
            self.tell(plan, &Story { stalled, ..Story::default() });
            return;
        }
        if self.world.sets.is_empty() {
            let remove = finalizer::remove(&self.deployment.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
            let step = remove.and_then(|remove| Step::edit(CONTROL, self.deployment, remove));
            plan.then("no machine set is left", step);
            return;
        }
        let delete = |view: &super::SetView| Planned {
            why: "the deployment is being deleted".into(),
            step: Step::delete(CONTROL, view.set.as_ref()),
        };
        plan.stage(self.world.staying().map(delete));
        // A set that was released just now must not go: only what is still as it was seen.
        plan.pin_deletions();
        plan.wait("MachineSetsLeaving", format!("{} machine sets are yet to be gone", self.world.sets.len()));
        self.tell(plan, &Story { stalled, ..Story::default() });
    }

    /// Says what a deployment that is being deleted, or a rollout, waits for: a set that exists and cannot be read.
    fn unreadable_set(&self) -> Option<(&'static str, String)> {
        let set = self.world.unreadable.first()?;
        let text = format!("{}; until then no machine set is created, scaled or deleted", set.describe::<MachineSet>());
        Some((unreadable::MACHINE_SET, text))
    }

    /// Says that a set whose ledger cannot be read does not go: it would have to guess which names have had their life.
    fn invalid_ledger(&self) -> Option<(&'static str, String)> {
        let fault = |view: &super::SetView| {
            let error = annotation(view.set.as_ref(), annotations::LEDGER)?.parse::<Ledger>().err()?;
            Some(format!(
                "machine set {} cannot go: annotation {}: {error}; restore the annotation, or delete the \
                machines of the set and remove the annotation",
                name(view.set.as_ref()),
                annotations::LEDGER
            ))
        };
        self.world.sets.iter().find_map(fault).map(|text| (unreadable::LEDGER, text))
    }

    /// Waits, and says why in an event unless the condition says so already.
    fn stall(&self, plan: &mut Plan<Never>, reason: &'static str, event: &'static str, text: &str) {
        if !self.has_said(reason) {
            plan.event(Event::warning(reference(self.deployment), event, text));
        }
        plan.wait(reason, text);
    }

    /// A spec that cannot be acted on: it is said, and what there is stays as it is.
    fn refuse(&self, plan: &mut Plan<Never>, problem: String) {
        let reason = reasons::INVALID_SPEC;
        let everything = selector::is_empty(self.deployment.spec.selector.as_ref());
        let told = if everything { events::SELECTING_ALL } else { reason };
        self.stall(plan, reason, told, &problem);
        self.tell(plan, &Story { stalled: Some((reason, problem)), ..Story::default() });
    }

    fn has_said(&self, reason: &str) -> bool {
        let stalled = self.deployment.condition(conditions::machine_deployment::STALLED);
        stalled.is_some_and(|stalled| stalled.reason == reason)
    }

    /// A deployment that stays.
    fn keep(&self, plan: &mut Plan<Never>) {
        if let Some((reason, text)) = self.unreadable_set() {
            self.stall(plan, reason, reason, &text);
            self.tell(plan, &Story { stalled: Some((reason, text)), ..Story::default() });
            return;
        }
        if let Some(newer) = self.world.newer_generation() {
            // What it says would undo what somebody else has read in a newer one.
            let seen = self.deployment.metadata.generation.unwrap_or_default();
            let remedy = format!("if annotation {} of a machine set is wrong, remove it", annotations::SIZED_FOR);
            let text = format!("its machine sets were sized for generation {newer}, and {seen} is seen here; {remedy}");
            plan.wait("OldView", text);
            return;
        }
        self.adopt(plan);
        if !plan.is_idle() || mark(plan, self.at, self.world) {
            return;
        }
        if !self.deployment.spec.paused && roll_back(plan, self.world) {
            return;
        }
        let manner = Manner::of(self.world);
        let mut story = Story { stalled: self.unsupported(plan), ..Story::default() };
        self.size(plan, manner);
        let creation = self.create(plan, manner, &mut story);
        let after = self.tell_unless_created(plan, &story, creation);
        self.prune(plan, &after);
        self.number(plan);
        self.wait(plan, &after);
    }

    /// Takes sets without an owner. The finalizer stands, so the deployment is not gone: whoever adopted for one that
    /// is gone would hand the machines to the garbage collector.
    ///
    /// The cache may show sets that a deployment has just left behind (`--cascade=orphan`), and not yet that it goes:
    /// so it is asked whether it stays.
    fn adopt(&self, plan: &mut Plan<Never>) {
        if self.world.orphans.is_empty() {
            return;
        }
        let confirm = Step::confirm(CONTROL, self.deployment);
        plan.then("a deployment that is being deleted takes nobody", confirm);
        plan.stage(self.world.orphans.iter().filter_map(|set| {
            let mut part = SetPart::seen(set);
            part.adopt(self.deployment);
            let step = Step::apply_pinned(CONTROL, set.as_ref(), &part)?;
            Some(Planned { why: "the selector matches a machine set without an owner".into(), step })
        }));
    }

    /// Machines that would have to be updated in place are left as they are.
    fn unsupported(&self, plan: &mut Plan<Never>) -> Option<(&'static str, String)> {
        let in_place = self.deployment.spec.strategy.effective_type() == StrategyType::InPlaceUpdate;
        let is_due = self.world.current().is_none() && !self.world.sets.is_empty()
            || self.world.old().any(|view| view.size().at_most() > 0);
        if !in_place || !is_due {
            return None;
        }
        let text = "the template has changed, and machines are not yet updated in place by this version: restore the \
            template, or set spec.strategy.type to RollingUpdate to replace them";
        self.stall(plan, IN_PLACE_UPDATE_UNSUPPORTED, IN_PLACE_UPDATE_UNSUPPORTED, text);
        Some((IN_PLACE_UPDATE_UNSUPPORTED, text.to_owned()))
    }

    /// Brings the sets to the size that they have now, and to what else they take over from the deployment.
    fn size(&self, plan: &mut Plan<Never>, manner: Manner) {
        let current = self.world.current().map(|view| uid(view.set.as_ref()));
        let revision = next_revision(self.world.old());
        let mut steps = vec![];
        for target in targets(self.world, self.goal, manner) {
            let set = target.view.set.as_ref();
            let mut part = SetPart::seen(set);
            if current == Some(uid(set)) {
                part.follow(self.deployment, revision);
            }
            if target.noted {
                part.resize(target.replicas, self.goal, self.deployment);
            }
            let Some(step) = Step::apply_pinned(CONTROL, set, &part) else { continue };
            steps.push(Planned { why: self.why(&target), step });
            self.announce(plan, &target);
        }
        plan.stage(steps);
    }

    fn why(&self, target: &Target<'_>) -> std::borrow::Cow<'static, str> {
        let before = i64::from(target.view.set.spec.replicas);
        let Goal { desired, surge, unavailable } = self.goal;
        let bounds = format!("desired {desired}, surge {surge}, unavailable {unavailable}");
        match target.replicas.cmp(&before) {
            std::cmp::Ordering::Equal => "the machine set follows its deployment".into(),
            _ => format!("from {before} to {} replicas: {bounds}", target.replicas).into(),
        }
    }

    fn announce(&self, plan: &mut Plan<Never>, target: &Target<'_>) {
        let direction = match target.replicas.cmp(&i64::from(target.view.set.spec.replicas)) {
            std::cmp::Ordering::Equal => return,
            std::cmp::Ordering::Less => "down",
            std::cmp::Ordering::Greater => "up",
        };
        let text = format!("Scaled {direction} machine set {} to {}", name(target.view.set.as_ref()), target.replicas);
        plan.event(Event::normal(reference(self.deployment), events::SCALING_MACHINE_SET, text));
    }

    /// The set of the present template, where there is none: its creation, if the name is free.
    fn create(&self, plan: &mut Plan<Never>, manner: Manner, story: &mut Story) -> Option<Planned<Never>> {
        if self.world.current().is_some() || !may_create(self.world, manner) {
            return None;
        }
        match self.world.namesake.as_deref() {
            None => self.creation(story),
            // Nobody's, and on its way: only the API server knows whether it is gone.
            Some(own) if is_deleting(own) && controller_uid(own).is_none() && !self.is_taken() => self.creation(story),
            Some(own) if is_deleting(own) && controller_uid(own) == Some(uid(self.deployment)) => {
                plan.wait(
                    "MachineSetLeaving",
                    format!("machine set {} has to be gone before it is created again", name(own)),
                );
                None
            }
            Some(_) => {
                // The count is part of the hash: the next plan asks for another name.
                story.collisions = Some(next_collision(self.world));
                None
            }
        }
    }

    fn creation(&self, story: &mut Story) -> Option<Planned<Never>> {
        let set = birth(self.deployment, next_revision(self.world.old()));
        story.created = Some(name(&set).to_owned());
        let step = Step::create(CONTROL, &set)?;
        Some(Planned { why: "there is no machine set for the template".into(), step })
    }

    /// Whether the last thing that failed is the creation of a set under a name that somebody has.
    fn is_taken(&self) -> bool {
        let is_creation =
            |failure: &Failure| failure.class == FailureClass::Taken && failure.step.creates::<MachineSet>();
        self.at.failure.is_some_and(is_creation)
    }

    /// Gives the deployment the revision of its set, once that is the newest. Not beside a write of the status, which
    /// would be refused because the deployment changes under it.
    fn number(&self, plan: &mut Plan<Never>) {
        let tells = |planned: &Planned<Never>| match &planned.step {
            Step::Apply(apply) => apply.at().uid() == uid(self.deployment),
            _ => false,
        };
        let newest = next_revision(self.world.old());
        let current = self.world.current().filter(|view| view.revision() >= newest);
        if let Some(current) = current.filter(|_| !plan.steps().any(tells)) {
            let step = Step::apply(CONTROL, self.deployment, &RevisionPart::of(&current.set));
            plan.beside("the revision is that of the present set", step);
        }
    }

    /// The status of a set's creation is written once the set is created; that its creation is refused, before it is
    /// tried again.
    fn tell_unless_created(
        &self,
        plan: &mut Plan<Never>,
        story: &Story,
        creation: Option<Planned<Never>>,
    ) -> MachineDeploymentStatus {
        let Some(creation) = creation else { return self.tell(plan, story) };
        if let Some(failure) = refused_creation(self.at.failure) {
            let text = format!("Failed to create new machine set: {}", failure.message);
            plan.event(Event::warning(reference(self.deployment), events::MACHINE_SET_CREATE_ERROR, text));
            let after = self.tell(plan, story);
            plan.stage([creation]);
            return after;
        }
        plan.stage([creation]);
        let mut later = Plan::idle();
        let after = self.tell(&mut later, story);
        plan.stages.append(&mut later.stages);
        plan.wake = plan.wake.into_iter().chain(later.wake).min();
        after
    }

    fn tell(&self, plan: &mut Plan<Never>, story: &Story) -> MachineDeploymentStatus {
        let after = status(self.at, self.world, self.goal, story, self.full_schema);
        tell(plan, self.at, self.world, after.clone());
        after
    }

    /// Deletes empty sets of former templates beyond the number that is kept for rollbacks, oldest first, once
    /// nothing else goes on.
    fn prune(&self, plan: &mut Plan<Never>, after: &MachineDeploymentStatus) {
        let spec = &self.deployment.spec;
        let quiet = is_complete(self.goal.desired, after) || spec.paused;
        let Some(limit) = spec.revision_history_limit.filter(|_| quiet && self.world.current().is_some()) else {
            return;
        };
        let old: Vec<_> = self.world.old().collect();
        let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        let empty = old.into_iter().take(surplus).filter(|view| view.size().at_most() == 0 && view.size().observed);
        for view in empty {
            plan.beside("more revisions than are kept", Step::delete(CONTROL, view.set.as_ref()));
        }
        // A deletion that comes late must not meet a set that was taken into use again.
        plan.pin_deletions();
    }

    fn wait(&self, plan: &mut Plan<Never>, after: &MachineDeploymentStatus) {
        let find = |kind: &str| after.conditions.iter().find(|condition| condition.condition_type == kind);
        if let Some(reconciling) = find(conditions::machine_deployment::RECONCILING) {
            let reason = if reconciling.reason == ROLLING_OUT { ROLLING_OUT } else { SCALING };
            plan.wait(reason, reconciling.message.clone());
        }
        let deadline = deadline(&self.deployment.spec, find(conditions::machine_deployment::PROGRESSING));
        // Times on the wire have whole seconds: one more, so that the deadline has surely passed.
        if let Some(passed) = deadline.and_then(|at| at.checked_add(jiff::SignedDuration::from_secs(1)).ok()) {
            plan.wake_at(passed);
        }
    }
}
