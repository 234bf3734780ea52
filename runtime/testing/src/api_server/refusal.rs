//! Errors, with the messages of a real API server.

use http::StatusCode;
use kube::core::Status;
use kube::core::response::{StatusCause, StatusDetails};

use super::checks::FieldError;
use super::route::{Id, Resource};

/// A Status with an error.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) status: Status,
    /// The `continue` token for a list that goes on with inconsistent pages.
    pub(super) resume: Option<String>,
}

type Refused = Box<Refusal>;

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self { status, resume: None }
    }
}

pub(super) fn new(code: u16, reason: &str, message: &str) -> Refused {
    Box::new(Status::failure(message, reason).with_code(code).into())
}

fn with_details(code: u16, reason: &str, message: &str, details: StatusDetails) -> Refused {
    let mut refused = new(code, reason, message);
    refused.status.details = Some(details);
    refused
}

fn about(id: &Id, code: u16, reason: &str, message: &str) -> Refused {
    with_details(code, reason, message, details(&id.resource, &id.name))
}

pub(super) fn details(resource: &Resource, name: &str) -> StatusDetails {
    StatusDetails {
        name: name.to_owned(),
        group: resource.group.clone(),
        kind: resource.plural.clone(),
        ..no_details()
    }
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

fn cause(reason: &str, message: &str, field: &str) -> StatusCause {
    StatusCause { reason: reason.to_owned(), message: message.to_owned(), field: field.to_owned() }
}

/// "Too many requests", with the time to wait if there is one.
pub(super) fn too_many_requests(message: &str, retry_after_seconds: u32) -> Refused {
    let details = StatusDetails { retry_after_seconds, ..no_details() };
    with_details(429, "TooManyRequests", message, details)
}

/// An eviction that a disruption budget does not allow now.
pub(super) fn disruption(why: &str, retry_after_seconds: u32) -> Refused {
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    let mut refused = too_many_requests(message, retry_after_seconds);
    if let Some(details) = &mut refused.status.details {
        details.causes = vec![cause("DisruptionBudget", why, "")];
    }
    refused
}

/// The reason of a status code, without details.
pub(super) fn of_code(code: u16) -> Refused {
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

pub(super) fn no_such_resource() -> Refused {
    with_details(404, "NotFound", "the server could not find the requested resource", no_details())
}

pub(super) fn method_not_allowed() -> Refused {
    let message = "the server does not allow this method on the requested resource";
    with_details(405, "MethodNotAllowed", message, no_details())
}

pub(super) fn bad_request(message: &str) -> Refused {
    new(400, "BadRequest", message)
}

pub(super) fn internal(why: &str) -> Refused {
    let details = StatusDetails { causes: vec![cause("", why, "")], ..no_details() };
    with_details(500, "InternalError", &format!("Internal error occurred: {why}"), details)
}

pub(super) fn unsupported_media(accepted: Option<&[&str]>) -> Refused {
    let Some(accepted) = accepted else {
        return with_details(415, "UnsupportedMediaType", "415: Unsupported Media Type", no_details());
    };
    let message = format!(
        "the body of the request was in an unknown format - accepted media types include: {}",
        accepted.join(", ")
    );
    new(415, "UnsupportedMediaType", &message)
}

/// A JSON patch that does not fit the object.
pub(super) fn patch_failed() -> Refused {
    let message = "the server rejected our request due to an error in our request";
    with_details(422, "Invalid", message, no_details())
}

/// A method that the endpoint of a custom kind does not have.
pub(super) fn not_supported(id: &Id, method: &str) -> Refused {
    let kind = id.resource.qualified();
    let message = format!("{method} is not supported on resources of kind {kind:?}");
    let mut refused = about(id, 405, "MethodNotAllowed", &message);
    if let Some(details) = &mut refused.status.details {
        details.name.clear();
    }
    refused
}

pub(super) fn not_found(id: &Id) -> Refused {
    about(id, 404, "NotFound", &format!("{} {:?} not found", id.resource.qualified(), id.name))
}

pub(super) fn forbidden(id: &Id, why: &str) -> Refused {
    about(id, 403, "Forbidden", &format!("{} {:?} is forbidden: {why}", id.resource.qualified(), id.name))
}

/// A creation in a terminating namespace.
pub(super) fn terminating(id: &Id) -> Refused {
    let namespace = &id.namespace;
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let mut refused = forbidden(id, &why);
    if let Some(details) = &mut refused.status.details {
        let message = format!("namespace {namespace} is being terminated");
        details.causes = vec![cause("NamespaceTerminating", &message, "metadata.namespace")];
    }
    refused
}

pub(super) fn already_exists(id: &Id, is_leaving: bool) -> Refused {
    let lead = if is_leaving { "object is being deleted: " } else { "" };
    let message = format!("{lead}{} {:?} already exists", id.resource.qualified(), id.name);
    about(id, 409, "AlreadyExists", &message)
}

pub(super) fn conflict(id: &Id, why: &str) -> Refused {
    let message = format!("Operation cannot be fulfilled on {} {:?}: {why}", id.resource.qualified(), id.name);
    about(id, 409, "Conflict", &message)
}

pub(super) fn modified(id: &Id) -> Refused {
    conflict(id, "the object has been modified; please apply your changes to the latest version and try again")
}

/// A PUT whose UID precondition fails. The message of a real server contains its storage key.
pub(super) fn uid_precondition(id: &Id, asked: &str, found: &str, dry_run: bool) -> Refused {
    // In a dry run the server has no storage prefix.
    let root = if dry_run { "" } else { "/registry" };
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: {root}{}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: \
         UID in precondition: {asked}, UID in object meta: {found}",
        registry_key(id)
    );
    conflict(id, &why)
}

/// The storage key of an object.
fn registry_key(id: &Id) -> String {
    let resource = &id.resource;
    let root = match resource.plural.as_str() {
        "nodes" if resource.group.is_empty() => "minions".to_owned(),
        plural if resource.is_custom() => format!("{}/{plural}", resource.group),
        plural => plural.to_owned(),
    };
    let within = if id.namespace.is_empty() { String::new() } else { format!("/{}", id.namespace) };
    format!("/{root}{within}/{}", id.name)
}

/// A deletion whose precondition fails. The message of a real server has the kind instead of the resource.
pub(super) fn precondition(id: &Id, kind: &str, what: &str, asked: &str, found: &str) -> Refused {
    let hint = if what == "UID" { "deleted and then recreated" } else { "modified" };
    let why = format!(
        "the {what} in the precondition ({asked}) does not match the {what} in record ({found}). The object might have \
         been {hint}"
    );
    conflict(&of_kind(id, kind), &why)
}

fn of_kind(id: &Id, kind: &str) -> Id {
    Id { resource: Resource { plural: kind.to_owned(), ..id.resource.clone() }, ..id.clone() }
}

/// An invalid object.
pub(super) fn invalid(id: &Id, kind: &str, errors: &[FieldError]) -> Refused {
    let id = of_kind(id, kind);
    let listed = list_errors(errors);
    let message = format!("{} {:?} is invalid: {listed}", id.resource.qualified(), id.name);
    let mut refused = about(&id, 422, "Invalid", &message);
    if let Some(details) = &mut refused.status.details {
        details.causes = causes(errors);
    }
    refused
}

fn list_errors(errors: &[FieldError]) -> String {
    let errors: Vec<_> = errors.iter().map(|error| format!("{}: {}", error.field, error.message)).collect();
    match &errors[..] {
        [error] => error.clone(),
        errors => format!("[{}]", errors.join(", ")),
    }
}

fn causes(errors: &[FieldError]) -> Vec<StatusCause> {
    errors.iter().map(|error| cause(error.reason, &error.message, &error.field)).collect()
}

/// Invalid parameters of a request.
pub(super) fn invalid_options(kind: &str, errors: &[FieldError]) -> Refused {
    let message = format!("{kind}.meta.k8s.io \"\" is invalid: {}", list_errors(errors));
    let details = StatusDetails {
        group: "meta.k8s.io".to_owned(),
        kind: kind.to_owned(),
        causes: causes(errors),
        ..no_details()
    };
    with_details(422, "Invalid", &message, details)
}

/// An apply without a field manager.
pub(super) fn no_field_manager() -> Refused {
    invalid_options("PatchOptions", &[FieldError::required("fieldManager", "is required for apply patch")])
}

/// The conflict of an apply: the fields that others own, by manager.
pub(super) fn field_conflicts(conflicts: &[(String, Vec<String>)]) -> Refused {
    let each = conflicts.iter().flat_map(|(owner, fields)| fields.iter().map(move |field| (owner, field)));
    let causes: Vec<_> = each
        .clone()
        .map(|(owner, field)| cause("FieldManagerConflict", &format!("conflict with {owner}"), field))
        .collect();
    let message = match each.clone().collect::<Vec<_>>()[..] {
        [(owner, field)] => format!("Apply failed with 1 conflict: conflict with {owner}: {field}"),
        ref all => {
            let lists =
                conflicts.iter().map(|(owner, fields)| format!("conflicts with {owner}:\n- {}", fields.join("\n- ")));
            let lists: Vec<_> = lists.collect();
            format!("Apply failed with {} conflicts: {}", all.len(), lists.join("\n"))
        }
    };
    with_details(409, "Conflict", &message, StatusDetails { causes, ..no_details() })
}

pub(super) fn expired(message: &str) -> Refused {
    new(410, "Expired", message)
}

/// The same for a page, with a token to continue the list at the current version.
pub(super) fn expired_page(message: &str, resume: &str) -> Refused {
    Box::new(Refusal { resume: Some(resume.to_owned()), ..*expired(message) })
}

pub(super) fn too_large_version(asked: u64, current: u64) -> Refused {
    let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
    let causes = vec![cause("ResourceVersionTooLarge", "Too large resource version", "")];
    with_details(504, "Timeout", &message, StatusDetails { causes, retry_after_seconds: 1, ..no_details() })
}

/// A resource version that is not a number.
pub(super) fn no_version(said: &str) -> Refused {
    bad_request(&format!("invalid resource version: {}", unparsable(said)))
}

/// The same for a watch, and for a single object.
pub(super) fn unparsable_version(said: &str) -> Refused {
    new(500, "", &unparsable(said))
}

fn unparsable(said: &str) -> String {
    format!("resourceVersion: Invalid value: {said:?}: strconv.ParseUint: parsing {said:?}: invalid syntax")
}

pub(super) fn too_large(limit: usize) -> Refused {
    new(413, "RequestEntityTooLarge", &format!("Request entity too large: limit is {limit}"))
}

pub(super) fn too_deep() -> Refused {
    bad_request("error decoding JSON: exceeded max depth")
}
