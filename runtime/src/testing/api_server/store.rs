//! Objects, their versions and their history, and what each write does to them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use kube::core::Status;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::ownership::Owners;
use super::refusal;
use super::route::{Id, Part, Resource};
use super::selector::Selector;

/// How many changes a watch may lie behind before it is told to list again.
const HISTORY: usize = 10_000;

type Refused = Box<Status>;

/// One change of one object.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) at: Instant,
    pub(super) id: Id,
    pub(super) old: Option<Arc<Value>>,
    pub(super) new: Option<Arc<Value>>,
    /// The new object; of a deleted one its last form, under the version of the deletion.
    pub(super) last: Arc<Value>,
}

#[derive(Clone, Debug)]
struct Stored {
    value: Arc<Value>,
    owners: Owners,
}

/// What is sent back for a write.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Written {
    Created(Arc<Value>),
    /// Changed, or found as wanted.
    Updated(Arc<Value>),
    /// Gone for good, with its last form.
    Deleted(Arc<Value>),
}

/// Who writes, and when.
#[derive(Clone, Debug)]
pub(super) struct Writer<'a> {
    pub(super) manager: &'a str,
    pub(super) now: Timestamp,
}

/// What a deletion insists on.
#[derive(Clone, Debug, Default)]
pub(super) struct DeleteOptions {
    pub(super) uid: Option<String>,
    pub(super) version: Option<String>,
    pub(super) grace_seconds: Option<i64>,
}

/// The whole state of the server.
#[derive(Clone, Debug)]
pub(super) struct Store {
    objects: BTreeMap<Id, Stored>,
    version: u64,
    uids: u64,
    kinds: BTreeMap<Resource, String>,
    history: VecDeque<Arc<Change>>,
    /// Changes up to this version are forgotten.
    compacted: u64,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            // A real server has written much before anybody asks; that no object has version 1 is relied upon.
            version: 1_000,
            uids: 0,
            kinds: BTreeMap::new(),
            history: VecDeque::new(),
            compacted: 1_000,
        }
    }
}

impl Store {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn kind(&self, resource: &Resource) -> String {
        self.kinds.get(resource).cloned().unwrap_or_else(|| "Unknown".to_owned())
    }

    pub(super) fn get(&self, id: &Id) -> Result<Arc<Value>, Refused> {
        self.objects.get(id).map(|stored| stored.value.clone()).ok_or_else(|| refusal::not_found(id))
    }

    /// All objects of a kind that are selected, in the order of their names.
    pub(super) fn list(&self, resource: &Resource, selector: &Selector) -> Vec<Arc<Value>> {
        let all = self.objects.iter().filter(|(id, _)| id.resource == *resource);
        all.map(|(_, stored)| stored.value.clone()).filter(|value| selector.matches(value)).collect()
    }

    /// All objects of a kind that are selected, as they were at a version (none: as they are), and that version.
    pub(super) fn list_as_of(
        &self,
        resource: &Resource,
        selector: &Selector,
        version: Option<u64>,
    ) -> Result<(Vec<Arc<Value>>, u64), Refused> {
        let Some(version) = version.filter(|version| *version < self.version) else {
            return Ok((self.list(resource, selector), self.version));
        };
        let too_old =
            || refusal::expired("The provided continue parameter is too old to display a consistent list result.");
        let objects = self.objects.iter().filter(|(id, _)| id.resource == *resource);
        let mut then: BTreeMap<&Id, Arc<Value>> = objects.map(|(id, stored)| (id, stored.value.clone())).collect();
        for change in
            self.changes_after(version).ok_or_else(too_old)?.rev().filter(|change| change.id.resource == *resource)
        {
            match &change.old {
                Some(old) => then.insert(&change.id, old.clone()),
                None => then.remove(&change.id),
            };
        }
        Ok((then.into_values().filter(|object| selector.matches(object)).collect(), version))
    }

    /// The changes after a version; none when they are forgotten.
    pub(super) fn changes_after(&self, version: u64) -> Option<impl DoubleEndedIterator<Item = &Change>> {
        if version < self.compacted {
            return None;
        }
        let start = self.history.partition_point(|change| change.version <= version);
        Some(self.history.range(start..).map(Arc::as_ref))
    }

    /// Forgets all changes: a watch from an earlier version is told to list again.
    pub(super) fn compact(&mut self) {
        self.history.clear();
        self.compacted = self.version;
    }

    pub(super) fn create(&mut self, id: &Id, mut object: Value, writer: &Writer<'_>) -> Result<Written, Refused> {
        if self.objects.contains_key(id) {
            return Err(refusal::already_exists(id));
        }
        if object["metadata"]["resourceVersion"].as_str().is_some_and(|version| !version.is_empty()) {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(refusal::new(500, "", message));
        }
        // Status comes by its own endpoint.
        if let Some(fields) = object.as_object_mut().filter(|_| id.resource.plural != "nodes") {
            fields.remove("status");
        }
        let mut owners = Owners::default();
        owners.update(&id.resource, writer.manager, Part::Main, &Value::Null, &object);
        Ok(Written::Created(self.insert(id, object, owners, writer.now)))
    }

    /// Puts an object there as it is, with its status.
    pub(super) fn seed(&mut self, id: &Id, mut object: Value, writer: &Writer<'_>) -> Arc<Value> {
        let mut owners = Owners::default();
        for part in [Part::Main, Part::Status] {
            owners.update(&id.resource, writer.manager, part, &Value::Null, &object);
        }
        let Some(live) = self.objects.get(id).map(|stored| stored.value.clone()) else {
            return self.insert(id, object, owners, writer.now);
        };
        for field in ["name", "namespace", "uid", "creationTimestamp", "generation"] {
            set_or_remove(&mut object["metadata"], field, live["metadata"].get(field).cloned());
        }
        if spec_of(&live) != spec_of(&object) {
            bump_generation(&id.resource, &mut object);
        }
        self.commit(id, object, owners)
    }

    /// Removes an object at once, whatever its finalizers say.
    pub(super) fn remove(&mut self, id: &Id) -> Result<Arc<Value>, Refused> {
        self.get(id)?;
        Ok(self.evaporate(id))
    }

    fn insert(&mut self, id: &Id, mut object: Value, owners: Owners, now: Timestamp) -> Arc<Value> {
        self.uids += 1;
        let metadata = &mut object["metadata"];
        metadata["name"] = id.name.as_str().into();
        if !id.namespace.is_empty() {
            metadata["namespace"] = id.namespace.as_str().into();
        }
        metadata["uid"] = format!("{:08x}-0000-4000-8000-{:012x}", self.uids, self.uids).into();
        metadata["creationTimestamp"] = seconds(now).into();
        if counts_generations(&id.resource) {
            metadata["generation"] = 1.into();
        }
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "generateName"] {
            metadata.as_object_mut().map(|metadata| metadata.remove(field));
        }
        self.commit(id, object, owners)
    }

    /// Stores an object under the next version.
    fn commit(&mut self, id: &Id, mut object: Value, owners: Owners) -> Arc<Value> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        if let Some(kind) = object["kind"].as_str() {
            self.kinds.insert(id.resource.clone(), kind.to_owned());
        }
        let new = Arc::new(object);
        let stored = Stored { value: new.clone(), owners };
        let old = self.objects.insert(id.clone(), stored).map(|stored| stored.value);
        self.remember(id, old, Some(new.clone()), new.clone());
        new
    }

    /// Removes an object; watches see its last form under the version of the deletion.
    fn evaporate(&mut self, id: &Id) -> Arc<Value> {
        self.version += 1;
        let old = self.objects.remove(id).map(|stored| stored.value);
        let last = Arc::new(at_version(old.as_deref().cloned().unwrap_or_default(), self.version));
        self.remember(id, old, None, last.clone());
        last
    }

    fn remember(&mut self, id: &Id, old: Option<Arc<Value>>, new: Option<Arc<Value>>, last: Arc<Value>) {
        let (version, at, id) = (self.version, Instant::now(), id.clone());
        self.history.push_back(Arc::new(Change { version, at, id, old, new, last }));
        while self.history.len() > HISTORY {
            self.compacted = self.history.pop_front().map_or(self.compacted, |change| change.version);
        }
    }

    /// Replaces a part of an object. Its UID, if given, is a precondition.
    pub(super) fn replace(
        &mut self,
        id: &Id,
        part: Part,
        writer: &Writer<'_>,
        object: Value,
    ) -> Result<Written, Refused> {
        let live = self.get(id)?;
        let uid = said(&object, "uid");
        if part == Part::Main && uid.is_some() && uid != said(&live, "uid") {
            let (uid, found) = (uid.unwrap_or(""), said(&live, "uid").unwrap_or(""));
            let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {found}");
            return Err(refusal::conflict(id, &why));
        }
        self.update(id, part, writer, &live, object)
    }

    /// Edits a part of an object by a patch: `edit` makes what is wanted of what is there.
    pub(super) fn edit(
        &mut self,
        id: &Id,
        part: Part,
        writer: &Writer<'_>,
        edit: impl FnOnce(&Value) -> Result<Value, Refused>,
    ) -> Result<Written, Refused> {
        let live = self.get(id)?;
        let wanted = edit(&live)?;
        check_uid(id, part, &live, &wanted)?;
        self.update(id, part, writer, &live, wanted)
    }

    fn update(
        &mut self,
        id: &Id,
        part: Part,
        writer: &Writer<'_>,
        live: &Arc<Value>,
        wanted: Value,
    ) -> Result<Written, Refused> {
        check_version(id, live, &wanted)?;
        let mut owners = self.owners(id);
        let merged = combine(part, live, wanted);
        owners.update(&id.resource, writer.manager, part, live, &merged);
        self.settle(id, live, merged, owners)
    }

    /// Server-side apply.
    pub(super) fn apply(
        &mut self,
        id: &Id,
        part: Part,
        writer: &Writer<'_>,
        said: &Value,
        force: bool,
    ) -> Result<Written, Refused> {
        let Ok(live) = self.get(id) else {
            return self.create_by_apply(id, part, writer, said);
        };
        check_version(id, &live, said)?;
        check_uid(id, part, &live, said)?;
        let mut owners = self.owners(id);
        let proposed = owners.apply(&id.resource, writer.manager, part, &live, said, force)?;
        let merged = combine(part, &live, proposed);
        self.settle(id, &live, merged, owners)
    }

    fn create_by_apply(&mut self, id: &Id, part: Part, writer: &Writer<'_>, said: &Value) -> Result<Written, Refused> {
        if part == Part::Status {
            return Err(refusal::not_found(id));
        }
        if let Some(uid) = said["metadata"]["uid"].as_str() {
            let why =
                format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
            return Err(refusal::conflict(id, &why));
        }
        let mut owners = Owners::default();
        let bare = json!({ "apiVersion": said["apiVersion"], "kind": said["kind"], "metadata": {} });
        let object = owners.apply(&id.resource, writer.manager, part, &bare, said, true)?;
        Ok(Written::Created(self.insert(id, object, owners, writer.now)))
    }

    fn owners(&self, id: &Id) -> Owners {
        self.objects.get(id).map(|stored| stored.owners.clone()).unwrap_or_default()
    }

    /// Stores the outcome of a write, unless it changes nothing; the last finalizer takes the object with it.
    fn settle(&mut self, id: &Id, live: &Arc<Value>, mut merged: Value, owners: Owners) -> Result<Written, Refused> {
        let deleting = !live["metadata"]["deletionTimestamp"].is_null();
        if deleting && adds_finalizer(live, &merged) {
            let why = "Forbidden: no new finalizers can be added if the object is being deleted";
            return Err(refusal::invalid(id, "metadata.finalizers", why));
        }
        merged["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
        if merged == **live {
            if let Some(stored) = self.objects.get_mut(id) {
                stored.owners = owners;
            }
            return Ok(Written::Updated(live.clone()));
        }
        if spec_of(live) != spec_of(&merged) {
            bump_generation(&id.resource, &mut merged);
        }
        let finished = deleting && !has_finalizers(&merged) && has_finalizers(live) && !is_graceful(&merged);
        if finished {
            // The answer carries the version from before; watches see what stood there last, finalizers included.
            self.evaporate(id);
            return Ok(Written::Updated(Arc::new(merged)));
        }
        Ok(Written::Updated(self.commit(id, merged, owners)))
    }

    pub(super) fn delete(&mut self, id: &Id, options: &DeleteOptions, now: Timestamp) -> Result<Written, Refused> {
        let live = self.get(id)?;
        check_preconditions(id, &live, options)?;
        let grace = grace_seconds(id, &live, options);
        if !has_finalizers(&live) && grace == 0 {
            return Ok(Written::Deleted(self.evaporate(id)));
        }
        let mut object = (*live).clone();
        let metadata = &mut object["metadata"];
        let since = metadata["deletionTimestamp"].clone();
        let sooner = metadata["deletionGracePeriodSeconds"].as_i64().is_some_and(|earlier| grace < earlier);
        if !since.is_null() && !sooner {
            return Ok(Written::Updated(live));
        }
        if since.is_null() {
            let at = now.checked_add(jiff::SignedDuration::from_secs(grace)).unwrap_or(now);
            metadata["deletionTimestamp"] = seconds(at).into();
            bump_generation(&id.resource, &mut object);
        }
        object["metadata"]["deletionGracePeriodSeconds"] = grace.into();
        let owners = self.owners(id);
        Ok(Written::Updated(self.commit(id, object, owners)))
    }
}

/// An object under another version.
pub(super) fn at_version(mut object: Value, version: u64) -> Value {
    object["metadata"]["resourceVersion"] = version.to_string().into();
    object
}

/// The wire form of times in metadata.
fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A field of the metadata, if it says anything.
fn said<'a>(object: &'a Value, field: &str) -> Option<&'a str> {
    object["metadata"][field].as_str().filter(|text| !text.is_empty())
}

/// A write that carries a version is refused when that is not the present one.
fn check_version(id: &Id, live: &Value, wanted: &Value) -> Result<(), Refused> {
    let version = said(wanted, "resourceVersion");
    if version.is_some() && version != said(live, "resourceVersion") { Err(refusal::modified(id)) } else { Ok(()) }
}

/// To a patch the UID is a field that cannot be changed; through the status endpoint it is not looked at.
fn check_uid(id: &Id, part: Part, live: &Value, wanted: &Value) -> Result<(), Refused> {
    match said(wanted, "uid") {
        Some(uid) if part == Part::Main && Some(uid) != said(live, "uid") => {
            Err(refusal::immutable(id, live["kind"].as_str().unwrap_or(""), "metadata.uid", uid))
        }
        _ => Ok(()),
    }
}

fn check_preconditions(id: &Id, live: &Value, options: &DeleteOptions) -> Result<(), Refused> {
    let check = |name: &str, asked: Option<&String>, field: &str| match asked {
        Some(asked) if live["metadata"][field] != asked.as_str() => {
            let kind = live["kind"].as_str().unwrap_or("");
            Err(refusal::precondition(id, kind, name, asked, said(live, field).unwrap_or("")))
        }
        _ => Ok(()),
    };
    check("UID", options.uid.as_ref(), "uid")?;
    check("ResourceVersion", options.version.as_ref(), "resourceVersion")
}

/// A Pod that runs on a node stays until its kubelet deletes it without grace; all else has none.
fn grace_seconds(id: &Id, live: &Value, options: &DeleteOptions) -> i64 {
    if !id.resource.is_pod() || live["spec"]["nodeName"].is_null() {
        return 0;
    }
    let default = live["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    options.grace_seconds.unwrap_or(default).max(0)
}

fn is_graceful(object: &Value) -> bool {
    object["metadata"]["deletionGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds > 0)
}

/// Takes of a write what its endpoint may change, and the rest of what is there.
fn combine(part: Part, live: &Value, proposed: Value) -> Value {
    let mut merged = match part {
        Part::Main => proposed,
        Part::Status => {
            let mut merged = live.clone();
            set_or_remove(&mut merged, "status", proposed.get("status").cloned());
            return merged;
        }
    };
    set_or_remove(&mut merged, "status", live.get("status").cloned());
    let kept = ["name", "namespace", "uid", "creationTimestamp", "generation", "deletionTimestamp"];
    for field in kept.into_iter().chain(["deletionGracePeriodSeconds", "managedFields"]) {
        set_or_remove(&mut merged["metadata"], field, live["metadata"].get(field).cloned());
    }
    for (group, field) in [("metadata", "labels"), ("metadata", "annotations"), ("metadata", "finalizers")] {
        // The server leaves out what is empty.
        let empty = match &merged[group][field] {
            Value::Null => true,
            Value::Object(fields) => fields.is_empty(),
            Value::Array(items) => items.is_empty(),
            _ => false,
        };
        if empty {
            set_or_remove(&mut merged[group], field, None);
        }
    }
    merged
}

fn set_or_remove(object: &mut Value, field: &str, value: Option<Value>) {
    match value {
        Some(value) => object[field] = value,
        None => drop(object.as_object_mut().and_then(|fields| fields.remove(field))),
    }
}

fn finalizers(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["finalizers"].as_array().into_iter().flatten()
}

fn has_finalizers(object: &Value) -> bool {
    finalizers(object).next().is_some()
}

fn adds_finalizer(live: &Value, merged: &Value) -> bool {
    finalizers(merged).any(|finalizer| finalizers(live).all(|known| known != finalizer))
}

/// All but metadata and status: what a change of generation is about.
fn spec_of(object: &Value) -> Vec<(&String, &Value)> {
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(key, _)| !matches!(key.as_str(), "metadata" | "status" | "apiVersion" | "kind")).collect()
}

/// Most built-in kinds of the core group have no generations.
fn counts_generations(resource: &Resource) -> bool {
    resource.is_custom() || resource.is_pod() || matches!(resource.group.as_str(), "apps" | "batch" | "policy")
}

fn bump_generation(resource: &Resource, object: &mut Value) {
    if !counts_generations(resource) {
        return;
    }
    let generation = object["metadata"]["generation"].as_i64().unwrap_or(1);
    object["metadata"]["generation"] = (generation + 1).into();
}
