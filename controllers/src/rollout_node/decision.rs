//! Which marks a Node has to have.

use nodewright_api::StrategyType;

use super::snapshot::{Snapshot, is_of_former};
use crate::shared::{
    in_place::{Progress, is_begun, is_moving, is_prefer_no_schedule, is_updated},
    node::Node,
    pause,
    preservation::preserve_expiry,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// No Machine that stays is known to be the Node's, or its update is in progress.
    Leave,
    /// A rollout replaces its Machine.
    Mark,
    /// A rollout updates its Machine in place. `selects`: now.
    MarkForUpdate { selects: bool },
    /// Its Machine was updated in place. `is_former`: and is of a former template by now.
    FinishUpdate { is_former: bool, is_preserved: bool },
    /// A rollout replaces other Machines of its deployment: the autoscaler leaves them all to it.
    Annotate,
    /// No rollout replaces its Machine, or updates it. The autoscaler's annotations stay on the Node of a preserved one.
    Unmark { is_preserved: bool },
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
            target => Decision::MarkForUpdate { selects: target.is_some() && !strategy.is_manual() },
        },
        // A preservation has the same annotations, and takes them off when it ends: they would be written in turns.
        StrategyType::RollingUpdate if owners.is_rolled && !is_former && !is_paused && !is_going && !is_preserved => {
            Decision::Annotate
        }
        _ => Decision::Unmark { is_preserved },
    }
}

/// Whether a Node has marks of a rollout.
fn is_marked(node: &Node) -> bool {
    Progress::of(node) != Progress::None || node.taints().iter().any(is_prefer_no_schedule)
}
