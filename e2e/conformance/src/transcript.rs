//! The requests and answers, and the differences between two servers.

use std::{collections::BTreeSet, fmt::Write};

use serde_json::Value;

/// An answer without the parts that differ between any two servers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) code: u16,
    pub(super) retry_after: Option<String>,
    pub(super) body: Value,
}

#[derive(Clone, Debug)]
struct Entry {
    what: String,
    request: String,
    answer: Answer,
}

/// The answers of one case, in order, each under a name.
#[derive(Clone, Debug, Default)]
pub struct Transcript(Vec<Entry>);

impl Transcript {
    pub(super) fn add(&mut self, what: &str, request: &str, answer: Answer) {
        self.0.push(Entry { what: what.to_owned(), request: request.to_owned(), answer });
    }

    /// The number of tested behaviours.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The difference from another server's answers; `None` if there is none.
    pub fn difference(&self, real: &Self) -> Option<String> {
        let mut report = String::new();
        let mut reported = BTreeSet::new();
        for (ours, theirs) in self.0.iter().zip(&real.0) {
            if ours.what != theirs.what {
                let _ = writeln!(report, "  {}: asked {:?} in process", theirs.what, ours.what);
                break;
            }
            // After a difference, the numbers of versions and UIDs no longer match.
            let (ours, real) = if report.is_empty() {
                (ours.answer.clone(), theirs.answer.clone())
            } else {
                (unnumbered(&ours.answer), unnumbered(&theirs.answer))
            };
            if ours != real {
                let mut differences = vec![];
                compare_answers(&real, &ours, &mut differences);
                // A difference repeats in all later answers, so it is reported once.
                differences.retain(|difference| reported.insert(difference.clone()));
                if !differences.is_empty() {
                    let _ = writeln!(report, "  {}: {}\n{}", theirs.what, theirs.request, differences.join("\n"));
                }
            }
        }
        if self.0.len() != real.0.len() {
            let _ = writeln!(report, "  {} answers in process, {} by the real one", self.0.len(), real.0.len());
        }
        (!report.is_empty()).then_some(report)
    }
}

fn unnumbered(answer: &Answer) -> Answer {
    Answer { body: without_numbers(&answer.body), ..answer.clone() }
}

fn without_numbers(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), without_numbers(value))).collect(),
        Value::Array(items) => items.iter().map(without_numbers).collect(),
        Value::String(text) => {
            let mut words = text.split_inclusive(|it: char| !it.is_ascii_alphanumeric() && it != '-');
            let numbered = |word: &str| word.starts_with("version-") || word.starts_with("uid-");
            let cleaned: String = words.by_ref().map(|word| if numbered(word) { "N" } else { word }).collect();
            cleaned.into()
        }
        other => other.clone(),
    }
}

fn compare_answers(real: &Answer, ours: &Answer, differences: &mut Vec<String>) {
    if real.code != ours.code {
        let said = |answer: &Answer| answer.body.get("message").unwrap_or(&answer.body).to_string();
        let (real, ours) = ((real.code, said(real)), (ours.code, said(ours)));
        differences.push(format!("    real: {} {}\n    in process: {} {}", real.0, real.1, ours.0, ours.1));
        return;
    }
    let retry_after = |answer: &Answer| answer.retry_after.clone().into();
    compare("Retry-After", &retry_after(real), &retry_after(ours), differences);
    compare("", &real.body, &ours.body, differences);
}

/// Records the differences between two values, each with its path.
fn compare(path: &str, real: &Value, ours: &Value, differences: &mut Vec<String>) {
    match (real, ours) {
        _ if real == ours => {}
        (Value::Object(real), Value::Object(ours)) => {
            let more = ours.keys().filter(|key| !real.contains_key(*key));
            for key in real.keys().chain(more) {
                let nothing = Value::String("(nothing)".to_owned());
                let (real, ours) = (real.get(key).unwrap_or(&nothing), ours.get(key).unwrap_or(&nothing));
                compare(&format!("{path}/{key}"), real, ours, differences);
            }
        }
        (Value::Array(real), Value::Array(ours)) if real.len() == ours.len() => {
            for (index, (real, ours)) in real.iter().zip(ours).enumerate() {
                compare(&format!("{path}/{index}"), real, ours, differences);
            }
        }
        _ => differences.push(format!("    {path}\n      real:       {real}\n      in process: {ours}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn transcript(code: u16, body: Value) -> Transcript {
        let mut transcript = Transcript::default();
        transcript.add("a create", "POST /x", Answer { code, retry_after: None, body });
        transcript
    }

    #[test]
    fn a_difference_names_its_place() {
        let real = transcript(201, json!({"a": {"b": 1, "c": 2}}));
        assert_eq!(real.difference(&real), None);
        let other = transcript(201, json!({"a": {"b": 1}}));
        let report = other.difference(&real).unwrap();
        assert!(report.contains("a create: POST /x"), "{report}");
        assert!(report.contains("/a/c") && report.contains("(nothing)") && !report.contains("/a/b"), "{report}");
        assert!(Transcript::default().difference(&real).is_some(), "an answer is missing");
    }
}
