//! Known defects and slow cases of kube-runtime's `Controller`, tested on this runtime. Each of these tests failed there
//! (kube 5.0). Where speed is concerned, the tests count, and `make bench-runtime` measures. F, the lookup by owner, is tested
//! on the store alone: `src/cache/store/tests.rs`.

use std::time::Duration;

use nodewright_testing::api_server::{ApiServer, Fault, Match};
use serde_json::json;
use tokio::time::Instant;

use crate::support::{
    MAPS, Running, annotate, annotated,
    clusters::{Mirrors, NEAR},
    set_copies, source,
};

/// A. An object that is deleted before its first plan is planned when it is created again.
#[tokio::test(start_paused = true)]
async fn a_an_object_that_came_and_went_before_anybody_looked_is_seen_when_it_comes_again() {
    let running = Running::with_copies(0).await;
    for round in 1..=5 {
        // Both happen before the runtime runs.
        source(&running.server, "fleeting", 1);
        running.server.remove(&format!("{MAPS}/fleeting"));
        if round % 2 == 0 {
            running.passes(1).await;
        }
    }
    source(&running.server, "fleeting", 2);
    running.until("its copies", |it| it.server.object(&format!("{MAPS}/fleeting-1")).is_some()).await;
    running.end().await;
}

/// B. A failing watch has its own back-off and does not delay other watches.
#[tokio::test(start_paused = true)]
async fn b_a_failing_watch_delays_nobody_else() {
    let mirrors = Mirrors::start(|_, far| far.fail_always(Match::any(), Fault::Status(500))).await;
    for round in 0..60 {
        mirrors.wanted("near", NEAR, &round.to_string());
        let begun = Instant::now();
        mirrors.until("the copy", |it| it.near.value("near").as_deref() == Some(&round.to_string())).await;
        assert!(begun.elapsed() < Duration::from_millis(50), "round {round} took {:?}", begun.elapsed());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    mirrors.end().await;
}

/// C. The plan decides when to retry a refused request: one request each time, and the client does not retry by itself.
#[tokio::test(start_paused = true)]
async fn c_an_eviction_that_is_refused_is_tried_again_when_its_time_has_come() {
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

/// D. An object that changes all the time is planned all the time.
#[tokio::test(start_paused = true)]
async fn d_chatter_keeps_nobody_waiting() {
    let running = Running::with_copies(0).await;
    let before = running.plans();
    for n in 1..=240_usize {
        set_copies(&running.server, "s", n % 3);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let plans = running.plans() - before;
    assert!(plans >= 240, "{plans} plans for 240 changes");
    running.end().await;
}

/// E. Each object of an initial list is planned once, and one change leads to one plan.
#[tokio::test(start_paused = true)]
async fn e_so_many_plans_as_there_are_changes() {
    let server = ApiServer::new();
    for n in 0..2_000 {
        server.seed(MAPS, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("a-{n:04}")}}));
    }
    let running = Running::start(server, vec![]);
    running.until("all plans", |it| it.plans() >= 2_000).await;
    running.passes(600).await;
    assert_eq!(running.plans(), 2_000);
    annotate(&running.server, "a-0007", &json!({"x": "y"}));
    running.passes(600).await;
    assert_eq!(running.plans(), 2_001);
    running.end().await;
}

/// G. Ten thousand objects that wait for a slow call cost the next one nothing: it is planned at once, and they are not
/// planned again.
#[tokio::test(start_paused = true)]
async fn g_what_waits_costs_nobody_else() {
    const WAITING: usize = 10_000;
    let server = ApiServer::new();
    source(&server, "s", 0);
    for n in 0..WAITING {
        let labels = json!({"copies": "0"});
        let name = format!("waits-{n:05}");
        let metadata = json!({"name": name, "labels": labels, "annotations": {"ask": format!("hangs {n}")}});
        server.seed(MAPS, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}));
    }
    let running = Running::start(server, vec![]);
    running.until("all to wait", |it| it.asking() == WAITING).await;
    let (begun, before) = (Instant::now(), running.plans());
    annotate(&running.server, "s", &json!({"ask": "somebody else"}));
    running.until("its answer", |it| annotated(&it.server, "s", "asked").is_some()).await;
    assert!(begun.elapsed() <= Duration::from_millis(50), "{:?}", begun.elapsed());
    let plans = running.plans() - before;
    assert!(plans < 10, "{plans} plans for one object");
    running.end().await;
}

/// H. An object that was deleted while the watch was broken wakes its owner when the watch resumes.
#[tokio::test(start_paused = true)]
async fn h_what_vanishes_while_the_watch_is_broken_wakes_its_owner() {
    let running = Running::with_copies(2).await;
    running.passes(1).await;
    running.server.break_watches();
    running.server.remove(&format!("{MAPS}/s-1"));
    running.server.compact();
    running.until("the copy is made again", |it| it.copies() == 2).await;
    running.end().await;
}
