//! Shrinks a run that breaks an invariant, as long as it breaks the same one.

use super::{
    campaign::{Reference, examine},
    rollouts::Rollout,
    run::Run,
    trace::Detail,
    workload::{Ending, Workload},
};

/// The maximum number of runs.
const ATTEMPTS: usize = 300;

/// Returns the shortest run found that breaks the same invariant.
pub fn shrink(run: &Run, reference: &mut Reference) -> Run {
    let Some(broken) = invariant(run, reference) else { return run.clone() };
    let (mut best, mut attempts) = (run.clone(), 0);
    loop {
        let before = best.clone();
        for candidate in shorter(&before) {
            attempts += 1;
            if attempts > ATTEMPTS {
                return best;
            }
            if invariant(&candidate, reference).as_ref() == Some(&broken) {
                best = candidate;
                break;
            }
        }
        if best == before {
            return best;
        }
    }
}

/// The first word of the first violation.
fn invariant(run: &Run, reference: &mut Reference) -> Option<String> {
    let report = examine(run, reference, Detail::Brief);
    report.violations.first().map(|violation| violation.split(':').next().unwrap_or_default().to_owned())
}

/// All runs that lack one fault or act, and simpler variants.
fn shorter(run: &Run) -> Vec<Run> {
    let mut shorter = vec![];
    let count = run.schedule.0.len();
    // Try the halves first.
    for size in [count / 2, count / 4, 1] {
        for begin in (0..count).step_by(size.max(1)).filter(|_| size > 0) {
            let mut fewer = run.clone();
            fewer.schedule.0.drain(begin..(begin + size).min(count));
            shorter.push(fewer);
        }
    }
    for phase in (0..run.phases.len()).rev() {
        let mut fewer = run.clone();
        fewer.phases.remove(phase);
        shorter.push(fewer);
    }
    let simpler = [
        Run { elects: false, ..run.clone() },
        Run { heartbeats: run.schedule.needs_heartbeats(), ..run.clone() },
        Run { replicas: run.replicas.saturating_sub(1), ..run.clone() },
        Run { replicas: run.replicas / 2, ..run.clone() },
        Run { workload: None, ..run.clone() },
        Run { cloud_nodes: false, ..run.clone() },
    ];
    shorter.extend(with_fewer_nodes(run));
    shorter.extend(with_fewer_pods(run));
    shorter.extend(simpler.into_iter().filter(|simpler| simpler != run && simpler.replicas > 0));
    shorter
}

/// All runs with one node less in a pool, and without the last pool.
fn with_fewer_nodes(run: &Run) -> Vec<Run> {
    let Some(rollout) = &run.rollout else { return vec![] };
    let with = |change: &dyn Fn(&mut Rollout)| {
        let mut fewer = rollout.clone();
        change(&mut fewer);
        Run { rollout: Some(fewer), ..run.clone() }
    };
    let mut simpler = vec![];
    if rollout.pools.len() > 1 {
        simpler.push(with(&|fewer| drop(fewer.pools.pop())));
    }
    for pool in 0..rollout.pools.len() {
        simpler.push(with(&|fewer| fewer.pools[pool].nodes = fewer.pools[pool].nodes.saturating_sub(1)));
        simpler.push(with(&|fewer| fewer.pools[pool].max_unavailable = None));
    }
    simpler.retain(|simpler| simpler != run);
    simpler
}

/// All runs without one app, with one pod less of an app, and with simpler pods.
fn with_fewer_pods(run: &Run) -> Vec<Run> {
    let Some(workload) = &run.workload else { return vec![] };
    let with = |change: &dyn Fn(&mut Workload)| {
        let mut fewer = workload.clone();
        change(&mut fewer);
        Run { workload: Some(fewer), ..run.clone() }
    };
    let mut simpler = vec![with(&|fewer| fewer.daemons = false)];
    for app in 0..workload.apps.len() {
        simpler.push(with(&|fewer| drop(fewer.apps.remove(app))));
        simpler.push(with(&|fewer| fewer.apps[app].pods = fewer.apps[app].pods.saturating_sub(1)));
        simpler.push(with(&|fewer| fewer.apps[app].budgets.truncate(1)));
        simpler.push(with(&|fewer| fewer.apps[app].budgets.clear()));
        simpler.push(with(&|fewer| fewer.apps[app].volume = None));
        simpler.push(with(&|fewer| fewer.apps[app].ends = Ending::Soon));
    }
    simpler.retain(|simpler| simpler != run);
    simpler
}
