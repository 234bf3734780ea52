//! Why a deployment is not as its spec says.

use jiff::Timestamp;
use nodewright_api::{
    ConditionStatus, MachineDeployment, MachineDeploymentCondition as Condition,
    conditions::machine_deployment as kinds, reasons::machine_deployment as reasons,
};
use nodewright_runtime::object::name;

use super::{
    explanation::{Finding, Link},
    kept_by_others, remedies, set,
};
use crate::{
    names::{Target, TargetKind},
    output::{State, counted},
    snapshot::Snapshot,
};

pub(crate) fn subject(deployment: &MachineDeployment) -> String {
    Target::new(TargetKind::Deployment, name(deployment)).to_string()
}

/// What keeps a deployment from its spec.
pub(crate) fn finding(snapshot: &Snapshot, deployment: &MachineDeployment) -> Finding {
    let found = if deployment.is_deleting() { terminating(snapshot, deployment) } else { living(snapshot, deployment) };
    found.below([desired(deployment)])
}

fn desired(deployment: &MachineDeployment) -> Link {
    let wanted = usize::try_from(deployment.spec.replicas).unwrap_or_default();
    let class = &deployment.spec.template.spec.class.name;
    let status = deployment.status.clone().unwrap_or_default();
    let paused = if deployment.spec.paused { "; paused" } else { "" };
    let text = format!(
        "{} of class {class}; {} up to date, {} available{paused}",
        counted(wanted, "machine"),
        status.updated_replicas,
        status.available_replicas
    );
    Link::new("desired", text)
}

fn is_true<'a>(deployment: &'a MachineDeployment, kind: &str) -> Option<&'a Condition> {
    deployment.condition(kind).filter(|condition| condition.status == ConditionStatus::True)
}

fn since(condition: &Condition) -> Option<Timestamp> {
    condition.last_transition_time.as_ref().map(|time| time.0)
}

fn living(snapshot: &Snapshot, deployment: &MachineDeployment) -> Finding {
    let questions = [unseen, stalled, frozen, failure, paused, blocked, reconciling];
    let found = questions.into_iter().find_map(|question| question(snapshot, deployment));
    found.unwrap_or_else(|| {
        let wanted = usize::try_from(deployment.spec.replicas).unwrap_or_default();
        let text = format!("{} of the present template run, as wanted", counted(wanted, "machine"));
        Finding::done(subject(deployment), text)
    })
}

fn unseen(_: &Snapshot, deployment: &MachineDeployment) -> Option<Finding> {
    let seen = deployment.status.as_ref().map_or(0, |status| status.observed_generation);
    let is_unseen = deployment.metadata.generation.is_none_or(|generation| generation > seen);
    // A stall of an invalid spec says more.
    let is_stalled = is_true(deployment, kinds::STALLED).is_some();
    (is_unseen && !is_stalled).then(|| set::unseen(subject(deployment)))
}

/// The condition `Stalled`. A machine that shows the cause is better than its summary.
fn stalled(snapshot: &Snapshot, deployment: &MachineDeployment) -> Option<Finding> {
    let condition = is_true(deployment, kinds::STALLED)?;
    let found = Finding::blocked(subject(deployment), &condition.reason, condition.message.clone());
    let found = found.since(since(condition)).changed_by_all(remedies::of(&condition.reason));
    let summaries = [reasons::PROGRESS_DEADLINE_EXCEEDED, "CreationBackoff", "ClassNotFound", "SecretNotFound"];
    if !summaries.contains(&condition.reason.as_str()) {
        return Some(found);
    }
    let mut shown = obstacle(snapshot, deployment)?;
    if shown.state == State::Waiting && condition.reason != reasons::PROGRESS_DEADLINE_EXCEEDED {
        return Some(found);
    }
    shown.state = State::Blocked;
    shown.chain.push(Link::new("stalled", condition.reason.clone()).since(since(condition)));
    Some(shown)
}

fn frozen(snapshot: &Snapshot, deployment: &MachineDeployment) -> Option<Finding> {
    let sets = snapshot.sets_of(deployment);
    let of_set = sets.iter().find_map(|set| set::frozen(set).map(|found| found.below([set::described(snapshot, set)])));
    let own = || {
        let text = is_true(deployment, kinds::FROZEN)?.message.clone();
        let found = Finding::blocked(subject(deployment), "Frozen", text);
        Some(found.changed_by_all(remedies::of("Frozen")))
    };
    of_set.or_else(|| own().filter(|_| deployment.is_frozen()))
}

fn failure(snapshot: &Snapshot, deployment: &MachineDeployment) -> Option<Finding> {
    let progress = deployment.condition(kinds::PROGRESSING);
    let refused = progress.filter(|it| it.reason == reasons::MACHINE_SET_CREATE_ERROR);
    if let Some(refused) = refused {
        let text = format!("its machine set is not created: {}", refused.message);
        let found = Finding::blocked(subject(deployment), &refused.reason, text).since(since(refused));
        return Some(found.changed_by_all(remedies::of_refusal(&refused.reason, &refused.message)));
    }
    let sets = snapshot.sets_of(deployment);
    sets.into_iter().find_map(|set| Some(set::failure(set)?.below([set::described(snapshot, set)])))
}

fn paused(snapshot: &Snapshot, deployment: &MachineDeployment) -> Option<Finding> {
    let is_behind = || {
        let current = snapshot.current_set(deployment).map(name);
        let old = snapshot.sets_of(deployment).into_iter().filter(|set| Some(name(*set)) != current);
        current.is_none() || old.into_iter().any(|set| set.spec.replicas > 0)
    };
    if !deployment.spec.paused || !is_behind() {
        return None;
    }
    let text = "spec.paused is true: its new template is not rolled out";
    let progress = deployment.condition(kinds::PROGRESSING).and_then(since);
    let found = Finding::blocked(subject(deployment), "Paused", text).since(progress);
    let resume = format!("kubectl nodewright rollout resume {} (spec.paused)", name(deployment));
    Some(found.changed_by(resume))
}

/// A machine that is not as wanted, with its set.
fn blocked(snapshot: &Snapshot, deployment: &MachineDeployment) -> Option<Finding> {
    obstacle(snapshot, deployment)
}

fn obstacle(snapshot: &Snapshot, deployment: &MachineDeployment) -> Option<Finding> {
    let sets = snapshot.sets_of(deployment);
    let found = set::blocker(snapshot, &sets)?;
    let of = sets
        .iter()
        .find(|set| snapshot.machines_of(set).into_iter().any(|it| found.subject == super::machine::subject(it)));
    let links = of.map(|set| set::described(snapshot, set));
    Some(found.below(links))
}

/// The condition `Reconciling`, when no machine shows why.
fn reconciling(snapshot: &Snapshot, deployment: &MachineDeployment) -> Option<Finding> {
    let condition = is_true(deployment, kinds::RECONCILING)?;
    let found = Finding::waiting(subject(deployment), &condition.reason, condition.message.clone());
    let sets = snapshot.sets_of(deployment);
    let links: Vec<_> = sets.iter().filter(|it| it.spec.replicas > 0).map(|it| set::described(snapshot, it)).collect();
    Some(found.since(since(condition)).below(links).changed_by_all(remedies::of(&condition.reason)))
}

fn terminating(snapshot: &Snapshot, deployment: &MachineDeployment) -> Finding {
    let begun = deployment.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    if let Some(condition) = is_true(deployment, kinds::STALLED) {
        let found = Finding::blocked(subject(deployment), &condition.reason, condition.message.clone());
        return found.since(since(condition)).changed_by_all(remedies::of(&condition.reason));
    }
    if let Some(found) = obstacle(snapshot, deployment) {
        return found;
    }
    let text = "its machines are gone, and finalizers of others keep it";
    if let Some(found) = kept_by_others(deployment, subject(deployment), text) {
        return found;
    }
    Finding::waiting(subject(deployment), "Deleting", "it is being deleted").since(begun)
}
