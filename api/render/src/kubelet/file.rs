//! Files of an Ignition config: reading YAML from one, and making one.

use crate::{ignition::decode, yaml};
use nodewright_api::field::{FieldError, FieldPath};
use serde_json::{Map, Value, json};

/// Permission bits of what is made.
const MODE: i64 = 0o644;

/// The fields of a YAML file.
pub(super) fn read_yaml(file: &Value, path: &FieldPath) -> Result<Map<String, Value>, Box<FieldError>> {
    let fail = |detail: &str| Box::new(FieldError::confidential(path.clone(), &Value::Null, detail));
    let contents = &file["contents"];
    if contents["compression"].as_str().is_some_and(|compression| !compression.is_empty()) {
        return Err(fail("must not be compressed, so that a KubeletConfig can change it"));
    }
    let source = contents["source"].as_str().unwrap_or_default();
    let bytes = decode(source).ok_or_else(|| fail("must have its content in a data URL"))?;
    let text = String::from_utf8(bytes).map_err(|_| fail("must be text in UTF-8"))?;
    let what = "must be a KubeletConfiguration in YAML or JSON";
    match yaml::read(&text) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(fail(what)),
        Err(error) => Err(fail(&format!("{what}: its content is {error}"))),
    }
}

/// A configuration as YAML, with sorted keys.
pub(super) fn to_yaml(fields: &Map<String, Value>) -> Result<String, Box<FieldError>> {
    let root = FieldPath::new("spec").child("kubeletConfig");
    // The kubelet reads YAML 1.1, in which `on` and `0644` are no strings: all are quoted. Text in one line stays in one.
    let options = serde_saphyr::ser_options! { quote_all: true, min_fold_chars: usize::MAX };
    let mut text = String::new();
    serde_saphyr::to_fmt_writer_with_options(&mut text, fields, options)
        .map_err(|error| Box::new(FieldError::invalid(root, Value::Null, error.to_string())))?;
    Ok(text)
}

/// A file with this text, which replaces what is there.
pub(super) fn write(path: &str, text: &str) -> Value {
    let source = format!("data:text/plain;charset=utf-8;base64,{}", crate::ignition::encode(text.as_bytes()));
    json!({"path": path, "mode": MODE, "overwrite": true, "contents": {"source": source}})
}
