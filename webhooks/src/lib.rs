//! Admission webhooks: defaults, validation, certificates.
//!
//! The API server asks here before it stores a MachineDeployment, MachineClass, MachineSet or Machine. What is absent
//! is filled in ([`nodewright_api::defaults`]), what can never work is refused with the name of the field
//! ([`nodewright_api::validation`]), and the trace of the change begins.
//!
//! * [`WebhookServer`]: the server, its certificate, and its registration in the cluster;
//! * [`configurations`](configurations()): what the API server is told about it, the same as `config/webhook`;
//! * `admission`: the decisions, without any network.
//!
//! # Guarantees
//!
//! * Nothing is asked of the webhooks for a change that leaves the spec alone: finalizers, garbage collection,
//!   adoption and statuses go on while no webhook runs. See [`configurations`](configurations()).
//! * A review reads no other object, and writes none: an answer depends on the request alone.
//! * No request, however large, slow or deep, stops the server, and none makes it use memory without bound.
//! * The server asks the API server for objects by name only: one Secret and two webhook configurations.

mod admission;
mod census;
mod certificates;
mod configurations;
mod error;
mod registration;
mod review;
mod server;

pub use admission::{IdentityFields, ProviderSpecCheck};
pub use certificates::CertificateSource;
pub use configurations::{Action, Configurations, Endpoint, Installation, Reach, Subject, configurations, endpoints};
pub use error::WebhookError;
pub use registration::{FIELD_MANAGER, Registration};
pub use server::{Limits, Options, Readiness, ServedCertificate, WebhookServer};

/// How requests of this crate name themselves to the API server.
pub const USER_AGENT: &str = concat!("nodewright/", env!("CARGO_PKG_VERSION"), " (webhook)");
