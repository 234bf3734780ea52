//! Which marks a Node has to have, and whether it has them.

use nodewright_api::{StrategyType, annotations, finalizers, labels};
use nodewright_runtime::object::{annotation, has_finalizer, label};

use super::snapshot::{Snapshot, is_of_former};
use crate::shared::{
    disruption::DisruptionDecision,
    in_place::{self, Progress, is_begun, is_moving, is_prefer_no_schedule, is_updated},
    node::{Node, autoscaler_marks},
    ownership::NodeProof,
    pause,
    preservation::preserve_expiry,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// No Machine that stays is known to be the Node's, or its update is in progress.
    Leave,
    /// A rollout replaces its Machine.
    Mark,
    /// A rollout updates its Machine in place.
    MarkForUpdate(Selection),
    /// Its Machine was updated in place. `is_former`: and is of a former template by now.
    FinishUpdate { is_former: bool, is_preserved: bool },
    /// A rollout replaces other Machines of its deployment: the autoscaler leaves them all to it. `annotates`: it is kept from this Node.
    Annotate { annotates: bool },
    /// No rollout replaces its Machine, or updates it. The autoscaler's annotations stay on the Node of a preserved one.
    Unmark { is_preserved: bool },
}

/// Whether a Node that a rollout updates in place is selected for that now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    /// It is a candidate only, or is selected already.
    None,
    /// It is, and shares no disruption budget.
    Unshared,
    /// It is to be selected, within the disruption budget of its pool.
    Shared(DisruptionDecision),
}

impl Selection {
    /// Whether the Node is selected by the next write.
    pub(super) fn is_now(&self) -> bool {
        matches!(self, Self::Unshared | Self::Shared(DisruptionDecision::Granted))
    }
}

pub(super) fn decide(snapshot: &Snapshot) -> Decision {
    let (node, Some(machine)) = (snapshot.node.as_ref(), &snapshot.machine) else { return Decision::Leave };
    let is_preserved = preserve_expiry(machine).is_some();
    let Some(owners) = &snapshot.owners else { return Decision::Unmark { is_preserved } };
    let (is_former, target) = (is_of_former(&owners.set, &owners.deployment), owners.target.as_deref());
    if is_updated(node) && (is_moving(machine) || !is_former && target.is_none()) {
        return Decision::FinishUpdate { is_former, is_preserved };
    }
    if is_begun(machine, node) {
        return Decision::Leave;
    }
    let strategy = &owners.deployment.spec.strategy;
    let (is_paused, is_going) = (!pause::permits_rollout(&owners.deployment), owners.deployment.is_deleting());
    let is_rolled = is_former && !is_going;
    match strategy.effective_type() {
        StrategyType::RollingUpdate if is_rolled && !is_paused => Decision::Mark,
        // A pause takes nothing back: the Node would be drained for nothing.
        StrategyType::InPlaceUpdate if is_rolled && is_paused && Progress::of(node) != Progress::None => {
            Decision::Leave
        }
        StrategyType::InPlaceUpdate if is_rolled && !is_paused => match target {
            // Those that are selected first need no mark of a candidate before. Where users select them, it is what they select from, and
            // one that was marked for its replacement becomes a candidate at once.
            None if !owners.has_begun && !strategy.is_manual() && !is_marked(node) => Decision::Leave,
            // The template that it was selected for is a former one itself.
            Some(target) if is_of_former(target, &owners.deployment) => Decision::Unmark { is_preserved },
            // Where users select Nodes, the list follows the labels, and not the other way round.
            target => Decision::MarkForUpdate(selection(snapshot, target.is_some() && !strategy.is_manual())),
        },
        // A preservation has the same annotations, and takes them off when it ends: they would be written in turns.
        StrategyType::RollingUpdate if owners.is_rolled && !is_former && !is_paused && !is_going && !is_preserved => {
            // Our Machine controller writes a new Node first: two writes at once would meet a conflict.
            let is_written = snapshot.proof != NodeProof::Here || has_finalizer(node, finalizers::NODE);
            Decision::Annotate { annotates: snapshot.annotates && is_written }
        }
        _ => Decision::Unmark { is_preserved },
    }
}

/// Whether a Node is selected now. `selects`: a rollout is to select it.
fn selection(snapshot: &Snapshot, selects: bool) -> Selection {
    let node = snapshot.node.as_ref();
    if !selects || label(node, labels::SELECTED_FOR_UPDATE).is_some() {
        return Selection::None;
    }
    let Some(shared) = &snapshot.shared_budget else { return Selection::Unshared };
    if Progress::of(node) == Progress::None {
        // The pool takes back a claim for a Node that does not show that it wants one: it is marked first.
        return Selection::None;
    }
    Selection::Shared(shared.update(node))
}

/// Whether a Node lacks marks that it has to have, or has others, or its pool is to list it: only then there is anything to write.
pub(super) fn is_due(snapshot: &Snapshot) -> bool {
    let node = snapshot.node.as_ref();
    match decide(snapshot) {
        Decision::Leave => false,
        Decision::Mark => has_update(node) || lacks_marks(node, snapshot.annotates),
        Decision::MarkForUpdate(selection) => {
            let is_claimed = matches!(selection, Selection::Shared(DisruptionDecision::Claim(_)));
            selection.is_now() || is_claimed || lacks_marks(node, snapshot.annotates) || is_unasked(node)
        }
        // The labels of the update have to go.
        Decision::FinishUpdate { .. } => true,
        Decision::Annotate { annotates } => has_update(node) || is_tainted(node) || lacks_annotations(node, annotates),
        Decision::Unmark { is_preserved } => {
            // Without a deployment another program updates the Node.
            let has_update = snapshot.owners.is_some() && has_update(node);
            has_update || is_tainted(node) || !is_preserved && autoscaler_marks(node).next().is_some()
        }
    }
}

/// Whether a Node has marks of a rollout.
fn is_marked(node: &Node) -> bool {
    Progress::of(node) != Progress::None || is_tainted(node)
}

fn is_tainted(node: &Node) -> bool {
    node.taints().iter().any(is_prefer_no_schedule)
}

fn lacks_marks(node: &Node, annotates: bool) -> bool {
    !is_tainted(node) || lacks_annotations(node, annotates)
}

/// Whether the autoscaler is to be kept from a Node, and nobody does.
pub(super) fn lacks_annotations(node: &Node, annotates: bool) -> bool {
    annotates && annotation(node, annotations::SCALE_DOWN_DISABLED).is_none()
}

/// Whether a Node has an update that would be taken back, or what is left of one.
fn has_update(node: &Node) -> bool {
    Progress::of(node) != Progress::None || in_place::has_marks_of_begin(node)
}

/// Whether a Node that is not selected now is no candidate yet, or has what is left of an earlier update.
fn is_unasked(node: &Node) -> bool {
    let is_left = || in_place::has_answer(node) || in_place::has_marks_of_begin(node);
    label(node, labels::CANDIDATE_FOR_UPDATE).is_none() || Progress::of(node) <= Progress::Candidate && is_left()
}
