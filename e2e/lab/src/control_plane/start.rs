//! Starting a control plane.

use std::{collections::BTreeMap, net::Ipv4Addr, path::Path, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::json;

use crate::{
    control_plane::{
        AuditLevel, Component, ControlPlane, ControlPlaneError, ControlPlaneOptions,
        binaries::{binaries, kubelet_binaries},
        certificates::Certificates,
        client::{USER_AGENT, client},
        components::{CommandLines, Ports, component_kubeconfig},
        files::Layout,
        kubeconfig::write_kubeconfig,
    },
    node::{Network, egress_socket},
    process::{Process, Supervisor, write_private},
};

/// How often other ports are tried.
const ATTEMPTS: usize = 5;

/// Logs user, verb, object and response code of each request, without bodies, when it is answered; evictions when they come as
/// well, so that those at once can be counted. Of all requests, this would only double the size.
const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitManagedFields: true
rules:
- level: Metadata
  resources: [{group: '', resources: [pods/eviction]}]
- level: Metadata
  omitStages: [RequestReceived]
";

/// Logs the bodies of writes as well.
const AUDIT_POLICY_WITH_BODIES: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitManagedFields: true
rules:
- level: Request
  resources: [{group: '', resources: [pods/eviction]}]
- level: Request
  omitStages: [RequestReceived]
  verbs: [create, update, patch, delete, deletecollection]
- level: Metadata
  omitStages: [RequestReceived]
";

/// Who may join as a node, and what nodes may do.
const JOINING: &str = include_str!("joining.yaml");

impl ControlPlane {
    /// Starts a control plane and waits until it is ready. Builds missing executables first.
    ///
    /// Tries other ports if another process takes one of the chosen ones.
    pub async fn start(options: ControlPlaneOptions) -> Result<Self, ControlPlaneError> {
        let binaries = binaries().await?;
        let mut attempt = 1;
        loop {
            match start_once(&options, &binaries).await {
                Err(error) if error.is_port_clash() && attempt < ATTEMPTS => {
                    tracing::warn!(attempt, %error, "a port is in use; trying other ports");
                    attempt += 1;
                }
                result => return result,
            }
        }
    }
}

async fn start_once(options: &ControlPlaneOptions, binaries: &Path) -> Result<ControlPlane, ControlPlaneError> {
    let layout = options.directory.as_deref().map_or_else(|| Ok(Layout::temporary()), Layout::given)?;
    let lock = layout.lock().await?;
    // From here on the supervisor cleans up. Nothing exists yet.
    let supervisor = Arc::new(Supervisor::start(&layout.disposable(), lock.as_ref())?);
    layout.prepare()?;
    let certificates = Certificates::create(&layout.certificates())?;
    let ports = Ports::choose()?;
    let lines = CommandLines { options, layout: &layout, certificates: &certificates, ports };
    write_files(&lines, options)?;
    let processes = describe(&supervisor, &lines, binaries);
    let control_plane = ControlPlane {
        network: Mutex::default(),
        client: client(&layout.kubeconfig(), USER_AGENT).await?,
        processes: Mutex::new(processes),
        binaries: binaries.to_owned(),
        start_timeout: options.start_timeout,
        layout,
        ports,
        certificates,
        supervisor,
    };
    start_components(&control_plane).await?;
    if options.node_network {
        start_network(&control_plane).await?;
    }
    Ok(control_plane)
}

/// Starts the network of real nodes, and lets nodes join.
async fn start_network(control_plane: &ControlPlane) -> Result<(), ControlPlaneError> {
    control_plane.apply_yaml(JOINING).await?;
    let layout = &control_plane.layout;
    let api_server = (Ipv4Addr::LOCALHOST, control_plane.ports.api_server).into();
    let (binaries, log) = (kubelet_binaries().await?, layout.log("node-network"));
    let network = Network::start(&control_plane.supervisor, &layout.nodes(), &log, &binaries, api_server).await?;
    *control_plane.network.lock() = Some(network);
    Ok(())
}

/// The components that the options ask for.
fn wanted(options: &ControlPlaneOptions) -> impl Iterator<Item = Component> {
    [
        Some(Component::Etcd),
        Some(Component::ApiServer),
        options.controller_manager.then_some(Component::ControllerManager),
        options.scheduler.then_some(Component::Scheduler),
    ]
    .into_iter()
    .flatten()
}

fn write_files(lines: &CommandLines<'_>, options: &ControlPlaneOptions) -> Result<(), ControlPlaneError> {
    let layout = lines.layout;
    let policy = match options.audit_level {
        AuditLevel::Metadata => AUDIT_POLICY,
        AuditLevel::Request => AUDIT_POLICY_WITH_BODIES,
    };
    write_private(&layout.audit_policy(), policy)?;
    if options.node_network {
        write_private(&layout.egress(), &egress(&egress_socket(&layout.nodes())?))?;
    }
    let server = format!("https://127.0.0.1:{}", lines.ports.api_server);
    write_kubeconfig(lines.certificates, &server, "administrator", Some("system:masters"), &layout.kubeconfig())?;
    for component in wanted(options) {
        if let Some(user) = component.user() {
            write_kubeconfig(lines.certificates, &server, user, None, &component_kubeconfig(layout, component))?;
        }
    }
    Ok(())
}

/// The configuration of the API server's way to nodes and pods: a proxy in their network.
fn egress(socket: &Path) -> String {
    let connection = json!({"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": socket}}});
    let selections = json!([{"name": "cluster", "connection": connection}]);
    json!({"apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration", "egressSelections": selections})
        .to_string()
}

fn describe(supervisor: &Arc<Supervisor>, lines: &CommandLines<'_>, binaries: &Path) -> BTreeMap<Component, Process> {
    let process = |component: Component| {
        let name = component.name();
        Process::new(supervisor, name, binaries.join(name), lines.arguments(component), lines.layout.log(name))
    };
    wanted(lines.options).map(|component| (component, process(component))).collect()
}

/// Starts etcd and the API server together: the API server waits for etcd. Its clients would give up after a while, so they
/// start when the API server is ready.
async fn start_components(control_plane: &ControlPlane) -> Result<(), ControlPlaneError> {
    start_processes(control_plane, |component| matches!(component, Component::Etcd | Component::ApiServer))?;
    control_plane.wait_until_ready(Component::ApiServer).await?;
    start_processes(control_plane, |_| true)?;
    let clients: Vec<_> = control_plane.processes.lock().keys().copied().filter(|one| one.user().is_some()).collect();
    for component in clients {
        control_plane.wait_until_ready(component).await?;
    }
    wait_for_default_namespace(&control_plane.client, control_plane.start_timeout).await
}

fn start_processes(control_plane: &ControlPlane, which: impl Fn(Component) -> bool) -> Result<(), ControlPlaneError> {
    let mut processes = control_plane.processes.lock();
    for (_, process) in processes.iter_mut().filter(|(component, _)| which(**component)) {
        process.start()?;
    }
    Ok(())
}

/// The API server creates the namespace in the background.
async fn wait_for_default_namespace(client: &Client, timeout: Duration) -> Result<(), ControlPlaneError> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let exists = async {
        while namespaces
            .get_opt("default")
            .await
            .map_err(ControlPlaneError::request("read namespace default"))?
            .is_none()
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    };
    let late = |_| ControlPlaneError::Timeout { what: "the creation of namespace default".to_owned(), waited: timeout };
    tokio::time::timeout(timeout, exists).await.map_err(late)?
}
