//! The defects that the simulation has to notice can be put into the product as it is: `make mutants` takes hours to say so.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::{fs, path::Path, process::Command};

#[test]
fn each_patch_applies_and_says_what_it_breaks() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let folder = root.join("e2e/mutants");
    let patches: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(patches.len() > 50, "{} patches", patches.len());
    for patch in patches {
        let text = fs::read_to_string(&patch).unwrap();
        let first = text.lines().next().unwrap_or_default();
        assert!(first.ends_with('.') && !first.starts_with("diff"), "{}: {first:?}", patch.display());
        let said = Command::new("git").args(["apply", "--check"]).arg(&patch).current_dir(root).output().unwrap();
        assert!(said.status.success(), "{}: {}", patch.display(), String::from_utf8_lossy(&said.stderr));
    }
}
