//! Handles requests.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Response, Uri, header};
use json_patch::Patch;
use kube::core::Status;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{self, AnswerBody};
use super::delete::DeleteOptions;
use super::kinds::{Habit, StatusRule};
use super::route::{Id, Part, Route};
use super::selector::Selector;
use super::store::{Refused, Store, Writer, Written, said};
use super::watch::Watcher;
use super::write::{Target, check_place};
use super::{Shared, evict, form, limits, list, refusal, strategic};

/// A request whose body has been read.
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

    fn content(&self) -> &str {
        self.header(header::CONTENT_TYPE).split(';').next().unwrap_or("").trim()
    }

    /// Whether lists and watches send the metadata of objects alone.
    pub(super) fn wants_metadata(&self) -> bool {
        self.header(header::ACCEPT).contains("as=PartialObjectMetadata")
    }

    fn json(&self) -> Result<Value, Refused> {
        let mut decoder = serde_json::Deserializer::from_slice(&self.body);
        // The depth has been checked before.
        decoder.disable_recursion_limit();
        let value = Value::deserialize(&mut decoder).and_then(|value| decoder.end().map(|()| value));
        let value = value.map_err(|error| refusal::bad_request(&error.to_string()))?;
        if is_object_like(&value) {
            Ok(value)
        } else {
            Err(refusal::bad_request("the body must be an object with metadata"))
        }
    }

    /// The body without null fields.
    fn object(&self) -> Result<Value, Refused> {
        let mut object = self.json()?;
        strip_nulls(&mut object);
        Ok(object)
    }

    /// The field manager: the parameter, or the client's user agent.
    fn manager<'a>(&'a self, route: &'a Route) -> &'a str {
        match route.get("fieldManager") {
            "" => self.header(header::USER_AGENT).split('/').next().unwrap_or("unknown"),
            manager => manager,
        }
    }
}

/// Handles a request. `as_of`: reads at any version see the server as of this version.
pub(super) fn handle(shared: &Arc<Shared>, request: &Incoming, as_of: Option<u64>) -> Response<AnswerBody> {
    match request.uri.path() {
        "/healthz" | "/livez" | "/readyz" => return answer::text("ok"),
        "/version" => {
            return answer::json(200, &json!({ "major": "1", "minor": "33", "gitVersion": "v1.33.0" }));
        }
        _ => {}
    }
    serve(shared, request, as_of).unwrap_or_else(|refused| answer::refusal(&refused))
}

fn serve(shared: &Arc<Shared>, request: &Incoming, as_of: Option<u64>) -> Result<Response<AnswerBody>, Refused> {
    let route = Route::parse(&request.uri)?;
    if shared.is_unserved(&route.resource) {
        return Err(refusal::no_such_resource());
    }
    let kind = shared.store.lock().kind(&route.resource);
    match route.subresource.as_deref() {
        Some("status") if kind.rules.status == StatusRule::None => return Err(no_such_part(&route)),
        Some("scale") if kind.scale.is_none() => return Err(no_such_part(&route)),
        _ => {}
    }
    match (request.method.as_str(), &route.name, route.subresource.as_deref()) {
        ("GET", _, None) if route.is_set("watch") => {
            Ok(answer::stream(Watcher::open(shared, request, &route, as_of)?.into_lines()))
        }
        ("GET", None, _) => list::list(shared, request, &route, as_of),
        ("GET", Some(_), None | Some("status" | "scale")) => list::get(shared, &route, as_of),
        ("POST", None, _) => write(shared, request, &route, create),
        // The API server of custom kinds reads the name from the body alone.
        ("POST", Some(_), None) if route.resource.is_custom() => write(shared, request, &route, create),
        ("POST", Some(_), Some("eviction")) if route.resource.is_pod() => write(shared, request, &route, evict),
        ("PUT", Some(_), None | Some("status" | "scale")) => write(shared, request, &route, replace),
        ("PATCH", Some(_), None | Some("status" | "scale")) => write(shared, request, &route, patch),
        ("DELETE", Some(_), None) => write(shared, request, &route, delete),
        ("DELETE", None, None) => write(shared, request, &route, delete_collection),
        (method, Some(_), Some("status" | "scale")) if route.resource.is_custom() => {
            Err(refusal::not_supported(&route.id()?, &method.to_lowercase()))
        }
        (_, Some(_), Some(_)) => Err(no_such_part(&route)),
        ("PUT" | "PATCH", None, None) if route.resource.is_custom() => {
            Err(refusal::bad_request("name must be provided"))
        }
        _ => Err(refusal::method_not_allowed()),
    }
}

fn no_such_part(route: &Route) -> Refused {
    match route.id() {
        Ok(id) if id.resource.is_custom() => refusal::not_found(&id),
        _ => refusal::no_such_resource(),
    }
}

type Write = fn(&mut Store, &Incoming, &Route, &Writer<'_>) -> Result<(u16, Value), Refused>;

/// Handles a write, and notifies the watches.
fn write(shared: &Arc<Shared>, request: &Incoming, route: &Route, act: Write) -> Result<Response<AnswerBody>, Refused> {
    limits::check_body(&request.body)?;
    let manager = request.manager(route);
    let (now, dry_run, large) = ((shared.time)(), route.has("dryRun"), request.body.len() > limits::SMALL);
    let writer = Writer { manager, now, dry_run, large };
    let mut store = shared.store.lock();
    let result = act(&mut store, request, route, &writer);
    drop(store);
    shared.announce();
    // A Status is answered as it is.
    let is_partial = |value: &Value| request.wants_metadata() && value["metadata"]["uid"].is_string();
    result.map(|(code, value)| answer::json(code, &if is_partial(&value) { list::partial(&value) } else { value }))
}

fn create(store: &mut Store, request: &Incoming, route: &Route, writer: &Writer<'_>) -> Result<(u16, Value), Refused> {
    let object = request.object()?;
    let metadata = &object["metadata"];
    let generated = || Some(format!("{}{:05x}", metadata["generateName"].as_str()?, store.version() + 1));
    let name = said(&object, "name").map(str::to_owned).or_else(generated).unwrap_or_default();
    let id = Id { resource: route.resource.clone(), namespace: route.namespace.clone(), name };
    form::check_type(&store.kind(&id.resource), &id.resource, &object)?;
    check_place(&id, &object)?;
    let kind = store.learn(&id.resource, &object);
    let target = Target { id: &id, kind, part: Part::Main, writer };
    store.create(&target, object).map(written)
}

fn target<'a>(store: &Store, id: &'a Id, route: &Route, writer: &'a Writer<'a>) -> Result<Target<'a>, Refused> {
    Ok(Target { id, kind: store.kind(&id.resource), part: route.part()?, writer })
}

fn replace(store: &mut Store, request: &Incoming, route: &Route, writer: &Writer<'_>) -> Result<(u16, Value), Refused> {
    let object = request.object()?;
    let id = route.id()?;
    if route.subresource.as_deref() != Some("scale") {
        form::check_type(&store.kind(&id.resource), &id.resource, &object)?;
    }
    check_place(&id, &object)?;
    let target = target(store, &id, route, writer)?;
    let uid = said(&object, "uid").map(str::to_owned);
    if target.part == Part::Scale {
        return store.scale(&target, uid.as_deref(), |_| Ok(object)).map(|scale| (200, scale));
    }
    if target.kind.rules.has(Habit::CreateOnUpdate) && target.part == Part::Main && store.find(&id).is_none() {
        return store.create_by_update(&target, object).map(written);
    }
    let make = |live: &Value| {
        let mut wanted = object;
        form::complete(live, &mut wanted);
        form::trim(&target.kind, &mut wanted);
        target.own(live, &mut wanted);
        Ok(wanted)
    };
    store.update(&target, uid.as_deref(), make).map(written)
}

/// The change that a patch makes to an object.
type Edit = Box<dyn FnOnce(&Value) -> Result<Value, Refused>>;

fn patch(store: &mut Store, request: &Incoming, route: &Route, writer: &Writer<'_>) -> Result<(u16, Value), Refused> {
    let id = route.id()?;
    let target = target(store, &id, route, writer)?;
    let edit: Edit = match request.content() {
        "application/apply-patch+yaml" => return apply(store, request, route, &target),
        "application/merge-patch+json" => {
            let patch = request.json()?;
            Box::new(move |live| {
                let mut object = live.clone();
                json_patch::merge(&mut object, &patch);
                Ok(object)
            })
        }
        "application/json-patch+json" => {
            let patch = json_patch_of(&request.body)?;
            Box::new(move |live| {
                let mut object = live.clone();
                let patched = crate::json_patch(&mut object, &patch).is_ok() && is_object_like(&object);
                if patched { Ok(object) } else { Err(refusal::patch_failed()) }
            })
        }
        "application/strategic-merge-patch+json" if !target.kind.is_custom => {
            let (kind, patch) = (target.kind.clone(), request.json()?);
            Box::new(move |live| Ok(strategic::merge(&kind.shape, live, &patch)))
        }
        content => return Err(refusal::unsupported_media(accepted(target.kind.is_custom, content))),
    };
    if target.part == Part::Scale {
        return store.scale(&target, None, edit).map(|scale| (200, scale));
    }
    let make = |live: &Value| {
        let mut wanted = edit(live)?;
        check_place(&id, &wanted)?;
        form::trim(&target.kind, &mut wanted);
        target.own(live, &mut wanted);
        Ok(wanted)
    };
    store.update(&target, None, make).map(written)
}

/// The supported content types, for the endpoints whose error message lists them.
fn accepted(is_custom: bool, content: &str) -> Option<&'static [&'static str]> {
    const OF_CUSTOM: &[&str] =
        &["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];
    (is_custom || content.contains("patch")).then_some(OF_CUSTOM)
}

fn json_patch_of(body: &[u8]) -> Result<Patch, Refused> {
    let operations: Vec<Value> = serde_json::from_slice(body)
        .map_err(|error| refusal::bad_request(&format!("error decoding patch: {error}")))?;
    serde_json::from_value(operations.into()).map_err(|_| refusal::patch_failed())
}

fn apply(store: &mut Store, request: &Incoming, route: &Route, target: &Target<'_>) -> Result<(u16, Value), Refused> {
    if !route.has("fieldManager") {
        return Err(refusal::no_field_manager());
    }
    let said = request.object()?;
    form::check_applied_type(&target.kind, &target.id.resource, &said)?;
    if !said["metadata"]["managedFields"].is_null() {
        return Err(refusal::bad_request("metadata.managedFields must be nil"));
    }
    let kind = store.learn(&target.id.resource, &said);
    if let Some(field) = form::undeclared(&kind.shape, &said) {
        let text = |field: &str| said["metadata"][field].as_str().unwrap_or("").to_owned();
        let (namespace, name, of) = (text("namespace"), text("name"), form::describe_type(&said));
        let message = format!(
            "failed to create typed patch object ({namespace}/{name}; {of}): {field}: field not declared in schema"
        );
        return Err(refusal::new(500, "", &message));
    }
    check_place(target.id, &said)?;
    if said["metadata"]["name"].as_str().is_none_or(str::is_empty) {
        let name = &target.id.name;
        let message = format!("the name of the object ({name} based on URL) was undeterminable: name must be provided");
        return Err(refusal::bad_request(&message));
    }
    let target = Target { kind, ..target.clone() };
    store.apply(&target, &said, route.is_set("force")).map(written)
}

fn delete(store: &mut Store, request: &Incoming, route: &Route, writer: &Writer<'_>) -> Result<(u16, Value), Refused> {
    let id = route.id()?;
    let options = delete_options(request, route)?;
    let writer = Writer { dry_run: options.dry_run, ..writer.clone() };
    let written = store.delete(&id, &options, &writer)?;
    Ok((200, deleted(store, &id, written)))
}

/// The answer to a deletion: a Status without a version; for some kinds, and while finalizers remain, the object.
fn deleted(store: &Store, id: &Id, written: Written) -> Value {
    match written {
        Written::Deleted(last) if !store.kind(&id.resource).rules.has(Habit::ReturnsDeleted) => {
            let mut status = Status::success();
            let mut details = refusal::details(&id.resource, &id.name);
            said(&last, "uid").unwrap_or("").clone_into(&mut details.uid);
            status.details = Some(details);
            success(&status)
        }
        Written::Created(object) | Written::Updated(object) | Written::Deleted(object) => (*object).clone(),
    }
}

/// The Status of a success. It has no code if that is 200.
fn success(status: &Status) -> Value {
    let mut body = answer::status(status);
    if status.code == 0
        && let Some(fields) = body.as_object_mut()
    {
        fields.remove("code");
    }
    body
}

/// The preconditions and options of a deletion. The parameters of the query count if there is no body.
fn delete_options(request: &Incoming, route: &Route) -> Result<DeleteOptions, Refused> {
    if !request.body.is_empty() {
        return DeleteOptions::read(&request.json()?);
    }
    let mut body = json!({});
    for field in ["propagationPolicy", "gracePeriodSeconds", "orphanDependents", "dryRun"] {
        let said = route.get(field);
        if !said.is_empty() {
            body[field] = if field == "dryRun" { json!([said]) } else { said.parse().unwrap_or_else(|_| said.into()) };
        }
    }
    DeleteOptions::read(&body)
}

fn delete_collection(
    store: &mut Store,
    request: &Incoming,
    route: &Route,
    writer: &Writer<'_>,
) -> Result<(u16, Value), Refused> {
    let options = delete_options(request, route)?;
    let writer = Writer { dry_run: options.dry_run, ..writer.clone() };
    let objects = store.list(&route.resource, &Selector::of(route)?);
    for object in &objects {
        store.delete(&Id::of(&route.resource, object), &options, &writer)?;
    }
    Ok((200, list::answer(store, &route.resource, &objects, store.version())))
}

fn evict(store: &mut Store, request: &Incoming, route: &Route, writer: &Writer<'_>) -> Result<(u16, Value), Refused> {
    let id = route.id()?;
    let body = request.object()?;
    evict::check_body(&id, &body)?;
    let options = DeleteOptions::read(&body["deleteOptions"])?;
    let writer = Writer { dry_run: writer.dry_run || options.dry_run, ..writer.clone() };
    store.evict(&id, &options, &writer)?;
    Ok((201, success(&Status::success().with_code(201))))
}

fn written(written: Written) -> (u16, Value) {
    match written {
        Written::Created(object) => (201, (*object).clone()),
        Written::Updated(object) | Written::Deleted(object) => (200, (*object).clone()),
    }
}

/// Whether a value is an object and its metadata, if any, is an object. All other code here relies on it.
fn is_object_like(value: &Value) -> bool {
    value.is_object() && (value["metadata"].is_null() || value["metadata"].is_object())
}

/// Removes null fields, which mean "absent". Not for merge patches, where null means "remove".
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
