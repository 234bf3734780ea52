//! The calls.

use std::sync::Arc;

use futures::{StreamExt, stream, stream::BoxStream};
use nodewright_api::RawJson;
use nodewright_driver::{Driver, Instance, MachineRequest, Result as DriverResult};
use nodewright_observability::trace;
use tonic::{Response, Status};
use tracing::{Instrument, Span, field};

use super::Provider;
use crate::{
    self as protocol, Info,
    v1::{
        CreateMachineRequest, DeleteMachineResponse, DeleteOrphanRequest, DescribeUnownedRequest, GetInfoRequest,
        GetInfoResponse, GetProviderRequestsRequest, GetProviderRequestsResponse, GetVolumeIdsRequest,
        GetVolumeIdsResponse, ListMachinesRequest, ListMachinesResponse, MachineRequest as Request, MachineResponse,
        ValidateClassRequest, ValidateClassResponse, driver_server,
    },
};

pub(crate) struct Service {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) provider: Provider,
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl driver_server::Driver for Service {
    async fn get_info(&self, _: tonic::Request<GetInfoRequest>) -> Answer<GetInfoResponse> {
        let driver = self.driver.as_ref();
        let info = Info {
            provider: driver.name().to_owned(),
            provider_id_prefix: self.provider.id_prefix.clone(),
            identity: driver.identity().into_iter().map(str::to_owned).collect(),
            longest_call: driver.deadline(),
            consistency: driver.consistency(),
            poll: driver.poll(),
            initializes: self.provider.initializes,
            validates: true,
            stores_owner: driver.stores_owner(),
            knows_volumes: driver.knows_volumes(),
            describes_instances: driver.describes_instances(),
            describes_unowned: driver.describes_unowned(),
            counts_requests: driver.requests().is_some(),
        };
        Ok(Response::new(info.encode()))
    }

    async fn validate_class(&self, request: tonic::Request<ValidateClassRequest>) -> Answer<ValidateClassResponse> {
        let spec = RawJson::from_text(request.into_inner().provider_spec)
            .map_err(|_| Status::invalid_argument("provider_spec is no JSON"))?;
        let errors = self.driver.validate(&spec).await;
        let errors = errors.ok_or_else(|| Status::unavailable("the driver has not answered"))?;
        Ok(Response::new(protocol::encode_faults(errors)))
    }

    async fn create_machine(&self, request: tonic::Request<CreateMachineRequest>) -> Answer<MachineResponse> {
        let request = traced(request, protocol::decode_create);
        let call = |request| in_span(span("CreateMachine", &request), self.driver.create(request));
        Ok(instance(request, call).await)
    }

    async fn initialize_machine(&self, request: tonic::Request<Request>) -> Answer<MachineResponse> {
        let request = traced(request, protocol::decode_machine);
        let call = |request| in_span(span("InitializeMachine", &request), self.driver.initialize(request));
        Ok(instance(request, call).await)
    }

    async fn delete_machine(&self, request: tonic::Request<Request>) -> Answer<DeleteMachineResponse> {
        let deleted = match traced(request, protocol::decode_machine) {
            Ok(request) => in_span(span("DeleteMachine", &request), self.driver.delete(request)).await,
            Err(error) => Err(error),
        };
        Ok(Response::new(protocol::encode_deleted(deleted)))
    }

    async fn get_machine_status(&self, request: tonic::Request<Request>) -> Answer<MachineResponse> {
        let request = traced(request, protocol::decode_machine);
        // It is asked too often to be worth a span each.
        Ok(instance(request, |request| self.driver.status(request)).await)
    }

    async fn delete_orphan(&self, request: tonic::Request<DeleteOrphanRequest>) -> Answer<DeleteMachineResponse> {
        let deleted = match protocol::decode_orphan(request.into_inner()) {
            Ok(orphan) => self.driver.delete_orphan(orphan).await,
            Err(error) => Err(error),
        };
        Ok(Response::new(protocol::encode_deleted(deleted.map(|()| None))))
    }

    async fn describe_unowned(&self, request: tonic::Request<DescribeUnownedRequest>) -> Answer<MachineResponse> {
        let request = protocol::decode_unowned(request.into_inner());
        Ok(instance(request, |request| self.driver.describe_unowned(request)).await)
    }

    async fn get_volume_ids(&self, request: tonic::Request<GetVolumeIdsRequest>) -> Answer<GetVolumeIdsResponse> {
        let ids = match protocol::decode_volumes(request.into_inner()) {
            Ok(volumes) => self.driver.volume_ids(volumes).await,
            Err(error) => Err(error),
        };
        Ok(Response::new(protocol::encode_volume_ids(ids)))
    }

    async fn get_provider_requests(
        &self,
        _: tonic::Request<GetProviderRequestsRequest>,
    ) -> Answer<GetProviderRequestsResponse> {
        Ok(Response::new(protocol::encode_requests(self.driver.requests().unwrap_or_default())))
    }

    type ListMachinesStream = BoxStream<'static, Result<ListMachinesResponse, Status>>;

    async fn list_machines(&self, request: tonic::Request<ListMachinesRequest>) -> Answer<Self::ListMachinesStream> {
        let listed = match protocol::decode_class(request.into_inner().class) {
            Ok(class) => self.driver.list(class).await,
            Err(error) => Err(error),
        };
        Ok(Response::new(stream::iter(protocol::encode_list(listed)).map(Ok).boxed()))
    }
}

/// A request about a Machine, with the manager's span.
fn traced<T>(
    request: tonic::Request<T>,
    decode: impl FnOnce(T) -> DriverResult<MachineRequest>,
) -> DriverResult<MachineRequest> {
    let traceparent =
        request.metadata().get(protocol::TRACEPARENT).and_then(|value| value.to_str().ok()).map(Arc::from);
    Ok(MachineRequest { traceparent, ..decode(request.into_inner())? })
}

async fn instance<R, F>(request: DriverResult<R>, call: impl FnOnce(R) -> F) -> Response<MachineResponse>
where
    F: Future<Output = DriverResult<Instance>>,
{
    let answer = match request {
        Ok(request) => call(request).await,
        Err(error) => Err(error),
    };
    Response::new(protocol::encode_instance(answer))
}

/// The span of a call, below the manager's. A call that is not traced has none.
fn span(method: &'static str, request: &MachineRequest) -> Span {
    let Some(parent) = request.traceparent.as_deref().and_then(|text| text.parse().ok()) else { return Span::none() };
    let span = tracing::info_span!(
        "call",
        otel.name = method,
        otel.kind = "server",
        otel.status_code = field::Empty,
        error.type = field::Empty,
        nodewright.machine.name = request.name,
        nodewright.machine.namespace = request.namespace,
        nodewright.machine.uid = request.uid,
    );
    trace::set_parent(&span, parent);
    span
}

/// A call within its span. The message of a failure may quote a secret: the span has its code alone.
async fn in_span<T>(span: Span, call: impl Future<Output = DriverResult<T>>) -> DriverResult<T> {
    let answer = call.instrument(span.clone()).await;
    if let Err(error) = &answer {
        span.record("otel.status_code", "ERROR");
        span.record("error.type", error.code.name());
    }
    answer
}
