//! The pages about the defects and issues of machine-controller-manager name the tests that there are.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::{collections::BTreeSet, fs};

use nodewright_architecture::{root, rust_files};

const PAGE: &str = "docs/reference/mcm-defects.md";
/// Where tests are.
const CODE: [&str; 5] = ["api", "controllers", "e2e", "runtime", "webhooks"];
const PREFIX: &str = "mcm_defect_";
const ISSUES: &str = "docs/reference/mcm-issues.md";

/// The rows of the page: the number of a defect, and the tests that the row names.
fn rows() -> Vec<(u32, Vec<String>)> {
    let page = fs::read_to_string(root().join(PAGE)).unwrap_or_else(|error| panic!("{PAGE}: {error}"));
    let row = |line: &str| {
        let number = line.strip_prefix("| ")?.split(" |").next()?.parse().ok()?;
        let words = line.split('`').skip(1).step_by(2);
        Some((number, words.filter(|word| word.starts_with(PREFIX)).map(str::to_owned).collect()))
    };
    page.lines().filter_map(row).collect()
}

/// The tests that bear the number of a defect.
fn tests() -> BTreeSet<String> {
    functions().into_iter().filter(|name| name.starts_with(PREFIX)).collect()
}

fn functions() -> BTreeSet<String> {
    let mut functions = BTreeSet::new();
    for file in CODE.iter().flat_map(|part| rust_files(&root().join(part)).unwrap()) {
        let text = fs::read_to_string(file).unwrap();
        functions.extend(text.split("fn ").skip(1).filter_map(|rest| Some(rest.split_once("()")?.0.to_owned())));
    }
    functions
}

#[test]
fn the_page_of_issues_names_tests_that_exist_and_all_that_bear_a_number() {
    let page = fs::read_to_string(root().join(ISSUES)).unwrap_or_else(|error| panic!("{ISSUES}: {error}"));
    let functions = functions();
    let mut named = BTreeSet::new();
    for row in page.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let last = row.rsplit(" | ").next().unwrap_or_default();
        let tests: Vec<_> = last.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        assert!(!tests.is_empty(), "{ISSUES}: no test in {row}");
        named.extend(tests);
    }
    let missing: Vec<_> = named.difference(&functions).collect();
    assert!(missing.is_empty(), "{ISSUES}: there are no tests {missing:?}");
    let numbered = functions.iter().filter(|name| name.starts_with("mcm_issue"));
    let unnamed: Vec<_> = numbered.filter(|name| !named.contains(*name)).collect();
    assert!(unnamed.is_empty(), "{ISSUES}: missing in the table: {unnamed:?}");
}

#[test]
fn the_page_has_a_row_for_each_defect_and_its_tests_exist() {
    let (rows, tests) = (rows(), tests());
    let numbers: Vec<u32> = rows.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=27).collect::<Vec<_>>(), "{PAGE}: one row for each defect, in order");
    let mut wrong = vec![];
    let mut named = BTreeSet::new();
    for (number, row) in rows {
        for test in row {
            if !test.starts_with(&format!("{PREFIX}{number}_")) {
                wrong.push(format!("{PAGE}: {test} does not belong to defect {number}"));
            }
            if !tests.contains(&test) {
                wrong.push(format!("{PAGE}: there is no test {test}"));
            }
            named.insert(test);
        }
    }
    wrong.extend(tests.difference(&named).map(|test| format!("{PAGE}: {test} is missing in the table")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
