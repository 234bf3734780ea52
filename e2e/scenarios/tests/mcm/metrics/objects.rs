//! At a hand-over, all values of what objects are.

use std::collections::BTreeSet;

use nodewright_e2e_scenarios::{TestResult, ensure};

use super::{Families, text::Labels};

/// What a process counts for itself, or saw: the next process begins with nothing.
const OF_A_PROCESS: [&str; 7] = [
    "mcm_machine_stale_machines_total",
    "mcm_machine_num_failed_join",
    "mcm_machine_create_duration_seconds",
    "mcm_machine_initialize_duration_seconds",
    "mcm_machine_join_duration_seconds",
    "mcm_machine_drain_duration_seconds",
    "mcm_machine_delete_duration_seconds",
];

/// Families of which machine-controller-manager keeps the series of Machines that are gone, until it ends.
const KEPT: [&str; 2] = ["mcm_machine_info", "mcm_machine_status_condition"];

/// Families with more conditions here: Machines, sets and deployments have some of our own.
const CONDITIONS: &str = "_status_condition";

/// The class of a set: that of its template here, and there the field `spec.machineClass`, which is empty.
const SET_INFO: &str = "mcm_machine_set_info";
const SET_CLASS: &str = "spec_machine_class_";

pub(super) fn compare(theirs: &Families, ours: &Families) -> TestResult {
    let machines = theirs["mcm_machine_current_status_phase"].values_of("name");
    for name in theirs.keys().filter(|name| name.starts_with("mcm_machine_") && !OF_A_PROCESS.contains(&name.as_str()))
    {
        let there: BTreeSet<_> = series(name, theirs).filter(|(labels, _)| exists(name, labels, &machines)).collect();
        let here: BTreeSet<_> = series(name, ours).collect();
        let fits = if name.ends_with(CONDITIONS) { there.is_subset(&here) } else { there == here };
        let differences = || here.symmetric_difference(&there).collect::<Vec<_>>();
        ensure(fits && !there.is_empty(), || format!("{name} differs by {:#?}", differences()))?;
    }
    for name in KEPT {
        let here = ours[name].values_of("name");
        ensure(here == machines, || format!("{name} is of {here:?}, and there are {machines:?}"))?;
    }
    Ok(())
}

fn exists(name: &str, labels: &Labels, machines: &BTreeSet<&str>) -> bool {
    !KEPT.contains(&name) || labels.get("name").is_some_and(|machine| machines.contains(machine.as_str()))
}

/// The series of a family without what is known to differ. All values are whole numbers.
fn series<'a>(name: &'a str, side: &'a Families) -> impl Iterator<Item = (Labels, i64)> + 'a {
    let all = side.get(name).into_iter().flat_map(|family| &family.series);
    all.map(move |((_, labels), value)| {
        let mut labels = labels.clone();
        if name == SET_INFO {
            labels.retain(|label, _| !label.starts_with(SET_CLASS));
        }
        (labels, *value as i64)
    })
}
