//! What plans depend on of the driver, as values: no plan calls it.

use std::time::Duration;

use nodewright_driver::Driver;

/// The provider of a driver. It stays the same while a process runs.
#[derive(Clone, Debug)]
pub struct Provider {
    pub name: String,
    /// The fields below `providerSpec` by which it finds VMs.
    pub identity: Vec<String>,
}

impl Provider {
    pub fn of(driver: &dyn Driver) -> Self {
        let identity = driver.identity().into_iter().map(str::to_owned).collect();
        Self { name: driver.name().to_owned(), identity }
    }
}

/// What a driver says of itself. It may say something else after it has started again.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each says of one call or promise whether there is one")]
pub struct DriverProperties {
    /// The deadline of a call.
    pub deadline: Duration,
    /// How long a new VM may be missing in answers.
    pub consistency: Duration,
    /// The pause between two questions whether a VM is gone.
    pub poll: Duration,
    /// Whether VMs keep the token of their creation.
    pub stores_owner: bool,
    /// Whether new VMs have to be initialized.
    pub initializes: bool,
    /// Whether it says which volumes are the provider's.
    pub knows_volumes: bool,
    /// Whether it describes VMs as their Nodes need it.
    pub describes_instances: bool,
    /// Whether it describes VMs that were not made for a Machine.
    pub describes_unowned: bool,
}

impl DriverProperties {
    pub fn of(driver: &dyn Driver) -> Self {
        Self {
            deadline: driver.deadline(),
            consistency: driver.consistency(),
            poll: driver.poll(),
            stores_owner: driver.stores_owner(),
            initializes: driver.initializes(),
            knows_volumes: driver.knows_volumes(),
            describes_instances: driver.describes_instances(),
            describes_unowned: driver.describes_unowned(),
        }
    }
}
