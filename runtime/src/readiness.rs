//! Whether this process could do its work, for `/readyz`.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    cache::Stores,
    error::with_causes,
    object::Cluster,
    request::{Call, Connection},
};

const PERIOD: Duration = Duration::from_secs(5);
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Whether the caches of the home cluster are filled and its API server is healthy. Other clusters do not count.
///
/// The check never waits: a background task probes the API server, so the result may be up to eight seconds old.
#[derive(Clone)]
pub(crate) struct Readiness {
    home: Cluster,
    stores: Stores,
    away: Arc<Mutex<Option<String>>>,
}

impl Readiness {
    pub(crate) fn new(home: Cluster, stores: Stores) -> Self {
        Self { home, stores, away: Arc::default() }
    }

    /// The error is the reason for people.
    pub(crate) fn check(&self) -> Result<(), String> {
        if let Some(why) = &*self.away.lock() {
            return Err(format!("the API server of the {} cluster is unhealthy: {why}", self.home));
        }
        let lasting = self.stores.lasting();
        let empty = lasting.iter().filter(|store| store.cluster() == self.home && !store.is_synced());
        let mut names: Vec<_> = empty.map(|store| store.resource().to_string()).collect();
        names.sort_unstable();
        if names.is_empty() { Ok(()) } else { Err(format!("not listed yet: {}", names.join(", "))) }
    }

    pub(crate) async fn watch(self, server: Connection, stop: CancellationToken) {
        let probes = async {
            loop {
                let why = probe(&server).await;
                let before = std::mem::replace(&mut *self.away.lock(), why.clone());
                match (before, why) {
                    (None, Some(why)) => {
                        tracing::warn!(why, "the API server of the {} cluster is unhealthy", self.home);
                    }
                    (Some(_), None) => tracing::info!("the API server of the {} cluster is healthy again", self.home),
                    _ => {}
                }
                sleep(PERIOD).await;
            }
        };
        stop.run_until_cancelled(probes).await;
    }
}

/// Why the API server is not healthy; `None` if it is. One that refuses the probe (401, 403) is reachable, which is enough.
async fn probe(server: &Connection) -> Option<String> {
    match timeout(PROBE_TIMEOUT, server.ask(Call::get("/readyz"))).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) if error.status.is_some_and(|status| status.is_client_error()) => None,
        Ok(Err(error)) => Some(with_causes(&error)),
        Err(_) => Some(format!("no answer within {PROBE_TIMEOUT:?}")),
    }
}
