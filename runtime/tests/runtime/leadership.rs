//! Only the leader writes: leases are acquired, lost and handed over.

use std::time::Duration;

use http::HeaderValue;
use nodewright_runtime::{
    leadership::{Election, LeaseConfig},
    manager::Ended,
    plan::FailureClass,
    request::Call,
};
use nodewright_testing::api_server::{ApiServer, Fault, Match};
use serde_json::json;

use crate::support::{MAPS, Running, annotate, annotated, election, election_for, set_copies, source};

#[tokio::test(start_paused = true)]
async fn a_manager_that_loses_its_lease_stops_writing_and_ends() {
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
    // The first list takes 20 s; the lease becomes free 3 s after the start.
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
    // A killed manager does not release its lease.
    first.manager.abort();
    let _ = first.manager.await;
    set_copies(&server, "s", 2);
    let begun = tokio::time::Instant::now();
    let second = Running::start(server.clone(), both(&server));
    second.until("the second works", |it| it.copies() == 2).await;
    assert!(begun.elapsed() < Duration::from_secs(15 + 3), "{:?}", begun.elapsed());
    second.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_plan_that_is_under_way_goes_no_further_than_leadership() {
    let server = ApiServer::new();
    source(&server, "s", 0);
    let running = Running::start(server.clone(), vec![election(&server)]);
    running.until_noted(0).await;
    // From here on each write takes so long that the lease is lost between two writes.
    server.fail_always(Match::verb("update").path("leases"), Fault::Status(500));
    server.fail_always(Match::verb("patch"), Fault::Delay(Duration::from_secs(4)));
    set_copies(&server, "s", 20);
    assert_eq!(running.manager.await.unwrap(), Err(Ended::LostLease));
    let made = |server: &ApiServer| server.requests().iter().filter(|request| request.verb == "patch").count();
    let before = made(&server);
    assert!((2..20).contains(&before), "in the middle of it: {before}");
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(made(&server), before, "{:#?}", server.requests());
}

#[tokio::test(start_paused = true)]
async fn requests_outside_of_plans_need_leadership_too() {
    let server = ApiServer::new();
    let other = election(&server);
    let _term = other.acquire().await;
    let running = Running::start(server.clone(), vec![election(&server)]);
    let connection = running.connection.clone();
    let write = async |name: &str| {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        let result = connection.send(Call::with(http::Method::POST, MAPS, "application/json", &map)).await;
        (result.err().map(|error| error.class), server.object(&format!("{MAPS}/{name}")).is_some())
    };
    running.passes(5).await;
    assert_eq!(write("early").await, (Some(FailureClass::Expired), false));
    assert!(connection.send(Call::get(MAPS)).await.is_ok(), "a standby may read");
    other.release().await;
    running.passes(5).await;
    assert_eq!(write("in-time").await, (None, true));
    server.fail_always(Match::verb("update").path("leases"), Fault::Status(500));
    assert_eq!(running.manager.await.unwrap(), Err(Ended::LostLease));
    assert_eq!(write("late").await, (Some(FailureClass::Expired), false));
}

/// The caches of a standby may lag: its first plan uses a list that began after it could lead.
#[tokio::test(start_paused = true)]
async fn a_new_leader_lists_before_its_first_plan() {
    let server = ApiServer::new();
    source(&server, "s", 1);
    let other = election(&server);
    let _term = other.acquire().await;
    let running = Running::start(server.clone(), vec![election(&server)]);
    running.passes(10).await;
    // From here on its cache receives no events.
    server.hold_watches(true);
    set_copies(&server, "s", 3);
    server.fail_next(Match::verb("list").path("configmaps"), Fault::Delay(Duration::from_secs(10)));
    other.release().await;
    running
        .until("the list", |it| it.server.requests().iter().filter(|request| request.verb == "list").count() == 2)
        .await;
    running.passes(9).await;
    assert_eq!(running.plans(), 0, "none before the list is there");
    running.until("three copies", |it| it.copies() == 3).await;
    server.hold_watches(false);
    running.end().await;
}

/// The worker stands still for much longer than the lease, as it does where something computes without end.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn busy_workers_cost_no_lease() {
    let held = |on_thread: bool| async move {
        let server = ApiServer::default();
        let config = LeaseConfig {
            lease_duration: Duration::from_secs(2),
            renew_deadline: Duration::from_millis(1_500),
            retry_period: Duration::from_millis(200),
            ..LeaseConfig::new("default", "lease")
        };
        let agent: HeaderValue = "test/1 (lease)".parse().unwrap();
        let election = if on_thread {
            Election::on_thread(|| Ok(server.client()), &agent, [config]).unwrap().remove(0)
        } else {
            Election::new(server.client(), agent, config).unwrap()
        };
        let leadership = election.acquire().await;
        tokio::spawn(async { std::thread::sleep(Duration::from_secs(4)) }).await.unwrap();
        let is_held = !leadership.is_over();
        election.release().await;
        is_held
    };
    let held_beside = tokio::spawn(held(true)).await.unwrap();
    let held_among = tokio::spawn(held(false)).await.unwrap();
    assert_eq!((held_beside, held_among), (true, false), "on a thread of its own, and among the tasks that wait");
}
