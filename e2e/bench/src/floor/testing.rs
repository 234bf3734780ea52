//! Entries of an audit log, for tests.

use nodewright_e2e_lab::control_plane::audit::Entry;

/// An entry that was answered with 200 when it was received.
pub(super) fn entry(agent: &str, verb: &str, resource: &str, name: &str) -> Entry {
    Entry {
        user_agent: agent.to_owned(),
        user: String::new(),
        verb: verb.to_owned(),
        resource: resource.to_owned(),
        subresource: String::new(),
        namespace: String::new(),
        name: name.to_owned(),
        code: 200,
        uri: format!("/{resource}/{name}"),
        received: jiff::Timestamp::UNIX_EPOCH,
        answered: jiff::Timestamp::UNIX_EPOCH,
        lines: None,
        body: serde_json::Value::Null,
    }
}
