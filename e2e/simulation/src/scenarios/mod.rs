//! Named runs: what has cost machines in other controllers, and what random runs rarely find.
//!
//! The end-to-end tests play those that need no hand in the API server on a real control plane as well.

mod api_server;
mod builders;
mod claims;
mod cloud;
mod managers;
mod users;

use crate::run::Scenario;

/// All named runs.
pub fn all() -> Vec<Scenario> {
    [
        cloud::clouds(),
        cloud::late_vms(),
        managers::caches(),
        managers::managers(),
        managers::rivals(),
        api_server::servers(),
        api_server::requests(),
        users::users(),
        users::orphans(),
        claims::claims(),
        users::tampered(),
    ]
    .concat()
}
