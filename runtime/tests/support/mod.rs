//! A running manager with the small controller, on an API server in process and on paused time.

#![allow(dead_code)] // each test uses its part

pub(crate) mod clusters;
pub(crate) mod copies;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use nodewright_observability::{metrics::Metrics, trace::Spans};
use nodewright_runtime::{
    cache::Stores,
    events::Recorder,
    leadership::{Clock, Election, LeaseConfig, checked_clock, tokio_clock},
    manager::{Ended, Manager, Options},
    object::Cluster,
    request::Connection,
};
use nodewright_testing::api_server::{ApiServer, RequestRecord};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) use self::copies::MAPS;
use self::copies::{Answers, Copies};

/// The cluster of the manager.
pub(crate) const HOME: Cluster = Cluster::new("home");

pub(crate) struct Running {
    pub(crate) server: ApiServer,
    pub(crate) stop: CancellationToken,
    pub(crate) plans: Arc<AtomicUsize>,
    pub(crate) answers: Answers,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stores: Stores,
    /// For requests outside of plans.
    pub(crate) connection: Connection,
    _events: BoxFuture<'static, ()>,
    pub(crate) manager: JoinHandle<Result<(), Ended>>,
}

impl Running {
    pub(crate) fn start(server: ApiServer, elections: Vec<Election>) -> Self {
        Self::start_with_seed(server, elections, 1)
    }

    pub(crate) fn start_with_seed(server: ApiServer, elections: Vec<Election>, seed: u64) -> Self {
        Self::start_traced(server, elections, seed, Spans::disabled())
    }

    pub(crate) fn start_traced(server: ApiServer, elections: Vec<Election>, seed: u64, spans: Spans) -> Self {
        let (clock, metrics) = (clock(), Arc::new(Metrics::new()));
        let agent = "test/1 (events)".parse().unwrap();
        let (recorder, events) = Recorder::start(server.client(), "test", agent, metrics.clone(), clock.clone());
        let mut manager = Manager::new(Options {
            recorder,
            metrics: metrics.clone(),
            requests_at_once: 8,
            effects_at_once: 20_000,
            clock: checked_clock(clock),
            seed,
            spans,
            ..Options::new("test", "1", HOME, server.client())
        });
        let (plans, answers) = (Arc::default(), Answers::default());
        let performer = answers.clone();
        manager.add_with(Copies { plans: Arc::clone(&plans) }, move |ask| performer.perform(ask));
        let (connection, stop) = (manager.connection(HOME, "calls").unwrap(), CancellationToken::new());
        let stores = manager.stores();
        let manager = tokio::spawn(manager.run(elections, stop.clone()));
        Self { server, stop, plans, answers, metrics, stores, connection, _events: events, manager }
    }

    /// A manager whose ConfigMap has its copies, and the annotation with their number.
    pub(crate) async fn with_copies(copies: usize) -> Self {
        let server = ApiServer::new();
        source(&server, "s", copies);
        let running = Self::start(server, vec![]);
        running.until_noted(copies).await;
        running
    }

    pub(crate) fn copies(&self) -> usize {
        self.server.objects(MAPS).iter().filter(|map| map["metadata"].get("ownerReferences").is_some()).count()
    }

    pub(crate) fn writes(&self) -> Vec<RequestRecord> {
        let all = self.server.requests();
        all.into_iter()
            .filter(|request| !matches!(request.verb, "get" | "list" | "watch") && !request.path.contains("/events"))
            .collect()
    }

    /// Lets time pass until the condition holds.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        for _ in 0..6_000 {
            if condition(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{what} did not happen; requests: {:#?}", self.writes());
    }

    /// Lets time pass until the annotation has this number of copies.
    pub(crate) async fn until_noted(&self, copies: usize) {
        let is_noted = |it: &Self| annotated(&it.server, "s", "copies") == Some(copies.to_string());
        self.until(&format!("the note of {copies} copies"), is_noted).await;
    }

    /// The number of calls so far.
    pub(crate) fn asking(&self) -> usize {
        self.answers.begun.load(Ordering::Relaxed)
    }

    /// The number of plans so far.
    pub(crate) fn plans(&self) -> usize {
        self.plans.load(Ordering::Relaxed)
    }

    pub(crate) async fn passes(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    pub(crate) async fn end(self) {
        self.stop.cancel();
        assert_eq!(self.manager.await.unwrap(), Ok(()));
    }
}

pub(crate) fn source(server: &ApiServer, name: &str, copies: usize) -> Value {
    let labels = json!({"copies": copies.to_string()});
    server.seed(MAPS, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}}))
}

pub(crate) fn annotate(server: &ApiServer, name: &str, annotations: &Value) {
    server.change(&format!("{MAPS}/{name}"), |map| map["metadata"]["annotations"] = annotations.clone());
}

pub(crate) fn annotated(server: &ApiServer, name: &str, key: &str) -> Option<String> {
    Some(server.object(&format!("{MAPS}/{name}"))?["metadata"]["annotations"][key].as_str()?.to_owned())
}

pub(crate) fn set_copies(server: &ApiServer, name: &str, copies: usize) {
    server.change(&format!("{MAPS}/{name}"), |map| map["metadata"]["labels"]["copies"] = copies.to_string().into());
}

pub(crate) fn election(server: &ApiServer) -> Election {
    election_for(server, "lease")
}

pub(crate) fn election_for(server: &ApiServer, name: &str) -> Election {
    let config = LeaseConfig::new("default", name);
    Election::new(server.client(), "test/1 (lease)".parse().unwrap(), config).unwrap()
}

pub(crate) fn clock() -> Arc<dyn Clock> {
    tokio_clock("2026-06-01T12:00:00Z".parse().unwrap())
}
