//! How requests are sent: within a timeout, with bounded answers, and without following a redirection.

use std::{fmt, io, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper_util::client::legacy;
use nodewright_runtime::error::with_causes;
use tower::{BoxError, ServiceExt, util::BoxCloneSyncService};

pub(crate) type Service = BoxCloneSyncService<Request<Full<Bytes>>, Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>;

/// Sends requests. Dropping one is safe.
#[derive(Clone, Debug)]
pub(crate) struct Transport {
    service: Service,
    timeout: Duration,
    limit: usize,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The request was not received.
    Unreachable(String),
    /// It may have been received.
    Broken(String),
    /// It may have been received.
    Late(Duration),
}

impl fmt::Display for Lost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) => write!(formatter, "it cannot be reached: {why}"),
            Self::Broken(why) => write!(formatter, "the answer was lost: {why}"),
            Self::Late(timeout) => write!(formatter, "no answer within {timeout:?}"),
        }
    }
}

impl Transport {
    /// `limit` is the maximum size of an answer in bytes.
    pub(crate) fn new(service: Service, timeout: Duration, limit: usize) -> Self {
        Self { service, timeout, limit }
    }

    /// The same, with a timeout that is at most this one, and another maximum size of an answer in bytes.
    pub(crate) fn within(&self, timeout: Duration, limit: usize) -> Self {
        Self { service: self.service.clone(), timeout: self.timeout.min(timeout), limit }
    }

    /// The timeout of a request.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), Lost> {
        match tokio::time::timeout(self.timeout, self.exchange(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) if never_arrived(error.as_ref()) => Err(Lost::Unreachable(with_causes(error.as_ref()))),
            Ok(Err(error)) => Err(Lost::Broken(with_causes(error.as_ref()))),
            Err(_) => Err(Lost::Late(self.timeout)),
        }
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), BoxError> {
        let (head, mut body) = self.service.clone().oneshot(request).await?.into_parts();
        let mut read = vec![];
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            if read.len() + data.len() > self.limit {
                return Err(format!("it has more than {} bytes", self.limit).into());
            }
            read.extend_from_slice(&data);
        }
        Ok((head.status, Bytes::from(read)))
    }
}

fn never_arrived(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<legacy::Error>().is_some_and(legacy::Error::is_connect)
        || error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}
