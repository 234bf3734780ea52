//! Kubelets with `--cloud-provider=external`, and no cloud controller manager.

use kube::ResourceExt;
use nodewright_api::labels;
use nodewright_e2e_scenarios::{
    TestResult,
    cloud_nodes::{addresses, check_untainted, is_initialized},
    ensure,
};

use crate::{
    finish, real_nodes,
    workload::{record_pods, wait_for_ready, web},
};

/// Writes of a Node: its addresses; then finalizer, labels, id and the taint.
const WRITES: usize = 2;

/// The manager initializes Nodes at the first moment that it can, and then writes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn kubelets_that_await_a_cloud_provider_get_what_it_knows() -> TestResult {
    let Some(builder) = real_nodes("external") else { return Ok(()) };
    let env = builder.manager_flags(["--cloud-node=on", "--node-status-update-frequency=5s"]).start().await?;
    let class = env.class("small").provider("externalCloudProvider", true);
    env.apply(&class.provider("zone", "here-1").provider("region", "here")).await?;
    env.apply(&env.pool("a", 2)).await?;
    env.wait_for_running(2).await?;
    check_untainted(&env)?;
    let vms = env.vms().await?;
    for node in env.nodes().current().values() {
        let vm = vms.iter().find(|vm| vm.node_name == node.name_any()).expect("a VM of each node");
        ensure(is_initialized(node), || format!("node {} is not initialized", node.name_any()))?;
        assert_eq!(addresses(node).get("InternalIP"), Some(&vm.address));
        assert_eq!(node.spec.as_ref().and_then(|spec| spec.provider_id.as_ref()), Some(&vm.provider_id));
    }
    let columns = ["--output=wide", "-L", labels::ZONE, "-L", "node.kubernetes.io/instance-type"].join(" ");
    let table = env.table(&format!("nodes {columns}")).await?;
    for (column, wanted) in [("ZONE", "here-1"), ("INSTANCE-TYPE", "small")] {
        assert_eq!(table.column(column)?, [wanted; 2], "{column}");
    }
    assert!(table.column("INTERNAL-IP")?.iter().all(|address| vms.iter().any(|vm| vm.address == **address)));

    // Pods run there: nothing keeps them away.
    let pods = record_pods(&env).await?;
    env.apply(&web(&env, 2)).await?;
    wait_for_ready(&env, &pods, "web", 2).await?;
    let requests = env.requests().await?;
    let of_nodes = requests.writes_for_machines().into_iter().filter(|entry| entry.resource == "nodes");
    let mark = requests.entries().len();
    let (mut writes, mut refused) = (std::collections::BTreeMap::<&str, usize>::new(), 0);
    for entry in of_nodes {
        if entry.code < 300 { *writes.entry(&entry.name).or_default() += 1 } else { refused += 1 }
    }
    println!("writes of nodes: {writes:?}; refused: {refused}");
    assert!(writes.values().all(|count| *count <= WRITES), "{writes:?}");
    // Several refreshes later.
    tokio::time::sleep(std::time::Duration::from_secs(12)).await;
    let since = env.requests_since(mark).await?;
    let written: Vec<_> = since.writes_for_machines().into_iter().filter(|entry| entry.resource == "nodes").collect();
    assert!(written.is_empty(), "{written:?}");
    finish(env).await
}
