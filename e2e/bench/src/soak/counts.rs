//! What was made and unmade, by the audit log.

use std::collections::BTreeSet;

use nodewright_e2e_control_plane::audit::Entry;

use crate::measure::is_ours;

/// Machines and nodes that came and went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    machines_made: BTreeSet<String>,
    machines_unmade: BTreeSet<String>,
    nodes_made: usize,
    nodes_unmade: BTreeSet<String>,
}

/// How many of each came and went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) machines: (usize, usize),
    pub(crate) nodes: (usize, usize),
}

impl Counts {
    /// Counts a request, if it makes or unmakes something.
    pub(crate) fn add(&mut self, entry: &Entry) {
        if !entry.subresource.is_empty() {
            return;
        }
        match (entry.resource.as_str(), entry.verb.as_str(), entry.code) {
            // Server-side apply: 201 if there was none.
            ("machines", "patch" | "create", 201) if is_ours(entry) => {
                self.machines_made.insert(entry.name.clone());
            }
            ("machines", "delete", 200 | 202) if is_ours(entry) => {
                self.machines_unmade.insert(entry.name.clone());
            }
            // By kubelets. The log does not name what is created.
            ("nodes", "create", 201) => self.nodes_made += 1,
            ("nodes", "delete", 200 | 202) if is_ours(entry) => {
                self.nodes_unmade.insert(entry.name.clone());
            }
            _ => {}
        }
    }

    /// The machines that were told to go.
    pub(crate) fn machines_unmade(&self) -> &BTreeSet<String> {
        &self.machines_unmade
    }

    pub(crate) fn totals(&self) -> Totals {
        Totals {
            machines: (self.machines_made.len(), self.machines_unmade.len()),
            nodes: (self.nodes_made, self.nodes_unmade.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(agent: &str, verb: &str, resource: &str, name: &str, code: u16) -> Entry {
        Entry {
            user_agent: agent.to_owned(),
            user: String::new(),
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            subresource: String::new(),
            namespace: String::new(),
            name: name.to_owned(),
            code,
            uri: String::new(),
            received: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn only_what_succeeds_counts_and_once() {
        let ours = "nodewright/0.1.0 (machine)";
        let entries = [
            entry(ours, "patch", "machines", "a", 201),
            entry(ours, "patch", "machines", "a", 200),
            entry(ours, "patch", "machines", "b", 409),
            entry(ours, "delete", "machines", "a", 200),
            entry(ours, "delete", "machines", "a", 200),
            entry("kubelet", "create", "nodes", "", 201),
            entry("kubelet", "create", "nodes", "", 409),
            entry(ours, "delete", "nodes", "vm-a", 200),
            entry("kubectl/1", "delete", "nodes", "vm-b", 200),
        ];
        let mut counts = Counts::default();
        for entry in &entries {
            counts.add(entry);
        }
        assert_eq!(counts.totals(), Totals { machines: (1, 1), nodes: (1, 1) });
    }
}
