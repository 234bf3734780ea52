//! Clients that hold connections, and send nothing, or a byte now and then.

use std::time::Duration;

use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    Measured,
    target::{DEPLOYMENT, Target, review},
};

/// How many connections are held at each port: more than its limit.
const AT_PROBES: usize = 300;
const AT_WEBHOOKS: usize = 1_300;
/// How many requests are sent meanwhile, one per second.
const ROUNDS: usize = 12;

pub(crate) async fn idle(target: &mut Target) -> Measured {
    let (port, webhook_port) = (target.port(), target.webhook_port()?);
    let request = [&b"GET /healthz HTTP/1.1\r\nx: "[..], &[b'y'; 1_000]].concat();
    // A TLS record of 512 bytes.
    let handshake = [&[0x16, 3, 1, 2, 0][..], &[1; 500]].concat();
    let held = [hold(port, AT_PROBES, request).await, hold(webhook_port, AT_WEBHOOKS, handshake).await];
    let (mut probes, mut reviews, mut applies, mut problem) = (0, 0, 0, None);
    for round in 0..ROUNDS {
        let answers = [
            (&mut probes, target.check_health().await),
            (&mut reviews, is_reviewed(target).await),
            (&mut applies, apply(target, round).await),
        ];
        for (count, answer) in answers {
            match answer {
                Ok(()) => *count += 1,
                Err(error) => problem = Some(error),
            }
        }
        sleep(Duration::from_secs(1)).await;
    }
    for held in held {
        held.abort();
    }
    let text = format!(
        "with {AT_PROBES} and {AT_WEBHOOKS} idle and slow connections: {probes} of {ROUNDS} probes answered, {reviews} \
         reviews, {applies} kubectl apply"
    );
    match problem {
        None => Ok(text),
        Some(problem) => Err(format!("{text}; {problem}")),
    }
}

/// Opens connections, and holds them until the task is aborted. Every second, each second connection sends a byte of `text`.
async fn hold(port: u16, count: usize, text: Vec<u8>) -> JoinHandle<()> {
    let mut open = Vec::with_capacity(count);
    for _ in 0..count {
        let connecting = timeout(Duration::from_secs(1), TcpStream::connect(("127.0.0.1", port)));
        open.extend(connecting.await.ok().and_then(Result::ok));
    }
    tokio::spawn(async move {
        for byte in text {
            for stream in open.iter_mut().step_by(2) {
                // The server may have closed it.
                let _ = stream.write_all(&[byte]).await;
            }
            sleep(Duration::from_secs(1)).await;
        }
    })
}

async fn is_reviewed(target: &mut Target) -> Result<(), String> {
    let body = br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#.to_vec();
    // The body is no review. An answer that says so shows that the server works.
    review(&target.review_client()?, "/mutate-machinedeployment", body).await.map(drop)
}

/// A change that the webhooks must see.
async fn apply(target: &Target, round: usize) -> Result<(), String> {
    let annotation = format!("hostile={round}");
    let arguments = ["annotate", "--overwrite", "machinedeployment", DEPLOYMENT, &annotation];
    target.kubectl(&arguments).await.map_err(|error| error.to_string())?;
    let delay = format!(r#"{{"spec":{{"minReadySeconds":{}}}}}"#, round % 2);
    let arguments = ["patch", "machinedeployment", DEPLOYMENT, "--type=merge", "--patch", &delay];
    target.kubectl(&arguments).await.map(drop).map_err(|error| error.to_string())
}
