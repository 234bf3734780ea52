//! The driver `simulated` keeps the contract of drivers with the fake cloud; and what only that cloud can do to it.

use std::time::Duration;

use nodewright_api::Code;
use nodewright_driver::{Driver, DriverError, MachineRequest};
use nodewright_driver_contract as contract;
use nodewright_e2e_cloud::{self as cloud, Effect, FaultOperation, FaultOrder};

use serde_json::json;

use super::support::{Fixture, TestResult, class};

const SOON: Duration = Duration::from_secs(20);

impl Fixture {
    async fn fault(&self, operation: FaultOperation, effect: Effect) -> TestResult {
        self.cloud.fault(&FaultOrder::always(operation, effect).times(1)).await?;
        Ok(())
    }

    async fn names(&self) -> TestResult<Vec<String>> {
        Ok(self.cloud.vms().await?.into_iter().map(|vm| vm.name).collect())
    }
}

fn machine(name: &str) -> MachineRequest {
    contract::machine(name, class("ours"))
}

fn machine_in(name: &str, zone: &str) -> MachineRequest {
    let labels = json!({"topology.kubernetes.io/zone": zone});
    contract::machine(name, contract::class(&json!({"cluster": "ours", "labels": labels})))
}

fn code<T>(result: Result<T, DriverError>) -> Option<Code> {
    result.err().map(|error| error.code)
}

#[tokio::test]
async fn the_driver_keeps_the_contract() -> TestResult {
    let report = contract::run(&Fixture::new().await?).await;
    report.assert_kept();
    assert_eq!(report.skipped(), ["rejected_credentials"], "the cloud knows no credentials");
    Ok(())
}

#[tokio::test]
async fn a_deleted_vm_has_no_second_life() -> TestResult {
    let fixture = Fixture::new().await?;
    fixture.driver.create(machine("m")).await?;
    fixture.driver.delete(machine("m")).await?;
    assert_eq!(code(fixture.driver.create(machine("m")).await), Some(Code::FailedPrecondition), "it is being deleted");
    fixture.cloud.wait_for_count(0, SOON).await?;
    assert_eq!(code(fixture.driver.create(machine("m")).await), Some(Code::FailedPrecondition), "it is gone");
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
        let fixture = Fixture::new().await?;
        fixture.fault(FaultOperation::Create, effect.clone()).await?;
        let error = fixture.driver.create(machine("m")).await.err().ok_or("no error")?;
        assert!(error.is_passing(), "{effect:?}: {error}");
        fixture.driver.create(machine("m")).await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(fixture.names().await?, ["m"], "{effect:?}");

        fixture.fault(FaultOperation::Delete, effect.clone()).await?;
        let error = fixture.driver.delete(machine("m")).await.err().ok_or("no error")?;
        assert!(error.is_passing(), "{effect:?}: {error}");
        fixture.driver.delete(machine("m")).await?;
        fixture.cloud.wait_for_count(0, SOON).await?;
        let stats = fixture.cloud.stats().await?;
        assert_eq!((stats.created, stats.deleted), (1, 1), "{effect:?}");
    }
    Ok(())
}

#[tokio::test]
async fn an_exhausted_quota_has_its_code() -> TestResult {
    let fixture = Fixture::new().await?;
    fixture.cloud.set_quota(Some(0)).await?;
    let error = fixture.driver.create(machine("m")).await.err().ok_or("no error")?;
    assert_eq!(error.code, Code::ResourceExhausted, "{error:?}");
    Ok(())
}

#[tokio::test]
async fn a_zone_without_capacity_is_named() -> TestResult {
    let fixture = Fixture::new().await?;
    let full = FaultOrder::always(FaultOperation::Create, Effect::NoCapacity).in_zone("zone-*");
    fixture.cloud.fault(&full).await?;
    assert!(fixture.driver.create(machine("m")).await.is_ok(), "a VM without a zone");
    let error = fixture.driver.create(machine_in("n", "zone-1")).await.err().ok_or("no error")?;
    let zone = error.exhausted.as_ref().and_then(|exhausted| exhausted.zone.as_deref());
    assert_eq!((error.code, zone), (Code::ResourceExhausted, Some("zone-1")), "{error:?}");
    assert!(fixture.driver.create(machine_in("o", "other")).await.is_ok(), "another zone");
    Ok(())
}

#[tokio::test]
async fn a_list_without_end_is_an_error() -> TestResult {
    let fixture = Fixture::new().await?;
    fixture.driver.create(machine("m")).await?;
    fixture.cloud.fault(&FaultOrder::always(FaultOperation::List, Effect::ListEndless)).await?;
    assert_eq!(code(fixture.driver.list(class("ours")).await), Some(Code::Internal));
    Ok(())
}

#[tokio::test]
async fn a_throttled_call_differs_from_an_exhausted_quota() -> TestResult {
    let fixture = Fixture::new().await?;
    fixture.fault(FaultOperation::Create, Effect::Throttled).await?;
    let error = fixture.driver.create(machine("m")).await.err().ok_or("no error")?;
    assert!(error.throttled && error.is_passing(), "{error:?}");
    fixture.cloud.set_quota(Some(0)).await?;
    let error = fixture.driver.create(machine("m")).await.err().ok_or("no error")?;
    assert_eq!((error.throttled, error.code), (false, Code::ResourceExhausted));
    Ok(())
}
