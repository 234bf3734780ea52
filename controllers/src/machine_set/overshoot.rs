//! The overshoot freeze: the last line of defence against too many Machines. A set that finds more than it can explain creates
//! none until there are fewer. Thresholds, label, condition and events are those of machine-controller-manager.
//!
//! machine-controller-manager counts the Machines that a set has, those in deletion included, so that a plain scale-down freezes
//! the set, and what fails meanwhile is not replaced. Here those count that no controller is about to delete: what the set keeps, the
//! Machines without an owner that it selects, and of its deployment's other sets as many as their sizes allow. So it is Machines
//! without an owner that make too many, and those that cannot be read: a set deletes its own surplus before that.

use nodewright_api::{MachineDeployment, MachineSet, stored::LEDGER};

use super::snapshot::{Members, Snapshot};
use crate::shared::{fleet::OvershootSettings, freeze};

/// How many Machines there are, and how many are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overshoot {
    present: usize,
    too_many: usize,
}

impl Overshoot {
    /// `None` if the deployment has no readable bounds. Its sets may be larger than it wants, until it has scaled them down.
    pub(super) fn of(members: &Members<'_>, settings: &OvershootSettings) -> Option<Self> {
        let snapshot = members.snapshot;
        let own = members.staying.len() + members.unreadable + snapshot.orphans.len();
        let limit = limit(&snapshot.set, snapshot.deployment.as_deref())?.max(snapshot.population.sizes);
        let too_many = limit.saturating_add(settings.up);
        Some(Self { present: own + snapshot.population.other_sets, too_many })
    }

    fn is_reached(self) -> bool {
        self.present >= self.too_many
    }

    fn has_ended(self, settings: &OvershootSettings) -> bool {
        self.present <= self.too_many.saturating_sub(settings.down)
    }

    fn text(self) -> String {
        let Self { present, too_many } = self;
        format!(
            "there are {present} machines, and {too_many} are too many: no machine is created until there are fewer; see which \
             of them are wanted, and delete the others"
        )
    }
}

/// With a deployment its replicas and surge, without one twice the set's replicas.
fn limit(set: &MachineSet, deployment: Option<&MachineDeployment>) -> Option<usize> {
    let count = |number: i32| usize::try_from(number).unwrap_or(0);
    match deployment {
        Some(deployment) => {
            let surge = deployment.update_bounds().ok()?.max_surge;
            Some(count(deployment.spec.replicas).saturating_add(count(surge)))
        }
        None => Some(count(set.spec.replicas).saturating_mul(2)),
    }
}

/// What becomes of the freeze of a set.
#[derive(Debug)]
pub(super) enum Freezing {
    /// There are too many Machines: the text says how many.
    Freeze(String),
    /// There are no longer too many, or a user ends the freeze with an annotation, once.
    Unfreeze,
}

/// Whether the freeze of the set begins or ends.
pub(super) fn evaluate(members: &Members<'_>, settings: &OvershootSettings) -> Option<Freezing> {
    let set = members.snapshot.set.as_ref();
    let overshoot = Overshoot::of(members, settings)?;
    if overshoot.has_ended(settings) || freeze::is_unfreeze_wanted(&set.metadata) {
        return (!freeze::unfreeze(&set.metadata).0.is_empty()).then_some(Freezing::Unfreeze);
    }
    (overshoot.is_reached() && !set.is_frozen()).then(|| Freezing::Freeze(overshoot.text()))
}

/// The message of the condition of a frozen set.
pub(super) fn frozen_text(snapshot: &Snapshot, settings: &OvershootSettings) -> String {
    let ledger = LEDGER.of(snapshot.set.as_ref());
    let overshoot = ledger.and_then(|ledger| Overshoot::of(&Members::of(snapshot, &ledger), settings));
    overshoot.map_or_else(|| "no machine is created".to_owned(), Overshoot::text)
}
