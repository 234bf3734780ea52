//! Named runs: faults that cost machines in other controllers, and faults that random runs rarely find.
//!
//! The end-to-end tests also play those on a real control plane that need no control of the API server.

mod api_server;
mod brakes;
mod builders;
mod claims;
mod cloud;
mod cloud_nodes;
mod managers;
mod pods;
mod pools;
mod preservation;
mod rollouts;
mod set_backs;
mod updates;
mod users;

pub use self::pods::ten_pods;
use crate::run::Scenario;

/// All named runs.
pub fn all() -> Vec<Scenario> {
    [
        cloud::clouds(),
        cloud::late_vms(),
        cloud::lost_vms(),
        brakes::brakes(),
        cloud_nodes::cloud_nodes(),
        managers::caches(),
        managers::managers(),
        managers::clocks(),
        managers::conflicting(),
        api_server::servers(),
        api_server::requests(),
        users::users(),
        users::orphans(),
        claims::claims(),
        users::tampered(),
        pods::pods(),
        pools::pools(),
        preservation::preservations(),
        rollouts::rollouts(),
        set_backs::set_backs(),
        updates::updates(),
    ]
    .concat()
}
