//! The choice of the driver.

use std::sync::Arc;

use nodewright_driver::Driver;
use nodewright_driver_simulated::{Options, PROVIDER, SimulatedDriver};
use nodewright_runtime::leadership::LeadershipHandle;

use crate::{Outcome, flags::ProviderFlags};

/// The driver of `--cloud-provider`.
pub(crate) fn driver(flags: &ProviderFlags, leading: &LeadershipHandle) -> Outcome<Arc<dyn Driver>> {
    debug_assert_eq!(flags.cloud_provider, PROVIDER);
    let options = Options::new(&flags.simulated_cloud_url);
    Ok(Arc::new(SimulatedDriver::new(&options, leading)?))
}
