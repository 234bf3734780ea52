//! What is asked of the manager.

use std::time::Duration;

use nodewright_e2e_devcluster::table::Table;

use super::scale_run::{ScaleRun, mebibytes};

/// The fleet that goals and comparisons are about.
pub(crate) const REFERENCE: u32 = 1_000;
/// Processor time to create the reference fleet, in seconds.
const PROCESSOR: f64 = 4.0;
/// How many times as much each machine of a fleet of another size may take: of what it took in the reference fleet, if that
/// was measured in the same run, else of what is asked there.
const TOLERANCE: f64 = 1.1;
/// Peak memory up to the reference fleet, in MiB.
const MEMORY: f64 = 40.0;
/// A large fleet.
const LARGE: u32 = 10_000;
/// Peak memory with a large fleet: 150 MB in MiB. In between it grows evenly.
const LARGE_MEMORY: f64 = 150e6 / 1_048_576.0;

/// Other managers on an equal control plane and machine, creating the reference fleet: name, seconds of processor time
/// and peak memory in MiB. They were measured elsewhere; this run says nothing of them.
const OTHERS: [(&str, f64, f64); 2] =
    [("machine-controller-manager, both processes", 19.9, 166.0), ("Cluster API, core manager", 35.8, 316.0)];

/// How what was seen is judged.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    AtMost(f64),
    Exactly(u64),
}

/// A goal, and what was seen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Goal {
    name: &'static str,
    bound: Bound,
    seen: f64,
}

impl Goal {
    fn at_most(name: &'static str, bound: f64, seen: f64) -> Self {
        Self { name, bound: Bound::AtMost(bound), seen }
    }

    #[allow(clippy::cast_precision_loss, reason = "counts of machines are far below 2^52")]
    fn exactly(name: &'static str, bound: impl Into<u64>, seen: u64) -> Self {
        Self { name, bound: Bound::Exactly(bound.into()), seen: seen as f64 }
    }

    /// What it is about.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Is it reached?
    #[allow(clippy::cast_precision_loss, clippy::float_cmp, reason = "whole numbers far below 2^52")]
    pub(crate) fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtMost(bound) => self.seen <= bound,
            Bound::Exactly(bound) => self.seen == bound as f64,
        }
    }

    /// The goal, and what was seen, as text.
    fn cells(&self) -> [String; 2] {
        match self.bound {
            Bound::AtMost(bound) => {
                let digits = if bound < 1.0 { 3 } else { 2 };
                [format!("at most {bound:.digits$}"), format!("{:.digits$}", self.seen)]
            }
            Bound::Exactly(bound) => [bound.to_string(), self.seen.to_string()],
        }
    }
}

/// The seconds of processor time that the creation of so many machines may take, if that of the reference fleet took so long.
fn processor(machines: u32, reference: Option<Duration>) -> f64 {
    let each = reference.map_or(PROCESSOR, |took| took.as_secs_f64()) / f64::from(REFERENCE);
    if machines == REFERENCE { PROCESSOR } else { each * TOLERANCE * f64::from(machines) }
}

/// The memory that so many machines may take, in MiB.
fn memory(machines: u32) -> f64 {
    let beyond = f64::from(machines.saturating_sub(REFERENCE)) / f64::from(LARGE - REFERENCE);
    MEMORY + beyond * (LARGE_MEMORY - MEMORY)
}

/// All goals, judged. What a deletion takes in time and memory is shown and not judged: it depends on how many nodes drain
/// at once. `problems` is how many machines, VMs and nodes are not as they should be. `reference` is the processor time of the
/// reference fleet in the same run.
pub(crate) fn goals(
    machines: u32,
    up: &ScaleRun,
    down: &ScaleRun,
    problems: usize,
    reference: Option<Duration>,
) -> Vec<Goal> {
    let none = 0_u64;
    vec![
        Goal::at_most("CPU s of the manager, 0 -> N", processor(machines, reference), up.processor.as_secs_f64()),
        Goal::at_most("peak memory in MiB, 0 -> N", memory(machines), mebibytes(up.peak_memory)),
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
pub(crate) fn verdicts(goals: &[Goal]) -> Table {
    let mut table = Table::new(["", "GOAL", "SEEN", "VERDICT"]);
    for goal in goals {
        let [bound, seen] = goal.cells();
        table.add([goal.name, &bound, &seen, if goal.is_met() { "met" } else { "missed" }]);
    }
    table
}

/// What others take, as text.
pub(crate) fn others() -> String {
    let mut table =
        Table::new([&format!("0 -> {REFERENCE}, MEASURED ELSEWHERE ON AN EQUAL PLANE"), "CPU S", "PEAK MIB"]);
    for (name, processor, memory) in OTHERS {
        table.add([name, &processor.to_string(), &memory.to_string()]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::Costs;

    /// A way with so many milliseconds of processor time and KiB of memory.
    fn scale_run(processor: u64, memory: u64, created: u32) -> ScaleRun {
        let mut run = ScaleRun {
            wall: Duration::ZERO,
            processor: Duration::from_millis(processor),
            peak_memory: memory * 1_024,
            costs: Costs::of(1),
            created: super::super::scale_run::Created::default(),
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
    fn what_is_asked_grows_with_the_fleet() {
        let took = Some(Duration::from_secs(2));
        for (machines, reference, expected) in [(20, None, 0.088), (1_000, None, 4.0), (10_000, took, 22.0)] {
            let bound = processor(machines, reference);
            assert!((bound - expected).abs() < 1e-9, "{machines}: {bound}");
        }
        for (machines, expected) in [(20, 40.0), (1_000, 40.0), (5_500, 91.525_574), (10_000, 143.051_147)] {
            assert!((memory(machines) - expected).abs() < 1e-5, "{machines}: {}", memory(machines));
        }
    }

    #[test]
    fn a_goal_that_is_just_reached_is_met() {
        let reached = goals(1_000, &scale_run(4_000, 40_960, 1_000), &scale_run(9_000, 40_960, 0), 0, None);
        assert_eq!(missed(&reached), Vec::<&str>::new());
    }

    #[test]
    fn each_goal_can_be_missed() {
        let names =
            |up: &ScaleRun, down: &ScaleRun, problems| missed(&goals(1_000, up, down, problems, None)).join("; ");
        let (up, down) = (scale_run(4_000, 40_960, 1_000), scale_run(0, 0, 0));
        assert_eq!(names(&scale_run(4_010, 40_960, 1_000), &down, 0), "CPU s of the manager, 0 -> N");
        assert_eq!(names(&scale_run(4_000, 40_970, 1_000), &down, 0), "peak memory in MiB, 0 -> N");
        assert_eq!(names(&up, &down, 1), "forgotten or left over");
        assert_eq!(names(&up, &scale_run(0, 0, 1), 0), "Machines created, N -> 0; VMs created, N -> 0");
        let one_more =
            "Machines created, 0 -> N; names of those Machines; VMs created, 0 -> N; most VMs at once, 0 -> N";
        assert_eq!(names(&scale_run(4_000, 40_960, 1_001), &down, 0), one_more);
        assert_eq!(names(&scale_run(4_000, 40_960, 999), &down, 0), one_more);
    }

    #[test]
    fn verdicts_are_a_table() {
        let goals = [Goal::at_most("CPU s", 4.0, 4.126), Goal::exactly("VMs", 1_000_u64, 1_000)];
        let text = verdicts(&goals).to_string();
        let rows: Vec<Vec<_>> = text.lines().map(|line| line.split("  ").map(str::trim).collect()).collect();
        let cells = |row: usize| rows[row].iter().copied().filter(|cell| !cell.is_empty()).collect::<Vec<_>>();
        assert_eq!(cells(0), ["GOAL", "SEEN", "VERDICT"]);
        assert_eq!(cells(1), ["CPU s", "at most 4.00", "4.13", "missed"]);
        assert_eq!(cells(2), ["VMs", "1000", "1000", "met"]);
        assert!(others().contains("MEASURED ELSEWHERE"));
    }

    #[test]
    fn a_small_bound_is_shown_as_it_is() {
        assert_eq!(Goal::at_most("", 0.088, 0.09).cells(), ["at most 0.088", "0.090"]);
    }
}
