//! Nodewright and the unmodified daemon of machine-config-operator, in VMs with systemd and real kubelets.
//!
//! | module | content |
//! |---|---|
//! | [`fixture`] | a cluster whose nodes run the daemon |
//! | [`openshift`] | what the daemon needs of the API server |
//! | [`image`] | what the daemon needs on a node: the image of a VM, and what Ignition does there |
//! | [`rollout`] | changes get to all nodes, and are taken back; the stand-in of other scenarios writes what the daemon writes |
//! | [`drift`] | a file that somebody has changed by hand |
//! | [`crashes`] | the manager and the daemons are killed |
//! | [`takeover`] | a pool of machine-config-operator becomes Nodewright's |
//!
//! `make test-mcd` runs them. Where root, packages or the daemon's sources are missing, each prints `skipped NAME: REASON`.

mod crashes;
mod drift;
mod fixture;
mod image;
mod openshift;
mod rollout;
mod takeover;
