//! The families, their types, the names of their labels, and the queues.

use std::collections::BTreeSet;

use nodewright_e2e_scenarios::{TestResult, ensure};

use super::{DURATIONS, Families, Work, text::Family};

/// Beginnings of families that machine-controller-manager registers and that never have a series; here they do not exist.
const EMPTY: [(&str, &str); 2] = [
    ("mcm_reflector_", "client-go no longer records what its reflectors do"),
    ("mcm_misc_", "a scrape that failed; it reads caches, in which nothing fails"),
];

/// Families that have no series here after this work, and may have some there.
const WITHOUT_SERIES: [(&str, &str); 1] = [(
    "mcm_machine_initialize_duration_seconds",
    "machine-controller-manager measures InitializeMachine also where the driver does not implement it; here nothing is called",
)];

/// Families of another type here.
const OTHER_TYPES: [(&str, &str, &str); 1] =
    [("mcm_machine_num_failed_join", "untyped", "OpenMetrics would add _total to the name of a counter")];

/// machine-controller-manager's queues, and why one is not here.
const QUEUES: [(&str, Option<&str>); 10] = [
    ("machine", None),
    ("machineclass", None),
    ("machinedeployment", None),
    ("machineset", None),
    ("machinetermination", Some("a Machine has one queue, whether it is created or deleted")),
    ("node", Some("a Node brings its Machine into the queue of Machines")),
    ("secret", Some("a Secret brings its class into the queue of classes")),
    ("machinesafetyorphanvms", Some("orphaned VMs are looked for by the class, in a queue with a name of ours")),
    ("machinesafetyovershooting", Some("a set with too many Machines is found as it is reconciled")),
    ("machinesafetyapiserver", Some("the watches know whether the API server is away")),
];

pub(super) fn compare(theirs: &Families, ours: &Families) -> TestResult {
    println!("{} families: {:?}", theirs.len(), theirs.keys());
    ensure(theirs.len() >= 38, || format!("machine-controller-manager has only {:?}", theirs.keys()))?;
    for (beginning, reason) in EMPTY {
        let found = [theirs, ours].into_iter().flat_map(Families::keys).find(|name| name.starts_with(beginning));
        ensure(found.is_none(), || format!("{found:?} has series, although {reason}"))?;
    }
    for name in theirs.keys() {
        is_the_same(name, theirs, ours)?;
    }
    queues(theirs, ours)
}

fn is_the_same(name: &str, theirs: &Families, ours: &Families) -> TestResult {
    let (there, here) = (&theirs[name], ours.get(name));
    let other = OTHER_TYPES.iter().find(|(of, ..)| *of == name).map(|(_, kind, _)| *kind);
    let kind = other.unwrap_or(&there.kind);
    let is_unused = WITHOUT_SERIES.iter().any(|(of, _)| *of == name);
    let has_labels = |here: &Family| {
        if is_unused { here.series.is_empty() } else { here.label_names() == there.label_names() }
    };
    let is_equal = here.is_some_and(|here| here.kind == kind && has_labels(here));
    let described = |it: Option<&Family>| format!("{:?}", it.map(|it| (it.kind.clone(), it.label_names())));
    ensure(is_equal, || format!("{name}: {} there, {} here", described(Some(there)), described(here)))?;
    let helps = [Some(there), here].map(|it| it.is_some_and(|it| !it.help.is_empty()));
    ensure(helps == [true; 2], || format!("{name} lacks its help: {helps:?}"))
}

fn queues(theirs: &Families, ours: &Families) -> TestResult {
    for name in theirs.keys().filter(|name| name.starts_with("mcm_workqueue_")) {
        let here: BTreeSet<_> = QUEUES.iter().filter(|(_, reason)| reason.is_none()).map(|(name, _)| *name).collect();
        let there = QUEUES.iter().map(|(name, _)| *name).collect();
        let found = [theirs, ours].map(|side| side[name].values_of("name"));
        ensure(found == [there, here], || format!("{name} is of {found:?}"))?;
    }
    Ok(())
}

/// A key that was taken from a queue had joined it before. `before`: the same metrics, scraped earlier.
pub(super) fn compare_queues(before: &Families, after: &Families) -> TestResult {
    for (name, _) in QUEUES.iter().filter(|(_, reason)| reason.is_none()) {
        let labels = [("name", *name)];
        let taken = before["mcm_workqueue_queue_duration_seconds"].sum("_count", &labels);
        let added = after["mcm_workqueue_adds_total"].sum("", &labels);
        ensure(0.0 < taken && taken <= added, || format!("{taken} keys of {name} were taken, and {added} added"))?;
    }
    Ok(())
}

/// The families of #1104, which machine-controller-manager has since 0.63: they have the same series after the same work.
pub(super) fn compare_durations(theirs: &Work, ours: &Work) -> TestResult {
    for (name, least) in DURATIONS {
        let found = [theirs, ours].map(|work| work.after.get(name).map(|it| it.series.clone()).unwrap_or_default());
        let [there, here] = &found;
        ensure(!there.is_empty() && there.keys().eq(here.keys()), || format!("{name} is {found:?}"))?;
        for (series, work) in found.iter().zip([theirs, ours]) {
            // They are rounded.
            let fits = series.values().all(|seconds| (least..=work.lasted.as_secs_f64() + 1.0).contains(seconds));
            ensure(fits, || format!("{name} is {found:?}, of work that lasted {:?}", work.lasted))?;
        }
    }
    let late = [theirs, ours].map(|work| work.after["mcm_machine_num_failed_join"].series.clone());
    let is_one = late[0] == late[1] && late[0].values().eq(&[1.0]);
    ensure(is_one, || format!("mcm_machine_num_failed_join is {late:?}"))
}
