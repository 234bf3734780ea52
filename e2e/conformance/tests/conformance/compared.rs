//! The suite of [`nodewright_e2e_conformance`], run against a real API server and against the one in process.

use std::{env, str::FromStr, sync::Arc};

use futures::{StreamExt, future::BoxFuture, stream};
use nodewright_e2e_conformance::{Case, Probe, Transcript, cases, controller_cases, random};
use nodewright_e2e_lab::control_plane::{
    ControlPlaneOptions, USER_AGENT, parse_manifest,
    testing::{Cluster, Failure, TestResult, crds, skip_on_external_cluster},
};
use nodewright_runtime::leadership::tokio_clock;
use nodewright_testing::api_server::{ApiServer, Controllers};
use serde_json::Value;
use tokio::sync::OnceCell;

/// The start time of the in-process server.
const START: &str = "2026-11-20T10:00:00Z";
/// Restricts the run to cases whose names contain this.
const CASES_VARIABLE: &str = "NODEWRIGHT_CONFORMANCE_CASES";
/// The number of requests in a random sequence; the default is [`STEPS`].
const STEPS_VARIABLE: &str = "NODEWRIGHT_CONFORMANCE_STEPS";
/// The seed of the first random sequence; the default is 1.
const SEED_VARIABLE: &str = "NODEWRIGHT_CONFORMANCE_SEED";

/// The promised minimum numbers.
const BEHAVIOURS: usize = 150;
const CONTROLLED: usize = 30;
const STEPS: usize = 150;
const SEQUENCES: u64 = 3;
/// The number of attempts to shorten a sequence that shows a difference.
const TRIES: usize = 200;
/// The number of concurrent cases: most of their time they wait.
const AT_ONCE: usize = 4;

/// A real API server without controllers, and without admission plugins that change objects.
async fn without_controllers() -> TestResult<Arc<Cluster>> {
    static WITHOUT_CONTROLLERS: OnceCell<Arc<Cluster>> = OnceCell::const_new();
    let options = ControlPlaneOptions { controller_manager: false, ..options() };
    Cluster::start_shared(&WITHOUT_CONTROLLERS, options, true).await
}

/// A real API server with the compared controllers.
async fn with_controllers() -> TestResult<Arc<Cluster>> {
    static WITH_CONTROLLERS: OnceCell<Arc<Cluster>> = OnceCell::const_new();
    let controllers = ["garbage-collector-controller", "namespace-controller", "disruption-controller"];
    let options = ControlPlaneOptions { controllers: controllers.map(str::to_owned).into(), ..options() };
    Cluster::start_shared(&WITH_CONTROLLERS, options, true).await
}

fn options() -> ControlPlaneOptions {
    let plugins = "--disable-admission-plugins=DefaultTolerationSeconds,Priority,ServiceAccount,TaintNodesByCondition";
    ControlPlaneOptions {
        scheduler: false,
        api_server_flags: vec![plugins.to_owned()],
        ..ControlPlaneOptions::default()
    }
}

type Work = Arc<dyn for<'a> Fn(&'a mut Probe) -> BoxFuture<'a, TestResult> + Send + Sync>;

/// The two servers.
#[derive(Clone)]
struct Servers {
    real: Arc<Cluster>,
    definitions: Arc<Vec<Value>>,
    controllers: bool,
}

#[tokio::test]
async fn the_server_in_process_answers_like_the_real_one() -> TestResult {
    if skip_on_external_cluster("conformance", "its controllers would interfere") {
        return Ok(());
    }
    compare(&Servers::start().await?, cases(), BEHAVIOURS).await
}

#[tokio::test]
async fn the_controllers_in_process_act_like_the_real_ones() -> TestResult {
    if skip_on_external_cluster("conformance", "more controllers would interfere") {
        return Ok(());
    }
    let servers = Servers { real: with_controllers().await?, controllers: true, ..Servers::start().await? };
    compare(&servers, controller_cases(), CONTROLLED).await
}

/// Runs all cases on both servers.
async fn compare(servers: &Servers, cases: Vec<Case>, promised: usize) -> TestResult {
    let chosen = env::var(CASES_VARIABLE).unwrap_or_default();
    let cases = cases.into_iter().filter(|case| case.name.contains(&chosen));
    let compared = stream::iter(cases).map(async |case| (case.name, servers.compare(case.name, of_case(case)).await));
    let compared: Vec<_> = compared.buffered(AT_ONCE).collect().await;
    let (mut behaviours, mut report) = (0, vec![]);
    for (name, result) in compared {
        let difference = match result {
            Ok((count, difference)) => {
                behaviours += count;
                difference
            }
            Err(failure) => Some(format!("  {failure}\n")),
        };
        if let Some(difference) = difference {
            report.push(format!("{name}:\n{difference}"));
        }
    }
    println!("{behaviours} behaviours compared");
    if !report.is_empty() {
        return Err(Failure::new(format!("the API servers differ\n{}", report.concat())));
    }
    if chosen.is_empty() && behaviours < promised {
        return Err(Failure::new(format!("only {behaviours} behaviours were compared, not {promised}")));
    }
    Ok(())
}

#[tokio::test]
async fn random_requests_are_answered_alike() -> TestResult {
    if skip_on_external_cluster("conformance", "its controllers would interfere") {
        return Ok(());
    }
    let servers = Servers::start().await?;
    let (first, count) = (number(SEED_VARIABLE).unwrap_or(1), number(STEPS_VARIABLE).unwrap_or(STEPS));
    let mut behaviours = 0;
    for seed in first..first + SEQUENCES {
        let steps = random::steps(seed, count);
        let (answers, difference) = servers.compare(&format!("random-{seed}"), of_steps(steps.clone())).await?;
        behaviours += answers;
        if difference.is_some() {
            return Err(servers.report(seed, steps).await?);
        }
    }
    println!("{behaviours} answers to random requests compared");
    Ok(())
}

impl Servers {
    async fn start() -> TestResult<Self> {
        Ok(Self { real: without_controllers().await?, definitions: Arc::new(definitions().await?), controllers: false })
    }

    /// Runs `work` on both servers. Returns the number of answers, and the difference.
    async fn compare(&self, name: &str, work: Work) -> TestResult<(usize, Option<String>)> {
        let namespace = format!("conformance-{name}").replace('_', "-");
        let real = run(&work, self.real.client().await?, None, &namespace).await?;
        let servers = self.clone();
        let ours = tokio::task::spawn_blocking(move || servers.in_process(&work, &namespace)).await?;
        let ours = ours.map_err(|failure| failure.and("in process"))?;
        Ok((real.len(), ours.difference(&real)))
    }

    /// Alone on a paused clock, as in simulations.
    fn in_process(&self, work: &Work, namespace: &str) -> TestResult<Transcript> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
        runtime.block_on(async {
            let clock = tokio_clock(START.parse()?);
            let server = ApiServer::with_time(move || clock.wall());
            server.enforce_namespaces();
            self.definitions.iter().for_each(|definition| server.declare(definition));
            if self.controllers {
                server.run_controllers(Controllers::all());
            }
            run(work, server.client(), Some(USER_AGENT), namespace).await
        })
    }

    /// A failure with the shortest sequence found.
    async fn report(&self, seed: u64, steps: Vec<random::Step>) -> TestResult<Failure> {
        let mut number = 0;
        let differs = async |part: &[random::Step]| {
            number += 1;
            let compared = self.compare(&format!("random-{seed}-{number}"), of_steps(part.to_vec())).await?;
            Ok(compared.1.is_some())
        };
        let shortest = random::shorten(steps, TRIES, differs).await?;
        let (_, difference) = self.compare(&format!("random-{seed}-last"), of_steps(shortest.clone())).await?;
        let steps: Vec<_> = shortest.iter().map(|step| format!("  {step:?}")).collect();
        Ok(Failure::new(format!(
            "the API servers differ with seed {seed}, at the shortest after\n{}\n{}",
            steps.join("\n"),
            difference.unwrap_or_default()
        )))
    }
}

fn of_case(case: Case) -> Work {
    Arc::new(case.run)
}

fn of_steps(steps: Vec<random::Step>) -> Work {
    Arc::new(move |probe| {
        let steps = steps.clone();
        Box::pin(async move { random::run(probe, &steps).await })
    })
}

async fn run(
    work: &Work,
    client: kube::Client,
    user_agent: Option<&'static str>,
    namespace: &str,
) -> TestResult<Transcript> {
    let mut probe = Probe::start(client, user_agent, namespace).await?;
    work(&mut probe).await?;
    Ok(probe.finish())
}

/// The CRDs of the real server.
async fn definitions() -> TestResult<Vec<Value>> {
    let mut definitions = vec![];
    for file in std::fs::read_dir(crds().await?)? {
        let text = std::fs::read_to_string(file?.path())?;
        definitions.extend(parse_manifest(&text, "config/crd")?);
    }
    Ok(definitions.into_iter().map(serde_json::to_value).collect::<Result<_, _>>()?)
}

fn number<T: FromStr>(variable: &str) -> Option<T> {
    env::var(variable).ok()?.parse().ok()
}
