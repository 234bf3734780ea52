//! Bootstrap tokens.

use kube::ResourceExt;
use nodewright_e2e_cloud::{Effect, FaultOperation, FaultOrder, KubeletOrder};
use nodewright_e2e_scenarios::{TestResult, ensure, tokens::tokens};

use crate::{finish, real_nodes};

/// A VM whose kubelet does not start in time: its machine is replaced, its token expires and is removed, and the kubelet that
/// starts too late does not get in with it.
///
/// Differs from the default: the creation timeout is 20 s, not 20 m, which is the lifetime of the token.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "part of make test-real-nodes"]
async fn a_token_that_nobody_used_expires_and_goes() -> TestResult {
    let Some(builder) = real_nodes("token") else { return Ok(()) };
    let env = builder.start().await?;
    env.cloud().fault(&FaultOrder::always(FaultOperation::Create, Effect::NeverJoins).times(1)).await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1).machine("creationTimeout", "20s").machine("drainTimeout", "10s")).await?;
    env.wait_for("the mute VM and its token", async || {
        Ok(tokens(&env).await?.len() == 1 && env.vms().await?.len() == 1)
    })
    .await?;
    let (mute, token) = (env.vms().await?.swap_remove(0), tokens(&env).await?.swap_remove(0));
    env.wait_for("the end of the token", async || Ok(!tokens(&env).await?.contains(&token))).await?;
    // The VM may be gone already.
    let _ = env.cloud().kubelet(&mute.id, &KubeletOrder::Revive).await;
    env.wait_for_running(1).await?;
    let nodes = env.nodes().changes()?;
    ensure(!nodes.iter().any(|change| change.object.name_any() == mute.name), || "the late VM got in".to_owned())?;
    env.wait_for("the end of all tokens", async || Ok(tokens(&env).await?.is_empty())).await?;
    finish(env).await
}
