//! Creates and updates objects: the steps of a real server's storage layer, in its order.

use std::sync::Arc;

use serde_json::Value;

use super::checks::{self, FieldError};
use super::fields::managers::{self, Author};
use super::fields::scale::rescale;
use super::form;
use super::kinds::{Habit, Kind, StatusRule};
use super::route::{Id, Part};
use super::store::{Refused, Store, Writer, Written, said, seconds, set_or_remove};
use super::{limits, refusal, validations};

const STATUS: &[&str] = &["status"];
const SPEC: &[&str] = &["spec"];
const METADATA: &[&str] = &["metadata"];

/// The object that is written, the writer, and the endpoint.
#[derive(Clone, Debug)]
pub(super) struct Target<'a> {
    pub(super) id: &'a Id,
    pub(super) kind: Arc<Kind>,
    pub(super) part: Part,
    pub(super) writer: &'a Writer<'a>,
}

impl Target<'_> {
    /// The fields that this endpoint ignores.
    fn ignored(&self) -> &'static [&'static [&'static str]] {
        match (self.part, self.kind.rules.status, self.kind.is_custom) {
            (Part::Main | Part::Scale, StatusRule::None, _) => &[],
            (Part::Main | Part::Scale, _, _) => &[STATUS],
            (Part::Status, _, true) => &[METADATA, SPEC],
            (Part::Status, _, false) if self.id.resource.is_pod() => {
                &[SPEC, &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]]
            }
            (Part::Status, _, false) => &[SPEC],
        }
    }

    /// Calls a function with this writer as the author of fields.
    fn author<T>(&self, act: impl FnOnce(&Author<'_>) -> T) -> T {
        let (api_version, time) = (self.id.resource.api_version(), seconds(self.writer.now));
        let subresource = match self.part {
            Part::Main => "",
            Part::Status => "status",
            Part::Scale => "scale",
        };
        let (manager, ignored, sees_empty_lists) = (self.writer.manager, self.ignored(), !self.kind.is_custom);
        let (api_version, time, zero) = (&api_version, &time, &form::zero(&self.kind));
        act(&Author { manager, api_version, subresource, time, ignored, zero, sees_empty_lists })
    }

    /// Records the field owners in an object that replaces the live one.
    pub(super) fn own(&self, live: &Value, wanted: &mut Value) {
        self.author(|author| managers::update(&self.kind.shape, author, live, wanted));
    }

    /// The same after a write of its scale.
    pub(super) fn rescale(&self, wanted: &mut Value, path: &[String], before: i64, after: i64) {
        self.author(|author| rescale(author, wanted, path, before, after));
    }

    pub(super) fn apply(&self, live: &Value, said: &Value, force: bool) -> Result<Value, Refused> {
        self.author(|author| managers::apply(&self.kind.shape, author, live, said, force))
    }
}

impl Store {
    /// Creates an object by a POST.
    pub(super) fn create(&mut self, target: &Target<'_>, mut object: Value) -> Result<Written, Refused> {
        for field in ["creationTimestamp", "uid", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
            set_or_remove(&mut object["metadata"], field, None);
        }
        form::trim(&target.kind, &mut object);
        target.own(&Value::Null, &mut object);
        let born = self.bear(target, object)?;
        if said(&born, "resourceVersion").is_some() {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(refusal::new(500, "", message));
        }
        if let Some(live) = self.find(target.id) {
            return Err(refusal::already_exists(target.id, !live["metadata"]["deletionTimestamp"].is_null()));
        }
        self.insert(target, born)
    }

    /// Prepares an object for its creation.
    fn bear(&mut self, target: &Target<'_>, mut object: Value) -> Result<Value, Refused> {
        self.check_namespace(target.id)?;
        let metadata = &mut object["metadata"];
        metadata["name"] = target.id.name.as_str().into();
        if !target.id.namespace.is_empty() {
            metadata["namespace"] = target.id.namespace.as_str().into();
        }
        if target.id.namespace.is_empty() {
            set_or_remove(metadata, "namespace", None);
        }
        metadata["uid"] = self.new_uid().into();
        metadata["creationTimestamp"] = seconds(target.writer.now).into();
        set_or_remove(metadata, "generation", target.kind.rules.has(Habit::Generations).then(|| 1.into()));
        if target.kind.rules.status == StatusRule::Apart {
            set_or_remove(&mut object, "status", None);
        }
        form::at_birth(&target.kind, &mut object);
        form::check_kind(target.id, &target.kind, &object)?;
        let mut errors = checks::metadata(&object["metadata"]);
        errors.extend(form::check(&target.kind, &object));
        errors.extend(validations::check(&target.kind.validations, &errors, None));
        if !errors.is_empty() {
            return Err(refusal::invalid(target.id, &target.kind.name, &errors));
        }
        Ok(object)
    }

    fn insert(&mut self, target: &Target<'_>, object: Value) -> Result<Written, Refused> {
        if target.writer.large {
            limits::check_stored(&object)?;
        }
        if target.writer.dry_run {
            return Ok(Written::Created(Arc::new(object)));
        }
        Ok(Written::Created(self.commit(target.id, object)))
    }

    /// Changes an object. `make` returns the wanted object, field owners included; `uid` is a precondition.
    pub(super) fn update(
        &mut self,
        target: &Target<'_>,
        uid: Option<&str>,
        make: impl FnOnce(&Value) -> Result<Value, Refused>,
    ) -> Result<Written, Refused> {
        let live = self.get(target.id)?;
        if let Some(uid) = uid.filter(|uid| Some(*uid) != said(&live, "uid")) {
            return Err(refusal::uid_precondition(
                target.id,
                uid,
                said(&live, "uid").unwrap_or(""),
                target.writer.dry_run,
            ));
        }
        let mut wanted = make(&live)?;
        form::trim(&target.kind, &mut wanted);
        check_version(target, &live, &wanted)?;
        managers::keep_times(&live, &mut wanted);
        prepare(target, &live, &mut wanted);
        form::check_kind(target.id, &target.kind, &wanted)?;
        let mut errors = checks::metadata(&wanted["metadata"]);
        errors.extend(checks::update(&live["metadata"], &wanted["metadata"]));
        errors.extend(form::check(&target.kind, &wanted));
        errors.extend(form::check_update(&target.kind, &live, &wanted));
        errors.extend(validations::check(&target.kind.validations, &errors, Some((&live, &wanted))));
        if !errors.is_empty() {
            return Err(refusal::invalid(target.id, &target.kind.name, &errors));
        }
        self.settle(target, &live, wanted)
    }

    /// Stores the wanted object, unless nothing changes; removes it if the last finalizer is gone.
    fn settle(&mut self, target: &Target<'_>, live: &Arc<Value>, wanted: Value) -> Result<Written, Refused> {
        let metadata = &live["metadata"];
        let is_leaving = !metadata["deletionTimestamp"].is_null()
            && metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0;
        // A namespace has finalizers of its own.
        let is_full = target.kind.name == "Namespace" && wanted["spec"]["finalizers"].is_array();
        if is_leaving && !is_full && !has_finalizers(&wanted) {
            // The answer has the previous version; watches see the last stored form, finalizers included.
            if !target.writer.dry_run {
                self.evaporate(target.id)?;
            }
            return Ok(Written::Updated(Arc::new(wanted)));
        }
        if wanted == **live && self.is_settled(target.id) {
            return Ok(Written::Updated(live.clone()));
        }
        if target.writer.large {
            limits::check_stored(&wanted)?;
        }
        if target.writer.dry_run {
            return Ok(Written::Updated(Arc::new(wanted)));
        }
        Ok(Written::Updated(self.commit(target.id, wanted)))
    }

    /// Server-side apply.
    pub(super) fn apply(&mut self, target: &Target<'_>, said: &Value, force: bool) -> Result<Written, Refused> {
        if let Some(before) = self.find(target.id).cloned() {
            let mut leaves_empty = false;
            let written = self.update(target, None, |live| {
                let applied = target.apply(live, said, force)?;
                check_place(target.id, &applied)?;
                leaves_empty = form::has_empty(&applied["metadata"]);
                Ok(applied)
            })?;
            let is_new = matches!(&written, Written::Updated(after) if !Arc::ptr_eq(after, &before));
            if target.kind.is_custom && leaves_empty && is_new && !target.writer.dry_run {
                self.unsettle(target.id);
            }
            return Ok(written);
        }
        if target.part != Part::Main {
            return Err(refusal::not_found(target.id));
        }
        let bare = serde_json::json!({ "apiVersion": said["apiVersion"], "kind": said["kind"], "metadata": {} });
        let mut object = target.apply(&bare, said, force)?;
        if let Some(uid) = said["metadata"]["uid"].as_str() {
            let why =
                format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
            return Err(refusal::conflict(target.id, &why));
        }
        check_place(target.id, &object)?;
        form::trim(&target.kind, &mut object);
        let born = self.bear(target, object)?;
        self.insert(target, born)
    }

    /// Creates an object by a PUT.
    pub(super) fn create_by_update(&mut self, target: &Target<'_>, mut object: Value) -> Result<Written, Refused> {
        if let Some(uid) = said(&object, "uid") {
            return Err(refusal::uid_precondition(target.id, uid, "", target.writer.dry_run));
        }
        form::trim(&target.kind, &mut object);
        target.own(&Value::Null, &mut object);
        let born = self.bear(target, object)?;
        self.insert(target, born)
    }

    /// Stores an object unchanged, with its status.
    pub(super) fn seed(&mut self, id: &Id, mut object: Value, writer: &Writer<'_>) -> Arc<Value> {
        let kind = self.learn(&id.resource, &object);
        let live = self.find(id).cloned();
        let target = Target { id, kind: kind.clone(), part: Part::Main, writer };
        let Some(live) = live else {
            form::trim(&kind, &mut object);
            set_or_remove(&mut object["metadata"], "managedFields", None);
            for part in [Part::Main, Part::Status] {
                let before = if part == Part::Main { Value::Null } else { object.clone() };
                let target = Target { part, ..target.clone() };
                own_part(&target, &before, &mut object);
            }
            let status = object.get("status").cloned();
            let metadata = &mut object["metadata"];
            for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"] {
                set_or_remove(metadata, field, None);
            }
            metadata["name"] = id.name.as_str().into();
            if !id.namespace.is_empty() {
                metadata["namespace"] = id.namespace.as_str().into();
            }
            metadata["uid"] = self.new_uid().into();
            metadata["creationTimestamp"] = seconds(writer.now).into();
            set_or_remove(metadata, "generation", kind.rules.has(Habit::Generations).then(|| 1.into()));
            form::at_birth(&kind, &mut object);
            if status.is_some() {
                set_or_remove(&mut object, "status", status);
            }
            return self.commit(id, object);
        };
        for field in ["name", "namespace", "uid", "creationTimestamp", "generation"] {
            set_or_remove(&mut object["metadata"], field, live["metadata"].get(field).cloned());
        }
        form::trim(&kind, &mut object);
        target.own(&live, &mut object);
        if spec_of(&live) != spec_of(&object) {
            bump_generation(&mut object);
        }
        self.commit(id, object)
    }
}

/// Refuses a write whose resource version is outdated, or absent where the kind requires one.
fn check_version(target: &Target<'_>, live: &Value, wanted: &Value) -> Result<(), Refused> {
    match said(wanted, "resourceVersion") {
        None | Some("0") if target.kind.rules.has(Habit::UnconditionalUpdate) => Ok(()),
        None | Some("0") => {
            let why = "must be specified for an update";
            let error = FieldError::invalid("metadata.resourceVersion", "0", why);
            Err(refusal::invalid(target.id, &target.id.resource.plural, &[error]))
        }
        version if version == said(live, "resourceVersion") => Ok(()),
        Some(_) => Err(refusal::modified(target.id)),
    }
}

/// Restores the fields that the endpoint may not change.
fn prepare(target: &Target<'_>, live: &Value, wanted: &mut Value) {
    let kind = &target.kind;
    let owners = wanted["metadata"].get("managedFields").cloned();
    match (target.part, kind.rules.status) {
        (Part::Status, _) if kind.is_custom => {
            let status = wanted.get("status").cloned();
            *wanted = live.clone();
            set_or_remove(wanted, "status", status);
            set_or_remove(&mut wanted["metadata"], "managedFields", owners);
        }
        (Part::Status, _) => {
            set_or_remove(wanted, "spec", live.get("spec").cloned());
            if target.id.resource.is_pod() {
                let owners = live["metadata"].get("ownerReferences").cloned();
                set_or_remove(&mut wanted["metadata"], "ownerReferences", owners);
            }
        }
        (_, StatusRule::None) => {}
        _ => set_or_remove(wanted, "status", live.get("status").cloned()),
    }
    form::fill(kind, live, wanted);
    let metadata = &mut wanted["metadata"];
    metadata["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
    if target.id.namespace.is_empty() {
        set_or_remove(metadata, "namespace", None);
    }
    for field in ["creationTimestamp", "generation"] {
        set_or_remove(metadata, field, live["metadata"].get(field).cloned());
    }
    for field in ["uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let earlier = live["metadata"].get(field);
        if earlier.is_some() && (metadata.get(field).is_none() || field == "deletionTimestamp") {
            set_or_remove(metadata, field, earlier.cloned());
        }
    }
    if kind.rules.has(Habit::Generations) && target.part != Part::Status && spec_of(live) != spec_of(wanted) {
        bump_generation(wanted);
    }
}

/// The name and the namespace in the body must be those of the path, where they are given.
pub(super) fn check_place(id: &Id, object: &Value) -> Result<(), Refused> {
    if said(object, "namespace").is_some_and(|namespace| namespace != id.namespace && !id.namespace.is_empty()) {
        return Err(refusal::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    match said(object, "name") {
        Some(name) if name != id.name => {
            let wanted = &id.name;
            let message = format!("the name of the object ({name}) does not match the name on the URL ({wanted})");
            Err(refusal::bad_request(&message))
        }
        _ => Ok(()),
    }
}

fn own_part(target: &Target<'_>, before: &Value, object: &mut Value) {
    let before = if target.part == Part::Status {
        let mut before = before.clone();
        set_or_remove(&mut before, "status", None);
        before
    } else {
        before.clone()
    };
    target.own(&before, object);
}

pub(super) fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    object["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

pub(super) fn has_finalizers(object: &Value) -> bool {
    finalizers(object).next().is_some()
}

/// All fields except metadata and status: a change of these increments the generation.
fn spec_of(object: &Value) -> Vec<(&String, &Value)> {
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(key, _)| !matches!(key.as_str(), "metadata" | "status")).collect()
}

pub(super) fn bump_generation(object: &mut Value) {
    if let Some(generation) = object["metadata"]["generation"].as_i64() {
        object["metadata"]["generation"] = (generation + 1).into();
    }
}
