//! The defects that the simulation has to notice, and the rises that the budget of counts has to notice, can be put into the product
//! as it is: `make mutants` and `make rises` take hours to say so.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::{fs, process::Command};

use nodewright_architecture::root;

#[test]
fn each_patch_applies_and_says_what_it_breaks() {
    let root = root();
    let patches = |folder: &str| fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let (defects, rises): (Vec<_>, Vec<_>) = (patches("e2e/mutants").collect(), patches("e2e/rises").collect());
    assert!(defects.len() > 50 && rises.len() > 10, "{} and {} patches", defects.len(), rises.len());
    for patch in defects.into_iter().chain(rises) {
        let text = fs::read_to_string(&patch).unwrap();
        let first = text.lines().next().unwrap_or_default();
        assert!(first.ends_with('.') && !first.starts_with("diff"), "{}: {first:?}", patch.display());
        let said = Command::new("git").args(["apply", "--check"]).arg(&patch).current_dir(&root).output().unwrap();
        assert!(said.status.success(), "{}: {}", patch.display(), String::from_utf8_lossy(&said.stderr));
    }
}
