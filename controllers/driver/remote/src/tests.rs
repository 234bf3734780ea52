//! The driver against servers that are away, hang, lie, or talk nonsense. The contract suite over the wire is in `e2e/lab`.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, ready},
    stream,
    stream::BoxStream,
};
use nodewright_api::{Code, RawJson};
use nodewright_driver::{Class, Driver, DriverError, Instance, ListedVm, MachineRequest, ProviderRequests, Result};
use nodewright_driver_contract as contract;
use nodewright_driver_protocol::server::{Provider, Socket, serve};
use nodewright_driver_protocol::{Info, v1};
use nodewright_runtime::leadership::Leadership;
use serde_json::json;
use tempfile::TempDir;
use tokio::{io::AsyncWriteExt, net::UnixListener, task::JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::{Request, Response, Status};

use super::{Remote, RemoteDriver, Source};

fn machine(name: &str) -> MachineRequest {
    contract::machine(name, contract::class(&json!({"cluster": "c"})))
}

fn code<T>(result: Result<T>) -> Option<Code> {
    result.err().map(|error| error.code)
}

fn requests() -> ProviderRequests {
    let succeeded = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 5];
    ProviderRequests { service: "instance_get".to_owned(), made: 7, failed: 1, succeeded, seconds: 70.5 }
}

/// A driver whose VMs have the names of their Machines, and the traces of the calls as its notes. It hangs or panics if that is the name.
struct Named;

impl Named {
    fn answer(request: &MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        let name = request.name.clone();
        let last_known_state = request.traceparent.as_ref().map(ToString::to_string);
        async move {
            match name.as_str() {
                "hangs" => std::future::pending().await,
                "panics" => panic!("a defect of the driver"),
                _ => {}
            }
            let provider_id = format!("named:///{name}");
            Ok(Instance { provider_id, node_name: name, last_known_state, ..Instance::default() })
        }
        .boxed()
    }
}

impl Driver for Named {
    fn name(&self) -> &'static str {
        "named"
    }
    fn validate(&self, _: &RawJson) -> BoxFuture<'static, Option<Vec<(String, String)>>> {
        ready(Some(vec![("size".to_owned(), "must be small".to_owned())])).boxed()
    }
    fn identity(&self) -> Vec<&str> {
        vec!["cluster"]
    }
    fn deadline(&self) -> Duration {
        Duration::from_secs(1)
    }
    fn consistency(&self) -> Duration {
        Duration::from_secs(3)
    }
    fn create(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        Self::answer(&request)
    }
    fn delete(&self, _: MachineRequest) -> BoxFuture<'static, Result<Option<String>>> {
        std::future::ready(Ok(None)).boxed()
    }
    fn status(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        Self::answer(&request)
    }
    fn list(&self, _: Class) -> BoxFuture<'static, Result<BTreeMap<String, ListedVm>>> {
        std::future::ready(Err(DriverError::new(Code::Unimplemented, "no list"))).boxed()
    }
    fn requests(&self) -> Option<Vec<ProviderRequests>> {
        Some(vec![requests()])
    }
}

/// A place for sockets, and what is served there.
struct Fixture {
    folder: TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("driver.sock")
    }

    /// Serves until the handle is dropped.
    fn serve(&self, driver: Named) -> AbortOnDropHandle<()> {
        let socket = Socket::bind(&self.socket()).unwrap();
        let provider = Provider { id_prefix: "named:///".to_owned(), initializes: false };
        AbortOnDropHandle::new(tokio::spawn(async move {
            serve(Arc::new(driver), provider, socket, CancellationToken::new()).await.unwrap();
        }))
    }

    fn remote(&self) -> Remote {
        Remote::start(Source::Socket(self.socket()), &Leadership::unlimited()).unwrap()
    }

    async fn driver(&self) -> RemoteDriver {
        self.remote().driver().await
    }

    /// Serves answers that no library would give.
    async fn serve_raw(&self, raw: Raw) -> (RemoteDriver, JoinHandle<()>) {
        let listener = UnixListener::bind(self.socket()).unwrap();
        let service = v1::driver_server::DriverServer::new(raw);
        let server = tonic::transport::Server::builder().add_service(service);
        let task = tokio::spawn(async move {
            server.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
        });
        (self.driver().await, task)
    }
}

fn raw_info() -> Info {
    Info {
        provider: "raw".to_owned(),
        provider_id_prefix: "raw:///".to_owned(),
        identity: vec![],
        longest_call: Duration::from_secs(10),
        consistency: Duration::ZERO,
        poll: Duration::from_secs(1),
        initializes: true,
        validates: false,
        stores_owner: true,
        knows_volumes: true,
        describes_instances: true,
        describes_unowned: true,
        counts_requests: true,
    }
}

/// A server that gives the answer of a function.
struct Raw {
    machine: fn(&str) -> std::result::Result<v1::MachineResponse, Status>,
    pages: fn() -> Vec<v1::ListMachinesResponse>,
}

impl Default for Raw {
    fn default() -> Self {
        Self { machine: |name| Ok(vm(&format!("raw:///{name}"))), pages: Vec::new }
    }
}

fn vm(provider_id: &str) -> v1::MachineResponse {
    let instance =
        v1::Instance { provider_id: provider_id.to_owned(), node_name: "n".to_owned(), ..v1::Instance::default() };
    v1::MachineResponse { outcome: Some(v1::machine_response::Outcome::Instance(instance)) }
}

fn page(machines: &[&str], complete: bool) -> v1::ListMachinesResponse {
    let listed = |id: &&str| v1::ListedMachine {
        provider_id: (*id).to_owned(),
        name: "m".to_owned(),
        ..v1::ListedMachine::default()
    };
    v1::ListMachinesResponse { machines: machines.iter().map(listed).collect(), complete, failure: None }
}

#[tonic::async_trait]
impl v1::driver_server::Driver for Raw {
    async fn get_info(
        &self,
        _: Request<v1::GetInfoRequest>,
    ) -> std::result::Result<Response<v1::GetInfoResponse>, Status> {
        Ok(Response::new(raw_info().encode()))
    }
    async fn validate_class(
        &self,
        _: Request<v1::ValidateClassRequest>,
    ) -> std::result::Result<Response<v1::ValidateClassResponse>, Status> {
        Err(Status::unimplemented("it says so"))
    }
    async fn create_machine(
        &self,
        request: Request<v1::CreateMachineRequest>,
    ) -> std::result::Result<Response<v1::MachineResponse>, Status> {
        (self.machine)(&request.into_inner().machine.unwrap_or_default().name).map(Response::new)
    }
    async fn initialize_machine(
        &self,
        request: Request<v1::MachineRequest>,
    ) -> std::result::Result<Response<v1::MachineResponse>, Status> {
        (self.machine)(&request.into_inner().name).map(Response::new)
    }
    async fn delete_machine(
        &self,
        _: Request<v1::MachineRequest>,
    ) -> std::result::Result<Response<v1::DeleteMachineResponse>, Status> {
        Ok(Response::new(v1::DeleteMachineResponse { outcome: None }))
    }
    async fn get_machine_status(
        &self,
        request: Request<v1::MachineRequest>,
    ) -> std::result::Result<Response<v1::MachineResponse>, Status> {
        (self.machine)(&request.into_inner().name).map(Response::new)
    }
    async fn delete_orphan(
        &self,
        _: Request<v1::DeleteOrphanRequest>,
    ) -> std::result::Result<Response<v1::DeleteMachineResponse>, Status> {
        Ok(Response::new(v1::DeleteMachineResponse { outcome: None }))
    }
    async fn describe_unowned(
        &self,
        request: Request<v1::DescribeUnownedRequest>,
    ) -> std::result::Result<Response<v1::MachineResponse>, Status> {
        (self.machine)(&request.into_inner().provider_id).map(Response::new)
    }
    async fn get_volume_ids(
        &self,
        _: Request<v1::GetVolumeIdsRequest>,
    ) -> std::result::Result<Response<v1::GetVolumeIdsResponse>, Status> {
        Err(Status::unimplemented("as a driver from before the call"))
    }
    async fn get_provider_requests(
        &self,
        _: Request<v1::GetProviderRequestsRequest>,
    ) -> std::result::Result<Response<v1::GetProviderRequestsResponse>, Status> {
        let service = v1::ProviderRequests { service: "a label of no metric".to_owned(), ..Default::default() };
        Ok(Response::new(v1::GetProviderRequestsResponse { services: vec![service] }))
    }
    type ListMachinesStream = BoxStream<'static, std::result::Result<v1::ListMachinesResponse, Status>>;
    async fn list_machines(
        &self,
        _: Request<v1::ListMachinesRequest>,
    ) -> std::result::Result<Response<Self::ListMachinesStream>, Status> {
        Ok(Response::new(stream::iter((self.pages)()).map(Ok).boxed()))
    }
}

#[tokio::test]
async fn what_the_driver_says_of_itself_is_what_the_manager_knows() {
    let fixture = Fixture::new();
    let _served = fixture.serve(Named);
    let remote = fixture.remote();
    let readiness = remote.readiness();
    let driver = remote.driver().await;
    assert_eq!((driver.name(), driver.identity()), ("named", vec!["cluster"]));
    assert_eq!((driver.deadline(), driver.consistency()), (Duration::from_secs(1), Duration::from_secs(3)));
    assert_eq!(readiness(), Ok(()));
    assert_eq!(driver.create(machine("m")).await.unwrap().provider_id, "named:///m");
    assert_eq!(code(driver.initialize(machine("m")).await), Some(Code::Unimplemented));
    assert_eq!(code(driver.list(machine("m").class).await), Some(Code::Unimplemented));
}

#[tokio::test]
async fn calls_that_hang_or_panic_block_no_other_one() {
    let fixture = Fixture::new();
    let _served = fixture.serve(Named);
    let driver = fixture.driver().await;
    let stuck: Vec<_> = (0..500)
        .map(|number| tokio::spawn(driver.create(machine(if number % 10 == 0 { "panics" } else { "hangs" }))))
        .collect();
    assert_eq!(driver.status(machine("m")).await.unwrap().provider_id, "named:///m");
    for call in stuck {
        let error = call.await.unwrap().unwrap_err();
        assert!(error.is_passing(), "{error}");
    }
    assert!(driver.status(machine("m")).await.is_ok());
}

#[tokio::test]
async fn a_driver_learns_the_span_of_each_call() {
    let fixture = Fixture::new();
    let _served = fixture.serve(Named);
    let driver = fixture.driver().await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let traced = || MachineRequest { traceparent: Some(trace.into()), ..machine("m") };
    for answer in [driver.create(traced()).await, driver.status(traced()).await] {
        assert_eq!(answer.unwrap().last_known_state.as_deref(), Some(trace));
    }
    assert_eq!(driver.create(machine("m")).await.unwrap().last_known_state, None);
}

#[tokio::test]
async fn a_driver_that_is_away_delays_calls() {
    let fixture = Fixture::new();
    let remote = fixture.remote();
    let readiness = remote.readiness();
    assert!(readiness().is_err());
    let served = fixture.serve(Named);
    let driver = remote.driver().await;
    assert!(driver.create(machine("m")).await.is_ok());
    drop(served);
    // Until the end of the connection is noticed a call may still be made on it.
    while let Ok(made) = driver.create(machine("m")).await {
        assert_eq!(made.provider_id, "named:///m");
    }
    while readiness().is_ok() {
        tokio::task::yield_now().await;
    }
    let error = driver.status(machine("m")).await.unwrap_err();
    assert_eq!(error.code, Code::Unavailable, "{error}");
    let waiting = tokio::spawn(driver.status(machine("m")));
    let _served = fixture.serve(Named);
    assert!(waiting.await.unwrap().is_ok(), "it has waited for the driver");
    assert_eq!(readiness(), Ok(()));
}

#[tokio::test]
async fn another_driver_in_its_place_is_not_called() {
    let fixture = Fixture::new();
    let remote = fixture.remote();
    let readiness = remote.readiness();
    let served = fixture.serve(Named);
    let driver = remote.driver().await;
    drop(served);
    std::fs::remove_file(fixture.socket()).unwrap();
    let listener = UnixListener::bind(fixture.socket()).unwrap();
    let service = v1::driver_server::DriverServer::new(Raw { machine: |_| panic!("it is called"), ..Raw::default() });
    let other = tonic::transport::Server::builder().add_service(service);
    let _other = AbortOnDropHandle::new(tokio::spawn(async move {
        other.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
    }));
    while !readiness().is_err_and(|why| why.contains("another driver")) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(code(driver.create(machine("m")).await), Some(Code::Unavailable));
    assert_eq!(driver.name(), "named");
}

#[tokio::test]
async fn nonsense_on_the_socket_is_no_driver() {
    let fixture = Fixture::new();
    let listener = UnixListener::bind(fixture.socket()).unwrap();
    let _nonsense = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            // The other side may be gone by then.
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello\xff\x00").await;
        }
    }));
    let remote = fixture.remote();
    let readiness = remote.readiness();
    while !readiness().is_err_and(|why| why.contains("is away")) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    std::fs::remove_file(fixture.socket()).unwrap();
    let _served = fixture.serve(Named);
    assert!(remote.driver().await.create(machine("m")).await.is_ok());
}

#[tokio::test]
async fn an_answer_of_a_hundred_megabytes_is_not_read() {
    let fixture = Fixture::new();
    let machine_answer = |name: &str| match name {
        "large" => Ok(vm(&format!("raw:///{}", "x".repeat(100 << 20)))),
        "status" => Err(Status::not_found("x".repeat(10 << 20))),
        "absent" => Err(Status::not_found("there is no VM")),
        name => Ok(vm(&format!("raw:///{name}"))),
    };
    let (driver, _task) = fixture.serve_raw(Raw { machine: machine_answer, ..Raw::default() }).await;
    for name in ["large", "status", "absent"] {
        for error in [driver.create(machine(name)).await, driver.status(machine(name)).await] {
            let error = error.unwrap_err();
            assert!(error.is_passing(), "gRPC's own codes are no answer: {error}");
            assert!(error.message.len() < 1_000);
        }
    }
    assert_eq!(driver.initialize(machine("m")).await.unwrap().provider_id, "raw:///m");
}

#[tokio::test]
async fn an_answer_without_sense_is_a_failure() {
    let fixture = Fixture::new();
    let machine_answer = |name: &str| match name {
        "foreign" => Ok(vm("named:///m")),
        _ => Ok(v1::MachineResponse::default()),
    };
    let (driver, _task) = fixture.serve_raw(Raw { machine: machine_answer, ..Raw::default() }).await;
    for name in ["foreign", "nothing"] {
        assert_eq!(code(driver.create(machine(name)).await), Some(Code::Internal));
        assert_eq!(code(driver.status(machine(name)).await), Some(Code::Internal));
    }
    assert_eq!(code(driver.delete(machine("m")).await), Some(Code::Internal), "never a success");
}

#[tokio::test]
async fn a_driver_without_the_call_does_not_say_whose_a_volume_is() {
    let fixture = Fixture::new();
    let (raw, _task) = fixture.serve_raw(Raw::default()).await;
    let volumes = || vec![RawJson::default()];
    assert!(raw.knows_volumes() && raw.volume_ids(volumes()).await.is_err(), "none of them is another provider's");
    let fixture = Fixture::new();
    let _served = fixture.serve(Named);
    let named = fixture.driver().await;
    assert!(!named.knows_volumes());
    assert_eq!(code(named.volume_ids(volumes()).await), Some(Code::Unimplemented));
}

#[tokio::test]
async fn the_requests_that_a_driver_has_counted_are_known_soon_and_stay_known() {
    let fixture = Fixture::new();
    let served = fixture.serve(Named);
    let remote = fixture.remote();
    let readiness = remote.readiness();
    let driver = remote.driver().await;
    while driver.requests() != Some(vec![requests()]) {
        assert!(driver.requests().is_some_and(|all| all.is_empty()));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(served);
    while readiness().is_ok() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(driver.requests(), Some(vec![requests()]), "a counter does not end while its process is away");
}

#[tokio::test]
async fn counts_that_would_be_no_metrics_are_not_passed_on() {
    let fixture = Fixture::new();
    let (driver, _task) = fixture.serve_raw(Raw::default()).await;
    driver.create(machine("m")).await.unwrap();
    assert_eq!(driver.requests(), Some(vec![]));
}

#[tokio::test]
async fn a_list_is_whole_or_none() {
    type Case = (fn() -> Vec<v1::ListMachinesResponse>, std::result::Result<usize, Code>);
    let cases: [Case; 4] = [
        (|| vec![page(&["raw:///1"], false), page(&["raw:///2"], true)], Ok(2)),
        (|| vec![page(&["raw:///1"], false)], Err(Code::Unknown)),
        (Vec::new, Err(Code::Unknown)),
        (|| vec![page(&["named:///1"], true)], Err(Code::Internal)),
    ];
    for (pages, expected) in cases {
        let fixture = Fixture::new();
        let (driver, _task) = fixture.serve_raw(Raw { pages, ..Raw::default() }).await;
        let listed = driver.list(machine("m").class).await;
        assert_eq!(listed.map(|list| list.len()).map_err(|error| error.code), expected);
    }
}

#[tokio::test]
async fn a_driver_that_starts_again_validates_in_another_session() {
    let fixture = Fixture::new();
    let served = fixture.serve(Named);
    let remote = fixture.remote();
    let readiness = remote.readiness();
    let driver = remote.driver().await;
    let spec = machine("m").class.provider_spec;
    let errors = Some(vec![("size".to_owned(), "must be small".to_owned())]);
    assert_eq!(driver.validate(&spec).await, errors);
    let first = driver.session();
    drop(served);
    while readiness().is_ok() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((driver.validate(&spec).await, driver.session()), (None, first), "nobody can say");
    let _served = fixture.serve(Named);
    assert_eq!(driver.validate(&spec).await, errors);
    assert!(driver.session() > first, "this may be another version of the driver");
}
