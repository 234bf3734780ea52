//! Reads of single objects.

use super::{
    objects::{KINDS, Kind},
    probe::{Probe, Request},
};
use nodewright_e2e_lab::control_plane::testing::TestResult;

pub(super) async fn get(probe: &mut Probe) -> TestResult {
    for kind in [KINDS.as_slice(), &[Kind::Node, Kind::Pod]].concat() {
        let (all, path) = (probe.all(kind), probe.path(kind, "a"));
        let live = probe.quietly(&Request::post(&all, &probe.object(kind, "a"))).await?;
        probe.ask("a read", Request::get(&path)).await?;
        probe.ask("a read of what is not there", Request::get(probe.path(kind, "b"))).await?;
        let at = format!("resourceVersion={}", live.version());
        probe.ask("a read as new as its version", Request::get(&path).query(&at)).await?;
        probe.ask("a read of the status", Request::get(format!("{path}/status"))).await?;
    }
    Ok(())
}

/// The freshness of reads.
pub(super) async fn versions(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        let (all, path) = (probe.all(kind), probe.path(kind, "a"));
        let live = probe.quietly(&Request::post(&all, &probe.object(kind, "a"))).await?;
        // A read at any version comes from the cache, so the cache must contain the object first.
        let at = format!("resourceVersion={}", live.version());
        probe.quietly(&Request::get(&path).query(&at)).await?;
        probe.ask("a read of any version", Request::get(&path).query("resourceVersion=0")).await?;
        let missing = Request::get(probe.path(kind, "b"));
        probe.ask("a read of any version of what is not there", missing.query("resourceVersion=0")).await?;
        probe.ask("a read of what is yet to come", Request::get(&path).query("resourceVersion=999999999")).await?;
        probe.ask("a read of a version that is none", Request::get(&path).query("resourceVersion=x")).await?;
    }
    Ok(())
}
