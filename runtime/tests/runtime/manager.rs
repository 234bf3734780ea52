//! The whole runtime with a small controller, on an API server in process and on paused time.

use std::time::Duration;

use nodewright_testing::api_server::{ApiServer, Fault, Match};
use serde_json::json;

use crate::support::{MAPS, Running, annotate, annotated, election, set_copies, source};

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
    // From here on the caches receive no events, but the object is still woken.
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
async fn a_write_that_does_not_come_back_within_half_a_minute_is_looked_for_by_a_list() {
    let running = Running::with_copies(1).await;
    running.server.fail_next(Match::verb("patch").path("s-1"), Fault::Delay(Duration::from_secs(1)));
    set_copies(&running.server, "s", 3);
    running.until("a create", |it| it.writes().iter().any(|request| request.path.ends_with("/s-1"))).await;
    running.server.take_requests();
    // From here on the watch shows neither this creation nor any later one.
    running.server.hold_watches(true);
    running.passes(29).await;
    let lists = |it: &Running| it.server.requests().iter().filter(|request| request.verb == "list").count();
    assert_eq!(lists(&running), 0, "there is no hurry");
    running.passes(10).await;
    assert_eq!(lists(&running), 1);
    running.until("work goes on all the same", |it| it.copies() == 3).await;
    running.server.hold_watches(false);
    running.end().await;
}

/// The pause is 200 µs for each child: 400 ms with 2,000, and at most a second.
#[tokio::test(start_paused = true)]
async fn a_plan_over_very_many_children_is_made_the_less_often() {
    for (children, most, least) in [(10, 1_000, 90), (2_000, 13, 8), (1_000_000, 7, 3)] {
        let running = Running::with_copies(0).await;
        running.passes(5).await;
        // The annotation has the number of copies, so that no plan has anything to write.
        let change = |n: usize| json!({"children": children.to_string(), "copies": "0", "n": n.to_string()});
        annotate(&running.server, "s", &change(0));
        running.passes(5).await;
        let before = running.plans();
        for n in 1..=100 {
            annotate(&running.server, "s", &change(n));
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
        running.passes(2).await;
        let plans = running.plans() - before;
        assert!((least..=most).contains(&plans), "{plans} plans in four seconds with {children} children");
        running.end().await;
    }
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
    // The first page has the newer change; the older one is on the second page, which fails.
    set_copies(&running.server, "s", 3);
    annotate(&running.server, "a-000", &json!({"x": "y"}));
    running.server.compact();
    let lists = || Match::verb("list").path("configmaps");
    // The request for the version, then both pages.
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
        // The restored server continues to write, with versions that it had assigned before.
        set_copies(&running.server, "s", 2);
        running.until_noted(2).await;
        assert_eq!(running.copies(), 2);
        set_copies(&running.server, "s", 3);
        running.until_noted(3).await;
        let alarm = r#"watch_rewinds_total{api_server="home",resource="configmaps"} 1"#;
        assert!(running.metrics.encode().unwrap().contains(alarm));
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
    // The handler of /readyz checks at a steady pace whether the server is available again.
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
    // Written by a PUT of another client: an apply that leaves it out does not remove it.
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
async fn one_panic_one_undecodable_object_and_one_hung_call_block_no_others() {
    let server = ApiServer::new();
    for name in ["panics", "hangs", "well"] {
        source(&server, name, 1);
    }
    annotate(&server, "panics", &json!({"panic": "1"}));
    annotate(&server, "hangs", &json!({"ask": "hangs"}));
    let undecodable =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "undecodable"}, "data": {"deep": [[1]]}});
    server.seed(MAPS, undecodable);
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

/// Two owners: one has very many copies to make, the other comes a little later with a few.
#[tokio::test(start_paused = true)]
async fn owners_take_turns_where_requests_wait() {
    let server = ApiServer::new();
    source(&server, "many", 2_000);
    server.fail_always(Match::verb("patch"), Fault::Delay(Duration::from_millis(100)));
    let running = Running::start(server, vec![]);
    running.until("the many to be under way", |it| it.copies() >= 100).await;
    let before = running.copies();
    source(&running.server, "few", 3);
    running.until("the few", |it| it.server.object(&format!("{MAPS}/few-2")).is_some()).await;
    let meanwhile = running.copies() - before;
    assert!(meanwhile < 100, "{meanwhile} others were made before the third of the few");
    running.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_panic_outside_of_a_plan_is_caught_as_well() {
    let server = ApiServer::new();
    for name in ["observed", "listened", "well"] {
        source(&server, name, 1);
    }
    annotate(&server, "observed", &json!({"panic-observe": "1"}));
    annotate(&server, "listened", &json!({"panic-listen": "1"}));
    let running = Running::start(server, vec![]);
    running.until("the healthy one", |it| annotated(&it.server, "well", "copies").as_deref() == Some("1")).await;
    let text = running.metrics.encode().unwrap();
    assert!(text.contains(r#"watch_panics_total{api_server="home",resource="configmaps"}"#), "{text}");
    assert!(text.contains(r#"controller_runtime_reconcile_panics_total{controller="copies"}"#), "{text}");
    let made = |it: &Running, name: &str| it.server.object(&format!("{MAPS}/{name}-0")).is_some();
    running.until("one listener's panic to affect no other", |it| made(it, "listened")).await;
    assert!(!made(&running, "observed"));
    annotate(&running.server, "observed", &json!({}));
    running.until("it is well again", |it| made(it, "observed")).await;
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_decoded_is_named_in_a_metric_and_in_events_of_the_leader() {
    let server = ApiServer::new();
    let undecodable = |name: &str, data: serde_json::Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    server.seed(MAPS, undecodable("bad", json!({"deep": [["hush"]]})));
    let other = election(&server);
    let _term = other.acquire().await;
    let running = Running::start(server.clone(), vec![election(&server)]);
    running.passes(5).await;
    let named =
        r#"watch_undecodable_object_info{api_server="home",resource="configmaps",namespace="default",name="bad"} 1"#;
    assert!(running.metrics.encode().unwrap().contains(named));
    let events = |server: &ApiServer| {
        server.objects("/apis/events.k8s.io/v1/namespaces/default/events").len()
            + server.objects("/api/v1/namespaces/default/events").len()
    };
    assert_eq!(events(&server), 0, "another process leads");
    other.release().await;
    running.until("an event", |it| events(&it.server) == 1).await;
    // One object that was readable before, and the first one, readable again.
    server.seed(MAPS, undecodable("later", json!({"a": "b"})));
    running.passes(1).await;
    server.seed(MAPS, undecodable("later", json!({"a": 1})));
    running.until("another event", |it| events(&it.server) == 2).await;
    server.seed(MAPS, undecodable("bad", json!({"a": "b"})));
    running.passes(1).await;
    let text = running.metrics.encode().unwrap();
    assert!(!text.contains(named) && text.contains(r#"name="later"} 1"#), "{text}");
    assert!(text.contains(r#"watch_undecodable_objects{api_server="home",resource="configmaps"} 1"#), "{text}");
    let bodies: Vec<_> =
        server.requests().into_iter().filter_map(|request| request.body).map(|it| it.to_string()).collect();
    assert!(bodies.iter().all(|body| !body.contains("hush")), "{bodies:?}");
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_comes_within_five_seconds_whatever_hangs() {
    let running = Running::with_copies(1).await;
    annotate(&running.server, "s", &json!({"ask": "hangs"}));
    running.until("a call", |it| it.asking() == 1).await;
    running.server.fail_always(Match::any(), Fault::Hang);
    set_copies(&running.server, "s", 3);
    running.passes(1).await;
    let begun = tokio::time::Instant::now();
    running.end().await;
    assert!(begun.elapsed() <= Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_a_plan_forgets_is_asked_for_again_when_it_matters() {
    let server = ApiServer::new();
    source(&server, "s", 0);
    annotate(&server, "s", &json!({"ask": "x"}));
    let running = Running::start(server, vec![]);
    running.until("its answer", |it| annotated(&it.server, "s", "asked").is_some()).await;
    annotate(&running.server, "s", &json!({"ask": "x", "other": "change"}));
    running.until("its answer", |it| annotated(&it.server, "s", "asked").is_some()).await;
    assert_eq!(running.asking(), 1, "it is remembered");
    // Only a plan without calls may drop the outcomes.
    annotate(&running.server, "s", &json!({"forget": "yes"}));
    running.until("the note of it", |it| annotated(&it.server, "s", "copies").is_some()).await;
    annotate(&running.server, "s", &json!({"ask": "x"}));
    running.until("another call", |it| it.asking() == 2).await;
    running.end().await;
}
