//! The manager and the daemons are killed again and again.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nodewright_api::machine_config::{CURRENT_CONFIG, DESIRED_CONFIG, DESIRED_DRAIN, DONE, LAST_APPLIED_DRAIN, STATE};
use nodewright_e2e_scenarios::{TestResult, ensure, node_agent::said};

use crate::fixture::{Fixture, boot_id, config, manager, motd};

const NODES: usize = 3;
const KILLS: usize = 10;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "part of make test-mcd"]
async fn a_manager_and_daemons_that_are_killed_at_ten_moments_lose_nothing() -> TestResult {
    let Some(mut fixture) = Fixture::start("kills", NODES).await? else { return Ok(()) };
    let before: BTreeSet<_> = fixture.env.nodes().current().values().map(|node| boot_id(node)).collect();
    let mark = fixture.env.nodes().mark();
    let new = fixture.retarget(&config("50-motd", &[motd("second")], &[])).await?;
    let (mut seen, mut kills) = (BTreeSet::new(), vec![]);
    while kills.len() < KILLS {
        let mut moment = None;
        fixture
            .env
            .wait_for("another moment", async || {
                let nodes = fixture.env.nodes().current();
                let found = nodes.iter().filter_map(|(name, node)| Some((name.clone(), stage(node, &new, &before)?)));
                moment = found.into_iter().find(|found| !seen.contains(found));
                Ok(moment.is_some())
            })
            .await?;
        let Some((node, stage)) = moment else { continue };
        seen.insert((node.clone(), stage));
        let victim = ["manager", "daemon"][kills.len() % 2];
        if victim == "manager" {
            fixture.manager.kill_9();
            fixture.manager = manager(&fixture.env, &format!("manager-{}", kills.len())).await?;
        } else {
            fixture.kill_daemon(&node).await?;
        }
        kills.push(format!("{victim} at {stage}"));
    }
    println!("killed: {}", kills.join(", "));
    fixture.wait_for_all().await?;
    fixture.check_budget(mark)?;
    for (name, node) in fixture.env.nodes().current() {
        ensure(said(&node, CURRENT_CONFIG) == new && said(&node, STATE) == DONE, || {
            format!("{:?}", node.annotations())
        })?;
        assert_eq!(fixture.shell(&name, "cat /etc/motd").await?, "second\n");
        assert_eq!(fixture.boots(&name, mark)?, 1, "{name}");
    }
    fixture.end().await
}

/// How far a node is on its way; `None` before it begins.
fn stage(node: &Node, new: &str, before: &BTreeSet<String>) -> Option<&'static str> {
    if said(node, DESIRED_CONFIG) != new {
        return None;
    }
    let is_asked = |verb: &str| said(node, DESIRED_DRAIN) == format!("{verb}-{new}");
    let is_answered = said(node, DESIRED_DRAIN) == said(node, LAST_APPLIED_DRAIN);
    Some(match () {
        () if said(node, CURRENT_CONFIG) == new => "its end",
        () if is_asked("uncordon") && is_answered => "the uncordon",
        () if is_asked("uncordon") => "the request to uncordon",
        () if !before.contains(&boot_id(node)) => "its return",
        () if is_asked("drain") && is_answered => "the end of the drain",
        () if is_asked("drain") => "the request to drain",
        () if said(node, STATE) != DONE => "its work",
        () => "the target",
    })
}
