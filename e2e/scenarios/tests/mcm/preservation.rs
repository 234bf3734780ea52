//! One side preserves a machine and is killed, and the other side continues and ends it; and both together, one process of each.

use k8s_openapi::api::core::v1::Node;
use nodewright_api::{Machine, MachinePhase, annotations, conditions, stored::PreservedNode, taints};
use nodewright_e2e_cloud::KubeletOrder;
use nodewright_e2e_scenarios::{Environment, Failure, TestResult, ensure, waits::is_running};
use serde_json::json;

use crate::{
    controllers::{Controllers, Side},
    environment::play,
    exactness,
    objects::{self, POOL, SMALL},
};

/// The first part of the names of environments.
const PREFIX: &str = "kept";

/// For how long a machine is preserved whose time is to end: longer than until the other side has taken over and scaled up.
const TIME: &str = "90s";

/// Who asks for the preservation.
#[derive(Clone, Copy, Debug)]
enum Asks {
    Machine(&'static str),
    Node(&'static str),
    /// The deployment has failed machines preserved.
    Set,
}

/// How it ends.
#[derive(Clone, Copy, Debug)]
enum Ends {
    /// The annotation becomes `false`.
    False,
    /// The annotation is removed.
    Removed,
    /// The machine works again.
    Recovered,
    /// Its time is over.
    Expired,
    /// The machine is deleted.
    Deleted,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    asks: Asks,
    /// Whether the machine fails before the first side is killed.
    fails: bool,
    ends: Ends,
}

macro_rules! cases {
    ($($name:ident: $asks:expr, $fails:expr, $ends:expr;)*) => {
        mod from_mcm_to_nodewright {
            use super::{Asks, Case, Ends, Side, TestResult, hand_over};
            $(
                #[tokio::test(flavor = "multi_thread")]
                #[ignore = "takes minutes: make test-mcm"]
                async fn $name() -> TestResult {
                    let case = Case { asks: $asks, fails: $fails, ends: $ends };
                    Box::pin(hand_over(stringify!($name), case, [Side::Mcm, Side::Nodewright])).await
                }
            )*
        }

        mod from_nodewright_to_mcm {
            use super::{Asks, Case, Ends, Side, TestResult, hand_over};
            $(
                #[tokio::test(flavor = "multi_thread")]
                #[ignore = "takes minutes: make test-mcm"]
                async fn $name() -> TestResult {
                    let case = Case { asks: $asks, fails: $fails, ends: $ends };
                    Box::pin(hand_over(stringify!($name), case, [Side::Nodewright, Side::Mcm])).await
                }
            )*
        }
    };
}

cases! {
    now_while_it_works: Asks::Machine("now"), false, Ends::False;
    now_on_the_node_while_it_works: Asks::Node("now"), false, Ends::Removed;
    now_on_the_machine: Asks::Machine("now"), true, Ends::False;
    when_failed_on_the_node: Asks::Node("when-failed"), true, Ends::Removed;
    when_failed_and_recovered: Asks::Node("when-failed"), true, Ends::Recovered;
    now_until_its_time_is_over: Asks::Machine("now"), true, Ends::Expired;
    now_until_it_is_deleted: Asks::Node("now"), true, Ends::Deleted;
    by_the_set: Asks::Set, true, Ends::False;
}

macro_rules! half_swaps {
    ($($name:ident: $asks:expr, $ends:expr;)*) => {
        /// Our sets, with their machine controller.
        mod our_sets {
            use super::{Asks, Case, Ends, Side, TestResult, together};
            $(
                #[tokio::test(flavor = "multi_thread")]
                #[ignore = "takes minutes: make test-mcm"]
                async fn $name() -> TestResult {
                    let case = Case { asks: $asks, fails: true, ends: $ends };
                    Box::pin(together(stringify!($name), case, Side::Nodewright, Side::Mcm)).await
                }
            )*
        }

        /// Their sets, with our machine controller.
        mod their_sets {
            use super::{Asks, Case, Ends, Side, TestResult, together};
            $(
                #[tokio::test(flavor = "multi_thread")]
                #[ignore = "takes minutes: make test-mcm"]
                async fn $name() -> TestResult {
                    let case = Case { asks: $asks, fails: true, ends: $ends };
                    Box::pin(together(stringify!($name), case, Side::Mcm, Side::Nodewright)).await
                }
            )*
        }
    };
}

half_swaps! {
    together_by_the_set: Asks::Set, Ends::False;
    together_now: Asks::Machine("now"), Ends::False;
    together_when_failed: Asks::Node("when-failed"), Ends::Recovered;
    together_until_the_annotation_goes: Asks::Node("when-failed"), Ends::Removed;
}

async fn hand_over(name: &str, case: Case, [first, second]: [Side; 2]) -> TestResult {
    play(name, PREFIX, async |env| {
        objects::apply_classes(env).await?;
        let controllers = Controllers::start(env, first).await?;
        let machine = Box::pin(preserve(env, case, first)).await?;
        controllers.kill_9();
        let mut controllers = Controllers::start(env, second).await?;
        Box::pin(end(env, case, &machine, second)).await?;
        controllers.check()
    })
    .await
}

async fn together(name: &str, case: Case, sets: Side, machines: Side) -> TestResult {
    play(name, PREFIX, async |env| {
        objects::apply_classes(env).await?;
        let mut controllers = Controllers::start_halves(env, sets, machines).await?;
        let machine = Box::pin(preserve(env, case, machines)).await?;
        Box::pin(end(env, case, &machine, machines)).await?;
        controllers.check()
    })
    .await
}

/// Has one of two machines preserved, and waits until `side` has done what it does about that soon. Returns its name.
///
/// machine-controller-manager 0.62 does not drain a machine that it has preserved before it failed, and may look at one that has failed
/// only ten minutes later. Whatever is missing then, the other side has to do.
async fn preserve(env: &Environment, case: Case, side: Side) -> TestResult<String> {
    let mut pool = objects::pool(env, 2);
    if matches!(case.ends, Ends::Expired) {
        pool["spec"]["template"]["spec"]["machinePreserveTimeout"] = TIME.into();
    }
    env.apply(&pool).await?;
    let machines = env.wait_for_running_of_any_manager(2).await?;
    let (name, machine) = machines.into_iter().next().ok_or_else(|| Failure::new("no machine"))?;
    let node = machine.node_name().unwrap_or(&name).to_owned();
    let key = annotations::PRESERVE;
    match case.asks {
        Asks::Machine(value) => env.kubectl(&format!("annotate machine {name} {key}={value}")).await.map(drop)?,
        Asks::Node(value) => env.kubectl(&format!("annotate node {node} {key}={value}")).await.map(drop)?,
        Asks::Set => objects::patch_pool(env, &json!({"autoPreserveFailedMachineMax": 1})).await?,
    }
    if matches!(case.asks, Asks::Set) {
        let set = "get machinesets -o jsonpath={.items[*].spec.autoPreserveFailedMachineMax}";
        env.wait_for("the set to know", async || Ok(env.kubectl(set).await? == "1")).await?;
    }
    if case.fails {
        kubelet(env, &machine, &KubeletOrder::NotReady).await?;
    }
    env.wait_for("the machine to be preserved", async || {
        let is_shown = shown(env, &node).is_some_and(|shown| shown.is_drained == case.fails);
        Ok(if case.fails && side == Side::Mcm { has_failed(env, &name) } else { is_shown })
    })
    .await?;
    Ok(name)
}

/// The other side keeps the machine, and scales up; then the preservation ends.
async fn end(env: &Environment, case: Case, name: &str, side: Side) -> TestResult {
    let machine = env.machines().current().remove(name).ok_or_else(|| Failure::new("the machine is gone"))?;
    let node = machine.node_name().unwrap_or(name).to_owned();
    env.scale(POOL, 3).await?;
    let knows_taint = side.taints_preserved_nodes().await?;
    let others = if case.fails { 2 } else { 3 };
    env.wait_for_machines("the other machines to run", |all| {
        all.len() == 3 && all.values().filter(|machine| is_running(machine)).count() == others
    })
    .await?;
    let is_kept_now = async || Ok(is_kept(env, case, name).is_ok());
    env.wait_for("the machine to have an expiry time", is_kept_now).await?;
    let (key, on) = match case.asks {
        Asks::Node(_) => (annotations::PRESERVE, format!("node {node}")),
        _ => (annotations::PRESERVE, format!("machine {name}")),
    };
    match case.ends {
        Ends::False => env.kubectl(&format!("annotate {on} {key}=false --overwrite")).await.map(drop)?,
        Ends::Removed => env.kubectl(&format!("annotate {on} {key}-")).await.map(drop)?,
        Ends::Recovered => kubelet(env, &machine, &KubeletOrder::Ready).await?,
        Ends::Expired if side == Side::Mcm => look_again(env, name).await?,
        Ends::Expired => (),
        Ends::Deleted => env.kubectl(&format!("delete machine {name} --wait=false")).await.map(drop)?,
    }
    let is_replaced = case.fails && !matches!(case.ends, Ends::Recovered);
    if is_replaced {
        env.wait_for_machines("the failed machine to go", |all| !all.contains_key(name)).await?;
    } else {
        let is_unmarked = async || Ok(is_unmarked(env, &node, knows_taint) && expiry(env, name).is_none());
        env.wait_for("the marks to go", is_unmarked).await?;
    }
    env.wait_for_running_of_any_manager(3).await?;
    let nodes = env.nodes().current();
    ensure(nodes.values().all(|node| !is_closed(node, knows_taint)), || "a node is closed to pods".to_owned())?;
    let created = if is_replaced { 4 } else { 3 };
    exactness::check(env, 3, SMALL, created, created).await
}

/// machine-controller-manager looks at a failed machine every ten minutes, or when it changes: it does once its time is over.
async fn look_again(env: &Environment, name: &str) -> TestResult {
    let is_over = || expiry(env, name).is_none_or(|expiry| expiry < jiff::Timestamp::now());
    env.wait_for("its time to be over", async || Ok(is_over())).await?;
    env.kubectl(&format!("annotate machine {name} example.com/look=again")).await.map(drop)
}

async fn kubelet(env: &Environment, machine: &Machine, order: &KubeletOrder) -> TestResult {
    let vm = machine.spec.provider_id.rsplit('/').next().unwrap_or_default();
    env.cloud().kubelet(vm, order).await?;
    Ok(())
}

/// The machine is there, has an expiry time, and has failed if it was meant to.
fn is_kept(env: &Environment, case: Case, name: &str) -> TestResult {
    let machines = env.machines().current();
    let machine = machines.get(name).ok_or_else(|| Failure::new("the machine is gone"))?;
    let is_failed = *machine.phase() == MachinePhase::Failed;
    let is_kept = !machine.is_deleting() && expiry(env, name).is_some() && is_failed == case.fails;
    ensure(is_kept, || format!("the machine is not preserved: {:?}", machine.status))
}

fn has_failed(env: &Environment, name: &str) -> bool {
    env.machines().current().get(name).is_some_and(|machine| *machine.phase() == MachinePhase::Failed)
}

fn expiry(env: &Environment, name: &str) -> Option<jiff::Timestamp> {
    Some(env.machines().current().get(name)?.status.as_ref()?.current_status.preserve_expiry_time.as_ref()?.0)
}

fn shown(env: &Environment, node: &str) -> Option<PreservedNode> {
    let nodes = env.nodes().current();
    let all = nodes.get(node)?.status.as_ref()?.conditions.clone()?;
    PreservedNode::of(all.iter().find(|condition| condition.type_ == conditions::node::PRESERVED)?)
}

fn is_unmarked(env: &Environment, node: &str, knows_taint: bool) -> bool {
    let nodes = env.nodes().current();
    let has_annotation = |node: &Node| {
        node.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(annotations::SCALE_DOWN_DISABLED_BY_MCM))
    };
    shown(env, node).is_none()
        && nodes.get(node).is_some_and(|node| !is_closed(node, knows_taint) && !has_annotation(node))
}

/// Whether a node is cordoned, or has the taint, if the side that ends the preservation knows it: see
/// [`Side::taints_preserved_nodes`].
fn is_closed(node: &Node, knows_taint: bool) -> bool {
    let spec = node.spec.as_ref();
    let taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let is_tainted = knows_taint && taints.iter().any(|it| it.key == taints::PRESERVED);
    spec.and_then(|spec| spec.unschedulable) == Some(true) || is_tainted
}
