//! The Kubernetes API of Nodewright: types, names, defaults, validation rules.
//!
//! The four kinds of `machine.sapcloud.io/v1alpha1` are those of Gardener's machine-controller-manager
//! (MCM), field for field, so that either controller manager can take over the objects of the other.
//! What is added stands beside it: a status on [`MachineClass`], a selector in two status types (for the
//! scale subresource), and annotations under `nodewright.dev/`.
//!
//! The crate does no I/O and knows no clock:
//!
//! * the kinds: [`Machine`], [`MachineSet`], [`MachineDeployment`], [`MachineClass`], and what they
//!   share in [`common`];
//! * the names that are part of the contract: [`annotations`], [`labels`], [`taints`], [`finalizers`],
//!   [`conditions`], [`reasons`], [`operations`], [`codes`];
//! * values with a syntax of their own: [`GoDuration`], [`RawJson`], [`int_or_percent`], [`selector`];
//! * by what the VMs of a class are found: [`ClassIdentity`];
//! * rules: [`defaults`], [`validation`] with its [`field`] errors;
//! * [`crd`]: the custom resource definitions; [`served`]: which of our additions an API server has.
//!
//! # Guarantees
//!
//! * Every type reads what MCM's Go types write: absent fields, zero values, `null` for times, lists
//!   and maps, and unknown fields.
//! * Nothing is ever written as `null`, so that a value can be the body of a server-side apply.

// kube's derive takes a list of columns, whose types the lint takes for one attribute said twice.
#![allow(clippy::duplicated_attributes)]

pub mod annotations;
mod class_identity;
pub mod codes;
pub mod common;
pub mod conditions;
pub mod crd;
pub mod defaults;
pub mod field;
pub mod finalizers;
mod go_duration;
pub mod int_or_percent;
pub mod labels;
pub mod lenient;
pub mod machine;
pub mod machine_class;
pub mod machine_deployment;
pub mod machine_set;
pub mod operations;
mod raw_json;
pub mod reasons;
mod schema;
pub mod selector;
pub mod served;
pub mod taints;
pub mod validation;
mod wire;

pub use class_identity::ClassIdentity;
pub use codes::Code;
pub use common::{
    ClassRef, ConditionStatus, LastOperation, MachineSummary, MachineTemplate, NodeTemplate, NodeTemplateSpec,
    OperationState, OperationType, Taint,
};
pub use go_duration::{GoDuration, ParseGoDurationError};
pub use machine::{CurrentStatus, Machine, MachinePhase, MachineSpec, MachineStatus};
pub use machine_class::{MachineClass, MachineClassCondition, MachineClassNodeTemplate, MachineClassStatus};
pub use machine_deployment::{
    InPlaceUpdate, MachineDeployment, MachineDeploymentCondition, MachineDeploymentSpec, MachineDeploymentStatus,
    OrchestrationType, RollbackConfig, RollingUpdate, Strategy, StrategyType,
};
pub use machine_set::{MachineSet, MachineSetCondition, MachineSetSpec, MachineSetStatus};
pub use raw_json::RawJson;

/// The API group of all four kinds.
pub const GROUP: &str = "machine.sapcloud.io";

/// The only version of [`GROUP`].
pub const VERSION: &str = "v1alpha1";

/// `group/version`, as it stands in `apiVersion`.
pub const API_VERSION: &str = "machine.sapcloud.io/v1alpha1";
