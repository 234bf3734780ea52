//! Compares the table of rights in `docs/tasks/install.md` with the roles in `config/rbac`. `UPDATE_RIGHTS=1` writes it.

mod generated;

use std::{fmt::Write, fs};

use serde_json::Value;

const BEGIN: &str =
    "<!-- The rights: made from config/rbac by the tests of nodewright-api (UPDATE_RIGHTS=1); do not edit. -->\n\n";
const END: &str = "\n<!-- The end of the rights. -->\n";

/// The files of `config/rbac`, in the order of its kustomization.
fn files() -> Vec<String> {
    let folder = generated::repository("config/rbac");
    let text = fs::read_to_string(folder.join("kustomization.yaml")).expect("a kustomization");
    let kustomization: Value = serde_saphyr::from_str(&text).expect("YAML");
    let names = kustomization["resources"].as_array().expect("resources");
    let read = |name: &Value| fs::read_to_string(folder.join(name.as_str().expect("a name"))).expect("a file");
    names.iter().map(read).collect()
}

/// The rows of one object: those of a role only.
fn rows(document: &str, table: &mut String) {
    let object: Value = serde_saphyr::from_str(document).expect("YAML");
    let kind = object["kind"].as_str().unwrap_or_default();
    if kind != "Role" && kind != "ClusterRole" {
        return;
    }
    let name = object["metadata"]["name"].as_str().expect("a name");
    let place = object["metadata"]["namespace"].as_str().unwrap_or("the cluster");
    let (head, reasons) = reasons(document);
    let rules = object["rules"].as_array().expect("rules");
    assert_eq!(rules.len(), reasons.len(), "{name}: a rule begins with apiGroups or nonResourceURLs");
    for (rule, reason) in rules.iter().zip(reasons) {
        let reason = if reason.is_empty() { &head } else { &reason };
        assert!(!reason.is_empty(), "{name}: a comment says why it has its rights");
        let row =
            format!("| `{name}` in {} | {} | {} | {reason} |", code(place), subjects(rule), list(&rule["verbs"], ", "));
        writeln!(table, "{row}").expect("text");
    }
}

fn code(place: &str) -> String {
    if place == "the cluster" { place.to_owned() } else { format!("`{place}`") }
}

fn list(values: &Value, separator: &str) -> String {
    let texts = values.as_array().into_iter().flatten().filter_map(Value::as_str);
    texts.collect::<Vec<_>>().join(separator)
}

/// What a rule gives rights on.
fn subjects(rule: &Value) -> String {
    if rule["nonResourceURLs"].is_array() {
        return format!("`{}`", list(&rule["nonResourceURLs"], "`, `"));
    }
    let group = list(&rule["apiGroups"], ", ");
    let of = if group.is_empty() { String::new() } else { format!(" of `{group}`") };
    let names = list(&rule["resourceNames"], "`, `");
    let only = if names.is_empty() { String::new() } else { format!(", named `{names}` only") };
    format!("`{}`{of}{only}", list(&rule["resources"], "`, `"))
}

/// The comment at the head of a document, and that of each rule; a rule without one has that of the rule before.
fn reasons(document: &str) -> (String, Vec<String>) {
    let (mut head, mut reasons, mut comment) = (String::new(), Vec::new(), String::new());
    for line in document.lines() {
        if let Some(text) = line.strip_prefix("# ") {
            [comment.as_str(), text].join(" ").trim().clone_into(&mut comment);
        } else if line.starts_with("apiVersion:") {
            head = std::mem::take(&mut comment);
        } else if line.starts_with("- apiGroups:") || line.starts_with("- nonResourceURLs:") {
            let before = reasons.last().cloned().unwrap_or_default();
            reasons.push(if comment.is_empty() { before } else { std::mem::take(&mut comment) });
        }
    }
    (head, reasons)
}

fn table() -> String {
    let mut table = "| role | rights on | verbs | for what |\n|---|---|---|---|\n".to_owned();
    for file in files() {
        file.split("\n---\n").for_each(|document| rows(document, &mut table));
    }
    table
}

#[test]
fn the_page_has_the_rights_of_the_roles() {
    generated::compare("docs/tasks/install.md", (BEGIN, END), &table(), "UPDATE_RIGHTS");
}

#[test]
fn a_rule_has_its_own_comment_or_that_of_its_role() {
    let document = "# Head\n# more.\napiVersion: v1\nkind: Role\nmetadata: {name: a, namespace: b}\nrules:\n\
                    - apiGroups: [\"\"]\n  resources: [c]\n  verbs: [get]\n# Own.\n- apiGroups: [g]\n  resources: [d]\n\
                    \x20 resourceNames: [e]\n  verbs: [get, list]\n";
    let mut table = String::new();
    rows(document, &mut table);
    assert_eq!(
        table,
        "| `a` in `b` | `c` | get | Head more. |\n| `a` in `b` | `d` of `g`, named `e` only | get, list | Own. |\n"
    );
}
