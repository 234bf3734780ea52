//! Compares `docs/reference/fields.md` with the generated definitions. `UPDATE_FIELDS=1` writes it.

mod support;

use nodewright_api::crd;
use serde_json::{Map, Value};
use std::fmt::Write;
use std::path::Path;
use std::{env, fs};
use support::{as_json, definitions};

const HEAD: &str = "<!-- Made from the code of the crate nodewright-api by its tests (UPDATE_FIELDS=1); do not edit. -->\n\n\
    # Fields\n\n\
    What `kubectl explain --recursive` prints of each kind, with its constraints. No field has a default in the schema: the webhooks fill\n\
    in and check. `[]` stands for each item of a list, `{}` for each value of a map.\n";

/// A row for each field below `schema`, in the order of their names.
fn rows(path: &str, schema: &Value, page: &mut String) {
    let nothing = Map::new();
    for (name, field) in schema["properties"].as_object().unwrap_or(&nothing) {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let meaning = field["description"].as_str().unwrap_or_default().replace('\n', " ").replace('|', "\\|");
        let is_required =
            schema["required"].as_array().is_some_and(|names| names.iter().any(|required| required == name));
        let required = if is_required { ", required" } else { "" };
        writeln!(page, "| `{path}` | {}{required} | {meaning} |", kind(field)).expect("text");
        below(&path, field, page);
    }
}

fn below(path: &str, field: &Value, page: &mut String) {
    for (part, suffix) in [("items", "[]"), ("additionalProperties", "{}")] {
        if field[part].is_object() {
            below(&format!("{path}{suffix}"), &field[part], page);
        }
    }
    rows(path, field, page);
}

/// The type of a field, with what its values are limited to.
fn kind(field: &Value) -> String {
    let of = |part: &str| kind(&field[part]);
    let kind = match field["type"].as_str() {
        Some("array") => format!("list of {}", of("items")),
        Some("object") if field["additionalProperties"].is_object() => format!("map of {}", of("additionalProperties")),
        Some(other) => other.to_owned(),
        None if field["x-kubernetes-int-or-string"] == true => "integer or string".to_owned(),
        None => "anything".to_owned(),
    };
    let limit = |key: &str, sign: &str| (!field[key].is_null()).then(|| format!(" {sign} {}", field[key]));
    let limits: String = [limit("minimum", "≥"), limit("maximum", "≤")].into_iter().flatten().collect();
    let format = field["format"].as_str().filter(|format| *format != "int32" && *format != "int64");
    format!("{kind}{limits}{}", format.map(|format| format!(" ({format})")).unwrap_or_default())
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    for definition in definitions().into_iter().chain(as_json(&crd::machine_config())) {
        let version = &definition["spec"]["versions"][0];
        let schema = &version["schema"]["openAPIV3Schema"];
        let (kind, group) = (&definition["spec"]["names"]["kind"], &definition["spec"]["group"]);
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        writeln!(
            page,
            "\n## {}\n\n`{}/{}`. {}\n",
            text(kind),
            text(group),
            text(&version["name"]),
            text(&schema["description"])
        )
        .expect("text");
        page.push_str("| field | type | meaning |\n|---|---|---|\n");
        rows("", schema, &mut page);
    }
    page
}

#[test]
fn the_page_has_the_fields_of_the_definitions() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/fields.md");
    let expected = page();
    if env::var_os("UPDATE_FIELDS").is_some_and(|value| value == "1") {
        fs::write(&file, &expected).expect("the file can be written");
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(found == expected, "{} differs; run the test with UPDATE_FIELDS=1", file.display());
}
