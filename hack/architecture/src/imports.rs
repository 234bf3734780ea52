//! The paths that a file names.

use crate::Module;

/// The paths in the code of `module` that begin with `crate`, `self`, `super` or a crate of the workspace. The first three
/// are made paths from `crate`.
pub fn imports(code: &str, module: &[String]) -> Vec<Module> {
    let tokens = tokens(code);
    let mut paths = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let begins = is_root(tokens[at]) && (at == 0 || !matches!(tokens[at - 1], "::" | "."));
        if begins && tokens.get(at + 1) == Some(&"::") {
            let mut found = Vec::new();
            at = tree(&tokens, at, &mut Vec::new(), &mut found);
            paths.extend(found.into_iter().map(|path| absolute(path, module)));
        } else {
            at += 1;
        }
    }
    paths
}

fn is_root(token: &str) -> bool {
    matches!(token, "crate" | "self" | "super") || token.starts_with("nodewright_")
}

fn is_word(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Words, `::`, and every other character that is no space.
fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            first if first.is_alphanumeric() || first == '_' => {
                rest.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(rest.len())
            }
            ':' if rest.starts_with("::") => 2,
            first => first.len_utf8(),
        };
        let (token, behind) = rest.split_at(length);
        tokens.push(token);
        rest = behind.trim_start();
    }
    tokens
}

/// Reads a path, or a tree of paths in braces, into `found`; returns the place behind it.
fn tree(tokens: &[&str], mut at: usize, prefix: &mut Module, found: &mut Vec<Module>) -> usize {
    let depth = prefix.len();
    while tokens.get(at).is_some_and(|token| is_word(token)) {
        prefix.push(tokens[at].to_owned());
        at += 1;
        if tokens.get(at) != Some(&"::") {
            break;
        }
        at += 1;
    }
    if tokens.get(at) == Some(&"{") {
        at += 1;
        while at < tokens.len() && tokens[at] != "}" {
            at = tree(tokens, at, prefix, found);
            // `as`, its name, `*` and commas.
            while tokens.get(at).is_some_and(|token| !matches!(*token, "," | "}")) {
                at += 1;
            }
            at += usize::from(tokens.get(at) == Some(&","));
        }
        at += 1;
    } else {
        found.push(prefix.clone());
    }
    prefix.truncate(depth);
    at
}

/// The path from the root of its crate, or with the name of another crate in front.
fn absolute(path: Module, module: &[String]) -> Module {
    let ups = path.iter().take_while(|name| *name == "super").count();
    let relative = usize::from(path.first().is_some_and(|first| first == "self"));
    if ups + relative == 0 {
        return path;
    }
    let parent = &module[..module.len().saturating_sub(ups)];
    let mut whole = vec!["crate".to_owned()];
    whole.extend(parent.iter().chain(&path[ups + relative..]).cloned());
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(code: &str) -> Vec<String> {
        imports(code, &["machine".to_owned(), "drain".to_owned()]).iter().map(|path| path.join("::")).collect()
    }

    #[test]
    fn trees_and_relative_paths_are_resolved() {
        assert_eq!(found("use crate::{a::{b, c as d}, e};"), ["crate::a::b", "crate::a::c", "crate::e"]);
        assert_eq!(found("use super::{self, status};"), ["crate::machine::self", "crate::machine::status"]);
        assert_eq!(found("use super::super::shared::*;"), ["crate::shared"]);
        assert_eq!(found("use self::inner::Thing; use std::fmt;"), ["crate::machine::drain::inner::Thing"]);
        assert_eq!(
            found("fn f() { nodewright_api::served(crate::x::y(), self.z) }"),
            ["nodewright_api::served", "crate::x::y"]
        );
    }
}
