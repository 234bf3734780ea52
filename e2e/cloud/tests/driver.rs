//! The driver `simulated` keeps the contract of drivers with the fake cloud; and what only that cloud can do to it.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::{collections::BTreeSet, error::Error, sync::Arc, time::Duration};

use futures::{FutureExt, TryFutureExt};
use nodewright_api::{Code, RawJson};
use nodewright_driver::{Class, Driver, DriverError, MachineRequest};
use nodewright_driver_contract::{self as contract, Fixture, Hook, InvalidSpec, Outage};
use nodewright_driver_simulated::{Options, SimulatedDriver};
use nodewright_e2e_cloud::{
    self as cloud, ClientError, CloudClient, CreateVm, Effect, FaultOperation, FaultOrder, Server, Settings,
};
use nodewright_runtime::leadership::Leadership;
use serde_json::json;

type TestResult<T = ()> = Result<T, Box<dyn Error>>;

const SOON: Duration = Duration::from_secs(20);
/// The driver's call timeout in these tests.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the cloud may hide a VM in these tests, and how long it does.
const CONSISTENCY: Duration = Duration::from_millis(500);
const HIDDEN_SECONDS: f64 = 0.3;

struct World {
    cloud: CloudClient,
    driver: SimulatedDriver,
    _server: Server,
}

impl World {
    async fn new() -> TestResult<Self> {
        let settings =
            Settings { boot_seconds: 0.0, delete_seconds: 0.1, create_latency_seconds: 0.0, ..Settings::default() };
        let options = cloud::Options { listen: ([127, 0, 0, 1], 0).into(), state: None, settings, kubelets: None };
        let server = Server::start(options).await?;
        Ok(Self { cloud: CloudClient::new(server.url()), driver: driver(&server.url()), _server: server })
    }

    async fn fault(&self, operation: FaultOperation, effect: Effect) -> TestResult {
        self.cloud.fault(&FaultOrder::always(operation, effect).times(1)).await?;
        Ok(())
    }

    async fn names(&self) -> TestResult<Vec<String>> {
        Ok(self.cloud.vms().await?.into_iter().map(|vm| vm.name).collect())
    }
}

fn driver(url: &str) -> SimulatedDriver {
    let options = Options { call_timeout: CALL_TIMEOUT, consistency: CONSISTENCY, ..Options::new(url) };
    SimulatedDriver::new(&options, &Leadership::default()).unwrap()
}

fn class(cluster: &str) -> Class {
    contract::class(&json!({ "cluster": cluster }))
}

fn machine(name: &str) -> MachineRequest {
    contract::machine(name, class("ours"))
}

fn code<T>(result: Result<T, DriverError>) -> Option<Code> {
    result.err().map(|error| error.code)
}

/// The answer of a hook.
fn done<'a, T: 'a>(asked: impl Future<Output = Result<T, ClientError>> + Send + 'a) -> Hook<'a, T> {
    asked.map_ok(Some).map_err(Into::into).boxed()
}

fn id_of(provider_id: &str) -> &str {
    provider_id.trim_start_matches("simulated:///")
}

impl Fixture for World {
    fn driver(&self) -> Arc<dyn Driver> {
        Arc::new(driver(self.cloud.url()))
    }

    fn class(&self, cluster: &str) -> Class {
        class(cluster)
    }

    fn provider_id_prefix(&self) -> &'static str {
        "simulated:///"
    }

    fn invalid_specs(&self, cluster: &str) -> Vec<InvalidSpec> {
        let specs = [
            ("size", json!({ "cluster": cluster, "size": contract::SECRET })),
            ("labels.a", json!({ "cluster": cluster, "labels": { "a": [contract::SECRET] } })),
            ("password", json!({ "cluster": cluster, "password": contract::SECRET })),
            ("cluster", json!({ "cluster": "", "size": "small" })),
        ];
        specs.map(|(path, spec)| InvalidSpec { path, spec: RawJson::from(&spec) }).into()
    }

    fn list_size(&self) -> usize {
        1_100
    }

    fn vms(&self) -> Hook<'_, BTreeSet<String>> {
        done(self.cloud.vms().map_ok(|vms| vms.into_iter().map(|vm| vm.provider_id).collect()))
    }

    fn stop_vm(&self, provider_id: &str) -> Hook<'_, ()> {
        let (cloud, id) = (self.cloud.clone(), id_of(provider_id).to_owned());
        done(async move { cloud.kill(&id).await.map(drop) })
    }

    fn untagged_vm(&self) -> Hook<'_, String> {
        done(async {
            let order = CreateVm { name: "untagged".to_owned(), token: "untagged".to_owned(), ..CreateVm::default() };
            Ok(self.cloud.create(&order).await?.provider_id)
        })
    }

    fn hide_next_vm(&self) -> Hook<'_, ()> {
        let hidden = FaultOrder::always(FaultOperation::Create, Effect::Invisible { seconds: HIDDEN_SECONDS }).times(1);
        done(async move { self.cloud.fault(&hidden).await.map(drop) })
    }

    fn begin_outage(&self, outage: Outage) -> Hook<'_, ()> {
        let error = |code| Effect::Error { code, message: None, applied: false };
        let (operation, effect) = match outage {
            Outage::Silent => (FaultOperation::Any, Effect::Hang { applied: false }),
            Outage::Failing => (FaultOperation::Any, error(cloud::Code::Internal)),
            Outage::Full => (FaultOperation::Create, error(cloud::Code::ResourceExhausted)),
        };
        let order = FaultOrder::always(operation, effect);
        done(async move { self.cloud.fault(&order).await.map(drop) })
    }

    fn end_outage(&self) -> Hook<'_, ()> {
        done(self.cloud.clear_faults())
    }
}

#[tokio::test]
async fn the_driver_keeps_the_contract() -> TestResult {
    let report = contract::run(&World::new().await?).await;
    report.assert_kept();
    assert_eq!(report.skipped(), ["rejected_credentials"], "the cloud knows no credentials");
    Ok(())
}

#[tokio::test]
async fn a_deleted_vm_has_no_second_life() -> TestResult {
    let world = World::new().await?;
    world.driver.create(machine("m")).await?;
    world.driver.delete(machine("m")).await?;
    assert_eq!(code(world.driver.create(machine("m")).await), Some(Code::FailedPrecondition), "it is being deleted");
    world.cloud.wait_for_count(0, SOON).await?;
    assert_eq!(code(world.driver.create(machine("m")).await), Some(Code::FailedPrecondition), "it is gone");
    Ok(())
}

#[tokio::test]
async fn a_call_whose_answer_is_lost_is_made_again_without_harm() -> TestResult {
    for effect in [
        Effect::Hang { applied: true },
        Effect::Hang { applied: false },
        Effect::Cut { applied: true },
        Effect::Cut { applied: false },
        Effect::Garbage,
        Effect::AnswerLate { seconds: 5.0 },
        Effect::Error { code: cloud::Code::Unavailable, message: None, applied: true },
        Effect::ApplyLate { seconds: 0.3, code: cloud::Code::DeadlineExceeded },
    ] {
        let world = World::new().await?;
        world.fault(FaultOperation::Create, effect.clone()).await?;
        let error = world.driver.create(machine("m")).await.err().ok_or("no error")?;
        assert!(error.is_passing(), "{effect:?}: {error}");
        world.driver.create(machine("m")).await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(world.names().await?, ["m"], "{effect:?}");

        world.fault(FaultOperation::Delete, effect.clone()).await?;
        let error = world.driver.delete(machine("m")).await.err().ok_or("no error")?;
        assert!(error.is_passing(), "{effect:?}: {error}");
        world.driver.delete(machine("m")).await?;
        world.cloud.wait_for_count(0, SOON).await?;
        let stats = world.cloud.stats().await?;
        assert_eq!((stats.created, stats.deleted), (1, 1), "{effect:?}");
    }
    Ok(())
}

#[tokio::test]
async fn an_exhausted_quota_has_its_code() -> TestResult {
    let world = World::new().await?;
    world.cloud.set_quota(Some(0)).await?;
    let error = world.driver.create(machine("m")).await.err().ok_or("no error")?;
    assert_eq!(error.code, Code::ResourceExhausted, "{error:?}");
    Ok(())
}

#[tokio::test]
async fn a_list_without_end_is_an_error() -> TestResult {
    let world = World::new().await?;
    world.driver.create(machine("m")).await?;
    world.cloud.fault(&FaultOrder::always(FaultOperation::List, Effect::ListEndless)).await?;
    assert_eq!(code(world.driver.list(class("ours")).await), Some(Code::Internal));
    Ok(())
}

#[tokio::test]
async fn a_throttled_call_differs_from_an_exhausted_quota() -> TestResult {
    let world = World::new().await?;
    world.fault(FaultOperation::Create, Effect::Throttled).await?;
    let error = world.driver.create(machine("m")).await.err().ok_or("no error")?;
    assert!(error.throttled && error.is_passing(), "{error:?}");
    world.cloud.set_quota(Some(0)).await?;
    let error = world.driver.create(machine("m")).await.err().ok_or("no error")?;
    assert_eq!((error.throttled, error.code), (false, Code::ResourceExhausted));
    Ok(())
}
