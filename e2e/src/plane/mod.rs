//! A real control plane on this machine: etcd, kube-apiserver, kube-controller-manager and kube-scheduler.
//!
//! [`Plane::start`] brings one up within seconds, on free ports of the loopback address, with certificates made on the
//! spot and with an audit log. Several can run at once. The executables come from [`binaries`].
//!
//! # Guarantees
//!
//! * When [`Plane::start`] returns, the API server, the controller manager and the scheduler say that they are
//!   ready, and the namespace `default` exists.
//! * No process and no file outlives the [`Plane`] or the process that started it; see [`supervisor`].
//!
//! # Caveats
//!
//! * Nothing is flushed to disk (`--unsafe-no-fsync`): the data survives a restart of etcd, not one of the machine.
//! * There is no network between pods and no kubelet: [`kwok`] or this crate's own stand-in plays the nodes.

mod apply;
mod binaries;
mod certificates;
pub mod command;
mod components;
mod error;
mod files;
mod health;
mod kubeconfig;
pub mod kwok;
mod options;
mod ports;
mod process;
mod start;
pub mod supervisor;

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kube::{Client, Config, api::DynamicObject, config::KubeConfigOptions};
use parking_lot::Mutex;

pub use self::{
    apply::{apply_file, apply_yaml, parse_manifest},
    binaries::{binaries, machine_controller_manager_crds},
    components::Component,
    error::PlaneError,
    options::PlaneOptions,
    process::Process,
};
use self::{certificates::Certificates, components::Ports, files::Layout, supervisor::Supervisor};
pub(crate) use self::{files::write_private, ports::free_ports};

/// How the requests of end-to-end tests name themselves: unlike Nodewright's, which are counted.
pub const USER_AGENT: &str = concat!("end-to-end/", env!("CARGO_PKG_VERSION"));

/// A running control plane. Dropping it ends its processes and removes its files. See the [module](self).
///
/// All methods take `&self`: tests share one plane.
pub struct Plane {
    processes: Mutex<BTreeMap<Component, Process>>,
    binaries: PathBuf,
    layout: Layout,
    ports: Ports,
    certificates: Certificates,
    start_timeout: Duration,
    client: Client,
    // Last: the processes are reaped before the supervisor ends.
    supervisor: Arc<Supervisor>,
}

impl Plane {
    /// Starts a control plane and waits until it is ready. Builds its executables first if they are missing.
    ///
    /// If somebody takes one of the chosen ports in between, others are tried.
    pub async fn start(options: PlaneOptions) -> Result<Self, PlaneError> {
        start::start(options).await
    }

    /// The administrator's kubeconfig (group `system:masters`). It needs no other file.
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.layout.kubeconfig()
    }

    /// The address of the API server, as in the kubeconfig.
    pub fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.api_server)
    }

    /// The administrator's client, which retries nothing and calls itself [`USER_AGENT`].
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A client of the administrator that calls itself `user_agent`, and retries nothing.
    pub async fn client_named(&self, user_agent: &str) -> Result<Client, PlaneError> {
        client(&self.kubeconfig_path(), user_agent).await
    }

    /// A kubeconfig for another user, known by a client certificate. A certificate made by us names at most one group;
    /// what more the user may do is granted with role bindings to the user.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<PathBuf, PlaneError> {
        let group = match groups {
            [] => None,
            [group] => Some(*group),
            _ => return Err(PlaneError::Groups { user: user.to_owned() }),
        };
        let path = self.layout.kubeconfigs().join(user.replace(['/', ':'], "-"));
        start::write_kubeconfig(&self.certificates, &self.server(), user, group, &path)?;
        Ok(path)
    }

    /// The audit log: one JSON object on each line, never rotated. [`crate::audit`] reads it.
    pub fn audit_log(&self) -> PathBuf {
        self.layout.audit_log()
    }

    /// The directory of the processes' logs, `<name>.log` each.
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

    /// The certificate authority that all the plane's certificates come from, as PEM.
    pub fn authority_certificate(&self) -> String {
        self.certificates.authority_certificate()
    }

    /// The process ids of the components that run.
    pub fn pids(&self) -> BTreeMap<Component, u32> {
        let processes = self.processes.lock();
        processes.iter().filter_map(|(component, process)| Some((*component, process.pid()?))).collect()
    }

    /// An error if a component has ended by itself.
    pub fn check(&self) -> Result<(), PlaneError> {
        self.processes.lock().values_mut().try_for_each(Process::check)
    }

    /// Applies all objects of a manifest by server-side apply; see [`apply_yaml`].
    pub async fn apply_yaml(&self, yaml: &str) -> Result<Vec<DynamicObject>, PlaneError> {
        apply::apply_yaml(&self.client, yaml).await
    }

    /// Applies a file, or all `*.yaml` files of a directory; see [`apply_file`].
    pub async fn apply_file(&self, path: impl AsRef<Path>) -> Result<Vec<DynamicObject>, PlaneError> {
        apply::apply_file(&self.client, path.as_ref()).await
    }

    /// Runs kubectl as the administrator and returns what it prints.
    pub async fn kubectl(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<String, PlaneError> {
        let program = self.binaries.join("kubectl");
        let arguments: Vec<_> = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
        let output = tokio::process::Command::new(&program)
            .args(&arguments)
            .env("KUBECONFIG", self.kubeconfig_path())
            // Discovery results of a server that is gone must not stay in the user's home.
            .env("KUBECACHEDIR", self.layout.root.join("kubectl-cache"))
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|source| PlaneError::Spawn { program, source })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(PlaneError::Kubectl {
            arguments: arguments.join(OsStr::new(" ")).to_string_lossy().into_owned(),
            status: output.status.to_string(),
            stderr: String::from_utf8_lossy(&output.stderr).trim_end().to_owned(),
        })
    }

    /// Describes a further process that ends with this control plane, and logs beside the others. It is not started.
    pub fn process(
        &self,
        name: &str,
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<std::ffi::OsString>>,
    ) -> Process {
        Process::new(&self.supervisor, name, program, arguments, self.layout.log(name))
    }

    /// Kills a component (SIGKILL) and waits until it is gone.
    pub fn stop(&self, component: Component) -> Result<(), PlaneError> {
        self.with_process("stop", component, |process| {
            process.kill();
            Ok(())
        })
    }

    /// Starts a component that was stopped, on the same ports and data, and waits until it is ready.
    pub async fn start_again(&self, component: Component) -> Result<(), PlaneError> {
        self.with_process("start", component, Process::start)?;
        self.wait_until_ready(component).await
    }

    /// Kills a component and starts it again, on the same ports and data; returns when it is ready.
    pub async fn restart(&self, component: Component) -> Result<(), PlaneError> {
        self.stop(component)?;
        self.start_again(component).await
    }

    /// Freezes a component (SIGSTOP): it keeps its connections and answers nothing.
    pub fn pause(&self, component: Component) -> Result<(), PlaneError> {
        self.with_process("pause", component, |process| process.signal("STOP"))
    }

    /// Lets a frozen component go on.
    pub fn unpause(&self, component: Component) -> Result<(), PlaneError> {
        self.with_process("unpause", component, |process| process.signal("CONT"))
    }

    /// Waits until a component says that it is ready. etcd is when the API server is.
    pub async fn wait_until_ready(&self, component: Component) -> Result<(), PlaneError> {
        let asked = if component == Component::Etcd { Component::ApiServer } else { component };
        let url = self.ports.health(asked).unwrap_or_default();
        health::wait_until_ready(&self.kubeconfig_path(), &url, self.start_timeout, |verdict| {
            // The one that is asked may wait for another, which has died: then that is what went wrong.
            self.check()?;
            self.with_process("wait for", component, |process| verdict.judge(process))
        })
        .await
    }

    fn with_process<T>(
        &self,
        action: &'static str,
        component: Component,
        run: impl FnOnce(&mut Process) -> Result<T, PlaneError>,
    ) -> Result<T, PlaneError> {
        match self.processes.lock().get_mut(&component) {
            Some(process) => run(process),
            None => Err(PlaneError::NoSuchComponent { action, name: component.name() }),
        }
    }
}

impl std::fmt::Debug for Plane {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut plane = formatter.debug_struct("Plane");
        plane.field("server", &self.server()).field("directory", &self.layout.root).finish_non_exhaustive()
    }
}

/// A client for any kubeconfig that calls itself `user_agent`, and retries nothing.
pub async fn client(kubeconfig: &Path, user_agent: &str) -> Result<Client, PlaneError> {
    let config = client_config(kubeconfig, user_agent).await?;
    Client::try_from(config).map_err(PlaneError::request("make a client"))
}

async fn client_config(kubeconfig: &Path, user_agent: &str) -> Result<Config, PlaneError> {
    let kubeconfig = kube::config::Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    let agent = http::HeaderValue::from_str(user_agent)
        .map_err(|error| PlaneError::request("use a User-Agent")(kube::Error::HttpError(error.into())))?;
    config.headers.push((http::header::USER_AGENT, agent));
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_shared_by_tasks<T: Send>(_: &T) {}

    /// Tests run these in tasks of their own. That they can is a property that the compiler checks only where it is used.
    #[allow(dead_code, reason = "compiled, never run")]
    fn futures_may_move_between_threads(plane: &Plane) {
        is_shared_by_tasks(&Plane::start(PlaneOptions::default()));
        is_shared_by_tasks(&plane.restart(Component::ApiServer));
        is_shared_by_tasks(&plane.apply_yaml(""));
        is_shared_by_tasks(&plane.kubectl(["version"]));
        is_shared_by_tasks(&plane);
    }
}
