//! Several clusters in one process: an unreachable cluster delays only its own objects.

use std::time::Duration;

use nodewright_testing::api_server::{Fault, Match};

use crate::support::clusters::{FAR, Mirrors, NEAR};

#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_away_from_the_start_blocks_its_own_objects_only() {
    for fault in [Fault::Unreachable, Fault::Hang] {
        let mirrors = Mirrors::start(|_, far| far.fail_always(Match::any(), fault)).await;
        mirrors.wanted("near", NEAR, "a");
        mirrors.wanted("far", FAR, "b");
        mirrors.until("the near copy", |it| it.near.value("near").is_some()).await;
        assert_eq!((mirrors.readiness)(), Ok(()), "the process works");
        tokio::time::sleep(Duration::from_mins(5)).await;
        let asked = mirrors.far.0.take_requests();
        assert!(
            asked.iter().all(|request| request.verb == "list"),
            "no plan on a cache that knows nothing: {asked:#?}"
        );
        mirrors.far.0.heal();
        mirrors.until("the far copy", |it| it.far.value("far").is_some()).await;
        mirrors.end().await;
    }
}

/// There are more objects than concurrent executions: those that wait for the far cluster must not occupy them.
#[tokio::test(start_paused = true)]
async fn a_cluster_that_no_longer_answers_takes_nobody_elses_place() {
    let mirrors = Mirrors::start(|_, _| {}).await;
    mirrors.far.0.fail_always(Match::any(), Fault::Hang);
    for n in 0..1_500 {
        mirrors.wanted(&format!("far-{n}"), FAR, "x");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let begun = tokio::time::Instant::now();
    for n in 0..600 {
        mirrors.wanted(&format!("near-{n}"), NEAR, "x");
    }
    mirrors.until("the near copies", |it| it.near.count() == 600).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    mirrors.far.0.heal();
    mirrors.until("the far copies", |it| it.far.count() == 1_500).await;
    mirrors.end().await;
}

#[tokio::test(start_paused = true)]
async fn readiness_follows_the_home_cluster() {
    let mirrors = Mirrors::start(|_, _| {}).await;
    assert_eq!((mirrors.readiness)(), Ok(()));
    for fault in [Fault::Unreachable, Fault::Hang, Fault::Status(500)] {
        mirrors.control.fail_always(Match::any(), fault);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let why = (mirrors.readiness)().unwrap_err();
        assert!(why.starts_with("the API server of the home cluster is unhealthy"), "{why}");
        mirrors.control.heal();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!((mirrors.readiness)(), Ok(()));
    }
    mirrors.end().await;
}

/// The next plan waits until the outcome of a write is known; an unreachable cluster cannot report it.
#[tokio::test(start_paused = true)]
async fn an_object_may_go_on_without_the_answer_of_a_cluster_that_is_away() {
    let mirrors = Mirrors::start(|_, _| {}).await;
    mirrors.far.0.fail_always(Match::any(), Fault::Status(500));
    for name in ["waits", "goes"] {
        mirrors.wanted(name, FAR, "x");
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    mirrors.moved("waits", NEAR, None);
    mirrors.moved("goes", NEAR, Some(FAR));
    mirrors.until("the copy", |it| it.near.value("goes").is_some()).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(mirrors.near.value("waits"), None);
    mirrors.far.0.heal();
    mirrors.until("the other copy", |it| it.near.value("waits").is_some()).await;
    mirrors.end().await;
}
