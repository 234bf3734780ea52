//! The bodies of a file's functions, and several versions of them in one file.

use std::{collections::BTreeMap, ops::Range};

use crate::{functions, product_code};

/// The environment variable that chooses a version.
pub const MUTANT: &str = "NODEWRIGHT_MUTANT";

/// The lines of each body of product code, those of functions in functions aside: the lines between its braces.
fn bodies(text: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = vec![];
    for function in functions(&product_code(text)) {
        // The numbers of lines begin at 1.
        let body = function.opened..function.line + function.lines - 2;
        if found.last().is_none_or(|before| before.end <= body.start) && !body.is_empty() {
            found.push(body);
        }
    }
    found
}

/// Puts several versions of a file into one. A version differs in bodies of functions only, and the environment variable
/// `NODEWRIGHT_MUTANT` chooses it by its name.
///
/// # Errors
/// The name of a version that differs elsewhere.
pub fn combine<'a>(text: &str, versions: &'a [(String, String)]) -> Result<String, &'a str> {
    let lines: Vec<_> = text.lines().collect();
    let own = bodies(text);
    let mut changed: BTreeMap<usize, Vec<(&str, Vec<&str>)>> = BTreeMap::new();
    for (name, version) in versions {
        let (theirs, found): (Vec<_>, _) = (version.lines().collect(), bodies(version));
        if outside(&lines, &own) != outside(&theirs, &found) {
            return Err(name);
        }
        for (place, (own, found)) in own.iter().zip(found).enumerate() {
            if lines[own.clone()] != theirs[found.clone()] {
                changed.entry(place).or_default().push((name, theirs[found].to_vec()));
            }
        }
    }
    let (mut combined, mut at): (Vec<String>, _) = (vec![], 0);
    let owned = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    for (place, versions) in changed {
        let body = own[place].clone();
        combined.extend(owned(&lines[at..body.start]));
        for (name, version) in versions {
            combined.push(chosen(name));
            combined.extend(owned(&version));
            combined.push("} else".to_owned());
        }
        combined.push("{".to_owned());
        combined.extend(owned(&lines[body.clone()]));
        combined.push("}".to_owned());
        at = body.end;
    }
    combined.extend(owned(&lines[at..]));
    Ok(combined.join("\n") + "\n")
}

/// The lines outside all bodies.
fn outside<'a>(lines: &[&'a str], bodies: &[Range<usize>]) -> Vec<&'a str> {
    let is_outside = |(at, _): &(usize, &&str)| bodies.iter().all(|body| !body.contains(at));
    lines.iter().enumerate().filter(is_outside).map(|(_, line)| *line).collect()
}

fn chosen(name: &str) -> String {
    format!(
        "if {{ static CHOSEN: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| \
         std::env::var(\"{MUTANT}\").is_ok_and(|chosen| chosen == \"{name}\")); *CHOSEN }} {{"
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
