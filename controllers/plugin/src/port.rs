//! Requests to a port of a Pod, over a stream that the API server and the kubelet forward.

use std::sync::Arc;

use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use kube::{Config, api::Portforwarder, client::ConfigExt};
use nodewright_runtime::error::one_line;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use crate::fault::{Fault, Outcome, fail};

/// The longest answer that is read, in bytes.
const LONGEST_ANSWER: usize = 64 << 20;
/// Certificates are not verified, and streams have no host: any name will do.
const HOST: &str = "localhost";

/// What a forwarded port answers to a GET request.
pub(crate) async fn forwarded(
    mut forwarder: Portforwarder,
    port: u16,
    path: &str,
    token: Option<&str>,
) -> Outcome<(StatusCode, String)> {
    let (Some(stream), Some(refusal)) = (forwarder.take_stream(port), forwarder.take_error(port)) else {
        return fail(format!("port {port} was not forwarded"));
    };
    let answer = tokio::select! {
        biased;
        // The kubelet says why it cannot reach the port.
        Some(message) = refusal => fail(message.replace('\n', " ")),
        answer = get(stream, path, token) => answer,
    };
    forwarder.abort();
    answer
}

/// What a port answers to a GET request. With a token over TLS.
///
/// The certificate is not verified: a manager without webhooks has one that it made itself. So the token must be worth little.
pub(crate) async fn get<S>(stream: S, path: &str, token: Option<&str>) -> Outcome<(StatusCode, String)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Some(token) = token else { return exchange(stream, request(path)).await };
    let mut config = Config::new(Uri::from_static("https://localhost"));
    (config.accept_invalid_certs, config.root_cert) = (true, Some(vec![]));
    let config = config.rustls_client_config().map_err(|error| failed("prepare TLS", &error))?;
    let name = ServerName::try_from(HOST).map_err(|error| failed("prepare TLS", &error))?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let stream = stream.map_err(|error| failed("agree on TLS", &error))?;
    exchange(stream, request(path).header(header::AUTHORIZATION, format!("Bearer {token}"))).await
}

fn request(path: &str) -> http::request::Builder {
    Request::get(path).header(header::HOST, HOST)
}

async fn exchange<S>(stream: S, request: http::request::Builder) -> Outcome<(StatusCode, String)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let failed = |error: &dyn std::error::Error| failed("get an answer", error);
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| failed(&error))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
    // It ends with the sender. What it fails with is an error of the request, too.
    tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
    let code = response.status();
    let body = Limited::new(response.into_body(), LONGEST_ANSWER).collect().await;
    let body = body.map_err(|error| failed(error.as_ref()))?.to_bytes();
    Ok((code, String::from_utf8_lossy(&body).trim().to_owned()))
}

fn failed(to: &str, error: &dyn std::error::Error) -> Fault {
    Fault::Message(format!("failed to {to}: {}", one_line(error)))
}

#[cfg(test)]
mod tests {
    use hyper::{Response, server::conn::http1, service::service_fn};
    use tokio::io::{DuplexStream, duplex};
    use tokio_rustls::{
        TlsAcceptor,
        rustls::{ServerConfig, pki_types::PrivateKeyDer},
    };

    use super::*;

    /// Answers one request with its path and its token.
    async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin) {
        let answer = service_fn(async |request: Request<hyper::body::Incoming>| {
            let token = request.headers().get(header::AUTHORIZATION).map_or("none", |value| value.to_str().unwrap());
            let code = if token == "Bearer wrong" { StatusCode::FORBIDDEN } else { StatusCode::OK };
            let text = format!("{} {token}\n", request.uri());
            Response::builder().status(code).body(text)
        });
        drop(http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await);
    }

    /// The port of a manager with a certificate that it made itself.
    fn secure() -> DuplexStream {
        let (client, server) = duplex(1 << 16);
        let created = rcgen::generate_simple_self_signed(["nodewright".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(created.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![created.cert.der().clone()], key).unwrap();
        tokio::spawn(async move { serve(TlsAcceptor::from(Arc::new(config)).accept(server).await.unwrap()).await });
        client
    }

    fn plain() -> DuplexStream {
        let (client, server) = duplex(1 << 16);
        tokio::spawn(serve(server));
        client
    }

    #[tokio::test]
    async fn a_token_is_sent_over_tls_and_without_one_nothing_is_encrypted() {
        let ok = |text: &str| (StatusCode::OK, text.to_owned());
        assert_eq!(get(secure(), "/metrics", Some("t")).await.unwrap(), ok("/metrics Bearer t"));
        assert_eq!(get(plain(), "/metrics", None).await.unwrap(), ok("/metrics none"));
        assert_eq!(get(secure(), "/metrics", Some("wrong")).await.unwrap().0, StatusCode::FORBIDDEN);
    }

    #[tokio::test]
    async fn a_token_is_not_sent_without_tls() {
        let (client, mut server) = duplex(1 << 16);
        let seen = tokio::spawn(async move {
            let mut seen = vec![0; 1 << 12];
            let count = tokio::io::AsyncReadExt::read(&mut server, &mut seen).await.unwrap();
            drop(server);
            seen.truncate(count);
            seen
        });
        let error = get(client, "/metrics", Some("secret")).await.unwrap_err().to_string();
        assert!(error.starts_with("failed to agree on TLS: "), "{error}");
        assert!(!String::from_utf8_lossy(&seen.await.unwrap()).contains("secret"));
    }

    #[tokio::test]
    async fn a_port_that_does_not_answer_is_an_error_in_a_line() {
        for token in [None, Some("t")] {
            let (client, server) = duplex(1 << 16);
            drop(server);
            let error = get(client, "/metrics", token).await.unwrap_err().to_string();
            assert!(error.starts_with("failed to ") && !error.contains('\n'), "{error}");
        }
    }
}
