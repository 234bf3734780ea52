//! An EC2 for tests: moto's server, which nobody here wrote, and before it a proxy with what EC2 does and moto does not.
//!
//! ```text
//!   driver ──▶ nodewright-ec2 ──▶ moto_server
//!                 │  tokens, hidden VMs, throttling, lost and late answers
//!                 └─▶ kubelets of the VMs that run, in a cluster
//! ```
//!
//! [`Ec2`] is the proxy, without a network of its own; `nodewright-ec2` serves it, and keeps a kubelet stand-in for each VM of a
//! cluster that runs. [`Ec2Processes`] are moto and that server as child processes. [`Moto`] asks moto past the proxy.
//!
//! # Guarantees
//! * One token makes at most one VM, also when the proxy is killed.
//! * What moto shows is what exists: the proxy keeps nothing that it cannot learn again.
//!
//! # Caveats
//! A proxy that was killed does not know with which parameters a token was used: it answers with the VM of the token.

pub mod account;
mod answers;
pub mod command;
mod error;
pub mod faults;
mod moto;
mod nodes;
mod processes;
mod proxy;

pub use self::{
    account::Account,
    answers::Vm,
    error::Ec2Error,
    faults::Faults,
    moto::{MOTO_VARIABLE, Moto},
    processes::{Ec2Options, Ec2Processes, MotoServer},
    proxy::{Answer, Ec2, Outage, REJECTED_KEY},
};
