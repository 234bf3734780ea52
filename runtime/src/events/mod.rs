//! Events, as `kubectl describe` shows them.
//!
//! # Guarantees
//! - [`Recorder::publish`] never waits and never fails: it drops and counts events that do not fit.
//! - A repeat within ten minutes raises the count and the time of the first event, also across restarts.
//! - One object causes at most 25 requests at once, and one in five minutes after that, as in client-go. The others still count
//!   in the next update of the same event. Memory is bounded.
//! - [Routine](Event::routine) events of all objects together cause at most 100 requests at once, and one in a second after that:
//!   a thousand new objects do not cost the API server a thousand events.
//!
//! # Caveats
//! - Events are hints: they are lost when the API server is away for long, or when the process is killed.
//! - After the loss of leadership, drop the future of [`Recorder::start`] and do not await it: events are writes too.

mod correlate;
mod send;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::{BoxFuture, FutureExt};
use http::HeaderValue;
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::{sync::mpsc, time::timeout};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use self::send::{REQUEST_TIMEOUT, Sender};
use crate::{
    clip::clip,
    leadership::{Clock, Leadership},
    object::Cluster,
    request::Connection,
};
use nodewright_observability::metrics::Metrics;

const QUEUE_LENGTH: usize = 1_000;

const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// One report about one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The object. Its UID lets `kubectl describe` find the event.
    pub regarding: ObjectReference,
    /// Whether its type is `Warning`: something that needs attention. Otherwise it is `Normal`.
    pub is_warning: bool,
    /// A constant in upper camel case that programs may match on.
    pub reason: &'static str,
    /// A sentence for people. Beyond 1,024 bytes the middle is left out.
    pub message: String,
    /// The cluster that has the object. `None`: the one that all events go to.
    pub cluster: Option<Cluster>,
    /// Whether the log has it, too, at level `info`.
    pub is_logged: bool,
    /// Whether it is left out when many objects have such events at once.
    pub is_routine: bool,
}

impl Event {
    /// An event of type `Normal`.
    pub fn normal(regarding: ObjectReference, reason: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { regarding, is_warning: false, reason, message, cluster: None, is_logged: false, is_routine: false }
    }

    /// An event of type `Warning`.
    pub fn warning(regarding: ObjectReference, reason: &'static str, message: impl Into<String>) -> Self {
        Self { is_warning: true, ..Self::normal(regarding, reason, message) }
    }

    /// The type on the wire.
    pub(crate) fn type_(&self) -> &'static str {
        if self.is_warning { "Warning" } else { "Normal" }
    }

    /// The same event about an object of this cluster, which gets it if a recorder [serves](Recorder::serving) it.
    #[must_use]
    pub fn of(self, cluster: Cluster) -> Self {
        Self { cluster: Some(cluster), ..self }
    }

    /// The same event, left out when many objects have such events at once: for what the object's status reports as well.
    #[must_use]
    pub fn routine(self) -> Self {
        Self { is_routine: true, ..self }
    }

    /// The same event, which the log has as well: for rare ones that operators look for.
    #[must_use]
    pub fn logged(self) -> Self {
        Self { is_logged: true, ..self }
    }
}

#[derive(Clone, Debug)]
struct Source {
    component: Arc<str>,
    user_agent: HeaderValue,
    /// Events are writes: none is sent after its end.
    leadership: Leadership,
}

struct Queued {
    event: Event,
    source: Source,
}

/// Publishes events. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    source: Source,
    /// Absent in a recorder that discards.
    queue: Option<mpsc::Sender<Queued>>,
    /// Those of other clusters.
    queues: BTreeMap<Cluster, mpsc::Sender<Queued>>,
    metrics: Arc<Metrics>,
}

impl Recorder {
    fn new(component: &str, user_agent: HeaderValue, metrics: Arc<Metrics>) -> Self {
        let source = Source { component: component.into(), user_agent, leadership: Leadership::unlimited() };
        Self { source, queue: None, queues: BTreeMap::new(), metrics }
    }

    /// A recorder for `component`, and the task that sends its events to the API server of `client`. The returned future drains
    /// the queue for at most a second. Dropping it stops the task immediately.
    pub fn start(
        client: kube::Client,
        component: &str,
        user_agent: HeaderValue,
        metrics: Arc<Metrics>,
        clock: Arc<dyn Clock>,
    ) -> (Self, BoxFuture<'static, ()>) {
        let (queue, events) = mpsc::channel(QUEUE_LENGTH);
        let recorder = Self::new(component, user_agent.clone(), metrics.clone());
        let mut connection = Connection::new(client, user_agent, Leadership::unlimited(), 1, metrics.clone());
        connection.timeout = REQUEST_TIMEOUT;
        let (sender, stop) = (Sender::new(connection, metrics, clock), CancellationToken::new());
        let task = AbortOnDropHandle::new(tokio::spawn(run(sender, events, stop.clone())));
        let drain = async move {
            stop.cancel();
            if timeout(DRAIN_TIMEOUT, task).await.is_err() {
                tracing::warn!("failed to send all events before the end, the rest is dropped");
            }
        };
        (Self { queue: Some(queue), ..recorder }, drain.boxed())
    }

    /// A recorder that sends nothing: for tests and dry runs.
    pub fn discarding() -> Self {
        Self::new("", HeaderValue::from_static(""), Arc::default())
    }

    /// The same recorder for another component.
    #[must_use]
    pub fn named(&self, component: &str, user_agent: HeaderValue) -> Self {
        let source = Source { component: component.into(), user_agent, ..self.source.clone() };
        Self { source, ..self.clone() }
    }

    /// The same recorder for the writes of a leadership: events that are queued when it ends are dropped.
    #[must_use]
    pub fn within(&self, leadership: Leadership) -> Self {
        Self { source: Source { leadership, ..self.source.clone() }, ..self.clone() }
    }

    /// The same recorder, whose events about objects of another cluster go where `other` sends its events.
    #[must_use]
    pub fn serving(mut self, cluster: Cluster, other: &Self) -> Self {
        self.queues.extend(other.queue.clone().map(|queue| (cluster, queue)));
        self
    }

    /// Queues an event. Returns at once.
    pub fn publish(&self, mut event: Event) {
        if event.is_logged {
            tracing::info!(reason = event.reason, "{}", clip(event.message.as_str()));
        }
        let other = event.cluster.and_then(|cluster| self.queues.get(&cluster));
        let Some(queue) = other.or(self.queue.as_ref()) else { return };
        // The API server accepts no longer message.
        event.message = clip(event.message);
        if queue.try_send(Queued { event, source: self.source.clone() }).is_err() {
            self.metrics.event_dropped();
        }
    }
}

async fn run(mut sender: Sender, mut events: mpsc::Receiver<Queued>, stop: CancellationToken) {
    loop {
        tokio::select! {
            biased;
            // The task still receives the queued events; then the channel ends.
            () = stop.cancelled(), if !events.is_closed() => events.close(),
            queued = events.recv() => match queued {
                Some(queued) => sender.take(queued).await,
                None => return,
            },
        }
    }
}

#[cfg(test)]
mod tests;
