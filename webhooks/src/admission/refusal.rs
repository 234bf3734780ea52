//! Refusals in the form in which the API server refuses its own kinds.

use kube::core::Status;
use kube::core::response::{StatusCause, StatusDetails};
use nodewright_api::GROUP;
use nodewright_api::field::{FieldError, summary};

use crate::configurations::Subject;

/// No text is longer, whatever stands in the object.
const LONGEST_TEXT: usize = 1_024;

/// Whoever made more mistakes hears of the others next time.
const MOST_CAUSES: usize = 50;

/// The object is at fault: `MachineDeployment.machine.sapcloud.io "x" is invalid: spec.replicas: Invalid value: …`.
pub(super) fn invalid(subject: Subject, name: &str, errors: &[FieldError]) -> Status {
    let shown = &errors[..errors.len().min(MOST_CAUSES)];
    let causes = shown
        .iter()
        .map(|error| StatusCause {
            reason: error.kind.reason().to_owned(),
            message: clip(&error.body()),
            field: clip(error.path.as_str()),
        })
        .collect();
    let text = match errors.len() - shown.len() {
        0 => summary_of(shown),
        more => format!("{} and {more} more", summary_of(shown)),
    };
    status(subject, name, &text, causes)
}

/// As [`summary`], yet of bounded length.
fn summary_of(errors: &[FieldError]) -> String {
    let is_short = |error: &FieldError| error.body().len() + error.path.as_str().len() <= LONGEST_TEXT;
    if errors.iter().all(is_short) {
        return summary(errors);
    }
    let texts: Vec<_> = errors.iter().map(|error| clip(&error.to_string())).collect();
    format!("[{}]", texts.join(", "))
}

/// The object cannot be read.
pub(super) fn undecodable(subject: Subject, name: &str, field: &str, problem: &str, is_missing: bool) -> Status {
    // The reasons that the API server gives for a field that is absent, and for a value of the wrong type.
    let (reason, message) = if is_missing {
        ("FieldValueRequired", "Required value".to_owned())
    } else {
        ("FieldValueTypeInvalid", format!("Invalid value: {problem}"))
    };
    let text = if field.is_empty() { message.clone() } else { format!("{field}: {message}") };
    let cause = StatusCause { reason: reason.to_owned(), message, field: field.to_owned() };
    status(subject, name, &text, vec![cause])
}

/// The object is more than can be reviewed.
pub(super) fn too_large(subject: Subject, name: &str, problem: &str) -> Status {
    let message = format!("{}.{GROUP} {name:?} is too large: {problem}", subject.kind());
    Status::failure(&message, "RequestEntityTooLarge").with_code(413)
}

/// The question is at fault.
pub(super) fn bad_request(message: &str) -> Status {
    Status::failure(message, "BadRequest").with_code(400)
}

fn status(subject: Subject, name: &str, text: &str, causes: Vec<StatusCause>) -> Status {
    let kind = subject.kind();
    let message = format!("{kind}.{GROUP} {name:?} is invalid: {text}");
    Status::failure(&message, "Invalid").with_code(422).with_details(StatusDetails {
        name: name.to_owned(),
        group: GROUP.to_owned(),
        kind: kind.to_owned(),
        uid: String::new(),
        causes,
        retry_after_seconds: 0,
    })
}

/// The text, or the beginning of a long one.
pub(super) fn clip(text: &str) -> String {
    if text.len() <= LONGEST_TEXT {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(LONGEST_TEXT)])
}

#[cfg(test)]
mod tests {
    use nodewright_api::field::FieldPath;

    use super::*;

    #[test]
    fn reads_like_a_refusal_of_the_api_server() {
        let replicas = FieldPath::new("spec").child("replicas");
        let error = FieldError::invalid(replicas, -1, "must be greater than or equal to 0");
        let status = invalid(Subject::MachineDeployment, "x", &[error]);
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
            .map(|index| FieldError::invalid(FieldPath::new("spec").index(index), long.as_str(), "no"))
            .collect();
        let status = invalid(Subject::MachineClass, "x", &errors);
        assert!(status.message.len() < 200_000, "{}", status.message.len());
        assert!(status.message.ends_with("and 9950 more"), "{}", status.message);
        assert_eq!(status.details.unwrap().causes.len(), MOST_CAUSES);
    }
}
