#![allow(clippy::unwrap_used, clippy::panic)]

//! The whole runtime with a small controller, on an API server in process and on paused time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Resource;
use nodewright_runtime::{
    cache::Stores,
    controller::{Controller, Watches},
    effect::{Effect, Lane, Perform},
    lease::{Election, LeaseConfig},
    manager::{Ended, Manager, Options},
    object::{Cluster, Key, Target, annotation, controller_uid, is_deleting, label, name, uid},
    owned::{Owned, Part},
    plan::{Moment, Plan, Planned, Step},
    term::TokioClock,
    testing::api_server::{ApiServer, Fault, Match, RequestRecord},
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Keeps as many copies of a ConfigMap as its label says, and notes in an annotation how many there are. Asks and evicts
/// when annotations say so.
struct Copies;

struct World {
    source: Arc<ConfigMap>,
    copies: Vec<Arc<ConfigMap>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Ask(String);

impl Effect for Ask {
    type Outcome = Result<(), String>;
    fn lane(&self) -> Lane {
        Lane(self.0.as_str().into())
    }
    fn name(&self) -> &'static str {
        "ask"
    }
    fn deadline(&self) -> Duration {
        Duration::from_secs(30)
    }
    fn late(&self) -> Self::Outcome {
        Err("late".to_owned())
    }
    fn succeeded(outcome: &Self::Outcome) -> bool {
        outcome.is_ok()
    }
}

/// Answers at once, but for those whose name says otherwise.
struct Answers;

impl Perform<Ask> for Answers {
    fn perform(&self, effect: Ask) -> futures::future::BoxFuture<'static, Result<(), String>> {
        Box::pin(async move {
            match effect.0.as_str() {
                "hangs" => std::future::pending().await,
                "panics" => panic!("as told"),
                "slow" => {
                    tokio::time::sleep(Duration::from_secs(20)).await;
                    Ok(())
                }
                _ => Ok(()),
            }
        })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Note {
    metadata: NoteMeta,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct NoteMeta {
    annotations: BTreeMap<String, String>,
}

impl Owned for Note {
    type Of = ConfigMap;
    const PART: Part = Part::Main;
    fn seen(live: &ConfigMap) -> Self {
        let all = live.metadata.annotations.clone().unwrap_or_default();
        let annotations = all.into_iter().filter(|(key, _)| key == "copies" || key == "asked").collect();
        Self { metadata: NoteMeta { annotations } }
    }
}

impl Controller for Copies {
    const NAME: &'static str = "copies";
    type Primary = ConfigMap;
    type World = World;
    type Effect = Ask;

    fn watch(&self, on: &mut Watches<'_>) {
        on.primary::<ConfigMap>(Cluster::CONTROL, "default");
        on.kind::<ConfigMap>(Cluster::CONTROL, "default").wakes(|change, stores, wake| {
            for owner in change.sides().filter_map(|map| controller_uid(map.as_ref())) {
                let all = stores.of::<ConfigMap>(Cluster::CONTROL).all();
                let owners = all.iter().filter(|map| uid(map.as_ref()) == owner);
                owners.for_each(|map| wake(Key::of(Cluster::CONTROL, map.as_ref())));
            }
        });
    }

    fn observe(&self, stores: &Stores, key: &Key) -> Option<World> {
        let store = stores.of::<ConfigMap>(Cluster::CONTROL);
        let source = store.get(key)?;
        let mut copies = store.owned_by(uid(source.as_ref()));
        copies.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
        Some(World { source, copies })
    }

    fn plan(&self, at: &Moment<'_, Ask>, world: &World) -> Plan<Ask> {
        let mut plan = Plan::idle();
        let source = world.source.as_ref();
        let Some(wanted) = label(source, "copies").and_then(|text| text.parse::<usize>().ok()) else { return plan };
        assert!(annotation(source, "panic").is_none(), "as told");
        let names: Vec<String> = (0..wanted).map(|place| format!("{}-{place}", name(source))).collect();
        let live: Vec<_> = world.copies.iter().filter(|copy| !is_deleting(copy.as_ref())).collect();
        let missing = names.iter().filter(|wanted| live.iter().all(|copy| name(copy.as_ref()) != wanted.as_str()));
        plan.stage(missing.filter_map(|name| {
            let step = Step::create(Cluster::CONTROL, &copy(source, name))?;
            Some(Planned { why: "a copy is missing".into(), step })
        }));
        let surplus = live.iter().filter(|copy| !names.iter().any(|wanted| wanted == name(copy.as_ref())));
        plan.stage(surplus.map(|copy| Planned {
            why: "a copy too many".into(),
            step: Step::delete(Cluster::CONTROL, copy.as_ref()),
        }));
        let mut annotations = BTreeMap::from([("copies".to_owned(), live.len().to_string())]);
        if let Some(whom) = annotation(source, "ask") {
            let ask = Ask(whom.to_owned());
            match at.outcomes.last(&ask) {
                Some(answer) => drop(annotations.insert("asked".to_owned(), format!("{answer:?}"))),
                None if at.outcomes.is_running(&ask) => {}
                None => {
                    plan.then("nobody has been asked", Step::Call(ask));
                }
            }
        }
        if annotation(source, "evict").is_some() {
            let due = at.refusal(uid(source)).map(|refusal| refusal.at + SignedDuration::from_secs(20));
            match due.filter(|due| *due > at.now) {
                Some(due) => drop(plan.wake_at(due)),
                None => drop(plan.then("as told", Step::Evict(Target::of(Cluster::CONTROL, source)))),
            }
        }
        let note = Note { metadata: NoteMeta { annotations } };
        plan.then("the note is out of date", Step::apply(Cluster::CONTROL, source, &note));
        plan
    }
}

fn copy(source: &ConfigMap, name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "default",
        "ownerReferences": [source.controller_owner_ref(&())]}, "data": source.data}))
    .unwrap()
}

/// A running manager.
struct Running {
    server: ApiServer,
    stop: CancellationToken,
    manager: JoinHandle<Result<(), Ended>>,
}

impl Running {
    fn start(server: ApiServer, elections: Vec<Election>) -> Self {
        let clock = Arc::new(TokioClock::starting_at("2026-06-01T12:00:00Z".parse().unwrap()));
        let mut manager = Manager::new(Options {
            requests_at_once: 8,
            effects_at_once: 8,
            clock,
            seed: 1,
            ..Options::new("test", "1", server.client())
        });
        manager.add(Copies, Arc::new(Answers));
        let stop = CancellationToken::new();
        let manager = tokio::spawn(manager.run(elections, stop.clone()));
        Self { server, stop, manager }
    }

    /// One whose source has its copies, and the note of them.
    async fn with_copies(copies: usize) -> Self {
        let server = ApiServer::new();
        source(&server, "s", copies);
        let running = Self::start(server, vec![]);
        running.until_noted(copies).await;
        running
    }

    fn copies(&self) -> usize {
        self.server.objects(MAPS).iter().filter(|map| map["metadata"].get("ownerReferences").is_some()).count()
    }

    fn writes(&self) -> Vec<RequestRecord> {
        let all = self.server.requests();
        all.into_iter().filter(|request| !matches!(request.verb, "get" | "list" | "watch")).collect()
    }

    /// Time passes until the condition holds.
    async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        for _ in 0..6_000 {
            if condition(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{what} did not happen; requests: {:#?}", self.writes());
    }

    /// Time passes until the source says that it has so many copies.
    async fn until_noted(&self, copies: usize) {
        let is_noted = |it: &Self| annotated(&it.server, "s", "copies") == Some(copies.to_string());
        self.until(&format!("the note of {copies} copies"), is_noted).await;
    }

    async fn passes(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    async fn end(self) {
        self.stop.cancel();
        assert_eq!(self.manager.await.unwrap(), Ok(()));
    }
}

fn source(server: &ApiServer, name: &str, copies: usize) -> Value {
    let labels = json!({"copies": copies.to_string()});
    server.seed(MAPS, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}}))
}

fn annotate(server: &ApiServer, name: &str, annotations: &Value) {
    server.change(&format!("{MAPS}/{name}"), |map| map["metadata"]["annotations"] = annotations.clone());
}

fn annotated(server: &ApiServer, name: &str, key: &str) -> Option<String> {
    Some(server.object(&format!("{MAPS}/{name}"))?["metadata"]["annotations"][key].as_str()?.to_owned())
}

fn set_copies(server: &ApiServer, name: &str, copies: usize) {
    server.change(&format!("{MAPS}/{name}"), |map| map["metadata"]["labels"]["copies"] = copies.to_string().into());
}

#[tokio::test(start_paused = true)]
async fn what_is_wanted_is_reached_with_one_write_for_each_object_and_then_there_is_silence() {
    let running = Running::with_copies(5).await;
    running.passes(1).await;
    let before = running.writes().len();
    let creates = running.writes().iter().filter(|request| request.status == 201).count();
    assert_eq!((creates, running.copies()), (5, 5));
    running.passes(600).await;
    assert_eq!(running.writes().len(), before, "no write in ten minutes");
    assert!(running.writes().iter().all(|request| request.user_agent == "test/1 (copies)"));
    set_copies(&running.server, "s", 2);
    running.until("two copies", |it| it.copies() == 2).await;
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_create_whose_answer_is_lost_is_read_and_not_repeated() {
    let server = ApiServer::new();
    source(&server, "s", 1);
    server.fail_next(Match::verb("patch").path("s-0"), Fault::LoseAnswer);
    let running = Running::start(server, vec![]);
    running.until_noted(1).await;
    let creates = running.writes().iter().filter(|request| request.path.ends_with("/s-0")).count();
    assert_eq!(creates, 1);
    let all = running.server.requests();
    let reads = all.iter().filter(|request| request.verb == "get" && request.path.ends_with("/s-0")).count();
    assert_eq!(reads, 1);
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_planned_on_a_cache_that_does_not_show_what_was_written() {
    let running = Running::with_copies(1).await;
    running.passes(1).await;
    running.server.take_requests();
    running.server.fail_next(Match::verb("patch").path("s-1"), Fault::Delay(Duration::from_secs(1)));
    set_copies(&running.server, "s", 3);
    running.passes(0).await;
    running
        .until("a create is on its way", |it| it.writes().iter().any(|request| request.path.ends_with("/s-1")))
        .await;
    // From here on the caches stand still, while the object itself goes on to be woken.
    running.server.hold_watches(true);
    running.passes(20).await;
    let held = running.writes();
    let created = |name: &str| held.iter().filter(|request| request.path.ends_with(name)).count();
    assert_eq!((created("/s-1"), created("/s-2")), (1, 1), "each once, however long the caches lag: {held:#?}");
    running.server.hold_watches(false);
    running.until_noted(3).await;
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_silent_is_opened_again() {
    let running = Running::with_copies(1).await;
    running.passes(1).await;
    running.server.take_requests();
    running.server.hold_watches(true);
    running.passes(5 * 60).await;
    let watches = running.server.requests().iter().filter(|request| request.verb == "watch").count();
    assert!(watches > 0, "noticed within five minutes");
    running.server.hold_watches(false);
    set_copies(&running.server, "s", 2);
    running.until("work goes on", |it| it.copies() == 2).await;
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_vanishes_while_the_watch_is_broken_wakes_its_owner() {
    let running = Running::with_copies(2).await;
    running.passes(1).await;
    running.server.break_watches();
    running.server.remove(&format!("{MAPS}/s-1"));
    running.server.compact();
    running.until("the copy is made again", |it| it.copies() == 2).await;
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_breaks_off_is_made_again_from_its_beginning() {
    let server = ApiServer::new();
    for n in 0..520 {
        server.seed(MAPS, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("a-{n:03}")}}));
    }
    source(&server, "s", 1);
    let running = Running::start(server, vec![]);
    running.until_noted(1).await;
    running.passes(5).await;
    running.server.break_watches();
    // The first page shows the newer change; the older one stands on the second page, which fails.
    set_copies(&running.server, "s", 3);
    annotate(&running.server, "a-000", &json!({"x": "y"}));
    running.server.compact();
    let lists = || Match::verb("list").path("configmaps");
    // The look at the version, then both pages.
    running.server.fail_times(2, lists(), Fault::Delay(Duration::ZERO));
    running.server.fail_next(lists(), Fault::Status(500));
    running.until("three copies", |it| it.copies() == 3).await;
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_restored_from_a_backup_is_followed_from_there() {
    for broken in [true, false] {
        let running = Running::with_copies(1).await;
        let backup = running.server.back_up();
        set_copies(&running.server, "s", 4);
        running.until_noted(4).await;
        running.passes(5).await;
        running.server.restore(&backup);
        if broken {
            running.server.break_watches();
        }
        // It goes on writing before it is asked, with versions that were given before.
        set_copies(&running.server, "s", 2);
        running.until_noted(2).await;
        assert_eq!(running.copies(), 2);
        set_copies(&running.server, "s", 3);
        running.until_noted(3).await;
        running.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_is_asked_less_and_less() {
    let running = Running::with_copies(1).await;
    running.passes(5).await;
    running.server.take_requests();
    running.server.fail_always(Match::any(), Fault::Unreachable);
    running.server.break_watches();
    running.passes(300).await;
    // Whether it is well again is asked by whoever answers /readyz, at a steady pace.
    let asked = running.server.take_requests().iter().filter(|request| request.path != "/readyz").count();
    assert!((5..20).contains(&asked), "asked {asked} times in five minutes");
    running.server.heal();
    set_copies(&running.server, "s", 2);
    running.until("work goes on", |it| it.copies() == 2).await;
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_at_once_each_time_is_opened_less_and_less() {
    let running = Running::with_copies(1).await;
    running.passes(5).await;
    running.server.take_requests();
    for _ in 0..3_000 {
        running.server.break_watches();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let watches = running.server.take_requests().iter().filter(|request| request.verb == "watch").count();
    assert!((5..20).contains(&watches), "opened {watches} times in five minutes");
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_correction_that_is_refused_is_made_on_the_state_that_the_apply_has_left() {
    let server = ApiServer::new();
    source(&server, "s", 0);
    annotate(&server, "s", &json!({"asked": "old", "copies": "7"}));
    server.fail_next(Match::verb("patch"), Fault::Delay(Duration::ZERO));
    server.fail_next(Match::verb("patch"), Fault::Status(403));
    let running = Running::start(server, vec![]);
    running.until("the rest is gone", |it| annotated(&it.server, "s", "asked").is_none()).await;
    let all = running.server.requests();
    let reads = all.iter().filter(|request| request.verb == "get" && request.path.ends_with("/s")).count();
    assert_eq!(reads, 1);
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_is_refused_is_tried_again_when_its_time_has_come() {
    let server = ApiServer::new();
    source(&server, "s", 0);
    annotate(&server, "s", &json!({"evict": "yes"}));
    server.fail_times(50, Match::verb("create").path("eviction"), Fault::too_many_requests("budget", 1));
    let running = Running::start(server, vec![]);
    running.passes(299).await;
    let asked = running.writes().iter().filter(|request| request.path.ends_with("eviction")).count();
    assert_eq!(asked, 15, "once in 20 s, for five minutes");
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_taken_is_left_alone() {
    let server = ApiServer::new();
    source(&server, "s", 1);
    let mine = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s-0"}, "data": {"mine": "own"}});
    server.seed(MAPS, mine);
    let running = Running::start(server, vec![]);
    running.until("an attempt", |it| it.writes().iter().any(|request| request.status == 409)).await;
    running.passes(30).await;
    assert_eq!(running.server.object(&format!("{MAPS}/s-0")).unwrap()["data"], json!({"mine": "own"}));
    assert!(running.writes().len() < 12, "with a growing pause: {}", running.writes().len());
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_another_writer_keeps_is_removed_under_the_version_of_the_answer() {
    let server = ApiServer::new();
    source(&server, "s", 0);
    // Written by somebody's PUT: an apply that leaves it out does not remove it.
    annotate(&server, "s", &json!({"asked": "old", "copies": "7"}));
    let running = Running::start(server, vec![]);
    running.until_noted(0).await;
    running.until("the rest is gone", |it| annotated(&it.server, "s", "asked").is_none()).await;
    running.passes(60).await;
    let kinds: Vec<_> = running.writes().iter().map(|request| request.content_type.clone()).collect();
    assert_eq!(kinds, ["application/apply-patch+yaml", "application/merge-patch+json"]);
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn one_panic_one_poisoned_object_and_one_hung_call_hold_up_nobody_else() {
    let server = ApiServer::new();
    for name in ["panics", "hangs", "well"] {
        source(&server, name, 1);
    }
    annotate(&server, "panics", &json!({"panic": "1"}));
    annotate(&server, "hangs", &json!({"ask": "hangs"}));
    let poison =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "poisoned"}, "data": {"deep": [[1]]}});
    server.seed(MAPS, poison);
    let running = Running::start(server, vec![]);
    running.until("the healthy one", |it| annotated(&it.server, "well", "copies").as_deref() == Some("1")).await;
    let late = |it: &Running| annotated(&it.server, "hangs", "asked").is_some_and(|text| text.contains("late"));
    running.until("the late answer", late).await;
    assert!(running.server.object(&format!("{MAPS}/panics-0")).is_none());
    annotate(&running.server, "panics", &json!({}));
    running.until("it is well again", |it| it.server.object(&format!("{MAPS}/panics-0")).is_some()).await;
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_panics_is_a_call_that_did_not_answer() {
    let server = ApiServer::new();
    source(&server, "s", 0);
    annotate(&server, "s", &json!({"ask": "panics"}));
    let running = Running::start(server, vec![]);
    let late = |it: &Running| annotated(&it.server, "s", "asked").is_some_and(|text| text.contains("late"));
    running.until("its outcome", late).await;
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_is_left_alone_for_as_long_as_it_asks() {
    let server = ApiServer::new();
    source(&server, "s", 1);
    server.fail_next(Match::verb("patch"), Fault::too_many_requests("busy", 45));
    let running = Running::start(server, vec![]);
    running.until("the first attempt", |it| it.writes().len() == 1).await;
    running.passes(44).await;
    assert_eq!(running.writes().len(), 1);
    running.until("one copy", |it| it.copies() == 1).await;
    running.end().await;
}

fn election(server: &ApiServer) -> Election {
    election_for(server, "lease")
}

fn election_for(server: &ApiServer, name: &str) -> Election {
    let clock = Arc::new(TokioClock::starting_at("2026-06-01T12:00:00Z".parse().unwrap()));
    let config = LeaseConfig::new("default", name);
    Election::new(server.client(), "test/1 (lease)".parse().unwrap(), config).unwrap().with_clock(clock)
}

#[tokio::test(start_paused = true)]
async fn whoever_loses_the_lease_writes_nothing_more_and_ends() {
    let server = ApiServer::new();
    source(&server, "s", 1);
    let running = Running::start(server.clone(), vec![election(&server)]);
    running.until("one copy", |it| it.copies() == 1).await;
    server.fail_always(Match::verb("update").path("leases"), Fault::Status(500));
    let ended = running.manager.await.unwrap();
    assert_eq!(ended, Err(Ended::LostLease));
    server.take_requests();
    set_copies(&server, "s", 9);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(server.requests().iter().all(|request| request.path.contains("leases")), "{:#?}", server.requests());
}

#[tokio::test(start_paused = true)]
async fn a_second_process_stands_by_with_warm_caches_and_takes_over() {
    let server = ApiServer::new();
    source(&server, "s", 1);
    let first = Running::start(server.clone(), vec![election(&server)]);
    first.until("one copy", |it| it.copies() == 1).await;
    let second = Running::start(server.clone(), vec![election(&server)]);
    second.passes(30).await;
    assert!(!second.manager.is_finished());
    first.end().await;
    set_copies(&server, "s", 3);
    second.until("the second works", |it| it.copies() == 3).await;
    second.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_first_list_that_is_under_way_when_the_lease_is_gained_is_made_again() {
    let server = ApiServer::new();
    source(&server, "s", 2);
    let other = election(&server);
    let _term = other.acquire().await;
    // The first list takes 20 s; the lease comes free 3 s after the start.
    server.fail_next(Match::verb("list").path("configmaps"), Fault::Delay(Duration::from_secs(20)));
    let mine = election(&server);
    let running = Running::start(server, vec![mine]);
    running.passes(3).await;
    other.release().await;
    running.until("two copies", |it| it.copies() == 2).await;
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_may_last_longer_than_the_lease_is_sure() {
    let server = ApiServer::new();
    source(&server, "s", 0);
    annotate(&server, "s", &json!({"ask": "slow"}));
    let mine = election(&server);
    let running = Running::start(server, vec![mine]);
    running.until("an answer", |it| annotated(&it.server, "s", "asked").is_some()).await;
    assert_eq!(annotated(&running.server, "s", "asked").as_deref(), Some("Ok(())"));
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn two_leases_of_a_dead_process_are_taken_over_in_the_time_of_one() {
    let server = ApiServer::new();
    source(&server, "s", 1);
    let both = |server: &ApiServer| vec![election_for(server, "one"), election_for(server, "two")];
    let first = Running::start(server.clone(), both(&server));
    first.until("one copy", |it| it.copies() == 1).await;
    // Killed: it gives nothing back.
    first.manager.abort();
    let _ = first.manager.await;
    set_copies(&server, "s", 2);
    let begun = tokio::time::Instant::now();
    let second = Running::start(server.clone(), both(&server));
    second.until("the second works", |it| it.copies() == 2).await;
    assert!(begun.elapsed() < Duration::from_secs(15 + 3), "{:?}", begun.elapsed());
    second.end().await;
}
