//! A part of a page that a test makes.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// A path from the root of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Compares what stands in a page between two lines. With the variable set to 1 it is written instead.
pub(crate) fn compare(page: &str, (begin, end): (&str, &str), expected: &str, variable: &str) {
    let path = repository(page);
    let text = fs::read_to_string(&path).expect("the page");
    let (before, rest) = text.split_once(begin).expect("the begin of the part");
    let (found, after) = rest.split_once(end).expect("the end of the part");
    if env::var_os(variable).is_some_and(|value| value == "1") {
        fs::write(&path, [before, begin, expected, end, after].concat()).expect("the page can be written");
        return;
    }
    assert_eq!(found, expected, "{page} differs; run the test with {variable}=1");
}
