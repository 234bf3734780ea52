//! A VM that two machines name must not be touched until one of them is left: part of I12 of `docs/reference/simulation.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

/// Managers know of a machine that is this old.
const KNOWN: Duration = Duration::from_secs(5);

/// The VMs that more than one machine names.
#[derive(Default)]
pub(super) struct Disputes {
    /// By UID of the machine.
    claims: BTreeMap<String, Claim>,
    /// Since when each VM has been named by more than one machine.
    since: BTreeMap<String, Instant>,
}

struct Claim {
    vm: String,
    is_deleting: bool,
}

impl Disputes {
    /// Observes a change of a machine.
    pub(super) fn machine(&mut self, old: Option<&Value>, new: Option<&Value>) {
        let uid = |object: &Value| object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        match (old, new) {
            (_, Some(new)) => {
                let is_deleting = !new["metadata"]["deletionTimestamp"].is_null();
                self.claims.insert(uid(new), Claim { vm: vm_id(named(new)).to_owned(), is_deleting });
            }
            (Some(old), None) => drop(self.claims.remove(&uid(old))),
            (None, None) => {}
        }
        let disputed = self.disputed();
        self.since.retain(|vm, _| disputed.contains(vm));
        for vm in disputed {
            self.since.entry(vm).or_insert_with(Instant::now);
        }
    }

    /// The VMs that more than one machine names. VMs whose machines are all being deleted are left out: these machines do not
    /// wait for each other.
    fn disputed(&self) -> BTreeSet<String> {
        let mut by_vm = BTreeMap::<&str, Vec<bool>>::new();
        for claim in self.claims.values().filter(|claim| !claim.vm.is_empty()) {
            by_vm.entry(&claim.vm).or_default().push(claim.is_deleting);
        }
        let several = by_vm.into_iter().filter(|(_, deleting)| deleting.len() > 1 && deleting.contains(&false));
        several.map(|(vm, _)| vm.to_owned()).collect()
    }

    /// Whether managers know by now that more than one machine names a VM, given by its id or its providerID.
    pub(super) fn are_known(&self, vm: &str) -> bool {
        self.since.get(vm_id(vm)).is_some_and(|since| since.elapsed() >= KNOWN)
    }
}

/// The VM in the machine's status, or else the VM that its spec names.
fn named(machine: &Value) -> &str {
    let conditions = machine["status"]["conditions"].as_array().into_iter().flatten();
    let mut noted = conditions.filter(|it| it["type"] == "InstanceProvisioned" && it["status"] == "True");
    let id = noted.find_map(|it| it["message"].as_str()).or(machine["spec"]["providerID"].as_str());
    id.unwrap_or_default()
}

fn vm_id(provider_id: &str) -> &str {
    provider_id.rsplit('/').next().unwrap_or_default()
}
