//! From a request to an answer.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Response, Uri, header};
use json_patch::Patch;
use kube::core::Status;
use kube::core::response::StatusSummary;
use serde_json::{Value, json};

use super::answer::{self, AnswerBody};
use super::route::{Id, Part, Resource, Route};
use super::selector::Selector;
use super::store::{DeleteOptions, Store, Writer, Written};
use super::watch::Watcher;
use super::{Shared, refusal};

type Refused = Box<Status>;

/// A request with its body read.
#[derive(Clone, Debug)]
pub(super) struct Incoming {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Incoming {
    pub(super) fn header(&self, name: header::HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    fn json(&self) -> Result<Value, Refused> {
        let value = serde_json::from_slice(&self.body).map_err(|error| refusal::bad_request(&error.to_string()))?;
        if is_object_like(&value) {
            Ok(value)
        } else {
            Err(refusal::bad_request("the body must be an object with metadata"))
        }
    }

    /// The writer's name for field ownership: the parameter, or what the client calls itself.
    fn manager<'a>(&'a self, route: &'a Route) -> &'a str {
        match route.get("fieldManager") {
            "" => self.header(header::USER_AGENT).split('/').next().unwrap_or("unknown"),
            manager => manager,
        }
    }
}

/// Does what is asked and answers.
pub(super) fn handle(shared: &Arc<Shared>, request: &Incoming, as_of: Option<u64>) -> Response<AnswerBody> {
    match request.uri.path() {
        "/healthz" | "/livez" | "/readyz" => return answer::text("ok"),
        "/version" => {
            return answer::json(200, &json!({ "major": "1", "minor": "33", "gitVersion": "v1.33.0" }));
        }
        _ => {}
    }
    serve(shared, request, as_of).unwrap_or_else(|status| answer::refusal(&status))
}

fn serve(shared: &Arc<Shared>, request: &Incoming, as_of: Option<u64>) -> Result<Response<AnswerBody>, Refused> {
    let route = Route::parse(&request.uri)?;
    if shared.is_unserved(&route.resource) {
        return Err(refusal::no_such_resource());
    }
    match (request.method.as_str(), &route.name, route.subresource.as_deref()) {
        ("GET", _, None) if route.is_set("watch") => {
            Ok(answer::stream(Watcher::open(shared, request, &route, as_of)?.into_lines()))
        }
        ("GET", None, _) => list(shared, &route, as_of),
        ("GET", Some(_), None | Some("status")) => get(shared, &route, as_of),
        ("POST", None, _) => write(shared, request, &route, create),
        ("POST", Some(_), Some("eviction")) if route.resource.is_pod() => write(shared, request, &route, evict),
        ("PUT", Some(_), None | Some("status")) => write(shared, request, &route, replace),
        ("PATCH", Some(_), None | Some("status")) => write(shared, request, &route, patch),
        ("DELETE", Some(_), None) => write(shared, request, &route, delete),
        ("DELETE", None, None) => write(shared, request, &route, delete_collection),
        (_, Some(_), Some(_)) => Err(refusal::no_such_resource()),
        _ => Err(refusal::method_not_allowed()),
    }
}

type Write = fn(&mut Store, &Incoming, &Route, &Writer<'_>) -> Result<(u16, Value), Refused>;

/// Does a write, on a copy where only its answer is wanted, and tells the watches.
fn write(shared: &Arc<Shared>, request: &Incoming, route: &Route, act: Write) -> Result<Response<AnswerBody>, Refused> {
    let writer = Writer { manager: request.manager(route), now: shared.clock.wall() };
    let mut store = shared.store.lock();
    let result = if route.get("dryRun").is_empty() {
        act(&mut store, request, route, &writer)
    } else {
        act(&mut store.clone(), request, route, &writer)
    };
    drop(store);
    shared.announce();
    result.map(|(code, value)| answer::json(code, &value))
}

fn get(shared: &Shared, route: &Route, as_of: Option<u64>) -> Result<Response<AnswerBody>, Refused> {
    let store = shared.store.lock();
    check_version(&store, route)?;
    let object = match as_of.filter(|_| route.takes_any_version()) {
        None => store.get(&route.id()?)?,
        Some(version) => {
            let (objects, _) = store.list_as_of(&route.resource, &Selector::of(route)?, Some(version))?;
            let missing = || refusal::not_found(&route.id().unwrap_or_default());
            objects.into_iter().next().ok_or_else(missing)?
        }
    };
    Ok(answer::json(200, &object))
}

/// A read may insist on a version that is not yet there.
fn check_version(store: &Store, route: &Route) -> Result<(), Refused> {
    let asked = route.get("resourceVersion").parse().unwrap_or(0);
    if asked > store.version() {
        return Err(refusal::too_large_version(asked, store.version()));
    }
    if route.get("resourceVersionMatch") == "Exact" && asked != store.version() {
        return Err(refusal::expired(&format!("the provided resource version {asked} is too old")));
    }
    Ok(())
}

fn list(shared: &Shared, route: &Route, as_of: Option<u64>) -> Result<Response<AnswerBody>, Refused> {
    let (mut objects, version) = match route.get("continue") {
        "" => {
            let store = shared.store.lock();
            check_version(&store, route)?;
            let as_of = as_of.filter(|_| route.takes_any_version());
            store.list_as_of(&route.resource, &Selector::of(route)?, as_of)?
        }
        token => shared.next_page(token).ok_or_else(|| {
            refusal::expired("The provided continue parameter is too old to display a consistent list result.")
        })?,
    };
    let mut metadata = json!({ "resourceVersion": version.to_string() });
    if route.resource.is_custom() {
        // Lists of built-in kinds leave out what is empty.
        metadata["continue"] = "".into();
    }
    let limit = route.get("limit").parse().unwrap_or(0);
    if limit > 0 && objects.len() > limit {
        let rest = objects.split_off(limit);
        metadata["remainingItemCount"] = rest.len().into();
        metadata["continue"] = shared.keep_page(rest, version).into();
    }
    let kind = format!("{}List", shared.store.lock().kind(&route.resource));
    let items: Vec<_> = objects.iter().map(|object| list_item(&route.resource, object)).collect();
    let list =
        json!({ "apiVersion": route.resource.api_version(), "kind": kind, "metadata": metadata, "items": items });
    Ok(answer::json(200, &list))
}

/// In lists, objects of built-in kinds do not say what they are.
fn list_item(resource: &Resource, object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut().filter(|_| !resource.is_custom()) {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    object
}

fn create(store: &mut Store, request: &Incoming, route: &Route, writer: &Writer<'_>) -> Result<(u16, Value), Refused> {
    let mut object = request.json()?;
    strip_nulls(&mut object);
    let metadata = &object["metadata"];
    let generated = || Some(format!("{}{:05x}", metadata["generateName"].as_str()?, store.version() + 1));
    let name = metadata["name"].as_str().filter(|name| !name.is_empty()).map(str::to_owned).or_else(generated);
    let named = Route { name, ..route.clone() };
    let id = Id { name: named.name.clone().unwrap_or_default(), ..Route { name: Some(String::new()), ..named }.id()? };
    if id.name.is_empty() {
        return Err(refusal::invalid(&id, "metadata.name", "Required value: name or generateName is required"));
    }
    check_place(&id, &object)?;
    store.create(&id, object, writer).map(written)
}

/// The name and the namespace in the body must be those of the path, where they are given.
fn check_place(id: &Id, object: &Value) -> Result<(), Refused> {
    for (field, expected) in [("name", &id.name), ("namespace", &id.namespace)] {
        let found = object["metadata"][field].as_str().filter(|text| !text.is_empty());
        if found.is_some_and(|found| found != expected) {
            let message =
                format!("the {field} of the object ({found:?}) does not match the {field} on the URL ({expected})");
            return Err(refusal::bad_request(&message));
        }
    }
    Ok(())
}

fn replace(store: &mut Store, request: &Incoming, route: &Route, writer: &Writer<'_>) -> Result<(u16, Value), Refused> {
    let mut object = request.json()?;
    strip_nulls(&mut object);
    let id = route.id()?;
    check_place(&id, &object)?;
    let unversioned = object["metadata"]["resourceVersion"].as_str().is_none_or(str::is_empty);
    if unversioned && id.resource.is_custom() {
        let why = "Invalid value: 0x0: must be specified for an update";
        return Err(refusal::invalid(&id, "metadata.resourceVersion", why));
    }
    store.replace(&id, route.part()?, writer, object).map(written)
}

fn patch(store: &mut Store, request: &Incoming, route: &Route, writer: &Writer<'_>) -> Result<(u16, Value), Refused> {
    let (id, part) = (route.id()?, route.part()?);
    let content = request.header(header::CONTENT_TYPE).split(';').next().unwrap_or("").trim();
    match content {
        "application/apply-patch+yaml" => apply(store, request, route, &id, part, writer),
        "application/merge-patch+json" => {
            let patch = request.json()?;
            let edit = |live: &Value| {
                let mut object = live.clone();
                json_patch::merge(&mut object, &patch);
                Ok(object)
            };
            store.edit(&id, part, writer, edit).map(written)
        }
        "application/strategic-merge-patch+json" => {
            let patch = request.json()?;
            let edit = |live: &Value| {
                let mut object = live.clone();
                tmp_strategic(&mut object, &patch);
                Ok(object)
            };
            store.edit(&id, part, writer, edit).map(written)
        }
        "application/json-patch+json" => {
            let patch: Patch = serde_json::from_slice(&request.body)
                .map_err(|error| refusal::bad_request(&format!("error decoding patch: {error}")))?;
            let edit = |live: &Value| {
                let mut object = live.clone();
                let patched = crate::testing::json_patch(&mut object, &patch).is_ok() && is_object_like(&object);
                let message = "the server rejected our request due to an error in our request";
                if patched { Ok(object) } else { Err(refusal::new(422, "Invalid", message)) }
            };
            store.edit(&id, part, writer, edit).map(written)
        }
        other => {
            let message = format!("the body of the request was in an unknown format: {other:?}");
            Err(refusal::new(415, "UnsupportedMediaType", &message))
        }
    }
}

fn apply(
    store: &mut Store,
    request: &Incoming,
    route: &Route,
    id: &Id,
    part: Part,
    writer: &Writer<'_>,
) -> Result<(u16, Value), Refused> {
    let mut said = request.json()?;
    strip_nulls(&mut said);
    if route.get("fieldManager").is_empty() {
        return Err(refusal::no_field_manager());
    }
    if said["apiVersion"].as_str() != Some(&id.resource.api_version()) || !said["kind"].is_string() {
        return Err(refusal::bad_request("apiVersion and kind must be set, and be those of the resource"));
    }
    if !said["metadata"]["managedFields"].is_null() {
        return Err(refusal::bad_request("metadata.managedFields must be nil"));
    }
    check_place(id, &said)?;
    store.apply(id, part, writer, &said, route.is_set("force")).map(written)
}

fn delete(store: &mut Store, request: &Incoming, route: &Route, writer: &Writer<'_>) -> Result<(u16, Value), Refused> {
    let id = route.id()?;
    let options = delete_options(request, route)?;
    let written = store.delete(&id, &options, writer.now)?;
    Ok((200, deleted(&id, written)))
}

/// What is gone is answered by a Status without a version; a Pod by itself, as is what waits for finalizers.
fn deleted(id: &Id, written: Written) -> Value {
    match written {
        Written::Deleted(last) if !id.resource.is_pod() => {
            let mut status = Status::success();
            let mut details = refusal::details(&id.resource, &id.name);
            last["metadata"]["uid"].as_str().unwrap_or("").clone_into(&mut details.uid);
            status.details = Some(details);
            success(&status)
        }
        Written::Created(object) | Written::Updated(object) | Written::Deleted(object) => (*object).clone(),
    }
}

fn success(status: &Status) -> Value {
    debug_assert_eq!(status.status, Some(StatusSummary::Success));
    answer::with_kind(serde_json::to_value(status).unwrap_or_default())
}

fn delete_options(request: &Incoming, route: &Route) -> Result<DeleteOptions, Refused> {
    let body = if request.body.is_empty() { Value::Null } else { request.json()? };
    Ok(read_delete_options(&body, route))
}

fn read_delete_options(body: &Value, route: &Route) -> DeleteOptions {
    let precondition = |field: &str| body["preconditions"][field].as_str().map(str::to_owned);
    DeleteOptions {
        uid: precondition("uid"),
        version: precondition("resourceVersion"),
        grace_seconds: body["gracePeriodSeconds"].as_i64().or_else(|| route.get("gracePeriodSeconds").parse().ok()),
    }
}

fn delete_collection(
    store: &mut Store,
    _: &Incoming,
    route: &Route,
    writer: &Writer<'_>,
) -> Result<(u16, Value), Refused> {
    for object in store.list(&route.resource, &Selector::of(route)?) {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or("").to_owned();
        let id = Id { resource: route.resource.clone(), namespace: text("namespace"), name: text("name") };
        store.delete(&id, &DeleteOptions::default(), writer.now)?;
    }
    Ok((200, success(&Status::success())))
}

/// Evicts without regard to disruption budgets; what those do is done by faults.
fn evict(store: &mut Store, request: &Incoming, route: &Route, writer: &Writer<'_>) -> Result<(u16, Value), Refused> {
    let id = route.id()?;
    let options = read_delete_options(&request.json()?["deleteOptions"], route);
    store.delete(&id, &options, writer.now)?;
    Ok((201, success(&Status::success().with_code(201))))
}

fn written(written: Written) -> (u16, Value) {
    match written {
        Written::Created(object) => (201, (*object).clone()),
        Written::Updated(object) | Written::Deleted(object) => (200, (*object).clone()),
    }
}

/// Whether all else here may rely on there being fields and, if any, fields of metadata.
fn is_object_like(value: &Value) -> bool {
    value.is_object() && (value["metadata"].is_null() || value["metadata"].is_object())
}

/// Null says "not there", but for merge patches, where it says "remove".
fn strip_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(strip_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_nulls),
        _ => {}
    }
}

fn tmp_strategic(live: &mut Value, patch: &Value) {
    match (live, patch) {
        (Value::Object(live), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    live.remove(key);
                } else {
                    tmp_strategic(live.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (Value::Array(live), Value::Array(patch)) if patch.iter().all(|item| item["type"].is_string()) => {
            for item in patch {
                match live.iter_mut().find(|it| it["type"] == item["type"]) {
                    Some(it) => tmp_strategic(it, item),
                    None => live.push(item.clone()),
                }
            }
        }
        (live, patch) => *live = patch.clone(),
    }
}
