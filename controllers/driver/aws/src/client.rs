//! The client of EC2: signed requests of the query protocol.
//!
//! # Guarantees
//! * Every request ends: by an answer, or by its timeout. Dropping it is safe. Answers and lists are bounded.
//! * A request whose effect is unknown has a transient code ([`DriverError::is_passing`]), so that it is made again.
//! * Credentials are in no message. They are sent to the host of the region or of the endpoint that the operator has set, and to
//!   no other: a redirection is not followed.

use std::{collections::HashSet, sync::Arc};

use aws_credential_types::Credentials;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use nodewright_api::Code;
use nodewright_driver::{DriverError, RequestCounter};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::Instrument;

use crate::{
    answers::{self, Instances, Refusal, Vm},
    credentials::{Identities, Session},
    endpoints::Endpoints,
    errors::{self, Refused},
    parameters::Action,
    signing::{self, Addressee},
    transport::{Lost, Transport},
};

const PAGES_LIMIT: usize = 2_000;

#[derive(Debug)]
pub(crate) struct Client {
    endpoints: Endpoints,
    page_size: usize,
    transport: Transport,
    identities: Arc<Identities>,
    /// Those of EC2 that have ended. A page of a list is one.
    pub(crate) requests: RequestCounter,
}

impl Client {
    pub(crate) fn new(endpoints: Endpoints, page_size: usize, transport: Transport) -> Self {
        let identities = Arc::new(Identities::new(&endpoints, &transport));
        Self { endpoints, page_size, transport, identities, requests: RequestCounter::default() }
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
        let credentials = self.identities.credentials(session).await.map_err(Refused::without_code)?;
        let begun = Instant::now();
        let answer = self.send(session, action, &credentials).await;
        self.requests.record(action.service, begun.elapsed(), answer.is_ok());
        answer
    }

    async fn send<T: DeserializeOwned>(
        &self,
        session: &Session,
        action: &Action,
        credentials: &Credentials,
    ) -> Result<T, Refused> {
        let request = self.signed(session, action, credentials)?;
        let span =
            tracing::info_span!("request", otel.name = action.name, otel.kind = "client", rpc.system = "aws-api");
        let sent = self.transport.send(request).instrument(span).await;
        let (status, body) = sent.map_err(|lost| lost_answer(action.name, &lost))?;
        if !status.is_success() {
            let refused = refusal(action.name, status, &body);
            return Err(self.identities.after(session, credentials, refused));
        }
        answers::read(&body).map_err(|why| {
            let message = format!("the answer cannot be understood: {why}; it may have had an effect");
            without_code(Code::Unknown, format!("{}: {message}", action.name))
        })
    }

    fn signed(
        &self,
        session: &Session,
        action: &Action,
        credentials: &Credentials,
    ) -> Result<Request<Full<Bytes>>, Refused> {
        let url = self.endpoints.ec2(&session.region);
        let to = Addressee { service: "ec2", region: &session.region, url: &url };
        signing::signed(to, action.body(), credentials)
            .map_err(|why| without_code(Code::Internal, format!("failed to sign {}: {why}", action.name)))
    }
}

fn lost_answer(action: &str, lost: &Lost) -> Refused {
    let code = match lost {
        Lost::Unreachable(why) => {
            return without_code(Code::Unavailable, format!("{action}: EC2 cannot be reached: {why}"));
        }
        Lost::Broken(_) => Code::Unknown,
        Lost::Late(_) => Code::DeadlineExceeded,
    };
    without_code(code, format!("{action}: {lost}; it may have had an effect"))
}

fn refusal(action: &str, status: StatusCode, body: &[u8]) -> Refused {
    match answers::read::<Refusal>(body).ok().and_then(Refusal::into_fault) {
        Some(fault) => errors::refusal(action, status, &fault.code, &fault.message),
        None => Refused::without_code(errors::unreadable("EC2", action, status)),
    }
}

fn without_code(code: Code, message: String) -> Refused {
    Refused::without_code(DriverError::new(code, message))
}
