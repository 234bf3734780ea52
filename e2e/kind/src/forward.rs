//! HTTPS requests to a Pod, through kubectl's port-forward.

use std::process::Stdio;

use http::Request;
use kube::{Client, Config};
use nodewright_e2e_lab::control_plane::testing::{Failure, TestResult};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

/// A port of this computer that leads to a Pod, as long as this lives.
#[derive(Debug)]
pub(crate) struct Forward {
    url: http::Uri,
    _kubectl: Child,
    // kubectl prints a line for each connection, and ends if nobody can read it.
    _output: Lines<BufReader<ChildStdout>>,
}

impl Forward {
    /// Starts kubectl, which prints the port that it has taken.
    pub(crate) async fn start(kubectl: &mut Command) -> TestResult<Self> {
        let mut child = kubectl.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let output = child.stdout.take().ok_or_else(|| Failure::new("kubectl has no output"))?;
        let mut output = BufReader::new(output).lines();
        let line = output.next_line().await?.unwrap_or_default();
        let port = line.strip_prefix("Forwarding from 127.0.0.1:").and_then(|rest| rest.split(' ').next());
        let port = port.ok_or_else(|| Failure::new(format!("kubectl port-forward printed {line:?}, and no port")))?;
        Ok(Self { url: format!("https://127.0.0.1:{port}").parse()?, _kubectl: child, _output: output })
    }

    /// The status and the body of an answer: of metrics in `OpenMetrics`, whose end can be seen. The certificate is not checked: it is for
    /// the Service.
    pub(crate) async fn get(&self, path: &str, token: &str) -> TestResult<(u16, String)> {
        let mut config = Config::new(self.url.clone());
        config.accept_invalid_certs = true;
        let mut request = Request::get(path).header(http::header::ACCEPT, "application/openmetrics-text");
        if !token.is_empty() {
            request = request.header(http::header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let response = Client::try_from(config)?.send(request.body(kube::client::Body::empty())?).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect_bytes().await?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}
