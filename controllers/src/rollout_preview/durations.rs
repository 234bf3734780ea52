//! How long Machines take, as those that there are have taken.

use jiff::SignedDuration;
use nodewright_api::{
    Machine,
    conditions::machine::{INSTANCE_PROVISIONED, NODE_JOINED},
};
use nodewright_runtime::object::created;

/// A Machine that has taken longer was not created in one go: its conditions are those of a restore or a take-over.
const LONGEST: SignedDuration = SignedDuration::from_hours(1);

/// How long a Machine takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durations {
    /// From its creation until it has a VM.
    pub vm: SignedDuration,
    /// From its creation until it runs.
    pub creation: SignedDuration,
    /// From its deletion until it is gone.
    pub deletion: SignedDuration,
    /// From the selection of its Node for an update in place until that is updated.
    pub update: SignedDuration,
}

impl Durations {
    /// The medians of the Machines that have joined, and their number; `None` if none has. No object remembers how long a
    /// deletion took, or an update in place.
    pub fn seen<'a>(
        machines: impl Iterator<Item = &'a Machine>,
        (deletion, update): (SignedDuration, SignedDuration),
    ) -> Option<(Self, usize)> {
        let (mut vms, mut joins): (Vec<_>, Vec<_>) = machines.filter_map(took).unzip();
        vms.sort();
        joins.sort();
        let (vm, creation) = (*vms.get(vms.len() / 2)?, *joins.get(joins.len() / 2)?);
        Some((Self { vm: vm.min(creation), creation, deletion, update }, joins.len()))
    }
}

/// How long it took until a Machine had a VM, and until it joined.
fn took(machine: &Machine) -> Option<(SignedDuration, SignedDuration)> {
    let created = created(machine)?;
    let after = |kind: &str| {
        let condition = machine.condition(kind).filter(|condition| condition.status == "True")?;
        Some(condition.last_transition_time.as_ref()?.0.duration_since(created).max(SignedDuration::ZERO))
    };
    Some((after(INSTANCE_PROVISIONED)?, after(NODE_JOINED)?)).filter(|(_, joined)| *joined <= LONGEST)
}
