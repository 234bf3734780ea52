//! Shared code for tests on a control plane: failures, waits, CRDs, and clusters that several tests use.

mod cluster;

use std::{env, error::Error, fmt, path::PathBuf, sync::OnceLock, time::Duration};

use tokio::{runtime::Runtime, time::Instant};

use crate::{
    control_plane::{machine_controller_manager_crds, openshift_machine_config_crds},
    process::{repository, with_causes},
};

pub use self::cluster::{Cluster, EXTERNAL_VARIABLE, skip_on_external_cluster};

/// `mcm`: tests install machine-controller-manager's CRDs, not ours.
pub const CRDS_VARIABLE: &str = "NODEWRIGHT_E2E_CRDS";
/// How long [`eventually`] waits: a computer that also compiles is slow.
pub const TIMEOUT: Duration = Duration::from_mins(2);
/// Time between two checks of a wait.
const INTERVAL: Duration = Duration::from_millis(50);

/// Why a test failed, as text of one or more lines. `?` makes it from any error. The test runner prints the `Debug` form,
/// which is the text.
pub struct Failure(String);

/// The result of a test.
pub type TestResult<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Appends a line.
    #[must_use]
    pub fn and(self, more: &str) -> Self {
        Self(format!("{}\n{more}", self.0))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

// `Failure` itself is no `Error`: this conversion would overlap with the one of a type into itself.
impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(with_causes(&error))
    }
}

/// Fails with this text unless the condition holds.
pub fn ensure(holds: bool, text: impl FnOnce() -> String) -> TestResult {
    if holds { Ok(()) } else { Err(Failure(text())) }
}

/// Waits until a check returns true, for [`TIMEOUT`] at most. `what` is the subject of the failure.
pub async fn eventually(what: &str, mut check: impl AsyncFnMut() -> TestResult<bool>) -> TestResult {
    let since = Instant::now();
    while !check().await? {
        if since.elapsed() > TIMEOUT {
            return Err(Failure::new(format!("{what} did not happen within {TIMEOUT:?}")));
        }
        tokio::time::sleep(INTERVAL).await;
    }
    Ok(())
}

/// Whether tests install machine-controller-manager's CRDs, and OpenShift's of node configuration.
pub fn has_mcm_crds() -> bool {
    env::var(CRDS_VARIABLE).is_ok_and(|choice| choice == "mcm")
}

/// The directory of the CRDs that tests install.
pub async fn crds() -> TestResult<PathBuf> {
    match env::var(CRDS_VARIABLE).as_deref() {
        Ok("mcm") => Ok(machine_controller_manager_crds().await?),
        Ok("nodewright" | "") | Err(_) => Ok(repository().join("config/crd/bases")),
        Ok(other) => Err(Failure::new(format!("{CRDS_VARIABLE} is {other:?}; it must be nodewright or mcm"))),
    }
}

/// The CRDs of node configuration that tests install: OpenShift's beside machine-controller-manager's.
pub async fn machine_config_crds() -> TestResult<Vec<PathBuf>> {
    if has_mcm_crds() {
        return Ok(openshift_machine_config_crds().await?);
    }
    Ok(vec![repository().join("config/crd/machine-config/bases")])
}

/// Runs a future on a runtime that lives as long as the process. Each test has a runtime of its own; tasks and connections
/// that several tests use must not end with one of them.
pub async fn on_shared_runtime<T: Send + 'static>(
    work: impl Future<Output = TestResult<T>> + Send + 'static,
) -> TestResult<T> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().map_err(|error| error.to_string())
    });
    match runtime {
        Ok(runtime) => runtime.spawn(work).await?,
        Err(error) => Err(Failure::new(format!("failed to start a runtime: {error}"))),
    }
}
