//! Reads: single objects, and paginated lists, at the version that the client asks for.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Response};
use serde_json::{Value, json};

use super::answer::{self, AnswerBody};
use super::checks::FieldError;
use super::handle::Incoming;
use super::kinds::Kind;
use super::route::{Resource, Route};
use super::selector::Selector;
use super::store::{Refused, Store};
use super::{Shared, refusal, scale};

/// How long a read waits for a resource version in the future.
const FUTURE_VERSION_TIMEOUT: Duration = Duration::from_secs(3);

const LIST_EXPIRED: &str = "The resourceVersion for the provided list is too old.";
const PAGE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. You can start a \
    new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the \
    results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or \
    deleted between the time the first chunk was returned and now may show up in the list.";

/// Waits until the server has reached the resource version that a read requires, or until the timeout.
pub(super) async fn wait(shared: &Shared, request: &Incoming) {
    let Some(asked) = Route::parse(&request.uri).ok().filter(is_waiting_read).as_ref().and_then(version) else {
        return;
    };
    if request.method != Method::GET {
        return;
    }
    let mut wake = shared.watches.subscribe();
    let reached = async {
        while shared.store.lock().version() < asked {
            if wake.changed().await.is_err() {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(FUTURE_VERSION_TIMEOUT, reached).await;
}

fn is_waiting_read(route: &Route) -> bool {
    !route.is_set("watch") && route.get("resourceVersionMatch") != "Exact"
}

fn version(route: &Route) -> Option<u64> {
    route.get("resourceVersion").parse().ok()
}

/// Refuses a read whose resource version has not been reached.
fn check_version(store: &Store, route: &Route) -> Result<(), Refused> {
    let text = route.get("resourceVersion");
    match version(route) {
        None if !text.is_empty() => Err(refusal::no_version(text)),
        Some(asked) if asked > store.version() => Err(refusal::too_large_version(asked, store.version())),
        _ => Ok(()),
    }
}

/// One object, or its scale. `as_of`: the version of a server that lags behind.
pub(super) fn get(shared: &Shared, route: &Route, as_of: Option<u64>) -> Result<Response<AnswerBody>, Refused> {
    let store = shared.store.lock();
    let asked = route.get("resourceVersion");
    if !asked.is_empty() && version(route).is_none() {
        return Err(refusal::unparsable_version(asked));
    }
    check_version(&store, route)?;
    let id = route.id()?;
    let object = match as_of.filter(|_| route.takes_any_version()) {
        None => store.get(&id)?,
        Some(version) => {
            let objects = store.list_as_of(&route.resource, &Selector::of(route)?, version).unwrap_or_default();
            objects.into_iter().next().ok_or_else(|| refusal::not_found(&id))?
        }
    };
    if route.subresource.as_deref() == Some("scale") {
        return Ok(answer::json(200, &scale::read(&store.kind(&route.resource), &object)?));
    }
    Ok(answer::json(200, &object))
}

/// The position of a `continue` token.
struct Page {
    /// Never 0. `None`: the current version.
    version: Option<u64>,
    /// The namespace and the name of the last object of the previous page.
    after: Option<(String, String)>,
}

impl Page {
    fn of(store: &Store, route: &Route, as_of: Option<u64>) -> Result<Self, Refused> {
        let token = route.get("continue");
        if !token.is_empty() {
            return Self::read(token)
                .ok_or_else(|| refusal::bad_request("invalid continue token: continue key is not valid"));
        }
        check_version(store, route)?;
        let is_exact = route.get("resourceVersionMatch") == "Exact"
            || route.get("resourceVersionMatch").is_empty() && route.has("limit") && version(route) > Some(0);
        let version = if is_exact { version(route) } else { as_of.filter(|_| route.takes_any_version()) };
        Ok(Self { version, after: None })
    }

    fn read(token: &str) -> Option<Self> {
        let mut parts = token.splitn(3, '/');
        let version = parts.next()?.parse::<i64>().ok()?;
        let after = Some((parts.next()?.to_owned(), parts.next()?.to_owned()));
        Some(Self { version: u64::try_from(version).ok(), after })
    }
}

/// Checks the parameters of a list.
fn check_options(route: &Route) -> Result<(), Refused> {
    const MATCH: &str = "resourceVersionMatch";
    let mut errors = vec![];
    let (how, version) = (route.get(MATCH), route.get("resourceVersion"));
    if !how.is_empty() && version.is_empty() {
        let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
        errors.push(FieldError::forbidden(MATCH, why));
    }
    if !how.is_empty() && route.has("continue") {
        errors.push(FieldError::forbidden(MATCH, "resourceVersionMatch is forbidden when continue is provided"));
    }
    if !matches!(how, "" | "Exact" | "NotOlderThan") {
        errors.push(FieldError::not_supported(MATCH, how, &["Exact", "NotOlderThan", ""]));
    }
    if how == "Exact" && version == "0" {
        let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
        errors.push(FieldError::forbidden(MATCH, why));
    }
    if route.has("sendInitialEvents") {
        errors.push(FieldError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    if errors.is_empty() { Ok(()) } else { Err(refusal::invalid_options("ListOptions", &errors)) }
}

/// The same for a watch.
pub(super) fn check_watch_options(route: &Route) -> Result<(), Refused> {
    const MATCH: &str = "resourceVersionMatch";
    let mut errors = vec![];
    let how = route.get(MATCH);
    if route.has("sendInitialEvents") && how != "NotOlderThan" {
        let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        errors.push(FieldError::forbidden(MATCH, why));
    }
    if !how.is_empty() {
        if !route.has("sendInitialEvents") {
            let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            errors.push(FieldError::forbidden(MATCH, why));
        }
        if how != "NotOlderThan" {
            errors.push(FieldError::not_supported(MATCH, how, &["NotOlderThan"]));
        }
    }
    if !errors.is_empty() {
        return Err(refusal::invalid_options("ListOptions", &errors));
    }
    match route.get("resourceVersion") {
        "" => Ok(()),
        text if text.parse::<u64>().is_ok() => Ok(()),
        text => Err(refusal::unparsable_version(text)),
    }
}

pub(super) fn list(
    shared: &Shared,
    request: &Incoming,
    route: &Route,
    as_of: Option<u64>,
) -> Result<Response<AnswerBody>, Refused> {
    let store = shared.store.lock();
    let selector = Selector::of(route)?;
    check_options(route)?;
    let page = Page::of(&store, route, as_of)?;
    let version = page.version.unwrap_or_else(|| store.version());
    let expired = || match &page.after {
        Some((namespace, name)) => refusal::expired_page(PAGE_EXPIRED, &format!("-1/{namespace}/{name}")),
        None => refusal::expired(LIST_EXPIRED),
    };
    let place = |object: &Value| {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or("").to_owned();
        (text("namespace"), text("name"))
    };
    let mut all = store.list_as_of(&route.resource, &selector.whole_place(), version).ok_or_else(expired)?;
    if let Some(after) = &page.after {
        all.retain(|object| place(object) > *after);
    }
    // A list at any version ignores the limit.
    let limit = route.get("limit").parse().ok().filter(|limit| *limit > 0 && !route.takes_any_version());
    let mut items = vec![];
    let mut rest = None;
    for (index, object) in all.iter().enumerate() {
        if selector.matches(object) {
            items.push(object.clone());
        }
        if Some(items.len()) == limit {
            if index + 1 < all.len() {
                rest = Some((place(object), all.len() - index - 1));
            }
            break;
        }
    }
    let mut list = answer(&store, &route.resource, &items, version);
    if request.wants_metadata() {
        let items: Vec<_> = items.iter().map(|object| partial(object)).collect();
        // Custom kinds, too, have `continue` only if there is a next page.
        list = json!({"apiVersion": METADATA_VERSION, "kind": "PartialObjectMetadataList",
            "metadata": {"resourceVersion": version.to_string()}, "items": items});
    }
    if let Some(((namespace, name), count)) = rest {
        list["metadata"]["continue"] = format!("{version}/{namespace}/{name}").into();
        if selector.takes_all() {
            list["metadata"]["remainingItemCount"] = count.into();
        }
    }
    Ok(answer::json(200, &list))
}

/// A list of objects of one kind.
pub(super) fn answer(store: &Store, resource: &Resource, objects: &[Arc<Value>], version: u64) -> Value {
    let kind = store.kind(resource);
    let mut metadata = json!({ "resourceVersion": version.to_string() });
    if kind.is_custom {
        // Lists of built-in kinds leave out empty fields.
        metadata["continue"] = "".into();
    }
    let items: Vec<_> = objects.iter().map(|object| list_item(&kind, object)).collect();
    json!({
        "apiVersion": resource.api_version(),
        "kind": format!("{}List", kind.name),
        "metadata": metadata,
        "items": items,
    })
}

/// The API version of `PartialObjectMetadata`.
const METADATA_VERSION: &str = "meta.k8s.io/v1";

/// An object as `PartialObjectMetadata`.
pub(super) fn partial(object: &Value) -> Value {
    json!({ "apiVersion": METADATA_VERSION, "kind": "PartialObjectMetadata", "metadata": object["metadata"] })
}

/// In lists, objects of built-in kinds have neither `apiVersion` nor `kind`.
fn list_item(kind: &Kind, object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut().filter(|_| !kind.is_custom) {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    object
}
