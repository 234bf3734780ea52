//! A running control plane.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kube::{Client, api::DynamicObject};
use parking_lot::Mutex;

use crate::{
    control_plane::{
        Component, ControlPlaneError, apply, certificates::Certificates, client::client, components::Ports,
        files::Layout, health, kubeconfig::write_kubeconfig,
    },
    node::{Network, address::GATEWAY, user_data},
    process::{Process, ProcessError, Supervisor},
};

/// A running control plane. Dropping it ends its processes and removes its files.
///
/// All methods take `&self`: tests share a control plane.
pub struct ControlPlane {
    // Fields are dropped in this order: real nodes end first.
    pub(crate) network: Mutex<Option<Network>>,
    pub(crate) processes: Mutex<BTreeMap<Component, Process>>,
    pub(crate) binaries: PathBuf,
    pub(crate) layout: Layout,
    pub(crate) ports: Ports,
    pub(crate) certificates: Certificates,
    pub(crate) start_timeout: Duration,
    pub(crate) client: Client,
    // Last: the processes are reaped before the supervisor ends.
    pub(crate) supervisor: Arc<Supervisor>,
}

impl ControlPlane {
    /// The administrator's kubeconfig (group `system:masters`). It needs no other file.
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.layout.kubeconfig()
    }

    /// The address of the API server, as in the kubeconfig.
    pub fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.api_server)
    }

    /// The administrator's client, with the `User-Agent` [`USER_AGENT`](crate::control_plane::USER_AGENT). It does not retry.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A client of the administrator with another `User-Agent`. It does not retry.
    pub async fn client_named(&self, user_agent: &str) -> Result<Client, ControlPlaneError> {
        client(&self.kubeconfig_path(), user_agent).await
    }

    /// A kubeconfig with a client certificate for another user, who is in one group at most. Bind roles to the user for
    /// further rights.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<PathBuf, ControlPlaneError> {
        let group = match groups {
            [] => None,
            [group] => Some(*group),
            _ => return Err(ControlPlaneError::Groups { user: user.to_owned() }),
        };
        let path = self.layout.kubeconfigs().join(user.replace(['/', ':'], "-"));
        write_kubeconfig(&self.certificates, &self.server(), user, group, &path)?;
        Ok(path)
    }

    /// The audit log: one JSON object per line, never rotated. [`crate::control_plane::audit`] reads it.
    pub fn audit_log(&self) -> PathBuf {
        self.layout.audit_log()
    }

    /// The directory of the logs, `<process>.log` each.
    pub fn logs(&self) -> PathBuf {
        self.layout.logs()
    }

    /// The directory of the executables, kubectl among them.
    pub fn binaries(&self) -> &Path {
        &self.binaries
    }

    /// The directory with all files of this control plane.
    pub fn directory(&self) -> &Path {
        &self.layout.root
    }

    /// The certificate of the authority that signs all certificates, as PEM.
    pub fn authority_certificate(&self) -> String {
        self.certificates.authority_certificate()
    }

    /// The directory of the network of real nodes, if there is one.
    pub fn node_network(&self) -> Option<PathBuf> {
        self.network.lock().as_ref().map(|network| network.directory().to_owned())
    }

    /// The user data with which real nodes join. `settings` are further lines of the kubelet's configuration.
    pub fn user_data(&self, settings: &[&str]) -> String {
        let server = format!("https://{GATEWAY}:{}", self.ports.api_server);
        user_data(&server, &self.authority_certificate(), settings)
    }

    /// The process ids of the components that run.
    pub fn pids(&self) -> BTreeMap<Component, u32> {
        let processes = self.processes.lock();
        processes.iter().filter_map(|(component, process)| Some((*component, process.pid()?))).collect()
    }

    /// An error if a component ended by itself.
    pub fn check(&self) -> Result<(), ControlPlaneError> {
        self.processes.lock().values_mut().try_for_each(Process::check)?;
        Ok(self.network.lock().as_mut().map_or(Ok(()), Network::check)?)
    }

    /// Applies all objects of a manifest by server-side apply; see [`apply_yaml`].
    pub async fn apply_yaml(&self, yaml: &str) -> Result<Vec<DynamicObject>, ControlPlaneError> {
        apply::apply_yaml(&self.client, yaml).await
    }

    /// Applies a file, or all `*.yaml` files of a directory; see [`apply_file`].
    pub async fn apply_file(&self, path: impl AsRef<Path>) -> Result<Vec<DynamicObject>, ControlPlaneError> {
        apply::apply_file(&self.client, path.as_ref()).await
    }

    /// The same for several files and directories at once.
    pub async fn apply_files(&self, paths: &[PathBuf]) -> Result<Vec<DynamicObject>, ControlPlaneError> {
        apply::apply_files(&self.client, paths).await
    }

    /// Runs kubectl as the administrator and returns what it prints.
    pub async fn kubectl(
        &self,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<String, ControlPlaneError> {
        let program = self.binaries.join("kubectl");
        let arguments: Vec<_> = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
        let output = tokio::process::Command::new(&program)
            .args(&arguments)
            .env("KUBECONFIG", self.kubeconfig_path())
            // kubectl caches discovery results. Keep them out of the user's home.
            .env("KUBECACHEDIR", self.layout.root.join("kubectl-cache"))
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|source| ProcessError::Spawn { program, source })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(ControlPlaneError::Kubectl {
            arguments: arguments.join(OsStr::new(" ")).to_string_lossy().into_owned(),
            status: output.status.to_string(),
            stderr: String::from_utf8_lossy(&output.stderr).trim_end().to_owned(),
        })
    }

    /// Describes a further process that ends with this control plane and logs to [`logs`](Self::logs). Does not start it.
    pub fn process(
        &self,
        name: &str,
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<std::ffi::OsString>>,
    ) -> Process {
        Process::new(&self.supervisor, name, program, arguments, self.layout.log(name))
    }

    /// Kills a component (SIGKILL) and waits until it is gone.
    pub fn stop(&self, component: Component) -> Result<(), ControlPlaneError> {
        self.with_process("stop", component, |process| {
            process.kill();
            Ok(())
        })
    }

    /// Starts a stopped component with the same ports and data, and waits until it is ready.
    pub async fn start_again(&self, component: Component) -> Result<(), ControlPlaneError> {
        self.launch(component)?;
        self.wait_until_ready(component).await
    }

    /// Starts a stopped component, and waits for nothing.
    pub(crate) fn launch(&self, component: Component) -> Result<(), ControlPlaneError> {
        self.with_process("start", component, |process| Ok(process.start()?))
    }

    /// Kills a component, starts it with the same ports and data, and waits until it is ready.
    pub async fn restart(&self, component: Component) -> Result<(), ControlPlaneError> {
        self.stop(component)?;
        self.start_again(component).await
    }

    /// Pauses a component (SIGSTOP): it keeps its connections and does not answer.
    pub fn pause(&self, component: Component) -> Result<(), ControlPlaneError> {
        self.with_process("pause", component, |process| Ok(process.signal("STOP")?))
    }

    /// Resumes a paused component (SIGCONT).
    pub fn unpause(&self, component: Component) -> Result<(), ControlPlaneError> {
        self.with_process("unpause", component, |process| Ok(process.signal("CONT")?))
    }

    /// Waits until a component reports that it is ready. etcd counts as ready when the API server is.
    pub async fn wait_until_ready(&self, component: Component) -> Result<(), ControlPlaneError> {
        let probed = if component == Component::Etcd { Component::ApiServer } else { component };
        let url = self.ports.health(probed).unwrap_or_default();
        health::wait_until_ready(&self.kubeconfig_path(), &url, self.start_timeout, |progress| {
            // A component may wait for another one that has ended. Then the other one is the cause to report.
            self.check()?;
            self.with_process("wait for", component, |process| progress.check(process))
        })
        .await
    }

    fn with_process<T>(
        &self,
        action: &'static str,
        component: Component,
        run: impl FnOnce(&mut Process) -> Result<T, ControlPlaneError>,
    ) -> Result<T, ControlPlaneError> {
        match self.processes.lock().get_mut(&component) {
            Some(process) => run(process),
            None => Err(ControlPlaneError::NoSuchComponent { action, name: component.name() }),
        }
    }
}

impl std::fmt::Debug for ControlPlane {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = formatter.debug_struct("ControlPlane");
        fields.field("server", &self.server()).field("directory", &self.layout.root).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_send<T: Send>(_: &T) {}

    /// Tests spawn these futures. The compiler checks that they are `Send` only where they are spawned.
    #[allow(dead_code, reason = "compiled, never run")]
    fn futures_are_send(control_plane: &ControlPlane) {
        assert_send(&ControlPlane::start(crate::control_plane::ControlPlaneOptions::default()));
        assert_send(&control_plane.restart(Component::ApiServer));
        assert_send(&control_plane.apply_yaml(""));
        assert_send(&control_plane.kubectl(["version"]));
        assert_send(&control_plane);
    }
}
