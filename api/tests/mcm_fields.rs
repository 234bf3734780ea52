//! Compares our definitions with MCM's: names, columns, subresources, the types of all fields, and required fields.

mod support;

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use support::definitions;

/// Fields that we require and MCM does not, with the reason.
const MORE_REQUIRED: [(&str, &str, &str); 3] = [
    // MCM's controllers crash on the selector of an object without a spec.
    ("machinedeployments.machine.sapcloud.io", ".", "spec"),
    ("machinesets.machine.sapcloud.io", ".", "spec"),
    ("machines.machine.sapcloud.io", ".", "spec"),
];

/// Fields that MCM does not have. The controllers must not write them with its definitions.
const OURS: [(&str, &str); 3] = [
    ("machineclasses.machine.sapcloud.io", ".status"),
    ("machinedeployments.machine.sapcloud.io", ".status.selector"),
    ("machinesets.machine.sapcloud.io", ".status.selector"),
];

/// The facts of each definition, in the form of `mcm-fields.txt`.
fn facts_of_mcm() -> BTreeMap<String, BTreeSet<String>> {
    let mut facts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut definition = String::new();
    for line in include_str!("mcm-fields.txt").lines() {
        match line.strip_prefix("# ") {
            Some(name) if name.ends_with(".machine.sapcloud.io") => name.clone_into(&mut definition),
            Some(_) => {}
            None => assert!(facts.entry(definition.clone()).or_default().insert(line.to_owned()), "{line} twice"),
        }
    }
    facts
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().expect("a text")
}

fn facts_of_ours() -> BTreeMap<String, BTreeSet<String>> {
    definitions()
        .iter()
        .map(|definition| (text(&definition["metadata"], "name").to_owned(), facts(definition)))
        .collect()
}

fn facts(definition: &Value) -> BTreeSet<String> {
    let names = &definition["spec"]["names"];
    let short: Vec<_> = names["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut facts = BTreeSet::from([format!(
        "names kind={} listKind={} plural={} singular={} short={}",
        text(names, "kind"),
        text(names, "listKind"),
        text(names, "plural"),
        text(names, "singular"),
        short.join(",")
    )]);
    let version = &definition["spec"]["versions"][0];
    for column in version["additionalPrinterColumns"].as_array().into_iter().flatten() {
        let priority = column["priority"].as_i64().unwrap_or(0);
        let (name, kind, path) = (text(column, "name"), text(column, "type"), text(column, "jsonPath"));
        facts.insert(format!("column {name} {kind} {path} {priority}"));
    }
    let subresources = &version["subresources"];
    if subresources["scale"].is_object() {
        let scale = &subresources["scale"];
        facts.insert(format!("scale {} {}", text(scale, "specReplicasPath"), text(scale, "statusReplicasPath")));
    }
    if subresources["status"].is_object() {
        facts.insert("status".to_owned());
    }
    collect_fields(&version["schema"]["openAPIV3Schema"], "", &mut facts);
    facts
}

fn collect_fields(schema: &Value, path: &str, facts: &mut BTreeSet<String>) {
    facts.insert(field_fact(schema, path));
    for (name, part) in schema["properties"].as_object().into_iter().flatten() {
        collect_fields(part, &format!("{path}.{name}"), facts);
    }
    for (keyword, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[keyword].is_object() {
            collect_fields(&schema[keyword], &format!("{path}{mark}"), facts);
        }
    }
}

fn field_fact(schema: &Value, path: &str) -> String {
    let int_or_string = schema["x-kubernetes-int-or-string"] == true;
    let kind = if int_or_string { "int-or-string" } else { text(schema, "type") };
    let mut fact = format!("field {} {kind}", if path.is_empty() { "." } else { path });
    if let Some(format) = schema["format"].as_str() {
        fact.extend([" format=", format]);
    }
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        fact += " preserve-unknown-fields";
    }
    for (keyword, mark) in [("x-kubernetes-map-type", "map-type"), ("x-kubernetes-list-type", "list-type")] {
        if let Some(value) = schema[keyword].as_str() {
            fact.extend([" ", mark, "=", value]);
        }
    }
    let mut required: Vec<_> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    required.sort_unstable();
    if !required.is_empty() {
        fact.extend([" required=", &required.join(",")]);
    }
    fact
}

/// Removes our additions from the facts.
fn without_additions(name: &str, mut facts: BTreeSet<String>) -> BTreeSet<String> {
    for (definition, path, field) in MORE_REQUIRED {
        let with = format!("field {path} object required={field}");
        if definition == name {
            assert!(facts.remove(&with), "{with} is listed, and not there");
            facts.insert(format!("field {path} object"));
        }
    }
    for (definition, path) in OURS {
        if definition == name {
            let before = facts.len();
            facts.retain(|fact| {
                let found = fact.split(' ').nth(1).unwrap_or_default();
                !(found == path || found.starts_with(&format!("{path}.")) || found.starts_with(&format!("{path}[")))
            });
            assert_ne!(facts.len(), before, "{path} is listed, and not there");
            if path == ".status" {
                facts.remove("status");
            }
        }
    }
    facts
}

#[test]
fn the_definitions_say_what_mcm_says_and_no_more_than_listed() {
    let expected = facts_of_mcm();
    let found = facts_of_ours();
    assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
    for (name, expected) in expected {
        let found = without_additions(&name, found[&name].clone());
        let missing: Vec<_> = expected.difference(&found).collect();
        let additional: Vec<_> = found.difference(&expected).collect();
        assert!(
            missing.is_empty() && additional.is_empty(),
            "{name}: missing {missing:#?}, additional {additional:#?}"
        );
    }
}
