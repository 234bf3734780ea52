//! When a class gets and loses its finalizer, and which fields are recorded by which its VMs are found.

use nodewright_api::{ClassIdentity, MachineClass, finalizers};
use nodewright_runtime::object::has_finalizer;

use super::snapshot::Snapshot;

#[derive(Debug)]
pub(super) enum Decision<'a> {
    /// Machines name the class: it gets the finalizer, and the record of the fields that identify its VMs, if they are known. A record of
    /// an earlier use goes.
    Hold(Option<ClassIdentity>),
    /// The record is that of another providerSpec, or is missing.
    RecordIdentity(ClassIdentity),
    /// No Machine names the class: it loses both.
    Release,
    /// A Machine that cannot be read may name the class.
    AwaitReadable(&'a str),
    /// The class is being deleted, and so many Machines name it.
    AwaitMachines(usize),
    /// Nothing changes but what is reported.
    Report,
}

/// `errors`: what the driver says is wrong with the providerSpec, if it has answered.
pub(super) fn decide<'a>(snapshot: &'a Snapshot, errors: Option<&[String]>) -> Decision<'a> {
    let class = snapshot.class.as_ref();
    let is_held = has_finalizer(class, finalizers::MACHINE_CONTROLLER_MANAGER);
    // A class that the driver cannot read creates no VM, so there are no VMs to identify.
    let fields = errors.is_some_and(<[_]>::is_empty).then_some(snapshot.provider.identity.as_slice());
    match (snapshot.machines, &snapshot.unreadable) {
        (0, Some(text)) if is_held => Decision::AwaitReadable(text),
        (0, None) if is_held => Decision::Release,
        (0, _) => Decision::Report,
        _ if snapshot.is_used && !is_held && !class.is_deleting() => {
            Decision::Hold(fields.map(|fields| ClassIdentity::of(class, fields)))
        }
        (machines, _) => {
            let identity = fields.filter(|_| is_held).and_then(|fields| outdated(class, fields));
            let otherwise = if class.is_deleting() { Decision::AwaitMachines(machines) } else { Decision::Report };
            identity.map_or(otherwise, Decision::RecordIdentity)
        }
    }
}

/// The identity in force, unless it is the recorded one.
fn outdated(class: &MachineClass, fields: &[String]) -> Option<ClassIdentity> {
    let identity = ClassIdentity::in_force(class, fields);
    (ClassIdentity::recorded(class).as_ref() != Some(&identity)).then_some(identity)
}
