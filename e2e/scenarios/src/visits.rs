//! Programs on Nodes, played by one task: it visits each Node at which there is something to do.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use nodewright_e2e_cloud::{CloudClient, KubeletOrder};
use tokio::task::{AbortHandle, JoinSet};

use crate::{Environment, History, TestResult, objects::ENVIRONMENT_LABEL, waits::is_ready};

/// Time between two looks at the Nodes.
const LOOK: Duration = Duration::from_millis(50);

/// What the programs on Nodes do.
pub(crate) trait Program: Send + Sync + 'static {
    /// The Nodes.
    fn nodes(&self) -> &History<Node>;
    /// Whether there is something to do at a Node.
    fn is_due(&self, name: &str, node: &Node) -> bool;
    /// Does it.
    fn tend(&self, name: &str) -> impl Future<Output = TestResult> + Send;
}

/// A program that runs on all Nodes. Dropping it ends it.
pub(crate) struct Running<P> {
    program: Arc<P>,
    task: AbortHandle,
}

impl<P: Program> Running<P> {
    pub(crate) fn start(program: P) -> Self {
        let program = Arc::new(program);
        let task = tokio::spawn(work(Arc::clone(&program))).abort_handle();
        Self { program, task }
    }
}

impl<P> Deref for Running<P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.program
    }
}

impl<P> Drop for Running<P> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A setting of all Nodes, and of some that have one of their own.
#[derive(Default)]
pub(crate) struct PerNode<T> {
    pub(crate) by_default: T,
    pub(crate) by_node: BTreeMap<String, T>,
}

impl<T> PerNode<T> {
    pub(crate) fn of(&self, node: &str) -> &T {
        self.by_node.get(node).unwrap_or(&self.by_default)
    }
}

/// The Nodes of an environment, from now on.
pub(crate) async fn record_nodes(env: &Environment) -> TestResult<History<Node>> {
    let label = format!("{ENVIRONMENT_LABEL}={}", env.namespace());
    History::record(Api::all(env.target_client()), &label).await
}

/// Visits the Nodes for ever, one visit of a Node at a time.
async fn work(program: Arc<impl Program>) {
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
