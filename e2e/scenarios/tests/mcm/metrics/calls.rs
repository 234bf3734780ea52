//! How often the driver was called, which calls failed, and how long they took.

use std::collections::{BTreeMap, BTreeSet};

use nodewright_e2e_scenarios::{TestResult, ensure};

use super::{CREATED, DELAY, Families, REFUSALS, Work};

const DURATION: &str = "mcm_cloud_api_driver_request_duration_seconds";
const FAILED: &str = "mcm_cloud_api_driver_requests_failed_total";
const REQUESTS: &str = "mcm_cloud_api_requests_total";
const FAILED_REQUESTS: &str = "mcm_cloud_api_requests_failed_total";
const REQUEST_DURATION: &str = "mcm_cloud_api_api_request_duration_seconds";
/// gRPC's numbers of the codes of the failures; a call that succeeded has none.
const SUCCEEDED: &str = "";
const NOT_FOUND: &str = "5";
const ABORTED: &str = "10";
const UNAVAILABLE: &str = "14";

/// How often a call was made.
#[derive(Clone, Copy, Debug)]
enum Count {
    Is(u64),
    Any,
}

/// How often both sides make a call for the same work.
struct Row {
    operation: &'static str,
    code: &'static str,
    theirs: Count,
    ours: Count,
    reason: &'static str,
}

/// The same number of times on both sides.
const fn both(operation: &'static str, code: &'static str, count: u64, reason: &'static str) -> Row {
    Row { operation, code, theirs: Count::Is(count), ours: Count::Is(count), reason }
}

/// All calls. One that is not here fails the comparison.
const CALLS: [Row; 7] = [
    both("create_machine", SUCCEEDED, CREATED, "each VM is created once"),
    both("create_machine", ABORTED, 1, "the refusal; then the call is made again"),
    both("delete_machine", SUCCEEDED, CREATED, "each VM is deleted once, and as many go as come"),
    both("delete_machine", UNAVAILABLE, 1, "the refusal; then the call is made again"),
    Row {
        operation: "get_machine_status",
        code: NOT_FOUND,
        theirs: Count::Is(CREATED + 1),
        ours: Count::Is(2 * CREATED + 1),
        reason: "both look for the VM before each creation; Nodewright also asks after a deletion until the VM is gone",
    },
    Row {
        operation: "get_machine_status",
        code: SUCCEEDED,
        theirs: Count::Any,
        ours: Count::Any,
        reason: "machine-controller-manager asks again whenever it goes on with a Machine; Nodewright while a VM is going",
    },
    Row {
        operation: "list_machine",
        code: SUCCEEDED,
        theirs: Count::Any,
        ours: Count::Any,
        reason: "for orphaned VMs: machine-controller-manager lists those of each class after each deletion of a Machine, \
            Nodewright at times that do not depend on the work",
    },
];

pub(super) fn compare(theirs: &Work, ours: &Work) -> TestResult {
    for (side, work) in [("machine-controller-manager", theirs), ("Nodewright", ours)] {
        let made = made(work);
        println!("{side} in {} s: {made:?}", work.lasted.as_secs());
        for row in &CALLS {
            let expected = if side == "Nodewright" { row.ours } else { row.theirs };
            let found = made.get(&(row.operation, row.code)).copied().unwrap_or_default();
            let fits = matches!(expected, Count::Any) || matches!(expected, Count::Is(count) if count == found);
            let (operation, code) = (row.operation, row.code);
            ensure(fits, || format!("{side} made {found} {operation} ({code}), not {expected:?}: {}", row.reason))?;
        }
        let unknown = made.keys().find(|call| !CALLS.iter().any(|row| (row.operation, row.code) == **call));
        ensure(unknown.is_none(), || format!("{side} made {unknown:?}"))?;
        as_the_cloud_counts(side, work, &made)?;
        durations(side, work)?;
        requests(side, work)?;
        let stale = counted(work, "mcm_machine_stale_machines_total", "", &[]);
        ensure(stale == 1.0, || format!("{side} has replaced {stale} sick machines"))?;
    }
    for family in [DURATION, REQUEST_DURATION] {
        let bounds = [theirs, ours].map(|work| work.after[family].values_of("le"));
        ensure(bounds[0] == bounds[1], || format!("the bounds of the buckets of {family} are {bounds:?}"))?;
    }
    Ok(())
}

/// Whether the requests are counted that the work has made: a driver of Nodewright is asked for its counts every five seconds.
pub(super) fn are_requests_complete(work: &Work) -> bool {
    counted(work, REQUESTS, "", &[("service", "instance_create")]) >= CREATED as f64
        && counted(work, REQUESTS, "", &[("service", "instance_delete")]) >= CREATED as f64
}

/// Both have one request for each creation, one that was refused, and none that was faster than the cloud.
fn requests(side: &str, work: &Work) -> TestResult {
    let services = work.after[REQUESTS].values_of("service");
    let known = BTreeSet::from(["instance_create", "instance_delete", "instance_get", "instance_list"]);
    ensure(services.is_subset(&known), || format!("{side} has requests {services:?}"))?;
    for service in services {
        let labels = [("provider", "simulated"), ("service", service)];
        let made = counted(work, REQUESTS, "", &labels);
        let failed = counted(work, FAILED_REQUESTS, "", &labels);
        let [count, sum] = ["_count", "_sum"].map(|suffix| counted(work, REQUEST_DURATION, suffix, &labels));
        let fits = made == count && (count * DELAY.as_secs_f64()..=count * work.lasted.as_secs_f64()).contains(&sum);
        ensure(fits, || format!("{side} says that {made} {service} took {sum} s, of which it has {count}"))?;
        println!("{side}: {made} {service} succeeded and {failed} failed");
        if service == "instance_create" {
            ensure([made, failed] == [CREATED as f64, 1.0], || {
                format!("{side} has {made} {service} and {failed} failed")
            })?;
        }
    }
    Ok(())
}

/// What was counted during the work.
fn counted(work: &Work, family: &str, suffix: &str, labels: &[(&str, &str)]) -> f64 {
    let [before, after] =
        [&work.before, &work.after].map(|side| side.get(family).map_or(0.0, |it| it.sum(suffix, labels)));
    after - before
}

/// The calls that were made during the work, by operation and code.
fn made(work: &Work) -> BTreeMap<(&str, &str), u64> {
    let mut made = BTreeMap::new();
    for (family, suffix) in [(DURATION, "_count"), (FAILED, "")] {
        let keys = work.after.get(family).into_iter().flat_map(|family| family.series.keys());
        for (_, labels) in keys.filter(|(of, _)| of == suffix) {
            let of = |name: &str| labels.get(name).map(String::as_str).unwrap_or_default();
            let labels: Vec<_> = labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let count = counted(work, family, suffix, &labels);
            // Those before the work are not a part of it.
            if count > 0.0 {
                made.insert((of("operation"), of("error_code")), count as u64);
            }
        }
    }
    made
}

/// The cloud has counted the same creations and deletions.
fn as_the_cloud_counts(side: &str, work: &Work, made: &BTreeMap<(&str, &str), u64>) -> TestResult {
    let of = |operation: &str, code: &str| {
        let [before, after] =
            work.cloud.each_ref().map(|stats| stats.calls.get(operation).and_then(|calls| calls.get(code)).copied());
        after.unwrap_or_default() - before.unwrap_or_default()
    };
    for (operation, refused) in ["create", "delete"].into_iter().zip([ABORTED, UNAVAILABLE]) {
        let code = REFUSALS[usize::from(operation == "delete")].1;
        let counts = [of(operation, "OK"), of(operation, &format!("{code:?}"))];
        let name = format!("{operation}_machine");
        let found = [SUCCEEDED, refused].map(|code| made.get(&(name.as_str(), code)).copied().unwrap_or_default());
        ensure(counts == found, || format!("the cloud has counted {counts:?} {operation}, and {side} {found:?}"))?;
    }
    Ok(())
}

/// Each call took the cloud's delay at least, and no longer than the work: so these are seconds.
fn durations(side: &str, work: &Work) -> TestResult {
    let operations: BTreeSet<_> = work.after[DURATION].values_of("operation");
    for operation in operations {
        let labels = [("provider", "simulated"), ("operation", operation)];
        let of = |suffix| counted(work, DURATION, suffix, &labels);
        let (count, sum) = (of("_count"), of("_sum"));
        let fits = (count * DELAY.as_secs_f64()..=count * work.lasted.as_secs_f64()).contains(&sum);
        ensure(fits, || {
            format!("{side} says that {count} {operation} took {sum} s, and the cloud {DELAY:?} for each")
        })?;
        let below = |bound| counted(work, DURATION, "_bucket", &[labels[0], labels[1], ("le", bound)]);
        let (fast, all) = (below("1"), below("inf"));
        ensure(fast == 0.0 && all == count, || format!("{side} says that {fast} of {all} {operation} took a second"))?;
    }
    Ok(())
}

/// Checks that all calls of a process are of the one provider, in lower case.
pub(super) fn is_of_one_provider(families: &Families) -> TestResult {
    for family in [DURATION, FAILED, REQUESTS, FAILED_REQUESTS, REQUEST_DURATION] {
        let providers = families[family].values_of("provider");
        ensure(providers == BTreeSet::from(["simulated"]), || format!("{family} is of {providers:?}"))?;
    }
    Ok(())
}
