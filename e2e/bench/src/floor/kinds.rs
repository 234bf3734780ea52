//! The processor time of the API server for each kind of request.
//!
//! A part of a run is replayed in layers. Each layer has all requests of one kind whose predecessors about the same object have been
//! sent. So each request finds the state that it found in the run, and the API server has one kind of work at a time.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use nodewright_e2e_lab::{control_plane::Component, devcluster::table::Table, process::ProcessError};

use super::{
    recording::{Chains, Part},
    replay::Replay,
    request::Request,
};
use crate::{error::BenchError, usage::processor_time};

/// A smaller layer says nothing: the kernel counts processor time in hundredths of a second.
const MEASURED_LAYER: usize = 50;
/// How long the API server has, after a layer, to tell watches of it.
const AFTER_LAYER: Duration = Duration::from_millis(300);
/// How long it is measured at rest.
const REST: Duration = Duration::from_secs(3);

/// Processor time of API server and etcd.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Used {
    pub(crate) api_server: Duration,
    pub(crate) etcd: Duration,
}

impl Used {
    /// Since they were started.
    pub(crate) fn so_far(pids: &BTreeMap<Component, u32>) -> Result<Self, BenchError> {
        let of = |component: Component| {
            let pid = pids.get(&component).copied().unwrap_or_default();
            processor_time(pid).map_err(ProcessError::file("read", format!("/proc/{pid}")))
        };
        Ok(Self { api_server: of(Component::ApiServer)?, etcd: of(Component::Etcd)? })
    }

    pub(crate) fn since(self, before: Self) -> Self {
        let api_server = self.api_server.saturating_sub(before.api_server);
        Self { api_server, etcd: self.etcd.saturating_sub(before.etcd) }
    }

    fn scaled(self, factor: f64) -> Self {
        Self { api_server: self.api_server.mul_f64(factor), etcd: self.etcd.mul_f64(factor) }
    }
}

/// What requests of each kind cost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Costs {
    /// Per second at rest, with the watches open.
    rest: Used,
    /// How many requests were measured, and what they took.
    kinds: BTreeMap<String, (usize, Used)>,
}

impl Costs {
    /// Measures the control plane at rest.
    pub(crate) async fn at_rest(replay: &Replay) -> Result<Self, BenchError> {
        let before = Used::so_far(&replay.plane().pids())?;
        tokio::time::sleep(REST).await;
        let used = Used::so_far(&replay.plane().pids())?.since(before);
        Ok(Self { rest: used.scaled(1.0 / REST.as_secs_f64()), kinds: BTreeMap::new() })
    }

    /// Replays chains in layers, and measures the layers that are large enough.
    pub(crate) async fn replay(&mut self, replay: &Replay, chains: &Chains) -> Result<(), BenchError> {
        for layer in layers(chains) {
            let used = self.measure(replay, &layer).await?;
            if let (Some(first), true) = (layer.first(), layer.len() >= MEASURED_LAYER) {
                self.add(&first.kind, layer.len(), used);
            }
        }
        Ok(())
    }

    /// Sends requests, and returns what they took beyond what the control plane takes at rest.
    pub(crate) async fn measure(&self, replay: &Replay, requests: &[&Request]) -> Result<Used, BenchError> {
        let (since, before) = (Instant::now(), Used::so_far(&replay.plane().pids())?);
        replay.send_all(requests).await;
        tokio::time::sleep(AFTER_LAYER).await;
        let used = Used::so_far(&replay.plane().pids())?.since(before);
        Ok(used.since(self.rest.scaled(since.elapsed().as_secs_f64())))
    }

    pub(crate) fn add(&mut self, kind: &str, requests: usize, used: Used) {
        let (count, sum) = self.kinds.entry(kind.to_owned()).or_default();
        *count += requests;
        sum.api_server += used.api_server;
        sum.etcd += used.etcd;
    }

    /// Milliseconds that one request takes of API server and etcd.
    pub(crate) fn each(&self, kind: &str) -> Option<[f64; 2]> {
        let (count, used) = self.kinds.get(kind)?;
        let count = u32::try_from(*count).ok().filter(|count| *count > 0)?;
        Some([used.api_server, used.etcd].map(|time| time.as_secs_f64() * 1_000.0 / f64::from(count)))
    }

    /// The kinds of two parts of a run, the most expensive first.
    pub(crate) fn table(&self, up: &Part, down: &Part) -> String {
        let mut counts: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
        for (direction, part) in [up, down].into_iter().enumerate() {
            for (kind, count) in part.kinds() {
                counts.entry(kind).or_default()[direction] += count;
            }
        }
        let mut rows: Vec<_> =
            counts.into_iter().map(|(kind, counts)| (kind, counts, self.sums(kind, counts))).collect();
        rows.sort_by(|(_, _, [left, _]), (_, _, [right, _])| right.total_cmp(left));
        let mut table = Table::new(["REQUEST", "UP", "DOWN", "CPU MS EACH", "CPU S", "ETCD MS EACH", "ETCD S"]);
        let (mut sums, mut unmeasured) = ([0.0, 0.0], 0);
        for (kind, [up, down], [api_server, etcd]) in rows {
            let Some([each, etcd_each]) = self.each(kind) else {
                unmeasured += up + down;
                continue;
            };
            sums = [sums[0] + api_server, sums[1] + etcd];
            let numbers = [each, api_server, etcd_each, etcd].map(|number| format!("{number:.2}"));
            let [each, api_server, etcd_each, etcd] = &numbers;
            table.add([kind, &up.to_string(), &down.to_string(), each, api_server, etcd_each, etcd]);
        }
        table.add(["all of these", "", "", "", &format!("{:.2}", sums[0]), "", &format!("{:.2}", sums[1])]);
        let rest = [self.rest.api_server, self.rest.etcd].map(|time| time.as_secs_f64() * 1_000.0);
        format!(
            "{table}{unmeasured} requests are of kinds that never come {MEASURED_LAYER} at a time, and are not measured.\n\
             At rest, with the watches open, the API server takes {:.0} ms per second and etcd {:.0} ms; that is subtracted.\n",
            rest[0], rest[1]
        )
    }

    /// Seconds that requests of a kind took in the run, of API server and etcd.
    #[allow(clippy::cast_precision_loss, reason = "counts of requests are far below 2^52")]
    fn sums(&self, kind: &str, counts: [usize; 2]) -> [f64; 2] {
        let requests = (counts[0] + counts[1]) as f64;
        self.each(kind).unwrap_or_default().map(|each| each * requests / 1_000.0)
    }
}

/// The layers: the largest that is possible comes first.
fn layers(chains: &Chains) -> Vec<Vec<&Request>> {
    let mut rest: Vec<VecDeque<&Request>> = chains.values().map(|chain| chain.iter().collect()).collect();
    let mut layers = vec![];
    loop {
        let mut heads: BTreeMap<&str, usize> = BTreeMap::new();
        for head in rest.iter().filter_map(VecDeque::front) {
            *heads.entry(&head.kind).or_default() += 1;
        }
        let Some(kind) = heads.into_iter().max_by_key(|(_, count)| *count).map(|(kind, _)| kind) else { return layers };
        let is_next = |chain: &VecDeque<&Request>| chain.front().is_some_and(|head| head.kind == kind);
        layers.push(rest.iter_mut().filter(|chain| is_next(chain)).filter_map(VecDeque::pop_front).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::entry, *};

    fn chain(kinds: &[&str]) -> Vec<Request> {
        let template = Request::of(&entry("nodewright/1", "patch", "machines", "a"));
        let request = |kind: &&str| Request { kind: (*kind).to_owned(), ..template.clone().unwrap() };
        kinds.iter().map(request).collect()
    }

    fn chains(all: &[&[&str]]) -> Chains {
        all.iter().enumerate().map(|(number, kinds)| (number.to_string(), chain(kinds))).collect()
    }

    #[test]
    fn a_layer_has_one_kind_and_keeps_the_order_of_each_object() {
        let chains = chains(&[&["create", "label", "status"], &["create", "status"], &["label", "create", "status"]]);
        let layers: Vec<_> = layers(&chains).iter().map(|layer| (layer[0].kind.clone(), layer.len())).collect();
        let expected = [("create", 2), ("label", 2), ("status", 2), ("create", 1), ("status", 1)];
        assert_eq!(layers, expected.map(|(kind, count)| (kind.to_owned(), count)));
    }

    #[test]
    fn costs_are_those_of_the_measured_requests_times_all_of_them() {
        let used = |millis| Used { api_server: Duration::from_millis(millis), etcd: Duration::from_millis(millis / 4) };
        let mut costs = Costs::default();
        costs.add("create", 50, used(100));
        costs.add("create", 50, used(300));
        assert_eq!(costs.each("create"), Some([4.0, 1.0]));
        assert_eq!(costs.each("status"), None);
        let part = |all: &[&[&str]]| Part { chains: chains(all), ..Part::default() };
        let text = costs.table(&part(&[&["create", "status"], &["create"]]), &part(&[&["create"]]));
        let row = |words: &[&str]| text.lines().any(|line| line.split_whitespace().eq(words.iter().copied()));
        assert!(row(&["create", "2", "1", "4.00", "0.01", "1.00", "0.00"]), "{text}");
        assert!(text.contains("\n1 requests are of kinds"), "{text}");
    }

    #[test]
    fn what_is_used_at_rest_never_makes_less_than_nothing() {
        let [some, more] =
            [1, 2].map(|seconds| Used { api_server: Duration::from_secs(seconds), etcd: Duration::ZERO });
        assert_eq!((some.since(more), more.since(some)), (Used::default(), some));
    }
}
