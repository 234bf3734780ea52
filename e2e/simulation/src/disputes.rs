//! What two machines name is touched by neither until one is left: a part of I12 of `docs/reference/simulation.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

/// Managers know of a machine that has been there for so long.
const KNOWN: Duration = Duration::from_secs(5);

/// The VMs that several machines name.
#[derive(Default)]
pub(super) struct Disputes {
    /// By the UIDs of machines.
    claims: BTreeMap<String, Claim>,
    /// Since when VMs have been named by several machines.
    since: BTreeMap<String, Instant>,
}

struct Claim {
    vm: String,
    is_deleting: bool,
}

impl Disputes {
    /// Takes a change of a machine.
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

    /// The VMs that several machines name, not all of which are being deleted: these do not wait for one another.
    fn disputed(&self) -> BTreeSet<String> {
        let mut by_vm = BTreeMap::<&str, Vec<bool>>::new();
        for claim in self.claims.values().filter(|claim| !claim.vm.is_empty()) {
            by_vm.entry(&claim.vm).or_default().push(claim.is_deleting);
        }
        let several = by_vm.into_iter().filter(|(_, deleting)| deleting.len() > 1 && deleting.contains(&false));
        several.map(|(vm, _)| vm.to_owned()).collect()
    }

    /// Whether managers know by now that several machines name a VM, by its id or its providerID.
    pub(super) fn are_known(&self, vm: &str) -> bool {
        self.since.get(vm_id(vm)).is_some_and(|since| since.elapsed() >= KNOWN)
    }
}

/// The VM that a machine has by its status, else the one that it names.
fn named(machine: &Value) -> &str {
    let conditions = machine["status"]["conditions"].as_array().into_iter().flatten();
    let mut noted = conditions.filter(|it| it["type"] == "InstanceProvisioned" && it["status"] == "True");
    let id = noted.find_map(|it| it["message"].as_str()).or(machine["spec"]["providerID"].as_str());
    id.unwrap_or_default()
}

fn vm_id(provider_id: &str) -> &str {
    provider_id.rsplit('/').next().unwrap_or_default()
}
