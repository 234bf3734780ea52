//! A file that somebody has changed by hand.

use nodewright_api::{
    conditions::machine_config_pool as conditions,
    machine_config::{CURRENT_CONFIG, DEGRADED, DESIRED_CONFIG, STATE},
};
use nodewright_e2e_scenarios::{
    TestResult,
    node_agent::said,
    worker_pool::{is, message, pool, target},
};

use crate::fixture::{FIRST, Fixture, config, motd};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "part of make test-mcd"]
async fn a_file_changed_by_hand_degrades_its_node_and_the_pool_until_it_is_undone() -> TestResult {
    let Some(fixture) = Fixture::start("drift", 2).await? else { return Ok(()) };
    let env = &fixture.env;
    let first = target(env).await?;
    let [changed, other] = <[String; 2]>::try_from(fixture.names()).unwrap_or_default();
    let is_shown = async || {
        let status = pool(env).await?.status.unwrap_or_default();
        let text = message(env, conditions::NODE_DEGRADED).await?;
        Ok(is(&status, conditions::NODE_DEGRADED)
            && is(&status, conditions::DEGRADED)
            && status.degraded_machine_count == 1
            && text.contains(&changed)
            && text.contains("/etc/motd"))
    };
    fixture.shell(&changed, "echo by hand >/etc/motd").await?;
    env.wait_for("the pool to show the change", is_shown).await?;
    fixture.shell(&changed, &format!("echo {FIRST} >/etc/motd")).await?;
    fixture.wait_for_all().await?;
    assert_eq!(fixture.boots(&changed, 0)?, 1, "it has not rebooted");

    // A node that was changed does not get to another target, and no other one does meanwhile.
    fixture.shell(&changed, "echo by hand >/etc/motd").await?;
    env.wait_for("the pool to show the change", is_shown).await?;
    let mark = env.nodes().mark();
    let second = fixture.retarget(&config("50-motd", &[motd("second")], &[])).await?;
    env.wait_for("the changed node to be given the target", async || {
        Ok(env.nodes().current().get(&changed).is_some_and(|node| said(node, DESIRED_CONFIG) == second))
    })
    .await?;
    env.wait_for("the pool to show what the daemon says of it", is_shown).await?;
    let current = env.nodes().current();
    assert_eq!(said(&current[&changed], STATE), DEGRADED);
    assert_eq!(said(&current[&changed], CURRENT_CONFIG), first);
    assert_eq!(said(&current[&other], DESIRED_CONFIG), first);
    fixture.shell(&changed, &format!("echo {FIRST} >/etc/motd")).await?;
    fixture.wait_for_all().await?;
    fixture.check_budget(mark)?;
    for node in fixture.names() {
        assert_eq!(fixture.shell(&node, "cat /etc/motd").await?, "second\n");
    }
    fixture.end().await
}
