//! The bodies of a file's functions, and several versions of them in one file.

use std::{collections::BTreeMap, ops::Range};

/// The variable that chooses a version.
const VARIABLE: &str = "NODEWRIGHT_MUTANT";

/// The lines of each body, those of functions in functions aside. The code is formatted: a body ends with a brace below the first
/// letter of its function.
fn bodies(lines: &[&str]) -> Vec<Range<usize>> {
    let mut found = vec![];
    let mut at = 0;
    while at < lines.len() {
        let body = body(lines, at);
        at = body.as_ref().map_or(at, |body| body.end) + 1;
        found.extend(body);
    }
    found
}

/// The body of the function that begins in a line.
fn body(lines: &[&str], first: usize) -> Option<Range<usize>> {
    let indent = &lines[first][..lines[first].len() - lines[first].trim_start().len()];
    let is_same = |line: &&str| line.strip_prefix(indent).is_some_and(|rest| !rest.starts_with([' ', '}']));
    let item = lines[first].trim_start();
    let item = item.strip_prefix("pub(").and_then(|rest| Some(rest.split_once(')')?.1)).unwrap_or(item);
    let mut words = item.split_whitespace().skip_while(|word| ["pub", "const", "async", "unsafe"].contains(word));
    words.next().filter(|word| *word == "fn")?;
    let head = lines[first..]
        .iter()
        .enumerate()
        .position(|(place, line)| line.ends_with(';') || line.ends_with('{') && (place == 0 || is_same(line)))?;
    let begin = first + head + 1;
    if lines[begin - 1].ends_with(';') {
        return None;
    }
    let end = lines[begin..].iter().position(|line| line.strip_prefix(indent) == Some("}"))?;
    Some(begin..begin + end)
}

/// Puts several versions of a file into one. A version differs in bodies of functions only, and the environment variable
/// `NODEWRIGHT_MUTANT` chooses it by its name.
///
/// # Errors
/// The name of a version that differs elsewhere.
pub fn combine<'a>(text: &str, versions: &'a [(String, String)]) -> Result<String, &'a str> {
    let lines: Vec<_> = text.lines().collect();
    let own = bodies(&lines);
    let mut changed: BTreeMap<usize, Vec<(&str, Vec<&str>)>> = BTreeMap::new();
    for (name, version) in versions {
        let theirs: Vec<_> = version.lines().collect();
        let found = bodies(&theirs);
        if outside(&lines, &own) != outside(&theirs, &found) {
            return Err(name);
        }
        for (own, theirs) in own.iter().zip(found.iter().map(|body| &theirs[body.clone()])) {
            if lines[own.clone()] != *theirs {
                changed.entry(own.start).or_default().push((name, theirs.to_vec()));
            }
        }
    }
    let mut combined = String::with_capacity(text.len());
    let mut write = |line: &str| {
        combined.push_str(line);
        combined.push('\n');
    };
    let mut closed = None;
    for (at, line) in lines.iter().enumerate() {
        if let Some(versions) = changed.get(&at) {
            for (name, body) in versions {
                write(&chosen(name));
                body.iter().copied().for_each(&mut write);
                write("} else");
            }
            write("{");
            closed = own.iter().find(|body| body.start == at).map(|body| body.end);
        }
        if closed == Some(at) {
            write("}");
        }
        write(line);
    }
    Ok(combined)
}

/// The lines outside all bodies.
fn outside<'a>(lines: &[&'a str], bodies: &[Range<usize>]) -> Vec<&'a str> {
    let is_outside = |(at, _): &(usize, &&str)| bodies.iter().all(|body| !body.contains(at));
    lines.iter().enumerate().filter(is_outside).map(|(_, line)| *line).collect()
}

fn chosen(name: &str) -> String {
    format!(
        "if {{ static CHOSEN: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| \
         std::env::var(\"{VARIABLE}\").is_ok_and(|chosen| chosen == \"{name}\")); *CHOSEN }} {{"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
const LIMIT: u8 = 1;

impl A {
    fn declared(&self) -> [u8; 2];

    pub(super) async fn long<T>(
        &self,
        call: fn(u8) -> u8,
    ) -> u8 {
        if call(1) > 1 {
            return 2;
        }
        LIMIT
    }
}

fn short() {
    fn inner() {}
    inner();
}
";

    #[test]
    fn versions_differ_in_bodies_and_are_chosen_by_name() {
        let version = |name: &str, from: &str, to: &str| (name.to_owned(), TEXT.replace(from, to));
        let versions = [
            version("two", "return 2", "return 3"),
            version("limit", "        LIMIT\n", ""),
            version("inner", "inner();", ""),
        ];
        let combined = combine(TEXT, &versions).unwrap();
        let lines: Vec<_> = combined.lines().map(str::trim).collect();
        let choices: Vec<_> = ["two", "limit", "inner"].map(chosen).into();
        let first = lines.iter().position(|line| *line == choices[0]).unwrap();
        let expected = [
            &choices[0],
            "if call(1) > 1 {",
            "return 3;",
            "}",
            "LIMIT",
            "} else",
            &choices[1],
            "if call(1) > 1 {",
            "return 2;",
            "}",
            "} else",
            "{",
            "if call(1) > 1 {",
            "return 2;",
            "}",
            "LIMIT",
            "}",
            "}",
            "}",
            "",
            "fn short() {",
            &choices[2],
        ];
        assert_eq!(lines[first..first + expected.len()], expected);
        let other = [version("constant", "u8 = 1", "u8 = 2")];
        assert_eq!(combine(TEXT, &other), Err("constant"));
        assert_eq!(combine(TEXT, &[]).unwrap(), TEXT);
    }
}
