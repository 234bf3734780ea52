//! Leader election, the right to write that it gives, and handles that are created before it.

mod clock;
mod config;
mod election;
mod error;
mod handle;
mod protocol;
mod term;

pub use self::{
    clock::{BootClock, Clock, TokioClock},
    config::{LeaseConfig, LeaseConfigError},
    election::Election,
    handle::{LeadershipGuard, LeadershipHandle},
    term::Leadership,
};

#[cfg(test)]
mod tests;
