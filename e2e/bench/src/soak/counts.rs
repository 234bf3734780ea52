//! Created and deleted objects, according to the audit log.

use std::collections::BTreeSet;

use nodewright_e2e_lab::{control_plane::audit::Entry, devcluster::ManagerProcess};

use crate::measure::is_from;

/// Machines and nodes that were created and deleted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    machines_created: BTreeSet<String>,
    machines_deleted: BTreeSet<String>,
    nodes_created: usize,
    nodes_deleted: BTreeSet<String>,
}

/// The numbers of created and deleted objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) machines: (usize, usize),
    pub(crate) nodes: (usize, usize),
}

impl Counts {
    /// Counts a request, if it created or deleted a machine or node.
    pub(crate) fn add(&mut self, entry: &Entry) {
        if !entry.subresource.is_empty() {
            return;
        }
        match (entry.resource.as_str(), entry.verb.as_str(), entry.code) {
            // Server-side apply answers 201 if it created the object.
            ("machines", "patch" | "create", 201) if is_from::<ManagerProcess>(entry) => {
                self.machines_created.insert(entry.name.clone());
            }
            ("machines", "delete", 200 | 202) if is_from::<ManagerProcess>(entry) => {
                self.machines_deleted.insert(entry.name.clone());
            }
            // Kubelets create nodes. The audit log has no name of a created object.
            ("nodes", "create", 201) => self.nodes_created += 1,
            ("nodes", "delete", 200 | 202) if is_from::<ManagerProcess>(entry) => {
                self.nodes_deleted.insert(entry.name.clone());
            }
            _ => {}
        }
    }

    /// The names of deleted machines.
    pub(crate) fn machines_deleted(&self) -> &BTreeSet<String> {
        &self.machines_deleted
    }

    pub(crate) fn totals(&self) -> Totals {
        Totals {
            machines: (self.machines_created.len(), self.machines_deleted.len()),
            nodes: (self.nodes_created, self.nodes_deleted.len()),
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
            answered: jiff::Timestamp::UNIX_EPOCH,
            lines: None,
            body: serde_json::Value::Null,
        }
    }

    #[test]
    fn successful_requests_count_once() {
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
