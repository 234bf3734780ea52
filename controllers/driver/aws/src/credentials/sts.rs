//! The security token service: temporary credentials of a role.

use aws_credential_types::Credentials;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use nodewright_api::Code;
use nodewright_driver::{DriverError, Result};
use serde::Deserialize;

use super::{
    Role, WebIdentity,
    sts_refusals::{self, StsAction},
    temporary::TemporaryCredentials,
    token_file,
};
use crate::{
    answers,
    endpoints::Endpoints,
    errors,
    parameters::Action,
    signing::{self, Addressee},
    transport::{Lost, Transport},
};

/// The name of all sessions, which AWS's trail of calls shows.
const SESSION_NAME: &str = "nodewright";
/// The maximum size of an answer, in bytes.
const ANSWER_LIMIT: usize = 1 << 18;

#[derive(Debug)]
pub(super) struct Sts {
    endpoints: Endpoints,
    transport: Transport,
}

impl Sts {
    pub(super) fn new(endpoints: &Endpoints, transport: &Transport) -> Self {
        let transport = transport.within(transport.timeout(), ANSWER_LIMIT);
        Self { endpoints: endpoints.clone(), transport }
    }

    /// Assumes a role with the credentials of its caller.
    pub(super) async fn assume(&self, region: &str, role: &Role, caller: &Credentials) -> Result<TemporaryCredentials> {
        let action = assume_role(StsAction::AssumeRole, &role.arn);
        let action = role.external_id.iter().fold(action, |action, id| action.with("ExternalId", id));
        let url = self.endpoints.sts(region);
        let to = Addressee { service: "sts", region, url: &url };
        self.ask(StsAction::AssumeRole, signing::signed(to, action.body(), caller)).await
    }

    /// Assumes a role with the token in a file, which is read for that.
    pub(super) async fn assume_with_token(&self, region: &str, identity: &WebIdentity) -> Result<TemporaryCredentials> {
        let kind = StsAction::AssumeRoleWithWebIdentity;
        let token = token_file::read(&identity.token_file).await?;
        let action = assume_role(kind, &identity.role).with("WebIdentityToken", token);
        self.ask(kind, signing::unsigned(&self.endpoints.sts(region), action.body())).await
    }

    async fn ask(
        &self,
        action: StsAction,
        request: std::result::Result<Request<Full<Bytes>>, String>,
    ) -> Result<TemporaryCredentials> {
        let name = action.name();
        let request =
            request.map_err(|why| DriverError::new(Code::Internal, format!("{name} cannot be sent: {why}")))?;
        let (status, body) = self.transport.send(request).await.map_err(|lost| unanswered(name, &lost))?;
        if !status.is_success() {
            return Err(refusal(action, status, &body));
        }
        let read = answers::read::<Assumed>(&body).and_then(Assumed::into_temporary);
        read.map_err(|why| DriverError::new(Code::Unavailable, format!("STS answered {name}, but {why}")))
    }
}

fn assume_role(action: StsAction, role: &str) -> Action {
    Action::of_sts(action.name()).with("RoleArn", role).with("RoleSessionName", SESSION_NAME)
}

/// Such a request changes nothing, so it may be made again whatever became of it.
fn unanswered(action: &str, lost: &Lost) -> DriverError {
    let code = if matches!(lost, Lost::Late(_)) { Code::DeadlineExceeded } else { Code::Unavailable };
    DriverError::new(code, format!("{action} of STS: {lost}"))
}

fn refusal(action: StsAction, status: StatusCode, body: &[u8]) -> DriverError {
    match answers::read::<Refusal>(body) {
        Ok(Refusal { error }) => sts_refusals::refusal(action, status, &error.code, &error.message),
        Err(_) => errors::unreadable("STS", action.name(), status),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Assumed {
    #[serde(alias = "AssumeRoleResult", alias = "AssumeRoleWithWebIdentityResult")]
    result: Outcome,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Outcome {
    credentials: Issued,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Issued {
    access_key_id: String,
    secret_access_key: String,
    session_token: String,
    expiration: String,
}

impl Assumed {
    fn into_temporary(self) -> std::result::Result<TemporaryCredentials, &'static str> {
        let Issued { access_key_id, secret_access_key, session_token, expiration } = self.result.credentials;
        TemporaryCredentials::of([&access_key_id, &secret_access_key, &session_token], &expiration)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Refusal {
    error: answers::Fault,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_answers_are_read_and_others_are_not() {
        let issued = "<Credentials><AccessKeyId>ASIA</AccessKeyId><SecretAccessKey>s</SecretAccessKey>\
                      <SessionToken>t==</SessionToken><Expiration>2126-11-22T10:00:00Z</Expiration></Credentials>";
        let read = |text: String| answers::read::<Assumed>(text.as_bytes()).and_then(Assumed::into_temporary);
        for action in ["AssumeRole", "AssumeRoleWithWebIdentity"] {
            let result = format!("<{action}Result><Audience>a</Audience>{issued}</{action}Result>");
            let metadata = "<ResponseMetadata><RequestId>r</RequestId></ResponseMetadata>";
            let temporary =
                read(format!("<{action}Response>{result}{metadata}</{action}Response>")).map_err(str::to_owned);
            assert_eq!(
                temporary.map(|temporary| temporary.credentials.session_token().map(str::to_owned)),
                Ok(Some("t==".to_owned()))
            );
        }
        for text in
            ["", "<html/>", "<R><AssumeRoleResult/></R>", "<R><AssumeRoleResult><Credentials/></AssumeRoleResult></R>"]
        {
            assert!(read(text.to_owned()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_refusal_of_sts_has_a_code() {
        let body = b"<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code><Message>m</Message></Error><RequestId>r</RequestId></ErrorResponse>";
        assert_eq!(refusal(StsAction::AssumeRole, StatusCode::FORBIDDEN, body).code, Code::PermissionDenied);
        assert_eq!(refusal(StsAction::AssumeRole, StatusCode::BAD_GATEWAY, b"<html>").code, Code::Unavailable);
        assert_eq!(refusal(StsAction::AssumeRole, StatusCode::NOT_FOUND, b"<html>").code, Code::Internal);
    }
}
