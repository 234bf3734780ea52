//! What a driver is given with a call, and must not repeat in a message: messages stand in statuses, events, logs and traces.

use base64::{Engine, prelude::BASE64_STANDARD};
use nodewright_driver::{Class, DriverError, MachineRequest, Result, SecretData, SecretText};

const REMOVED: &str = "(removed)";
/// A shorter value is a word that may stand in many messages.
const SHORTEST: usize = 6;
/// A shorter line of a longer value, such as of user data, as well.
const SHORTEST_LINE: usize = 12;

/// The secrets of one call.
pub(crate) struct Secrets {
    data: SecretData,
    user_data: SecretText,
}

impl Secrets {
    pub(crate) fn of_class(class: &Class) -> Self {
        Self { data: class.secret.clone(), user_data: SecretText::default() }
    }

    pub(crate) fn of(request: &MachineRequest) -> Self {
        Self { user_data: request.user_data.clone(), ..Self::of_class(&request.class) }
    }

    /// The result of the call: a failure without secrets in its message.
    pub(crate) async fn kept<T>(self, call: impl Future<Output = Result<T>>) -> Result<T> {
        call.await.map_err(|error| DriverError { message: self.removed_from(error.message), ..error })
    }

    fn removed_from(&self, mut message: String) -> String {
        // Of two that begin alike, the longer one first.
        let mut texts = self.texts();
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        for text in texts {
            if message.contains(&text) {
                message = message.replace(&text, REMOVED);
            }
        }
        message
    }

    /// Each value, as it is and encoded, and its lines.
    fn texts(&self) -> Vec<String> {
        let values = self.data.entries().into_values().chain([self.user_data.0.as_bytes()]);
        let mut texts = vec![];
        for value in values.filter(|value| value.len() >= SHORTEST) {
            texts.push(BASE64_STANDARD.encode(value));
            let Ok(value) = std::str::from_utf8(value) else { continue };
            texts.push(value.to_owned());
            texts.extend(Some(value.trim()).filter(|value| value.len() >= SHORTEST).map(str::to_owned));
            let lines = value.lines().map(str::trim).filter(|line| line.len() >= SHORTEST_LINE);
            texts.extend(lines.map(str::to_owned));
        }
        texts
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use k8s_openapi::{ByteString, api::core::v1::Secret};

    use super::*;

    fn secrets(values: &[(&str, &str)]) -> Secrets {
        let data = values.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())));
        let data = Some(data.collect::<BTreeMap<_, _>>());
        let data = SecretData::of(vec![Arc::new(Secret { data, ..Secret::default() })]);
        Secrets { data, user_data: SecretText("#!/bin/sh\njoin --token=abcdef.0123456789\n".into()) }
    }

    #[test]
    fn no_message_repeats_a_value_its_lines_or_its_encoded_form() {
        let secrets = secrets(&[("token", "hunter2"), ("longer", "hunter2-and-more\n"), ("zone", "a")]);
        for (message, expected) in [
            ("denied for hunter2", "denied for (removed)"),
            ("denied for hunter2-and-more!", "denied for (removed)!"),
            ("denied for aHVudGVyMg== in zone a", "denied for (removed) in zone a"),
            ("line 2: join --token=abcdef.0123456789: no", "line 2: (removed): no"),
            ("no capacity in zone a", "no capacity in zone a"),
        ] {
            assert_eq!(secrets.removed_from(message.to_owned()), expected);
        }
    }
}
