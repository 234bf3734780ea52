//! A fake cloud: virtual machines over HTTP, with every failure of a real cloud on demand.
//!
//! [`Cloud`] is the cloud itself, without clock, network or disk. [`Server`] adds these, and a kubelet for each booted VM; the
//! command `nodewright-cloud` of the laboratory, `e2e/lab`, is that server as a process, which tests call with
//! [`CloudClient`]. [`LocalCloud`] is the same without ports, in this process and on any clock, for simulations.
//!
//! # The API
//!
//! | call | answer |
//! |---|---|
//! | `POST /vms` [`CreateVm`] | 201 and the [`Vm`]; 200 and the same VM for the same token; 409 `AlreadyExists` for the same token with other parameters; 409 `FailedPrecondition` for a token whose VM is gone; 429 `ResourceExhausted` beyond the quota |
//! | `GET /vms?tag.KEY=&name=&limit=&after=` | [`Page`] of VMs |
//! | `GET /vms/ID` | the VM, or 404 `NotFound` |
//! | `DELETE /vms/ID` | 202 and the VM, now `deleting`; 404 `NotFound` once it is gone |
//! | `POST /vms/ID/kill`, `POST /vms/ID/start` | the VM dies (`stopped`), runs again |
//! | `POST /vms/ID/kubelet` [`KubeletOrder`] | sets the behavior of its kubelet |
//! | `POST /vms/ID/hardware` [`HardwareOrder`] | makes it hang, cuts its network, slows its disk down |
//! | `POST /faults` [`FaultOrder`], `GET /faults`, `DELETE /faults`, `DELETE /faults/ID` | faults, each a [`Fault`] |
//! | `GET /quota`, `PUT /quota` [`Quota`] | the quota |
//! | `GET /stats`, `POST /stats/reset` | [`Stats`] |
//! | `GET /events?after=&limit=` | [`Page`] of [`Event`]s, the history |
//! | `GET /healthz` | 200 |
//!
//! An error has the body `{"code": CODE, "message": TEXT}`, see [`Code`], with `"throttled": true` if the account makes too many
//! calls, `"quota": true` if its quota is exhausted, and the `"zone"` that has no capacity. Calls with the header
//! [`OBSERVER_HEADER`] come from tests: they are not counted and not delayed, and meet no faults. Requests with `/as/NAME` before
//! the path are also counted under this name, so that two managers of one cloud can be distinguished.
//!
//! # Real nodes
//!
//! With `--real-nodes`, a VM is one of the laboratory ([`RealNodes`]), with a kubelet that runs pods. It knows nothing of the
//! cluster but what is in its user data. Orders to kubelets and hardware reach the real ones; those that only a stand-in can
//! follow, such as to flap, are refused.
//!
//! # Test orders
//!
//! ```text
//! curl -d '{"operation":"create","match":{"machine":"a-*"},"count":3,"effect":{"kind":"error","code":"Internal"}}' $URL/faults
//! curl -d '{"operation":"any","for_seconds":60,"effect":{"kind":"latency","seconds":2}}' $URL/faults
//! curl -d '{"operation":"create","effect":{"kind":"apply-late","seconds":90}}' $URL/faults
//! curl -d '{"action":"flap","seconds":5}' $URL/vms/$ID/kubelet
//! curl -X PUT -d '{"vms":3}' $URL/quota
//! ```
//!
//! [`Effect`] lists all effects, [`KubeletOrder`] all actions.
//!
//! # Guarantees
//! * One token creates at most one VM, forever; see [`state`].
//! * With a state file, every answered change survives the process; see [`store`].

mod accept;
pub mod address;
pub mod api;
mod calls;
pub mod client;
mod clocked;
pub mod disks;
mod fault;
pub mod kubelet;
pub mod local;
pub mod memory;
pub mod mirror;
pub mod node_agent;
mod node_view;
mod nodes;
pub mod pages;
pub mod request;
mod routes;
pub mod server;
pub mod state;
pub mod store;
#[cfg(test)]
mod tests;

pub use self::{
    accept::accept,
    api::{
        Address, AddressOrder, Code, CreateVm, Effect, Event, EventKind, Failure, Fault, FaultMatch, FaultOperation,
        FaultOrder, HardwareOrder, KubeletOrder, ListVms, NodeTemplate, OBSERVER_HEADER, Page, Quota, Stats, Taint, Vm,
        VmState,
    },
    calls::{Call, Caller},
    client::{ClientError, CloudClient},
    fault::validate as validate_fault,
    local::LocalCloud,
    nodes::RealNodes,
    routes::CloudService,
    server::{Kubelets, Options, Server, ServerError},
    state::{Answer, Cloud, Reply, Settings},
};
