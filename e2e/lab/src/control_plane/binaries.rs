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

/// The directory with the cloud controller manager of our fake cloud. Builds it first if it is missing, which takes minutes.
pub async fn cloud_controller_manager_binaries() -> Result<PathBuf, ControlPlaneError> {
    run_script("ccm.sh", &[]).await
}

/// OpenShift's CRDs of the other kinds that machine-config-daemon reads and writes.
pub async fn openshift_daemon_crds() -> Result<Vec<PathBuf>, ControlPlaneError> {
    let api = openshift_api().await?;
    let payload = api.join("payload-manifests/crds");
    let names = [
        "0000_10_config-operator_01_featuregates",
        "0000_80_machine-config_01_internalreleaseimages-SelfManagedHA",
        "0000_80_machine-config_01_machineconfignodes-Default",
        "0000_80_machine-config_01_machineconfigurations-Default",
        "0000_80_machine-config_01_pinnedimagesets",
    ];
    let version =
        "config/v1/zz_generated.crd-manifests/0000_00_cluster-version-operator_01_clusterversions-Default.crd.yaml";
    let of_payload = names.map(|name| payload.join(format!("{name}.crd.yaml")));
    Ok(of_payload.into_iter().chain([api.join(version)]).collect())
}

/// The directory with machine-config-operator's daemon. Builds it first if it is missing, which takes minutes. `None` if its
/// sources are out of reach; the output of the script says so on standard error.
pub async fn machine_config_daemon() -> Result<Option<PathBuf>, ControlPlaneError> {
    match run_script("mcd.sh", &[]).await {
        Err(ControlPlaneError::NoSource { .. }) => Ok(None),
        directory => directory.map(Some),
    }
}

/// The exit status of a script whose sources are out of reach.
const NO_SOURCE: i32 = 77;

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
    if output.status.code() == Some(NO_SOURCE) {
        return Err(ControlPlaneError::NoSource { script });
    }
    if !output.status.success() {
        return Err(failed(format!("{} ended with {}; see its output above", script.display(), output.status)));
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end()))
}
