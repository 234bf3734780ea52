//! Code that two or more controllers use. A controller imports from here and never from another controller.

pub(crate) mod class_secrets;
pub mod clusters;
pub mod drain;
pub(crate) mod failed_machines;
pub(crate) mod indexes;
pub mod ledger;
pub(crate) mod membership;
pub mod node;
pub(crate) mod ownership;
pub(crate) mod rivals;
pub mod schema;
pub(crate) mod status_writer;
