//! The requests that machines cost, by kind.

use std::{collections::BTreeMap, fmt};

use nodewright_e2e_lab::{control_plane::audit::Entry, devcluster::table::Table};

use crate::measure::{Measurable, is_from};

/// The kinds of requests. [`Write`](Self::Write) and [`Read`](Self::Read) are compared with bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RequestKind {
    /// Any other write: of machines, nodes and pods.
    Write,
    /// A write of a set, a deployment or a class, or of the labels of a CRD or a namespace that is in use. There are fewer of these
    /// than machines.
    Fleet,
    /// The write of a bootstrap token.
    Token,
    /// The write of an event.
    Event,
    /// The eviction of a pod.
    Eviction,
    /// The renewal of a Lease.
    Lease,
    /// A read.
    Read,
    /// The beginning of a watch.
    Watch,
}

impl RequestKind {
    fn of(entry: &Entry) -> Self {
        match (entry.resource.as_str(), entry.subresource.as_str()) {
            _ if entry.verb == "watch" => Self::Watch,
            _ if !entry.is_write() => Self::Read,
            (
                "machinesets" | "machinedeployments" | "machineclasses" | "customresourcedefinitions" | "namespaces",
                _,
            ) => Self::Fleet,
            ("leases", _) => Self::Lease,
            ("events", _) => Self::Event,
            ("secrets", _) => Self::Token,
            ("pods", "eviction") => Self::Eviction,
            _ => Self::Write,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Write => "",
            Self::Fleet => "fleet",
            Self::Token => "token",
            Self::Event => "event",
            Self::Eviction => "pod",
            Self::Lease => "lease",
            Self::Read => "read",
            Self::Watch => "watch",
        }
    }
}

/// The requests of controllers for a number of machines. Its `Display` is a table.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    machines: u32,
    counts: BTreeMap<(RequestKind, String, String), u32>,
}

impl Costs {
    pub(crate) fn of(machines: u32) -> Self {
        Self { machines, counts: BTreeMap::new() }
    }

    /// The number of machines.
    pub(crate) fn machines(&self) -> u32 {
        self.machines
    }

    /// Counts a request, if controllers of this kind sent it.
    pub(crate) fn add<C: Measurable>(&mut self, entry: &Entry) {
        if !is_from::<C>(entry) {
            return;
        }
        let resource = match entry.subresource.as_str() {
            "" => entry.resource.clone(),
            subresource => format!("{}/{subresource}", entry.resource),
        };
        *self.counts.entry((RequestKind::of(entry), resource, entry.verb.clone())).or_default() += 1;
    }

    fn per_machine(&self, count: u32) -> f64 {
        f64::from(count) / f64::from(self.machines)
    }

    /// The requests of one kind, per machine.
    pub(crate) fn each(&self, kind: RequestKind) -> f64 {
        let counts = self.counts.iter().filter(|((of, ..), _)| *of == kind);
        self.per_machine(counts.map(|(_, count)| count).sum())
    }

    /// The writes of statuses of MachineDeployments and MachineSets.
    pub(crate) fn statuses_of_owners(&self) -> u32 {
        let is_status = |resource: &str| ["machinedeployments/status", "machinesets/status"].contains(&resource);
        self.counts.iter().filter(|((_, resource, _), _)| is_status(resource)).map(|(_, count)| count).sum()
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(["RESOURCE", "VERB", "REQUESTS", "PER MACHINE", "KIND"]);
        for ((kind, resource, verb), count) in &self.counts {
            let per_machine = format!("{:.2}", self.per_machine(*count));
            table.add([resource, verb, &count.to_string(), &per_machine, kind.name()]);
        }
        write!(formatter, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewright_e2e_lab::devcluster::ManagerProcess;

    fn entry(agent: &str, verb: &str, resource: &str, subresource: &str) -> Entry {
        Entry {
            user_agent: agent.to_owned(),
            user: String::new(),
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: String::new(),
            name: String::new(),
            code: 200,
            uri: String::new(),
            received: jiff::Timestamp::UNIX_EPOCH,
            answered: jiff::Timestamp::UNIX_EPOCH,
            lines: None,
            body: serde_json::Value::Null,
        }
    }

    #[test]
    fn only_writes_of_nodewright_count() {
        let ours = "nodewright/0.1.0 (machine)";
        let entries = [
            entry(ours, "patch", "machines", ""),
            entry(ours, "patch", "machines", ""),
            entry(ours, "patch", "machines", "status"),
            entry(ours, "get", "machinesets", ""),
            entry(ours, "watch", "pods", ""),
            entry(ours, "patch", "machinesets", "status"),
            entry(ours, "patch", "machinedeployments", "status"),
            entry(ours, "create", "secrets", ""),
            entry(ours, "create", "events", ""),
            entry(ours, "create", "pods", "eviction"),
            entry(ours, "update", "leases", ""),
            entry("kubectl/1", "patch", "machines", ""),
        ];
        let mut costs = Costs::of(2);
        for entry in &entries {
            costs.add::<ManagerProcess>(entry);
        }
        assert!((costs.each(RequestKind::Write) - 1.5).abs() < f64::EPSILON);
        assert!((costs.each(RequestKind::Fleet) - 1.0).abs() < f64::EPSILON);
        assert!((costs.each(RequestKind::Read) - 0.5).abs() < f64::EPSILON);
        assert_eq!(costs.statuses_of_owners(), 2);
        assert!((costs.each(RequestKind::Token) - 0.5).abs() < f64::EPSILON);
        let table = costs.to_string();
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        for row in [vec!["machines", "patch", "2", "1.00"], vec!["pods/eviction", "create", "1", "0.50", "pod"]] {
            assert!(rows.contains(&row), "{table}");
        }
    }
}
