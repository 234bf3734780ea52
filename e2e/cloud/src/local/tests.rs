//! The cloud without ports, on paused time, called by its driver over HTTP.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use nodewright_driver::{Driver, DriverError, Instance, MachineRequest, Power};
use nodewright_driver_contract as contract;
use nodewright_driver_simulated::{Options, SimulatedDriver};
use nodewright_runtime::leadership::tokio_clock;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tower::Service;

use super::{super::VmState, *};
use crate::{Effect, EventKind, FaultOperation};

type Code = nodewright_api::Code;

const TIMEOUT: Duration = Duration::from_secs(15);

struct Fixture {
    cloud: LocalCloud,
    driver: SimulatedDriver,
}

impl Fixture {
    fn new() -> Self {
        let clock = tokio_clock("2026-01-01T00:00:00Z".parse().unwrap());
        let settings = Settings { boot_jitter: 0.0, create_latency_seconds: 3.0, seed: 1, ..Settings::default() };
        let cloud = LocalCloud::start(settings, Memory::default(), clock, None);
        let options = Options { call_timeout: TIMEOUT, ..Options::new("http://cloud/as/me") };
        let driver = SimulatedDriver::with_service(cloud.service(), &options).unwrap();
        Self { cloud, driver }
    }

    fn fault(&self, operation: FaultOperation, effect: Effect) {
        self.cloud.fault(FaultOrder::always(operation, effect).times(1)).unwrap();
    }

    async fn create(&self) -> Result<Instance, DriverError> {
        self.driver.create(machine()).await
    }

    fn states(&self) -> Vec<VmState> {
        self.cloud.vms().into_iter().map(|vm| vm.state).collect()
    }
}

fn machine() -> MachineRequest {
    contract::machine("m", contract::class(&json!({ "cluster": "c" })))
}

fn code<T>(result: Result<T, DriverError>) -> Option<Code> {
    result.err().map(|error| error.code)
}

#[tokio::test(start_paused = true)]
async fn vms_come_and_go_by_themselves() {
    let fixture = Fixture::new();
    let begun = Instant::now();
    let made = fixture.create().await.unwrap();
    assert_eq!(begun.elapsed(), Duration::from_secs(3), "the latency of a create call, to the millisecond");
    assert_eq!(fixture.states(), [VmState::Running], "it booted while the call took its time");
    let running = Instance { power: Power::Running, ..made };
    assert_eq!(fixture.driver.status(machine()).await.unwrap(), running);
    fixture.driver.delete(machine()).await.unwrap();
    assert_eq!(fixture.states(), [VmState::Deleting]);
    sleep(Duration::from_secs(2)).await;
    let kinds: Vec<EventKind> = fixture.cloud.history().iter().map(|event| event.kind).collect();
    let expected = [EventKind::CreateAccepted, EventKind::VmRunning, EventKind::DeleteAccepted, EventKind::VmGone];
    assert_eq!(kinds, expected);
    let times: Vec<String> = fixture.cloud.history().iter().map(|event| event.at.to_string()).collect();
    let at = |second| format!("2026-01-01T00:00:0{second}Z");
    assert_eq!(times, [at(0), at(2), at(3), at(4)]);
    assert_eq!(fixture.cloud.stats().callers["me"], 4);
}

#[tokio::test(start_paused = true)]
async fn time_tolerates_unavailable_anybody_looking() {
    let fixture = Fixture::new();
    fixture.fault(FaultOperation::Create, Effect::ApplyLate { seconds: 90.0, code: crate::Code::DeadlineExceeded });
    assert_eq!(code(fixture.create().await), Some(Code::DeadlineExceeded));
    sleep(Duration::from_secs(95)).await;
    // Not by a call, because a call would also execute what is due.
    let seen = fixture.cloud.with(|cloud, _| cloud.memory().history.iter().map(|event| event.kind).collect::<Vec<_>>());
    assert!(seen.contains(&EventKind::VmRunning), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_has_its_code_and_its_effect() {
    for (effect, expected, seconds) in [
        (Effect::Hang { applied: true }, Code::DeadlineExceeded, 15),
        (Effect::Cut { applied: true }, Code::Unknown, 3),
        (Effect::Garbage, Code::Unavailable, 3),
        (Effect::AnswerLate { seconds: 60.0 }, Code::DeadlineExceeded, 15),
    ] {
        let fixture = Fixture::new();
        fixture.fault(FaultOperation::Create, effect.clone());
        let begun = Instant::now();
        assert_eq!(code(fixture.create().await), Some(expected), "{effect:?}");
        assert_eq!(begun.elapsed(), Duration::from_secs(seconds), "{effect:?}");
        assert_eq!(fixture.states().len(), 1, "{effect:?}");
        fixture.create().await.unwrap();
        assert_eq!(fixture.cloud.stats().created, 1, "{effect:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_is_done_although_its_caller_went_away_at_once() {
    let fixture = Fixture::new();
    let order = Full::new(Bytes::from(r#"{"name":"m","token":"t"}"#));
    // Sent, and then dropped.
    drop(fixture.cloud.service().call(Request::post("/vms").body(order).unwrap()));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(fixture.states(), [VmState::Pending]);
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_is_down_does_nothing_and_its_vms_live_on() {
    let fixture = Fixture::new();
    let (answer, ()) = tokio::join!(fixture.create(), async {
        sleep(Duration::from_secs(1)).await;
        fixture.cloud.set_down(true);
    });
    assert_eq!(code(answer), Some(Code::Unknown), "the connection broke while it waited");
    assert_eq!(code(fixture.driver.delete(machine()).await), Some(Code::Unavailable));
    sleep(Duration::from_secs(5)).await;
    assert_eq!(fixture.states(), [VmState::Running]);
    fixture.cloud.set_down(false);
    fixture.driver.delete(machine()).await.unwrap();
    assert_eq!(fixture.states(), [VmState::Deleting]);
}

#[tokio::test(start_paused = true)]
async fn another_cloud_goes_on_from_the_memory_of_the_first() {
    let fixture = Fixture::new();
    fixture.create().await.unwrap();
    let memory = fixture.cloud.memory();
    drop(fixture);
    let clock = tokio_clock("2026-01-01T01:00:00Z".parse().unwrap());
    let cloud = LocalCloud::start(Settings::default(), memory.clone(), clock, None);
    assert_eq!(cloud.memory(), memory);
    cloud.kill(&cloud.vms()[0].id).unwrap();
    assert_eq!(cloud.vms()[0].state, VmState::Stopped);
}
