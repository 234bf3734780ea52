//! A cloud, and what the contract suite has to know of it.

use std::{collections::BTreeSet, error::Error, sync::Arc, time::Duration};

use futures::{FutureExt, TryFutureExt};
use nodewright_api::RawJson;
use nodewright_driver::{Class, Driver};
use nodewright_driver_contract::{self as contract, Fixture, Hook, InvalidSpec, Outage};
use nodewright_driver_simulated::{CSI_DRIVER, Options, SimulatedDriver};
use nodewright_e2e_cloud::{
    self as cloud, ClientError, CloudClient, CreateVm, Effect, FaultOperation, FaultOrder, Server, Settings,
};
use nodewright_runtime::leadership::Leadership;
use serde_json::json;

pub(crate) type TestResult<T = ()> = Result<T, Box<dyn Error>>;

/// Makes a driver of the cloud at a URL.
pub(crate) type Connect = Box<dyn Fn(&str) -> Arc<dyn Driver> + Send + Sync>;

/// The driver's call timeout in these tests.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the cloud may hide a VM in these tests, and how long it does.
pub(crate) const CONSISTENCY: Duration = Duration::from_millis(500);
const HIDDEN_SECONDS: f64 = 0.3;

pub(crate) struct CloudSetup {
    pub(crate) cloud: CloudClient,
    /// Of a driver in this process.
    pub(crate) driver: SimulatedDriver,
    connect: Connect,
    list_size: usize,
    _server: Server,
}

impl CloudSetup {
    pub(crate) async fn new() -> TestResult<Self> {
        Self::connected_by(Box::new(|url| Arc::new(driver(url))), 1_100).await
    }

    /// A cloud whose drivers are made by a function.
    pub(crate) async fn connected_by(connect: Connect, list_size: usize) -> TestResult<Self> {
        let settings =
            Settings { boot_seconds: 0.0, delete_seconds: 0.1, create_latency_seconds: 0.0, ..Settings::default() };
        let options = cloud::Options { listen: ([127, 0, 0, 1], 0).into(), state: None, settings, kubelets: None };
        let server = Server::start(options).await?;
        let (cloud, driver) = (CloudClient::new(server.url()), driver(&server.url()));
        Ok(Self { cloud, driver, connect, list_size, _server: server })
    }
}

fn driver(url: &str) -> SimulatedDriver {
    let options = Options { call_timeout: CALL_TIMEOUT, consistency: CONSISTENCY, ..Options::new(url) };
    SimulatedDriver::new(&options, &Leadership::default()).unwrap()
}

pub(crate) fn class(cluster: &str) -> Class {
    contract::class(&json!({ "cluster": cluster }))
}

/// The answer of a hook.
fn done<'a, T: 'a>(asked: impl Future<Output = Result<T, ClientError>> + Send + 'a) -> Hook<'a, T> {
    asked.map_ok(Some).map_err(Into::into).boxed()
}

fn id_of(provider_id: &str) -> &str {
    provider_id.trim_start_matches("simulated:///")
}

impl Fixture for CloudSetup {
    fn driver(&self) -> Arc<dyn Driver> {
        (self.connect)(self.cloud.url())
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

    fn volume(&self) -> Option<(RawJson, String)> {
        let spec = json!({ "csi": { "driver": CSI_DRIVER, "volumeHandle": "disk-1" } });
        Some((RawJson::from(&spec), "disk-1".to_owned()))
    }

    fn list_size(&self) -> usize {
        self.list_size
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
