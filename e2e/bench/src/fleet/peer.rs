//! The comparison with another manager in the same run: [`machine-controller-manager`](McmProcesses), both processes together.
//!
//! The driver counts on both sides: it is part of machine-controller, and a process that the manager starts.
//!
//! Goals are set for the creation of the reference fleet and of larger ones. A deletion is shown and not evaluated, for the
//! reason that [`goals`](super::goals) gives.
//!
//! machine-controller-manager limits its requests to 20 a second by default, which alone determines how long a fleet takes. The
//! default of the comparison is therefore a limit that it does not reach.

use nodewright_e2e_lab::devcluster::table::Table;

use super::{
    Fleet,
    goals::{Goal, REFERENCE},
    scale_run::ScaleRun,
};
use crate::{costs::RequestKind, usage::mebibytes};

/// The part of the peer's processor time, memory and wall time that Nodewright may take.
const PROCESSOR: f64 = 1.0 / 8.0;
const MEMORY: f64 = 1.0 / 4.0;
const WALL: f64 = 1.0 / 6.0;

/// Another manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Peer {
    /// machine-controller-manager, which hack/mcm.sh builds.
    Mcm,
}

/// The peer's flags for this number of requests per second. Bursts are half as large again, as in its defaults.
pub(crate) fn flags(qps: u32) -> Vec<String> {
    vec![format!("--kube-api-qps={qps}"), format!("--kube-api-burst={}", burst(qps))]
}

fn burst(qps: u32) -> u32 {
    qps.saturating_add(qps / 2)
}

/// Both managers side by side.
pub(crate) fn comparison(machines: u32, qps: u32, ours: &Fleet, theirs: &Fleet) -> String {
    let mut table = Table::new(["", "", "NODEWRIGHT", "MCM", "RATIO"]);
    for (direction, ours, theirs) in
        [(format!("0 -> {machines}"), &ours.up, &theirs.up), (format!("{machines} -> 0"), &ours.down, &theirs.down)]
    {
        for (name, number) in NUMBERS {
            let (left, right) = (number(ours), number(theirs));
            let [left_text, right_text] = [left, right].map(|number| format!("{number:.1}"));
            table.add([&direction, name, &left_text, &right_text, &format!("{:.2}", left / right)]);
        }
    }
    let burst = burst(qps);
    format!(
        "Nodewright: requests per second not limited, as by default, unless flags say otherwise\n\
         MCM: at most {qps} requests per second and bursts of {burst} (its defaults: 20 and 30), for each of its two processes\n\
         MCM: {} problems with the numbers of machines, VMs and nodes\n\n{table}",
        theirs.problems
    )
}

/// A number of a scale run that is compared.
type Number = fn(&ScaleRun) -> f64;

const NUMBERS: [(&str, Number); 5] = [
    ("wall time, s", |run| run.wall.as_secs_f64()),
    ("CPU, s", |run| run.processor().as_secs_f64()),
    ("peak memory, MiB", |run| mebibytes(run.peak_memory())),
    ("writes per machine, with tokens", |run| run.costs.each(RequestKind::Write) + run.costs.each(RequestKind::Token)),
    ("reads per machine", |run| run.costs.each(RequestKind::Read)),
];

/// The goals of the comparison. None for fleets that are smaller than the reference fleet.
pub(crate) fn goals(machines: u32, ours: &Fleet, theirs: &Fleet) -> Vec<Goal> {
    if machines < REFERENCE {
        return Vec::new();
    }
    let goal = |name, number: Number, part: f64| Goal::at_most(name, number(&theirs.up) * part, number(&ours.up));
    let [wall, processor, memory, ..] = NUMBERS.map(|(_, number)| number);
    vec![
        goal("CPU s, 0 -> N: 1/8 of MCM's", processor, PROCESSOR),
        goal("peak memory in MiB, 0 -> N: 1/4 of MCM's", memory, MEMORY),
        goal("wall time in s, 0 -> N: 1/6 of MCM's", wall, WALL),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::scale_run::{Created, Usage},
        *,
    };
    use crate::costs::Costs;

    fn fleet(wall: u64, processor: u64, memory: u64) -> Fleet {
        let run = ScaleRun {
            wall: Duration::from_secs(wall),
            controllers: Usage {
                processor: Duration::from_secs(processor),
                peak_memory: memory << 20,
                ..Usage::default()
            },
            driver: Usage::default(),
            costs: Costs::of(1),
            created: Created::default(),
            vms_created: 0,
            most_vms: 0,
        };
        Fleet { up: run.clone(), down: run, problems: 0, reference: None }
    }

    fn missed(machines: u32, ours: &Fleet) -> Vec<&'static str> {
        let goals = goals(machines, ours, &fleet(60, 80, 160));
        goals.iter().filter(|goal| !goal.is_met()).map(Goal::name).collect()
    }

    #[test]
    fn each_part_can_be_missed() {
        assert_eq!(missed(1_000, &fleet(10, 10, 40)), Vec::<&str>::new());
        assert_eq!(missed(1_000, &fleet(11, 10, 40)), ["wall time in s, 0 -> N: 1/6 of MCM's"]);
        assert_eq!(missed(1_000, &fleet(10, 11, 40)), ["CPU s, 0 -> N: 1/8 of MCM's"]);
        assert_eq!(missed(1_000, &fleet(10, 10, 41)), ["peak memory in MiB, 0 -> N: 1/4 of MCM's"]);
        assert_eq!(missed(999, &fleet(60, 80, 160)), Vec::<&str>::new());
    }

    #[test]
    fn ratios_and_limits_are_shown() {
        let text = comparison(1_000, 20, &fleet(10, 10, 40), &fleet(60, 80, 160));
        assert!(text.contains("at most 20 requests per second and bursts of 30"), "{text}");
        let row = text.lines().find(|line| line.contains("CPU, s")).unwrap_or_default();
        assert!(row.split_whitespace().eq(["0", "->", "1000", "CPU,", "s", "10.0", "80.0", "0.12"]), "{row}");
        assert_eq!(flags(20), ["--kube-api-qps=20", "--kube-api-burst=30"]);
    }
}
