//! A provider that throttles one account.

use jiff::Timestamp;
use kube::ResourceExt;
use nodewright_api::Machine;
use nodewright_e2e_cloud::{Effect, EventKind, FaultOperation, FaultOrder};
use nodewright_e2e_scenarios::{Environment, TestResult, ensure, history::State, waits};
use serde_json::json;

/// How many machines have the account that is throttled.
const THROTTLED: usize = 20;
/// How many have another one.
const OTHERS: usize = 5;
/// How many calls follow a pause at once.
const AFTER_PAUSE: usize = 4;

/// Machines with the same credentials back off as one: by themselves, each would try again after 1 s, 2 s, and so on.
#[tokio::test(flavor = "multi_thread")]
async fn throttled_credentials_pause_as_one_and_others_go_on() -> TestResult {
    let env = Environment::start("throttled").await?;
    for pool in ["a", "b"] {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": pool}, "stringData": {
            "account": pool, "userData": "machine <<MACHINE_NAME>>",
        }});
        env.apply(&secret).await?;
        env.apply(&env.class(pool).secret(pool)).await?;
    }
    let prefix = |pool| format!("{}-", env.pool(pool, 0).name());
    let of = |pool, machines: &State<Machine>| -> Vec<_> {
        machines.values().filter(|machine| machine.name_any().starts_with(&prefix(pool))).cloned().collect()
    };
    let throttled = FaultOrder::always(FaultOperation::Create, Effect::Throttled);
    env.cloud().fault(&throttled.on_machine(format!("{}*", prefix("a")))).await?;
    env.apply(&env.pool("a", u32::try_from(THROTTLED)?).class("a")).await?;
    env.wait_for("a call to be throttled", async || Ok(!struck(&env).await?.is_empty())).await?;

    env.apply(&env.pool("b", u32::try_from(OTHERS)?).class("b")).await?;
    let machines = env
        .wait_for_machines("the others to run", |machines| {
            of("b", machines).iter().filter(|machine| waits::is_running(machine)).count() == OTHERS
        })
        .await?;
    assert!(of("a", &machines).iter().all(|machine| machine.provider_id().is_none()), "they are throttled");
    env.scale("b", 0).await?;
    env.wait_for_machines("the others to go", |machines| of("b", machines).is_empty()).await?;
    let struck = struck(&env).await?;
    let (Some(first), Some(last)) = (struck.first(), struck.last()) else { return Ok(()) };
    let lasted = u64::try_from(last.duration_since(*first).as_secs())?;
    // The pauses double: within this time there are so many, and one that began before.
    let pauses = usize::try_from((lasted + 1).ilog2())? + 2;
    println!("{} calls were throttled within {lasted} s", struck.len());
    ensure(struck.len() <= THROTTLED + pauses * AFTER_PAUSE, || {
        format!("{} calls were made within {lasted} s, although the account is throttled", struck.len())
    })?;

    env.cloud().clear_faults().await?;
    env.wait_for_running(THROTTLED).await?;
    env.end().await
}

/// When calls were throttled.
async fn struck(env: &Environment) -> TestResult<Vec<Timestamp>> {
    let events = env.cloud().events(0).await?;
    Ok(events.iter().filter(|event| event.kind == EventKind::FaultStruck).map(|event| event.at).collect())
}
