//! The goals for the manager.

use std::time::Duration;

use nodewright_e2e_lab::devcluster::table::Table;

use super::scale_run::ScaleRun;
use crate::usage::mebibytes;

/// The size of the reference fleet.
pub(crate) const REFERENCE: u32 = 1_000;
/// How much more processor time per machine a larger fleet may take than the reference fleet of the same run.
const TOLERANCE: f64 = 1.1;
/// Peak memory up to the reference fleet, in MiB.
const MEMORY: f64 = 34.0;
/// The size of a large fleet.
const LARGE: u32 = 10_000;
/// Peak memory with a large fleet, in MiB. Goals in between are interpolated.
const LARGE_MEMORY: f64 = 130.0;

/// Other managers that created the reference fleet on an equal control plane and computer: name, seconds of processor time
/// and peak memory in MiB. Measured before, not by this run.
const OTHERS: [(&str, f64, f64); 2] =
    [("machine-controller-manager, both processes", 19.9, 166.0), ("Cluster API, core manager", 35.8, 316.0)];

/// The bound of a goal.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    AtMost(f64),
    Exactly(u64),
}

/// A goal and its measured value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Goal {
    name: &'static str,
    bound: Bound,
    measured: f64,
}

impl Goal {
    pub(crate) fn at_most(name: &'static str, bound: f64, measured: f64) -> Self {
        Self { name, bound: Bound::AtMost(bound), measured }
    }

    #[allow(clippy::cast_precision_loss, reason = "counts of machines are far below 2^52")]
    pub(crate) fn exactly(name: &'static str, bound: impl Into<u64>, measured: u64) -> Self {
        Self { name, bound: Bound::Exactly(bound.into()), measured: measured as f64 }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Whether the goal is met.
    #[allow(clippy::cast_precision_loss, clippy::float_cmp, reason = "whole numbers far below 2^52")]
    pub(crate) fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtMost(bound) => self.measured <= bound,
            Bound::Exactly(bound) => self.measured == bound as f64,
        }
    }

    /// The bound and the measured value, as text.
    fn cells(&self) -> [String; 2] {
        match self.bound {
            Bound::AtMost(bound) => {
                let digits = if bound < 1.0 { 3 } else { 2 };
                [format!("at most {bound:.digits$}"), format!("{:.digits$}", self.measured)]
            }
            Bound::Exactly(bound) => [bound.to_string(), self.measured.to_string()],
        }
    }
}

/// The processor time that the creation of a fleet may take, in seconds. `reference` is that of the reference fleet.
fn processor(machines: u32, reference: Duration) -> f64 {
    reference.as_secs_f64() / f64::from(REFERENCE) * TOLERANCE * f64::from(machines)
}

/// The memory that the manager of a fleet may take, in MiB.
fn memory(machines: u32) -> f64 {
    let beyond = f64::from(machines.saturating_sub(REFERENCE)) / f64::from(LARGE - REFERENCE);
    MEMORY + beyond * (LARGE_MEMORY - MEMORY)
}

/// The goal for processor time. `reference` is that of the reference fleet in the same run: seconds alone are those of one computer.
pub(crate) fn processor_goal(machines: u32, up: &ScaleRun, reference: Duration) -> Goal {
    Goal::at_most(
        "CPU s of the manager, 0 -> N",
        processor(machines, reference),
        up.controllers.processor.as_secs_f64(),
    )
}

/// All goals that every computer can meet. Time and memory of the deletion have none: they depend on how many nodes are drained at
/// once. `problems` is the number of machines, VMs and nodes that are wrong.
pub(crate) fn goals(machines: u32, up: &ScaleRun, down: &ScaleRun, problems: usize) -> Vec<Goal> {
    let none = 0_u64;
    vec![
        Goal::at_most("peak memory in MiB, 0 -> N", memory(machines), mebibytes(up.controllers.peak_memory)),
        Goal::exactly("Machines created, 0 -> N", machines, up.created.requests),
        Goal::exactly("names of those Machines", machines, up.created.names.len() as u64),
        Goal::exactly("VMs created, 0 -> N", machines, up.vms_created),
        Goal::exactly("most VMs at once, 0 -> N", machines, up.most_vms),
        Goal::exactly("Machines created, N -> 0", none, down.created.requests),
        Goal::exactly("VMs created, N -> 0", none, down.vms_created),
        Goal::exactly("forgotten or left over", none, problems as u64),
    ]
}

/// The goals as a table.
pub(crate) fn results(goals: &[Goal]) -> Table {
    let mut table = Table::new(["", "GOAL", "MEASURED", "RESULT"]);
    for goal in goals {
        let [bound, seen] = goal.cells();
        table.add([goal.name, &bound, &seen, if goal.is_met() { "met" } else { "missed" }]);
    }
    table
}

/// The other managers as a table.
pub(crate) fn others() -> String {
    let mut table =
        Table::new([&format!("0 -> {REFERENCE}, MEASURED BEFORE ON AN EQUAL CONTROL PLANE"), "CPU S", "PEAK MIB"]);
    for (name, processor, memory) in OTHERS {
        table.add([name, &processor.to_string(), &memory.to_string()]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::{
        super::scale_run::{Created, Usage},
        *,
    };
    use crate::costs::Costs;

    /// A scale run with this processor time in milliseconds and this memory in KiB.
    fn scale_run(processor: u64, memory: u64, created: u32) -> ScaleRun {
        let mut run = ScaleRun {
            wall: Duration::ZERO,
            controllers: Usage {
                processor: Duration::from_millis(processor),
                peak_memory: memory * 1_024,
                ..Usage::default()
            },
            driver: Usage::default(),
            costs: Costs::of(1),
            created: Created::default(),
            vms_created: created.into(),
            most_vms: created.into(),
        };
        run.created.requests = created.into();
        run.created.names = (0..created).map(|number| number.to_string()).collect();
        run
    }

    fn missed(goals: &[Goal]) -> Vec<&'static str> {
        goals.iter().filter(|goal| !goal.is_met()).map(Goal::name).collect()
    }

    #[test]
    fn bounds_grow_with_the_fleet() {
        let bound = processor(10_000, Duration::from_secs(2));
        assert!((bound - 22.0).abs() < 1e-9, "{bound}");
        for (machines, expected) in [(20, 34.0), (1_000, 34.0), (5_500, 82.0), (10_000, 130.0)] {
            assert!((memory(machines) - expected).abs() < 1e-5, "{machines}: {}", memory(machines));
        }
    }

    #[test]
    fn a_goal_is_met_at_its_bound() {
        let up = scale_run(4_000, 34_816, 1_000);
        let mut reached = goals(1_000, &up, &scale_run(9_000, 34_816, 0), 0);
        reached.push(processor_goal(10_000, &scale_run(44_000, 34_816, 10_000), Duration::from_secs(4)));
        assert_eq!(missed(&reached), Vec::<&str>::new());
    }

    #[test]
    fn each_goal_can_be_missed() {
        let names = |up: &ScaleRun, down: &ScaleRun, problems| missed(&goals(1_000, up, down, problems)).join("; ");
        let (up, down) = (scale_run(4_000, 34_816, 1_000), scale_run(0, 0, 0));
        assert!(!processor_goal(10_000, &scale_run(44_010, 34_816, 10_000), Duration::from_secs(4)).is_met());
        assert_eq!(names(&scale_run(4_000, 34_826, 1_000), &down, 0), "peak memory in MiB, 0 -> N");
        assert_eq!(names(&up, &down, 1), "forgotten or left over");
        assert_eq!(names(&up, &scale_run(0, 0, 1), 0), "Machines created, N -> 0; VMs created, N -> 0");
        let one_more =
            "Machines created, 0 -> N; names of those Machines; VMs created, 0 -> N; most VMs at once, 0 -> N";
        assert_eq!(names(&scale_run(4_000, 34_816, 1_001), &down, 0), one_more);
        assert_eq!(names(&scale_run(4_000, 34_816, 999), &down, 0), one_more);
    }

    #[test]
    fn verdicts_are_a_table() {
        let goals = [Goal::at_most("CPU s", 4.0, 4.126), Goal::exactly("VMs", 1_000_u64, 1_000)];
        let text = results(&goals).to_string();
        let rows: Vec<Vec<_>> = text.lines().map(|line| line.split("  ").map(str::trim).collect()).collect();
        let cells = |row: usize| rows[row].iter().copied().filter(|cell| !cell.is_empty()).collect::<Vec<_>>();
        assert_eq!(cells(0), ["GOAL", "MEASURED", "RESULT"]);
        assert_eq!(cells(1), ["CPU s", "at most 4.00", "4.13", "missed"]);
        assert_eq!(cells(2), ["VMs", "1000", "1000", "met"]);
        assert!(others().contains("MEASURED BEFORE"));
    }

    #[test]
    fn a_small_bound_is_shown_as_it_is() {
        assert_eq!(Goal::at_most("", 0.088, 0.09).cells(), ["at most 0.088", "0.090"]);
    }
}
