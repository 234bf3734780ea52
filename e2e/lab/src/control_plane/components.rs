//! The processes of a control plane and their command lines.

use std::{fmt, path::Path, time::Duration};

use crate::{
    control_plane::{ControlPlaneError, ControlPlaneOptions, certificates::Certificates, files::Layout},
    node::address::GATEWAY,
    process::free_ports,
};

/// A process of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// The store.
    Etcd,
    /// The API server.
    ApiServer,
    /// Garbage collection, node health, disruption budgets, service accounts, certificates and much more.
    ControllerManager,
    /// Assigns pods to nodes.
    Scheduler,
}

impl Component {
    /// The name of the executable and of its log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
        }
    }

    /// The user name of the component, if it is a client of the API server.
    pub(crate) const fn user(self) -> Option<&'static str> {
        match self {
            Self::Etcd | Self::ApiServer => None,
            Self::ControllerManager => Some("system:kube-controller-manager"),
            Self::Scheduler => Some("system:kube-scheduler"),
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The ports of one control plane, all on 127.0.0.1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    etcd_client: u16,
    etcd_peer: u16,
    pub(crate) api_server: u16,
    controller_manager: u16,
    scheduler: u16,
}

impl Ports {
    pub(crate) fn choose() -> Result<Self, ControlPlaneError> {
        let [etcd_client, etcd_peer, api_server, controller_manager, scheduler] = free_ports()?;
        Ok(Self { etcd_client, etcd_peer, api_server, controller_manager, scheduler })
    }

    /// The URL that tells whether the component is ready, if it serves TLS.
    pub(crate) fn health(&self, component: Component) -> Option<String> {
        match component {
            Component::Etcd => None,
            Component::ApiServer => Some(format!("https://127.0.0.1:{}/readyz", self.api_server)),
            Component::ControllerManager => Some(format!("https://127.0.0.1:{}/healthz", self.controller_manager)),
            Component::Scheduler => Some(format!("https://127.0.0.1:{}/healthz", self.scheduler)),
        }
    }
}

/// The inputs of the command lines.
pub(crate) struct CommandLines<'a> {
    pub(crate) options: &'a ControlPlaneOptions,
    pub(crate) layout: &'a Layout,
    pub(crate) certificates: &'a Certificates,
    pub(crate) ports: Ports,
}

impl CommandLines<'_> {
    /// The arguments of a component. The caller's flags come last: the last one of a repeated flag wins.
    pub(crate) fn arguments(&self, component: Component) -> Vec<String> {
        let (mut arguments, more) = match component {
            Component::Etcd => (self.etcd(), &self.options.etcd_flags),
            Component::ApiServer => (self.api_server(), &self.options.api_server_flags),
            Component::ControllerManager => (self.controller_manager(), &self.options.controller_manager_flags),
            Component::Scheduler => (self.scheduler(), &self.options.scheduler_flags),
        };
        arguments.extend(more.iter().cloned());
        arguments
    }

    fn etcd(&self) -> Vec<String> {
        let client = format!("http://127.0.0.1:{}", self.ports.etcd_client);
        let peer = format!("http://127.0.0.1:{}", self.ports.etcd_peer);
        vec![
            flag("data-dir", self.layout.etcd_data().display()),
            flag("listen-client-urls", &client),
            flag("advertise-client-urls", &client),
            flag("listen-peer-urls", &peer),
            flag("initial-advertise-peer-urls", &peer),
            flag("initial-cluster", format!("default={peer}")),
            // The data need not survive a crash of the computer, and flushing is slow.
            flag("unsafe-no-fsync", true),
            // Fleets of ten thousand machines write more than the default, 2 GiB, between two compactions.
            flag("quota-backend-bytes", 8_u64 << 30),
            flag("log-level", "warn"),
        ]
    }

    fn api_server(&self) -> Vec<String> {
        let certificates = self.certificates;
        let mut arguments = self.serving(self.ports.api_server);
        arguments.extend([
            flag("etcd-servers", format!("http://127.0.0.1:{}", self.ports.etcd_client)),
            flag("client-ca-file", certificates.authority_certificate_file().display()),
            flag("service-account-key-file", certificates.service_account_public_key_file().display()),
            flag("service-account-signing-key-file", certificates.service_account_key_file().display()),
            flag("service-account-issuer", "https://kubernetes.default.svc"),
            flag("service-cluster-ip-range", "10.0.0.0/24"),
            flag("authorization-mode", "Node,RBAC"),
            flag("enable-bootstrap-token-auth", true),
            flag("allow-privileged", true),
            flag("audit-policy-file", self.layout.audit_policy().display()),
            flag("audit-log-path", self.layout.audit_log().display()),
            // Never rotated: requests are counted in one file.
            flag("audit-log-maxsize", 0),
        ]);
        arguments.extend(if self.options.node_network { self.with_nodes() } else { without_nodes() });
        arguments
    }

    /// Flags of an API server that real nodes join: how it and they reach one another, and what nodes may do.
    fn with_nodes(&self) -> Vec<String> {
        let certificates = self.certificates;
        vec![
            flag("advertise-address", GATEWAY),
            flag("egress-selector-config-file", self.layout.egress().display()),
            flag("kubelet-preferred-address-types", "InternalIP"),
            flag("kubelet-client-certificate", certificates.kubelets_client_certificate_file().display()),
            flag("kubelet-client-key", certificates.kubelets_client_key_file().display()),
            flag("enable-admission-plugins", "NodeRestriction"),
        ]
    }

    fn controller_manager(&self) -> Vec<String> {
        let certificates = self.certificates;
        let mut arguments = self.serving(self.ports.controller_manager);
        arguments.extend(self.client(Component::ControllerManager));
        arguments.extend([
            flag("service-account-private-key-file", certificates.service_account_key_file().display()),
            flag("root-ca-file", certificates.authority_certificate_file().display()),
            flag("use-service-account-credentials", true),
            flag("cluster-signing-cert-file", certificates.authority_certificate_file().display()),
            flag("cluster-signing-key-file", certificates.authority_key_file().display()),
            flag("controllers", self.options.controllers.join(",")),
        ]);
        if let Some(period) = self.options.node_monitor_grace_period {
            arguments.push(flag("node-monitor-grace-period", go_duration(period)));
        }
        arguments
    }

    fn scheduler(&self) -> Vec<String> {
        let mut arguments = self.serving(self.ports.scheduler);
        arguments.extend(self.client(Component::Scheduler));
        arguments
    }

    /// Flags of the TLS server that each Kubernetes component has.
    fn serving(&self, port: u16) -> Vec<String> {
        vec![
            flag("bind-address", "127.0.0.1"),
            flag("secure-port", port),
            flag("tls-cert-file", self.certificates.server_certificate_file().display()),
            flag("tls-private-key-file", self.certificates.server_key_file().display()),
            flag("profiling", false),
        ]
    }

    /// Flags of the clients of the API server. There is one of each, so none needs leader election.
    fn client(&self, component: Component) -> Vec<String> {
        let kubeconfig = component_kubeconfig(self.layout, component);
        vec![
            flag("kubeconfig", kubeconfig.display()),
            flag("authentication-kubeconfig", kubeconfig.display()),
            flag("authorization-kubeconfig", kubeconfig.display()),
            flag("leader-elect", false),
        ]
    }
}

/// Flags of an API server without real nodes: no pod uses the service `kubernetes`.
fn without_nodes() -> Vec<String> {
    vec![flag("advertise-address", "127.0.0.1"), flag("endpoint-reconciler-type", "none")]
}

/// The path of a component's kubeconfig.
pub(crate) fn component_kubeconfig(layout: &Layout, component: Component) -> std::path::PathBuf {
    layout.kubeconfigs().join(Path::new(component.name()))
}

fn flag(name: &str, value: impl fmt::Display) -> String {
    format!("--{name}={value}")
}

/// A duration in the syntax of Go's flags.
fn go_duration(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_for_go() {
        assert_eq!(go_duration(Duration::from_secs(40)), "40000ms");
        assert_eq!(go_duration(Duration::from_millis(1_500)), "1500ms");
    }
}
