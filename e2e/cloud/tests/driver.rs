//! The driver contract, tested with the driver `simulated` against the fake cloud, with and without faults.

use std::{collections::BTreeMap, error::Error, time::Duration};

use nodewright_api::{Code, RawJson};
use nodewright_driver::{Class, Driver, DriverError, MachineRequest, Mismatch, SecretData, SecretText};
use nodewright_driver_simulated::{Options, SimulatedDriver};
use nodewright_e2e_cloud::{self as cloud, CloudClient, Effect, FaultOperation, FaultOrder, Server, Settings, VmState};
use nodewright_runtime::leadership::Leadership;
use serde_json::json;

type TestResult<T = ()> = Result<T, Box<dyn Error>>;

const SOON: Duration = Duration::from_secs(20);
/// The driver's call timeout in these tests.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);

struct World {
    server: Server,
    cloud: CloudClient,
    driver: SimulatedDriver,
}

impl World {
    async fn new() -> TestResult<Self> {
        let settings =
            Settings { boot_seconds: 0.0, delete_seconds: 0.1, create_latency_seconds: 0.0, ..Settings::default() };
        let options = cloud::Options { listen: ([127, 0, 0, 1], 0).into(), state: None, settings, kubelets: None };
        let server = Server::start(options).await?;
        let options = Options { call_timeout: CALL_TIMEOUT, ..Options::new(server.url()) };
        Ok(Self {
            cloud: CloudClient::new(server.url()),
            driver: SimulatedDriver::new(&options, &Leadership::default())?,
            server,
        })
    }

    async fn fault(&self, operation: FaultOperation, effect: Effect) -> TestResult {
        self.cloud.fault(&FaultOrder::always(operation, effect).times(1)).await?;
        Ok(())
    }

    async fn names(&self) -> TestResult<Vec<String>> {
        Ok(self.cloud.vms().await?.into_iter().map(|vm| vm.name).collect())
    }
}

fn class(cluster: &str) -> Class {
    let provider_spec = RawJson::from(&json!({ "cluster": cluster }));
    Class { name: "class".to_owned(), revision: String::new(), provider_spec, secret: SecretData::default() }
}

fn machine(name: &str) -> MachineRequest {
    MachineRequest {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        uid: format!("uid-of-{name}"),
        provider_id: None,
        is_proven: false,
        last_known_state: String::new(),
        class: class("ours"),
        user_data: SecretText::default(),
    }
}

fn code<T>(result: Result<T, DriverError>) -> Option<Code> {
    result.err().map(|error| error.code)
}

#[tokio::test]
async fn a_machine_lives_and_dies() -> TestResult {
    let World { cloud, driver, server: _server } = World::new().await?;
    assert_eq!(code(driver.status(machine("m")).await), Some(Code::NotFound));
    let made = driver.create(machine("m")).await?;
    assert_eq!(driver.create(machine("m")).await?, made, "again, and it is the same");
    assert_eq!(driver.status(machine("m")).await?, made);
    let known = MachineRequest { provider_id: Some(made.provider_id.clone()), ..machine("m") };
    assert_eq!(driver.status(known.clone()).await?, made);
    assert_eq!(code(driver.initialize(machine("m")).await), Some(Code::Unimplemented));
    assert_eq!(driver.list(class("ours")).await?, BTreeMap::from([(made.provider_id.clone(), "m".to_owned())]));
    assert!(driver.list(class("theirs")).await?.is_empty());

    driver.delete(known.clone()).await?;
    driver.delete(known.clone()).await?;
    assert!(driver.status(known.clone()).await.is_ok(), "it is there until it is gone");
    cloud.wait_for_count(0, SOON).await?;
    assert_eq!(code(driver.status(known.clone()).await), Some(Code::NotFound));
    driver.delete(known).await?;
    driver.delete(machine("m")).await?;
    assert_eq!(code(driver.create(machine("m")).await), Some(Code::FailedPrecondition), "no second life");
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
async fn a_vm_that_is_not_proven_the_machines_is_a_mismatch_and_left_alone() -> TestResult {
    let world = World::new().await?;
    let vms = [
        (MachineRequest { class: class("theirs"), ..machine("m") }, Mismatch::Cluster),
        (machine("another"), Mismatch::Machine),
    ];
    for (theirs, mismatch) in vms {
        let made = world.driver.create(MachineRequest { uid: format!("{mismatch:?}"), ..theirs }).await?;
        let ours = || MachineRequest { provider_id: Some(made.provider_id.clone()), is_proven: true, ..machine("m") };
        assert_eq!(code(world.driver.status(machine("m")).await), Some(Code::NotFound));
        let error = world.driver.status(ours()).await.err().ok_or("no error")?;
        assert_eq!((error.code, error.mismatch), (Code::FailedPrecondition, Some(mismatch)), "{error}");
        world.driver.delete(machine("m")).await?;
        let error = world.driver.delete(ours()).await.err().ok_or("no error")?;
        assert_eq!(error.mismatch, Some(mismatch), "{error}");
    }
    assert!(world.cloud.vms().await?.iter().all(|vm| vm.state != VmState::Deleting));

    // The machine's own VM is found and deleted, whatever its providerID names.
    let own = world.driver.create(machine("m")).await?;
    let foreign = world.cloud.vms().await?.into_iter().find(|vm| vm.name == "another").ok_or("no vm")?;
    let wrong = || MachineRequest { provider_id: Some(foreign.provider_id.clone()), ..machine("m") };
    assert_eq!(world.driver.status(wrong()).await?, own);
    assert!(world.driver.delete(wrong()).await.is_err_and(|error| error.mismatch.is_some()));
    world.cloud.wait_for_count(2, SOON).await?;
    Ok(())
}

#[tokio::test]
async fn several_vms_of_one_machine_are_told_of_and_all_deleted() -> TestResult {
    let world = World::new().await?;
    world.driver.create(machine("m")).await?;
    world.driver.create(MachineRequest { uid: "restored".to_owned(), ..machine("m") }).await?;
    assert_eq!(code(world.driver.status(machine("m")).await), Some(Code::OutOfRange));
    world.driver.delete(machine("m")).await?;
    world.cloud.wait_for_count(0, SOON).await?;
    Ok(())
}

#[tokio::test]
async fn what_is_exhausted_or_hidden_has_its_code() -> TestResult {
    let world = World::new().await?;
    world.cloud.set_quota(Some(0)).await?;
    let error = world.driver.create(machine("m")).await.err().ok_or("no error")?;
    assert_eq!(error.code, Code::ResourceExhausted, "{error:?}");
    world.cloud.set_quota(None).await?;
    world.fault(FaultOperation::Create, Effect::Invisible { seconds: 0.5 }).await?;
    let made = world.driver.create(machine("m")).await?;
    assert_eq!(code(world.driver.status(machine("m")).await), Some(Code::NotFound));
    let known = MachineRequest { provider_id: Some(made.provider_id), is_proven: true, ..machine("m") };
    world.driver.delete(known).await?;
    world.cloud.wait_for_count(0, SOON).await?;
    Ok(())
}

#[tokio::test]
async fn a_list_is_whole_or_an_error() -> TestResult {
    let world = World::new().await?;
    for number in 0..1_100 {
        world.driver.create(machine(&format!("m{number}"))).await?;
    }
    assert_eq!(world.driver.list(class("ours")).await?.len(), 1_100);
    world.cloud.fault(&FaultOrder::always(FaultOperation::List, Effect::ListEndless)).await?;
    assert_eq!(code(world.driver.list(class("ours")).await), Some(Code::Internal));
    Ok(())
}
