//! Reviews that are much larger in memory than on the wire.

use std::fmt::Write;

use futures::future::join_all;

use super::{
    Measured,
    target::{Target, review},
};

/// The size of one review in bytes.
const SIZE: usize = 5_400_000;
/// How many reviews are sent at once, after a single one.
const AT_ONCE: usize = 4;
/// How much the memory of the manager may grow.
const GROWTH: u64 = 100 << 20;

pub(crate) async fn large(target: &mut Target) -> Measured {
    let body = many_annotations();
    let mut codes = Vec::new();
    let before = target.memory()?;
    let mut send = async |count: usize| {
        let clients: Result<Vec<_>, _> = (0..count).map(|_| target.review_client()).collect();
        let clients = clients?;
        let sent = clients.iter().map(|client| review(client, "/mutate-machinedeployment", body.clone()));
        for code in join_all(sent).await {
            codes.push(code?.as_u16());
        }
        Ok::<_, String>(())
    };
    let result = async {
        send(1).await?;
        send(AT_ONCE).await
    }
    .await;
    let (peak, after) = (target.peak()?, target.memory()?);
    let growth = peak.saturating_sub(before);
    let text = format!(
        "1 and {AT_ONCE} reviews of {:.1} MB got {codes:?}; memory {} MiB, at most {} MiB, then {} MiB",
        f64::from(u32::try_from(SIZE).unwrap_or(u32::MAX)) / 1e6,
        before >> 20,
        peak >> 20,
        after >> 20
    );
    match result {
        Ok(()) if growth <= GROWTH => Ok(text),
        Ok(()) => Err(format!("{text}; it may grow by {} MiB", GROWTH >> 20)),
        Err(error) => Err(format!("{text}; {error}")),
    }
}

fn many_annotations() -> Vec<u8> {
    let mut body = String::from(
        r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE",
        "kind":{"group":"machine.sapcloud.io","version":"v1alpha1","kind":"MachineDeployment"},
        "resource":{"group":"machine.sapcloud.io","version":"v1alpha1","resource":"machinedeployments"},
        "name":"large","namespace":"default",
        "object":{"apiVersion":"machine.sapcloud.io/v1alpha1","kind":"MachineDeployment","metadata":{"name":"large","annotations":{"a":"""#,
    );
    let mut number = 0_u32;
    while body.len() < SIZE {
        // Writing to a string does not fail.
        let _ = write!(body, r#","a{number}":"""#);
        number += 1;
    }
    body.push_str(
        r#"}},"spec":{"replicas":0,"selector":{"matchLabels":{"name":"large"}},"template":{"metadata":{"labels":{"name":"large"}},"spec":{"class":{"kind":"MachineClass","name":"demo-small"}}}}}}}"#,
    );
    body.into_bytes()
}
