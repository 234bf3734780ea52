//! What the driver has said of the `providerSpec` documents: it is asked once for each, and answers from memory.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use nodewright_api::RawJson;
use nodewright_driver_protocol::{self as protocol, v1};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};
use tonic::Request;

use super::session::Link;

/// How long the driver may take. An API server waits ten seconds for a review by default.
const ANSWER: Duration = Duration::from_secs(3);
/// The pause after an answer that was lost.
const AGAIN: Duration = Duration::from_millis(200);
/// The maximum number of documents that are remembered. A namespace has a few classes for each pool.
const DOCUMENTS: usize = 4_096;

type Faults = Vec<(String, String)>;

pub(crate) struct Validations {
    link: Link,
    hasher: RandomState,
    memory: Mutex<Memory>,
}

/// The answers of one session, by the hash of the document.
#[derive(Default)]
struct Memory {
    session: u64,
    known: HashMap<u64, Faults>,
    asking: HashSet<u64>,
}

impl Memory {
    /// Forgets the answers of an earlier session: another version of the driver may judge in another way.
    fn follow(&mut self, session: u64) {
        if session > self.session {
            *self = Self { session, ..Self::default() };
        }
    }
}

impl Validations {
    pub(crate) fn new(link: Link) -> Self {
        Self { link, hasher: RandomState::new(), memory: Mutex::default() }
    }

    /// What the driver has said of a document. If nothing, it is asked now, and this will know soon.
    pub(crate) fn known(self: &Arc<Self>, spec: &RawJson) -> Option<Faults> {
        let key = self.key(spec);
        let mut memory = self.memory.lock();
        if let Some(session) = self.link.open() {
            memory.follow(session.number);
        }
        if let Some(faults) = memory.known.get(&key) {
            return Some(faults.clone());
        }
        if memory.asking.insert(key) {
            let (this, spec) = (self.clone(), spec.clone());
            tokio::spawn(async move { this.ask(spec).await });
        }
        None
    }

    /// Asks the driver. Without an answer, nothing is remembered.
    pub(crate) async fn ask(&self, spec: RawJson) {
        let answer = timeout(ANSWER, self.call(&spec)).await.ok().flatten();
        let key = self.key(&spec);
        let mut memory = self.memory.lock();
        memory.asking.remove(&key);
        let Some((session, faults)) = answer else { return };
        memory.follow(session);
        if session == memory.session {
            if memory.known.len() >= DOCUMENTS {
                memory.known.clear();
            }
            memory.known.insert(key, faults);
        }
    }

    /// Asks until there is an answer: the driver may just be starting again.
    async fn call(&self, spec: &RawJson) -> Option<(u64, Faults)> {
        loop {
            let session = self.link.session(ANSWER).await?;
            let mut request = Request::new(v1::ValidateClassRequest { provider_spec: spec.text().to_owned() });
            request.set_timeout(ANSWER);
            match session.client.clone().validate_class(request).await {
                Ok(answer) => return Some((session.number, protocol::decode_faults(answer.into_inner()))),
                Err(status) => {
                    tracing::warn!("the driver cannot say what is wrong with a providerSpec: {:?}", status.code());
                    sleep(AGAIN).await;
                }
            }
        }
    }

    fn key(&self, spec: &RawJson) -> u64 {
        self.hasher.hash_one(spec.text())
    }
}
