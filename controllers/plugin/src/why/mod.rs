//! Why an object is not as desired: a function from a snapshot to at most ten lines, the cause in the first one.
//!
//! ```text
//! snapshot ──▶ deployment ──▶ set ──▶ machine ──▶ node     what the manager says in conditions
//!         └──▶ pool, node, class, kubelet_config  ├──▶ remedies: the field or flag that changes a wait
//!         └──▶ manager: Leases, webhooks ─────────┘
//! ```

pub(crate) mod class;
pub(crate) mod deployment;
mod explanation;
pub(crate) mod kubelet_config;
pub(crate) mod machine;
pub(crate) mod manager;
pub(crate) mod node;
pub(crate) mod node_state;
pub(crate) mod pool;
mod remedies;
pub(crate) mod set;
#[cfg(test)]
mod tests;

use nodewright_api::finalizers;
use nodewright_runtime::object::{Kind, has_finalizer, name};

pub(crate) use self::explanation::{Explanation, Finding};
use crate::{
    fault::{Outcome, fail},
    names::{Target, TargetKind},
    output::State,
    snapshot::Snapshot,
};

/// What keeps an object from what it is to be.
pub(crate) fn explain(snapshot: &Snapshot, target: &Target) -> Outcome<Explanation> {
    let finding = finding(snapshot, target)?;
    let mut explanation = Explanation::of(target.to_string(), finding, snapshot);
    if explanation.state != State::Done
        && let Some(absent) = manager::absent(snapshot, target.kind)
    {
        explanation.overrule(absent);
    }
    if explanation.state == State::Done
        && let Some(refused) = manager::webhooks_down(snapshot, target.kind)
    {
        explanation.refused(refused);
    }
    explanation.notes.extend(manager::clock(snapshot));
    explanation.notes.extend(snapshot.gaps.iter().cloned());
    Ok(explanation)
}

fn finding(snapshot: &Snapshot, target: &Target) -> Outcome<Finding> {
    let wanted = target.name.as_str();
    let found = match target.kind {
        TargetKind::Deployment => {
            find(&snapshot.deployments, wanted).map(|deployment| deployment::finding(snapshot, deployment))
        }
        TargetKind::Set => find(&snapshot.sets, wanted).map(|set| set::finding(snapshot, set)),
        TargetKind::Machine => find(&snapshot.machines, wanted).map(|machine| machine::finding(snapshot, machine)),
        TargetKind::Class => find(&snapshot.classes, wanted).map(|class| class::finding(snapshot, class)),
        TargetKind::Node => node::finding(snapshot, wanted),
        TargetKind::Pool => find(&snapshot.pools, wanted).map(|pool| pool::finding(snapshot, pool)),
        TargetKind::KubeletConfig => {
            find(&snapshot.kubelet_configs, wanted).map(|config| kubelet_config::finding(snapshot, config))
        }
    };
    match found.or_else(|| unreadable(snapshot, target)) {
        Some(finding) => Ok(finding),
        None => fail(missing(snapshot, target)),
    }
}

/// That an object that is being deleted has finalizers of others alone. `text` says what has gone, and ends with them.
fn kept_by_others(object: &impl Kind, subject: String, text: &str) -> Option<Finding> {
    if has_finalizer(object, finalizers::MACHINE_CONTROLLER_MANAGER) {
        return None;
    }
    let meta = object.meta();
    let left = meta.finalizers.as_deref().unwrap_or_default().join(", ");
    let begun = meta.deletion_timestamp.as_ref().map(|time| time.0);
    let found = Finding::blocked(subject, "Finalizers", format!("{text}: {left}")).since(begun);
    Some(found.changed_by_all(remedies::of("Finalizers")))
}

fn find<'a, K: Kind>(all: &'a [K], wanted: &str) -> Option<&'a K> {
    all.iter().find(|object| name(*object) == wanted)
}

fn unreadable(snapshot: &Snapshot, target: &Target) -> Option<Finding> {
    let is_it = |it: &&crate::snapshot::Unreadable| it.kind == target.kind.kind() && it.name == target.name;
    let found = snapshot.unreadable.iter().find(is_it)?;
    let cause =
        format!("{}; the manager leaves it, and what depends on it, as it is until that is corrected", found.why);
    let finding = Finding::blocked(target.to_string(), "Undecodable", cause);
    Some(finding.changed_by("correct the field: kubectl edit it, or apply it again"))
}

/// That there is no such object, and what there is.
fn missing(snapshot: &Snapshot, target: &Target) -> String {
    fn names<K: Kind>(all: &[K]) -> Vec<String> {
        all.iter().map(|object| name(object).to_owned()).collect()
    }
    let known = match target.kind {
        TargetKind::Deployment => names(&snapshot.deployments),
        TargetKind::Set => names(&snapshot.sets),
        TargetKind::Machine => names(&snapshot.machines),
        TargetKind::Class => names(&snapshot.classes),
        TargetKind::Node => names(&snapshot.nodes),
        TargetKind::Pool => names(&snapshot.pools),
        TargetKind::KubeletConfig => names(&snapshot.kubelet_configs),
    };
    let known = match known.len() {
        0 => "there is none".to_owned(),
        _ => format!("there are {}", nodewright_runtime::clip::few(5, known.into_iter())),
    };
    let gaps = snapshot.gaps.join("; ");
    let gaps = if gaps.is_empty() { gaps } else { format!("; {gaps}") };
    let place = if target.kind.is_namespaced() { " (see --namespace)" } else { "" };
    format!("{target} not found: {known}{place}{gaps}")
}
