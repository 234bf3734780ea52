//! A receiver of traces, in place of an OpenTelemetry collector.

use std::{net::SocketAddr, sync::Arc};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::any_value::Value,
    trace::v1::Span,
};
use parking_lot::Mutex;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use super::TestResult;

/// Receives traces by OTLP over gRPC, for the lifetime of the runtime that it was started on.
#[derive(Clone, Debug)]
pub struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
    address: SocketAddr,
}

#[derive(Debug)]
struct Service(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let spans = resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans);
        self.0.lock().extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Listens on a free port.
    pub async fn start() -> TestResult<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let spans = Arc::<Mutex<Vec<Span>>>::default();
        let service = TraceServiceServer::new(Service(Arc::clone(&spans)));
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Ok(Self { spans, address })
    }

    /// The endpoint for spans.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All received spans.
    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().clone()
    }

    /// The spans with this name for one machine.
    pub fn about(&self, name: &str, machine: &str) -> Vec<Span> {
        let about = |span: &Span| span.name == name && text(span, "nodewright.machine.name") == Some(machine);
        self.spans.lock().iter().filter(|span| about(span)).cloned().collect()
    }
}

/// An attribute of a span, if it is a text.
pub fn text<'a>(span: &'a Span, key: &str) -> Option<&'a str> {
    let attribute = span.attributes.iter().find(|attribute| attribute.key == key)?;
    match attribute.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}
