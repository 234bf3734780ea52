//! Asking a component whether it is ready.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use kube::Client;
use nodewright_runtime::error::with_causes;

use super::{PlaneError, Process, USER_AGENT, client_config};

/// How long to wait between two questions.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long to wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// What is known about a process that is not ready yet.
pub(crate) struct Verdict {
    /// The wait is over; set when it took too long.
    waited: Option<Duration>,
    /// The last answer.
    last: String,
}

impl Verdict {
    /// An error if there is no point in waiting on: the process has ended, or the time is up.
    pub(crate) fn judge(self, process: &mut Process) -> Result<(), PlaneError> {
        process.check()?;
        match self.waited {
            None => Ok(()),
            Some(waited) => Err(PlaneError::NotReady {
                name: process.name().to_owned(),
                waited,
                last: self.last,
                log: process.log().to_owned(),
                tail: process.log_tail(),
            }),
        }
    }
}

/// Asks `url` with the credentials of `kubeconfig` until it answers with success. `judge` is asked in between whether
/// to go on.
pub(crate) async fn wait_until_ready(
    kubeconfig: &Path,
    url: &str,
    timeout: Duration,
    judge: impl Fn(Verdict) -> Result<(), PlaneError>,
) -> Result<(), PlaneError> {
    let (client, path) = client_for(kubeconfig, url).await?;
    let since = Instant::now();
    loop {
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, ask(&client, &path)).await;
        let last = match answer {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => with_causes(&error),
            Err(elapsed) => elapsed.to_string(),
        };
        let waited = Some(since.elapsed()).filter(|waited| *waited > timeout);
        judge(Verdict { waited, last })?;
        tokio::time::sleep(INTERVAL).await;
    }
}

async fn client_for(kubeconfig: &Path, url: &str) -> Result<(Client, String), PlaneError> {
    let invalid = |error: http::Error| PlaneError::request(format!("ask {url}"))(kube::Error::HttpError(error));
    let url_parsed: http::Uri = url.parse().map_err(|error: http::uri::InvalidUri| invalid(error.into()))?;
    let path = url_parsed.path().to_owned();
    let mut parts = url_parsed.into_parts();
    parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    let mut config = client_config(kubeconfig, USER_AGENT).await?;
    config.cluster_url = http::Uri::from_parts(parts).map_err(|error| invalid(error.into()))?;
    Ok((Client::try_from(config).map_err(PlaneError::request("make a client"))?, path))
}

async fn ask(client: &Client, path: &str) -> Result<(), kube::Error> {
    let request = http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    client.request_text(request).await.map(drop)
}
