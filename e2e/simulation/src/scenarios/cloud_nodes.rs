//! Kubelets that leave addresses to a cloud controller manager, where managers do its part; VMs that others delete, and providers that
//! deny one that exists.

use nodewright_e2e_cloud::{Code, Effect, FaultOperation};

use super::builders::{at, for_seconds, named, of, roll, run, scale};
use crate::{
    run::{Run, Scenario},
    schedule::{Act, Trouble, UserError},
};

/// Managers delete no Node in their first five minutes.
const LATER: u64 = 400_000;

fn with(replicas: u32, troubles: Vec<Trouble>) -> Run {
    Run { replicas, cloud_nodes: true, heartbeats: true, ..run([], troubles) }
}

/// For some seconds the provider knows no VM, neither by its id nor by its tags.
fn denied(millis: u64, seconds: f64) -> [Trouble; 2] {
    let not_found = Effect::Error { code: Code::NotFound, message: None, applied: false };
    [
        at(millis, for_seconds(seconds, FaultOperation::Get, not_found)),
        at(millis, for_seconds(seconds, FaultOperation::List, Effect::ListEmpty)),
    ]
}

/// A kubelet falls silent, which is known 40 to 45 s later; a machine is Unknown ten seconds after that, and its provider is asked.
fn silent_and_denied(after: u64, seconds: f64) -> Run {
    let silent = at(LATER, Act::SilenceKubelet(0, 170));
    with(3, [vec![silent], denied(LATER + after, seconds).into()].concat())
}

pub(super) fn cloud_nodes() -> Vec<Scenario> {
    vec![
        named(
            "machines without a cloud controller manager come, are replaced and go",
            Run { phases: vec![roll("large"), scale(0)], ..with(3, vec![]) },
        ),
        named("a VM that somebody deletes takes its node along", with(3, vec![at(LATER, Act::VanishVm(0))])),
        named("five of twelve VMs are deleted at once, and one is stopped", {
            let deleted = (0..5).map(|number| at(LATER, Act::VanishVm(number)));
            with(12, deleted.chain([at(LATER + 1_000, Act::KillVm(7))]).collect())
        }),
        named(
            "a VM is deleted and its manager ends while its node waits to go",
            with(3, vec![at(LATER, Act::VanishVm(0)), at(LATER + 85_000, Act::Crash)]),
        ),
        named("a provider denies the VM of a silent kubelet once", silent_and_denied(45_000, 28.0)),
        named(
            "a provider denies all VMs for less than the grace, while a kubelet is silent",
            silent_and_denied(30_000, 40.0),
        ),
        named(
            "a provider's list is empty for ten minutes, while a kubelet is silent",
            with(
                3,
                vec![
                    at(LATER, Act::SilenceKubelet(0, 170)),
                    at(LATER, for_seconds(600.0, FaultOperation::List, Effect::ListEmpty)),
                ],
            ),
        ),
        named(
            "a VM and its machine are removed, while the provider's list is empty for a time",
            with(
                3,
                vec![
                    at(LATER, Act::LoseMachine(0)),
                    at(LATER + 60_000, for_seconds(600.0, FaultOperation::List, Effect::ListEmpty)),
                ],
            ),
        ),
        named(
            "the list that lacks a lost VM is the last of a manager",
            with(3, vec![at(LATER, Act::LoseMachine(0)), at(LATER + 500_000, Act::Crash)]),
        ),
        // A manager that is there makes a machine of the same name at once, and that takes the node over.
        named(
            "a VM and its machine are removed while no manager runs, and one machine less is wanted",
            with(3, vec![at(LATER - 10, Act::Crash), at(LATER, Act::LoseMachine(0)), at(LATER, scale(2))]),
        ),
        named(
            "machines are deleted whose nodes have joined, have no id yet, and are shown by no watch",
            with(5, vec![at(1_300, Act::HoldWatches(of("nodes"), 395)), at(11_400, scale(2))]),
        ),
        // The second manager knows of the VMs from their machines, and the provider answers it only once the node has lost both.
        named(
            "a VM and its machine are removed before their node has an id, and one machine less is wanted",
            with(
                3,
                vec![
                    at(1_000, Act::CloudDown(460)),
                    at(1_100, Act::Crash),
                    at(LATER - 10, Act::Crash),
                    at(LATER, Act::LoseMachine(0)),
                    at(LATER, scale(2)),
                ],
            ),
        ),
        // Others are replaced before its machine, which says meanwhile that its VM is missing.
        named(
            "the node of a deleted VM has a namesake of another VM",
            with(
                30,
                vec![
                    at(LATER, Act::VanishVm(5)),
                    at(LATER, Act::VanishVm(6)),
                    at(LATER, Act::Err(UserError::NodeNamesake(29), 300)),
                ],
            ),
        ),
    ]
}
