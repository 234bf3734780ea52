//! Units of systemd and their drop-ins.

use super::super::{path, unit};
use super::{Check, all, is_set};
use ignition_config::v3_5::{Storage, Systemd, Unit};
use nodewright_api::field::FieldPath;
use std::collections::BTreeSet;

/// What the name of a unit ends with.
pub(crate) const TYPES: [&str; 12] = [
    ".service",
    ".socket",
    ".device",
    ".mount",
    ".automount",
    ".swap",
    ".target",
    ".path",
    ".timer",
    ".snapshot",
    ".slice",
    ".scope",
];

impl Check {
    pub(super) fn units(&mut self, systemd: &Systemd, at: &FieldPath) {
        for (index, unit) in all(systemd.units.as_ref()).iter().enumerate() {
            let at = at.child("units").key(index);
            if !TYPES.contains(&path::extension(&unit.name)) {
                let rule = format!("must end with one of {}", TYPES.join(", "));
                self.invalid(at.child("name"), unit.name.as_str(), &rule);
            }
            self.unit_text(unit.contents.as_deref(), &at);
            for (index, dropin) in all(unit.dropins.as_ref()).iter().enumerate() {
                let at = at.child("dropins").key(index);
                self.unit_text(dropin.contents.as_deref(), &at);
                if path::extension(&dropin.name) != ".conf" {
                    self.invalid(at.child("name"), dropin.name.as_str(), "must end with .conf");
                }
            }
        }
    }

    fn unit_text(&mut self, text: Option<&str>, at: &FieldPath) {
        if let Some(text) = text
            && let Some(error) = unit::error(text)
        {
            self.confidential(at.child("contents"), text, error);
        }
    }

    /// A file, directory or link must not be where a unit or a drop-in is written.
    pub(super) fn paths_of_units(&mut self, systemd: &Systemd, storage: Option<&Storage>, at: &FieldPath) {
        let Some(storage) = storage else { return };
        let written: BTreeSet<_> = all(systemd.units.as_ref()).iter().flat_map(written_paths).collect();
        let files = all(storage.files.as_ref()).iter().map(|file| file.path.as_str());
        let directories = all(storage.directories.as_ref()).iter().map(|directory| directory.path.as_str());
        let links = all(storage.links.as_ref()).iter().map(|link| link.path.as_str());
        let mut check = |field: &str, paths: &mut dyn Iterator<Item = &str>| {
            for (index, path) in paths.enumerate().filter(|(_, path)| written.contains(*path)) {
                let at = at.child(field).key(index).child("path");
                self.invalid(at, path, "must not be the path of a unit or a drop-in in systemd.units");
            }
        };
        check("files", &mut { files });
        check("directories", &mut { directories });
        check("links", &mut { links });
    }
}

fn written_paths(unit: &Unit) -> Vec<String> {
    let path = format!("/etc/systemd/system/{}", unit.name);
    let dropins = all(unit.dropins.as_ref()).iter().filter(|dropin| is_set(dropin.contents.as_ref()));
    let mut paths: Vec<_> = dropins.map(|dropin| format!("{path}.d/{}", dropin.name)).collect();
    if is_set(unit.contents.as_ref()) {
        paths.push(path);
    }
    paths
}
