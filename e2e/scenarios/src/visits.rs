//! Programs on Nodes, played by one task: it visits each Node at which there is something to do.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nodewright_e2e_cloud::{CloudClient, KubeletOrder};
use tokio::task::JoinSet;

use crate::{History, TestResult, waits::is_ready};

/// Time between two looks at the Nodes.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// What the programs on Nodes do.
pub(crate) trait Program: Send + Sync + 'static {
    /// The Nodes.
    fn nodes(&self) -> &History<Node>;
    /// Whether there is something to do at a Node.
    fn is_due(&self, name: &str, node: &Node) -> bool;
    /// Does it.
    fn tend(&self, name: &str) -> impl Future<Output = TestResult> + Send;
}

/// Visits the Nodes for ever, one visit of a Node at a time.
pub(crate) async fn work(program: Arc<impl Program>) {
    let (mut visits, mut visited) = (JoinSet::<String>::new(), BTreeSet::<String>::new());
    loop {
        while let Some(ended) = visits.try_join_next() {
            if let Ok(name) = ended {
                visited.remove(&name);
            }
        }
        for (name, node) in program.nodes().current() {
            if program.is_due(&name, &node) && visited.insert(name.clone()) {
                visits.spawn(visit(Arc::clone(&program), name));
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn visit(program: Arc<impl Program>, name: String) -> String {
    if let Err(failure) = program.tend(&name).await {
        tracing::debug!(node = name, %failure, "a visit of a node failed; trying again");
    }
    name
}

/// Has the kubelet of a Node be silent until this returns something true, and waits until that is seen.
pub(crate) async fn reboot(
    cloud: &CloudClient,
    nodes: &History<Node>,
    node: &Node,
    may_return: impl Fn() -> bool,
) -> TestResult {
    let provider_id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default();
    let (name, vm) = (node.name_any(), provider_id.rsplit('/').next().unwrap_or_default());
    for (order, ready) in [(KubeletOrder::NotReady, false), (KubeletOrder::Ready, true)] {
        while ready && !may_return() {
            tokio::time::sleep(LOOK).await;
        }
        cloud.kubelet(vm, &order).await?;
        while nodes.current().get(&name).is_some_and(|node| is_ready(node) != ready) {
            tokio::time::sleep(LOOK).await;
        }
    }
    Ok(())
}
