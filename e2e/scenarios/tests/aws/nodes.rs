//! Without a cloud controller manager: what EC2 knows of a VM, its Node gets, and goes with it.

use kube::ResourceExt;
use nodewright_api::labels;
use nodewright_e2e_lab::ec2::Moto;
use nodewright_e2e_scenarios::{
    Environment, Failure, TestResult,
    cloud_nodes::{addresses, check_untainted, check_writes, is_initialized},
    ensure,
};

use crate::processes::{Processes, class, nodes_alone};

const COUNT: usize = 3;
const ON: [&str; 4] = [
    "--cloud-node=on",
    "--node-status-update-frequency=3s",
    "--node-deletion-grace=2s",
    "--node-deletion-after-start=1s",
];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs moto, which `make test-aws` installs"]
async fn nodes_get_what_ec2_knows_and_go_with_their_vm() -> TestResult {
    let _alone = nodes_alone().await;
    let env = Environment::builder("aws-nodes").without_kubelets().without_manager().start().await?;
    let mut processes = Processes::start_with(&env, vec!["--external-cloud-provider".to_owned()], &ON).await?;
    for object in class(&env, processes.account(), "small", "t3.small") {
        env.apply(&object).await?;
    }
    env.apply(&env.pool("a", u32::try_from(COUNT)?)).await?;
    env.wait_for_running(COUNT).await?;
    check_untainted(&env)?;
    // A Node that comes before EC2 describes its VM gets what its machine gives it first.
    check_writes(&env, 3).await?;
    println!(
        "{}",
        env.kubectl("get nodes -o wide -L topology.kubernetes.io/zone,node.kubernetes.io/instance-type").await?
    );
    let moto = processes.moto().clone();
    check_nodes(&env, &moto).await?;
    let written = env.requests().await?.entries().len();

    let (mark, before) = (env.machines().mark(), env.nodes().current());
    let gone = moto.vms().await?.swap_remove(0);
    moto.ask("ec2", &format!("Action=TerminateInstances&InstanceId.1={}", gone.id)).await?;
    env.wait_for("its node to go", async || Ok(!env.nodes().current().contains_key(&gone.private_dns_name))).await?;
    env.wait_for_running(COUNT).await?;
    assert_eq!((env.machines().born_since(mark)?, env.machines().gone_since(mark)?), (1, 1), "one replacement");
    let is_other = |name: &str| before.contains_key(name) && name != gone.private_dns_name;
    let since = env.requests_since(written).await?;
    let of_others = since.writes_for_machines().into_iter().filter(|it| it.resource == "nodes" && is_other(&it.name));
    assert_eq!(of_others.count(), 0, "the other nodes are at rest");
    processes.check()?;
    drop(processes);
    env.end_unevaluated().await
}

async fn check_nodes(env: &Environment, moto: &Moto) -> TestResult {
    let vms = moto.vms().await?;
    for node in env.nodes().current().values() {
        let name = node.name_any();
        let vm = vms.iter().find(|vm| vm.private_dns_name == name).ok_or_else(|| Failure::new("a node has no VM"))?;
        ensure(is_initialized(node), || format!("node {name} is not initialized: {:?}", node.spec))?;
        let got = addresses(node);
        println!("{name}: {got:?} {:?} {:?}", node.labels(), node.spec.as_ref().and_then(|it| it.provider_id.as_ref()));
        assert_eq!(got.get("InternalIP"), Some(&vm.private_ip));
        assert_eq!(got.get("InternalDNS"), Some(&vm.private_dns_name));
        let label = |key: &str| node.labels().get(key).cloned().unwrap_or_default();
        assert_eq!(label("node.kubernetes.io/instance-type"), "t3.small");
        assert_eq!(label("topology.kubernetes.io/region"), "eu-west-1");
        assert!(label(labels::ZONE).starts_with("eu-west-1"), "{:?}", node.labels());
        let id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default();
        assert!(id.starts_with("aws:///eu-west-1") && id.ends_with(&vm.id), "{id}");
    }
    Ok(())
}
