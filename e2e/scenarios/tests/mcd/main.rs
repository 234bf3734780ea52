//! Nodewright and the unmodified daemon of machine-config-operator, in VMs with systemd and real kubelets.
//!
//! | module | content |
//! |---|---|
//! | [`fixture`] | a cluster whose nodes run the daemon |
//! | [`openshift`] | what the daemon needs of the API server |
//! | [`image`] | what the daemon needs on a node: the image of a VM, and what Ignition does there |
//! | [`rollout`] | a file, a unit and a field of the kubelet's configuration get to all nodes |
//! | [`writes`] | the stand-in of the other scenarios writes what the daemon writes |
//!
//! `make test-mcd` runs them. Where root, packages or the daemon's sources are missing, each prints `skipped NAME: REASON`.

mod fixture;
mod image;
mod openshift;
mod rollout;
