//! Compares the rights in `config/` with those that the managers of scenarios have used; see [`USED_RIGHTS_VARIABLE`].

use std::{collections::BTreeSet, env, fs, path::PathBuf};

use nodewright_e2e_lab::control_plane::{
    binaries,
    rights::{USED_RIGHTS_VARIABLE, right},
};
use nodewright_e2e_scenarios::{Failure, TestResult, ensure, service_account::granted};

const APPLY: &str = "an apply that creates: the API server asks for create inside patch, and its log has the patch";
const OUTCOME: &str = "reads an object after the answer to a write was lost, which is rare";
const OWNER: &str = "owner references that block a deletion: asked for by the admission plugin OwnerReferencesPermissionEnforcement, \
                     which is not on by default";
const KUBELET: &str = "report asks a kubelet for metrics: make test-real-nodes has it do so with this role";
const ONE: &str = "`kubectl get` of one object, which shows no more than a list";
const MACHINES: &str = "machine.sapcloud.io";
const CONFIGS: &str = "machineconfiguration.openshift.io";

/// Rights that scenarios may leave unused: role, verb, API group, resource and the name of an object, and why the manager has them.
const UNUSED: [(&str, &str, &str, &str, &str); 28] = [
    ("nodewright", "create", MACHINES, "machines", APPLY),
    ("nodewright", "create", MACHINES, "machinesets", APPLY),
    ("nodewright", "get", "", "secrets", OUTCOME),
    ("nodewright", "list", MACHINES, "machines", "the log names nodewright-machines, which allows it everywhere"),
    ("nodewright", "update", MACHINES, "machinedeployments/finalizers", OWNER),
    ("nodewright", "update", MACHINES, "machinesets/finalizers", OWNER),
    ("nodewright-machine-config", "create", CONFIGS, "machineconfigs", APPLY),
    (
        "nodewright-machine-config",
        "patch",
        CONFIGS,
        "kubeletconfigs",
        "takes off finalizers of machine-config-operator",
    ),
    ("nodewright-machine-config", "update", CONFIGS, "controllerconfigs/finalizers", OWNER),
    ("nodewright-machine-config", "update", CONFIGS, "kubeletconfigs/finalizers", OWNER),
    ("nodewright-machine-config", "update", CONFIGS, "machineconfigpools/finalizers", OWNER),
    (
        "nodewright-node-lifecycle-impersonation",
        "impersonate",
        "",
        "serviceaccounts nodewright-node-lifecycle",
        "the log has what is done as that account",
    ),
    ("nodewright-node-lifecycle", "get", "", "nodes", OUTCOME),
    ("nodewright-nodes", "get", "", "pods", OUTCOME),
    ("nodewright-report", "list", "", "pods", "the log names nodewright-plan-drain"),
    ("nodewright-report", "create", "", "pods/portforward", KUBELET),
    ("nodewright-report", "get", "", "pods/portforward", KUBELET),
    ("nodewright-report", "create", "", "serviceaccounts/token nodewright-report", KUBELET),
    ("nodewright-view", "get", CONFIGS, "controllerconfigs", ONE),
    ("nodewright-view", "get", CONFIGS, "kubeletconfigs", ONE),
    ("nodewright-view", "get", CONFIGS, "machineconfigpools", ONE),
    ("nodewright-view", "get", CONFIGS, "machineconfigs", ONE),
    ("nodewright-view", "get", MACHINES, "machineclasses", ONE),
    ("nodewright-view", "get", MACHINES, "machines", ONE),
    ("nodewright-view", "get", MACHINES, "machinesets", ONE),
    ("nodewright-view", "list", "discovery.k8s.io", "endpointslices", "of webhooks that are registered by a Service"),
    (
        "nodewright-webhook",
        "get",
        "",
        "secrets nodewright-webhook-certificate",
        "the log names nodewright, where it may be narrowed to the Secrets of classes",
    ),
    (
        "nodewright-webhook",
        "update",
        "",
        "secrets nodewright-webhook-certificate",
        "renews the certificate of the webhooks, weeks after it was made",
    ),
];

#[tokio::test]
#[ignore = "reads what the scenarios leave behind, see `make test-rbac`"]
async fn each_right_is_used_or_explained() -> TestResult {
    let directory = env::var_os(USED_RIGHTS_VARIABLE).map(PathBuf::from);
    let directory = directory.ok_or_else(|| Failure::new(format!("{USED_RIGHTS_VARIABLE} names no directory")))?;
    let mut used = BTreeSet::new();
    for file in fs::read_dir(&directory)? {
        used.extend(fs::read_to_string(file?.path())?.lines().map(str::to_owned));
    }
    let granted = granted(&binaries().await?.join("kubectl")).await?;
    let explained: BTreeSet<_> = UNUSED
        .iter()
        .map(|(role, verb, group, resource, _)| right(role, verb, group, &resource.replace(' ', "\t")))
        .collect();
    let print = |lines: BTreeSet<&String>| {
        lines.into_iter().map(|line| line.replace('\t', " ")).collect::<Vec<_>>().join("\n  ")
    };
    let unused = print(granted.iter().filter(|right| !used.contains(*right) && !explained.contains(*right)).collect());
    ensure(unused.is_empty(), || format!("no scenario uses these rights, and nobody explains them:\n  {unused}"))?;
    let stale = print(explained.difference(&granted).collect());
    ensure(stale.is_empty(), || format!("these rights are explained, and not granted:\n  {stale}"))?;
    println!("{} rights, of which {} are used", granted.len(), granted.intersection(&used).count());
    Ok(())
}
