//! Changes get to all nodes, one node at a time.

use std::time::Duration;

use nodewright_e2e_scenarios::TestResult;

use crate::fixture::{Fixture, config, motd};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "part of make test-mcd"]
async fn hold() -> TestResult {
    let Some(fixture) = Fixture::start("hold", 1).await? else { return Ok(()) };
    println!("{}", fixture.env.cluster().kubeconfig().display());
    while !std::path::Path::new("/tmp/mcd-lab/go").exists() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let mark = fixture.env.nodes().mark();
    fixture.retarget(&config("50-motd", &[motd("second")], &[])).await?;
    fixture.wait_for_all().await?;
    fixture.check_budget(mark)?;
    fixture.end().await
}
