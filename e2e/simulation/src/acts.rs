//! Carries out the timed events of a run.

use std::{sync::Arc, time::Duration};

use nodewright_api::annotations;
use nodewright_testing::api_server::{ApiServer, Match, Pace};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    cluster::SimulatedCluster,
    edits::{edit, remove_fields, strip, wipe_status},
    foreign::seed_lost_vms,
    names::{
        DEPLOYMENTS, DRAIN_WATCHED, MACHINES, MANAGER, POOL, POOL_WATCHED, SECOND, SETS, WATCHED, is_foreign, prefix,
    },
    oracles::Oracles,
    pools,
    process::Slot,
    rollouts,
    schedule::Act,
    set_back::{back_up, set_back},
    users,
};
use nodewright_e2e_cloud::{Call, Caller, KubeletOrder, Vm, VmState};

/// The pause between two changes of an act that makes many.
const BETWEEN: Duration = Duration::from_millis(20);

/// How long the consequences of an act last after it.
pub(super) fn lasts(act: &Act) -> Duration {
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    match act {
        Act::SecondManager(time)
        | Act::HoldWatches(_, time)
        | Act::ApiDown(time)
        | Act::ApiRefuses { seconds: time, .. }
        | Act::ApiSwallows { seconds: time, .. }
        | Act::CloudDown(time)
        | Act::TargetDown(time)
        | Act::RefusePods(_, time)
        | Act::StaleBudgets(time)
        | Act::EditBudgets(time)
        | Act::SilenceKubelet(_, time)
        | Act::SetBack(time)
        | Act::Err(_, time) => seconds(*time),
        Act::Rollout(act) => act.lasts(),
        Act::LateWatches(..) | Act::LateRival(..) | Act::LaggingServer(_) => Duration::from_mins(1),
        Act::ApiSlow(_) => Duration::from_secs(30),
        Act::Cloud(order) => Duration::from_secs_f64(order.for_seconds.unwrap_or(0.0)),
        Act::Disturb(times) | Act::WipeStatus(times) | Act::TakeOwners(times) => BETWEEN.saturating_mul(*times),
        _ => Duration::ZERO,
    }
}

/// Starts an act. A lasting act continues on its own, except for a second manager and a backup: [`end`] stops the one and plays
/// the other.
pub(super) fn begin(cluster: &mut SimulatedCluster, act: &Act) {
    cluster.trace.line(format_args!("{act:?}"));
    let server = cluster.server().clone();
    match act {
        Act::Edit(wanted) => edit(&server, &cluster.oracles, &cluster.trace, wanted),
        Act::OrphanMachines => drop(tokio::spawn(orphan_machines(server, cluster.oracles.clone()))),
        Act::Disturb(times) => repeat(*times, move |time| change_all(&server, |object| touch(object, time))),
        Act::WipeStatus(times) => repeat(*times, move |_| change_all(&server, wipe_status)),
        Act::TakeOwners(times) => repeat(*times, move |_| take_owners(&server)),
        Act::Restore => restore(cluster),
        Act::SetBack(_) => back_up(cluster),
        Act::SizeAhead => size_ahead(&server),
        Act::DropManagedFields => drop(tokio::spawn(drop_managed_fields(server))),
        Act::Crash => cluster.first.crash(),
        Act::SecondManager(_) => cluster.second = Some(Slot::start(SECOND, &cluster.around_second)),
        Act::JumpClock(seconds) => cluster.around.clock.jump(*seconds),
        Act::JumpRival(seconds) => cluster.around_second.clock.jump(*seconds),
        Act::DriftClock(seconds) => cluster.around.clock.drift(*seconds),
        Act::Sleep(seconds) => fall_asleep(cluster, *seconds),
        Act::HoldWatches(plural, seconds) => pace(&server, plural, Pace::Held, lasts_of(*seconds)),
        Act::LateWatches(plural, millis) => {
            pace(&server, plural, Pace::Late(Duration::from_millis((*millis).into())), Duration::from_mins(1));
        }
        Act::LateRival(plural, millis) => {
            let (rival, lag) = (watches_of(plural).user_agent(prefix(SECOND)), Duration::from_millis((*millis).into()));
            pace_those(&server, rival, Pace::Late(lag), Duration::from_mins(1));
        }
        Act::LaggingServer(millis) => restart_on_lagging_server(cluster, Duration::from_millis((*millis).into())),
        Act::CutWatches(plural) => server.break_watches_of(&watches_of(plural)),
        Act::Compact => server.compact(),
        Act::ApiDown(seconds) => {
            cluster.around.adversary.silence_api(lasts_of(*seconds));
            server.break_watches();
        }
        Act::ApiSlow(millis) => {
            cluster.around.adversary.slow_api(Duration::from_millis((*millis).into()), Duration::from_secs(30));
        }
        Act::ApiRefuses { code, percent, seconds } => {
            cluster.around.adversary.refuse(Some(*code), *percent, lasts_of(*seconds));
        }
        Act::ApiSwallows { percent, seconds } => cluster.around.adversary.refuse(None, *percent, lasts_of(*seconds)),
        Act::TargetDown(seconds) => {
            cluster.around.adversary.silence_target(lasts_of(*seconds));
            DRAIN_WATCHED
                .iter()
                .chain(&POOL_WATCHED)
                .chain(&["nodes"])
                .for_each(|kind| server.break_watches_of(&watches_of(kind)));
        }
        Act::RefusePods(code, seconds) => cluster.around.adversary.refuse_pods(*code, lasts_of(*seconds)),
        Act::StaleBudgets(seconds) => cluster.stop_counting(lasts_of(*seconds), false),
        Act::EditBudgets(seconds) => cluster.stop_counting(lasts_of(*seconds), true),
        Act::CloudDown(seconds) => {
            let (cloud, time) = (cluster.cloud().clone(), lasts_of(*seconds));
            cloud.set_down(true);
            after(time, move || cloud.set_down(false));
        }
        // A schedule holds only fault orders that the cloud accepts.
        Act::Cloud(order) => drop(cluster.cloud().fault(order.clone())),
        Act::Err(user_error, seconds) => users::err(cluster, user_error, *seconds),
        Act::Pool(change) => pools::change(&server, &cluster.oracles, change),
        Act::Rollout(act) => cluster.agents.iter().for_each(|agents| rollouts::begin(agents, act)),
        Act::KillVm(number) => {
            if let Some(Vm { id, name, .. }) = vm(cluster, *number) {
                drop(cluster.cloud().kill(&id));
                cluster.oracles.lock().died(&name);
            }
        }
        Act::VanishVm(number) => {
            if let Some(vm) = vm(cluster, *number) {
                vanish(cluster, &vm);
            }
        }
        Act::LoseMachine(number) => {
            if let Some(vm) = vm(cluster, *number) {
                vanish(cluster, &vm);
                cluster.oracles.lock().excuse_force(&vm.name);
                server.remove(&format!("{MACHINES}/{}", vm.name));
            }
        }
        Act::LoseVms(count) => seed_lost_vms(cluster.cloud(), *count),
        Act::SilenceKubelet(number, seconds) => silence_kubelet(cluster, *number, lasts_of(*seconds)),
    }
}

/// The manager starts again while the API server answers from the past.
fn restart_on_lagging_server(cluster: &mut SimulatedCluster, lag: Duration) {
    let time = Duration::from_mins(1);
    cluster.around.adversary.lag(lag, time);
    for plural in WATCHED.into_iter().chain(DRAIN_WATCHED).chain(POOL_WATCHED) {
        pace(cluster.server(), plural, Pace::Late(lag), time);
    }
    cluster.first.crash();
}

/// Somebody who is no manager deletes a VM.
pub(super) fn vanish(cluster: &SimulatedCluster, vm: &Vm) {
    cluster.oracles.lock().vanishes(&vm.name);
    let delete = Call::Delete(vm.id.clone());
    cluster.cloud().with(|cloud, now| drop(cloud.call(now, &delete, Caller::Observer)));
}

fn silence_kubelet(cluster: &SimulatedCluster, number: usize, time: Duration) {
    let Some(Vm { id, .. }) = vm(cluster, number) else { return };
    let cloud = cluster.cloud().clone();
    drop(cloud.kubelet(&id, KubeletOrder::Silence));
    after(time, move || drop(cloud.kubelet(&id, KubeletOrder::Revive)));
}

/// Ends an act that has run its time.
pub(super) fn end(cluster: &mut SimulatedCluster, act: &Act) {
    match act {
        Act::SecondManager(_) => cluster.second = None,
        Act::SetBack(_) => set_back(cluster),
        Act::Rollout(act) => cluster.agents.iter().for_each(|agents| rollouts::end(agents, act)),
        _ => {}
    }
}

/// Lets time pass on all clocks of the simulation, because tokio's time cannot pass for one manager alone.
fn fall_asleep(cluster: &SimulatedCluster, seconds: u32) {
    for clock in [&cluster.around.clock, &cluster.around_second.clock, &cluster.cloud_clock] {
        clock.sleep(seconds);
    }
}

fn lasts_of(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into())
}

fn after(time: Duration, act: impl FnOnce() + Send + 'static) {
    tokio::spawn(async move {
        sleep(time).await;
        act();
    });
}

fn watches_of(plural: &str) -> Match {
    Match::verb("watch").path_end(format!("/{plural}")).user_agent(MANAGER)
}

fn pace(server: &ApiServer, plural: &str, pace: Pace, time: Duration) {
    pace_those(server, watches_of(plural), pace, time);
}

fn pace_those(server: &ApiServer, watches: Match, pace: Pace, time: Duration) {
    server.pace_watches(watches.clone(), pace);
    let server = server.clone();
    after(time, move || server.pace_watches(watches, Pace::Live));
}

/// The n-th running VM by name, modulo their number.
fn vm(cluster: &SimulatedCluster, number: usize) -> Option<Vm> {
    let mut vms = cluster.cloud().vms();
    vms.retain(|vm| vm.state == VmState::Running && !is_foreign(&vm.name));
    vms.sort_by(|one, other| one.name.cmp(&other.name));
    (!vms.is_empty()).then(|| vms.swap_remove(number % vms.len()))
}

/// Orphans machines as kubectl does: each owner is gone before it is created again. The user does not do this during a rollout:
/// machines of an older template would stay orphaned forever.
async fn orphan_machines(server: ApiServer, oracles: Arc<Mutex<Oracles>>) {
    let Some(mut pool) =
        server.object(POOL).map(Arc::unwrap_or_clone).filter(|pool| pool["metadata"]["deletionTimestamp"].is_null())
    else {
        return;
    };
    let class = |object: &Value| object["spec"]["template"]["spec"]["class"]["name"].clone();
    let rolls = |set: &Value| set["spec"]["replicas"] != 0 && class(set) != class(&pool);
    let sets = server.objects(SETS);
    if sets.iter().any(|set| rolls(set))
        || server.objects(MACHINES).iter().any(|it| it["spec"]["class"]["name"] != class(&pool))
    {
        return;
    }
    oracles.lock().keep_wanting(true);
    orphan(&server, POOL).await;
    for set in sets {
        orphan(&server, &format!("{SETS}/{}", set["metadata"]["name"].as_str().unwrap_or_default())).await;
    }
    strip(&mut pool, &["uid", "resourceVersion", "finalizers", "generation", "creationTimestamp", "managedFields"]);
    server.seed(DEPLOYMENTS, pool);
    oracles.lock().keep_wanting(false);
}

/// Deletes an object with `--cascade=orphan`, and waits until it is gone.
async fn orphan(server: &ApiServer, path: &str) {
    let client = server.client();
    while let Some(object) = server.object(path) {
        if object["metadata"]["deletionTimestamp"].is_null() {
            let request = http::Request::delete(format!("{path}?propagationPolicy=Orphan")).body(vec![]);
            if let Ok(request) = request {
                // The request was refused or lost. The object still exists, and the next iteration deletes it again.
                drop(client.request::<Value>(request).await);
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Clears `managedFields` of all objects, with the patch of a user who wants to remove them.
async fn drop_managed_fields(server: ApiServer) {
    let client = server.client();
    for collection in [MACHINES, SETS, DEPLOYMENTS] {
        for object in server.objects(collection) {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let patch = json!({"metadata": {"managedFields": [{}]}}).to_string();
            let request = http::Request::patch(format!("{collection}/{name}"))
                .header("content-type", "application/merge-patch+json")
                .body(patch.into_bytes());
            if let Ok(request) = request {
                drop(client.request::<Value>(request).await);
            }
        }
    }
}

/// Runs an act several times.
fn repeat(times: u32, act: impl Fn(u32) + Send + 'static) {
    tokio::spawn(async move {
        for time in 0..times {
            act(time);
            sleep(BETWEEN).await;
        }
    });
}

/// Changes machines, sets and the deployment.
fn change_all(server: &ApiServer, change: impl Fn(&mut Value)) {
    for collection in [MACHINES, SETS, DEPLOYMENTS] {
        for object in server.objects(collection) {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            server.change(&format!("{collection}/{name}"), &change);
        }
    }
}

fn touch(object: &mut Value, time: u32) {
    object["metadata"]["annotations"]["example.com/touched"] = time.to_string().into();
}

/// An etcd that was set back has no such sets: they come from a write that was on its way, or from the restore of a part.
fn size_ahead(server: &ApiServer) {
    let Some(pool) = server.object(POOL) else { return };
    let ahead = pool["metadata"]["generation"].as_i64().unwrap_or_default() + 5;
    let note = format!("{}/{ahead}", pool["metadata"]["uid"].as_str().unwrap_or_default());
    for set in server.objects(SETS) {
        let path = format!("{SETS}/{}", set["metadata"]["name"].as_str().unwrap_or_default());
        server.change(&path, |set| set["metadata"]["annotations"][annotations::SIZED_FOR] = note.as_str().into());
    }
}

/// Only while the deployment exists: orphans would not be deleted with it.
fn take_owners(server: &ApiServer) {
    let is_kept = |object: &Value| object["metadata"]["deletionTimestamp"].is_null();
    if !server.object(POOL).is_some_and(|pool| is_kept(&pool)) {
        return;
    }
    for collection in [MACHINES, SETS] {
        for object in server.objects(collection).into_iter().filter(|it| is_kept(it)) {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            server.change(&format!("{collection}/{name}"), |object| remove_fields(object, &["ownerReferences"]));
        }
    }
}

/// Loses the namespace while no manager runs, and restores it as backup tools do: without UIDs, owners, finalizers and status.
/// It does nothing while an object is being deleted: a backup that lacks the object would leave a VM that no Machine names.
fn restore(cluster: &SimulatedCluster) {
    let server = cluster.server();
    let leaves = |object: &Value| !object["metadata"]["deletionTimestamp"].is_null();
    if [MACHINES, SETS, DEPLOYMENTS]
        .iter()
        .any(|collection| server.objects(collection).iter().any(|object| leaves(object)))
    {
        return;
    }
    cluster.first.crash();
    for collection in [MACHINES, SETS, DEPLOYMENTS] {
        for mut object in server.objects(collection).into_iter().map(Arc::unwrap_or_clone) {
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if collection == MACHINES {
                let mut oracles = cluster.oracles.lock();
                // A VM that was being created for the machine may appear after no manager asks for it any more.
                let is_linked = object["spec"]["providerID"].as_str().is_some_and(|id| !id.is_empty());
                if is_linked { oracles.excuse(&name) } else { oracles.excuse_force(&name) }
            }
            server.remove(&format!("{collection}/{name}"));
            let fields = ["uid", "resourceVersion", "ownerReferences", "finalizers", "generation", "creationTimestamp"];
            strip(&mut object, &fields);
            server.seed(collection, object);
        }
    }
}
