//! Answers without the parts that differ between any two servers: versions, UIDs, times and generated names. Each is replaced
//! by the number of its first appearance, so equal values stay equal and different ones stay different.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// The values that one probe has seen so far.
pub(super) struct Normal {
    namespace: String,
    versions: BTreeMap<String, usize>,
    uids: BTreeMap<String, usize>,
    names: BTreeMap<String, String>,
}

const UID_LENGTH: usize = 36;

impl Normal {
    pub(super) fn new(namespace: &str) -> Self {
        let (versions, uids, names) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { namespace: namespace.to_owned(), versions, uids, names }
    }

    /// A text without the namespace, UIDs, known versions and generated names.
    pub(super) fn text(&mut self, text: &str) -> String {
        let mut text = self.without_uids(&text.replace(&self.namespace, "NAMESPACE"));
        for (name, placeholder) in &self.names {
            text = text.replace(name, placeholder);
        }
        // The message contains a place in the source code.
        if let Some((before, _)) = text.split_once(" in scheme \"") {
            text = before.to_owned();
        }
        // The message contains the server's current version.
        for lead in ["current: ", "too old resource version: "] {
            text = without_number_after(&text, lead);
        }
        self.without_versions(&text)
    }

    fn without_uids(&mut self, text: &str) -> String {
        let mut rest = text;
        let mut cleaned = String::new();
        while let Some(start) = (0..rest.len()).find(|start| is_uid(rest, *start)) {
            let (before, after) = rest.split_at(start);
            let (uid, after) = after.split_at(UID_LENGTH);
            cleaned += before;
            cleaned += &self.uid(uid);
            rest = after;
        }
        cleaned + rest
    }

    /// A number is a version if it follows a bracket, a quote or an equals sign.
    fn without_versions(&mut self, text: &str) -> String {
        let mut cleaned = String::new();
        for word in text.split_inclusive(|character: char| !character.is_ascii_digit()) {
            let digits = word.trim_end_matches(|character: char| !character.is_ascii_digit());
            // A version that no earlier answer contained.
            if cleaned.ends_with("ResourceVersion in record (") {
                self.version(digits);
            }
            match self.versions.get(digits) {
                Some(number) if cleaned.ends_with(['(', '"', '=']) => {
                    cleaned += "version-";
                    cleaned += &number.to_string();
                    cleaned += &word[digits.len()..];
                }
                _ => cleaned += word,
            }
        }
        cleaned
    }

    fn uid(&mut self, uid: &str) -> String {
        let next = self.uids.len() + 1;
        format!("uid-{}", self.uids.entry(uid.to_owned()).or_insert(next))
    }

    fn version(&mut self, version: &str) -> String {
        // A value that no server issues stays as it is.
        if version.len() < 3 || !version.bytes().all(|byte| byte.is_ascii_digit()) {
            return version.to_owned();
        }
        let next = self.versions.len() + 1;
        format!("version-{}", self.versions.entry(version.to_owned()).or_insert(next))
    }

    pub(super) fn value(&mut self, value: &Value) -> Value {
        match value {
            Value::Object(fields) => self.fields(fields),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::String(text) if is_time(text) => "time".into(),
            Value::String(text) => self.text(text).into(),
            other => other.clone(),
        }
    }

    fn fields(&mut self, fields: &Map<String, Value>) -> Value {
        // Lists carry the version of the whole server, which other clients advance.
        let is_list = fields.get("items").is_some_and(Value::is_array);
        // Bookmarks do, too.
        if fields.get("type").is_some_and(|kind| kind == "BOOKMARK") {
            let mut fields = fields.clone();
            fields["object"]["metadata"]["resourceVersion"] = "of the server".into();
            fields["type"] = "a bookmark".into();
            return self.fields(&fields);
        }
        if let Some(base) = fields.get("generateName").and_then(Value::as_str)
            && let Some(name) = fields.get("name").and_then(Value::as_str)
        {
            let next = self.names.len() + 1;
            self.names.entry(name.to_owned()).or_insert(format!("{base}GENERATED-{next}"));
        }
        let mut cleaned = Map::new();
        for (key, value) in fields {
            let value = match (key.as_str(), value) {
                ("resourceVersion", Value::String(version)) => self.version(version).into(),
                ("continue", Value::String(token)) if !token.is_empty() => "token".into(),
                ("managedFields", Value::Array(entries)) => {
                    // Their order depends on times as well.
                    let owners = entries.iter().map(managed);
                    let mut owners: Vec<_> = owners.map(|owner| self.value(&owner)).collect();
                    owners.sort_by_key(Value::to_string);
                    owners.into()
                }
                ("causes", Value::Array(causes)) => self.causes(causes),
                ("metadata", Value::Object(metadata)) if is_list => self.list_metadata(metadata),
                _ => self.value(value),
            };
            cleaned.insert(key.clone(), value);
        }
        Value::Object(cleaned)
    }

    /// A real server repeats some causes, and reports those of conflicts in any order.
    fn causes(&mut self, causes: &[Value]) -> Value {
        let mut each = vec![];
        for cause in causes {
            let cause = self.value(cause);
            if !each.contains(&cause) {
                each.push(cause);
            }
        }
        if each.iter().all(|cause| cause["reason"] == "FieldManagerConflict") {
            each.sort_by_key(Value::to_string);
        }
        each.into()
    }

    fn list_metadata(&mut self, metadata: &Map<String, Value>) -> Value {
        let mut metadata = metadata.clone();
        if metadata.contains_key("resourceVersion") {
            metadata.insert("resourceVersion".into(), "of the server".into());
        }
        self.fields(&metadata)
    }
}

/// The owners of fields, one per line. Whether a map is owned in addition to its keys is omitted: its effects are visible in
/// the objects.
fn managed(entry: &Value) -> Value {
    let mut paths = BTreeSet::new();
    collect(&entry["fieldsV1"], "", &mut paths);
    let text = |field: &str| entry[field].as_str().unwrap_or_default();
    json!({
        "manager": text("manager"),
        "operation": text("operation"),
        "subresource": text("subresource"),
        "apiVersion": text("apiVersion"),
        "fields": paths,
    })
}

fn collect(fields: &Value, path: &str, paths: &mut BTreeSet<String>) {
    let below = fields.as_object().into_iter().flatten().filter(|(key, _)| *key != ".");
    let mut empty = true;
    for (key, value) in below {
        empty = false;
        collect(value, &format!("{path} {key}"), paths);
    }
    if empty {
        paths.insert(path.trim_start().to_owned());
    }
}

fn is_uid(text: &str, start: usize) -> bool {
    text.as_bytes().get(start..start + UID_LENGTH).is_some_and(|uid| {
        uid.iter().enumerate().all(|(index, byte)| match index {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
    })
}

fn is_time(text: &str) -> bool {
    text.len() >= "2026-01-01T00:00:00Z".len() && text.ends_with('Z') && text.parse::<jiff::Timestamp>().is_ok()
}

fn without_number_after(text: &str, lead: &str) -> String {
    let Some((before, after)) = text.split_once(lead) else { return text.to_owned() };
    let rest = after.trim_start_matches(|character: char| character.is_ascii_digit());
    // `too old resource version: 5 (9)`
    let rest = match rest.strip_prefix(" (").map(|rest| rest.trim_start_matches(|it: char| it.is_ascii_digit())) {
        Some(rest) => format!(" (N{rest}"),
        None => rest.to_owned(),
    };
    format!("{before}{lead}N{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_equal_stays_equal() {
        let mut normal = Normal::new("conformance-x");
        let uid = ["11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"];
        let object = |uid: &str, version: &str| {
            json!({"metadata": {"namespace": "conformance-x", "uid": uid, "resourceVersion": version,
                "creationTimestamp": "2026-01-01T00:00:00Z"}})
        };
        let clean = |uid: &str, version: &str| {
            json!({"metadata": {"namespace": "NAMESPACE", "uid": uid, "resourceVersion": version,
                "creationTimestamp": "time"}})
        };
        assert_eq!(normal.value(&object(uid[0], "812")), clean("uid-1", "version-1"));
        assert_eq!(normal.value(&object(uid[1], "813")), clean("uid-2", "version-2"));
        assert_eq!(normal.value(&object(uid[0], "812")), clean("uid-1", "version-1"));
        let message = format!("UID {} is not {}, at (813), not 813; current: 99999", uid[1], uid[0]);
        assert_eq!(normal.text(&message), "UID uid-2 is not uid-1, at (version-2), not 813; current: N");
    }

    #[test]
    fn owners_are_read_from_managed_fields() {
        let entry = json!({"manager": "a", "operation": "Apply", "time": "2026-01-01T00:00:00Z",
            "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:x": {}}}, "f:spec": {"f:y": {}}}});
        assert_eq!(managed(&entry)["fields"], json!(["f:metadata f:labels f:x", "f:spec f:y"]));
    }
}
