//! The laboratory: what tests and benchmarks start as processes on this computer.
//!
//! | module | content | command |
//! |---|---|---|
//! | [`process`] | child processes that end with their parent; logging, signals and error report of the commands | |
//! | [`node`] | VMs made of namespaces, whose real kubelets join a control plane | `nodewright-node` |
//! | [`control_plane`] | a real control plane; reading its audit log | `nodewright-control-plane` |
//! | [`cloud`] | the fake cloud as a process; its driver as a program | `nodewright-cloud` |
//! | [`ec2`] | moto's EC2 behind a proxy | `nodewright-ec2` |
//! | [`devcluster`] | control plane, cloud and manager together; installations of `config/` | `nodewright-devcluster` |
//!
//! ```text
//! process ◀── node ◀── control_plane ◀── devcluster
//!    ▲─────────┴─ cloud ◀── ec2 ◀───────────┘
//! ```

pub mod cloud;
pub mod control_plane;
pub mod devcluster;
pub mod ec2;
pub mod node;
pub mod process;
