//! A client of moto's server.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};

use crate::ec2::{
    Ec2Error, Vm,
    account::{ACCESS_KEY, REGION},
    answers,
    proxy::Answer,
};

/// The environment variable with the path of `moto_server`, which `hack/moto.sh` prints.
pub const MOTO_VARIABLE: &str = "NODEWRIGHT_MOTO_SERVER";

/// moto's server. It fails nothing, hides nothing, and looks at no signature.
#[derive(Clone)]
pub struct Moto {
    url: String,
    http: legacy::Client<HttpConnector, Full<Bytes>>,
}

impl fmt::Debug for Moto {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Moto").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Moto {
    /// The server at a URL.
    pub fn new(url: impl Into<String>) -> Self {
        let http = legacy::Client::builder(TokioExecutor::new()).build(HttpConnector::new());
        Self { url: url.into(), http }
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Passes a request on, with the headers of its sender.
    pub(crate) async fn pass_on(&self, headers: &HeaderMap, form: &str) -> Result<Answer, Ec2Error> {
        let mut request = Request::post(&self.url).body(Full::new(Bytes::from(form.to_owned()))).map_err(unclear)?;
        for name in [header::AUTHORIZATION, header::CONTENT_TYPE] {
            request.headers_mut().extend(headers.get(&name).map(|value| (name, value.clone())));
        }
        let answer = self.http.request(request).await.map_err(unclear)?;
        let status = answer.status();
        Ok((status, answer.into_body().collect().await.map_err(unclear)?.to_bytes()))
    }

    /// A request of the account's owner: to `ec2` or `iam`, a form without its version. Fails unless it succeeds.
    pub async fn ask(&self, service: &str, form: &str) -> Result<String, Ec2Error> {
        let version = if service == "iam" { "2010-05-08" } else { "2016-11-15" };
        let scope = format!("{ACCESS_KEY}/20260101/{REGION}/{service}/aws4_request");
        let authorization = format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0");
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, authorization.parse().map_err(unclear)?);
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/x-www-form-urlencoded"));
        let (status, body) = self.pass_on(&headers, &format!("{form}&Version={version}")).await?;
        let text = String::from_utf8_lossy(&body).into_owned();
        if status == StatusCode::OK { Ok(text) } else { Err(Ec2Error::Moto(format!("{form}: {status}: {text}"))) }
    }

    /// All VMs, those that are gone included: moto never forgets one.
    pub async fn vms(&self) -> Result<Vec<Vm>, Ec2Error> {
        answers::vms(&self.ask("ec2", "Action=DescribeInstances").await?)
    }

    /// One VM. Fails if there never was one with this id.
    pub async fn vm(&self, id: &str) -> Result<Vm, Ec2Error> {
        let found = answers::vms(&self.ask("ec2", &format!("Action=DescribeInstances&InstanceId.1={id}")).await?)?;
        found.into_iter().next().ok_or_else(|| Ec2Error::Moto(format!("there is no {id}")))
    }
}

fn unclear(error: impl fmt::Display) -> Ec2Error {
    Ec2Error::Moto(error.to_string())
}
