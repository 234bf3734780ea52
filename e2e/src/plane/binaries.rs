//! Where the executables of the control plane come from: `hack/control-plane.sh` knows.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use super::PlaneError;

/// The directory with kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, etcd and kwok. They are built
/// first if they are not there yet, which takes minutes; what the build says goes to our standard error.
///
/// `KUBEBUILDER_ASSETS` is honoured, by the script.
pub async fn binaries() -> Result<PathBuf, PlaneError> {
    run_script("control-plane.sh").await
}

/// The directory that holds the CRDs of machine-controller-manager, in the version that `hack/tools` pins.
pub async fn machine_controller_manager_crds() -> Result<PathBuf, PlaneError> {
    run_script("mcm-crds.sh").await
}

/// Runs a script that prints a directory.
async fn run_script(name: &str) -> Result<PathBuf, PlaneError> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hack").join(name);
    let failed = |reason: String| PlaneError::Binaries { reason };
    let child = tokio::process::Command::new(&script)
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
