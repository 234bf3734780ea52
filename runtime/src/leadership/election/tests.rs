//! The election against the in-process API server, on paused time.

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::leadership::tokio_clock;
use nodewright_testing::api_server::{ApiServer, Fault, Match};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/shoot/leases";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/shoot/leases/machine-controller";

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn election(server: &ApiServer, identity: &str) -> Election {
    let config = LeaseConfig { identity: identity.to_owned(), ..LeaseConfig::new("shoot", "machine-controller") };
    let agent = HeaderValue::from_static("nodewright/0.1.0 (leader-election)");
    let start: Timestamp = "2026-11-20T10:00:00Z".parse().unwrap();
    Election::new(server.client(), agent, config).unwrap().in_manager(1, tokio_clock(start), Arc::default())
}

fn spec(server: &ApiServer) -> Value {
    server.object(LEASE).unwrap()["spec"].clone()
}

fn held_by_another(server: &ApiServer) {
    let spec = json!({
        "holderIdentity": "go",
        "leaseDurationSeconds": 15,
        "leaseTransitions": 4,
        // Hours ago on the other process's clock: clocks are not compared.
        "renewTime": "2026-11-20T03:00:00.000000Z",
    });
    let metadata = json!({ "name": "machine-controller" });
    let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec });
    server.seed(LEASES, lease);
}

#[tokio::test(start_paused = true)]
async fn a_free_lease_is_created_and_renewed_by_puts_alone() {
    let server = ApiServer::new();
    let election = election(&server, "a");
    let leadership = election.acquire().await;
    let first = spec(&server);
    assert_eq!(first["holderIdentity"], "a");
    assert_eq!(first["leaseDurationSeconds"], 15);
    assert_eq!(first["leaseTransitions"], 0);
    assert_eq!(first["renewTime"], "2026-11-20T10:00:00.000000Z");
    sleep(seconds(601)).await;
    assert!(leadership.remaining() > seconds(8));
    assert_eq!(spec(&server)["acquireTime"], first["acquireTime"]);
    assert_eq!(spec(&server)["leaseTransitions"], 0);
    let requests = server.requests();
    let verbs: Vec<_> = requests.iter().map(|request| request.verb).collect();
    assert_eq!(verbs[..2], ["get", "create"]);
    assert!(verbs[2..].iter().all(|verb| *verb == "update"));
    assert_eq!(verbs.len(), 302, "a renewal is one request, every two seconds");
    assert!(requests.iter().all(|request| request.user_agent == "nodewright/0.1.0 (leader-election)"));
    assert_eq!(election.acquire().await.remaining(), leadership.remaining(), "held already: the same leadership");
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_taken_over_once_it_has_stood_still_here() {
    let server = ApiServer::new();
    held_by_another(&server);
    let begun = Instant::now();
    let leadership = election(&server, "a").acquire().await;
    assert!(begun.elapsed() >= seconds(15), "{:?}", begun.elapsed());
    assert!(begun.elapsed() < seconds(18), "{:?}", begun.elapsed());
    assert_eq!(spec(&server)["holderIdentity"], "a");
    assert_eq!(spec(&server)["leaseTransitions"], 5);
    assert!(leadership.is_over(), "the election was dropped, no one renews");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_renewed_is_left_alone() {
    let server = ApiServer::new();
    held_by_another(&server);
    let contender = election(&server, "a");
    let acquired = contender.acquire();
    tokio::pin!(acquired);
    for turn in 1..=10 {
        assert!(timeout(seconds(10), &mut acquired).await.is_err());
        server.change(LEASE, |lease| lease["spec"]["renewTime"] = format!("2026-11-20T03:00:{turn:02}.000000Z").into());
    }
    assert_eq!(spec(&server)["holderIdentity"], "go");
}

#[tokio::test(start_paused = true)]
async fn of_many_contenders_one_holds_at_a_time() {
    let server = ApiServer::new();
    let elections: Vec<_> = ["a", "b", "c"].map(|identity| Arc::new(election(&server, identity))).into();
    let tasks = elections.iter().map(|election| {
        let election = election.clone();
        tokio::spawn(async move { election.acquire().await })
    });
    let mut tasks: Vec<_> = tasks.collect();
    sleep(seconds(120)).await;
    let won: Vec<_> = tasks.iter().map(tokio::task::JoinHandle::is_finished).collect();
    assert_eq!(won.iter().filter(|won| **won).count(), 1, "{won:?}");
    let winner = won.iter().position(|won| *won).unwrap();
    let leadership = tasks.remove(winner).await.unwrap();
    elections[winner].release().await;
    assert!(leadership.is_over());
    let released = spec(&server);
    assert_eq!((&released["holderIdentity"], &released["leaseDurationSeconds"]), (&json!(""), &json!(1)));
    sleep(seconds(3)).await;
    assert_eq!(tasks.iter().filter(|task| task.is_finished()).count(), 1, "the next takes over at once");
}

#[tokio::test(start_paused = true)]
async fn a_leadership_ends_ten_seconds_after_the_last_renewal_was_sent() {
    let server = ApiServer::new();
    let election = election(&server, "a");
    let leadership = election.acquire().await;
    sleep(Duration::from_millis(4_500)).await;
    // The last successful renewal was sent half a second ago.
    server.fail_always(Match::verb("update"), Fault::Status(500));
    server.fail_always(Match::verb("get"), Fault::Status(500));
    let begun = Instant::now();
    leadership.ended().await;
    assert_eq!(begun.elapsed().as_millis(), 9_500);
    server.heal();
    sleep(seconds(60)).await;
    assert!(leadership.is_over(), "nothing brings it back");
    assert!(!election.acquire().await.is_over(), "a new one may be begun");
}

#[tokio::test(start_paused = true)]
async fn a_leadership_counts_from_before_the_request() {
    let server = ApiServer::new();
    server.fail_next(Match::verb("create"), Fault::Delay(seconds(4)));
    let leadership = election(&server, "a").acquire().await;
    // The statement dropped the election, so check a leadership that is held: its request was sent 4 s ago.
    assert!(leadership.is_over());
    let held = election(&server, "b");
    server.remove(LEASE);
    server.fail_next(Match::verb("create"), Fault::Delay(seconds(4)));
    assert_eq!(held.acquire().await.remaining(), seconds(6));
}

#[tokio::test(start_paused = true)]
async fn one_hung_renewal_does_not_cost_the_lease() {
    let server = ApiServer::new();
    let election = election(&server, "a");
    let leadership = election.acquire().await;
    server.fail_next(Match::verb("update"), Fault::Hang);
    sleep(seconds(60)).await;
    assert!(!leadership.is_over());
    server.fail_always(Match::verb("update"), Fault::Hang);
    timeout(seconds(12), leadership.ended()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_and_a_deleted_lease_are_survived() {
    let server = ApiServer::new();
    let election = election(&server, "a");
    let leadership = election.acquire().await;
    server.fail_next(Match::verb("update"), Fault::LoseAnswer);
    sleep(seconds(30)).await;
    assert!(!leadership.is_over());
    server.remove(LEASE);
    sleep(seconds(30)).await;
    assert!(!leadership.is_over());
    assert_eq!(spec(&server)["holderIdentity"], "a");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_has_taken_ends_the_leadership_at_once() {
    let server = ApiServer::new();
    let election = election(&server, "a");
    let leadership = election.acquire().await;
    held_by_another(&server);
    timeout(seconds(3), leadership.ended()).await.unwrap();
    election.release().await;
    assert_eq!(spec(&server)["holderIdentity"], "go", "what is another's is not released");
}

#[tokio::test(start_paused = true)]
async fn a_release_finds_a_renewal_whose_answer_was_lost() {
    let server = ApiServer::new();
    let election = election(&server, "a");
    election.acquire().await;
    server.fail_next(Match::verb("update"), Fault::LoseAnswer);
    sleep(Duration::from_millis(2_100)).await;
    election.release().await;
    assert_eq!(spec(&server)["holderIdentity"], "");
    election.release().await;
}

#[tokio::test(start_paused = true)]
async fn a_release_does_not_wait_for_a_dead_server() {
    let server = ApiServer::new();
    let election = election(&server, "a");
    election.acquire().await;
    server.fail_always(Match::any(), Fault::Hang);
    let begun = Instant::now();
    election.release().await;
    assert!(begun.elapsed() <= Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_missing_permission_is_waited_for_and_named() {
    let server = ApiServer::new();
    server.fail_times(5, Match::verb("create"), Fault::Status(403));
    let election = election(&server, "a");
    election.acquire().await;
    assert_eq!(spec(&server)["holderIdentity"], "a");
    let refused = kube::core::Status::failure("no", "Forbidden").with_code(403);
    let error = LeaseError::new(election.config(), "create", &kube::Error::Api(refused.boxed()));
    let text = error.to_string();
    let hint = "grant get, create and update on leases.coordination.k8s.io in namespace shoot";
    assert!(text.contains(hint), "{text}");
}

#[tokio::test(start_paused = true)]
async fn the_metric_tells_who_leads() {
    let (server, metrics) = (ApiServer::new(), Arc::new(Metrics::new()));
    let election = Election { metrics: metrics.clone(), ..election(&server, "a") };
    let leads = |value: &str| {
        let line = format!("leader_election_master_status{{name=\"machine-controller\"}} {value}");
        metrics.encode().unwrap().lines().any(|candidate| candidate == line)
    };
    election.acquire().await;
    assert!(leads("1"));
    election.release().await;
    assert!(leads("0"));
}

#[tokio::test]
async fn times_that_cannot_work_are_refused() {
    let server = ApiServer::new();
    let refused = |change: fn(&mut LeaseConfig)| {
        let mut config = LeaseConfig::new("shoot", "machine-controller");
        change(&mut config);
        Election::new(server.client(), HeaderValue::from_static("x"), config).err().unwrap()
    };
    assert!(refused(|config| config.identity.clear()).contains("identity"));
    let error = refused(|config| config.lease_duration = Duration::from_secs(10));
    assert_eq!(error, "renew deadline 10s must be shorter than the lease duration 10s");
    let error = refused(|config| config.retry_period = Duration::from_secs(9));
    assert!(error.starts_with("retry period 9s must be"), "{error}");
    let error = refused(|config| config.lease_duration = Duration::from_millis(15_500));
    assert_eq!(error, "lease duration 15.5s must be a whole number of seconds");
}

#[test]
fn identities_are_unique() {
    assert_ne!(LeaseConfig::new("a", "b").identity, LeaseConfig::new("a", "b").identity);
}
