//! The garbage collector: it deletes or orphans the dependents of deleted owners.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::controllers::attempt;
use super::delete::{DeleteOptions, FOREGROUND, ORPHAN, Propagation};
use super::route::{Id, Part};
use super::store::{Refused, Store, Writer, Written, said};
use super::write::{Target, finalizers};

type Objects = Vec<(Id, Arc<Value>)>;

/// The state of an owner reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bond {
    /// The owner exists.
    Solid,
    /// The owner does not exist.
    Dangling,
    /// The owner is deleted in the foreground: it waits for its dependents.
    Waiting,
}

impl Store {
    pub(super) fn collect_garbage(&mut self, writer: &Writer<'_>) {
        let objects = self.everything();
        let by_uid: BTreeMap<&str, &Arc<Value>> =
            objects.iter().filter_map(|(_, object)| Some((said(object, "uid")?, object))).collect();
        for (id, object) in objects.iter().filter(|(_, object)| is_going(object)) {
            let uid = said(object, "uid").unwrap_or("");
            let owned: Vec<_> = objects.iter().filter(|(_, other)| owners(other).any(|it| it["uid"] == uid)).collect();
            if has(object, ORPHAN) {
                for (id, _) in owned {
                    attempt(self.disown(id, &[uid], writer));
                }
                attempt(self.release(id, ORPHAN, writer));
            } else if has(object, FOREGROUND) && !owned.iter().any(|(_, other)| blocks(other, uid)) {
                attempt(self.release(id, FOREGROUND, writer));
            }
        }
        for (id, object) in &objects {
            let bonds: Vec<_> = owners(object).map(|owner| (owner, bond(&by_uid, object, owner))).collect();
            attempt(self.settle_bonds(id, object, &bonds, &objects, writer));
        }
    }

    /// All objects that can own other objects or have owners.
    fn everything(&self) -> Objects {
        let resources: Vec<_> = self.resources().filter(|resource| resource.plural != "events").cloned().collect();
        let of = |resource| self.all(resource).map(|object| (Id::of(resource, object), object.clone()));
        resources.iter().flat_map(of).collect()
    }

    fn settle_bonds(
        &mut self,
        id: &Id,
        object: &Value,
        bonds: &[(&Value, Bond)],
        objects: &Objects,
        writer: &Writer<'_>,
    ) -> Result<(), Refused> {
        let with = |wanted: Bond| bonds.iter().filter(move |(_, bond)| *bond == wanted);
        let gone = || bonds.iter().filter(|(_, bond)| *bond != Bond::Solid);
        if gone().next().is_none() {
            return Ok(());
        }
        if with(Bond::Solid).next().is_some() {
            let uids: Vec<_> = gone().filter_map(|(owner, _)| owner["uid"].as_str()).collect();
            return self.disown(id, &uids, writer);
        }
        let uid = said(object, "uid").map(str::to_owned);
        let owns = objects.iter().any(|(_, other)| owners(other).any(|owner| owner["uid"].as_str() == uid.as_deref()));
        let propagation = if with(Bond::Waiting).next().is_some() && owns || has(object, FOREGROUND) {
            Propagation::Foreground
        } else if has(object, ORPHAN) {
            Propagation::Orphan
        } else {
            Propagation::Background
        };
        if is_going(object) && propagation != Propagation::Foreground {
            return Ok(());
        }
        let options = DeleteOptions { uid, propagation: Some(propagation), ..DeleteOptions::default() };
        self.delete(id, &options, writer).map(drop)
    }

    /// Removes owner references from an object.
    fn disown(&mut self, id: &Id, uids: &[&str], writer: &Writer<'_>) -> Result<(), Refused> {
        self.amend(id, writer, |object| {
            if let Some(owners) = object["metadata"]["ownerReferences"].as_array_mut() {
                owners.retain(|owner| owner["uid"].as_str().is_none_or(|uid| !uids.contains(&uid)));
            }
        })
    }

    /// Removes a finalizer from an object.
    fn release(&mut self, id: &Id, finalizer: &str, writer: &Writer<'_>) -> Result<(), Refused> {
        self.amend(id, writer, |object| {
            if let Some(finalizers) = object["metadata"]["finalizers"].as_array_mut() {
                finalizers.retain(|it| it != finalizer);
            }
        })
    }

    fn amend(&mut self, id: &Id, writer: &Writer<'_>, edit: impl FnOnce(&mut Value)) -> Result<(), Refused> {
        let target = Target { id, kind: self.kind(&id.resource), part: Part::Main, writer };
        let written: Written = self.update(&target, None, |live| {
            let mut wanted = live.clone();
            edit(&mut wanted);
            super::form::trim(&target.kind, &mut wanted);
            target.own(live, &mut wanted);
            Ok(wanted)
        })?;
        drop(written);
        Ok(())
    }
}

fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["ownerReferences"].as_array().into_iter().flatten()
}

fn is_going(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

fn has(object: &Value, finalizer: &str) -> bool {
    finalizers(object).any(|it| it == finalizer)
}

/// Whether this object blocks the deletion of an owner.
fn blocks(object: &Value, owner: &str) -> bool {
    owners(object).any(|it| it["uid"] == owner && it["blockOwnerDeletion"] == true)
}

fn bond(by_uid: &BTreeMap<&str, &Arc<Value>>, object: &Value, owner: &Value) -> Bond {
    let found = by_uid.get(owner["uid"].as_str().unwrap_or(""));
    let in_reach = |found: &&&Arc<Value>| {
        let namespace = said(found, "namespace");
        found["kind"] == owner["kind"]
            && said(found, "name") == owner["name"].as_str()
            && (namespace.is_none() || namespace == said(object, "namespace"))
    };
    match found.filter(in_reach) {
        None => Bond::Dangling,
        Some(found) if is_going(found) && has(found, FOREGROUND) => Bond::Waiting,
        Some(_) => Bond::Solid,
    }
}
