//! Parts of a config as machine-config-operator's templates write them (Fedora's `CoreOS` configs, 0.1): files and units in YAML.

use super::TemplateError;
use crate::{ignition::of_text, yaml};
use nodewright_api::field::FieldError;
use serde_json::{Map, Value, json};

type Read = Result<Value, String>;

/// What a template renders to, which is read.
#[derive(Clone, Copy)]
pub(super) struct Rendered<'a> {
    pub(super) text: &'a str,
    /// The text of the template. A name in an error is shown if it is there: else it is a value of the ControllerConfig.
    pub(super) template: &'a str,
}

/// A fragment, and a warning about it.
pub(super) type Fragment = Result<(Value, Option<String>), String>;

/// Fields of a file that Ignition has under the same names.
const FILE: [&str; 6] = ["path", "mode", "overwrite", "user", "group", "append"];
/// Fields of a unit.
const UNIT: [&str; 5] = ["name", "enabled", "mask", "contents", "dropins"];
/// Fields of contents.
const CONTENTS: [&str; 4] = ["source", "inline", "compression", "verification"];

/// A file of an Ignition config, of what a template renders to. It replaces what is there, unless it demands otherwise.
pub(super) fn file(rendered: Rendered<'_>) -> Fragment {
    let (mut file, warning) = object(rendered)?;
    let template = rendered.template;
    check_names(&file, &[&FILE[..], &["contents"]].concat(), "", template)?;
    if let Some(contents) = file.remove("contents") {
        file.insert("contents".to_owned(), resource(contents, "contents", template)?);
    }
    if let Some(Value::Array(all)) = file.get_mut("append") {
        for each in all {
            *each = resource(each.take(), "append", template)?;
        }
    }
    let has_source = file.get("contents").is_some_and(|contents| contents["source"].is_string());
    if has_source && !file.contains_key("overwrite") {
        file.insert("overwrite".to_owned(), true.into());
    }
    Ok((Value::Object(file), warning))
}

/// A unit of systemd, of what a template renders to.
pub(super) fn unit(rendered: Rendered<'_>) -> Fragment {
    let (unit, warning) = object(rendered)?;
    check_names(&unit, &UNIT, "", rendered.template)?;
    Ok((Value::Object(unit), warning))
}

/// The name of an extension of the operating system, or a list of names.
pub(super) fn extension(rendered: Rendered<'_>) -> Fragment {
    match yaml(rendered)? {
        (name @ Value::String(_), warning) => Ok((json!([name]), warning)),
        (Value::Array(names), warning) if names.iter().all(Value::is_string) => Ok((Value::Array(names), warning)),
        _ => Err("renders to what is neither the name of an extension nor a list of names".to_owned()),
    }
}

/// Contents whose text may be written as it is.
fn resource(contents: Value, at: &str, template: &str) -> Read {
    let Value::Object(mut contents) = contents else { return Err(format!("{at}: must be an object")) };
    check_names(&contents, &CONTENTS, &format!("{at}."), template)?;
    match contents.remove("inline") {
        None | Some(Value::Null) => {}
        Some(Value::String(_)) if contents.contains_key("source") => {
            return Err(format!("{at}: has both source and inline"));
        }
        Some(Value::String(text)) => {
            contents.insert("source".to_owned(), of_text(&text).into());
        }
        Some(_) => return Err(format!("{at}.inline: must be text: quote it")),
    }
    Ok(Value::Object(contents))
}

fn object(rendered: Rendered<'_>) -> Result<(Map<String, Value>, Option<String>), String> {
    match yaml(rendered)? {
        (Value::Object(fields), warning) => Ok((fields, warning)),
        _ => Err("renders to what is no object".to_owned()),
    }
}

/// Machine-config-operator takes the last value of a key that is there twice. Here the values must be the same.
fn yaml(rendered: Rendered<'_>) -> Fragment {
    let name = |error: &yaml::Error| {
        let key = error.key.as_deref().filter(|key| rendered.template.contains(key));
        key.map(|key| format!("renders to an object that has the key {key} twice"))
    };
    match yaml::read_repetitive(rendered.text) {
        Ok((value, error)) => {
            let warning = error.map(|error| {
                let name = name(&error).unwrap_or_else(|| "renders to an object that has a key twice".to_owned());
                format!("{name}, with the same value{}", error.place())
            });
            Ok((value, warning))
        }
        Err(error) => Err(match name(&error) {
            Some(name) => format!("{name}, with different values{}", error.place()),
            None => format!("renders to what is {error}"),
        }),
    }
}

/// A name that is not in the text of the template is a value of the ControllerConfig, and is not shown.
fn check_names(fields: &Map<String, Value>, known: &[&str], at: &str, template: &str) -> Result<(), String> {
    let Some(name) = fields.keys().find(|name| !known.contains(&name.as_str())) else { return Ok(()) };
    let shown = if template.contains(name.as_str()) { name } else { "a name that the template renders to" };
    Err(format!("{at}{shown}: is no field; there are {}", known.join(", ")))
}

/// An error of a config with the template that has made what is wrong; else with the name of the MachineConfig. It shows no value:
/// that may be of the ControllerConfig, and secret.
pub(super) fn located(error: FieldError, sources: &[(&str, &[(&str, Value)])], name: &str) -> TemplateError {
    let error = error.without_value();
    let path = error.path.as_str();
    for (list, fragments) in sources {
        let element = path.strip_prefix(list).and_then(|rest| rest.split_once(']'));
        let Some((index, below)) = element else { continue };
        if let Some((file, _)) = index.parse::<usize>().ok().and_then(|index| fragments.get(index)) {
            let text = error.to_string();
            let rule = text.strip_prefix(path).unwrap_or(&text);
            let below = below.trim_start_matches('.');
            return TemplateError::of_file(file, format!("{below}{rule}").trim_start_matches(": "));
        }
    }
    TemplateError::of_file("", format!("MachineConfig {name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a template without an action.
    fn file(text: &str) -> Read {
        read(super::file, text, text)
    }

    fn read(read: fn(Rendered<'_>) -> Fragment, text: &str, template: &str) -> Read {
        read(Rendered { text, template }).map(|(value, _)| value)
    }

    #[test]
    fn files_are_ignitions_with_text_as_it_is() {
        let text = "path: /etc/a\nmode: 0644\nuser: {name: core}\ncontents:\n  inline: |\n    a: 1\n";
        let source = "data:,a%3A%201%0A";
        let expected = json!({"path": "/etc/a", "mode": 420, "user": {"name": "core"}, "overwrite": true,
            "contents": {"source": source}});
        assert_eq!(file(text), Ok(expected));
        let appended = file("path: /a\nappend: [{inline: x}]").unwrap();
        assert_eq!(appended["append"][0]["source"], "data:,x");
        assert!(appended["overwrite"].is_null());
        assert_eq!(file("{path: /a, overwrite: false, contents: {source: 'data:,'}}").unwrap()["overwrite"], false);
    }

    #[test]
    fn what_is_wrong_is_named_and_not_shown() {
        for (text, error) in [
            ("path: [hush", "renders to what is no YAML, at line"),
            ("hush", "renders to what is no object"),
            (
                "path: /a\npath: hush",
                "renders to an object that has the key path twice, with different values, at line 2, ",
            ),
            ("path: /a\ncontents: {inline: hush, inline: x}", "renders to an object that has the key inline twice"),
            ("filesystem: root", "filesystem: is no field; there are path, mode"),
            ("contents: {local: hush}", "contents.local: is no field; there are source, inline"),
            ("contents: hush", "contents: must be an object"),
            ("contents: {inline: 5}", "contents.inline: must be text"),
            ("contents: {inline: a, source: 'data:,'}", "contents: has both source and inline"),
        ] {
            let found = file(text).unwrap_err();
            assert!(found.starts_with(error) && !found.contains("hush"), "{text}: {found}");
        }
        for (text, template, error) in [
            ("hush: 1", "{{.pullSecret}}: 1", "a name that the template renders to: is no field"),
            (
                "contents: {hush: 1}",
                "contents: {{.proxy}}",
                "contents.a name that the template renders to: is no field",
            ),
            ("{hush: 1, hush: 2}", "{{.proxy}}", "renders to what is no YAML: a key is there twice, at line 1, column"),
            ("append: [{hush: 1}]", "append: [{{.proxy}}]", "append.a name that the template renders to: is no field"),
        ] {
            let found = read(super::file, text, template).unwrap_err();
            assert!(found.starts_with(error) && !found.contains("hush"), "{text}: {found}");
        }
        assert!(!read(unit, "hush: 1", "{{.pullSecret}}: 1").unwrap_err().contains("hush"));
        // Aliases of aliases would fill the memory.
        let level = |n: u32| format!("v{}: &v{} [{}]\n", n + 1, n + 1, vec![format!("*v{n}"); 20].join(", "));
        let bomb = format!("path: /a\nv0: &v0 [hush]\n{}", (0..8).map(level).collect::<String>());
        assert!(file(&bomb).unwrap_err().starts_with("renders to what is no YAML"));
        assert!(read(unit, "enable: true", "enable: true").unwrap_err().starts_with("enable: is no field"));
        let extension = |text| read(super::extension, text, text);
        assert_eq!(extension("usbguard\n"), Ok(json!(["usbguard"])));
        assert_eq!(extension("[a, b]"), Ok(json!(["a", "b"])));
        assert!(extension("a: b").is_err());
    }

    #[test]
    fn a_key_twice_with_the_same_value_is_a_warning() {
        for (text, template, warning) in [
            (
                "path: /a\nmode: 0644\nmode: 0644",
                "mode: 0644",
                "has the key mode twice, with the same value, at line 3, ",
            ),
            ("path: hush\npath: hush", "{{.proxy}}", "has a key twice, with the same value, at line 2, column"),
        ] {
            let (file, found) = super::file(Rendered { text, template }).unwrap();
            let found = found.unwrap();
            assert!(file["path"].is_string() && found.contains(warning) && !found.contains("hush"), "{found}");
        }
    }
}
