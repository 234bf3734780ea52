//! The owners of a number that is also written through the scale endpoint.
//!
//! A real server separates them while it writes a scale, and merges them again: managers that wrote the number by an update
//! get an entry of their own for it.

use serde_json::Value;

use super::Set;
use super::managers::{APPLY, Author, Manager, Owned, Owners, UPDATE, set_entries, write_entry};
use super::set::field;

const SCALE_VERSION: &str = "autoscaling/v1";

/// Records the owner of an object's replicas after a write through the scale endpoint. `path`: the field's path. `before` and
/// `after`: 0 counts as unset.
pub(in super::super) fn rescale(author: &Author<'_>, object: &mut Value, path: &[String], before: i64, after: i64) {
    let number = Set::only(&path.iter().map(|name| field(name)).collect::<Vec<_>>());
    let owners = Owners::read(object);
    let mut scaled = in_scale(&owners, &number);
    // A number without a known owner gets none.
    if before != after && !scaled.is_empty() {
        scaled.clear();
        if after != 0 {
            let author = Author { api_version: SCALE_VERSION, ..author.clone() };
            scaled.push((Manager::of(&author, UPDATE), Owned::now(&author, number.clone())));
        }
    }
    let mut entries = vec![];
    for (manager, owned) in owners.0 {
        let kept = scaled.iter().position(|(other, _)| *other == manager);
        match kept {
            Some(index) if !owned.fields.intersection(&number).is_empty() => {
                scaled.remove(index);
                entries.push((manager, owned));
            }
            _ => {
                let fields = owned.fields.difference(&number);
                if !fields.is_empty() {
                    entries.push((manager, Owned { fields, ..owned }));
                }
            }
        }
    }
    let back = scaled.into_iter().map(|(manager, _)| {
        let api_version = author.api_version.to_owned();
        (manager, Owned { api_version, time: Value::Null, fields: number.clone() })
    });
    entries.extend(back);
    entries.sort_by(Owners::order);
    let entries = entries.iter().map(|(manager, owned)| write_entry(manager, owned)).collect();
    set_entries(object, entries);
}

/// The owners of the number, as the scale endpoint sees them.
fn in_scale(owners: &Owners, number: &Set) -> Vec<(Manager, Owned)> {
    let those = owners.0.iter().filter(|(_, owned)| !owned.fields.intersection(number).is_empty());
    let seen = those.map(|(manager, owned)| {
        let api_version = if manager.operation == APPLY { String::new() } else { SCALE_VERSION.to_owned() };
        (Manager { api_version, ..manager.clone() }, owned.clone())
    });
    seen.collect()
}
