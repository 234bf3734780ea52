//! What a crate's `Cargo.toml` says of other crates of the workspace.

use std::{collections::BTreeSet, fs, io, path::Path};

/// The name of a crate, and the crates of the workspace that it depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The name of the package.
    pub name: String,
    /// What every build of it needs.
    pub dependencies: Vec<String>,
    /// What only its tests, examples and benchmarks need.
    pub dev_dependencies: Vec<String>,
}

impl Manifest {
    /// Reads the manifest in a directory.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(directory: &Path) -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string(directory.join("Cargo.toml"))?))
    }

    /// Reads the lines `key.workspace = true` and `key = ...` of the sections that matter.
    pub fn parse(text: &str) -> Self {
        let (mut manifest, mut section) = (Self::default(), "");
        for line in text.lines() {
            if let Some(header) = line.strip_prefix('[') {
                section = header.trim_end_matches(']');
            }
            let Some((key, value)) = line.split_once('=') else { continue };
            let key = key.trim().trim_end_matches(".workspace");
            match section {
                "package" if key == "name" => value.trim().trim_matches('"').clone_into(&mut manifest.name),
                "dependencies" | "build-dependencies" if is_own(key) => manifest.dependencies.push(key.to_owned()),
                "dev-dependencies" if is_own(key) => manifest.dev_dependencies.push(key.to_owned()),
                _ => {}
            }
        }
        manifest
    }

    /// The directories of the workspace's members.
    pub fn members(text: &str) -> Vec<String> {
        let list =
            text.split_once("members = [").and_then(|(_, rest)| rest.split_once(']')).map_or("", |(list, _)| list);
        list.split(',')
            .map(|member| member.trim().trim_matches('"').to_owned())
            .filter(|name| !name.is_empty())
            .collect()
    }
}

/// The crates of the workspace that a build of one contains, itself included.
pub fn linked(manifests: &[Manifest], name: &str) -> BTreeSet<String> {
    let (mut found, mut open) = (BTreeSet::new(), vec![name]);
    while let Some(name) = open.pop() {
        if found.insert(name.to_owned()) {
            let manifest = manifests.iter().find(|manifest| manifest.name == name);
            open.extend(manifest.iter().flat_map(|manifest| &manifest.dependencies).map(String::as_str));
        }
    }
    found
}

fn is_own(name: &str) -> bool {
    name == "nodewright" || name.starts_with("nodewright-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_contains_what_its_dependencies_contain() {
        let manifest = |name: &str, dependencies: &[&str], dev_dependencies: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            Manifest {
                name: name.to_owned(),
                dependencies: owned(dependencies),
                dev_dependencies: owned(dev_dependencies),
            }
        };
        let manifests = [manifest("a", &["b"], &["t"]), manifest("b", &["c", "a"], &[]), manifest("c", &[], &["t"])];
        let names = |of: &str| linked(&manifests, of).into_iter().collect::<Vec<_>>().join(" ");
        assert_eq!((names("a"), names("c"), names("t")), ("a b c".to_owned(), "c".to_owned(), "t".to_owned()));
    }

    #[test]
    fn normal_and_test_dependencies_are_distinguished() {
        let text = "[package]\nname = \"nodewright-x\"\n[dependencies]\nnodewright-api.workspace = true\nserde = \"1\"\n\
            [dev-dependencies]\nnodewright-testing = { path = \"t\" }\n";
        let manifest = Manifest::parse(text);
        assert_eq!(manifest.name, "nodewright-x");
        assert_eq!(manifest.dependencies, ["nodewright-api"]);
        assert_eq!(manifest.dev_dependencies, ["nodewright-testing"]);
        assert_eq!(Manifest::members("members = [\"a\", \"b/c\",\n]\n"), ["a", "b/c"]);
    }
}
