//! Files, directories and links.

use super::super::path;
use super::{Check, all};
use ignition_config::v3_5::{File, Link, NodeGroup, NodeUser, Storage};
use nodewright_api::field::FieldPath;

impl Check {
    pub(super) fn nodes(&mut self, storage: &Storage, at: &FieldPath) {
        let directories = all(storage.directories.as_ref());
        let files = all(storage.files.as_ref());
        let links = all(storage.links.as_ref());
        for (index, directory) in directories.iter().enumerate() {
            let at = at.child("directories").key(index);
            self.node(&directory.path, directory.user.as_ref(), directory.group.as_ref(), &at);
            self.mode(directory.mode, &at);
            self.beneath_a_link(&directory.path, links, &at);
        }
        for (index, file) in files.iter().enumerate() {
            let at = at.child("files").key(index);
            self.node(&file.path, file.user.as_ref(), file.group.as_ref(), &at);
            self.file(file, &at);
            self.beneath_a_link(&file.path, links, &at);
        }
        for (index, link) in links.iter().enumerate() {
            let at = at.child("links").key(index);
            self.node(&link.path, link.user.as_ref(), link.group.as_ref(), &at);
            self.beneath_a_link(&link.path, links, &at);
            self.target(link, directories.iter().map(|directory| directory.path.as_str()), &at);
        }
    }

    fn node(&mut self, path: &str, user: Option<&NodeUser>, group: Option<&NodeGroup>, at: &FieldPath) {
        self.path(path, &at.child("path"));
        let ids = [
            ("user", user.map(|user| (user.id, user.name.as_deref()))),
            ("group", group.map(|group| (group.id, group.name.as_deref()))),
        ];
        for (field, id) in ids {
            if let Some((Some(_), Some(name))) = id
                && !name.is_empty()
            {
                self.invalid(at.child(field), name, "must have an id or a name, not both");
            }
        }
    }

    /// A path on the node.
    pub(super) fn path(&mut self, path: &str, at: &FieldPath) {
        if let Some(error) = path::error(path) {
            self.invalid(at.clone(), path, error);
        }
    }

    fn mode(&mut self, mode: Option<i64>, at: &FieldPath) {
        if let Some(mode) = mode.filter(|mode| !(0..=0o7777).contains(mode)) {
            self.invalid(at.child("mode"), mode, "must be from 0 to 4095 (octal 7777)");
        }
    }

    fn file(&mut self, file: &File, at: &FieldPath) {
        self.mode(file.mode, at);
        let has_source = file.contents.as_ref().is_some_and(|contents| contents.source.is_some());
        if file.overwrite == Some(true) && !has_source {
            self.invalid(at.child("overwrite"), true, "must be false where contents have no source");
        }
        if let Some(contents) = &file.contents {
            self.resource(contents, &at.child("contents"));
        }
        for (index, resource) in all(file.append.as_ref()).iter().enumerate() {
            self.resource(resource, &at.child("append").key(index));
        }
    }

    fn beneath_a_link(&mut self, path: &str, links: &[Link], at: &FieldPath) {
        let is_beneath = |link: &&Link| path.strip_prefix(&link.path).is_some_and(|rest| rest.starts_with('/'));
        for link in links.iter().filter(is_beneath) {
            self.invalid(at.clone(), path, &format!("must not be beneath the link {}", link.path));
        }
    }

    fn target<'a>(&mut self, link: &Link, mut directories: impl Iterator<Item = &'a str>, at: &FieldPath) {
        let target = link.target.as_deref().unwrap_or_default();
        if target.is_empty() && self.minor >= 3 {
            self.invalid(at.child("target"), target, "must not be empty");
            return;
        }
        if link.hard != Some(true) {
            return;
        }
        let clean = path::clean(target);
        let absolute = if clean.starts_with('/') { clean } else { path::clean(&format!("{}/{target}", link.path)) };
        if directories.any(|directory| directory == absolute) {
            self.invalid(at.clone(), target, "must not be a hard link to a directory");
        }
    }
}
