//! Bytes that are no request, no review and no object.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::{
    Measured,
    target::{Target, review},
};

/// The deadline of an answer.
const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) async fn bad(target: &mut Target) -> Measured {
    let ports = [target.port(), target.webhook_port()?];
    let mut closed = 0;
    for (number, port) in ports.into_iter().cycle().take(100).enumerate() {
        closed += usize::from(noise(port, number).await?);
    }
    let reviewer = target.review_client()?;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let in_review = format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u","operation":"CREATE","kind":{{"group":"machine.sapcloud.io","version":"v1alpha1","kind":"MachineClass"}},"object":{deep}}}}}"#
    );
    let mut codes = Vec::new();
    for body in [String::new(), "nonsense".to_owned(), deep, in_review] {
        codes.push(review(&reviewer, "/validate-machineclass", body.into_bytes()).await?.as_u16());
    }
    let text = format!("{closed} of 100 connections with noise were closed; bad reviews got {codes:?}");
    if closed == 100 && codes.iter().all(|code| (200..500).contains(code)) { Ok(text) } else { Err(text) }
}

/// Sends random bytes. Returns whether the server closed the connection.
async fn noise(port: u16, number: usize) -> Result<bool, String> {
    let mut random = fastrand::Rng::with_seed(number as u64);
    let bytes: Vec<u8> = (0..4_096).map(|_| random.u8(..)).collect();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.map_err(|error| error.to_string())?;
    // The server may close the connection early.
    let _ = stream.write_all(&bytes).await;
    let _ = stream.shutdown().await;
    Ok(timeout(TIMEOUT, stream.read_to_end(&mut vec![])).await.is_ok())
}
