//! The local control plane, the fake cloud with its kubelets, and the end-to-end scenarios of Nodewright.

pub mod audit;
pub mod cloud;
pub mod conformance;
pub mod harness;
pub mod kubelet;
mod mirror;
mod pages;
pub mod plane;
mod request;
pub mod running_set;
pub mod simulation;
