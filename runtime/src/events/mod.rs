//! Events: what people see under `kubectl describe`.
//!
//! # Guarantees
//!
//! - [`Recorder::publish`] never blocks, never waits and never fails: what does not fit is dropped and counted.
//! - The same event again within ten minutes makes no new object: the count and the time of the first one are
//!   raised. Its name is made of what it says, so that this holds across restarts too.
//! - One object causes at most 25 requests at once and one in five minutes after that, as client-go limits it. What
//!   is held back is still counted in the next update of the same event.
//! - Memory is bounded: by the length of the queue and by the number of events and objects remembered.
//!
//! # Caveats
//!
//! - Events are hints. They are lost when the API server is away for long, or the process is killed.
//! - After loss of leadership, drop the [`EventTask`] rather than drain it: events are writes too. Those of a recorder that
//!   was given a term are not sent after it in any case.

mod correlate;
mod send;

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::send::Sender;
use crate::clip::clip;
use crate::leadership::{Clock, Leadership};
use nodewright_observability::metrics::Metrics;

/// How many events may wait to be sent.
const QUEUE_LENGTH: usize = 1_000;

/// How long [`EventTask::drain`] goes on sending.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether an event tells of ordinary progress or of something to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventKind {
    /// Progress.
    Normal,
    /// Something that should not be, or that somebody should look at.
    Warning,
}

impl EventKind {
    /// The wire form.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// One thing to tell about one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The object. Its UID lets `kubectl describe` find the event.
    pub regarding: ObjectReference,
    /// Progress or warning.
    pub kind: EventKind,
    /// A constant in upper camel case that programs may match on.
    pub reason: &'static str,
    /// A sentence for people; of what is longer than 1,024 bytes the middle is left out.
    pub message: String,
}

impl Event {
    /// An event of ordinary progress.
    pub fn normal(regarding: ObjectReference, reason: &'static str, message: impl Into<String>) -> Self {
        Self { regarding, kind: EventKind::Normal, reason, message: message.into() }
    }

    /// An event that tells of something to look at.
    pub fn warning(regarding: ObjectReference, reason: &'static str, message: impl Into<String>) -> Self {
        Self { regarding, kind: EventKind::Warning, reason, message: message.into() }
    }
}

/// In whose name events are sent.
#[derive(Debug, PartialEq, Eq)]
struct Reporter {
    /// Stands in the event.
    component: String,
    /// Stands in the request.
    user_agent: HeaderValue,
}

/// An event on its way.
#[derive(Debug)]
struct Queued {
    event: Event,
    reporter: Arc<Reporter>,
    /// Events are writes: none is sent after it.
    term: Leadership,
}

/// Where events are handed in. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    reporter: Arc<Reporter>,
    term: Leadership,
    /// Absent in a recorder that discards.
    queue: Option<mpsc::Sender<Queued>>,
    metrics: Arc<Metrics>,
}

impl Recorder {
    /// A recorder that sends nothing: for tests and dry runs.
    pub fn discarding() -> Self {
        let reporter = Reporter { component: String::new(), user_agent: HeaderValue::from_static("") };
        Self { reporter: Arc::new(reporter), term: Leadership::unlimited(), queue: None, metrics: Arc::default() }
    }

    /// The same recorder in the name of another component.
    #[must_use]
    pub fn named(&self, component: impl Into<String>, user_agent: HeaderValue) -> Self {
        Self { reporter: Arc::new(Reporter { component: component.into(), user_agent }), ..self.clone() }
    }

    /// The same recorder for the writes of a term: what waits when it ends is dropped.
    #[must_use]
    pub fn within(&self, term: Leadership) -> Self {
        Self { term, ..self.clone() }
    }

    /// Hands in an event. Returns at once.
    pub fn publish(&self, mut event: Event) {
        let Some(queue) = &self.queue else { return };
        // The API server takes no more of a message.
        event.message = clip(event.message);
        let queued = Queued { event, reporter: self.reporter.clone(), term: self.term.clone() };
        if queue.try_send(queued).is_err() {
            self.metrics.event_dropped();
        }
    }
}

/// The task that sends events. Dropping it stops it at once.
#[derive(Debug)]
pub struct EventTask {
    task: AbortOnDropHandle<()>,
    stop: CancellationToken,
}

impl EventTask {
    /// Starts a task that sends to the API server behind `client`, and a recorder for it in the name of `component`.
    pub fn start(
        client: kube::Client,
        component: impl Into<String>,
        user_agent: HeaderValue,
        metrics: Arc<Metrics>,
        clock: Arc<dyn Clock>,
    ) -> (Recorder, Self) {
        let (queue, events) = mpsc::channel(QUEUE_LENGTH);
        let stop = CancellationToken::new();
        let reporter = Arc::new(Reporter { component: component.into(), user_agent });
        let sender = Sender::new(client, metrics.clone(), clock);
        let task = AbortOnDropHandle::new(tokio::spawn(run(sender, events, stop.clone())));
        (Recorder { reporter, term: Leadership::unlimited(), queue: Some(queue), metrics }, Self { task, stop })
    }

    /// Takes no more events, sends what waits, and gives up after a second.
    pub async fn drain(self) {
        self.stop.cancel();
        if tokio::time::timeout(DRAIN_TIMEOUT, self.task).await.is_err() {
            tracing::warn!("failed to send all events before the end, the rest is dropped");
        }
    }
}

async fn run(mut sender: Sender, mut events: mpsc::Receiver<Queued>, stop: CancellationToken) {
    loop {
        let queued = tokio::select! {
            biased;
            () = stop.cancelled(), if !events.is_closed() => {
                // From here on, what waits is still received; then the channel ends.
                events.close();
                continue;
            }
            queued = events.recv() => queued,
        };
        match queued {
            Some(queued) => sender.take(queued).await,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests;
