//! Admission webhooks: defaults, validation, certificates.
//!
//! The API server sends a MachineDeployment, MachineClass, MachineSet or Machine here before it stores the object, and, where
//! the kinds are served, a MachineConfig, MachineConfigPool, KubeletConfig or ControllerConfig. The webhooks set absent fields
//! ([`nodewright_api::defaults`]), refuse invalid ones ([`nodewright_api::validation`], [`nodewright_render`]), and begin the
//! trace of the change.
//!
//! ```text
//! API server ── TLS ──▶ server ──▶ review ──▶ admission: decode ──▶ mutate or validate ──▶ response
//!     ▲                    ▲ certificate
//!     └─ registration ◀── certificates ◀── a Secret, or files
//! ```
//!
//! * [`WebhookServer`]: the server, its certificate, and its registration.
//! * [`configurations`](configurations()): the webhook configurations, as in `config/webhook`.
//! * `admission`: the decisions, without I/O.
//!
//! # Guarantees
//!
//! * The API server does not call the webhooks for a change that leaves the spec alone. Finalizers, garbage collection,
//!   adoption and status updates work while no webhook runs. See [`configurations`](configurations()).
//! * A response depends on the request alone: a review reads and writes no other object.
//! * Memory is bounded, and no request stops the server, however large, slow or deep it is.
//! * The server requests objects by name only: one Secret and three webhook configurations. It asks besides which
//!   kinds of node configuration there are.

mod admission;
mod certificates;
mod configurations;
mod error;
mod json_size;
mod registration;
mod review;
mod server;

pub use admission::{IdentityFields, ProviderSpecCheck};
pub use certificates::CertificateSource;
pub use configurations::{
    Action, ClientConfig, Configurations, DEFAULT_NAMESPACE, Endpoint, ReviewedKind, configurations, endpoints,
    machine_config_configuration,
};
pub use registration::{FIELD_MANAGER, Registration};
pub use server::{BindError, Limits, Options, Readiness, WebhookServer};
