//! The requests and rules of client-go's election, without loops and without [`super::Leadership`].

use std::{sync::Arc, time::Duration};

use http::{HeaderValue, Method, Request, header};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use tokio::sync::Mutex;

use super::{Clock, LeaseConfig};

/// The state of the lease after an attempt.
pub(super) enum Attempt {
    /// This process holds it. It has changed hands this many times.
    Held { transitions: i32 },
    /// Another process holds it, and it has not been unchanged for long enough.
    Taken { holder: String },
}

/// Why an attempt had no result.
#[derive(Debug, thiserror::Error)]
#[error("failed to {verb} lease {namespace}/{name}: {why}")]
pub(super) struct LeaseError {
    verb: &'static str,
    namespace: String,
    name: String,
    why: String,
    /// The API server's status; 0 without an answer.
    code: u16,
}

impl LeaseError {
    pub(super) fn new(config: &LeaseConfig, verb: &'static str, error: &kube::Error) -> Self {
        let (code, message) = match error {
            kube::Error::Api(status) => (status.code, status.message.as_str()),
            _ => (0, ""),
        };
        let namespace = config.namespace.clone();
        let why = match (code, verb) {
            (401, _) => format!("credentials refused: check the kubeconfig or service account: {message}"),
            (403, _) => format!(
                "not permitted: grant get, create and update on leases.coordination.k8s.io in namespace {namespace} to this \
                 process: {message}"
            ),
            (404, "create") => format!("create namespace {namespace} first, or choose another: {message}"),
            (409, _) => "another contender was faster".to_owned(),
            _ => error.to_string(),
        };
        Self { verb, namespace, name: config.name.clone(), why, code }
    }

    fn timeout(config: &LeaseConfig, after: Duration) -> Self {
        let (namespace, name) = (config.namespace.clone(), config.name.clone());
        Self { verb: "renew or acquire", namespace, name, why: format!("no answer within {after:?}"), code: 0 }
    }

    pub(super) fn is_conflict(&self) -> bool {
        self.code == 409
    }

    fn is_not_found(&self) -> bool {
        self.code == 404
    }

    /// Whether an administrator must act before an attempt can succeed.
    pub(super) fn is_fatal(&self) -> bool {
        matches!((self.code, self.verb), (401 | 403, _) | (404, "create"))
    }
}

/// One contender's side of the protocol.
pub(super) struct Protocol {
    pub(super) client: kube::Client,
    pub(super) user_agent: HeaderValue,
    pub(super) config: LeaseConfig,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) seen: Mutex<Option<Seen>>,
}

/// The lease as last read, and since when it is unchanged.
pub(super) struct Seen {
    lease: Lease,
    since: Duration,
}

impl Protocol {
    /// Tries once to acquire or renew. The future may be dropped: the next attempt finds out by a version conflict.
    pub(super) async fn attempt(&self, timeout: Duration) -> Result<Attempt, LeaseError> {
        let mut seen = self.seen.lock().await;
        let attempt = tokio::time::timeout(timeout, self.acquire_or_renew(&mut seen)).await;
        attempt.unwrap_or_else(|_| Err(LeaseError::timeout(&self.config, timeout)))
    }

    /// Reads the lease and records since when it is unchanged, without acquiring it.
    pub(super) async fn read(&self, timeout: Duration) {
        let mut seen = self.seen.lock().await;
        // Ignore a failure here: the attempt to acquire reports it.
        if let Ok(Ok(Some(lease))) = tokio::time::timeout(timeout, self.get()).await {
            self.observe(&mut seen, lease);
        }
    }

    async fn acquire_or_renew(&self, seen: &mut Option<Seen>) -> Result<Attempt, LeaseError> {
        // The common case first: a renewal is one request.
        if let Some(ours) = seen.as_ref().filter(|seen| self.is_ours(&seen.lease)) {
            match self.take(ours.lease.clone(), seen).await {
                // Another client has changed or deleted it: read the current state.
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                result => return result,
            }
        }
        let Some(lease) = self.get().await? else {
            return self.create(seen).await;
        };
        self.observe(seen, lease.clone());
        if !self.is_ours(&lease) && !self.is_free(seen.as_ref()) {
            return Ok(Attempt::Taken { holder: holder(&lease).to_owned() });
        }
        self.take(lease, seen).await
    }

    /// Every change restarts the time.
    fn observe(&self, seen: &mut Option<Seen>, lease: Lease) {
        let since = match seen {
            Some(before) if before.lease.spec == lease.spec => before.since,
            _ => self.clock.elapsed(),
        };
        *seen = Some(Seen { lease, since });
    }

    fn is_ours(&self, lease: &Lease) -> bool {
        holder(lease) == self.config.identity
    }

    /// Whether the lease has no holder, or its holder has not renewed it for its duration, as observed by this process.
    fn is_free(&self, seen: Option<&Seen>) -> bool {
        let Some(Seen { lease, since }) = seen else { return false };
        let duration = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or_default();
        let duration = Duration::from_secs(u64::try_from(duration).unwrap_or_default());
        holder(lease).is_empty() || self.clock.elapsed() >= since.saturating_add(duration)
    }

    async fn get(&self) -> Result<Option<Lease>, LeaseError> {
        match self.send(Method::GET, None).await {
            Err(error) if error.is_not_found() => Ok(None),
            result => result.map(Some),
        }
    }

    async fn create(&self, seen: &mut Option<Seen>) -> Result<Attempt, LeaseError> {
        let metadata = ObjectMeta {
            name: Some(self.config.name.clone()),
            namespace: Some(self.config.namespace.clone()),
            ..ObjectMeta::default()
        };
        let lease = Lease { metadata, spec: Some(self.spec_of_holder(None)) };
        let lease = self.send(Method::POST, Some(&lease)).await?;
        self.observe(seen, lease);
        Ok(Attempt::Held { transitions: 0 })
    }

    async fn take(&self, mut lease: Lease, seen: &mut Option<Seen>) -> Result<Attempt, LeaseError> {
        lease.spec = Some(self.spec_of_holder(lease.spec.as_ref()));
        let lease = self.send(Method::PUT, Some(&lease)).await?;
        let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or_default();
        self.observe(seen, lease);
        Ok(Attempt::Held { transitions })
    }

    fn spec_of_holder(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(self.clock.wall());
        let renewed = before.filter(|spec| spec.holder_identity.as_ref() == Some(&self.config.identity));
        let transitions = before.map(|spec| spec.lease_transitions.unwrap_or_default());
        LeaseSpec {
            holder_identity: Some(self.config.identity.clone()),
            lease_duration_seconds: i32::try_from(self.config.lease_duration.as_secs()).ok(),
            acquire_time: renewed.and_then(|spec| spec.acquire_time.clone()).or_else(|| Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: transitions.map(|count| if renewed.is_some() { count } else { count + 1 }).or(Some(0)),
            ..before.cloned().unwrap_or_default()
        }
    }

    /// Empties the lease if this process still holds it.
    pub(super) async fn give_back(&self) -> Result<(), LeaseError> {
        let mut seen = self.seen.lock().await;
        if let Some(ours) = seen.take().filter(|seen| self.is_ours(&seen.lease)) {
            match self.empty(ours.lease).await {
                // An aborted renewal has taken effect.
                Err(error) if error.is_conflict() => {}
                result => return result,
            }
        }
        match self.get().await? {
            Some(lease) if self.is_ours(&lease) => self.empty(lease).await,
            _ => Ok(()),
        }
    }

    /// As client-go releases: no holder, and a duration that expires at once.
    async fn empty(&self, mut lease: Lease) -> Result<(), LeaseError> {
        let now = MicroTime(self.clock.wall());
        let before = lease.spec.take().unwrap_or_default();
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            ..before
        });
        self.send(Method::PUT, Some(&lease)).await.map(drop)
    }

    async fn send(&self, method: Method, body: Option<&Lease>) -> Result<Lease, LeaseError> {
        let verb = match method {
            Method::GET => "get",
            Method::POST => "create",
            _ => "update",
        };
        let failed = |error| LeaseError::new(&self.config, verb, &error);
        let request = self.request(method, body).map_err(failed)?;
        self.client.request(request).await.map_err(failed)
    }

    fn request(&self, method: Method, body: Option<&Lease>) -> Result<Request<Vec<u8>>, kube::Error> {
        let LeaseConfig { namespace, name, .. } = &self.config;
        let mut path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        if method != Method::POST {
            path.push('/');
            path.push_str(name);
        }
        let body = body.map(serde_json::to_vec).transpose().map_err(kube::Error::SerdeError)?;
        Request::builder()
            .method(method)
            .uri(path)
            .header(header::USER_AGENT, &self.user_agent)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(body.unwrap_or_default())
            .map_err(kube::Error::HttpError)
    }
}

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}
