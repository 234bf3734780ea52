//! One of the two processes of each side: `nodewright mcm` with machine-controller, and `nodewright mc` with
//! machine-controller-manager, through a day's work.

use kube::ResourceExt;
use nodewright_e2e_scenarios::{Environment, Failure, TestResult, ensure};

use crate::{
    controllers::{Controllers, Side},
    environment::play,
    exactness,
    objects::{self, LARGE, POOL, SMALL},
};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-mcm"]
async fn our_sets_with_their_machines() -> TestResult {
    Box::pin(day("our-sets", Side::Nodewright, Side::Mcm)).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-mcm"]
async fn their_sets_with_our_machines() -> TestResult {
    Box::pin(day("our-machines", Side::Mcm, Side::Nodewright)).await
}

async fn day(name: &str, sets: Side, machines: Side) -> TestResult {
    play(name, name, async |env| work(env, sets, machines).await).await
}

async fn work(env: &Environment, sets: Side, machines: Side) -> TestResult {
    objects::apply_classes(env).await?;
    let mut controllers = Controllers::start_halves(env, sets, machines).await?;
    env.apply(&objects::pool(env, 2)).await?;
    let first = env.wait_for_running_of_any_manager(2).await?;
    exactness::check(env, 2, SMALL, 2, 2).await?;

    env.scale(POOL, 4).await?;
    env.wait_for_running_of_any_manager(4).await?;
    exactness::all_stay(env, &first)?;
    exactness::check(env, 4, SMALL, 4, 4).await?;
    env.scale(POOL, 2).await?;
    env.wait_for_running_of_any_manager(2).await?;
    exactness::check(env, 2, SMALL, 4, 4).await?;

    objects::roll(env, LARGE).await?;
    env.wait_for_machines("two machines of the new class", |all| {
        all.len() == 2 && all.values().all(|machine| machine.class_name() == LARGE)
    })
    .await?;
    let rolled = env.wait_for_running_of_any_manager(2).await?;
    exactness::check(env, 2, LARGE, 6, 6).await?;

    let dead = rolled.values().next().ok_or_else(|| Failure::new("no machine"))?;
    let vm = dead.spec.provider_id.rsplit('/').next().unwrap_or_default();
    env.cloud().kill(vm).await?;
    env.wait_for_machines("the end of the machine whose VM died", |all| !all.contains_key(&dead.name_any())).await?;
    let healed = env.wait_for_running_of_any_manager(2).await?;
    ensure(rolled.keys().filter(|name| healed.contains_key(*name)).count() == 1, || "both were replaced".to_owned())?;
    exactness::check(env, 2, LARGE, 7, 7).await?;

    objects::delete_pool(env).await?;
    env.wait_for_nothing().await?;
    controllers.check()?;
    exactness::check(env, 0, LARGE, 7, 7).await
}
