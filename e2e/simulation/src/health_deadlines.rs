//! When a manager replaces a machine whose VM died in an idle cluster: with default settings, however rarely the API server
//! sends events, and with any outage in between. `controllers/src/machine/health.rs` states the bound.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nodewright_runtime::leadership::Clock;
use nodewright_testing::api_server::Bookmarks;
use tokio::{
    runtime::Builder,
    time::{Instant, sleep},
};

use super::{
    acts,
    cluster::SimulatedCluster,
    design::Design,
    names::{MACHINES, POOL},
    schedule::{Act, Schedule},
    trace::Detail,
};

/// The machines run after this time.
const UP: Duration = Duration::from_mins(2);
/// The cluster is idle for this long before the VM dies.
const QUIET: Duration = Duration::from_mins(4);
/// From the death of a VM until its Machine is Unknown: the grace period of the node controller, plus its period.
const UNKNOWN_AFTER: Duration = Duration::from_secs(56);
const HEALTH_TIMEOUT: Duration = Duration::from_mins(10);
/// The longest time until a running kubelet reports after an outage.
const REPORTS_WITHIN: Duration = Duration::from_mins(6);
/// All other delays together: a look at the Node, a write, and the watch event after a broken watch.
const MORE: Duration = Duration::from_secs(5);
const MORE_AFTER_OUTAGE: Duration = Duration::from_secs(40);

/// Durations since the death of the VM.
#[derive(Debug)]
struct Course {
    unknown: Duration,
    /// The last announcement in the status of when the machine will be replaced.
    announced: Duration,
    failed: Duration,
    others: usize,
}

/// Kills a VM in an idle cluster. `outage` is the time from then until the API server fails, and the length of the outage.
fn course(bookmarks: Bookmarks, outage: Option<(Duration, Duration)>) -> Course {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let design = Design {
            seed: 7,
            replicas: 3,
            surge: 1,
            unavailable: 0,
            revisions: None,
            elects: true,
            heartbeats: true,
            quiet: false,
            bookmarks: None,
            calls_at_once: None,
            limits: super::limits::Limits::default(),
            workload: None,
            in_place: None,
            rollout: None,
            cloud_nodes: false,
            detail: Detail::Brief,
        };
        let mut cluster = SimulatedCluster::build(&design, &Schedule::default());
        cluster.server().send_bookmarks(bookmarks);
        let defaults = |pool: &mut serde_json::Value| {
            for timeout in ["healthTimeout", "creationTimeout", "drainTimeout"] {
                pool["spec"]["template"]["spec"].as_object_mut().unwrap().remove(timeout);
            }
        };
        cluster.server().change(POOL, defaults).unwrap();
        sleep(UP + QUIET).await;
        let course = follow(&mut cluster, outage).await;
        cluster.end();
        course
    })
}

async fn follow(cluster: &mut SimulatedCluster, outage: Option<(Duration, Duration)>) -> Course {
    let before: Vec<String> = cluster.server().objects(MACHINES).iter().map(|machine| name(machine)).collect();
    assert_eq!(before.len(), 3);
    let (died, wall) = (Instant::now(), cluster.around.clock.wall());
    let dead = before.iter().min().unwrap().clone();
    acts::begin(cluster, &Act::KillVm(0));
    let (mut unknown, mut announced, mut down) = (None, None, false);
    loop {
        sleep(Duration::from_millis(200)).await;
        let since = died.elapsed();
        assert!(since < Duration::from_hours(1), "{dead} never fails: {announced:?}");
        if let Some((begin, lasts)) = outage {
            let is_due = since >= begin && since < begin + lasts;
            let act = Act::ApiDown(u32::try_from(lasts.as_secs()).unwrap());
            match (down, is_due) {
                (false, true) => acts::begin(cluster, &act),
                (true, false) => acts::end(cluster, &act),
                _ => {}
            }
            down = is_due;
        }
        let machine = cluster.server().object(&format!("{MACHINES}/{dead}"));
        let phase = |phase: &str| {
            let current = machine.as_ref().and_then(|machine| machine.pointer("/status/currentStatus/phase"));
            current.is_some_and(|current| current == phase)
        };
        let is_going = machine.as_ref().is_none_or(|machine| machine.pointer("/metadata/deletionTimestamp").is_some());
        if is_going || phase("Failed") {
            let now = cluster.server().objects(MACHINES);
            let others = now.iter().filter(|machine| before.contains(&name(machine)) && name(machine) != dead).count();
            let (unknown, announced) = (unknown.unwrap(), announced.unwrap());
            return Course { unknown, announced, failed: since, others };
        }
        if phase("Unknown") {
            unknown.get_or_insert(since);
            announced = said(machine.as_deref(), wall).or(announced);
        }
    }
}

fn name(object: &serde_json::Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// The announced replacement time in the status, counted from the death.
fn said(machine: Option<&serde_json::Value>, died: Timestamp) -> Option<Duration> {
    let text = machine?.pointer("/status/lastOperation/description")?.as_str()?;
    let at: Timestamp = text.rsplit_once("it fails at ")?.1.parse().ok()?;
    Duration::try_from(at.duration_since(died).max(SignedDuration::ZERO)).ok()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn in_the_quiet_a_dead_machine_fails_at_the_promised_time() {
    for bookmarks in [Bookmarks::Every(seconds(60)), Bookmarks::Every(seconds(120)), Bookmarks::Never] {
        let course = course(bookmarks, None);
        assert!(course.unknown <= UNKNOWN_AFTER, "{bookmarks:?}: {course:?}");
        let announced = course.unknown + HEALTH_TIMEOUT;
        let bounds = announced.saturating_sub(MORE)..=announced + MORE;
        assert!(bounds.contains(&course.failed), "{bookmarks:?}: {course:?}");
        let late = course.failed.abs_diff(course.announced);
        assert!(late <= MORE, "{bookmarks:?}: the promise is kept: {course:?}");
        assert_eq!(course.others, 2, "{bookmarks:?}");
    }
}

#[test]
fn an_outage_gives_a_kubelet_that_lives_time_to_report_and_costs_no_more() {
    // Start and length of the outage: soon, shortly before the end of the timeout, and beyond it.
    for (begin, lasts) in [(120, 90), (300, 20), (580, 100), (400, 1_200)] {
        for bookmarks in [Bookmarks::Every(seconds(120)), Bookmarks::Never] {
            let (begin, lasts) = (seconds(begin), seconds(lasts));
            let course = course(bookmarks, Some((begin, lasts)));
            let bound = (UNKNOWN_AFTER + HEALTH_TIMEOUT).max(begin + lasts + REPORTS_WITHIN) + MORE_AFTER_OUTAGE;
            assert!(
                course.failed >= HEALTH_TIMEOUT && course.failed <= bound,
                "{bookmarks:?}, {lasts:?} from {begin:?}: {course:?}"
            );
            let late = course.failed.abs_diff(course.announced);
            assert!(late <= MORE, "{bookmarks:?}, {lasts:?} from {begin:?}: its move is said: {course:?}");
            if lasts > seconds(60) && begin + lasts > seconds(500) {
                assert!(course.failed >= begin + lasts + REPORTS_WITHIN, "{course:?}");
            }
            assert_eq!(course.others, 2);
        }
    }
}
