//! Compares the tables of all names in `docs/reference/names.md` with their comments in the source. `UPDATE_NAMES=1` writes them.

mod generated;

use std::{collections::BTreeMap, fmt::Write, fs};

const BEGIN: &str =
    "<!-- All names: made from api/src by the tests of nodewright-api (UPDATE_NAMES=1); do not edit. -->\n";
const END: &str = "\n<!-- The end of all names. -->\n";
/// The tables and the files with their names.
const TABLES: [(&str, &str); 4] = [
    ("Annotations", "annotations.rs"),
    ("Labels", "labels.rs"),
    ("Taints", "taints.rs"),
    ("Finalizers", "finalizers.rs"),
];
/// How the comment of a constant begins that is a value of another one.
const OF_VALUES: [&str; 3] = ["Value of [`", "A value of [`", "The value of [`"];

/// A constant with a text.
struct Constant {
    name: String,
    text: String,
    comment: String,
}

/// The constants of a file that are texts, in its order, with the first paragraphs of their comments.
fn constants(source: &str) -> Vec<Constant> {
    let (mut found, mut comment, mut is_first) = (vec![], String::new(), true);
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if let Some(text) = line.strip_prefix("///") {
            is_first &= !text.is_empty();
            if is_first {
                [comment.as_str(), text.trim_start()].join(" ").trim().clone_into(&mut comment);
            }
            continue;
        }
        let declared = line.strip_prefix("pub const ").and_then(|rest| rest.split_once(": &str ="));
        if let Some((name, rest)) = declared {
            // A long text is in the next line.
            let value = if rest.is_empty() { lines.next().unwrap_or_default() } else { rest };
            let text = value.split('"').nth(1).expect("a text").to_owned();
            found.push(Constant { name: name.to_owned(), text, comment: comment.clone() });
        }
        comment.clear();
        is_first = true;
    }
    found
}

/// The name to which the link at the beginning of a text leads, and what comes after it: [`a::B`](c) is B.
fn link(text: &str) -> Option<(&str, &str)> {
    let (target, rest) = text.strip_prefix("[`")?.split_once("`]")?;
    let rest = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest);
    Some((target.rsplit("::").next().unwrap_or(target), rest))
}

/// A comment with the texts of constants in place of links to them.
fn readable(comment: &str, texts: &BTreeMap<&str, &str>) -> String {
    let (mut readable, mut rest) = (String::new(), comment);
    while let Some(at) = rest.find("[`") {
        readable.push_str(&rest[..at]);
        let (name, after) = link(&rest[at..]).expect("a link");
        write!(readable, "`{}`", texts.get(name).unwrap_or(&name)).expect("text");
        rest = after;
    }
    (readable + rest).replace('|', "\\|")
}

/// The key to which the value belongs that a constant is.
fn key_of(constant: &Constant) -> Option<&str> {
    let begin = OF_VALUES.iter().find(|begin| constant.comment.starts_with(**begin))?;
    link(&constant.comment[begin.len() - 2..]).map(|(key, _)| key)
}

/// What a value means, unless its key says so.
fn meaning(value: &Constant, row: &str, texts: &BTreeMap<&str, &str>) -> String {
    let text = format!("`{}`", value.text);
    let comment = readable(&value.comment, texts);
    match comment.split_once("`: ") {
        Some((_, meaning)) => format!(" {text}: {meaning}"),
        None if row.contains(&text) => String::new(),
        None => format!(" Its value: {text}."),
    }
}

fn tables() -> String {
    let read = |file: &str| fs::read_to_string(generated::repository("api/src").join(file)).expect("a source");
    let files = TABLES.map(|(title, file)| (title, constants(&read(file))));
    let mut tables = String::new();
    for (title, constants) in &files {
        // Two files may have constants of one name: a comment means its own file's, which comes last.
        let all = files.iter().flat_map(|(_, constants)| constants).chain(constants);
        let texts = all.map(|constant| (constant.name.as_str(), constant.text.as_str())).collect();
        writeln!(tables, "\n### {title}\n\n| name | meaning |\n|---|---|").expect("text");
        for key in constants.iter().filter(|constant| key_of(constant).is_none()) {
            let mut row = readable(&key.comment, &texts);
            for value in constants.iter().filter(|constant| key_of(constant) == Some(&key.name)) {
                let meaning = meaning(value, &row, &texts);
                row.push_str(&meaning);
            }
            writeln!(tables, "| `{}` | {row} |", key.text).expect("text");
        }
    }
    tables
}

#[test]
fn the_page_has_all_names() {
    generated::compare("docs/reference/names.md", (BEGIN, END), &tables(), "UPDATE_NAMES");
}

#[test]
fn links_are_texts() {
    let source = "/// On a [`Node`](crate::Node), value [`KEY_VALUE`]:\n/// gone.\n///\n/// More.\npub const KEY: &str = \"a/key\";\n\
                  /// The value of [`KEY`].\npub const KEY_VALUE: &str =\n    \"1\";\npub const NUMBER: i64 = 1;\n";
    let constants = constants(source);
    let names: Vec<_> = constants.iter().map(|constant| (constant.name.as_str(), constant.text.as_str())).collect();
    assert_eq!(names, [("KEY", "a/key"), ("KEY_VALUE", "1")]);
    let texts = names.into_iter().collect();
    let row = readable(&constants[0].comment, &texts);
    assert_eq!(row, "On a `Node`, value `1`: gone.");
    assert_eq!((key_of(&constants[0]), key_of(&constants[1])), (None, Some("KEY")));
    assert_eq!(meaning(&constants[1], &row, &texts), "");
}
