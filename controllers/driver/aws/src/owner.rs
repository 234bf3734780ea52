//! Whose VM it is: tags prove it, ids only claim it.

use std::collections::BTreeMap;

use nodewright_api::{Code, finalizers};
use nodewright_driver::{DriverError, MachineRequest, Mismatch, Result};

use crate::{
    PROVIDER_ID_PREFIX,
    answers::Vm,
    parameters::owner_tags,
    spec::{Identity, NAME_TAG},
};

/// A Machine of a cluster.
#[derive(Debug)]
pub(crate) struct Owner<'a> {
    pub identity: &'a Identity,
    pub machine: &'a str,
    pub class: &'a str,
}

impl Owner<'_> {
    pub(crate) fn tags(&self) -> BTreeMap<String, String> {
        owner_tags(self.identity, self.machine)
    }

    /// Checks that a VM has the tags of this Machine's cluster and name.
    pub(crate) fn prove(&self, vm: &Vm) -> Result<()> {
        let (is_cluster, is_machine) = (is_of(self.identity, vm), vm.tags().get(NAME_TAG) == Some(&self.machine));
        let (mismatch, remedy) = match (is_cluster, is_machine) {
            (true, true) => return Ok(()),
            (false, true) => {
                let remedy = format!(
                    "set providerSpec.tags of MachineClass {} back if they were changed; if the VM is another cluster's, take \
                     finalizer {} off the Machine to delete that alone",
                    self.class,
                    finalizers::MACHINE_CONTROLLER_MANAGER
                );
                (Mismatch::Cluster, remedy)
            }
            (_, false) => (Mismatch::Machine, "delete the Machine: the VM stays".to_owned()),
        };
        let found = vm.tags().get(NAME_TAG).map_or_else(|| "(none)".to_owned(), |name| format!("{name:?}"));
        let whose = if is_cluster { "this cluster" } else { "no or another cluster" };
        let message = format!(
            "instance {} is not this machine's: its tags: {whose}, machine {found}, and not machine {:?}; {remedy}",
            vm.id, self.machine
        );
        Err(DriverError::new(Code::FailedPrecondition, message).with_mismatch(mismatch))
    }

    /// A VM that was made for another Machine of the same name.
    pub(crate) fn anothers(&self, vm: &Vm, request: &MachineRequest) -> DriverError {
        let message = format!(
            "instance {} has the tags of machine {}, and its client token is {:?}, not the machine's UID {}; delete the Machine: the \
             VM stays",
            vm.id, self.machine, vm.client_token, request.uid
        );
        DriverError::new(Code::FailedPrecondition, message).with_mismatch(Mismatch::Machine)
    }

    /// Of the VMs with the tags of this Machine, the one that it owns and that stays. One that is being deleted counts only if there
    /// is no other: a caller that waits for its end must still see it. If it owns none, the one that it names, or the only one.
    pub(crate) fn the_one(&self, vms: Vec<Vm>, claimed: Option<Vm>, request: &MachineRequest) -> Result<Option<Vm>> {
        let (own, others): (Vec<Vm>, Vec<Vm>) = vms.into_iter().partition(|vm| request.owns(vm.token()));
        let owns_any = !own.is_empty();
        if !owns_any && claimed.is_some() {
            return Ok(claimed);
        }
        let (deleting, mut staying): (Vec<Vm>, Vec<Vm>) =
            if owns_any { own } else { others }.into_iter().partition(Vm::is_deleting);
        if staying.len() > 1 {
            let ids: Vec<&str> = staying.iter().map(|vm| vm.id.as_str()).collect();
            let (machine, ids) = (self.machine, ids.join(", "));
            return Err(if owns_any {
                DriverError::new(Code::OutOfRange, format!("machine {machine} has several instances: {ids}"))
            } else {
                let message =
                    format!("several instances have the tags of machine {machine}, and none was made for it: {ids}");
                DriverError::new(Code::FailedPrecondition, message).with_mismatch(Mismatch::Machine)
            });
        }
        Ok(staying.pop().or_else(|| deleting.into_iter().next()))
    }
}

/// Whether a VM has the tags of the cluster and of the role.
fn is_of(identity: &Identity, vm: &Vm) -> bool {
    let tags = vm.tags();
    identity.tags.iter().all(|(key, value)| tags.get(key.as_str()) == Some(&value.as_str()))
}

/// The name of the Machine whose tags a VM has, if it has those of a class's Machines.
pub(crate) fn machine_of(identity: &Identity, vm: &Vm) -> Option<String> {
    vm.tags().get(NAME_TAG).filter(|_| is_of(identity, vm)).map(|name| (*name).to_owned())
}

/// `aws:///eu-west-1/i-…`, as machine-controller-manager's provider writes it.
pub(crate) fn provider_id(region: &str, id: &str) -> String {
    format!("{PROVIDER_ID_PREFIX}{region}/{id}")
}

/// The instance id in a provider id. In place of the region there may be one of its zones, as in those of AWS's cloud controller.
pub(crate) fn instance_id<'a>(region: &str, provider_id: &'a str) -> Result<&'a str> {
    let parts = provider_id.strip_prefix(PROVIDER_ID_PREFIX).and_then(|rest| rest.split_once('/'));
    let Some((place, id)) = parts.filter(|(_, id)| is_instance_id(id)) else {
        let message = format!(
            "provider id {provider_id:?} is not of this provider; it must be like aws:///eu-west-1/i-0123456789abcdef0"
        );
        return Err(DriverError::new(Code::InvalidArgument, message).with_mismatch(Mismatch::Machine));
    };
    if !place.starts_with(region) {
        // The class has been edited, most likely: its VMs exist.
        let message = format!(
            "provider id {provider_id:?} is not of region {region}; set providerSpec.region back if it was changed"
        );
        return Err(DriverError::new(Code::FailedPrecondition, message).with_mismatch(Mismatch::Cluster));
    }
    Ok(id)
}

fn is_instance_id(id: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    id.strip_prefix("i-").is_some_and(|hex| matches!(hex.len(), 8 | 17) && hex.bytes().all(is_hex))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_id_has_region_and_instance() {
        let of = |id| instance_id("eu-west-1", id).map_err(|error| error.mismatch.unwrap());
        let own = provider_id("eu-west-1", "i-0123456789abcdef0");
        assert_eq!(of(&own), Ok("i-0123456789abcdef0"));
        assert_eq!(of("aws:///eu-west-1a/i-01234567"), Ok("i-01234567"));
        assert_eq!(of("aws:///us-east-1/i-01234567"), Err(Mismatch::Cluster));
        for foreign in [
            "elsewhere:///vm-1",
            "aws:///i-01234567",
            "aws:///eu-west-1/vm-1",
            "aws:///eu-west-1/i-0123456Z",
            "aws:///eu-west-1/",
            "",
        ] {
            assert_eq!(of(foreign), Err(Mismatch::Machine), "{foreign}");
        }
    }
}
