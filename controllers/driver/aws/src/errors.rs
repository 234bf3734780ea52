//! What EC2's error codes mean to the manager.

use http::StatusCode;
use nodewright_api::Code;
use nodewright_driver::{DriverError, Exhausted};

/// The longest part of EC2's text in a message, in characters.
const EXCERPT: usize = 300;

/// How EC2's text begins if credentials are good, and something in the request is another account's.
const NOT_FOR: &str = "Not authorized for ";

/// EC2's code for an id that it does not know, or does not show yet.
pub(crate) const UNKNOWN_INSTANCE: &str = "InvalidInstanceID.NotFound";
/// EC2's code for a token that an earlier request has used with other parameters.
pub(crate) const OTHER_PARAMETERS: &str = "IdempotentParameterMismatch";
/// EC2's codes for temporary credentials that have ended.
pub(crate) const EXPIRED: [&str; 3] = ["ExpiredToken", "ExpiredTokenException", "RequestExpired"];

/// A refusal of EC2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// EC2's code; empty if the answer has none.
    pub ec2_code: String,
    /// The same for the manager.
    pub error: DriverError,
}

impl Refused {
    /// A failure without a code of EC2.
    pub(crate) fn without_code(error: DriverError) -> Self {
        Self { ec2_code: String::new(), error }
    }
}

/// What a code means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// There are too many calls.
    Throttled,
    /// The zone has no capacity; another zone may.
    NoCapacity,
    /// A quota of the account, or a subnet without addresses.
    Limit,
    Plain(Code),
}

const THROTTLED: &[&str] = &[
    "BandwidthLimitExceeded",
    "EC2ThrottledException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
];
/// `Unsupported` is EC2's word for an instance type that a zone does not have.
const NO_CAPACITY: &[&str] = &[
    "InsufficientCapacity",
    "InsufficientCapacityOnHost",
    "InsufficientHostCapacity",
    "InsufficientInstanceCapacity",
    "InsufficientReservedInstanceCapacity",
    "InsufficientVolumeCapacity",
    "ReservationCapacityExceeded",
    "SpotMaxPriceTooLow",
    "UnfulfillableCapacity",
    "Unsupported",
];
const LIMITS: &[&str] = &[
    "InsufficientAddressCapacity",
    "InsufficientFreeAddressesInSubnet",
    "MaxSpotInstanceCountExceeded",
    "VolumeIOPSLimit",
];
const UNAUTHENTICATED: &[&str] = &[
    "AuthFailure",
    "Blocked",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "MissingAuthenticationToken",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
];
const PERMISSION_DENIED: &[&str] =
    &["AccessDenied", "AccessDeniedException", "OptInRequired", "PendingVerification", "UnauthorizedOperation"];
const PRECONDITION: &[&str] =
    &["IdempotentInstanceTerminated", "IncorrectInstanceState", "IncorrectState", "OperationNotPermitted"];
const CONFLICT: &[&str] = &["ConcurrentTagAccess", "ConcurrentCreateOptionsPutRequest"];

/// What a code of EC2, or one that all services of AWS have, means.
pub(crate) fn meaning(ec2_code: &str, status: StatusCode) -> Meaning {
    let is = |codes: &[&str]| codes.contains(&ec2_code);
    match ec2_code {
        UNKNOWN_INSTANCE => Meaning::Plain(Code::NotFound),
        OTHER_PARAMETERS => Meaning::Plain(Code::AlreadyExists),
        _ if is(THROTTLED) => Meaning::Throttled,
        _ if is(NO_CAPACITY) => Meaning::NoCapacity,
        // Of the class, and not of the account.
        "TagLimitExceeded" => Meaning::Plain(Code::InvalidArgument),
        _ if is(LIMITS) || ec2_code.ends_with("LimitExceeded") => Meaning::Limit,
        _ if is(UNAUTHENTICATED) => Meaning::Plain(Code::Unauthenticated),
        _ if is(PERMISSION_DENIED) => Meaning::Plain(Code::PermissionDenied),
        _ if is(PRECONDITION) => Meaning::Plain(Code::FailedPrecondition),
        _ if is(CONFLICT) => Meaning::Plain(Code::Aborted),
        // Something failed at EC2, or on the way: the request may have had an effect.
        _ if !status.is_client_error() => Meaning::Plain(Code::Unavailable),
        _ if is_invalid(ec2_code) => Meaning::Plain(Code::InvalidArgument),
        _ => Meaning::Plain(Code::Internal),
    }
}

fn is_invalid(ec2_code: &str) -> bool {
    ["Invalid", "Malformed", "Missing", "Unknown", "NoSuchEntity", "VPCIdNotSpecified"]
        .iter()
        .any(|it| ec2_code.starts_with(it))
}

/// The failure of an action that EC2 has refused. A text that comes with credentials is not passed on: it may quote them.
pub(crate) fn refusal(action: &str, status: StatusCode, ec2_code: &str, text: &str) -> Refused {
    let meaning = match meaning(ec2_code, status) {
        // The credentials are good, but the account may not use an image.
        Meaning::Plain(Code::Unauthenticated) if text.starts_with(NOT_FOR) => Meaning::Plain(Code::InvalidArgument),
        meaning => meaning,
    };
    let reported = match meaning {
        Meaning::Plain(Code::Unauthenticated) => {
            "the credentials in the Secret were not accepted; or the clock of this computer is wrong".to_owned()
        }
        Meaning::Plain(Code::PermissionDenied) => {
            format!("the credentials do not allow {}", denied(text).unwrap_or(action))
        }
        _ => excerpt(text),
    };
    let message = format!("EC2 refused {action}: {}: {reported}", excerpt(ec2_code));
    let error = match meaning {
        Meaning::Throttled => DriverError::new(Code::Unavailable, message).throttled(),
        Meaning::NoCapacity => {
            let zone = zone(text).map(str::to_owned);
            DriverError::new(Code::ResourceExhausted, message).with_exhausted(Exhausted { zone, retry_after: None })
        }
        Meaning::Limit => DriverError::new(Code::ResourceExhausted, message).with_exhausted(Exhausted::default()),
        Meaning::Plain(code) => DriverError::new(code, message),
    };
    Refused { ec2_code: ec2_code.to_owned(), error }
}

/// The action that a policy denies, such as `iam:PassRole` in a request to run an instance. The rest of the text changes with each
/// attempt.
fn denied(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("not authorized to perform: ")?;
    let end = rest.find(|character: char| !character.is_ascii_alphanumeric() && !":-".contains(character));
    Some(&rest[..end.unwrap_or(rest.len())]).filter(|denied| (1..=64).contains(&denied.len()))
}

/// The failure of an answer without a code of the service, which most likely a gateway gave.
pub(crate) fn unreadable(service: &str, action: &str, status: StatusCode) -> DriverError {
    let code = if status == StatusCode::TOO_MANY_REQUESTS || !status.is_client_error() {
        Code::Unavailable
    } else {
        Code::Internal
    };
    let error =
        DriverError::new(code, format!("{action} was answered with status {status} and no reason of {service}"));
    if status == StatusCode::TOO_MANY_REQUESTS { error.throttled() } else { error }
}

/// The beginning of a text, in one line.
pub(crate) fn excerpt(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(EXCERPT).collect()
}

/// The zone that a text names: EC2's answers have no field for it.
fn zone(text: &str) -> Option<&str> {
    text.split(|character: char| !character.is_ascii_alphanumeric() && character != '-').find(|word| is_zone(word))
}

/// `eu-west-1a`, and local zones such as `us-west-2-lax-1a`.
fn is_zone(word: &str) -> bool {
    let parts: Vec<&str> = word.split('-').collect();
    let ends_in_letter = parts.last().is_some_and(|last| {
        let (digits, letter) = last.split_at(last.len().saturating_sub(1));
        !digits.is_empty()
            && digits.bytes().all(|it| it.is_ascii_digit())
            && letter.bytes().all(|it| it.is_ascii_lowercase())
    });
    parts.len() >= 3 && parts[0].len() == 2 && parts[0].bytes().all(|it| it.is_ascii_lowercase()) && ends_in_letter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_of_ec2_has_one_of_ours() {
        let table = [
            ("InsufficientInstanceCapacity", 500, Code::ResourceExhausted),
            ("Unsupported", 400, Code::ResourceExhausted),
            ("VcpuLimitExceeded", 400, Code::ResourceExhausted),
            ("InstanceLimitExceeded", 400, Code::ResourceExhausted),
            ("NetworkInterfaceLimitExceeded", 400, Code::ResourceExhausted),
            ("InsufficientFreeAddressesInSubnet", 400, Code::ResourceExhausted),
            ("InsufficientCapacityOnHost", 400, Code::ResourceExhausted),
            ("UnfulfillableCapacity", 500, Code::ResourceExhausted),
            ("TagLimitExceeded", 400, Code::InvalidArgument),
            ("RequestLimitExceeded", 503, Code::Unavailable),
            ("Throttling", 400, Code::Unavailable),
            ("InternalError", 500, Code::Unavailable),
            ("Unavailable", 503, Code::Unavailable),
            ("InvalidSomething", 500, Code::Unavailable),
            ("AuthFailure", 401, Code::Unauthenticated),
            ("InvalidClientTokenId", 403, Code::Unauthenticated),
            ("UnauthorizedOperation", 403, Code::PermissionDenied),
            ("InvalidAMIID.NotFound", 400, Code::InvalidArgument),
            ("InvalidParameterValue", 400, Code::InvalidArgument),
            ("MissingParameter", 400, Code::InvalidArgument),
            ("IdempotentParameterMismatch", 400, Code::AlreadyExists),
            ("IdempotentInstanceTerminated", 400, Code::FailedPrecondition),
            ("OperationNotPermitted", 400, Code::FailedPrecondition),
            ("InvalidInstanceID.NotFound", 400, Code::NotFound),
            ("SomethingNew", 400, Code::Internal),
        ];
        for (ec2_code, status, code) in table {
            let refused = refusal("RunInstances", StatusCode::from_u16(status).unwrap(), ec2_code, "text");
            assert_eq!(refused.error.code, code, "{ec2_code}");
            assert!(refused.error.message.contains(ec2_code));
        }
    }

    #[test]
    fn an_image_of_another_account_is_no_fault_of_the_credentials() {
        let refused = |text| refusal("RunInstances", StatusCode::UNAUTHORIZED, "AuthFailure", text).error;
        let image = refused("Not authorized for images: [ami-0abc]");
        assert_eq!(image.code, Code::InvalidArgument);
        assert!(image.message.ends_with("Not authorized for images: [ami-0abc]"), "{}", image.message);
        assert_eq!(refused("AWS was not able to validate the provided access credentials").code, Code::Unauthenticated);
    }

    #[test]
    fn only_a_request_for_fewer_calls_is_throttling() {
        let throttled = |ec2_code: &str| refusal("A", StatusCode::SERVICE_UNAVAILABLE, ec2_code, "").error.throttled;
        assert!(throttled("RequestLimitExceeded") && throttled("BandwidthLimitExceeded"));
        assert!(!throttled("InstanceLimitExceeded") && !throttled("Unavailable"));
        assert!(unreadable("EC2", "A", StatusCode::TOO_MANY_REQUESTS).throttled);
    }

    #[test]
    fn the_exhausted_zone_is_that_of_the_text() {
        let text = "We currently do not have sufficient m5.large capacity in the Availability Zone you requested (eu-west-1a). \
                    You can currently get m5.large capacity by not specifying an Availability Zone in your request or choosing eu-west-1b.";
        let zone =
            |ec2_code, text| refusal("RunInstances", StatusCode::INTERNAL_SERVER_ERROR, ec2_code, text).error.exhausted;
        let exhausted = |zone: Option<&str>| Some(Exhausted { zone: zone.map(str::to_owned), retry_after: None });
        assert_eq!(zone("InsufficientInstanceCapacity", text), exhausted(Some("eu-west-1a")));
        assert_eq!(zone("InsufficientInstanceCapacity", "in us-west-2-lax-1a!"), exhausted(Some("us-west-2-lax-1a")));
        for no_zone in ["", "on-demand", "eu-west-1", "a-b-1c", "in this zone"] {
            assert_eq!(zone("InsufficientInstanceCapacity", no_zone), exhausted(None), "{no_zone}");
        }
        // A quota of the account holds in each zone.
        assert_eq!(zone("VcpuLimitExceeded", text), exhausted(None));
        assert_eq!(zone("InvalidParameterValue", text), None);
    }

    #[test]
    fn texts_are_bounded_and_those_about_credentials_are_not_passed_on() {
        let message = |ec2_code, text: &str| refusal("A", StatusCode::FORBIDDEN, ec2_code, text).error.message;
        assert!(message("InvalidParameterValue", &"x\n".repeat(10_000)).len() < 400);
        assert!(!message("SignatureDoesNotMatch", "AKIASECRET").contains("AKIA"));
        // It has a text that changes with each attempt, and the Machine's status would with it.
        let denied = "User: arn:aws:iam::1:user/u is not authorized to perform: iam:PassRole on resource: arn:aws:iam::1:role/r \
                      because no policy allows it. Encoded authorization failure message: 4Zx";
        assert!(message("UnauthorizedOperation", denied).ends_with(": the credentials do not allow iam:PassRole"));
        let encoded = "You are not authorized to perform this operation. Encoded authorization failure message: 4Zx";
        assert!(message("UnauthorizedOperation", encoded).ends_with(": the credentials do not allow A"));
    }
}
