//! The suite of [`nodewright_e2e::conformance`], run against a real API server and against the one in process.

use std::env;

use nodewright_e2e::{
    conformance::{Case, Probe, Transcript, cases},
    harness::{Cluster, Failure, TestResult, cluster::crds, skip_without_plane},
    plane::{Component, USER_AGENT, parse_manifest},
};
use nodewright_runtime::testing::api_server::ApiServer;
use serde_json::Value;

/// Only cases with this in their names.
const CASES_VARIABLE: &str = "NODEWRIGHT_CONFORMANCE_CASES";
/// What is promised.
const BEHAVIOURS: usize = 150;

#[tokio::test]
async fn the_server_in_process_answers_like_the_real_one() -> TestResult {
    if skip_without_plane("conformance", "its controllers would interfere") {
        return Ok(());
    }
    let cluster = Cluster::for_conformance().await?;
    if let Some(plane) = cluster.plane() {
        plane.stop(Component::ControllerManager)?;
    }
    let chosen = env::var(CASES_VARIABLE).unwrap_or_default();
    let definitions = definitions().await?;
    let (mut behaviours, mut report) = (0, String::new());
    for case in cases().into_iter().filter(|case| case.name.contains(&chosen)) {
        let real = run(case, cluster.client().await?, None).await;
        let difference = match (real, in_process(case, &definitions)) {
            (Ok(real), Ok(ours)) => {
                behaviours += real.len();
                ours.difference(&real)
            }
            (Err(failure), _) | (_, Err(failure)) => Some(format!("  {failure}\n")),
        };
        if let Some(difference) = difference {
            report += &format!("{}:\n{difference}", case.name);
        }
    }
    println!("{behaviours} behaviours compared");
    if !report.is_empty() {
        return Err(Failure::new(format!("the API servers differ\n{report}")));
    }
    if chosen.is_empty() && behaviours < BEHAVIOURS {
        return Err(Failure::new(format!("only {behaviours} behaviours were compared, not {BEHAVIOURS}")));
    }
    Ok(())
}

async fn run(case: Case, client: kube::Client, user_agent: Option<&'static str>) -> TestResult<Transcript> {
    let namespace = format!("conformance-{}", case.name).replace('_', "-");
    let mut probe = Probe::start(client, user_agent, &namespace).await?;
    match (case.run)(&mut probe).await {
        Ok(()) => Ok(probe.finish()),
        Err(failure) => Err(Failure::new(format!("{}: {failure}", case.name))),
    }
}

/// Alone on a paused clock: as simulations use it.
fn in_process(case: Case, definitions: &[Value]) -> TestResult<Transcript> {
    let definitions = definitions.to_vec();
    let work = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
        let server = ApiServer::new();
        server.enforce_namespaces();
        definitions.iter().for_each(|definition| server.declare(definition));
        let transcript = async { run(case, server.client(), Some(USER_AGENT)).await };
        runtime.block_on(transcript).map_err(|failure| failure.and("in process"))
    };
    std::thread::spawn(work).join().map_err(|_| Failure::new(format!("{}: panicked in process", case.name)))?
}

/// The CRDs that the real server has.
async fn definitions() -> TestResult<Vec<Value>> {
    let mut definitions = vec![];
    for file in std::fs::read_dir(crds().await?)? {
        let text = std::fs::read_to_string(file?.path())?;
        definitions.extend(parse_manifest(&text, "config/crd")?);
    }
    Ok(definitions.into_iter().map(serde_json::to_value).collect::<Result<_, _>>()?)
}
