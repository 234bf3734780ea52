//! The right to write, on clocks of the tests.

use jiff::Timestamp;

use super::*;
use crate::testing::HandClock;

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn counts_down_and_is_extended() {
    let clock = Arc::new(HandClock::default());
    let leadership = Leadership::until(clock.clone(), seconds(10));
    assert_eq!(leadership.remaining(), seconds(10));
    clock.set(4);
    assert_eq!(leadership.remaining(), seconds(6));
    assert!(leadership.extend(seconds(14)));
    assert_eq!(leadership.remaining(), seconds(10));
    assert!(leadership.extend(seconds(12)), "an answer that comes out of order shortens nothing");
    assert_eq!(leadership.remaining(), seconds(10));
}

#[test]
fn what_is_over_stays_over() {
    let clock = Arc::new(HandClock::default());
    let leadership = Leadership::until(clock.clone(), seconds(10));
    clock.set(10);
    assert!(leadership.is_over());
    assert!(!leadership.extend(seconds(30)), "the answer to a renewal that came after a long stop");
    assert!(leadership.is_over());

    let ended = Leadership::unlimited();
    assert_eq!(ended.remaining(), Duration::MAX);
    ended.clone().end();
    assert!(ended.is_over());
    assert!(!ended.extend(seconds(1)));
}

#[test]
fn to_expire_is_not_to_be_ended() {
    let clock = Arc::new(HandClock::default());
    let of_ten = || Leadership::until(clock.clone(), seconds(10));
    let (ended, lapsed) = (of_ten(), of_ten());
    ended.end();
    assert!(ended.is_over() && !lapsed.has_lapsed());
    clock.set(10);
    lapsed.extend(seconds(20));
    lapsed.end();
    assert!(lapsed.has_lapsed() && Leadership::all([&ended, &lapsed]).has_lapsed());
    assert!(!ended.has_lapsed() && !Leadership::unlimited().has_lapsed());
}

#[test]
fn several_last_while_all_do() {
    let clock: Arc<dyn Clock> = Arc::new(HandClock::default());
    let (short, long) = (Leadership::until(clock.clone(), seconds(5)), Leadership::until(clock, seconds(9)));
    let both = Leadership::all([&short, &long]);
    assert_eq!(both.remaining(), seconds(5));
    both.end();
    assert!(short.is_over() && long.is_over());
}

#[tokio::test(start_paused = true)]
async fn ended_resolves_in_time_and_after_an_extension() {
    let clock = tokio_clock(Timestamp::UNIX_EPOCH);
    let leadership = Leadership::until(clock.clone(), seconds(10));
    let waiter = tokio::spawn({
        let leadership = leadership.clone();
        async move { leadership.ended().await }
    });
    tokio::time::sleep(seconds(8)).await;
    assert!(leadership.extend(seconds(20)));
    tokio::time::sleep(seconds(11)).await;
    assert!(!waiter.is_finished());
    waiter.await.unwrap();
    assert_eq!(clock.elapsed(), seconds(20));
    assert_eq!(clock.wall(), "1970-01-01T00:00:20Z".parse::<Timestamp>().unwrap());
}

#[tokio::test(start_paused = true)]
async fn ended_notices_time_that_timers_did_not_see() {
    let clock = Arc::new(HandClock::default());
    let leadership = Leadership::until(clock.clone(), seconds(10));
    let waiter = tokio::spawn({
        let leadership = leadership.clone();
        async move { leadership.ended().await }
    });
    tokio::task::yield_now().await;
    clock.set(3_600);
    tokio::time::timeout(seconds(2), waiter).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn ended_resolves_at_once_when_one_of_several_ends() {
    let (first, second) = (Leadership::unlimited(), Leadership::unlimited());
    let both = Leadership::all([&first, &second]);
    assert!(tokio::time::timeout(seconds(60), both.ended()).await.is_err());
    second.end();
    both.ended().await;
    assert!(!first.is_over());
}
