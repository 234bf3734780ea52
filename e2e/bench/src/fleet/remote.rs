//! The comparison of a driver in a process of its own with one in the manager, in the same run.
//!
//! Only the manager is measured: what the driver's process needs is the driver's. Both managers make the same VMs of the same
//! kind of cloud, so that what differs is the way to the driver.

use std::path::PathBuf;

use nodewright_e2e_devcluster::table::Table;
use nodewright_e2e_process::{ProcessError, executable};

use super::{
    Fleet,
    goals::{Goal, REFERENCE},
    scale_run::{ScaleRun, mebibytes},
};

/// How much more the manager may take with a driver in another process.
const TOLERANCE: f64 = 1.1;
/// The environment variable that overrides the path of the driver.
const BINARY_VARIABLE: &str = "NODEWRIGHT_DRIVER_SIMULATED_BIN";

/// Where the driver runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DriverPlace {
    /// In the manager
    #[default]
    InProcess,
    /// In a process of its own; a run with the driver in the manager comes first, for comparison
    Remote,
}

/// The manager's flags for the driver `simulated` in a process of its own.
pub(crate) fn flags() -> Result<Vec<String>, ProcessError> {
    let program: PathBuf = executable("nodewright-driver-simulated", BINARY_VARIABLE)?;
    let program = std::path::absolute(&program).map_err(ProcessError::file("find", program))?;
    Ok(vec![format!("--driver={}", program.display())])
}

/// A number of a scale run that is compared.
type Number = fn(&ScaleRun) -> f64;

const NUMBERS: [(&str, Number); 3] = [
    ("wall time, s", |run| run.wall.as_secs_f64()),
    ("CPU, s", |run| run.processor.as_secs_f64()),
    ("peak memory, MiB", |run| mebibytes(run.peak_memory)),
];

/// Both runs side by side.
pub(crate) fn comparison(machines: u32, apart: &Fleet, together: &Fleet) -> String {
    let mut table = Table::new(["THE MANAGER", "", "DRIVER APART", "DRIVER IN IT", "RATIO"]);
    for (direction, apart, together) in [
        (format!("0 -> {machines}"), &apart.up, &together.up),
        (format!("{machines} -> 0"), &apart.down, &together.down),
    ] {
        for (name, number) in NUMBERS {
            let (left, right) = (number(apart), number(together));
            let [left_text, right_text] = [left, right].map(|number| format!("{number:.2}"));
            table.add([&direction, name, &left_text, &right_text, &format!("{:.2}", left / right)]);
        }
    }
    table.to_string()
}

/// The goals of the comparison. None for fleets that are smaller than the reference fleet, which are noise.
pub(crate) fn goals(machines: u32, apart: &Fleet, together: &Fleet) -> Vec<Goal> {
    if machines < REFERENCE {
        return Vec::new();
    }
    let goal = |name, together: &ScaleRun, apart: &ScaleRun, number: Number| {
        Goal::at_most(name, number(together) * TOLERANCE, number(apart))
    };
    let [_, processor, memory] = NUMBERS.map(|(_, number)| number);
    vec![
        goal("CPU s, 0 -> N: 1.1 times that with the driver in the manager", &together.up, &apart.up, processor),
        goal("CPU s, N -> 0: 1.1 times that with the driver in the manager", &together.down, &apart.down, processor),
        goal(
            "peak memory in MiB, 0 -> N: 1.1 times that with the driver in the manager",
            &together.up,
            &apart.up,
            memory,
        ),
        goal(
            "peak memory in MiB, N -> 0: 1.1 times that with the driver in the manager",
            &together.down,
            &apart.down,
            memory,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::costs::Costs;

    fn fleet(processor: u64, memory: u64) -> Fleet {
        let run = ScaleRun {
            wall: Duration::from_secs(1),
            processor: Duration::from_millis(processor),
            peak_memory: memory << 20,
            costs: Costs::of(1),
            created: super::super::scale_run::Created::default(),
            vms_created: 0,
            most_vms: 0,
        };
        Fleet { up: run.clone(), down: run, problems: 0, reference: None }
    }

    fn missed(machines: u32, apart: &Fleet) -> usize {
        goals(machines, apart, &fleet(1_000, 100)).iter().filter(|goal| !goal.is_met()).count()
    }

    #[test]
    fn a_tenth_more_is_allowed_and_each_part_can_be_missed() {
        assert_eq!(missed(1_000, &fleet(1_090, 109)), 0);
        assert_eq!(missed(1_000, &fleet(1_120, 100)), 2, "both ways");
        assert_eq!(missed(1_000, &fleet(1_000, 112)), 2);
        assert_eq!(missed(999, &fleet(2_000, 200)), 0);
    }

    #[test]
    fn ratios_are_shown() {
        let text = comparison(1_000, &fleet(1_200, 110), &fleet(1_000, 100));
        let row = text.lines().find(|line| line.contains("CPU, s")).unwrap_or_default();
        assert!(row.split_whitespace().eq(["0", "->", "1000", "CPU,", "s", "1.20", "1.00", "1.20"]), "{row}");
    }
}
