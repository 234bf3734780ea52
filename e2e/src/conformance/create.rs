//! How objects come to be.

use super::{
    objects::{KINDS, Kind, with},
    probe::{OURS, Probe, Request},
};
use crate::harness::TestResult;

pub(super) async fn post(probe: &mut Probe) -> TestResult {
    for kind in [KINDS.as_slice(), &[Kind::Lease, Kind::MachineSet, Kind::Node, Kind::Pod, Kind::Secret]].concat() {
        let object = probe.object(kind, "a");
        probe.ask("a create", Request::post(probe.all(kind), &object)).await?;
        probe.ask("a create of what is there", Request::post(probe.all(kind), &object)).await?;
    }
    for kind in KINDS {
        let versioned = with(probe.object(kind, "b"), "/metadata/resourceVersion", "1");
        probe.ask("a create with a version", Request::post(probe.all(kind), &versioned)).await?;
        let elsewhere = with(probe.object(kind, "b"), "/metadata/namespace", "elsewhere");
        probe.ask("a create with another namespace", Request::post(probe.all(kind), &elsewhere)).await?;
        let apply = with(probe.object(kind, "c"), "/metadata/resourceVersion", "1");
        probe.ask("an apply under version 1", Request::force(probe.path(kind, "c"), OURS, &apply)).await?;
    }
    Ok(())
}
