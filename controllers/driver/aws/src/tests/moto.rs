//! moto's server, and between it and the driver what EC2 does and moto does not: client tokens, VMs that do not show yet, a
//! second deletion, and failures on request.

use std::{
    collections::{HashMap, HashSet},
    env,
    future::pending,
    process::Stdio,
};

use http::header;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::Instant,
};

use nodewright_driver_contract::Outage;

use super::*;

/// Path of `moto_server`, which `hack/moto.sh` prints.
const MOTO_SERVER: &str = "NODEWRIGHT_MOTO_SERVER";
pub(super) const REGION: &str = "eu-west-1";
pub(super) const REJECTED_KEY: &str = "AKIAREJECTED";

type Http = legacy::Client<HttpConnector, Full<Bytes>>;
pub(super) type Answer = (StatusCode, Bytes);

/// A server of its own for one test. It ends with this value.
pub(super) struct Moto {
    _process: Child,
    pub url: String,
    http: Http,
}

impl Moto {
    /// `None` if there is no moto, and the reason is printed.
    pub(super) async fn start(test: &str) -> Option<Self> {
        let Some(program) = env::var_os(MOTO_SERVER) else {
            println!("skipped {test}: {MOTO_SERVER} is not set; `make test-aws` sets it");
            return None;
        };
        let mut process = Command::new(program)
            .args(["-H", "127.0.0.1", "-p", "0"])
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let url = loop {
            let line = lines.next_line().await.unwrap().expect("moto_server says where it listens");
            if let Some((_, url)) = line.split_once("Running on ") {
                break url.trim().to_owned();
            }
        };
        // It logs each request, and would wait for a reader.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let http = legacy::Client::builder(TokioExecutor::new()).build(HttpConnector::new());
        Some(Self { _process: process, url, http })
    }

    pub(super) fn cloud(&self) -> Cloud {
        Cloud { http: self.http.clone(), state: Arc::default(), creation: Arc::default() }
    }

    /// Makes an object that classes name. moto looks at no signature.
    pub(super) async fn make(&self, service: &str, form: String) -> String {
        let scope = format!(
            "AWS4-HMAC-SHA256 Credential=AKIATEST/20260101/{REGION}/{service}/aws4_request, SignedHeaders=host, Signature=0"
        );
        let request = Request::post(&self.url)
            .header(header::AUTHORIZATION, scope)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::new(Bytes::from(form)));
        let answer = self.http.request(request.unwrap()).await.unwrap();
        assert!(answer.status().is_success());
        String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }
}

#[derive(Default)]
struct State {
    outage: Option<Outage>,
    hides_next: bool,
    hidden: HashMap<String, Instant>,
    /// By token: the form of the request, and the answer.
    made: HashMap<String, (String, Answer)>,
    terminated: HashSet<String>,
}

/// EC2 as the driver sees it.
#[derive(Clone)]
pub(super) struct Cloud {
    http: Http,
    state: Arc<Mutex<State>>,
    creation: Arc<tokio::sync::Mutex<()>>,
}

/// How long a VM is hidden, which is a part of the driver's consistency.
const HIDDEN: Duration = Duration::from_secs(1);
pub(super) const CONSISTENCY: Duration = Duration::from_secs(2);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

impl Cloud {
    pub(super) fn driver(&self, url: &str, page_size: usize) -> AwsDriver {
        let cloud = self.clone();
        let service = tower::service_fn(move |request: Request<Full<Bytes>>| {
            // What EC2 has begun it ends, also when its client has gone.
            let answer = tokio::spawn(cloud.clone().answer(request));
            async move {
                let (status, body) = answer.await?;
                Ok::<_, BoxError>(Response::builder().status(status).body(Full::new(body))?)
            }
        });
        let options =
            Options { endpoint: Some(url.to_owned()), request_timeout: REQUEST_TIMEOUT, consistency: CONSISTENCY };
        AwsDriver::with_service(service, &options, page_size).unwrap()
    }

    /// A driver that sees moto itself, which hides nothing.
    pub(super) fn unhidden(&self, url: &str) -> AwsDriver {
        let options = Options { endpoint: Some(url.to_owned()), ..Options::default() };
        AwsDriver::with_service(self.http.clone(), &options, 1_000).unwrap()
    }

    pub(super) fn set_outage(&self, outage: Option<Outage>) {
        self.state.lock().outage = outage;
    }

    pub(super) fn hide_next(&self) {
        self.state.lock().hides_next = true;
    }

    async fn answer(self, request: Request<Full<Bytes>>) -> Answer {
        let (head, body) = request.into_parts();
        let form = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        let action = value(&form, "Action").unwrap_or_default();
        let outage = self.state.lock().outage;
        if head.headers["authorization"].to_str().unwrap().contains(REJECTED_KEY) {
            return error(401, "AuthFailure", "AWS was not able to validate the provided access credentials");
        }
        match outage {
            Some(Outage::Silent) => pending().await,
            Some(Outage::Failing) => return error(500, "InternalError", "An internal error has occurred"),
            Some(Outage::Full) if action == "RunInstances" => {
                let text = "We currently do not have sufficient t3.small capacity in the Availability Zone you requested (eu-west-1a).";
                return error(500, "InsufficientInstanceCapacity", text);
            }
            Some(Outage::Full) | None => {}
        }
        let head = Request::from_parts(head, ());
        match action.as_str() {
            "RunInstances" => self.run(&head, &form).await,
            "DescribeInstances" => self.describe(&head, &form).await,
            "TerminateInstances" => self.terminate(&head, &form).await,
            _ => self.pass_on(&head, &form).await,
        }
    }

    async fn pass_on(&self, head: &Request<()>, form: &str) -> Answer {
        let mut request = Request::post(head.uri()).body(Full::new(Bytes::from(form.to_owned()))).unwrap();
        request.headers_mut().clone_from(head.headers());
        let answer = self.http.request(request).await.unwrap();
        (answer.status(), answer.into_body().collect().await.unwrap().to_bytes())
    }

    /// One token, one VM; another request with the same token is refused.
    async fn run(&self, head: &Request<()>, form: &str) -> Answer {
        let _one = self.creation.lock().await;
        let token = value(form, "ClientToken");
        if let Some((asked, answer)) = token.as_ref().and_then(|token| self.state.lock().made.get(token).cloned()) {
            let other = || error(400, OTHER_PARAMETERS, "Arguments on this idempotent request are inconsistent");
            return if asked == form { answer } else { other() };
        }
        let answer = self.pass_on(head, form).await;
        if answer.0.is_success() {
            let id = between(&text(&answer), "<instanceId>", "</instanceId>");
            let mut state = self.state.lock();
            if std::mem::take(&mut state.hides_next) {
                state.hidden.insert(id, Instant::now() + HIDDEN);
            }
            state.made.extend(token.map(|token| (token, (form.to_owned(), answer.clone()))));
        }
        answer
    }

    fn hidden(&self) -> Vec<String> {
        let mut state = self.state.lock();
        state.hidden.retain(|_, until| *until > Instant::now());
        state.hidden.keys().cloned().collect()
    }

    async fn describe(&self, head: &Request<()>, form: &str) -> Answer {
        let hidden = self.hidden();
        if value(form, "InstanceId.1").is_some_and(|id| hidden.contains(&id)) {
            return error(400, UNKNOWN_INSTANCE, "The instance ID does not exist");
        }
        let (status, body) = self.pass_on(head, form).await;
        let (text, start, end) =
            (String::from_utf8(body.to_vec()).unwrap(), "<item><reservationId>", "</instancesSet></item>");
        let mut parts = text.split(start);
        let mut shown = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            if hidden.iter().any(|id| part.contains(id.as_str())) {
                shown += part.split_once(end).unwrap().1;
            } else {
                shown.extend([start, part]);
            }
        }
        (status, Bytes::from(shown))
    }

    async fn terminate(&self, head: &Request<()>, form: &str) -> Answer {
        let id = value(form, "InstanceId.1").unwrap();
        if self.hidden().contains(&id) {
            return error(400, UNKNOWN_INSTANCE, "The instance ID does not exist");
        }
        // moto fails here, and EC2 says that it is gone.
        if self.state.lock().terminated.contains(&id) {
            let body = format!(
                "<TerminateInstancesResponse><instancesSet><item><instanceId>{id}</instanceId></item></instancesSet></TerminateInstancesResponse>"
            );
            return (StatusCode::OK, Bytes::from(body));
        }
        let answer = self.pass_on(head, form).await;
        if answer.0.is_success() {
            self.state.lock().terminated.insert(id);
        }
        answer
    }
}

fn error(status: u16, code: &str, message: &str) -> Answer {
    let body =
        format!("<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors></Response>");
    (StatusCode::from_u16(status).unwrap(), Bytes::from(body))
}

fn text(answer: &Answer) -> String {
    String::from_utf8(answer.1.to_vec()).unwrap()
}

/// A parameter whose value needs no encoding.
fn value(form: &str, name: &str) -> Option<String> {
    form.split('&').find_map(|pair| Some(pair.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

pub(super) fn between(text: &str, start: &str, end: &str) -> String {
    text.split_once(start).and_then(|(_, rest)| rest.split_once(end)).expect(start).0.to_owned()
}
