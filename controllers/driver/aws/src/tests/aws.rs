//! A stand-in for what the driver asks for credentials: STS, and the metadata service as AWS documents its second version. Its EC2
//! has no VMs.

use std::{net::SocketAddr, sync::atomic::AtomicUsize};

use http::HeaderMap;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use jiff::SignedDuration;
use tokio::net::TcpListener;

use super::*;

pub(super) const INSTANCE_ROLE: &str = "my-cluster-machines";
const SESSION: &str = "session-of-the-metadata-service";
const METADATA_HOST: &str = "169.254.169.254";

/// A request, as the stand-in saw it.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// Host, method and path.
    pub line: String,
    pub headers: HeaderMap,
    pub body: String,
}

impl Seen {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn is_for(&self, service: &str) -> bool {
        self.line.starts_with(service)
    }
}

/// What the stand-in answers.
pub(super) struct Script {
    /// How long the credentials last that are issued next, in seconds.
    pub lifetime: i64,
    /// The answer of STS, if it is no role.
    pub sts: Option<(u16, String)>,
    pub ec2: (u16, String),
    /// How long STS and the metadata service take.
    pub delay: Duration,
}

#[derive(Clone)]
pub(super) struct Aws {
    pub script: Arc<Mutex<Script>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    issued: Arc<AtomicUsize>,
}

impl Aws {
    pub(super) fn new() -> Self {
        let script = Script { lifetime: 3_600, sts: None, ec2: (200, page(&[], "")), delay: Duration::ZERO };
        Self { script: Arc::new(Mutex::new(script)), seen: Arc::default(), issued: Arc::default() }
    }

    /// A driver for which there is nothing else.
    pub(super) fn driver(&self) -> AwsDriver {
        let aws = self.clone();
        let service = tower::service_fn(move |request: Request<Full<Bytes>>| {
            let aws = aws.clone();
            async move {
                let (head, body) = request.into_parts();
                let line = format!("{} {} {}", head.uri.host().unwrap_or_default(), head.method, head.uri.path());
                let (status, text) = aws.answer(line, head.headers, body.collect().await?.to_bytes()).await;
                Ok::<_, Infallible>(Response::builder().status(status).body(Full::new(Bytes::from(text))).unwrap())
            }
        });
        AwsDriver::with_service(service, &Options::default(), 5).unwrap()
    }

    /// Serves the metadata service on a port of this computer, and returns its URL.
    pub(super) async fn serve_metadata(&self) -> String {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let aws = self.clone();
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let aws = aws.clone();
                let service = service_fn(move |request: Request<Incoming>| aws.clone().metadata_over_http(request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(connection), service));
            }
        });
        url
    }

    async fn metadata_over_http(
        self,
        request: Request<Incoming>,
    ) -> std::result::Result<Response<Full<Bytes>>, BoxError> {
        let (head, body) = request.into_parts();
        let line = format!("{METADATA_HOST} {} {}", head.method, head.uri.path());
        let (status, text) = self.answer(line, head.headers, body.collect().await?.to_bytes()).await;
        Ok(Response::builder().status(status).body(Full::new(Bytes::from(text)))?)
    }

    /// What was asked of a service, such as `sts.`.
    pub(super) fn seen(&self, service: &str) -> Vec<Seen> {
        self.seen.lock().iter().filter(|seen| seen.is_for(service)).cloned().collect()
    }

    pub(super) fn metadata(&self) -> Vec<Seen> {
        self.seen(METADATA_HOST)
    }

    async fn answer(&self, line: String, headers: HeaderMap, body: Bytes) -> (u16, String) {
        let seen = Seen { line, headers, body: String::from_utf8(body.to_vec()).unwrap() };
        self.seen.lock().push(seen.clone());
        if seen.is_for("ec2.") {
            return self.script.lock().ec2.clone();
        }
        let delay = self.script.lock().delay;
        tokio::time::sleep(delay).await;
        if seen.is_for("sts.") { self.sts(&seen) } else { self.metadata_answer(&seen) }
    }

    /// The key of the credentials that are issued next, and when they end.
    fn issue(&self) -> (String, String) {
        let number = 1 + self.issued.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let ends = Timestamp::now() + SignedDuration::from_secs(self.script.lock().lifetime);
        (format!("ASIA{number}"), ends.to_string())
    }

    fn sts(&self, seen: &Seen) -> (u16, String) {
        if let Some(refusal) = self.script.lock().sts.clone() {
            return refusal;
        }
        let action = seen.body.strip_prefix("Action=").and_then(|rest| rest.split('&').next()).unwrap();
        let (key, ends) = self.issue();
        let issued = format!(
            "<Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>hunter2-{key}</SecretAccessKey>\
             <SessionToken>session-hunter2-{key}</SessionToken><Expiration>{ends}</Expiration></Credentials>"
        );
        (200, format!("<{action}Response><{action}Result>{issued}</{action}Result></{action}Response>"))
    }

    fn metadata_answer(&self, seen: &Seen) -> (u16, String) {
        let text = |text: &str| (200, text.to_owned());
        let nothing = |status| (status, String::new());
        let path = seen.line.strip_prefix(METADATA_HOST).unwrap().trim();
        if path == "PUT /latest/api/token" {
            let lifetime = seen.header("x-aws-ec2-metadata-token-ttl-seconds").and_then(|text| text.parse().ok());
            return match lifetime {
                // A proxy that is open to others must not pass it on.
                _ if seen.header("x-forwarded-for").is_some() => nothing(403),
                Some(1..=21_600) => text(SESSION),
                _ => nothing(400),
            };
        }
        if seen.header("x-aws-ec2-metadata-token") != Some(SESSION) {
            return nothing(401);
        }
        let role = "GET /latest/meta-data/iam/security-credentials/";
        match path.strip_prefix(role) {
            Some("") => text(INSTANCE_ROLE),
            Some(INSTANCE_ROLE) => {
                let (key, ends) = self.issue();
                let issued = serde_json::json!({
                    "Code": "Success", "LastUpdated": "2026-11-22T10:00:00Z", "Type": "AWS-HMAC", "AccessKeyId": key,
                    "SecretAccessKey": format!("hunter2-{key}"), "Token": format!("session-hunter2-{key}"), "Expiration": ends,
                });
                text(&issued.to_string())
            }
            _ => nothing(404),
        }
    }
}
