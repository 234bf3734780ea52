//! The calls, and what becomes of one that is lost.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use nodewright_api::Code;
use nodewright_driver::{DriverError, Instance, ListedVm, Result};
use nodewright_driver_protocol::{self as protocol, v1};
use nodewright_runtime::clip::clip_to;
use tokio::time::{Instant, timeout_at};
use tonic::{Request, Response, Status};

use super::session::{Client, Link, Session};

/// How long a call waits for a driver that is being started again.
const SESSION_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of VMs in a list.
const LONGEST_LIST: usize = 200_000;
/// The maximum length of gRPC's own text in an error, in bytes.
const EXCERPT: usize = 300;

/// The span of a call in the manager's trace.
type Trace = Option<Arc<str>>;

pub(crate) async fn create(link: Link, request: v1::CreateMachineRequest, trace: Trace) -> Result<Instance> {
    machine(link, async |mut client, deadline| client.create_machine(traced(request, trace, deadline)).await).await
}

pub(crate) async fn initialize(link: Link, request: v1::MachineRequest, trace: Trace) -> Result<Instance> {
    machine(link, async |mut client, deadline| client.initialize_machine(traced(request, trace, deadline)).await).await
}

pub(crate) async fn status(link: Link, request: v1::MachineRequest, trace: Trace) -> Result<Instance> {
    machine(link, async |mut client, deadline| client.get_machine_status(traced(request, trace, deadline)).await).await
}

pub(crate) async fn delete(link: Link, request: v1::MachineRequest, trace: Trace) -> Result<Option<String>> {
    let send = async |mut client: Client, deadline| client.delete_machine(traced(request, trace, deadline)).await;
    unary(link, send, |answer, _| protocol::decode_deleted(answer)).await
}

pub(crate) async fn delete_orphan(link: Link, request: v1::DeleteOrphanRequest) -> Result<()> {
    let send = async |mut client: Client, deadline| client.delete_orphan(within(request, deadline)).await;
    unary(link, send, |answer, _| protocol::decode_deleted(answer).map(drop)).await
}

pub(crate) async fn describe_unowned(link: Link, request: v1::DescribeUnownedRequest) -> Result<Instance> {
    machine(link, async |mut client, deadline| client.describe_unowned(within(request, deadline)).await).await
}

pub(crate) async fn list(link: Link, class: v1::Class) -> Result<BTreeMap<String, ListedVm>> {
    call(&link, async |session, deadline| {
        let request = within(v1::ListMachinesRequest { class: Some(class) }, deadline);
        let mut pages =
            session.client.clone().list_machines(request).await.map_err(|status| session.lost(&status))?.into_inner();
        let mut list = BTreeMap::new();
        while let Some(page) = pages.message().await.map_err(|status| session.lost(&status))? {
            if protocol::decode_listed(page, &session.info.provider_id_prefix, &mut list)? {
                return Ok(list);
            }
            if list.len() > LONGEST_LIST {
                let message = format!("the driver lists more than {LONGEST_LIST} VMs: this is a defect of the driver");
                return Err(DriverError::new(Code::Internal, message));
            }
        }
        Err(DriverError::new(Code::Unknown, "the driver's list of VMs has broken off"))
    })
    .await
}

pub(crate) async fn volume_ids(link: Link, request: v1::GetVolumeIdsRequest) -> Result<Vec<Option<String>>> {
    let asked = request.volume_specs.len();
    let send = async |mut client: Client, deadline| client.get_volume_ids(within(request, deadline)).await;
    unary(link, send, |answer, _| protocol::decode_volume_ids(answer, asked)).await
}

async fn machine(
    link: Link,
    send: impl AsyncFnOnce(Client, Instant) -> std::result::Result<Response<v1::MachineResponse>, Status>,
) -> Result<Instance> {
    unary(link, send, |answer, session| protocol::decode_instance(answer, &session.info.provider_id_prefix)).await
}

/// Makes a call that has one answer.
async fn unary<M, T>(
    link: Link,
    send: impl AsyncFnOnce(Client, Instant) -> std::result::Result<Response<M>, Status>,
    decode: impl FnOnce(M, &Session) -> Result<T>,
) -> Result<T> {
    call(&link, async |session, deadline| {
        let answer = send(session.client.clone(), deadline).await.map_err(|status| session.lost(&status))?;
        decode(answer.into_inner(), session)
    })
    .await
}

/// Makes a call, and ends it at the deadline that the driver has named.
async fn call<T>(link: &Link, make: impl AsyncFnOnce(&Session, Instant) -> Result<T>) -> Result<T> {
    let begun = Instant::now();
    let session =
        link.session(SESSION_TIMEOUT).await.ok_or_else(|| DriverError::new(Code::Unavailable, link.reason()))?;
    let longest = session.info.longest_call;
    timeout_at(begun + longest, make(&session, begun + longest)).await.unwrap_or_else(|_| {
        let message = format!("the driver has not answered within {longest:?}; the call may have had an effect");
        Err(DriverError::new(Code::DeadlineExceeded, message))
    })
}

fn within<T>(message: T, deadline: Instant) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(deadline.saturating_duration_since(Instant::now()));
    request
}

fn traced<T>(message: T, trace: Trace, deadline: Instant) -> Request<T> {
    let mut request = within(message, deadline);
    if let Some(trace) = trace.and_then(|trace| trace.parse().ok()) {
        request.metadata_mut().insert(protocol::TRACEPARENT, trace);
    }
    request
}

impl Session {
    /// The failure of a call whose answer is lost. If there is no connection any more, the next call waits for another one.
    fn lost(&self, status: &Status) -> DriverError {
        if status.code() == tonic::Code::Unavailable {
            self.end();
        }
        lost(status)
    }
}

/// A call without an answer. It may have had an effect, so whatever gRPC says of it has a code that passes.
fn lost(status: &Status) -> DriverError {
    let code = match status.code() {
        tonic::Code::Unavailable => Code::Unavailable,
        tonic::Code::DeadlineExceeded => Code::DeadlineExceeded,
        _ => Code::Unknown,
    };
    let text = status.message().replace(|character: char| character.is_control(), " ");
    let message = format!(
        "the driver's answer is lost ({:?}: {}); the call may have had an effect",
        status.code(),
        clip_to(EXCERPT, text)
    );
    DriverError::new(code, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_answer_always_passes_and_never_says_that_there_is_no_vm() {
        for number in 0..=17 {
            let error = lost(&Status::new(tonic::Code::from(number), "a\nb".repeat(1_000)));
            assert!(error.is_passing(), "{number}: {error}");
            assert!(error.message.len() < 500 && !error.message.contains('\n'));
        }
    }
}
