//! `nodewright-e2e writes`: the requests that a machine costs.

use std::{collections::BTreeMap, fmt, time::Duration};

use super::{
    SetError,
    interruptions::Ends,
    measure::{Measured, is_ours, print},
    table::Table,
};
use crate::audit::Entry;

/// How many writes a creation may cost; see [`Apart`] for what does not count.
const CREATION_BOUND: f64 = 7.0;
/// How many writes a deletion may cost, the evictions of the machine's pods apart.
const DELETION_BOUND: f64 = 9.0;

/// Counts the requests for each machine that is created and deleted, on a control plane of its own.
#[derive(Clone, Debug, clap::Args)]
pub struct WritesArguments {
    /// How many machines are created, and then deleted
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=500))]
    machines: u32,
    /// Seconds that each of both may take
    #[arg(long, default_value_t = 300)]
    timeout: u64,
    /// More flags for the manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// Runs the command. An error if the bounds are exceeded.
pub async fn run(arguments: WritesArguments) -> Result<(), SetError> {
    let ends = Ends::listen().map_err(SetError::file("listen to signals of", "this process"))?;
    ends.gracefully.run_until_cancelled(Box::pin(measure(arguments))).await.unwrap_or(Ok(()))
}

async fn measure(arguments: WritesArguments) -> Result<(), SetError> {
    let (machines, timeout) = (arguments.machines as usize, Duration::from_secs(arguments.timeout));
    let mut measured = Measured::start(arguments.manager_flags).await?;
    // The first machines may cost more, and what the set as a whole costs is not theirs.
    measured.scale(0, timeout).await?;
    eprintln!("creating {machines} machines");
    let creation = Costs::of(&measured.scale(machines, timeout).await?, arguments.machines);
    eprintln!("deleting {machines} machines");
    let deletion = Costs::of(&measured.scale(0, timeout).await?, arguments.machines);
    measured.stop().await?;
    print(&format!("\nCreation of {machines} machines\n\n{creation}"))?;
    print(&format!("Deletion of {machines} machines\n\n{deletion}"))?;
    let (created, deleted) = (creation.writes(), deletion.writes());
    print(&format!("writes per creation: {created:.2} (bound {CREATION_BOUND})"))?;
    print(&format!("writes per deletion: {deleted:.2} (bound {DELETION_BOUND} + pods)"))?;
    if created > CREATION_BOUND || deleted > DELETION_BOUND {
        return Err(SetError::Exceeded("machines cost more writes than they may".to_owned()));
    }
    Ok(())
}

/// What is counted for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Apart {
    /// A write that counts.
    Write,
    /// The bootstrap token of a machine.
    Token,
    /// An event.
    Event,
    /// The eviction of a pod.
    Eviction,
    /// The renewal of a Lease.
    Lease,
    /// A read.
    Read,
}

impl Apart {
    fn of(entry: &Entry) -> Self {
        match (entry.resource.as_str(), entry.subresource.as_str()) {
            _ if !entry.is_write() => Self::Read,
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
            Self::Token => "token",
            Self::Event => "event",
            Self::Eviction => "pod",
            Self::Lease => "lease",
            Self::Read => "read",
        }
    }
}

/// The requests of Nodewright for some machines. Its `Display` is a table.
struct Costs {
    machines: u32,
    counts: BTreeMap<(Apart, String, String), u32>,
}

impl Costs {
    fn of(entries: &[Entry], machines: u32) -> Self {
        let mut counts = BTreeMap::new();
        for entry in entries.iter().filter(|entry| is_ours(entry)) {
            let resource = match entry.subresource.as_str() {
                "" => entry.resource.clone(),
                subresource => format!("{}/{subresource}", entry.resource),
            };
            *counts.entry((Apart::of(entry), resource, entry.verb.clone())).or_default() += 1;
        }
        Self { machines, counts }
    }

    fn per_machine(&self, count: u32) -> f64 {
        f64::from(count) / f64::from(self.machines)
    }

    /// The writes that count, for each machine.
    fn writes(&self) -> f64 {
        let writes = self.counts.iter().filter(|((apart, ..), _)| *apart == Apart::Write);
        self.per_machine(writes.map(|(_, count)| count).sum())
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(["RESOURCE", "VERB", "REQUESTS", "PER MACHINE", "APART"]);
        for ((apart, resource, verb), count) in &self.counts {
            let per_machine = format!("{:.2}", self.per_machine(*count));
            table.add([resource, verb, &count.to_string(), &per_machine, apart.name()]);
        }
        write!(formatter, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            entry(ours, "create", "secrets", ""),
            entry(ours, "create", "events", ""),
            entry(ours, "create", "pods", "eviction"),
            entry(ours, "update", "leases", ""),
            entry("kubectl/1", "patch", "machines", ""),
        ];
        let costs = Costs::of(&entries, 2);
        assert!((costs.writes() - 1.5).abs() < f64::EPSILON);
        let table = costs.to_string();
        assert!(table.contains("machines         patch          2         1.00"), "{table}");
        assert!(table.contains("pods/eviction    create         1         0.50  pod"), "{table}");
    }
}
