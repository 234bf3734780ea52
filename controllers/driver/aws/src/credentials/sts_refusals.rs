//! What the error codes of STS mean to the manager. Its texts are not passed on: they may quote a token.

use http::StatusCode;
use nodewright_api::Code;
use nodewright_driver::DriverError;

use crate::errors::{Meaning, excerpt, meaning};

/// A request of STS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StsAction {
    AssumeRole,
    AssumeRoleWithWebIdentity,
}

impl StsAction {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::AssumeRole => "AssumeRole",
            Self::AssumeRoleWithWebIdentity => "AssumeRoleWithWebIdentity",
        }
    }
}

/// The failure of a request that STS has refused. It never says that a VM is gone.
pub(super) fn refusal(action: StsAction, status: StatusCode, sts_code: &str, text: &str) -> DriverError {
    let code = excerpt(sts_code);
    // Some codes have the name of their exception, some do not.
    let (meaning, reported) = match sts_code.strip_suffix("Exception").unwrap_or(sts_code) {
        "IDPCommunicationError" => (Meaning::Plain(Code::Unavailable), "the identity provider does not answer STS"),
        "InvalidIdentityToken" if text.contains("verification key") => {
            (Meaning::Plain(Code::Unavailable), "STS cannot get the keys of the identity provider")
        }
        "InvalidIdentityToken" | "IDPRejectedClaim" => (Meaning::Plain(Code::Unauthenticated), credentials(action)),
        "RegionDisabled" => (Meaning::Plain(Code::PermissionDenied), "STS is not active in the region for the account"),
        "ValidationError" => (Meaning::Plain(Code::InvalidArgument), "check roleARN and externalID of the Secret"),
        _ => {
            let meaning = meaning(sts_code, status);
            (meaning, hint(action, meaning))
        }
    };
    let message = format!("STS refused {}: {code}: {reported}", action.name());
    match meaning {
        Meaning::Throttled => DriverError::new(Code::Unavailable, message).throttled(),
        Meaning::NoCapacity | Meaning::Limit => DriverError::new(Code::Unavailable, message),
        // These are of a VM, and STS knows none.
        Meaning::Plain(Code::NotFound | Code::AlreadyExists) => DriverError::new(Code::Internal, message),
        Meaning::Plain(code) => DriverError::new(code, message),
    }
}

fn hint(action: StsAction, meaning: Meaning) -> &'static str {
    match meaning {
        Meaning::Plain(Code::Unauthenticated) => credentials(action),
        Meaning::Plain(Code::PermissionDenied) => {
            "there is no such role as roleARN of the Secret names, or its trust policy or the caller's own does not allow this"
        }
        Meaning::Plain(Code::InvalidArgument) => "check the role in the Secret",
        _ => "it has failed",
    }
}

fn credentials(action: StsAction) -> &'static str {
    match action {
        StsAction::AssumeRole => {
            "the credentials of the role's caller were not accepted; or the clock of this computer is wrong"
        }
        StsAction::AssumeRoleWithWebIdentity => {
            "the token was not accepted: it has ended, or the account has no identity provider with its issuer and audience"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_of_sts_has_one_of_ours_and_no_text_is_passed_on() {
        let table = [
            ("AccessDenied", 403, Code::PermissionDenied),
            ("InvalidClientTokenId", 403, Code::Unauthenticated),
            ("SignatureDoesNotMatch", 403, Code::Unauthenticated),
            ("ExpiredToken", 403, Code::Unauthenticated),
            ("ExpiredTokenException", 400, Code::Unauthenticated),
            ("InvalidIdentityToken", 400, Code::Unauthenticated),
            ("InvalidIdentityTokenException", 400, Code::Unauthenticated),
            ("IDPRejectedClaim", 403, Code::Unauthenticated),
            ("IDPCommunicationError", 400, Code::Unavailable),
            ("RegionDisabledException", 403, Code::PermissionDenied),
            ("ValidationError", 400, Code::InvalidArgument),
            ("MissingParameter", 400, Code::InvalidArgument),
            ("Throttling", 400, Code::Unavailable),
            ("LimitExceeded", 409, Code::Unavailable),
            ("InternalFailure", 500, Code::Unavailable),
            ("ServiceUnavailable", 503, Code::Unavailable),
            ("InvalidInstanceID.NotFound", 404, Code::Internal),
            ("SomethingNew", 400, Code::Internal),
        ];
        for action in [StsAction::AssumeRole, StsAction::AssumeRoleWithWebIdentity] {
            for (sts_code, status, code) in table {
                let error = refusal(action, StatusCode::from_u16(status).unwrap(), sts_code, "hunter2");
                assert_eq!(error.code, code, "{sts_code}");
                assert!(error.message.contains(sts_code) && error.message.contains(action.name()), "{error}");
                assert!(!error.message.contains("hunter2"), "{error}");
                assert_eq!(error.throttled, sts_code == "Throttling");
            }
        }
    }

    #[test]
    fn an_identity_provider_that_sts_cannot_reach_is_asked_again() {
        let text = "Couldn't retrieve verification key from your identity provider, please reference documentation";
        let error =
            refusal(StsAction::AssumeRoleWithWebIdentity, StatusCode::BAD_REQUEST, "InvalidIdentityToken", text);
        assert!(error.is_passing(), "{error}");
    }
}
