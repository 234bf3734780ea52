//! The HTTP client of EC2: signed requests of the query protocol.
//!
//! # Guarantees
//! * Every request ends: by an answer, or by its timeout. Dropping it is safe. Answers and lists are bounded.
//! * A request whose effect is unknown has a transient code ([`DriverError::is_passing`]), so that it is made again.
//! * Credentials are in no message. They are sent to the host of the region or of the endpoint that the operator has set, and to
//!   no other: a redirection is not followed.

use std::{
    collections::HashSet,
    io,
    time::{Duration, SystemTime},
};

use aws_sigv4::{
    http_request::{SignableBody, SignableRequest, SigningSettings, sign},
    sign::v4,
};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper_util::client::legacy;
use nodewright_api::Code;
use nodewright_driver::DriverError;
use nodewright_runtime::error::with_causes;
use serde::de::DeserializeOwned;
use tower::{BoxError, ServiceExt, util::BoxCloneSyncService};

use crate::{
    EndpointError,
    answers::{self, Instances, Refusal, Vm},
    credentials::AccessKey,
    errors::{self, Refused},
    parameters::Action,
};

const PAGES_LIMIT: usize = 2_000;
const AGENT: &str = concat!("nodewright/", env!("CARGO_PKG_VERSION"), " (aws-driver)");
const FORM: &str = "application/x-www-form-urlencoded; charset=utf-8";

pub(crate) type Transport =
    BoxCloneSyncService<Request<Full<Bytes>>, Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>;

/// Where and as whom requests are made.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub region: String,
    pub key: AccessKey,
}

#[derive(Debug)]
pub(crate) struct Client {
    /// `None`: that of the region.
    endpoint: Option<String>,
    timeout: Duration,
    page_size: usize,
    transport: Transport,
}

impl Client {
    pub(crate) fn new(
        endpoint: Option<&str>,
        timeout: Duration,
        page_size: usize,
        transport: Transport,
    ) -> Result<Self, EndpointError> {
        let endpoint = endpoint.map(read_endpoint).transpose()?;
        Ok(Self { endpoint, timeout, page_size, transport })
    }

    /// All VMs of a request that describes them, of all pages.
    pub(crate) async fn list(&self, session: &Session, action: &Action) -> Result<Vec<Vm>, Refused> {
        let first = action.clone().with("MaxResults", self.page_size);
        let (mut vms, mut tokens, mut next) = (vec![], HashSet::new(), first.clone());
        loop {
            let mut page: Instances = self.call(session, &next).await?;
            let token = page.next_token.take().filter(|token| !token.is_empty());
            vms.extend(page.into_vms());
            let Some(token) = token else { return Ok(vms) };
            next = first.clone().with("NextToken", &token);
            if !tokens.insert(token) || tokens.len() > PAGES_LIMIT {
                return Err(without_code(
                    Code::Internal,
                    "the list of VMs does not end: its token leads back".to_owned(),
                ));
            }
        }
    }

    pub(crate) async fn call<T: DeserializeOwned>(&self, session: &Session, action: &Action) -> Result<T, Refused> {
        let name = action.name;
        let request = self.signed(session, action)?;
        let lost = |code, why: &str| without_code(code, format!("{name}: {why}; it may have had an effect"));
        let (status, body) = match tokio::time::timeout(self.timeout, self.send(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) if never_arrived(error.as_ref()) => {
                let message = format!("{name}: EC2 cannot be reached: {}", with_causes(error.as_ref()));
                return Err(without_code(Code::Unavailable, message));
            }
            Ok(Err(error)) => {
                return Err(lost(Code::Unknown, &format!("the answer was lost: {}", with_causes(error.as_ref()))));
            }
            Err(_) => return Err(lost(Code::DeadlineExceeded, &format!("no answer within {:?}", self.timeout))),
        };
        if !status.is_success() {
            return Err(refusal(name, status, &body));
        }
        answers::read(&body).map_err(|why| lost(Code::Unknown, &format!("the answer cannot be understood: {why}")))
    }

    fn signed(&self, session: &Session, action: &Action) -> Result<Request<Full<Bytes>>, Refused> {
        let failed = |why: String| without_code(Code::Internal, format!("failed to sign {}: {why}", action.name));
        let (body, uri) = (action.body(), self.uri(&session.region));
        let identity = session.key.credentials().into();
        let parameters = v4::SigningParams::builder()
            .identity(&identity)
            .region(&session.region)
            .name("ec2")
            .time(SystemTime::now())
            .settings(SigningSettings::default())
            .build()
            .map_err(|error| failed(error.to_string()))?;
        let content_type = [(header::CONTENT_TYPE.as_str(), FORM)];
        let signable =
            SignableRequest::new("POST", &uri, content_type.into_iter(), SignableBody::Bytes(body.as_bytes()))
                .map_err(|error| failed(error.to_string()))?;
        let signed = sign(signable, &parameters.into()).map_err(|error| failed(error.to_string()))?;
        let (instructions, _) = signed.into_parts();
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(&uri)
            .header(header::USER_AGENT, AGENT)
            .header(header::CONTENT_TYPE, FORM)
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| failed(error.to_string()))?;
        instructions.apply_to_request_http1x(&mut request);
        Ok(request)
    }

    /// The region is one of letters, digits and dashes: it cannot lead to another host.
    fn uri(&self, region: &str) -> String {
        self.endpoint.clone().unwrap_or_else(|| {
            let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
            format!("https://ec2.{region}.{domain}/")
        })
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), BoxError> {
        let (head, body) = self.transport.clone().oneshot(request).await?.into_parts();
        Ok((head.status, body.collect().await?.to_bytes()))
    }
}

fn read_endpoint(url: &str) -> Result<String, EndpointError> {
    let failed = |reason: &str| EndpointError { url: url.to_owned(), reason: reason.to_owned() };
    let parsed: Uri = url.trim().parse().map_err(|_| failed("it is no URL"))?;
    if !matches!(parsed.scheme_str(), Some("http" | "https")) {
        return Err(failed("it must begin with https:// or http://"));
    }
    if parsed.host().is_none_or(str::is_empty) || parsed.path_and_query().is_some_and(|path| path != "/") {
        return Err(failed("it must have a host, and neither a path nor a query"));
    }
    Ok(format!("{}/", url.trim().trim_end_matches('/')))
}

fn refusal(action: &str, status: StatusCode, body: &[u8]) -> Refused {
    match answers::read::<Refusal>(body).ok().and_then(Refusal::into_fault) {
        Some(fault) => errors::refusal(action, status, &fault.code, &fault.message),
        None => errors::unreadable(action, status),
    }
}

fn never_arrived(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<legacy::Error>().is_some_and(legacy::Error::is_connect)
        || error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn without_code(code: Code, message: String) -> Refused {
    Refused { ec2_code: String::new(), error: DriverError::new(code, message) }
}
