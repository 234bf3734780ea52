//! Renders the configuration of a pool of nodes: many MachineConfigs become one, whose name follows from its content.
//!
//! ```text
//! ControllerConfig ── templates ──▶ MachineConfigs
//!
//! MachineConfigs ── rules, ignition::parse ──▶ merge ──▶ Rendered: spec, provenance ──▶ name
//!                                                              └── change ──▶ what differs, whether that can be done in
//!                                                                             place, what it costs a node
//! ```
//!
//! The crate does no I/O and reads no clock. It makes the same bytes of the same objects on a laptop and in a cluster.

pub mod change;
pub mod ignition;
pub mod inputs;
pub mod kubelet;
pub mod merge;
pub mod name;
pub mod provenance;
pub mod rules;
pub mod spec;
pub mod templates;
mod yaml;

pub use merge::{Input, Options, RenderError, Rendered, check_image_owner, render};
pub use name::name;
pub use provenance::{Origin, Provenance};
pub use spec::{LARGEST, RenderedSpec};
