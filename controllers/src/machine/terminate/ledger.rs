//! The stage in which the ledger of the set retires the Machine's name.

use jiff::SignedDuration;
use nodewright_api::{conditions, operations};
use nodewright_runtime::plan::Step;

use super::{
    super::{scope::Scope, snapshot::Owner, stage::Stage},
    progress::Progress,
};
use crate::shared::{clusters::CONTROL, ledger::LedgerAnnotation};

/// How long after its deletion a Machine waits for its set to retire its name.
const RETIRE_OURSELVES: SignedDuration = SignedDuration::from_mins(1);

/// The Machine's name is retired: no other Machine will have it.
///
/// The MachineSet controller retires names, many at once. If it does not, because another controller manager keeps the sets or
/// the set's spec is not valid, the name is retired here. Each write of the ledger is refused if the set has changed since it was read.
pub(in super::super) fn name_retired(scope: &Scope<'_>) -> Stage {
    let snapshot = scope.snapshot;
    if let Some((reason, message)) = snapshot.ledger_problem() {
        let (operation, condition) = (operations::INITIATE_NODE_DELETION, conditions::machine::CONFIGURATION_VALID);
        return Stage::blocked(scope, &Progress { operation, condition, reason, message: &message });
    }
    let (Owner::Set(set), Some((ledger, index))) = (&snapshot.owner, snapshot.ledger_entry()) else {
        return Stage::over();
    };
    if ledger.is_retired(index) {
        return Stage::over();
    }
    let stage = Stage::waiting("Retiring", "the machine set has yet to note that this machine's name has had its life");
    let deleted = scope.machine.metadata.deletion_timestamp.as_ref().map_or(scope.now(), |time| time.0);
    let due = deleted.checked_add(RETIRE_OURSELVES).unwrap_or(scope.now());
    if due > scope.now() {
        return stage.waking_at(due);
    }
    let ledger = LedgerAnnotation::of(&ledger.retire([index]));
    let step = Step::apply_if_unchanged(CONTROL, set.as_ref(), &ledger);
    stage.beside("nobody else has retired the name", step)
}
