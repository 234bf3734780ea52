//! What a node brings along: the daemon as a service, and what Ignition has written at its first boot.

use std::fmt::Write;

use nodewright_api::machine_config::{CURRENT_CONFIG, DESIRED_CONFIG, DONE, STATE};
use serde_json::{Value, json};

/// A file of the nodes' configuration.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) path: &'static str,
    pub(crate) content: String,
}

impl File {
    /// As a MachineConfig has it.
    pub(crate) fn of_config(&self) -> Value {
        let source = self.content.bytes().fold("data:,".to_owned(), |mut text, byte| {
            // Writing to a string does not fail.
            let _ = write!(text, "%{byte:02X}");
            text
        });
        json!({"path": self.path, "mode": 0o644, "overwrite": true, "contents": {"source": source}})
    }
}

/// The daemon, as machine-config-operator's DaemonSet starts it: in the root of the node.
const DAEMON_UNIT: &str = "[Unit]
Description=machine-config-daemon
After=kubelet.service dbus.service
StartLimitIntervalSec=0
[Service]
ExecStartPre=/bin/sh -c 'until test -e /var/lib/kubelet/kubeconfig; do sleep 1; done'
ExecStartPre=/bin/cp /etc/kubernetes/bootstrap-kubeconfig /etc/kubernetes/kubeconfig
ExecStart=/opt/machine-config-daemon start --node-name=%H --root-mount=/ --kubeconfig=/var/lib/agent/kubeconfig
TimeoutStartSec=infinity
Restart=always
RestartSec=1
StandardOutput=append:/var/log/machine-config-daemon.log
StandardError=inherit
";

/// User data that joins the cluster, as `base` does, with the files of the configuration `rendered`, which the node runs, and the
/// daemon, which has this token.
pub(crate) fn user_data(base: &str, rendered: &str, files: &[File], token: &str) -> String {
    let server = base.lines().find_map(|line| line.trim().strip_prefix("server: ")).unwrap_or_default();
    let annotations = json!({CURRENT_CONFIG: rendered, DESIRED_CONFIG: rendered, STATE: DONE});
    let cluster = json!({"server": server, "certificate-authority": "/etc/kubernetes/ca.crt"});
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "cluster",
        "clusters": [{"name": "cluster", "cluster": cluster}],
        "users": [{"name": "daemon", "user": {"token": token}}],
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": "daemon"}}],
    });
    let wants = "[Unit]\nWants=machine-config-daemon.service\n";
    let units = "/usr/lib/systemd/system";
    let mut all = vec![
        (format!("{units}/machine-config-daemon.service"), DAEMON_UNIT.to_owned()),
        (format!("{units}/multi-user.target.d/10-agent.conf"), wants.to_owned()),
        ("/var/lib/agent/kubeconfig".to_owned(), kubeconfig.to_string()),
        ("/etc/machine-config-daemon/node-annotations.json".to_owned(), annotations.to_string()),
    ];
    all.extend(files.iter().map(|file| (file.path.to_owned(), file.content.clone())));
    // JSON is YAML.
    let items = all.into_iter().map(|(path, content)| format!("- {}\n", json!({"path": path, "content": content})));
    items.fold(base.trim_end().to_owned() + "\n", |text, item| text + &item)
}
