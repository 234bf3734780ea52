//! `nodewright-bench collector`: what traces cost, and whether a collector that is away, hangs or is slow costs more.
//!
//! A fleet is created and deleted as in [`fleet`], without traces and with each kind of collector, in turns: each on a devcluster of
//! its own. The medians of the turns are compared with those without traces, of the same hour.

mod receiver;

use std::time::Duration;

use nodewright_e2e_lab::{
    devcluster::{DevclusterOptions, table::Table},
    process::{ProcessError, command::Shutdown},
};

use self::receiver::{Behavior, Receiver};
use crate::{
    error::BenchError,
    fleet::{self, goals::Goal, scale_run::ScaleRun},
    measure::{Measured, print},
    usage::mebibytes,
};

/// A name for the table, and how the collector behaves, if there are traces.
const CASES: [(&str, Option<Behavior>); 5] = [
    ("no traces", None),
    ("a good collector", Some(Behavior::Answers)),
    ("refuses connections", Some(Behavior::Refuses)),
    ("accepts, never answers", Some(Behavior::Hangs)),
    ("answers after 5 s", Some(Behavior::AnswersAfter(Duration::from_secs(5)))),
];
/// How much longer the fleet may take with a bad collector than with a good one, and how much more CPU. What traces cost with a good one
/// has no goal: each deletion has one request more, and spans are made.
const TOLERANCE: f64 = 1.1;
/// How much more memory traces may take, in MiB: a full queue of spans, and the exporter.
const MEMORY: f64 = 24.0;
/// How long a last export may take: that of the manager, and its interval.
const LAST_EXPORT: Duration = Duration::from_secs(8);

/// Compare a manager without traces, with a collector, and with one that is away, hangs or is slow: CPU, time, memory, spans.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CollectorArguments {
    /// Number of machines to create and delete
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    machines: u32,
    /// How often each is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=20))]
    turns: u32,
    /// Additional flags for the manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// Runs the command. Fails if a goal is missed.
pub(crate) async fn run(arguments: CollectorArguments) -> Result<(), BenchError> {
    let stop = Shutdown::listen()?.graceful;
    stop.run_until_cancelled(Box::pin(measure(arguments))).await.unwrap_or(Ok(()))
}

/// What one run has cost. Or the medians of several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cost {
    wall: f64,
    processor: f64,
    memory: f64,
    /// By the metrics of the manager: spans that the collector has taken, that were not exported, and that were dropped.
    exported: f64,
    failed: f64,
    dropped: f64,
    /// Spans that have arrived at the collector.
    received: f64,
}

async fn measure(arguments: CollectorArguments) -> Result<(), BenchError> {
    let mut runs = CASES.map(|_| vec![]);
    for turn in 1..=arguments.turns {
        for ((name, behavior), runs) in CASES.iter().zip(&mut runs) {
            eprintln!("turn {turn} of {}: {name}", arguments.turns);
            runs.push(Box::pin(run_with(*behavior, &arguments)).await?);
        }
    }
    let medians = runs.map(|runs| Cost::median(&runs));
    print(&table(&medians).to_string())?;
    fleet::check(&goals(&medians))
}

/// Creates and deletes the fleet.
async fn run_with(behavior: Option<Behavior>, arguments: &CollectorArguments) -> Result<Cost, BenchError> {
    let machines = arguments.machines;
    let (mut flags, mut receiver) = (arguments.manager_flags.clone(), None);
    if let Some(behavior) = behavior {
        let started = Receiver::start(behavior).await.map_err(ProcessError::file("bind", "127.0.0.1"))?;
        flags.push(format!("--otlp-endpoint={}", receiver.insert(started).endpoint()));
    }
    let options: DevclusterOptions = fleet::options(flags);
    let mut measured: Measured = Measured::start(&options).await?;
    measured.scale(0, fleet::timeout(machines), |_| ()).await?;
    let up = ScaleRun::measure(&mut measured, machines, machines, fleet::timeout(machines)).await?;
    let down = ScaleRun::measure(&mut measured, 0, machines, fleet::timeout(machines)).await?;
    tokio::time::sleep(LAST_EXPORT).await;
    let metrics = measured.manager().metrics().await?;
    let status = measured.manager().terminate().await?;
    if !status.is_some_and(|status| status.success()) {
        return Err(BenchError::Failed(format!("asked to end, the manager ended with {status:?}")));
    }
    measured.stop().await?;
    let count = |series: &str| value(&metrics, &format!("otel_sdk_{series}"));
    Ok(Cost {
        wall: (up.wall + down.wall).as_secs_f64(),
        processor: (up.controllers.processor + down.controllers.processor).as_secs_f64(),
        memory: mebibytes(up.controllers.peak_memory.max(down.controllers.peak_memory)),
        exported: count(r#"exporter_span_exported_total{error_type=""}"#),
        failed: count(r#"exporter_span_exported_total{error_type="_OTHER"}"#)
            + count(r#"exporter_span_exported_total{error_type="timeout"}"#),
        dropped: count(r#"processor_span_processed_total{error_type="queue_full"}"#),
        #[allow(clippy::cast_precision_loss, reason = "counts of spans are far below 2^52")]
        received: receiver.map_or(0.0, |receiver| receiver.received() as f64),
    })
}

/// The value of a series; 0 if there is none.
fn value(metrics: &str, series: &str) -> f64 {
    let value = metrics.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    value.unwrap_or(0.0)
}

impl Cost {
    fn median(runs: &[Self]) -> Self {
        let of = |field: fn(&Self) -> f64| {
            let mut values: Vec<_> = runs.iter().map(field).collect();
            values.sort_by(f64::total_cmp);
            let (low, high) = (values.len().saturating_sub(1) / 2, values.len() / 2);
            values.get(low).zip(values.get(high)).map_or(0.0, |(low, high)| f64::midpoint(*low, *high))
        };
        Self {
            wall: of(|it| it.wall),
            processor: of(|it| it.processor),
            memory: of(|it| it.memory),
            exported: of(|it| it.exported),
            failed: of(|it| it.failed),
            dropped: of(|it| it.dropped),
            received: of(|it| it.received),
        }
    }
}

fn table(medians: &[Cost; CASES.len()]) -> Table {
    let none = medians[0];
    let mut table =
        Table::new(["COLLECTOR", "WALL", "", "CPU", "", "PEAK", "", "EXPORTED", "FAILED", "DROPPED", "RECEIVED"]);
    for ((name, _), it) in CASES.iter().zip(medians) {
        let ratio = |value: f64, of: f64| format!("×{:.2}", value / of);
        table.add([
            name,
            &format!("{:.1} s", it.wall),
            &ratio(it.wall, none.wall),
            &format!("{:.2} s", it.processor),
            &ratio(it.processor, none.processor),
            &format!("{:.1} MiB", it.memory),
            &ratio(it.memory, none.memory),
            &format!("{:.0}", it.exported),
            &format!("{:.0}", it.failed),
            &format!("{:.0}", it.dropped),
            &format!("{:.0}", it.received),
        ]);
    }
    table
}

fn goals(medians: &[Cost; CASES.len()]) -> Vec<Goal> {
    let [none, good, bad @ ..] = medians;
    let most = |field: fn(&Cost) -> f64, of: f64| bad.iter().map(|it| field(it) / of).fold(0.0, f64::max);
    let memory = medians.iter().map(|it| it.memory - none.memory).fold(0.0, f64::max);
    let unaccounted = bad[..2].iter().map(|it| it.exported).fold(0.0, f64::max);
    vec![
        Goal::at_most(
            "wall time with a bad collector, relative to a good one",
            TOLERANCE,
            most(|it| it.wall, good.wall),
        ),
        Goal::at_most(
            "CPU with a bad collector, relative to a good one",
            TOLERANCE,
            most(|it| it.processor, good.processor),
        ),
        Goal::at_most("MiB of peak memory more than without traces", MEMORY, memory),
        Goal::at_most("spans dropped with a good collector", 0.0, good.dropped + good.failed),
        Goal::at_most("spans exported to nobody", 0.0, unaccounted),
    ]
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "small whole numbers, and halves of them")]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_read_by_its_labels() {
        let metrics =
            "# TYPE otel_x counter\notel_x_total{error_type=\"\"} 7\notel_x_total{error_type=\"queue_full\"} 9\n";
        assert_eq!(value(metrics, r#"otel_x_total{error_type="queue_full"}"#), 9.0);
        assert_eq!(value(metrics, r#"otel_x_total{error_type="timeout"}"#), 0.0);
    }

    #[test]
    fn medians_are_of_each_number_alone() {
        let cost = |wall, memory| Cost { wall, memory, ..Cost::default() };
        let median = Cost::median(&[cost(3.0, 10.0), cost(1.0, 30.0), cost(2.0, 20.0)]);
        assert_eq!((median.wall, median.memory), (2.0, 20.0));
        assert_eq!(Cost::median(&[cost(1.0, 0.0), cost(2.0, 0.0)]).wall, 1.5);
    }

    #[tokio::test]
    async fn a_collector_that_refuses_is_at_no_port() {
        let receiver = Receiver::start(Behavior::Refuses).await.unwrap();
        let address = receiver.endpoint().trim_start_matches("http://").to_owned();
        assert!(tokio::net::TcpStream::connect(&address).await.is_err());
        let receiver = Receiver::start(Behavior::Hangs).await.unwrap();
        let address = receiver.endpoint().trim_start_matches("http://").to_owned();
        assert!(tokio::net::TcpStream::connect(&address).await.is_ok());
    }
}
