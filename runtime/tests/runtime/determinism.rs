//! The same seed gives the same run. Simulations rely on this.

use std::time::Duration;

use nodewright_runtime::leadership::{Election, LeaseConfig};
use nodewright_testing::api_server::{ApiServer, Fault, Match, RequestRecord};
use serde_json::json;
use tokio::{
    runtime::{Builder, RngSeed},
    time::Instant,
};

use crate::support::{MAPS, Running, annotate, clock, set_copies, source};

fn election(server: &ApiServer, identity: &str) -> Election {
    let config = LeaseConfig { identity: identity.to_owned(), ..LeaseConfig::new("default", "lease") };
    Election::new(server.client(), "test/1 (lease)".parse().unwrap(), config).unwrap()
}

/// Runs two managers with one seed for three minutes, with failures, panics, refusals and calls; the first one loses its lease,
/// and the second takes over. Returns all requests with their times.
fn life(seed: u64) -> Vec<(Duration, RequestRecord)> {
    let mut runtime = Builder::new_current_thread();
    // Tokio's random choices are the same each time, too.
    runtime.enable_time().start_paused(true).rng_seed(RngSeed::from_bytes(b"always the same"));
    runtime.build().unwrap().block_on(live(seed))
}

async fn live(seed: u64) -> Vec<(Duration, RequestRecord)> {
    let time = clock();
    let server = ApiServer::with_time(move || time.wall());
    for n in 0..20 {
        source(&server, &format!("s-{n:02}"), n % 4);
    }
    annotate(&server, "s-01", &json!({"panic": "1"}));
    annotate(&server, "s-02", &json!({"ask": "slow"}));
    annotate(&server, "s-03", &json!({"evict": "yes"}));
    annotate(&server, "s-04", &json!({"look": "n1"}));
    server.fail_times(20, Match::verb("patch"), Fault::Status(500));
    server.fail_times(2, Match::verb("list"), Fault::LoseAnswer);
    let managers = ["a", "b"].map(|name| {
        let elections = vec![election(&server, name)];
        Running::start_with_seed(server.clone(), elections, seed)
    });
    let (begun, mut sent) = (Instant::now(), vec![]);
    for step in 0..18_000 {
        match step {
            2_000 => server.break_watches(),
            3_000 => drop(server.remove(&format!("{MAPS}/s-07-1"))),
            4_000 => set_copies(&server, "s-05", 9),
            6_000 => server.fail_always(Match::verb("update").path("leases"), Fault::Status(500)),
            7_500 => server.heal(),
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        sent.extend(server.take_requests().into_iter().map(|request| (begun.elapsed(), request)));
    }
    for manager in managers {
        manager.stop.cancel();
        let _ = manager.manager.await;
    }
    sent
}

#[test]
fn the_same_seed_makes_the_same_requests_at_the_same_times() {
    let first = life(7);
    assert!(first.len() > 200, "{}", first.len());
    for _ in 0..5 {
        let again = life(7);
        let differs = first.iter().zip(&again).position(|(one, other)| one != other);
        assert!(differs.is_none(), "{:#?}", differs.map(|place| (&first[place], &again[place])));
        assert_eq!(first.len(), again.len());
    }
    assert!(life(8) != first, "the seed decides something");
}
