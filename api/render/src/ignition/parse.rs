//! Reading a config of any version that is taken, and raising it to 3.5.0.

use super::typed::typed;
use super::{Config, TAKEN, VERSION, prune, validate};
use ignition_config::v3_5;
use nodewright_api::field::{FieldError, FieldPath};
use serde_json::{Map, Value};

/// The minor version of [`VERSION`].
pub(super) const MINORS: usize = TAKEN.len() - 1;

/// What was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// The config.
    pub config: Config,
    /// Fields that the version of the config does not have. Ignition ignores them with a warning; so they are not in `config`.
    pub unused: Vec<FieldPath>,
}

/// Reads a config, raises it to [`VERSION`] and validates it by the rules of the version that it is written in.
///
/// The errors name fields below `at`. They do not show the content of a file.
pub fn parse(text: &str, at: &FieldPath) -> Result<Parsed, Vec<FieldError>> {
    let fail = |error: serde_json::Error| vec![FieldError::invalid(at.clone(), Value::Null, error.to_string())];
    let mut document: Value = serde_json::from_str(text).map_err(fail)?;
    if !document.is_object() {
        return Err(vec![FieldError::invalid(
            at.clone(),
            kind_of(&document),
            "must be an Ignition config, which is a JSON object",
        )]);
    }
    let minor = version(&document, at).map_err(|error| vec![*error])?;
    fill(&mut document, minor);
    let (typed, unused) = read(document, minor, at).map_err(|error| vec![*error])?;
    let mut config = canonical(typed);
    let errors = validate::validate(&config, minor, at);
    if minor == 4 {
        // Ignition loses it when it raises a config from 3.4 to 3.5.
        each_element(&mut config.0, "tang", &|tang| drop(tang.remove("advertisement")));
    }
    if errors.is_empty() { Ok(Parsed { config, unused }) } else { Err(errors) }
}

/// What a value is. Its content may be secret.
fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The minor version of a config.
fn version(document: &Value, at: &FieldPath) -> Result<usize, Box<FieldError>> {
    let path = at.child("ignition").child("version");
    let supported = format!("supported versions: {}", TAKEN.join(", "));
    let Some(version) = document.pointer("/ignition/version").filter(|version| !version.is_null()) else {
        return Err(Box::new(FieldError::required(path, supported)));
    };
    let Some(version) = version.as_str() else {
        return Err(Box::new(FieldError::invalid(
            path,
            version.clone(),
            format!("must be text in quotes; {supported}"),
        )));
    };
    if let Some(minor) = TAKEN.iter().position(|taken| *taken == version) {
        return Ok(minor);
    }
    let advice = match version.split('.').next() {
        Some("2") => "configs of Ignition 2 are not taken, translate it with ign-converter; ",
        Some("3") => "this version of Ignition configs is not known here; ",
        _ => "",
    };
    Err(Box::new(FieldError::invalid(path, version, format!("{advice}{supported}"))))
}

/// What a Go struct holds where the document has nothing: fields without a pointer. The types of `ignition-config` require
/// them. By list, the field of its elements, and the last minor version in which Go's field has no pointer.
const ZEROS: [(&str, &str, usize); 15] = [
    ("certificateAuthorities", "source", 0),
    ("directories", "path", MINORS),
    ("disks", "device", MINORS),
    ("dropins", "name", MINORS),
    ("files", "path", MINORS),
    ("filesystems", "device", MINORS),
    ("groups", "name", MINORS),
    ("httpHeaders", "name", MINORS),
    ("links", "path", MINORS),
    ("links", "target", 2),
    ("luks", "name", MINORS),
    ("raid", "level", 2),
    ("raid", "name", MINORS),
    ("units", "name", MINORS),
    ("users", "name", MINORS),
];

/// Adds the zero values of [`ZEROS`].
fn fill(value: &mut Value, minor: usize) {
    let Value::Object(object) = value else { return };
    for (field, value) in object.iter_mut() {
        let Value::Array(list) = value else {
            fill(value, minor);
            continue;
        };
        for element in list {
            if let Value::Object(element) = element {
                zero_fields(field, element, minor);
            }
            fill(element, minor);
        }
    }
}

fn zero_fields(list: &str, element: &mut Map<String, Value>, minor: usize) {
    for (_, field, _) in ZEROS.iter().filter(|(name, _, last)| *name == list && minor <= *last) {
        fill_in(element, field, &"".into());
    }
    if list == "raid" && minor <= 2 {
        fill_in(element, "devices", &Value::Array(Vec::new()));
    }
    // In 3.2, the fields of a custom pin had no pointers; the pin as a whole had one.
    let custom = element.get_mut("clevis").and_then(|clevis| clevis.get_mut("custom")).and_then(Value::as_object_mut);
    if let Some(custom) = custom.filter(|_| list == "luks" && minor == 2) {
        fill_in(custom, "config", &"".into());
        fill_in(custom, "pin", &"".into());
    }
}

fn fill_in(object: &mut Map<String, Value>, field: &str, zero: &Value) {
    let value = object.entry(field).or_insert(Value::Null);
    if value.is_null() {
        *value = zero.clone();
    }
}

/// The fields that came after 3.0, and the minor version in which. All elements of a list have the same fields.
const ADDED: [(&str, usize); 19] = [
    ("ignition.config.merge.compression", 1),
    ("ignition.config.merge.httpHeaders", 1),
    ("ignition.config.replace.compression", 1),
    ("ignition.config.replace.httpHeaders", 1),
    ("ignition.proxy", 1),
    ("ignition.security.tls.certificateAuthorities.compression", 1),
    ("ignition.security.tls.certificateAuthorities.httpHeaders", 1),
    ("kernelArguments", 3),
    ("passwd.groups.shouldExist", 2),
    ("passwd.users.shouldExist", 2),
    ("storage.disks.partitions.resize", 2),
    ("storage.files.append.httpHeaders", 1),
    ("storage.files.contents.httpHeaders", 1),
    ("storage.filesystems.mountOptions", 1),
    ("storage.luks", 2),
    ("storage.luks.cex", 5),
    ("storage.luks.clevis.tang.advertisement", 4),
    ("storage.luks.discard", 4),
    ("storage.luks.openOptions", 4),
];

/// Removes the fields that the version of the document does not have, and notes them.
fn remove_later(value: &mut Value, minor: usize, name: &str, at: &FieldPath, removed: &mut Vec<FieldPath>) {
    match value {
        Value::Object(object) => object.retain(|field, value| {
            let (at, name) = (at.child(field), if name.is_empty() { field.clone() } else { format!("{name}.{field}") });
            let is_later = ADDED.iter().any(|(added, since)| *added == name && minor < *since);
            if is_later {
                removed.push(at);
            } else {
                remove_later(value, minor, &name, &at, removed);
            }
            !is_later
        }),
        Value::Array(list) => {
            for (index, element) in list.iter_mut().enumerate() {
                remove_later(element, minor, name, &at.key(index), removed);
            }
        }
        _ => {}
    }
}

/// Reads a document of any version by the types of [`VERSION`]. Each version only adds optional fields, or makes fields
/// optional, so that a document of one is a document of the next. Types of each version would be six times the code.
fn read(mut document: Value, minor: usize, at: &FieldPath) -> Result<(v3_5::Config, Vec<FieldPath>), Box<FieldError>> {
    let mut unused = Vec::new();
    remove_later(&mut document, minor, "", at, &mut unused);
    let (mut config, unknown) = typed(&document, at)?;
    let written = serde_json::to_value(&config).unwrap_or_default();
    if let Some(path) = list_for_object(&document, &written, at) {
        return Err(Box::new(FieldError::confidential(path, &Value::Null, "must be an object")));
    }
    VERSION.clone_into(&mut config.ignition.version);
    unused.extend(unknown);
    Ok((config, unused))
}

/// Where a document has a list, of which serde has made an object: it reads the elements as the values of the fields.
fn list_for_object(document: &Value, typed: &Value, at: &FieldPath) -> Option<FieldPath> {
    match (document, typed) {
        (Value::Array(_), Value::Object(_)) => Some(at.clone()),
        (Value::Array(document), Value::Array(typed)) => {
            let pairs = document.iter().zip(typed).enumerate();
            pairs.into_iter().find_map(|(index, (document, typed))| list_for_object(document, typed, &at.key(index)))
        }
        (Value::Object(document), Value::Object(typed)) => {
            typed.iter().find_map(|(field, typed)| list_for_object(document.get(field)?, typed, &at.child(field)))
        }
        _ => None,
    }
}

/// The canonical form of a config.
fn canonical(typed: v3_5::Config) -> Config {
    let mut value = serde_json::to_value(typed).unwrap_or_default();
    prune(&mut value);
    let Value::Object(mut config) = value else { return Config::default() };
    // Go has no pointer for these two, and does not write their zero values.
    each_element(&mut config, "partitions", &|partition| drop_if(partition, "number", &Value::from(0)));
    each_element(&mut config, "tang", &|tang| drop_if(tang, "url", &Value::from("")));
    Config(config)
}

fn drop_if(object: &mut Map<String, Value>, field: &str, zero: &Value) {
    if object.get(field) == Some(zero) {
        object.remove(field);
    }
}

/// Changes the elements of all lists of a name.
fn each_element(object: &mut Map<String, Value>, name: &str, change: &dyn Fn(&mut Map<String, Value>)) {
    for (field, value) in object.iter_mut() {
        let elements = match value {
            Value::Object(object) => {
                each_element(object, name, change);
                continue;
            }
            Value::Array(elements) => elements,
            _ => continue,
        };
        for element in elements.iter_mut().filter_map(Value::as_object_mut) {
            if field == name {
                change(element);
            }
            each_element(element, name, change);
        }
    }
}

#[cfg(test)]
mod tests {
    use ignition_config::{v3_0, v3_1, v3_2, v3_3, v3_4};
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::super::typed::path_below;
    use super::*;

    /// A config with all fields of [`VERSION`].
    fn everything() -> Value {
        let resource = json!({"compression": "gzip", "httpHeaders": [{"name": "a", "value": "b"}], "source": "data:,",
            "verification": {"hash": "sha256-0"}});
        let owner = json!({"id": 0, "name": "root"});
        let node = json!({"group": owner, "overwrite": true, "path": "/a", "user": owner});
        let with = |extra: Value| {
            let both = [node.clone(), extra].map(|part| part.as_object().cloned().unwrap_or_default());
            Value::Object(both.into_iter().flatten().collect())
        };
        json!({
            "ignition": {
                "config": {"merge": [resource], "replace": resource},
                "proxy": {"httpProxy": "a", "httpsProxy": "a", "noProxy": ["a"]},
                "security": {"tls": {"certificateAuthorities": [resource]}},
                "timeouts": {"httpResponseHeaders": 1, "httpTotal": 1},
                "version": VERSION,
            },
            "kernelArguments": {"shouldExist": ["a"], "shouldNotExist": ["b"]},
            "passwd": {
                "groups": [{"gid": 1, "name": "a", "passwordHash": "a", "shouldExist": true, "system": true}],
                "users": [{"gecos": "a", "groups": ["a"], "homeDir": "/a", "name": "a", "noCreateHome": true, "noLogInit": true,
                    "noUserGroup": true, "passwordHash": "a", "primaryGroup": "a", "shell": "a", "shouldExist": true,
                    "sshAuthorizedKeys": ["a"], "system": true, "uid": 1}],
            },
            "storage": {
                "directories": [with(json!({"mode": 1}))],
                "disks": [{"device": "/a", "partitions": [{"guid": "a", "label": "a", "number": 1, "resize": true,
                    "shouldExist": true, "sizeMiB": 1, "startMiB": 1, "typeGuid": "a", "wipePartitionEntry": true}],
                    "wipeTable": true}],
                "files": [with(json!({"append": [resource], "contents": resource, "mode": 1}))],
                "filesystems": [{"device": "/a", "format": "a", "label": "a", "mountOptions": ["a"], "options": ["a"],
                    "path": "/a", "uuid": "a", "wipeFilesystem": true}],
                "links": [with(json!({"hard": true, "target": "/b"}))],
                "luks": [{"cex": {"enabled": true}, "clevis": {
                    "custom": {"config": "a", "needsNetwork": true, "pin": "a"},
                    "tang": [{"advertisement": "a", "thumbprint": "a", "url": "a"}], "threshold": 1, "tpm2": true},
                    "device": "/a", "discard": true, "keyFile": resource, "label": "a", "name": "a", "openOptions": ["a"],
                    "options": ["a"], "uuid": "a", "wipeVolume": true}],
                "raid": [{"devices": ["a"], "level": "a", "name": "a", "options": ["a"], "spares": 1}],
            },
            "systemd": {"units": [{"contents": "a", "dropins": [{"contents": "a", "name": "a"}], "enabled": true,
                "mask": true, "name": "a"}]},
        })
    }

    fn unknown_to<T: DeserializeOwned>(document: &Value, at: &FieldPath) -> Vec<FieldPath> {
        let mut unknown = Vec::new();
        serde_ignored::deserialize::<_, _, T>(document, |path| unknown.push(path_below(at, &path))).expect("readable");
        unknown
    }

    #[test]
    fn what_is_removed_is_what_the_types_of_the_version_do_not_have() {
        let (everything, at) = (everything(), FieldPath::new("config"));
        let (config, unknown) = typed(&everything, &at).unwrap();
        assert_eq!((serde_json::to_value(config).unwrap(), unknown), (everything.clone(), vec![]));
        let versions = [
            unknown_to::<v3_0::Config>,
            unknown_to::<v3_1::Config>,
            unknown_to::<v3_2::Config>,
            unknown_to::<v3_3::Config>,
            unknown_to::<v3_4::Config>,
            unknown_to::<v3_5::Config>,
        ];
        for (minor, unknown_to) in versions.into_iter().enumerate() {
            let (mut document, mut removed) = (everything.clone(), Vec::new());
            remove_later(&mut document, minor, "", &at, &mut removed);
            assert_eq!(removed, unknown_to(&everything, &at), "3.{minor}");
        }
    }
}
