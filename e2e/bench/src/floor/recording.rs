//! What a run's audit log says: the requests of its two parts, by the object that they are about.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use nodewright_e2e_lab::control_plane::audit::Entry;

use super::request::{Request, watched};
use crate::error::BenchError;

/// The namespace of the Leases of kubelets.
const NODE_LEASES: &str = "kube-node-lease";
/// How a list names the Node whose Pods it wants.
const OF_NODE: &str = "spec.nodeName";

/// Requests by object: those about one object are sent one after the other, a machine and its Node being one object.
pub(crate) type Chains = BTreeMap<String, Vec<Request>>;

/// The part of a run in one direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part {
    pub(crate) chains: Chains,
    /// From the arrival of the order to scale until the answer to the last write of the deployment's status.
    pub(crate) wall: Duration,
    /// How many requests of the manager were refused. They are not replayed.
    pub(crate) refused: usize,
}

impl Part {
    /// How many requests there are of each kind.
    pub(crate) fn kinds(&self) -> BTreeMap<&str, usize> {
        let mut kinds = BTreeMap::new();
        for request in self.chains.values().flatten() {
            *kinds.entry(request.kind.as_str()).or_default() += 1;
        }
        kinds
    }

    pub(crate) fn requests(&self) -> usize {
        self.chains.values().map(Vec::len).sum()
    }
}

/// A run, as it is replayed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recording {
    /// The writes before the fleet is scaled, in their order.
    pub(crate) before: Vec<Request>,
    pub(crate) up: Part,
    pub(crate) down: Part,
    /// The addresses of all watches.
    pub(crate) watches: BTreeSet<String>,
}

impl Recording {
    /// Of a log whose last two orders to scale are those of the two parts.
    pub(crate) fn of(mut entries: Vec<Entry>) -> Result<Self, BenchError> {
        entries.sort_by_key(|entry| entry.received);
        let orders: Vec<_> = (0..entries.len()).filter(|at| is_order(&entries[*at])).collect();
        let [.., up, down] = orders[..] else {
            let problem = format!("the audit log has {} orders to scale; it should have two or more", orders.len());
            return Err(BenchError::Failed(problem));
        };
        let machines = machines_of_nodes(&entries);
        let writes = entries[..up].iter().filter(|entry| entry.is_write());
        Ok(Self {
            before: writes.filter_map(Request::of).collect(),
            up: part(&entries[up..down], &machines),
            down: part(&entries[down..], &machines),
            watches: entries.iter().filter_map(watched).collect(),
        })
    }
}

fn is_order(entry: &Entry) -> bool {
    entry.is_write() && (entry.resource.as_str(), entry.subresource.as_str()) == ("machinedeployments", "scale")
}

fn part(entries: &[Entry], machines: &BTreeMap<String, String>) -> Part {
    let mut part = Part { wall: wall(entries), ..Part::default() };
    for entry in entries {
        if let Some(request) = Request::of(entry) {
            part.chains.entry(chain(entry, machines)).or_default().push(request);
        } else if entry.code >= 400 && entry.is_write() && crate::measure::is_counted_write(entry) {
            part.refused += 1;
        }
    }
    part
}

fn wall(entries: &[Entry]) -> Duration {
    let is_status = |entry: &&Entry| {
        crate::measure::is_counted_write(entry)
            && (entry.resource.as_str(), entry.subresource.as_str()) == ("machinedeployments", "status")
    };
    let last = entries.iter().filter(is_status).map(|entry| entry.answered).max();
    let times = entries.first().map(|entry| entry.received).zip(last);
    times.and_then(|(first, last)| Duration::try_from(last.duration_since(first)).ok()).unwrap_or_default()
}

/// The machines by the names of their Nodes, as the manager notes them in a label of the machine.
fn machines_of_nodes(entries: &[Entry]) -> BTreeMap<String, String> {
    let writes = entries.iter().filter(|entry| entry.resource == "machines" && !entry.name.is_empty());
    let noted = writes.filter_map(|entry| Some((entry.body["metadata"]["labels"]["node"].as_str()?, &entry.name)));
    noted.map(|(node, machine)| (node.to_owned(), machine.clone())).collect()
}

fn chain(entry: &Entry, machines: &BTreeMap<String, String>) -> String {
    let name = match entry.body["metadata"]["name"].as_str() {
        Some(name) if entry.name.is_empty() => name,
        _ => &entry.name,
    };
    let node = match (entry.resource.as_str(), entry.namespace.as_str()) {
        ("nodes", _) | ("leases", NODE_LEASES) => Some(name),
        ("pods", _) => node_of_list(&entry.uri),
        ("machines", _) if !name.is_empty() => return format!("machine {name}"),
        _ => None,
    };
    match node.filter(|node| !node.is_empty()) {
        Some(node) => format!("machine {}", machines.get(node).map_or(node, String::as_str)),
        None if name.is_empty() => entry.uri.clone(),
        None => format!("{} {}/{name}", entry.resource, entry.namespace),
    }
}

/// The Node whose Pods are listed.
fn node_of_list(uri: &str) -> Option<&str> {
    let rest = uri.split_once(OF_NODE)?.1;
    let value = ["%3D", "%3d", "="].iter().find_map(|sign| rest.strip_prefix(sign))?;
    value.split(['&', '%', ',']).next()
}

#[cfg(test)]
mod tests {
    use super::{super::testing::entry, *};
    use serde_json::json;

    const MANAGER: &str = "nodewright/1 (machine)";

    fn at(second: i64, mut entry: Entry) -> Entry {
        (entry.received, entry.answered) =
            (jiff::Timestamp::from_second(second).unwrap(), jiff::Timestamp::from_second(second + 1).unwrap());
        entry
    }

    fn order(second: i64) -> Entry {
        at(second, Entry { subresource: "scale".to_owned(), ..entry("kubectl/v1", "patch", "machinedeployments", "d") })
    }

    fn status(second: i64) -> Entry {
        at(second, Entry { subresource: "status".to_owned(), ..entry(MANAGER, "patch", "machinedeployments", "d") })
    }

    #[test]
    fn a_run_has_a_beginning_and_two_parts() {
        let log = vec![
            at(12, entry(MANAGER, "delete", "machines", "a")),
            order(0),
            order(2),
            at(1, entry(MANAGER, "patch", "machineclasses", "c")),
            at(1, entry(MANAGER, "get", "machineclasses", "c")),
            at(3, entry(MANAGER, "patch", "machines", "a")),
            status(5),
            at(8, Entry { code: 409, ..entry(MANAGER, "patch", "machines", "a") }),
            order(10),
            status(13),
            at(14, entry(MANAGER, "watch", "machines", "")),
        ];
        let recording = Recording::of(log).unwrap();
        assert_eq!(recording.before.len(), 2, "the first order, and a write");
        assert_eq!((recording.up.requests(), recording.up.refused), (3, 1));
        assert_eq!((recording.down.requests(), recording.down.refused), (3, 0));
        assert_eq!((recording.up.wall, recording.down.wall), (Duration::from_secs(4), Duration::from_secs(4)));
        assert_eq!(recording.down.kinds().get("delete machines"), Some(&1));
        assert_eq!(recording.watches.len(), 1);
    }

    #[test]
    fn a_log_with_one_order_is_of_no_use() {
        assert!(Recording::of(vec![order(0), status(1)]).is_err());
    }

    #[test]
    fn a_machine_and_its_node_are_one_object() {
        let labelled = json!({"metadata": {"labels": {"node": "n"}}});
        let list = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn&limit=500";
        let log = [
            at(0, Entry { body: labelled, ..entry(MANAGER, "patch", "machines", "m") }),
            at(
                1,
                Entry {
                    body: json!({"metadata": {"name": "n"}}),
                    ..entry("simulated-kubelet/1", "create", "nodes", "")
                },
            ),
            at(2, Entry { namespace: NODE_LEASES.to_owned(), ..entry("simulated-kubelet/1", "create", "leases", "n") }),
            at(3, Entry { uri: list.to_owned(), ..entry(MANAGER, "list", "pods", "") }),
            at(4, entry(MANAGER, "delete", "nodes", "n")),
            at(5, Entry { namespace: "default".to_owned(), ..entry(MANAGER, "update", "leases", "n") }),
            at(6, entry(MANAGER, "list", "pods", "")),
            at(7, entry(MANAGER, "patch", "machines", "other")),
            at(8, entry(MANAGER, "patch", "machinesets", "m")),
        ];
        let machines = machines_of_nodes(&log);
        let chains: Vec<_> = log.iter().map(|entry| chain(entry, &machines)).collect();
        assert!(chains[..5].iter().all(|chain| chain == "machine m"), "{chains:?}");
        assert_eq!(chains[5..], ["leases default/n", "/pods/", "machine other", "machinesets /m"]);
    }

    #[test]
    fn requests_about_one_object_keep_their_order() {
        let log = [at(1, entry(MANAGER, "patch", "machines", "a")), at(2, entry(MANAGER, "delete", "machines", "a"))];
        let chains = part(&log, &BTreeMap::new()).chains;
        let kinds: Vec<_> = chains["machine a"].iter().map(|request| request.kind.as_str()).collect();
        assert_eq!(kinds, ["merge patch machines", "delete machines"]);
    }
}
