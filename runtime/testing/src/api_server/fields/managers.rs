//! The owners of fields, as `metadata.managedFields` keeps them.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::refusal;
use super::super::store::Refused;
use super::walk::{Changes, compare, fields_of, merge, remove, with_named};
use super::{Set, Shape};

/// The manager of all fields that existed before the first apply and have no known manager.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Fields that no manager owns.
const SYSTEM_FIELDS: [&[&str]; 12] = [
    &["apiVersion"],
    &["kind"],
    &["metadata"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "creationTimestamp"],
    &["metadata", "selfLink"],
    &["metadata", "uid"],
    &["metadata", "clusterName"],
    &["metadata", "generation"],
    &["metadata", "managedFields"],
    &["metadata", "resourceVersion"],
];

/// The writer of a request: its manager name, endpoint and time.
#[derive(Clone, Debug)]
pub(in super::super) struct Author<'a> {
    pub(in super::super) manager: &'a str,
    pub(in super::super) api_version: &'a str,
    /// `status`, `scale` or nothing.
    pub(in super::super) subresource: &'a str,
    /// In the wire format.
    pub(in super::super) time: &'a str,
    /// The fields that this endpoint does not write.
    pub(in super::super) ignored: &'a [&'a [&'a str]],
    /// An object of the kind with only the fields that every object has.
    pub(in super::super) zero: &'a Value,
    /// Whether an empty list differs from an absent one. A real server does not distinguish them for custom kinds.
    pub(in super::super) sees_empty_lists: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Manager {
    /// `Apply` before `Update`, as on the wire.
    pub(super) operation: &'static str,
    pub(super) name: String,
    /// Not part of the identity of an apply.
    pub(super) api_version: String,
    pub(super) subresource: String,
}

#[derive(Clone, Debug)]
pub(super) struct Owned {
    pub(super) api_version: String,
    pub(super) time: Value,
    pub(super) fields: Set,
}

/// The owned fields of one object, by manager.
#[derive(Clone, Debug, Default)]
pub(super) struct Owners(pub(super) BTreeMap<Manager, Owned>);

pub(super) const APPLY: &str = "Apply";
pub(super) const UPDATE: &str = "Update";

impl Manager {
    pub(super) fn of(author: &Author<'_>, operation: &'static str) -> Self {
        let name = if author.manager.is_empty() { "unknown" } else { author.manager };
        let api_version = if operation == APPLY { "" } else { author.api_version };
        let text = |text: &str| text.to_owned();
        Self { operation, name: text(name), api_version: text(api_version), subresource: text(author.subresource) }
    }

    /// The sort key of conflicts.
    fn identity(&self) -> (String, &'static str, String, bool, String) {
        let Self { operation, name, api_version, subresource } = self.clone();
        (name, operation, api_version, subresource.is_empty(), subresource)
    }

    /// The name in a conflict message.
    fn describe(&self, owned: &Owned) -> String {
        let Self { name, subresource, .. } = self;
        let through = if subresource.is_empty() { String::new() } else { format!(" with subresource {subresource:?}") };
        let using = if self.operation == UPDATE { format!(" using {}", owned.api_version) } else { String::new() };
        format!("{name:?}{through}{using}")
    }
}

impl Owned {
    pub(super) fn now(author: &Author<'_>, fields: Set) -> Self {
        Self { api_version: author.api_version.to_owned(), time: author.time.into(), fields }
    }
}

impl Owners {
    /// `None` if there are no entries, or if they cannot be parsed.
    fn of(entries: &Value) -> Option<Self> {
        let entries: Option<BTreeMap<_, _>> = entries.as_array()?.iter().map(read_entry).collect();
        entries.filter(|entries| !entries.is_empty()).map(Self)
    }

    pub(super) fn read(object: &Value) -> Self {
        Self::of(&object["metadata"]["managedFields"]).unwrap_or_default()
    }

    fn write(&self, object: &mut Value) {
        let mut entries: Vec<_> = self.0.iter().filter(|(_, owned)| !owned.fields.is_empty()).collect();
        entries.sort_by(Self::order);
        let entries: Vec<_> = entries.into_iter().map(|(manager, owned)| write_entry(manager, owned)).collect();
        set_entries(object, entries);
    }

    /// The order on the wire.
    pub(super) fn order<M: Borrow<Manager>, O: Borrow<Owned>>(left: &(M, O), right: &(M, O)) -> Ordering {
        let time = |owned: &Owned| owned.time.as_str().unwrap_or("").to_owned();
        let ((left, left_owned), (right, right_owned)) =
            ((left.0.borrow(), left.1.borrow()), (right.0.borrow(), right.1.borrow()));
        let by_time = time(left_owned).cmp(&time(right_owned));
        left.operation.cmp(right.operation).then(by_time).then(left.cmp(right))
    }

    /// Removes the fields that `writer` changed from all other managers. `Err`: the owned fields that conflict, by manager.
    fn give_way(&mut self, writer: &Manager, changes: &Changes, force: bool) -> Result<(), Vec<(String, Vec<String>)>> {
        let written = changes.modified.union(&changes.added);
        let mut others: Vec<_> = self.0.iter_mut().filter(|(manager, _)| *manager != writer).collect();
        others.sort_by_key(|(manager, _)| manager.identity());
        let conflicts = others.into_iter().map(|(manager, owned)| {
            let lost = owned.fields.intersection(&written);
            let conflict = (!lost.is_empty()).then(|| (manager.describe(owned), lost.paths()));
            if conflict.is_none() || force {
                owned.fields = owned.fields.difference(&lost).difference(&changes.removed);
            }
            conflict
        });
        let conflicts: Vec<_> = conflicts.flatten().collect();
        if conflicts.is_empty() || force {
            self.0.retain(|_, owned| !owned.fields.is_empty());
            return Ok(());
        }
        Err(conflicts)
    }

    /// The fields that any manager owns.
    fn all(&self) -> Set {
        self.0.values().fold(Set::default(), |all, owned| all.union(&owned.fields))
    }
}

fn read_entry(entry: &Value) -> Option<(Manager, Owned)> {
    let text = |field: &str| entry[field].as_str().unwrap_or("").to_owned();
    let operation = match entry["operation"].as_str() {
        Some(APPLY) => APPLY,
        Some(UPDATE) => UPDATE,
        _ => return None,
    };
    let api_version = if operation == APPLY { String::new() } else { text("apiVersion") };
    let manager = Manager { operation, name: text("manager"), api_version, subresource: text("subresource") };
    let fields = Set::from_json(&entry["fieldsV1"]);
    Some((manager, Owned { api_version: text("apiVersion"), time: entry["time"].clone(), fields }))
}

pub(super) fn write_entry(manager: &Manager, owned: &Owned) -> Value {
    let mut entry = json!({
        "manager": manager.name,
        "operation": manager.operation,
        "apiVersion": owned.api_version,
        "time": owned.time,
        "fieldsType": "FieldsV1",
        "fieldsV1": owned.fields.to_json(),
    });
    if owned.time.is_null()
        && let Some(fields) = entry.as_object_mut()
    {
        fields.remove("time");
    }
    if !manager.subresource.is_empty() {
        entry["subresource"] = manager.subresource.as_str().into();
    }
    entry
}

pub(super) fn set_entries(object: &mut Value, entries: Vec<Value>) {
    if !entries.is_empty() {
        object["metadata"]["managedFields"] = entries.into();
    } else if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
}

/// Records the field owners in `new` after a write other than an apply. `live`: the stored object, `null` if there is none.
pub(in super::super) fn update(shape: &Shape, author: &Author<'_>, live: &Value, new: &mut Value) {
    let said = new["metadata"]["managedFields"].take();
    let mut owners = Owners::default();
    // One empty entry resets managedFields; so does an empty list, where the kind sees empty lists. No entries: keep the live
    // ones.
    let is_reset = said == json!([{}]) || said == json!([]) && author.sees_empty_lists;
    if !author.subresource.is_empty() || !is_reset {
        owners = Owners::of(&said).filter(|_| author.subresource.is_empty()).unwrap_or_else(|| Owners::read(live));
    }
    if owners.0.is_empty() && live["metadata"]["uid"].is_string() {
        // Without managers, ownership is not tracked before the first apply.
        set_entries(new, vec![]);
        return;
    }
    set_entries(new, vec![]);
    own_changes(shape, author, live, new, &mut owners);
    owners.write(new);
}

/// Gives the changed fields to the author, and removes them from all other managers.
fn own_changes(shape: &Shape, author: &Author<'_>, live: &Value, new: &Value, owners: &mut Owners) {
    let ignored = Set::of(author.ignored);
    let live = if live.is_null() { author.zero } else { live };
    let changes = compare(shape, live, new).without(&ignored);
    let manager = Manager::of(author, UPDATE);
    // The author's own earlier entry loses these fields too; the remaining fields are added again below.
    let nobody = Manager { name: String::new(), ..manager.clone() };
    let _ = owners.give_way(&nobody, &changes, true);
    let fields = changes.modified.union(&changes.added).difference(&Set::of(&SYSTEM_FIELDS));
    if fields.is_empty() {
        return;
    }
    let earlier = owners.0.remove(&manager).map(|owned| owned.fields).unwrap_or_default();
    let owned =
        Owned { api_version: author.api_version.to_owned(), time: author.time.into(), fields: fields.union(&earlier) };
    owners.0.insert(manager, owned);
}

/// Restores the live timestamps if nothing else differs: a write that changes only the times of ownership is a no-op. As in a real
/// server, `wanted` still has the fields that the endpoint ignores: an apply that changes only those has a new time.
pub(in super::super) fn keep_times(live: &Value, wanted: &mut Value) {
    let (earlier, now) = (&live["metadata"]["managedFields"], &wanted["metadata"]["managedFields"]);
    if earlier == now || !timeless(earlier).eq(timeless(now)) {
        return;
    }
    let mut kept = wanted.clone();
    kept["metadata"]["managedFields"] = earlier.clone();
    if kept == *live {
        *wanted = kept;
    }
}

fn timeless(entries: &Value) -> impl Iterator<Item = Value> {
    entries.as_array().into_iter().flatten().map(|entry| {
        let mut entry = entry.clone();
        entry["time"] = Value::Null;
        entry
    })
}

/// The object after an apply: the applied fields are set; fields that this manager applied earlier, and that no other manager
/// owns, are removed. Fails with a conflict if other managers own a field that would change, unless forced. `live`: the stored
/// object, or an object with neither UID nor fields.
pub(in super::super) fn apply(
    shape: &Shape,
    author: &Author<'_>,
    live: &Value,
    said: &Value,
    force: bool,
) -> Result<Value, Refused> {
    let mut bare = live.clone();
    set_entries(&mut bare, vec![]);
    let mut owners = Owners::read(live);
    if owners.0.is_empty() {
        let before = Author { manager: BEFORE_FIRST_APPLY, ..author.clone() };
        own_changes(shape, &before, &Value::Null, &bare, &mut owners);
    }
    let manager = Manager::of(author, APPLY);
    let fields = fields_of(shape, said).without(&Set::of(author.ignored));
    let earlier = owners.0.insert(manager.clone(), Owned::now(author, fields));
    let merged = merge(shape, &bare, said);
    let pruned = match &earlier {
        Some(earlier) => prune(shape, &merged, &owners.all(), &earlier.fields),
        None => merged,
    };
    let changes = compare(shape, &bare, &pruned).without(&Set::of(author.ignored));
    owners.give_way(&manager, &changes, force).map_err(|conflicts| refusal::field_conflicts(&conflicts))?;
    strip(&mut owners, &manager);
    if pruned == bare
        && let Some(owned) = owners.0.get_mut(&manager)
    {
        owned.time = earlier.map(|earlier| earlier.time).unwrap_or_default();
    }
    let mut object = pruned;
    owners.write(&mut object);
    Ok(object)
}

fn strip(owners: &mut Owners, manager: &Manager) {
    if let Some(owned) = owners.0.get_mut(manager) {
        owned.fields = owned.fields.difference(&Set::of(&SYSTEM_FIELDS));
    }
}

/// Removes the fields that were applied earlier and have no owner now.
fn prune(shape: &Shape, merged: &Value, owned: &Set, earlier: &Set) -> Value {
    let named = |set: &Set| with_named(shape, set);
    let all = named(&fields_of(shape, merged));
    // First remove the fields regardless of owners, then add back those that other managers own.
    let bold = remove(shape, merged, &named(earlier));
    let kept = named(&fields_of(shape, &bold)).union(&named(owned));
    let pruned = remove(shape, merged, &all.difference(&kept));
    // A field that this manager never applied stays, although it has no owner.
    let kept = named(&fields_of(shape, &pruned));
    remove(shape, merged, &all.difference(&kept).intersection(&named(earlier)))
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::super::shape::builtin;
    use super::*;

    static ZERO: LazyLock<Value> = LazyLock::new(|| json!({}));

    fn author(manager: &str) -> Author<'_> {
        let time = "2026-11-20T10:00:00Z";
        Author {
            manager,
            api_version: "v1",
            subresource: "",
            time,
            ignored: &[&["status"]],
            zero: &ZERO,
            sees_empty_lists: true,
        }
    }

    fn applied(manager: &str, live: &Value, said: &Value, force: bool) -> Result<Value, Refused> {
        apply(&builtin("ConfigMap"), &author(manager), live, said, force)
    }

    fn bare(mut object: Value) -> Value {
        set_entries(&mut object, vec![]);
        object
    }

    #[test]
    fn what_is_no_longer_said_is_removed_unless_another_says_it() {
        let said = json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"x": 1, "list": [1, 2]}});
        let live = applied("one", &json!({}), &said, false).unwrap();
        let live = applied("two", &live, &json!({"spec": {"x": 1}}), false).unwrap();
        let live = applied("one", &live, &json!({"metadata": {"labels": {"a": "1"}}}), false).unwrap();
        assert_eq!(bare(live.clone()), json!({"metadata": {"labels": {"a": "1"}}, "spec": {"x": 1}}));
        let live = applied("two", &live, &json!({}), false).unwrap();
        assert_eq!(bare(live), json!({"metadata": {"labels": {"a": "1"}}}), "empty structures go too");
    }

    #[test]
    fn a_field_of_another_is_a_conflict_unless_forced() {
        let live = applied("one", &json!({}), &json!({"spec": {"x": 1}}), false).unwrap();
        let refused = applied("two", &live, &json!({"spec": {"x": 2}}), false).unwrap_err();
        assert_eq!((refused.status.code, refused.status.details.unwrap().causes[0].field.as_str()), (409, ".spec.x"));
        let live = applied("two", &live, &json!({"spec": {"x": 2}}), true).unwrap();
        let live = applied("one", &live, &json!({}), false).unwrap();
        assert_eq!(live["spec"], json!({"x": 2}), "the first has lost it and removes nothing");
    }

    #[test]
    fn after_an_update_a_later_apply_leaves_what_it_does_not_mention() {
        let live = applied("one", &json!({}), &json!({"data": {"x": "1", "y": "1"}}), false).unwrap();
        let mut updated = live.clone();
        updated["data"]["y"] = "5".into();
        update(&builtin("ConfigMap"), &author("other"), &live, &mut updated);
        let live = applied("one", &updated, &json!({"data": {"x": "1"}}), false).unwrap();
        assert_eq!(live["data"], json!({"x": "1", "y": "5"}));
    }

    #[test]
    fn finalizers_are_a_set_and_owners_are_keyed() {
        let live = json!({"metadata": {"uid": "u", "finalizers": ["theirs"], "ownerReferences": [{"uid": "1", "name": "set"}]}});
        let said = json!({"metadata": {"finalizers": ["ours"], "ownerReferences": [{"uid": "2", "name": "other"}]}});
        let live = applied("one", &live, &said, false).unwrap();
        assert_eq!(live["metadata"]["finalizers"], json!(["theirs", "ours"]));
        assert_eq!(live["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(2));
        let live = applied("one", &live, &json!({}), false).unwrap();
        assert_eq!(live["metadata"]["finalizers"], json!(["theirs"]));
        assert_eq!(live["metadata"]["ownerReferences"], json!([{"uid": "1", "name": "set"}]));
    }

    #[test]
    fn what_nobody_is_known_to_own_is_not_removed_by_the_applies_that_follow() {
        let live = applied("one", &json!({}), &json!({"data": {"x": "1", "y": "1"}}), false).unwrap();
        let mut dropped = live.clone();
        dropped["metadata"]["uid"] = "u".into();
        dropped["metadata"]["managedFields"] = json!([{}]);
        let mut live = live;
        live["metadata"]["uid"] = "u".into();
        update(&builtin("ConfigMap"), &author("other"), &live, &mut dropped);
        assert!(dropped["metadata"].get("managedFields").is_none());
        let live = applied("one", &dropped, &json!({"data": {"x": "1"}}), false).unwrap();
        assert_eq!(live["data"], json!({"x": "1", "y": "1"}));
        assert_eq!(live["metadata"]["managedFields"][1]["manager"], BEFORE_FIRST_APPLY);
    }
}
