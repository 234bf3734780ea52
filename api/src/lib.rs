//! The Kubernetes API of Nodewright: types, names, defaults, validation rules.
//!
//! The four kinds of `machine.sapcloud.io/v1alpha1` have the fields of Gardener's machine-controller-manager (MCM), so that
//! each controller manager can take over the other's objects. Nodewright adds a status to [`MachineClass`], a selector to two
//! statuses for the scale subresource, and annotations under `nodewright.dev/`.
//!
//! ```text
//! JSON ── serde ──▶ Machine, MachineSet, MachineDeployment, MachineClass ── defaults ──▶ validation ──▶ field errors
//!                                  └── crd ──▶ custom resource definitions ◀── served ── an API server
//! ```
//!
//! * Kinds: [`Machine`], [`MachineSet`], [`MachineDeployment`], [`MachineClass`], and their [`common`] types.
//! * Names: [`annotations`], [`labels`], [`taints`], [`finalizers`], [`conditions`], [`reasons`], [`operations`], [`codes`].
//! * Values: [`GoDuration`], [`HealthTimeouts`], [`RawJson`], [`int_or_percent`], [`selector`], [`ClassIdentity`].
//! * Facts that controllers store in objects and read again: [`stored`].
//! * Rules: [`defaults`], and [`validation`] with its [`field`] errors. [`failed_field`] names the field of an error of `serde_json`.
//! * Definitions: [`crd`], and [`served`], which lists what an API server has of them.
//!
//! The crate does no I/O and reads no clock.
//!
//! # Guarantees
//!
//! * Each type reads what MCM's Go types write: absent fields, zero values, `null` for times, lists and maps, and unknown
//!   fields.
//! * No field is written as `null`, so that a value can be the body of a server-side apply.

// The lint takes the columns in the attribute of kube's derive for duplicates.
#![allow(clippy::duplicated_attributes)]

pub mod annotations;
pub mod codes;
pub mod common;
pub mod conditions;
pub mod crd;
pub mod defaults;
pub mod extended_resource;
mod failed_field;
pub mod field;
pub mod finalizers;
mod go_duration;
mod health_timeouts;
pub mod int_or_percent;
pub mod labels;
pub mod lenient;
pub mod machine;
pub mod machine_class;
pub mod machine_config;
pub mod machine_deployment;
pub mod machine_set;
pub mod operations;
mod raw_json;
pub mod reasons;
mod schema;
pub mod selector;
pub mod served;
pub mod stored;
pub mod taints;
pub mod text;
pub mod validation;
mod wire;

pub use codes::Code;
pub use common::{
    ClassRef, ConditionStatus, LastOperation, MachineSummary, NodeTemplate, NodeTemplateSpec, OperationState,
    OperationType, Taint,
};
pub use failed_field::failed_field;
pub use go_duration::{GoDuration, ParseGoDurationError};
pub use health_timeouts::{HealthTimeouts, ParseHealthTimeoutsError};
pub use machine::{CurrentStatus, Machine, MachinePhase, MachineSpec, MachineStatus, MachineTemplate};
pub use machine_class::{MachineClass, MachineClassCondition, MachineClassNodeTemplate, MachineClassStatus};
pub use machine_deployment::{
    InPlaceUpdate, MachineDeployment, MachineDeploymentCondition, MachineDeploymentSpec, MachineDeploymentStatus,
    OrchestrationType, RollbackConfig, RollingUpdate, Strategy, StrategyType,
};
pub use machine_set::{MachineSet, MachineSetCondition, MachineSetSpec, MachineSetStatus};
pub use raw_json::RawJson;
pub use stored::{ClassIdentity, identity_value};
pub use wire::without_nulls;

/// The API group.
pub const GROUP: &str = "machine.sapcloud.io";
/// The version of [`GROUP`].
pub const VERSION: &str = "v1alpha1";
/// The `apiVersion` of all four kinds.
pub const API_VERSION: &str = "machine.sapcloud.io/v1alpha1";
