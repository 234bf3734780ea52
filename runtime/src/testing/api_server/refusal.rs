//! Refusals as a real API server words them.

use http::StatusCode;
use kube::core::Status;
use kube::core::response::{StatusCause, StatusDetails};

use super::route::{Id, Resource};

pub(super) fn new(code: u16, reason: &str, message: &str) -> Box<Status> {
    Box::new(Status::failure(message, reason).with_code(code))
}

fn about(id: &Id, code: u16, reason: &str, message: &str) -> Box<Status> {
    let mut status = new(code, reason, message);
    status.details = Some(details(&id.resource, &id.name));
    status
}

pub(super) fn details(resource: &Resource, name: &str) -> StatusDetails {
    StatusDetails {
        name: name.to_owned(),
        group: resource.group.clone(),
        kind: resource.plural.clone(),
        ..no_details()
    }
}

/// "Too many requests", with the time to wait if there is one.
pub(super) fn too_many_requests(message: &str, retry_after_seconds: u32) -> Box<Status> {
    let mut status = new(429, "TooManyRequests", message);
    status.details = Some(StatusDetails { retry_after_seconds, ..no_details() });
    status
}

/// The reason that goes with a code when nothing more is known.
pub(super) fn of_code(code: u16) -> Box<Status> {
    let reason = match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        409 => "Conflict",
        410 => "Expired",
        413 => "RequestEntityTooLarge",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    };
    let message = StatusCode::from_u16(code).ok().and_then(|code| code.canonical_reason()).unwrap_or("failed");
    new(code, reason, &format!("{message} (injected)"))
}

pub(super) fn no_such_resource() -> Box<Status> {
    new(404, "NotFound", "the server could not find the requested resource")
}

pub(super) fn method_not_allowed() -> Box<Status> {
    new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
}

pub(super) fn bad_request(message: &str) -> Box<Status> {
    new(400, "BadRequest", message)
}

pub(super) fn not_found(id: &Id) -> Box<Status> {
    about(id, 404, "NotFound", &format!("{} {:?} not found", id.resource.qualified(), id.name))
}

pub(super) fn already_exists(id: &Id) -> Box<Status> {
    about(id, 409, "AlreadyExists", &format!("{} {:?} already exists", id.resource.qualified(), id.name))
}

pub(super) fn conflict(id: &Id, why: &str) -> Box<Status> {
    let message = format!("Operation cannot be fulfilled on {} {:?}: {why}", id.resource.qualified(), id.name);
    about(id, 409, "Conflict", &message)
}

pub(super) fn modified(id: &Id) -> Box<Status> {
    conflict(id, "the object has been modified; please apply your changes to the latest version and try again")
}

/// A deletion that insists on another UID or version. Here, a real server names the kind instead of the resource.
pub(super) fn precondition(id: &Id, kind: &str, what: &str, asked: &str, found: &str) -> Box<Status> {
    let hint = if what == "UID" { "deleted and then recreated" } else { "modified" };
    let qualified = Resource { plural: kind.to_owned(), ..id.resource.clone() }.qualified();
    let name = &id.name;
    let message = format!(
        "Operation cannot be fulfilled on {qualified} {name:?}: the {what} in the precondition ({asked}) does not match \
         the {what} in record ({found}). The object might have been {hint}"
    );
    let mut status = about(id, 409, "Conflict", &message);
    set_kind(&mut status, kind);
    status
}

/// A patch that would give an object another identity.
pub(super) fn immutable(id: &Id, kind: &str, field: &str, value: &str) -> Box<Status> {
    let mut status = invalid(id, field, &format!("Invalid value: {value:?}: field is immutable"));
    set_kind(&mut status, kind);
    status
}

fn set_kind(status: &mut Status, kind: &str) {
    if let Some(details) = &mut status.details {
        kind.clone_into(&mut details.kind);
    }
}

/// An apply by nobody.
pub(super) fn no_field_manager() -> Box<Status> {
    let why = "Required value: is required for apply patch";
    let message = format!("PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: {why}");
    let mut status = new(422, "Invalid", &message);
    let cause = StatusCause { reason: "FieldValueRequired".into(), message: why.into(), field: "fieldManager".into() };
    status.details = Some(StatusDetails { causes: vec![cause], kind: "PatchOptions".into(), ..no_details() });
    status
}

fn no_details() -> StatusDetails {
    StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: vec![],
        retry_after_seconds: 0,
    }
}

pub(super) fn invalid(id: &Id, field: &str, why: &str) -> Box<Status> {
    let message = format!("{} {:?} is invalid: {field}: {why}", id.resource.qualified(), id.name);
    let mut status = about(id, 422, "Invalid", &message);
    let cause = StatusCause { reason: "FieldValueInvalid".into(), message: why.into(), field: field.into() };
    if let Some(details) = &mut status.details {
        details.causes.push(cause);
    }
    status
}

/// A refused apply: which fields others own.
pub(super) fn field_conflicts(conflicts: &[(String, String)]) -> Box<Status> {
    let causes = conflicts.iter().map(|(manager, field)| StatusCause {
        reason: "FieldManagerConflict".into(),
        message: format!("conflict with {manager:?}"),
        field: field.clone(),
    });
    let (manager, field) = conflicts.first().cloned().unwrap_or_default();
    let message = format!("Apply failed with {} conflict: conflict with {manager:?}: {field}", conflicts.len());
    let mut status = new(409, "Conflict", &message);
    status.details = Some(StatusDetails { causes: causes.collect(), ..no_details() });
    status
}

pub(super) fn expired(message: &str) -> Box<Status> {
    new(410, "Expired", message)
}

pub(super) fn too_large_version(asked: u64, current: u64) -> Box<Status> {
    let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
    let mut status = new(504, "Timeout", &message);
    let cause = StatusCause {
        reason: "ResourceVersionTooLarge".into(),
        message: "Too large resource version".into(),
        field: String::new(),
    };
    status.details = Some(StatusDetails { causes: vec![cause], retry_after_seconds: 1, ..no_details() });
    status
}
