//! The page about conditions and events has all reasons and types that there are, and no others.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::{collections::BTreeSet, fs};

use nodewright_architecture::{root, rust_files};

const PAGE: &str = "docs/reference/conditions.md";
/// Pages that the page refers to for some of them.
const OTHERS: [&str; 3] = ["docs/tasks/node-configuration.md", "docs/concepts/orphans.md", "docs/tasks/cloud-node.md"];
/// Where reasons and types are declared.
const DECLARED: [&str; 2] = ["api/src/reasons.rs", "api/src/conditions.rs"];
/// Where a reason that the page names may stand in the code.
const CODE: [&str; 3] = ["api/src", "controllers/src", "runtime/src"];

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What stands in backticks.
fn quoted(text: &str) -> BTreeSet<&str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

/// The values of the constants of a file.
fn constants(text: &str) -> Vec<&str> {
    let value = |line| str::split_once(line, ": &str = \"")?.1.split('"').next();
    text.lines().filter(|line| line.trim_start().starts_with("pub const ")).filter_map(value).collect()
}

#[test]
fn each_reason_and_type_is_on_the_page() {
    let pages: Vec<_> = std::iter::once(PAGE).chain(OTHERS).map(read).collect();
    let known: BTreeSet<_> = pages.iter().flat_map(|page| quoted(page)).collect();
    let mut count = 0;
    for path in DECLARED {
        let text = read(path);
        let all = constants(&text);
        count += all.len();
        let missing: Vec<_> = all.into_iter().filter(|value| !known.contains(value)).collect();
        assert!(missing.is_empty(), "{PAGE} lacks {missing:?} of {path}");
    }
    assert!(count > 100, "only {count} were found");
}

#[test]
fn each_reason_in_the_table_of_events_is_in_the_code() {
    let page = read(PAGE);
    let table = page.split("\n## Events\n").nth(1).unwrap();
    let is_reason =
        |word: &&str| word.starts_with(char::is_uppercase) && word.chars().all(char::is_alphanumeric) && word.len() > 5;
    let rows = table.lines().filter(|line| line.starts_with("| "));
    let reasons: BTreeSet<_> = rows.flat_map(quoted).filter(is_reason).collect();
    assert!(reasons.len() > 50, "{reasons:?}");
    let files = CODE.iter().flat_map(|part| rust_files(&root().join(part)).unwrap());
    let code: String = files.map(|file| fs::read_to_string(file).unwrap()).collect();
    let missing: Vec<_> = reasons.into_iter().filter(|reason| !code.contains(&format!("\"{reason}\""))).collect();
    assert!(missing.is_empty(), "the code has no {missing:?}");
}
