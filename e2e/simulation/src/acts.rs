//! Does what happens at a time.

use std::{sync::Arc, time::Duration};

use nodewright_testing::api_server::{ApiServer, Match, Pace};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    cluster::{DEPLOYMENTS, MACHINES, POOL, SETS, World, node_labels},
    generate::WATCHED,
    oracles::Oracles,
    process::{SECOND, Slot, prefix},
    schedule::{Act, Edit},
    trace::Trace,
    users,
};
use nodewright_e2e_cloud::{KubeletOrder, Vm, VmState};

/// Between two changes of somebody who makes many.
const BETWEEN: Duration = Duration::from_millis(20);

/// How long something takes that began with an act, beyond the act itself.
pub(super) fn lasts(act: &Act) -> Duration {
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    match act {
        Act::SecondManager(time)
        | Act::HoldWatches(_, time)
        | Act::ApiDown(time)
        | Act::ApiRefuses { seconds: time, .. }
        | Act::ApiSwallows { seconds: time, .. }
        | Act::CloudDown(time)
        | Act::SilenceKubelet(_, time)
        | Act::Err(_, time) => seconds(*time),
        Act::LateWatches(..) | Act::LateRival(..) | Act::LaggingServer(_) => Duration::from_mins(1),
        Act::ApiSlow(_) => Duration::from_secs(30),
        Act::Cloud(order) => Duration::from_secs_f64(order.for_seconds.unwrap_or(0.0)),
        Act::Disturb(times) | Act::WipeStatus(times) | Act::TakeOwners(times) => BETWEEN.saturating_mul(*times),
        _ => Duration::ZERO,
    }
}

/// Does it. What lasts goes on by itself, but for a second manager, which is ended by [`end`].
pub(super) fn begin(world: &mut World, act: &Act) {
    world.trace.line(format_args!("{act:?}"));
    let server = world.server().clone();
    match act {
        Act::Edit(wanted) => edit(&server, &world.oracles, &world.trace, wanted),
        Act::OrphanMachines => drop(tokio::spawn(orphan_machines(server, world.oracles.clone()))),
        Act::Disturb(times) => repeat(*times, move |time| change_all(&server, |object| touch(object, time))),
        Act::WipeStatus(times) => repeat(*times, move |_| change_all(&server, wipe_status)),
        Act::TakeOwners(times) => repeat(*times, move |_| take_owners(&server)),
        Act::Restore => restore(world),
        Act::DropManagedFields => drop(tokio::spawn(drop_managed_fields(server))),
        Act::Crash => world.first.crash(),
        Act::SecondManager(_) => world.second = Some(Slot::start(SECOND, &world.around_second)),
        Act::JumpClock(seconds) => world.around.clock.jump(*seconds),
        Act::Sleep(seconds) => fall_asleep(world, *seconds),
        Act::HoldWatches(plural, seconds) => pace(&server, plural, Pace::Held, lasts_of(*seconds)),
        Act::LateWatches(plural, millis) => {
            pace(&server, plural, Pace::Late(Duration::from_millis((*millis).into())), Duration::from_mins(1));
        }
        Act::LateRival(plural, millis) => {
            let (rival, lag) = (watches_of(plural).user_agent(prefix(SECOND)), Duration::from_millis((*millis).into()));
            pace_those(&server, rival, Pace::Late(lag), Duration::from_mins(1));
        }
        Act::LaggingServer(millis) => {
            let (lag, time) = (Duration::from_millis((*millis).into()), Duration::from_mins(1));
            world.around.adversary.lag(lag, time);
            for plural in WATCHED {
                pace(&server, plural, Pace::Late(lag), time);
            }
            world.first.crash();
        }
        Act::CutWatches(plural) => server.break_watches_of(&watches_of(plural)),
        Act::Compact => server.compact(),
        Act::ApiDown(seconds) => {
            world.around.adversary.silence_api(lasts_of(*seconds));
            server.break_watches();
        }
        Act::ApiSlow(millis) => {
            world.around.adversary.slow_api(Duration::from_millis((*millis).into()), Duration::from_secs(30));
        }
        Act::ApiRefuses { code, percent, seconds } => {
            world.around.adversary.refuse(Some(*code), *percent, lasts_of(*seconds));
        }
        Act::ApiSwallows { percent, seconds } => world.around.adversary.refuse(None, *percent, lasts_of(*seconds)),
        Act::CloudDown(seconds) => {
            let (cloud, time) = (world.cloud().clone(), lasts_of(*seconds));
            cloud.set_down(true);
            after(time, move || cloud.set_down(false));
        }
        // A schedule holds only orders that the cloud takes.
        Act::Cloud(order) => drop(world.cloud().fault(order.clone())),
        Act::Err(mistake, seconds) => users::err(world, mistake, *seconds),
        Act::KillVm(number) => {
            if let Some(Vm { id, name, .. }) = vm(world, *number) {
                drop(world.cloud().kill(&id));
                world.oracles.lock().died(&name);
            }
        }
        Act::SilenceKubelet(number, seconds) => {
            let Some(Vm { id, .. }) = vm(world, *number) else { return };
            let cloud = world.cloud().clone();
            drop(cloud.kubelet(&id, KubeletOrder::Silence));
            after(lasts_of(*seconds), move || drop(cloud.kubelet(&id, KubeletOrder::Revive)));
        }
    }
}

/// Does what a user does with one request, at once.
pub(super) fn edit(server: &ApiServer, oracles: &Mutex<Oracles>, trace: &Trace, edit: &Edit) {
    if !is_done(server, oracles, edit) {
        trace.line(format_args!("{edit:?} is left out: users do not do that now"));
    }
}

/// Does it, and says whether it was done: there has to be what it is done to, and users leave machines that nobody owns to
/// the manager first.
fn is_done(server: &ApiServer, oracles: &Mutex<Oracles>, edit: &Edit) -> bool {
    match edit {
        Edit::Scale(replicas) => server.change(POOL, |pool| pool["spec"]["replicas"] = (*replicas).into()).is_some(),
        Edit::Relabel(name) => {
            let template = "/spec/template/spec/nodeTemplate/metadata";
            let relabel = |pool: &mut Value| {
                if let Some(metadata) = pool.pointer_mut(template) {
                    metadata["labels"] = node_labels(name);
                }
            };
            server.change(POOL, relabel).is_some()
        }
        // Machines that were left behind would be of a former template then, and nobody's for ever.
        Edit::Roll(class) => {
            !are_left_behind(server)
                && server
                    .change(POOL, |pool| {
                        pool["spec"]["template"]["spec"]["class"]["name"] = class.as_str().into();
                    })
                    .is_some()
        }
        Edit::DeleteMachine(number) => machine(server, *number).is_some_and(|machine| {
            // The set that lost it does not know that the name had its life.
            if !is_owned(&machine) {
                oracles.lock().excuse(machine["metadata"]["name"].as_str().unwrap_or_default());
            }
            // One that was restored without its finalizer is gone at once.
            if machine["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty) {
                excuse_force(oracles, &machine);
            }
            server.delete(&path_of(&machine))
        }),
        Edit::RecreateMachine(number) => {
            machine(server, *number).map(|machine| recreate(server, oracles, machine)).is_some()
        }
        // What nobody owns yet, after a restore, would not go with it.
        Edit::DeletePool => {
            [SETS, MACHINES].iter().all(|collection| server.objects(collection).iter().all(|it| is_owned(it)))
                && server.delete(POOL)
        }
    }
}

/// Whether there are machines without an owner that no set selects.
fn are_left_behind(server: &ApiServer) -> bool {
    let sets = server.objects(SETS);
    let selects = |set: &Value, machine: &Value| {
        let wanted = set["spec"]["selector"]["matchLabels"].as_object();
        wanted.is_some_and(|wanted| wanted.iter().all(|(key, value)| machine["metadata"]["labels"][key] == *value))
    };
    let is_selected = |machine: &Value| sets.iter().any(|set| selects(set, machine));
    server.objects(MACHINES).iter().any(|machine| !is_owned(machine) && !is_selected(machine))
}

fn is_owned(object: &Value) -> bool {
    object["metadata"]["ownerReferences"].as_array().is_some_and(|owners| !owners.is_empty())
}

/// Ends what lasts no longer.
pub(super) fn end(world: &mut World, act: &Act) {
    if matches!(act, Act::SecondManager(_)) {
        world.second = None;
    }
}

/// Time goes by for all that have clocks of their own: for one of them alone it cannot.
fn fall_asleep(world: &World, seconds: u32) {
    for clock in [&world.around.clock, &world.around_second.clock, &world.cloud_clock] {
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
    Match::verb("watch").path_end(format!("/{plural}")).user_agent(super::adversary::MANAGER)
}

fn pace(server: &ApiServer, plural: &str, pace: Pace, time: Duration) {
    pace_those(server, watches_of(plural), pace, time);
}

fn pace_those(server: &ApiServer, watches: Match, pace: Pace, time: Duration) {
    server.pace_watches(watches.clone(), pace);
    let server = server.clone();
    after(time, move || server.pace_watches(watches, Pace::Live));
}

/// The n-th VM that runs, by name, counted around.
fn vm(world: &World, number: usize) -> Option<Vm> {
    let mut vms = world.cloud().vms();
    vms.retain(|vm| vm.state == VmState::Running && !users::is_foreign(&vm.name));
    vms.sort_by(|one, other| one.name.cmp(&other.name));
    (!vms.is_empty()).then(|| vms.swap_remove(number % vms.len()))
}

/// The n-th machine by name, counted around.
fn machine(server: &ApiServer, number: usize) -> Option<Value> {
    let mut machines = server.objects(MACHINES);
    machines.retain(|machine| !machine["metadata"]["name"].as_str().unwrap_or_default().starts_with(users::COPY));
    (!machines.is_empty()).then(|| Arc::unwrap_or_clone(machines.swap_remove(number % machines.len())))
}

fn path_of(machine: &Value) -> String {
    format!("{MACHINES}/{}", machine["metadata"]["name"].as_str().unwrap_or_default())
}

/// As kubectl does it: what owns is gone before its owner is made again. Not during a rollout: machines of a former
/// template are nobody's then, and stay so.
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

/// Deletes an object without what it owns, and waits until it is gone.
async fn orphan(server: &ApiServer, path: &str) {
    let client = server.client();
    while let Some(object) = server.object(path) {
        if object["metadata"]["deletionTimestamp"].is_null() {
            let request = http::Request::delete(format!("{path}?propagationPolicy=Orphan")).body(vec![]);
            if let Ok(request) = request {
                // Refused or lost: it is still there then, and is deleted again.
                drop(client.request::<Value>(request).await);
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
}

fn excuse_force(oracles: &Mutex<Oracles>, machine: &Value) {
    oracles.lock().excuse_force(machine["metadata"]["name"].as_str().unwrap_or_default());
}

fn recreate(server: &ApiServer, oracles: &Mutex<Oracles>, mut machine: Value) {
    excuse_force(oracles, &machine);
    server.remove(&path_of(&machine));
    strip(&mut machine, &["uid", "resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds"]);
    server.seed(MACHINES, machine);
}

/// As whoever wants to be rid of them does it.
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

/// Somebody does something so many times.
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

/// While the deployment stays: what nobody owns would not go with it.
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

fn wipe_status(object: &mut Value) {
    if let Some(parts) = object.as_object_mut() {
        parts.remove("status");
    }
}

/// The namespace is lost while no manager runs, and restored as backups do it: without UIDs, owners, finalizers, status.
/// Not while something is leaving: what a backup has forgotten leaves a VM that nobody knows.
fn restore(world: &World) {
    let server = world.server();
    let leaves = |object: &Value| !object["metadata"]["deletionTimestamp"].is_null();
    if [MACHINES, SETS, DEPLOYMENTS]
        .iter()
        .any(|collection| server.objects(collection).iter().any(|object| leaves(object)))
    {
        return;
    }
    world.first.crash();
    for collection in [MACHINES, SETS, DEPLOYMENTS] {
        for mut object in server.objects(collection).into_iter().map(Arc::unwrap_or_clone) {
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if collection == MACHINES {
                let mut oracles = world.oracles.lock();
                // A VM that was being made for it may come when nobody asks any more.
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

/// Takes its status from an object, and these fields of its metadata.
fn strip(object: &mut Value, fields: &[&str]) {
    wipe_status(object);
    remove_fields(object, fields);
}

fn remove_fields(object: &mut Value, fields: &[&str]) {
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    for field in fields {
        metadata.remove(*field);
    }
    if metadata.get("annotations") == Some(&json!({})) {
        metadata.remove("annotations");
    }
}
