//! The metadata service of the instance that the driver runs on, in its second version: the credentials of the instance's role.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::Full;
use nodewright_api::Code;
use nodewright_driver::{DriverError, Result};
use serde::Deserialize;

use super::temporary::TemporaryCredentials;
use crate::{
    endpoints::Endpoints,
    signing::AGENT,
    transport::{Lost, Transport},
};

const TOKEN: &str = "latest/api/token";
const ROLES: &str = "latest/meta-data/iam/security-credentials/";
const TOKEN_HEADER: &str = "x-aws-ec2-metadata-token";
const LIFETIME_HEADER: &str = "x-aws-ec2-metadata-token-ttl-seconds";
/// How long a session with the service lasts, in seconds: two requests.
const LIFETIME: &str = "60";
/// The service is on the same computer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum size of an answer, in bytes.
const ANSWER_LIMIT: usize = 1 << 16;
/// The longest name of a role.
const LONGEST_NAME: usize = 64;

#[derive(Debug)]
pub(super) struct Metadata {
    url: String,
    transport: Transport,
}

/// A request of the service, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Session,
    Role,
    Credentials,
}

impl Metadata {
    pub(super) fn new(endpoints: &Endpoints, transport: &Transport) -> Self {
        Self { url: endpoints.metadata().to_owned(), transport: transport.within(TIMEOUT, ANSWER_LIMIT) }
    }

    pub(super) async fn credentials(&self) -> Result<TemporaryCredentials> {
        let session = self.ask(Question::Session, Method::PUT, TOKEN, (LIFETIME_HEADER, LIFETIME)).await?;
        let get = async |question, path: &str| self.ask(question, Method::GET, path, (TOKEN_HEADER, &session)).await;
        let role = get(Question::Role, ROLES).await?;
        // It becomes a part of a path.
        if !is_name(&role) {
            return Err(failed(Code::Unavailable, "has no name of a role where it should be"));
        }
        read(&get(Question::Credentials, &format!("{ROLES}{role}")).await?)
    }

    /// An answer, without the white space around it.
    async fn ask(&self, question: Question, method: Method, path: &str, header: (&str, &str)) -> Result<String> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header(header::USER_AGENT, AGENT)
            .header(header.0, header.1)
            .body(Full::<Bytes>::default());
        let request = request.map_err(|_| failed(Code::Unavailable, "has a session that is no value of a header"))?;
        let (status, body) = self.transport.send(request).await.map_err(|lost| unanswered(question, &lost))?;
        if !status.is_success() {
            return Err(refusal(question, status));
        }
        let text = std::str::from_utf8(&body).unwrap_or_default().trim();
        Ok(text.to_owned())
    }
}

fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_+=,.@-".contains(&byte);
    (1..=LONGEST_NAME).contains(&text.len()) && text.bytes().all(is_allowed) && !text.starts_with('.')
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Issued {
    code: String,
    #[serde(default)]
    access_key_id: String,
    #[serde(default)]
    secret_access_key: String,
    #[serde(default)]
    token: String,
    #[serde(default)]
    expiration: String,
}

fn read(text: &str) -> Result<TemporaryCredentials> {
    // The parser's text may quote a part of a key.
    let issued: Issued =
        serde_json::from_str(text).map_err(|_| failed(Code::Unavailable, "has no credentials where they should be"))?;
    if issued.code != "Success" {
        let is_word = issued.code.len() <= LONGEST_NAME && issued.code.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let code = if is_word { issued.code.as_str() } else { "a code that is none" };
        let what = format!("cannot give the instance's role its credentials: {code}; check the role's trust policy");
        // EC2's word for a failure of its own.
        return Err(failed(if code == "Failed" { Code::Unavailable } else { Code::Unauthenticated }, &what));
    }
    TemporaryCredentials::of([&issued.access_key_id, &issued.secret_access_key, &issued.token], &issued.expiration)
        .map_err(|why| failed(Code::Unavailable, &format!("has answered, but {why}")))
}

fn refusal(question: Question, status: StatusCode) -> DriverError {
    let error = match (question, status) {
        (Question::Role | Question::Credentials, StatusCode::NOT_FOUND) => {
            failed(Code::Unauthenticated, "reports that the instance has no role: it needs an instance profile")
        }
        (_, StatusCode::FORBIDDEN) => failed(Code::PermissionDenied, "is switched off, or not for this process"),
        // The session is over: the next call begins another.
        (_, StatusCode::UNAUTHORIZED) => failed(Code::Unavailable, "has refused its own session"),
        (_, StatusCode::TOO_MANY_REQUESTS) => failed(Code::Unavailable, "is asked too often").throttled(),
        (_, status) if !status.is_client_error() => {
            failed(Code::Unavailable, &format!("has failed, with status {status}"))
        }
        (_, status) => failed(Code::Internal, &format!("has refused a request, with status {status}")),
    };
    DriverError { message: format!("{}; the Secret has credentialSource: Ec2InstanceMetadata", error.message), ..error }
}

fn unanswered(question: Question, lost: &Lost) -> DriverError {
    let hint = match (question, lost) {
        // In a container there is a hop more than outside.
        (Question::Session, Lost::Late(_)) => "; if the driver is in a container, HttpPutResponseHopLimit must be 2",
        (Question::Session, _) => "; the driver has to run on an instance of EC2",
        _ => "",
    };
    failed(Code::Unavailable, &format!("has not answered: {lost}{hint}"))
}

fn failed(code: Code, what: &str) -> DriverError {
    DriverError::new(code, format!("the metadata service of the driver's instance {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_read_if_the_service_has_some() {
        let answer = |code: &str, secret: &str| {
            format!(
                r#"{{"Code": "{code}", "Type": "AWS-HMAC", "AccessKeyId": "ASIA", "SecretAccessKey": "{secret}", "Token": "t",
                     "Expiration": "2126-11-22T10:00:00Z"}}"#
            )
        };
        assert!(read(&answer("Success", "hunter2")).is_ok());
        for (text, code) in [
            (answer("AssumeRoleUnauthorizedAccess", "hunter2"), Code::Unauthenticated),
            (answer("hunter2 hunter2", ""), Code::Unauthenticated),
            (answer("Failed", ""), Code::Unavailable),
            (answer("Success", ""), Code::Unavailable),
            (r#"{"AccessKeyId": "hunter2"}"#.to_owned(), Code::Unavailable),
            ("hunter2".to_owned(), Code::Unavailable),
        ] {
            let Err(error) = read(&text) else { panic!("{text}") };
            assert!(error.code == code && !error.message.contains("hunter2"), "{text}: {error}");
        }
    }

    #[test]
    fn a_name_of_a_role_is_no_other_path() {
        assert!(is_name("my-cluster_machines+a=b,c.d@e") && is_name(&"x".repeat(64)));
        for text in ["", "..", "a/b", "a b", "a?b", "<html>", &"x".repeat(65)] {
            assert!(!is_name(text), "{text}");
        }
    }

    #[test]
    fn no_answer_of_the_service_says_that_a_vm_is_gone() {
        for (question, status, code) in [
            (Question::Session, 403, Code::PermissionDenied),
            (Question::Session, 404, Code::Internal),
            (Question::Role, 404, Code::Unauthenticated),
            (Question::Credentials, 404, Code::Unauthenticated),
            (Question::Role, 401, Code::Unavailable),
            (Question::Role, 429, Code::Unavailable),
            (Question::Session, 503, Code::Unavailable),
            (Question::Role, 302, Code::Unavailable),
        ] {
            let error = refusal(question, StatusCode::from_u16(status).unwrap());
            assert_eq!(error.code, code, "{question:?} {status}");
            assert_eq!(error.throttled, status == 429);
        }
        for lost in [Lost::Late(TIMEOUT), Lost::Broken(String::new()), Lost::Unreachable(String::new())] {
            assert_eq!(unanswered(Question::Session, &lost).code, Code::Unavailable);
        }
    }
}
