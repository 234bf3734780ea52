//! The manager's requests to the API server, from the audit log.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    path::PathBuf,
    time::Duration,
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt};

use crate::{Environment, Failure, TestResult};
use nodewright_e2e_lab::control_plane::audit::{AuditLog, Counts, Entry};

/// The prefix of Nodewright's `User-Agent`.
pub const AGENT: &str = "nodewright/";
/// How long the API server may take to write a line.
const LINE_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads the entries of one environment.
#[derive(Debug)]
pub(crate) struct Tail {
    log: AuditLog,
    namespace: String,
    entries: Vec<Entry>,
}

impl Tail {
    pub(crate) fn start(log: PathBuf, namespace: &str) -> io::Result<Self> {
        Ok(Self { log: AuditLog::from_now(log)?, namespace: namespace.to_owned(), entries: vec![] })
    }

    fn keep(&mut self, read: Vec<Entry>, nodes: &BTreeSet<String>) {
        let namespace = &self.namespace;
        // What has no namespace has a name that begins with this environment's, unless a provider names the nodes.
        let is_ours = |name: &str| name.starts_with(namespace) || nodes.contains(name);
        let ours =
            |entry: &Entry| entry.namespace == *namespace || (entry.namespace.is_empty() && is_ours(&entry.name));
        self.entries.extend(read.into_iter().filter(|entry| entry.user_agent.starts_with(AGENT) && ours(entry)));
    }
}

/// Nodewright's requests in one environment, on objects of its namespace and on its nodes.
#[derive(Clone, Debug)]
pub struct Requests(Vec<Entry>);

impl Requests {
    /// All requests.
    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// The number of requests with this verb, resource and status code.
    pub fn exactly(&self, verb: &str, resource: &str, code: u16) -> u64 {
        self.counts().exactly(verb, resource, code)
    }

    /// All writes for machines, their nodes and pods. Leases and events are excluded; bootstrap tokens are in another
    /// namespace.
    pub fn writes_for_machines(&self) -> Vec<&Entry> {
        let about = ["machines", "nodes", "pods"];
        self.0.iter().filter(|entry| entry.is_write() && about.contains(&entry.resource.as_str())).collect()
    }

    /// The number of these writes by name of the machine or node.
    pub fn writes_by_machine(&self) -> BTreeMap<&str, usize> {
        let mut writes = BTreeMap::new();
        for entry in self.writes_for_machines() {
            *writes.entry(entry.name.as_str()).or_default() += 1;
        }
        writes
    }

    /// The numbers of requests by resource, subresource, verb and code.
    pub fn counts(&self) -> Counts {
        Counts::of(&self.0)
    }
}

impl fmt::Display for Requests {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts().fmt(formatter)
    }
}

impl Environment {
    /// All requests of Nodewright in this environment so far. Returns an error on a cluster whose audit log is not accessible.
    pub async fn requests(&self) -> TestResult<Requests> {
        self.requests_since(0).await
    }

    /// The same, without the first `mark` requests.
    pub async fn requests_since(&self, mark: usize) -> TestResult<Requests> {
        let tail = self.tail.as_ref().ok_or_else(|| Failure::new("the cluster's audit log is not at hand"))?;
        let mut tail = tail.lock().await;
        let read = self.read_audit(&mut tail.log).await?;
        let nodes = self.nodes().changes()?.into_iter().map(|change| change.object.name_any()).collect();
        tail.keep(read, &nodes);
        Ok(Requests(tail.entries.iter().skip(mark).cloned().collect()))
    }

    /// Reads on in the audit log: all that the API server has answered until now.
    pub async fn read_audit(&self, log: &mut AuditLog) -> TestResult<Vec<Entry>> {
        // A unique request of our own. When it is in the log, so are all requests answered before it.
        let marker = format!("marker-{}", fastrand::u64(..));
        Api::<Namespace>::all(self.client()).get_opt(&marker).await?;
        let is_marker = |entry: &Entry| entry.name == marker;
        let read = log.read_until(LINE_TIMEOUT, |entries| entries.iter().any(is_marker)).await?;
        if !read.iter().any(is_marker) {
            return Err(Failure::new(format!("failed to find a request in the audit log within {LINE_TIMEOUT:?}")));
        }
        Ok(read)
    }
}
