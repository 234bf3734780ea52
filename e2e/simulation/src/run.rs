//! One run: a cluster, its events, and the violations.

use std::time::Duration;

use nodewright_e2e_cloud::VmState;
use serde::{Deserialize, Serialize};
use tokio::{
    runtime::Builder,
    time::{Instant, sleep, sleep_until},
};

use super::{
    acts,
    cluster::SimulatedCluster,
    design::Design,
    foresight::{Comparison, Foresight},
    limits::Limits,
    oracles::Counts,
    quiescence,
    rollouts::Rollout,
    schedule::{Act, Edit, Schedule, Trouble},
    trace::{Detail, logged},
    updates::Orchestration,
    workload::Workload,
};

/// After this long without a fault, the cluster must have the wanted state. The longest wait of the controllers is ten minutes,
/// after an exhausted quota. A machine that never joins has ten minutes as well, and this may happen twice.
const TIMEOUT: Duration = Duration::from_hours(1);
/// Once the cluster is quiescent, nothing may be written for this long.
const QUIET: Duration = Duration::from_mins(10);
/// Before that, failed and unanswered requests are retried, at the latest after the longest pause, two minutes.
const SETTLING: Duration = Duration::from_mins(4);
/// How often the run checks whether the cluster is quiescent.
const LOOK: Duration = Duration::from_millis(500);

/// A run, as data. The same run gives the same report in any process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub struct Run {
    /// The seed of all random choices.
    pub seed: u64,
    /// The initial number of wanted machines.
    pub replicas: u32,
    /// The deployment's `maxSurge`.
    pub surge: u32,
    /// The deployment's `maxUnavailable`.
    pub unavailable: u32,
    /// The number of old sets to keep; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revisions: Option<u32>,
    /// Whether managers acquire leases before they write.
    pub elects: bool,
    /// Whether kubelets send heartbeats, and the control plane notices when they stop.
    pub heartbeats: bool,
    /// Whether the pool has Nodewright's default timeouts instead of short ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quiet: bool,
    /// Seconds between the bookmarks of watches; 0 for none; a minute when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bookmarks: Option<u32>,
    /// The limit for concurrent calls to the cloud; none when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls_at_once: Option<usize>,
    /// Limits that protect the fleet, if the run is about them.
    #[serde(default, skip_serializing_if = "Limits::are_default")]
    pub limits: Limits,
    /// The pods, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,
    /// Who selects the machines of updates in place, if machines are updated and not replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place: Option<Orchestration>,
    /// The pools that update their Nodes, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// Whether kubelets leave addresses to a cloud controller manager, and none runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cloud_nodes: bool,
    /// The user's acts. Each one waits until the cluster is quiescent after the one before it.
    pub phases: Vec<Act>,
    /// The faults.
    pub schedule: Schedule,
}

/// A run with a name.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The description of the run.
    pub name: String,
    /// The run.
    pub run: Run,
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The violations, in the order in which they were found.
    pub violations: Vec<String>,
    /// The numbers of creations and deletions.
    pub counts: Counts,
    /// The number of steps of all managers.
    pub steps: u64,
    /// The number of aimed results that met no request.
    pub missed: usize,
    /// The simulated duration.
    pub simulated: Duration,
    /// A digest of the whole trace.
    pub digest: u64,
    /// The last lines of the trace, or all.
    pub trace: Vec<String>,
}

impl Run {
    /// A run that creates, replaces and removes three machines.
    pub fn up_roll_down(seed: u64) -> Self {
        Self {
            seed,
            replicas: 3,
            surge: 1,
            unavailable: 0,
            revisions: None,
            elects: false,
            heartbeats: false,
            quiet: false,
            bookmarks: None,
            calls_at_once: None,
            limits: Limits::default(),
            workload: None,
            in_place: None,
            rollout: None,
            cloud_nodes: false,
            phases: vec![Edit::Roll("large".to_owned()).into(), Edit::Scale(0).into()],
            schedule: Schedule::default(),
        }
    }

    /// Whether two managers write at the same time. While one of them has not yet seen what a user wants, each reverts the
    /// sizes that the other sets. More machines than wanted may then be created and deleted, though never at the same time.
    pub fn has_conflicting_managers(&self) -> bool {
        !self.elects && self.schedule.acts().iter().any(|(_, act)| matches!(act, Act::SecondManager(_)))
    }

    /// How many extra writes the faults excuse. The managers repair all objects each time another client writes to them. Two
    /// managers with different views revert each other's writes, twice a second for each object, as long as both run.
    fn forgiven(&self) -> u64 {
        // Machines, including surge and added ones, sets and the deployment.
        let objects = u64::from(self.replicas) + 8;
        let more = |trouble: &Trouble| match trouble {
            Trouble::At { act: Act::Disturb(times) | Act::WipeStatus(times) | Act::TakeOwners(times), .. } => {
                objects * u64::from(*times)
            }
            Trouble::At { act: Act::SecondManager(seconds), .. } => objects * 2 * u64::from(*seconds),
            Trouble::At { act: Act::SetBack(_), .. } => objects * 6,
            _ => 0,
        };
        self.schedule.0.iter().map(|trouble| 30 + more(trouble)).sum()
    }

    /// Executes the run.
    ///
    /// # Panics
    /// Panics when the runtime cannot be built because the computer lacks resources.
    pub fn run(&self, detail: Detail) -> Report {
        self.execute(detail, false).0
    }

    /// The same, and compares what a preview says of each change of the user with what then happens.
    ///
    /// # Panics
    /// As [`Run::run`].
    pub fn foresee(&self) -> (Report, Vec<Comparison>) {
        self.execute(Detail::Brief, true)
    }

    fn execute(&self, detail: Detail, foresees: bool) -> (Report, Vec<Comparison>) {
        fastrand::seed(self.seed);
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .rng_seed(tokio::runtime::RngSeed::from_bytes(&self.seed.to_le_bytes()))
            .build()
            .expect("a runtime of one thread can be built");
        logged(detail, || runtime.block_on(self.play(detail, foresees)))
    }

    async fn play(&self, detail: Detail, foresees: bool) -> (Report, Vec<Comparison>) {
        let design = Design {
            seed: self.seed,
            replicas: self.replicas,
            surge: self.surge,
            unavailable: self.unavailable,
            revisions: self.revisions,
            elects: self.elects,
            heartbeats: self.heartbeats,
            quiet: self.quiet,
            bookmarks: self.bookmarks,
            calls_at_once: self.calls_at_once,
            limits: self.limits,
            workload: self.workload.clone(),
            in_place: self.in_place,
            rollout: self.rollout.clone(),
            cloud_nodes: self.cloud_nodes,
            detail,
        };
        let begun = Instant::now();
        let mut stage = Stage::new(SimulatedCluster::build(&design, &self.schedule), self, begun);
        stage.comparisons = foresees.then(Vec::new);
        let mut settled = stage.settle_as_foreseen("at the start").await;
        for phase in &self.phases {
            if !settled {
                break;
            }
            acts::begin(&mut stage.cluster, phase);
            settled = stage.settle_as_foreseen(&format!("after {phase:?}")).await;
        }
        if settled {
            stage.be_quiet().await;
        }
        let comparisons = stage.comparisons.take().unwrap_or_default();
        (stage.evaluate(begun), comparisons)
    }
}

/// A cluster, and its future events.
struct Stage {
    cluster: SimulatedCluster,
    /// The beginnings and ends of events, latest first.
    agenda: Vec<(Instant, Entry)>,
    controller_side: bool,
    has_pods: bool,
    has_cloud_nodes: bool,
    /// The numbers of writes and events that the faults excuse.
    forgiven: u64,
    /// The result of the last check for quiescence, and the state it was made for. The check is expensive.
    looked: Option<((u64, u64), Option<String>)>,
    /// What was foreseen, if the run is about that.
    comparisons: Option<Vec<Comparison>>,
}

enum Entry {
    Begin(Act),
    End(Act),
}

impl Stage {
    fn new(cluster: SimulatedCluster, run: &Run, begun: Instant) -> Self {
        let mut agenda = vec![];
        for (millis, act) in run.schedule.acts() {
            let at = begun + Duration::from_millis(millis);
            agenda.push((at + acts::lasts(&act), Entry::End(act.clone())));
            agenda.push((at, Entry::Begin(act)));
        }
        agenda.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        let controller_side = run.schedule.is_controller_side();
        let (has_pods, has_cloud_nodes) = (run.workload.is_some(), run.cloud_nodes);
        let forgiven = run.forgiven();
        Self { cluster, agenda, controller_side, has_pods, has_cloud_nodes, forgiven, looked: None, comparisons: None }
    }

    /// [`Stage::settle`]; what is foreseen now is compared with what happens.
    async fn settle_as_foreseen(&mut self, when: &str) -> bool {
        if self.comparisons.is_some() {
            let foresight = Foresight::of(self.cluster.server(), self.cluster.now());
            let mut oracles = self.cluster.oracles.lock();
            match foresight {
                Ok(foresight) => oracles.foresight = Some(foresight),
                Err(error) => oracles.blame(format!("no preview {when}: {error}")),
            }
        }
        let settled = self.settle(when).await;
        let foresight = self.cluster.oracles.lock().foresight.take();
        if let (Some(comparisons), Some(foresight)) = (&mut self.comparisons, foresight) {
            comparisons.push(foresight.compared(when.to_owned()));
        }
        settled
    }

    /// Advances time until the cluster is quiescent and no event is left before then. Returns whether it got there.
    async fn settle(&mut self, when: &str) -> bool {
        let mut calm = Instant::now();
        loop {
            // Also before the first check: a user's change is still a request in flight.
            self.happen(&mut calm).await;
            let Some(difference) = self.difference() else { break };
            if self.agenda.is_empty() && calm.elapsed() > TIMEOUT {
                self.cluster.oracles.lock().blame(format!("I6: {when}, an hour after the last fault: {difference}"));
                return false;
            }
            if self.is_bad() {
                return false;
            }
        }
        self.cluster.oracles.lock().quiesced(self.controller_side);
        true
    }

    fn difference(&mut self) -> Option<String> {
        self.difference_in_state().or_else(|| {
            let text = "a neighbour's VM has yet to be taken for an orphan, and left alone";
            self.cluster.is_neighbours_vm_new().then(|| text.to_owned())
        })
    }

    fn difference_in_state(&mut self) -> Option<String> {
        let seen = (self.cluster.server().version(), self.cluster.cloud().with(|cloud, _| cloud.memory().last_event));
        match &self.looked {
            Some((before, difference)) if *before == seen => difference.clone(),
            _ => {
                let difference = quiescence::difference(&self.cluster);
                self.looked = Some((seen, difference.clone()));
                difference
            }
        }
    }

    /// Advances time until the next check, and executes the events that are due.
    async fn happen(&mut self, calm: &mut Instant) {
        let look = Instant::now() + LOOK;
        while let Some((at, _)) = self.agenda.last().filter(|(at, _)| *at <= look) {
            sleep_until(*at).await;
            *calm = Instant::now();
            match self.agenda.pop() {
                Some((_, Entry::Begin(act))) => {
                    if !act.is_controller_side() {
                        self.cluster.oracles.lock().excuse_unready();
                    }
                    self.cluster.oracles.lock().disturbed(&act, acts::lasts(&act));
                    acts::begin(&mut self.cluster, &act);
                }
                Some((_, Entry::End(act))) => {
                    acts::end(&mut self.cluster, &act);
                    // A version may come a second time, with another state.
                    self.looked = None;
                }
                None => {}
            }
        }
        sleep_until(look).await;
        self.look();
    }

    /// Shows the oracles what no change at the API server shows.
    fn look(&self) {
        self.cluster.look_at_cloud();
        let wrongs = self.cluster.around.adversary.take_wrongs();
        let cloud = self.cluster.cloud();
        let has_vm = |name: &str| cloud.vms().iter().any(|vm| vm.name == name && vm.state == VmState::Running);
        let mut oracles = self.cluster.oracles.lock();
        for wrong in wrongs {
            oracles.blame(wrong);
        }
        oracles.look(self.cluster.server(), has_vm);
    }

    fn is_bad(&self) -> bool {
        !self.cluster.oracles.lock().violations().is_empty()
    }

    /// No event is left, so the managers must write nothing more.
    async fn be_quiet(&mut self) {
        let mut calm = Instant::now();
        while !self.agenda.is_empty() {
            self.happen(&mut calm).await;
        }
        if !self.settle("in the end").await {
            return;
        }
        sleep(SETTLING).await;
        self.look();
        let adversary = &self.cluster.around.adversary;
        adversary.rest();
        let before = (adversary.writes(), adversary.events());
        sleep(QUIET).await;
        self.look();
        let (writes, events) = (adversary.writes() - before.0, adversary.events() - before.1);
        if (writes, events) != (0, 0) {
            let what = format!("{writes} writes and {events} events in ten minutes in which nothing happened");
            self.cluster.oracles.lock().blame(format!("I6: {what}"));
        }
        if let Some(difference) = self.difference() {
            self.cluster.oracles.lock().blame(format!("I6: it did not stay as it was: {difference}"));
        }
    }

    fn evaluate(self, begun: Instant) -> Report {
        let adversary = &self.cluster.around.adversary;
        // Pods and volumes are removed as often as the target's API server refuses it.
        let (steps, writes) = (adversary.steps(), adversary.writes() - adversary.removals());
        let oracles = self.cluster.oracles.lock();
        let mut violations = oracles.violations().to_vec();
        let made: u64 = oracles.counts.0.values().map(|(made, unmade)| made + unmade).sum();
        let (events, forgiven) = (adversary.events(), 20 + self.forgiven);
        // A drain says every half minute what it waits for, and at each refusal of an eviction.
        let drains = if self.has_pods { oracles.counts.0.get("machines").map_or(0, |machines| machines.1) } else { 0 };
        // Its addresses, and what else a Node gets from its provider.
        let initialized =
            if self.has_cloud_nodes { oracles.counts.0.get("nodes").map_or(0, |nodes| nodes.0) } else { 0 };
        let (updates, moves) = (oracles.updates(), oracles.rollouts.moves);
        let enough = [
            ("writes", writes, made * 6 + drains * 12 + updates * 15 + moves * 12 + initialized * 2),
            ("events", events, made * 2 + drains * 24 + updates * 4 + moves * 4),
        ];
        for (what, number, enough) in enough {
            if number > enough + forgiven {
                violations.push(format!("I9: {number} {what}, and {} would do", enough + forgiven));
            }
        }
        let leaks = self.cluster.trace.leaks();
        if leaks > 0 {
            violations.push(format!("I8: a secret stands in {leaks} lines of the managers' logs"));
        }
        let report = Report {
            violations,
            counts: oracles.counts.clone(),
            steps,
            missed: adversary.missed(),
            simulated: begun.elapsed(),
            digest: self.cluster.trace.digest(),
            trace: self.cluster.trace.take(),
        };
        drop(oracles);
        self.cluster.end();
        report
    }
}
