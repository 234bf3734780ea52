//! Both have the same metrics: families, types, labels, and values after the same work.
//!
//! Each side does the same [`work`], machine-controller-manager first. The cloud is slow by [`DELAY`]. What is compared:
//!
//! | module | what |
//! |---|---|
//! | [`families`] | the families, their types and the names of their labels, the queues, and what #1104 has brought |
//! | [`objects`] | at the hand-over, all values of what objects are |
//! | [`calls`] | how often the driver was called, which calls failed, and how long they took |
//!
//! Each module has a table of what differs, with the reason. What it does not name must be equal.

#![expect(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "counts are small whole numbers"
)]

mod calls;
mod families;
mod objects;
mod text;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use nodewright_api::Machine;
use nodewright_e2e_cloud::{Code, Effect, FaultOperation, FaultOrder, KubeletOrder, Stats};
use nodewright_e2e_scenarios::{Environment, Failure, TestResult};
use serde_json::json;

use self::text::Family;
use crate::{
    controllers::{Controllers, Side, minor_of_mcm},
    environment::play,
    objects::{LARGE, SMALL, apply_classes, patch_pool, pool, roll},
};

/// How slow the cloud is. A call of the driver makes one request at least, and takes longer.
const DELAY: Duration = Duration::from_millis(1100);
/// The machines of the pool.
const MACHINES: usize = 3;
/// How many VMs the work creates: one for each machine of the roll, one for the sick machine, and one for that which never joins.
const CREATED: u64 = MACHINES as u64 + 2;
/// A machine that has not joined after this time fails.
const CREATION_TIMEOUT: &str = "60s";
/// How the cloud refuses a creation and a deletion: both sides make these calls again after seconds.
const REFUSALS: [(FaultOperation, Code); 2] =
    [(FaultOperation::Create, Code::Aborted), (FaultOperation::Delete, Code::Unavailable)];

/// Families of #1104, and the least value of each: nothing is drained, and all else waits for the cloud.
const DURATIONS: [(&str, f64); 4] = [
    ("mcm_machine_create_duration_seconds", 1.0),
    ("mcm_machine_join_duration_seconds", 1.0),
    ("mcm_machine_drain_duration_seconds", 0.0),
    ("mcm_machine_delete_duration_seconds", 1.0),
];

/// machine-controller-manager's families.
type Families = BTreeMap<String, Family>;

/// What there was before and after the work of one side.
struct Work {
    before: Families,
    /// The same as `after`, scraped earlier.
    earlier: Families,
    after: Families,
    cloud: [Stats; 2],
    lasted: Duration,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-mcm"]
async fn metrics_keep_their_names_labels_and_values_at_a_takeover() -> TestResult {
    play("metrics", "metrics", async |env| Box::pin(compare(env)).await).await
}

async fn compare(env: &Environment) -> TestResult {
    let slow = Effect::Latency { seconds: DELAY.as_secs_f64() };
    env.cloud().fault(&FaultOrder::always(FaultOperation::Any, slow)).await?;
    apply_classes(env).await?;
    let controllers = Controllers::start(env, Side::Mcm).await?;
    let mut pool = pool(env, u32::try_from(MACHINES)?);
    pool["spec"]["template"]["spec"]["creationTimeout"] = json!(CREATION_TIMEOUT);
    env.apply(&pool).await?;
    env.wait_for_running_of_any_manager(MACHINES).await?;
    patch_pool(env, &json!({"revisionHistoryLimit": 4, "progressDeadlineSeconds": 900})).await?;
    let theirs = work(env, &controllers, LARGE).await?;
    controllers.kill_9();
    let mut controllers = Controllers::start(env, Side::Nodewright).await?;
    objects::compare(&theirs.after, &at_rest(env, &controllers).await?)?;
    let ours = work(env, &controllers, SMALL).await?;
    controllers.check()?;
    families::compare(&theirs.after, &ours.after)?;
    for side in [&theirs, &ours] {
        families::compare_queues(&side.earlier, &side.after)?;
        calls::is_of_one_provider(&side.after)?;
    }
    calls::compare(&theirs, &ours)?;
    if minor_of_mcm().await? > 62 {
        families::compare_durations(&theirs, &ours)?;
    }
    Ok(())
}

/// Has a side do the work, from rest to rest: it rolls the pool to another class, while the cloud refuses one creation and one
/// deletion, and replaces a sick machine. The first machine for that never joins.
async fn work(env: &Environment, controllers: &Controllers, class: &str) -> TestResult<Work> {
    let (before, cloud, begun) = (at_rest(env, controllers).await?, env.cloud().stats().await?, Instant::now());
    for (operation, code) in REFUSALS {
        let refusal = Effect::Error { code, message: None, applied: false };
        env.cloud().fault(&FaultOrder::always(operation, refusal).times(1)).await?;
    }
    roll(env, class).await?;
    let sick = all_of(env, "the end of the roll", |machine| machine.class_name() == class).await?;
    let sick = sick.into_iter().next().ok_or_else(|| Failure::new("there is no machine"))?;
    let vm = sick.spec.provider_id.rsplit('/').next().unwrap_or_default();
    env.cloud().fault(&FaultOrder::always(FaultOperation::Create, Effect::NeverJoins).times(1)).await?;
    env.cloud().kubelet(vm, &KubeletOrder::NotReady).await?;
    let is_other = |machine: &Machine| machine.metadata.uid != sick.metadata.uid;
    all_of(env, "another machine for the sick one", is_other).await?;
    let earlier = at_rest(env, controllers).await?;
    let cloud = [cloud, env.cloud().stats().await?];
    let mut work = Work { before, after: earlier.clone(), earlier, cloud, lasted: begun.elapsed() };
    // machine-controller-manager writes its gauges of objects at each scrape, perhaps after they were read: the next scrape has them.
    // A driver of Nodewright is asked for its counts every few seconds.
    env.wait_for("the counts of the requests to the cloud", async || {
        work.after = at_rest(env, controllers).await?;
        Ok(calls::are_requests_complete(&work))
    })
    .await?;
    Ok(Work { lasted: begun.elapsed(), ..work })
}

/// Waits until there are these machines alone, and all run.
async fn all_of(env: &Environment, what: &str, is_one: impl Fn(&Machine) -> bool) -> TestResult<Vec<Machine>> {
    let all = |count: usize, mut all: Box<dyn Iterator<Item = &Machine> + '_>| count == MACHINES && all.all(&is_one);
    env.wait_for_machines(what, |machines| all(machines.len(), Box::new(machines.values().map(AsRef::as_ref)))).await?;
    let machines = env.wait_for_running_of_any_manager(MACHINES).await?;
    Ok(machines.values().map(|machine| machine.as_ref().clone()).collect())
}

/// The metrics of a pool that has what was asked for.
async fn at_rest(env: &Environment, controllers: &Controllers) -> TestResult<Families> {
    let mut found = Families::new();
    env.wait_for("metrics of a pool at rest", async || {
        found = text::families(&controllers.metrics().await?, "mcm_");
        let is_complete = |name: &str| found.get(name).is_some_and(|family| family.sum("", &[]) == MACHINES as f64);
        let names = ["items_total", "deployment_status_updated_replicas", "deployment_status_available_replicas"];
        // A process of Nodewright is frozen until the API server has answered it for the first time.
        let is_frozen = found.get("mcm_machine_controller_frozen").is_none_or(|family| family.sum("", &[]) > 0.0);
        Ok(!is_frozen && names.iter().all(|name| is_complete(&format!("mcm_machine_{name}"))))
    })
    .await?;
    Ok(found)
}
