//! Refusals, in the form of the API server's own.

use kube::core::Status;
use kube::core::response::{StatusCause, StatusDetails};
use nodewright_api::field::{FieldError, summary};
use nodewright_runtime::clip::{LONGEST, clip};

use super::decode::{DecodeError, DecodeErrorKind};
use crate::configurations::ReviewedKind;

const MAX_CAUSES: usize = 50;

/// The object is invalid: `MachineDeployment.machine.sapcloud.io "x" is invalid: spec.replicas: Invalid value: …`.
pub(super) fn invalid(kind: ReviewedKind, name: &str, errors: &[FieldError]) -> Status {
    let shown = &errors[..errors.len().min(MAX_CAUSES)];
    let causes = shown
        .iter()
        .map(|error| StatusCause {
            reason: error.reason().to_owned(),
            message: clip(error.body()),
            field: clip(error.path.as_str()),
        })
        .collect();
    let text = match errors.len() - shown.len() {
        0 => summary_of(shown),
        more => format!("{} and {more} more", summary_of(shown)),
    };
    status(kind, name, &text, causes)
}

/// Like [`summary`], with clipped texts.
fn summary_of(errors: &[FieldError]) -> String {
    let is_short = |error: &FieldError| error.body().len() + error.path.as_str().len() <= LONGEST;
    if errors.iter().all(is_short) {
        return summary(errors);
    }
    let texts: Vec<_> = errors.iter().map(|error| clip(error.to_string())).collect();
    format!("[{}]", texts.join(", "))
}

pub(super) fn undecodable(kind: ReviewedKind, name: &str, error: DecodeError) -> Status {
    // The reasons of the API server for a missing field and for a value of the wrong type.
    let (reason, message) = match error.kind {
        DecodeErrorKind::Missing => ("FieldValueRequired", "Required value".to_owned()),
        DecodeErrorKind::Invalid(text) => ("FieldValueTypeInvalid", format!("Invalid value: {text}")),
    };
    let text = if error.field.is_empty() { message.clone() } else { format!("{}: {message}", error.field) };
    status(kind, name, &text, vec![StatusCause { reason: reason.to_owned(), message, field: error.field }])
}

pub(super) fn too_large(kind: ReviewedKind, name: &str, why: &str) -> Status {
    let message = format!("{}.{} {name:?} is too large: {why}", kind.kind(), kind.group());
    Status::failure(&message, "RequestEntityTooLarge").with_code(413)
}

pub(super) fn bad_request(message: &str) -> Status {
    Status::failure(message, "BadRequest").with_code(400)
}

fn status(kind: ReviewedKind, name: &str, text: &str, causes: Vec<StatusCause>) -> Status {
    let (kind, group) = (kind.kind(), kind.group());
    let message = format!("{kind}.{group} {name:?} is invalid: {text}");
    Status::failure(&message, "Invalid").with_code(422).with_details(StatusDetails {
        name: name.to_owned(),
        group: group.to_owned(),
        kind: kind.to_owned(),
        uid: String::new(),
        causes,
        retry_after_seconds: 0,
    })
}

#[cfg(test)]
mod tests {
    use nodewright_api::field::FieldPath;

    use super::*;

    #[test]
    fn reads_like_a_refusal_of_the_api_server() {
        let replicas = FieldPath::new("spec").child("replicas");
        let error = FieldError::invalid(replicas, -1, "must be greater than or equal to 0");
        let status = invalid(ReviewedKind::MachineDeployment, "x", &[error]);
        assert_eq!(
            status.message,
            r#"MachineDeployment.machine.sapcloud.io "x" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0"#
        );
        assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
        let details = status.details.unwrap();
        assert_eq!((details.name.as_str(), details.kind.as_str()), ("x", "MachineDeployment"));
        assert_eq!(details.causes[0].reason, "FieldValueInvalid");
        assert_eq!(details.causes[0].message, "Invalid value: -1: must be greater than or equal to 0");
    }

    #[test]
    fn the_answer_stays_small() {
        let long = "ä".repeat(100_000);
        let errors: Vec<_> = (0..10_000)
            .map(|index| FieldError::invalid(FieldPath::new("spec").key(index), long.as_str(), "no"))
            .collect();
        let status = invalid(ReviewedKind::MachineClass, "x", &errors);
        assert!(status.message.len() < 200_000, "{}", status.message.len());
        assert!(status.message.ends_with("and 9950 more"), "{}", status.message);
        assert_eq!(status.details.unwrap().causes.len(), MAX_CAUSES);
    }
}
