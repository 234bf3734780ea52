//! The webhooks, in a process of their own or beside controllers.

use std::{net::SocketAddr, sync::Arc};

use nodewright_api::field::{FieldError, FieldPath};
use nodewright_controllers::machine_class::{identity, validation_errors};
use nodewright_runtime::{leadership::Leadership, request::Connection};
use nodewright_webhooks::{
    CertificateSource, IdentityFields, Limits, Options, ProviderSpecCheck, Readiness, Registration, WebhookServer,
};
use serde_json::Value;
use tokio::runtime::Handle;

use crate::{
    Outcome,
    clusters::Clusters,
    driver::{LateDriver, StartingDriver},
    extensions::ExtensionFlags,
    flags::{WebhookFlags, WebhookOnlyFlags},
    process::{DEFAULT_PORT, Process, agent},
};

/// The Secret with the certificate that the webhooks create.
const CERTIFICATE_SECRET: &str = "nodewright-webhook-certificate";
/// The warning when the driver cannot be asked about a class.
const UNVALIDATED: &str = "the driver has not answered whether it can read the providerSpec: see the class's condition ProviderSpecValid later";
/// Maximum number of concurrent requests to the API server.
const REQUESTS: usize = 8;

/// Runs the webhooks alone. They need no election.
pub(crate) async fn run(flags: WebhookOnlyFlags) -> Outcome<()> {
    let leadership = Leadership::default();
    let mut process = Process::start(&flags.process, DEFAULT_PORT).await?;
    let driver = StartingDriver::start(&flags.provider, &flags.process, &leadership)?;
    let clusters = Clusters::connect(&flags.process, &leadership).await?;
    process.connect(&clusters);
    if process.preflight(&clusters).await?.is_some() {
        let late = driver.as_ref().map(StartingDriver::late);
        let readiness = serve(&mut process, &flags.webhook, &flags.extensions, &clusters, late).await?;
        process.ready.add("webhooks", move || readiness());
        *process.startup.lock() = Ok(());
        if let Some(driver) = driver {
            driver.answered(&process.ready, &process.stop).await;
        }
        process.stop.cancelled().await;
    }
    process.end().await;
    Ok(())
}

/// Serves the webhooks until the process stops, whether or not it leads. Without a driver they accept every `providerSpec`.
pub(crate) async fn serve(
    process: &mut Process,
    flags: &WebhookFlags,
    extensions: &ExtensionFlags,
    clusters: &Clusters,
    driver: Option<LateDriver>,
) -> Outcome<Readiness> {
    let metrics = process.metrics.clone();
    let connection =
        Connection::new(clusters.control.clone(), agent("webhook"), Leadership::unlimited(), REQUESTS, metrics);
    let server = WebhookServer::bind(Options {
        listen: SocketAddr::new(flags.webhook_address, flags.webhook_port),
        certificates: certificates(flags, &process.namespace),
        registration: registration(flags),
        namespace: process.namespace.clone(),
        connection,
        provider_specs: provider_specs(driver.clone()),
        identity: identity_fields(driver),
        extensions: extensions.allowed().map(Arc::from),
        spans: process.telemetry.spans.clone(),
        clock: process.clock.clone(),
        limits: Limits::default(),
    })
    .await?;
    tracing::info!(address = %server.address(), "serving webhooks");
    if let Some((_, certificate)) = &process.secured {
        certificate.prefer(server.certificate());
    }
    let readiness = server.readiness();
    let stop = process.stop.clone();
    process.tasks.spawn(async move { server.run(stop.cancelled_owned()).await });
    Ok(readiness)
}

fn certificates(flags: &WebhookFlags, namespace: &str) -> CertificateSource {
    if let Some(directory) = &flags.webhook_cert_dir {
        return CertificateSource::Directory(directory.clone());
    }
    let namespace = flags.webhook_namespace.clone().unwrap_or_else(|| namespace.to_owned());
    let service = &flags.webhook_service;
    let mut hosts = vec![format!("{service}.{namespace}.svc"), format!("{service}.{namespace}.svc.cluster.local")];
    hosts.extend(Some(flags.webhook_host.clone()).filter(|host| !host.is_empty()));
    CertificateSource::Secret { namespace, name: CERTIFICATE_SECRET.to_owned(), hosts }
}

fn registration(flags: &WebhookFlags) -> Registration {
    match (flags.webhook_host.as_str(), &flags.webhook_cert_dir) {
        ("", Some(_)) => Registration::None,
        ("", None) => Registration::Bundle,
        (host, _) => Registration::Whole { host: host.to_owned() },
    }
}

/// A review has a thread of its own, which may wait for a driver in another process. Until that has reported its properties, classes are
/// accepted with a warning.
fn provider_specs(driver: Option<LateDriver>) -> ProviderSpecCheck {
    let Some(driver) = driver else { return Arc::new(|_| Ok(vec![])) };
    Arc::new(move |class| {
        let driver = driver.get().ok_or(UNVALIDATED)?;
        let errors = Handle::current().block_on(validation_errors(driver.as_ref(), class)).ok_or(UNVALIDATED)?;
        let spec: Value = class.provider_spec.parse().unwrap_or_default();
        Ok(errors.into_iter().map(|(path, what)| field_error(&spec, &path, what)).collect())
    })
}

/// The fields that identify the VMs of a class from which one can be created.
fn identity_fields(driver: Option<LateDriver>) -> IdentityFields {
    Arc::new(move |class| {
        let Some(driver) = driver.as_ref().and_then(|late| late.get()) else { return vec![] };
        let errors = Handle::current().block_on(validation_errors(driver.as_ref(), class));
        errors.map_or(vec![], |errors| identity(driver.as_ref(), class, &errors))
    })
}

/// Converts a driver's error at a path below `providerSpec`.
fn field_error(spec: &Value, path: &str, detail: String) -> FieldError {
    let parts = || path.split('.').filter(|part| !part.is_empty());
    let at = parts().fold(FieldPath::new("providerSpec"), |at, part| at.child(part));
    match parts().try_fold(spec, |value, part| value.get(part)) {
        Some(value) => FieldError::confidential(at, value, detail),
        // The path may contain a name that this function cannot follow, so the value may exist.
        None if parts().count() > 1 || path.contains('[') || path.ends_with('…') => {
            FieldError::confidential(at, spec, detail)
        }
        None => FieldError::required(at, detail),
    }
}
