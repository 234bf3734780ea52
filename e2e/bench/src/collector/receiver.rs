//! Collectors of traces: a good one, and those that are slow, hang or are away.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
    trace_service_server::{TraceService, TraceServiceServer},
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status, transport::Server};

/// How a collector behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behavior {
    /// It answers at once.
    Answers,
    /// It answers after this time.
    AnswersAfter(Duration),
    /// It accepts connections and never answers.
    Hangs,
    /// Nobody listens at its port.
    Refuses,
}

/// A collector. Dropping it ends it.
pub(super) struct Receiver {
    endpoint: String,
    received: Arc<AtomicU64>,
    _task: Option<AbortOnDropHandle<()>>,
}

impl Receiver {
    pub(super) async fn start(behavior: Behavior) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (endpoint, received) = (format!("http://{}", listener.local_addr()?), Arc::<AtomicU64>::default());
        let service = |delay| Service { received: Arc::clone(&received), delay };
        let task: Option<JoinHandle<()>> = match behavior {
            Behavior::Answers => Some(tokio::spawn(serve(listener, service(Duration::ZERO)))),
            Behavior::AnswersAfter(delay) => Some(tokio::spawn(serve(listener, service(delay)))),
            Behavior::Hangs => Some(tokio::spawn(hang(listener))),
            // The port is free again.
            Behavior::Refuses => None,
        };
        Ok(Self { endpoint, received, _task: task.map(AbortOnDropHandle::new) })
    }

    /// The value of `--otlp-endpoint`.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// How many spans have arrived. One that is sent again counts again.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }
}

struct Service {
    received: Arc<AtomicU64>,
    delay: Duration,
}

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let spans = resources.flat_map(|resource| resource.scope_spans).map(|scope| scope.spans.len() as u64);
        self.received.fetch_add(spans.sum(), Relaxed);
        tokio::time::sleep(self.delay).await;
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

async fn serve(listener: TcpListener, service: Service) {
    let server = Server::builder().add_service(TraceServiceServer::new(service));
    if let Err(error) = server.serve_with_incoming(TcpListenerStream::new(listener)).await {
        eprintln!("the collector has failed: {error}");
    }
}

/// Keeps each connection open, and reads nothing.
async fn hang(listener: TcpListener) {
    let mut connections = vec![];
    while let Ok((connection, _)) = listener.accept().await {
        connections.push(connection);
    }
}
