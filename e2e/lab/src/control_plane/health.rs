//! Waiting until a component is ready.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use kube::Client;

use crate::{
    control_plane::{
        ControlPlaneError,
        client::{USER_AGENT, client_config},
    },
    process::{Process, ProcessError, with_causes},
};

/// Time between two probes.
const INTERVAL: Duration = Duration::from_millis(50);
/// Deadline of one probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// The state of a wait for readiness.
pub(crate) struct Progress {
    /// How long the wait took, once it took too long.
    timed_out_after: Option<Duration>,
    /// The last answer.
    last: String,
}

impl Progress {
    /// An error if the process ended or the time is up.
    pub(crate) fn check(self, process: &mut Process) -> Result<(), ControlPlaneError> {
        process.check()?;
        let Some(waited) = self.timed_out_after else { return Ok(()) };
        Err(ControlPlaneError::Process(ProcessError::NotReady {
            name: process.name().to_owned(),
            waited,
            last: self.last,
            log: process.log().to_owned(),
            tail: process.log_tail(),
        }))
    }
}

/// Probes `url` with the credentials of `kubeconfig` until it answers with success. Calls `check` after each failed probe;
/// its error ends the wait.
pub(crate) async fn wait_until_ready(
    kubeconfig: &Path,
    url: &str,
    timeout: Duration,
    check: impl Fn(Progress) -> Result<(), ControlPlaneError>,
) -> Result<(), ControlPlaneError> {
    let (client, path) = client_for(kubeconfig, url).await?;
    let since = Instant::now();
    loop {
        let answer = tokio::time::timeout(PROBE_TIMEOUT, probe(&client, &path)).await;
        let last = match answer {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => with_causes(&error),
            Err(elapsed) => elapsed.to_string(),
        };
        let timed_out_after = Some(since.elapsed()).filter(|waited| *waited > timeout);
        check(Progress { timed_out_after, last })?;
        tokio::time::sleep(INTERVAL).await;
    }
}

async fn client_for(kubeconfig: &Path, url: &str) -> Result<(Client, String), ControlPlaneError> {
    let invalid = |error: http::Error| ControlPlaneError::request(format!("ask {url}"))(kube::Error::HttpError(error));
    let url_parsed: http::Uri = url.parse().map_err(|error: http::uri::InvalidUri| invalid(error.into()))?;
    let path = url_parsed.path().to_owned();
    let mut parts = url_parsed.into_parts();
    parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    let mut config = client_config(kubeconfig, USER_AGENT).await?;
    config.cluster_url = http::Uri::from_parts(parts).map_err(|error| invalid(error.into()))?;
    Ok((Client::try_from(config).map_err(ControlPlaneError::request("make a client"))?, path))
}

async fn probe(client: &Client, path: &str) -> Result<(), kube::Error> {
    let request = http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    client.request_text(request).await.map(drop)
}
