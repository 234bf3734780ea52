//! The executables of the control plane, which `hack/control-plane.sh` builds.

use std::{path::PathBuf, process::Stdio};

use crate::{control_plane::ControlPlaneError, process::repository};

/// The directory with kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, etcd and kwok. Builds missing ones
/// first, which takes minutes; the output of the build goes to standard error.
///
/// The script takes executables from `KUBEBUILDER_ASSETS`.
pub async fn binaries() -> Result<PathBuf, ControlPlaneError> {
    run_script("control-plane.sh", &[]).await
}

/// The directory with kubelet, kube-proxy and pause. Builds missing ones first, which takes a minute.
pub async fn kubelet_binaries() -> Result<PathBuf, ControlPlaneError> {
    run_script("control-plane.sh", &["--kubelet"]).await
}

/// The directory of machine-controller-manager's CRDs, in the version that `hack/tools` pins.
pub async fn machine_controller_manager_crds() -> Result<PathBuf, ControlPlaneError> {
    run_script("mcm-crds.sh", &[]).await
}

/// The directory of openshift/api, in the version that `hack/tools` pins.
pub async fn openshift_api() -> Result<PathBuf, ControlPlaneError> {
    run_script("openshift-api.sh", &[]).await
}

/// OpenShift's CRDs of node configuration, for a cluster with default features.
pub async fn openshift_machine_config_crds() -> Result<Vec<PathBuf>, ControlPlaneError> {
    let crds = openshift_api().await?.join("payload-manifests/crds");
    let names =
        ["controllerconfigs-Default", "kubeletconfigs-Default", "machineconfigpools-SelfManagedHA", "machineconfigs"];
    Ok(names.map(|name| crds.join(format!("0000_80_machine-config_01_{name}.crd.yaml"))).to_vec())
}

/// The directory with machine-controller-manager, and with machine-controller for the fake cloud. Builds them first if they are
/// missing, which takes minutes; the output of the build goes to standard error.
pub async fn machine_controller_manager_binaries() -> Result<PathBuf, ControlPlaneError> {
    run_script("mcm.sh", &[]).await
}

/// Runs a script that prints a directory.
async fn run_script(name: &str, arguments: &[&str]) -> Result<PathBuf, ControlPlaneError> {
    let script = repository().join("hack").join(name);
    let failed = |reason: String| ControlPlaneError::Binaries { reason };
    let child = tokio::process::Command::new(&script)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(format!("{} does not start: {error}; is the checkout complete?", script.display())))?;
    let output = child.wait_with_output().await.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(format!("{} ended with {}; see its output above", script.display(), output.status)));
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end()))
}
