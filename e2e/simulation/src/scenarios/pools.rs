//! Node configuration that changes often, so that old configurations are deleted while Nodes come and go.

use super::builders::{at, named, of, run};
use crate::{
    pools::PoolChange::{Configure, Follow, Join, Leave},
    run::Scenario,
    schedule::{Act, Trouble},
};

/// How often the configuration changes. The newest ten stay, so a Node that runs one for longer is the reason why it stays.
const ROUND: u64 = 20_000;
const ROUNDS: u32 = 40;
/// How many rounds a Node runs its first configuration, and how many there are before its name is used again.
const FIRST: u32 = 13;
const NODES: u32 = 16;

/// In each round the configuration changes to one of so many, and Nodes come, follow and go.
fn changes(contents: u32) -> Vec<Trouble> {
    let rounds = (0..ROUNDS).flat_map(|round| {
        let begin = u64::from(round) * ROUND;
        let of_round = |millis: u64, change| at(begin + millis, Act::Pool(change));
        vec![
            of_round(0, Configure(round % contents)),
            of_round(13_000, Join(round % NODES)),
            of_round(17_000, Follow((round + NODES - FIRST) % NODES)),
            of_round(19_000, Leave((round + 1) % NODES)),
        ]
    });
    let end = u64::from(ROUNDS) * ROUND;
    rounds.chain((0..NODES).map(|number| at(end, Act::Pool(Leave(number))))).collect()
}

pub(super) fn pools() -> Vec<Scenario> {
    let with = |contents: u32, troubles: Vec<Trouble>| run([], [changes(contents), troubles].concat());
    let often = |act: Act| (1..8).map(move |turn| at(turn * 97_000, act.clone())).collect::<Vec<_>>();
    vec![
        named("Nodes that come and go while old configurations are deleted", with(ROUNDS, vec![])),
        // A name comes back about when what has it is old enough to go.
        named("configurations that come back while they are deleted", with(12, vec![])),
        named("configurations that come back, and a manager that dies", with(13, often(Act::Crash))),
        named(
            "Nodes that come and go, of which a manager hears late",
            with(12, often(Act::HoldWatches(of("nodes"), 40))),
        ),
        named("Nodes that come and go, with a second manager", with(12, vec![at(50_000, Act::SecondManager(600))])),
    ]
}
