//! `nodewright-bench floor`: the time that no manager can beat, and what each kind of request costs the API server.
//!
//! ```text
//! a run of `fleet` ──▶ its audit log ──▶ a fresh control plane, a plain client ──▶ wall time
//!                              └───────▶ another one, one kind of request at a time ──▶ CPU of the API server for each kind
//! ```
//!
//! # What is replayed
//! * All requests of the manager but what was refused: writes with their bodies, reads, events, Leases. Its watches are open
//!   meanwhile, each once, and somebody reads them.
//! * The requests of the stand-ins for kubelets, which are not the manager's: they are replayed from the log too, so that a Node has the
//!   content that the manager's patches rest on. There is no cloud. A Node is registered [`BOOT`](crate::fleet::BOOT) after the
//!   answer to the creation of its Machine, as a cloud that takes so long would allow.
//! * The orders to scale. What was written before the first of them is replayed before the time is taken.
//!
//! # How
//! * Requests about one object are sent one after the other, in the order of the run; a machine, its Node, the Node's Lease and the list
//!   of its Pods are one object. Those about different objects are sent side by side, as many at once as the manager sends.
//! * Nobody thinks: a request is sent when the one before it is answered and there is room. Nothing waits for a watch, for
//!   another object, or for the limit of calls of the cloud.
//! * UIDs and versions of the object are removed from bodies, as are preconditions. UIDs of owners stay: there is no controller
//!   manager that looks at them, neither here nor in the run. Names are those of the run. An update, which needs a version,
//!   is preceded by a read.
//! * Both control planes log bodies, so that they do the same work.
//!
//! # Caveats
//! * The log does not say in which form a watch or a read wants its objects: all get JSON of whole objects, also where the
//!   manager asks for metadata alone.
//! * The client of the replay needs processor time as well, on the same computer; it is printed.

mod fields;
mod kinds;
mod recording;
mod replay;
mod request;
#[cfg(test)]
mod testing;

use std::time::Duration;

use nodewright_e2e_lab::{
    control_plane::{AuditLevel, audit::AuditLog},
    devcluster::{DevclusterOptions, flag_value, table::Table},
    process::{ProcessError, command::Shutdown},
};

use self::{
    kinds::{Costs, Used},
    recording::{Part, Recording},
    replay::Replay,
    request::Errors,
};
use crate::{
    error::BenchError,
    fleet::{self, goals::Goal, scale_run::ScaleRun},
    measure::{Measured, print},
    usage::processor_time,
};

/// How much longer than the replay a run may take, up and down.
const RATIOS: [f64; 2] = [1.3, 1.5];
/// How many of a thousand requests of the replay may be refused.
const REFUSED: f64 = 5.0;
/// The default of the manager's `--request-concurrency`.
const AT_ONCE: usize = 16;

/// Replay a fleet's requests without a manager: the time that none can beat, and the API server's CPU per kind of request.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FloorArguments {
    /// Number of machines to create and delete
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    machines: u32,
    /// Additional flags for the manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// Runs the command. Fails if a goal is missed.
pub(crate) async fn run(arguments: FloorArguments) -> Result<(), BenchError> {
    let stop = Shutdown::listen()?.graceful;
    stop.run_until_cancelled(Box::pin(measure(arguments))).await.unwrap_or(Ok(()))
}

async fn measure(arguments: FloorArguments) -> Result<(), BenchError> {
    let at_once = flag_value(&arguments.manager_flags, "request-concurrency").and_then(|value| value.parse().ok());
    let at_once = at_once.unwrap_or(AT_ONCE);
    print(&format!("{} machines, at most {at_once} requests at once\n", arguments.machines))?;
    let (recording, used) = record(&arguments).await?;
    let replayed = replay(&recording, at_once).await?;
    print(&comparison(&recording, used, &replayed))?;
    print(&replayed.errors.to_string())?;
    print(&costs(&recording, at_once).await?)?;
    fleet::check(&goals(&recording, &replayed))
}

/// Runs the fleet with the manager. Returns what the log says, and what the control plane took up and down.
async fn record(arguments: &FloorArguments) -> Result<(Recording, [Used; 2]), BenchError> {
    let options =
        DevclusterOptions { audit_level: AuditLevel::Request, ..fleet::options(arguments.manager_flags.clone()) };
    let mut measured: Measured = Measured::start(&options).await?;
    let (machines, timeout) = (arguments.machines, fleet::timeout(arguments.machines));
    measured.scale(0, timeout, |_| ()).await?;
    let mut used = [Used::default(); 2];
    for (target, used) in [machines, 0].into_iter().zip(&mut used) {
        let pids = measured.control_plane().pids();
        let before = Used::so_far(&pids)?;
        ScaleRun::measure(&mut measured, target, machines, timeout).await?;
        *used = Used::so_far(&pids)?.since(before);
    }
    let path = measured.control_plane().audit_log();
    let entries = AuditLog::from_start(&path).read().map_err(ProcessError::file("read", path))?;
    measured.stop().await?;
    Ok((Recording::of(entries)?, used))
}

/// What a replay took, up and down.
struct Replayed {
    walls: [Duration; 2],
    used: [Used; 2],
    client: [Duration; 2],
    errors: Errors,
}

async fn replay(recording: &Recording, at_once: usize) -> Result<Replayed, BenchError> {
    eprintln!("replaying {} and {} requests", recording.up.requests(), recording.down.requests());
    let replay = Replay::start(recording, at_once, fleet::BOOT).await?;
    let pids = replay.plane().pids();
    let mut replayed = Replayed {
        walls: [Duration::ZERO; 2],
        used: [Used::default(); 2],
        client: [Duration::ZERO; 2],
        errors: Errors::default(),
    };
    for (direction, part) in [&recording.up, &recording.down].into_iter().enumerate() {
        let (before, client) = (Used::so_far(&pids)?, own_time()?);
        replayed.walls[direction] = replay.run(&part.chains).await;
        replayed.used[direction] = Used::so_far(&pids)?.since(before);
        replayed.client[direction] = own_time()?.saturating_sub(client);
    }
    replayed.errors = replay.errors();
    Ok(replayed)
}

fn own_time() -> Result<Duration, BenchError> {
    Ok(processor_time(std::process::id()).map_err(ProcessError::file("read", "/proc/self/stat"))?)
}

/// What each kind of request costs, and the same fields written in different ways.
async fn costs(recording: &Recording, at_once: usize) -> Result<String, BenchError> {
    eprintln!("replaying one kind of request at a time");
    let replay = Replay::start(recording, at_once, Duration::ZERO).await?;
    let mut costs = Costs::at_rest(&replay).await?;
    costs.replay(&replay, &recording.up.chains).await?;
    let fields = fields::compare(&replay, &costs, &recording.up.chains).await?;
    costs.replay(&replay, &recording.down.chains).await?;
    let table = costs.table(&recording.up, &recording.down);
    Ok(format!("{table}\n{fields}\n{}", replay.errors()))
}

fn ratio(part: &Part, replayed: Duration) -> f64 {
    part.wall.as_secs_f64() / replayed.as_secs_f64().max(f64::EPSILON)
}

/// The run beside its replay.
fn comparison(recording: &Recording, used: [Used; 2], replayed: &Replayed) -> String {
    let mut table = Table::new(["", "UP", "DOWN"]);
    let parts = [&recording.up, &recording.down];
    let mut row = |name: &str, values: [f64; 2]| {
        let [up, down] = values.map(|value| format!("{value:.2}"));
        table.add([name, &up, &down]);
    };
    let seconds = |durations: [Duration; 2]| durations.map(|duration| duration.as_secs_f64());
    row("wall time of the run, s", seconds(parts.map(|part| part.wall)));
    row("wall time of the replay, s", seconds(replayed.walls));
    row("ratio", [0, 1].map(|direction| ratio(parts[direction], replayed.walls[direction])));
    row("CPU of the API server in the run, until it rests, s", seconds(used.map(|used| used.api_server)));
    row("CPU of the API server in the replay, s", seconds(replayed.used.map(|used| used.api_server)));
    row("CPU of etcd in the run, s", seconds(used.map(|used| used.etcd)));
    row("CPU of etcd in the replay, s", seconds(replayed.used.map(|used| used.etcd)));
    row("CPU of the replaying client, s", seconds(replayed.client));
    for (name, count) in [
        ("requests replayed", parts.map(Part::requests)),
        ("writes that were refused in the run, not replayed", parts.map(|part| part.refused)),
    ] {
        let [up, down] = count.map(|count| count.to_string());
        table.add([name, &up, &down]);
    }
    format!("{table}answered with an error in the replay: {}\n", replayed.errors.count())
}

#[allow(clippy::cast_precision_loss, reason = "counts of requests are far below 2^52")]
fn goals(recording: &Recording, replayed: &Replayed) -> Vec<Goal> {
    let requests = (recording.up.requests() + recording.down.requests()).max(1) as f64;
    vec![
        Goal::at_most("wall time of the run / of the replay, up", RATIOS[0], ratio(&recording.up, replayed.walls[0])),
        Goal::at_most(
            "wall time of the run / of the replay, down",
            RATIOS[1],
            ratio(&recording.down, replayed.walls[1]),
        ),
        Goal::at_most("refused in the replay, of 1000", REFUSED, replayed.errors.count() as f64 * 1_000.0 / requests),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(up: u64, down: u64) -> Recording {
        let part = |seconds| Part { wall: Duration::from_secs(seconds), ..Part::default() };
        Recording { up: part(up), down: part(down), ..Recording::default() }
    }

    fn replayed(errors: usize) -> Replayed {
        let mut refused = Errors::default();
        (0..errors).for_each(|_| refused.add("apply machines", 409, ""));
        let [walls, client] = [[Duration::from_secs(10); 2], [Duration::ZERO; 2]];
        Replayed { walls, used: [Used::default(); 2], client, errors: refused }
    }

    #[test]
    fn each_goal_can_be_missed() {
        let missed = |recording: &Recording, errors| {
            let goals = goals(recording, &replayed(errors));
            goals.iter().filter(|goal| !goal.is_met()).map(Goal::name).collect::<Vec<_>>()
        };
        assert_eq!(missed(&recording(13, 15), 0), Vec::<&str>::new());
        assert_eq!(missed(&recording(14, 15), 0), ["wall time of the run / of the replay, up"]);
        assert_eq!(missed(&recording(13, 16), 0), ["wall time of the run / of the replay, down"]);
        assert_eq!(missed(&recording(13, 15), 1), ["refused in the replay, of 1000"]);
    }

    #[test]
    fn the_run_stands_beside_its_replay() {
        let text = comparison(&recording(13, 15), [Used::default(); 2], &replayed(2));
        let row = |words: &str| text.lines().any(|line| line.split_whitespace().eq(words.split(' ')));
        assert!(row("wall time of the run, s 13.00 15.00") && row("ratio 1.30 1.50"), "{text}");
        assert!(text.contains("error in the replay: 2"), "{text}");
    }
}
