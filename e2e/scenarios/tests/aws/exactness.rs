//! EC2's own list, asked past the proxy: nothing lost, nothing twice.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use nodewright_e2e_lab::ec2::{Moto, Vm};
use nodewright_e2e_scenarios::{Environment, TestResult, ensure};

/// All VMs that were ever made, and how many of them are left.
#[derive(Debug)]
pub(crate) struct Inventory {
    vms: Vec<Vm>,
}

impl Inventory {
    pub(crate) async fn take(moto: &Moto) -> TestResult<Self> {
        Ok(Self { vms: moto.vms().await? })
    }

    fn live(&self) -> impl Iterator<Item = &Vm> {
        self.vms.iter().filter(|vm| !vm.is_gone())
    }

    pub(crate) fn count_live(&self) -> usize {
        self.live().count()
    }

    /// How many VMs have been made or have ended.
    pub(crate) fn changes(&self) -> usize {
        2 * self.vms.len() - self.count_live()
    }

    /// Each Machine that ever was has had one VM, made with its UID as token, with its name and the tags of its cluster. The
    /// VMs that are left are those of the Machines that are there. `made` is how many there have to be, all together.
    pub(crate) fn is_exact(&self, env: &Environment, made: usize) -> TestResult {
        let machines: BTreeMap<String, String> = env
            .machines()
            .changes()?
            .iter()
            .filter_map(|change| Some((change.object.uid()?, change.object.name_any())))
            .collect();
        let counts = (machines.len(), self.vms.len());
        ensure(counts == (made, made), || format!("{counts:?} machines and VMs were made, not {made} of each"))?;
        for vm in &self.vms {
            let name = machines.get(&vm.token);
            let cluster = format!("kubernetes.io/cluster/{}", env.namespace());
            let expected = name.map(|name| {
                let tags = [("Name", name.as_str()), (&cluster, "1"), ("kubernetes.io/role/node", "1")];
                tags.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
            });
            ensure(expected.as_ref() == Some(&vm.tags), || format!("{vm:?} should have the tags {expected:?}"))?;
        }
        let tokens: BTreeSet<_> = self.vms.iter().map(|vm| &vm.token).collect();
        ensure(tokens.len() == made, || format!("{made} VMs have {} tokens", tokens.len()))?;
        let known = env.machines().current();
        let claimed: BTreeSet<_> = known.values().filter_map(|machine| machine.provider_id()).collect();
        let ids: Vec<_> = self.live().map(|vm| format!("aws:///eu-west-1/{}", vm.id)).collect();
        let live: BTreeSet<_> = ids.iter().map(String::as_str).collect();
        ensure(claimed == live, || format!("machines have {claimed:?}, and EC2 has {live:?}"))
    }
}
