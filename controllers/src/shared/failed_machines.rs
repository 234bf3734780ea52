//! The machines whose last operation failed, as the statuses of MachineSets and MachineDeployments list them.

use nodewright_api::{LastOperation, Machine, MachineSet, MachineSummary, OperationState};
use nodewright_runtime::{clip::clip, object::name};

/// The maximum number of listed machines. All of a large fleet would not fit into an object.
const LISTED: usize = 50;

/// The first machines in the given order, and the total number.
#[derive(Clone, Debug, Default)]
pub(crate) struct FailedMachines {
    pub(crate) listed: Vec<MachineSummary>,
    all: usize,
}

impl FailedMachines {
    /// Collects failed Machines, each with its set. The order must be stable, or the status is rewritten each time.
    pub(crate) fn of<'a>(machines: impl IntoIterator<Item = (&'a Machine, &'a MachineSet)>) -> Self {
        let mut failed = Self::default();
        for (machine, set) in machines {
            let operation = machine.status.as_ref().map(|status| &status.last_operation);
            let Some(operation) = operation.filter(|it| it.state == OperationState::Failed) else { continue };
            failed.all += 1;
            if failed.listed.len() < LISTED {
                failed.listed.push(summary(machine, set, operation));
            }
        }
        failed
    }

    /// The message if the list is truncated.
    pub(crate) fn truncation(&self) -> Option<String> {
        let left_out = self.all - self.listed.len();
        (left_out > 0).then(|| {
            let (all, listed) = (self.all, self.listed.len());
            format!("the last operation of {all} machines failed; {listed} are listed in status.failedMachines, {left_out} are left out")
        })
    }
}

fn summary(machine: &Machine, set: &MachineSet, operation: &LastOperation) -> MachineSummary {
    MachineSummary {
        name: name(machine).to_owned(),
        provider_id: machine.spec.provider_id.clone(),
        // Another controller manager may have written a longer one.
        last_operation: LastOperation { description: clip(operation.description.as_str()), ..operation.clone() },
        owner_ref: name(set).to_owned(),
    }
}
