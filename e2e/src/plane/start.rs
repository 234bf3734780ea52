//! Bringing a control plane up.

use std::{collections::BTreeMap, fs::File, path::Path, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use parking_lot::Mutex;

use super::{
    Component, Plane, PlaneError, PlaneOptions, Process, USER_AGENT,
    binaries::binaries,
    certificates::Certificates,
    client,
    components::{CommandLines, Ports, component_kubeconfig},
    files::{Layout, write_private},
    kubeconfig::kubeconfig,
    supervisor::Supervisor,
};

/// How often other ports are tried.
const ATTEMPTS: usize = 5;

/// Each request's user, verb, object and answer, without bodies. Requests are logged when they are answered: the stage
/// in which they are received would only double the size.
const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: Metadata
";

/// See [`Plane::start`].
pub(super) async fn start(options: PlaneOptions) -> Result<Plane, PlaneError> {
    let binaries = binaries().await?;
    let mut attempt = 1;
    loop {
        match start_once(&options, &binaries).await {
            Err(error) if error.is_port_clash() && attempt < ATTEMPTS => {
                tracing::warn!(attempt, %error, "a port was taken; starting again with others");
                attempt += 1;
            }
            result => return result,
        }
    }
}

async fn start_once(options: &PlaneOptions, binaries: &Path) -> Result<Plane, PlaneError> {
    let layout = options.directory.as_deref().map_or_else(|| Ok(Layout::temporary()), Layout::given)?;
    let lock = lock(&layout).await?;
    // From here on everything is cleaned up, whatever happens. Nothing exists yet.
    let supervisor = Arc::new(Supervisor::start(&layout.disposable(), lock.as_ref())?);
    layout.prepare()?;
    let certificates = Certificates::create(&layout.certificates())?;
    let ports = Ports::choose()?;
    let lines = CommandLines { options, layout: &layout, certificates: &certificates, ports };
    write_files(&lines, options)?;
    let processes = describe(&supervisor, &lines, binaries);
    let plane = Plane {
        client: client(&layout.kubeconfig(), USER_AGENT).await?,
        processes: Mutex::new(processes),
        binaries: binaries.to_owned(),
        start_timeout: options.start_timeout,
        layout,
        ports,
        certificates,
        supervisor,
    };
    bring_up(&plane).await?;
    Ok(plane)
}

/// The lock may have to be waited for, which must not block the other tasks.
async fn lock(layout: &Layout) -> Result<Option<File>, PlaneError> {
    let waiting = layout.clone();
    let root = layout.root.clone();
    let result = tokio::task::spawn_blocking(move || waiting.lock()).await;
    result.map_err(|error| PlaneError::file("lock", root)(std::io::Error::other(error)))?
}

/// The components that the options ask for.
fn wanted(options: &PlaneOptions) -> impl Iterator<Item = Component> {
    [
        Some(Component::Etcd),
        Some(Component::ApiServer),
        options.controller_manager.then_some(Component::ControllerManager),
        options.scheduler.then_some(Component::Scheduler),
    ]
    .into_iter()
    .flatten()
}

fn write_files(lines: &CommandLines<'_>, options: &PlaneOptions) -> Result<(), PlaneError> {
    let layout = lines.layout;
    write_private(&layout.audit_policy(), AUDIT_POLICY)?;
    let server = format!("https://127.0.0.1:{}", lines.ports.api_server);
    write_kubeconfig(lines.certificates, &server, "administrator", Some("system:masters"), &layout.kubeconfig())?;
    for component in wanted(options) {
        if let Some(user) = component.user() {
            write_kubeconfig(lines.certificates, &server, user, None, &component_kubeconfig(layout, component))?;
        }
    }
    Ok(())
}

/// Makes a certificate for a user and writes a kubeconfig with it.
pub(super) fn write_kubeconfig(
    certificates: &Certificates,
    server: &str,
    user: &str,
    group: Option<&str>,
    path: &Path,
) -> Result<(), PlaneError> {
    let identity = certificates.client(user, group)?;
    write_private(path, &kubeconfig(server, &certificates.authority_certificate(), user, &identity))
}

fn describe(supervisor: &Arc<Supervisor>, lines: &CommandLines<'_>, binaries: &Path) -> BTreeMap<Component, Process> {
    let process = |component: Component| {
        let name = component.name();
        Process::new(supervisor, name, binaries.join(name), lines.arguments(component), lines.layout.log(name))
    };
    wanted(lines.options).map(|component| (component, process(component))).collect()
}

/// etcd and the API server start together: the latter tries until it reaches the former. Its clients would give up
/// after a while, so they start when it is ready.
async fn bring_up(plane: &Plane) -> Result<(), PlaneError> {
    start_processes(plane, |component| matches!(component, Component::Etcd | Component::ApiServer))?;
    plane.wait_until_ready(Component::ApiServer).await?;
    start_processes(plane, |_| true)?;
    let clients: Vec<_> = plane.processes.lock().keys().copied().filter(|one| one.user().is_some()).collect();
    for component in clients {
        plane.wait_until_ready(component).await?;
    }
    wait_for_default_namespace(&plane.client, plane.start_timeout).await
}

fn start_processes(plane: &Plane, which: impl Fn(Component) -> bool) -> Result<(), PlaneError> {
    let mut processes = plane.processes.lock();
    processes.iter_mut().filter(|(component, _)| which(**component)).try_for_each(|(_, process)| process.start())
}

/// The API server creates it in the background.
async fn wait_for_default_namespace(client: &Client, patience: Duration) -> Result<(), PlaneError> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let exists = async {
        while namespaces.get_opt("default").await.map_err(PlaneError::request("read namespace default"))?.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    };
    let timeout = |_| PlaneError::Timeout { what: "the creation of namespace default".to_owned(), waited: patience };
    tokio::time::timeout(patience, exists).await.map_err(timeout)?
}
