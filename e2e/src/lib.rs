//! The local control plane, the fake cloud with its kubelets, and the end-to-end scenarios of Nodewright.

pub mod audit;
pub mod cloud;
pub mod conformance;
pub mod harness;
pub mod kubelet;
mod pages;
pub mod plane;
pub mod running_set;
