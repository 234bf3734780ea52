//! Sends recorded requests to a control plane, by a client that does nothing else.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use http::Method;
use kube::Client;
use nodewright_e2e_lab::{
    control_plane::{AuditLevel, ControlPlane, ControlPlaneError, ControlPlaneOptions},
    devcluster::{Controllers, ManagerProcess},
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{sync::Semaphore, task::JoinSet};

use super::{
    recording::{Chains, Recording},
    request::{Errors, Request, Sender},
};
use crate::error::BenchError;

/// The `User-Agent`.
const AGENT: &str = "floor";
/// A code for requests that got no answer.
const NO_ANSWER: u16 = 0;

/// A control plane without manager, and a client that replays.
pub(crate) struct Replay {
    plane: ControlPlane,
    sender: Arc<Sending>,
    watches: JoinSet<()>,
    at_once: usize,
    /// From the answer to the first request about a machine, its creation, until its kubelet registers the Node.
    boot: Duration,
}

struct Sending {
    client: Client,
    /// The manager's requests that wait for their answers.
    manager: Semaphore,
    errors: Mutex<Errors>,
}

impl Replay {
    /// Starts a control plane like that of the recording, with its CRDs, and replays what was written before the fleet was scaled.
    pub(crate) async fn start(recording: &Recording, at_once: usize, boot: Duration) -> Result<Self, BenchError> {
        let options = ControlPlaneOptions {
            controller_manager: false,
            scheduler: false,
            audit_level: AuditLevel::Request,
            ..ControlPlaneOptions::default()
        };
        let plane = ControlPlane::start(options).await?;
        for folder in ManagerProcess::crds().await? {
            plane.apply_file(folder).await?;
        }
        let client = plane.client_named(AGENT).await?;
        let sender = Arc::new(Sending { client, manager: Semaphore::new(at_once), errors: Mutex::default() });
        for request in &recording.before {
            sender.send(request).await;
        }
        let mut replay = Self { plane, sender, watches: JoinSet::new(), at_once, boot };
        replay.watch(&recording.watches).await?;
        Ok(replay)
    }

    /// Opens the watches, and reads on until the end.
    async fn watch(&mut self, watches: &BTreeSet<String>) -> Result<(), BenchError> {
        for uri in watches {
            let request = http::Request::get(uri).body(vec![]).map_err(kube::Error::HttpError);
            let opened = match request {
                Ok(request) => self.sender.client.request_stream(request).await,
                Err(error) => Err(error),
            };
            let events = opened.map_err(ControlPlaneError::request(format!("watch {uri}")))?;
            self.watches.spawn(async move {
                let mut events = Box::pin(events);
                // It ends with the control plane.
                drop(futures::io::copy(&mut events, &mut futures::io::sink()).await);
            });
        }
        Ok(())
    }

    pub(crate) fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// The answers so far that were errors.
    pub(crate) fn errors(&self) -> Errors {
        self.sender.errors.lock().clone()
    }

    /// Sends the requests of each chain one after the other, those of different chains side by side. Returns how long that took.
    pub(crate) async fn run(&self, chains: &Chains) -> Duration {
        let (since, mut running) = (Instant::now(), JoinSet::new());
        for chain in chains.values() {
            let (sender, chain, boot) = (Arc::clone(&self.sender), chain.clone(), self.boot);
            running.spawn(async move {
                let mut booted = None;
                for request in &chain {
                    if request.needs_vm()
                        && let Some(booted) = booted
                    {
                        tokio::time::sleep_until(booted).await;
                    }
                    sender.send_in_turn(request).await;
                    booted = booted.or_else(|| Some(tokio::time::Instant::now() + boot));
                }
            });
        }
        while running.join_next().await.is_some() {}
        since.elapsed()
    }

    /// Sends independent requests, as many at once as the manager does.
    pub(crate) async fn send_all(&self, requests: &[&Request]) {
        stream::iter(requests).for_each_concurrent(self.at_once, |request| self.sender.send(request)).await;
    }
}

impl Sending {
    /// Sends a request. The limit is for those of the manager.
    async fn send_in_turn(&self, request: &Request) {
        // The semaphore is never closed.
        let _turn = if request.sender == Sender::Manager { self.manager.acquire().await.ok() } else { None };
        self.send(request).await;
    }

    async fn send(&self, request: &Request) {
        match self.try_send(request).await {
            Ok(()) => {}
            Err(kube::Error::Api(status)) => self.errors.lock().add(&request.kind, status.code, &status.message),
            Err(error) => self.errors.lock().add(&request.kind, NO_ANSWER, &error.to_string()),
        }
    }

    async fn try_send(&self, request: &Request) -> kube::Result<()> {
        let mut body = request.body.clone();
        if request.method == Method::PUT {
            body["metadata"]["resourceVersion"] = self.version(&request.uri).await?;
        }
        let body = if body.is_null() { vec![] } else { body.to_string().into_bytes() };
        let sent = http::Request::builder()
            .method(request.method.clone())
            .uri(&request.uri)
            .header(http::header::CONTENT_TYPE, request.content)
            .header(http::header::ACCEPT, "application/json")
            .body(body)
            .map_err(kube::Error::HttpError)?;
        self.client.request_text(sent).await.map(drop)
    }

    /// The version of an object, without which an update is refused.
    async fn version(&self, uri: &str) -> kube::Result<Value> {
        let path = uri.split('?').next().unwrap_or(uri);
        let request = http::Request::get(path).body(vec![]).map_err(kube::Error::HttpError)?;
        let live: Value = self.client.request(request).await?;
        Ok(live["metadata"]["resourceVersion"].clone())
    }
}
