//! Whether a change can be made on a running node, or takes a new one.

use crate::ignition::Config;
use crate::spec::RenderedSpec;
use nodewright_api::field::{FieldError, FieldPath};
use serde_json::Value;

/// The user whose keys and password can be changed.
const USER: &str = "core";
/// The file by which an administrator makes machine-config-daemon skip its checks once.
const FORCE_FILE: &str = "/run/machine-config-daemon-force";

/// A part of `storage` whose changes are let pass, as the administrator takes care of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiver {
    /// `storage.disks`.
    Disks,
    /// `storage.filesystems`.
    FileSystems,
    /// `storage.raid`.
    Raid,
}

/// Why a node cannot get from one configuration to another in place. Empty if it can.
pub fn irreconcilable(old: &RenderedSpec, new: &RenderedSpec, waived: &[Waiver]) -> Vec<FieldError> {
    let root = FieldPath::new("spec");
    let mut check = Check { old: &old.config, new: &new.config, errors: Vec::new() };
    if old.fips != new.fips {
        check.refuse(root.child("fips"), "FIPS mode can only be chosen when a node is installed");
    }
    let config = root.child("config");
    check.unchanged(&config, "kernelArguments", "", "use spec.kernelArguments, which can be changed");
    check.unchanged(&config, "passwd", "groups", "groups are made when a node is installed");
    check.users(&config.child("passwd").child("users"));
    for (field, waiver) in [("disks", Waiver::Disks), ("filesystems", Waiver::FileSystems), ("raid", Waiver::Raid)] {
        if !waived.contains(&waiver) {
            check.unchanged(&config, "storage", field, "storage is laid out when a node is installed");
        }
    }
    for field in ["directories", "links"] {
        // What is removed stays on the node.
        if !check.new.list(&format!("/storage/{field}")).is_empty() {
            check.unchanged(&config, "storage", field, "they are made when a node is installed; use files or units");
        }
    }
    check.files(&config.child("storage").child("files"));
    check.errors
}

struct Check<'a> {
    old: &'a Config,
    new: &'a Config,
    errors: Vec<FieldError>,
}

impl Check<'_> {
    fn refuse(&mut self, path: FieldPath, detail: &str) {
        self.errors.push(FieldError::forbidden(path, format!("a node cannot be changed in place: {detail}")));
    }

    /// Refuses a change of a section, or of a field of it.
    fn unchanged(&mut self, config: &FieldPath, section: &str, field: &str, detail: &str) {
        let (pointer, path) = match field {
            "" => (format!("/{section}"), config.child(section)),
            field => (format!("/{section}/{field}"), config.child(section).child(field)),
        };
        if self.old.get(&pointer) != self.new.get(&pointer) {
            self.refuse(path, detail);
        }
    }

    /// Only the keys and the password of one user can be changed. Users that are gone stay on the node.
    fn users(&mut self, path: &FieldPath) {
        let users = self.new.list("/passwd/users");
        if users == self.old.list("/passwd/users") {
            return;
        }
        for (index, user) in users.iter().enumerate() {
            let path = path.key(index);
            if user.get("name").and_then(Value::as_str) != Some(USER) {
                self.refuse(path, "only the user core can be changed");
                continue;
            }
            let fields = user.as_object().into_iter().flat_map(serde_json::Map::keys);
            let is_fixed = |field: &&String| !matches!(field.as_str(), "name" | "sshAuthorizedKeys" | "passwordHash");
            for field in fields.filter(is_fixed) {
                self.refuse(path.child(field), "only sshAuthorizedKeys and passwordHash can be changed");
            }
            if user.get("sshAuthorizedKeys").is_none() && user.get("passwordHash").is_none() {
                self.refuse(path, "a user without keys and password could not log in");
            }
        }
    }

    fn files(&mut self, path: &FieldPath) {
        for (index, file) in self.new.list("/storage/files").iter().enumerate() {
            if file.get("append").is_some() {
                self.refuse(path.key(index).child("append"), "to append again would add the text twice");
            }
            if file.get("path").and_then(Value::as_str) == Some(FORCE_FILE) {
                self.refuse(path.key(index).child("path"), "this file is for administrators, to skip checks once");
            }
        }
    }
}
