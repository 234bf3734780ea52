//! Objects that claim what belongs to others, idle clusters, unreadable objects, missing Secrets.

use nodewright_e2e_cloud::FaultOperation;

use super::builders::{at, delete, fails, lasting, named, of, roll, run, scale};
use crate::{
    run::{Run, Scenario},
    schedule::{Act, Trouble, UserError},
};

/// Objects that claim what belongs to others, and problems that an idle cluster hides.
pub(super) fn claims() -> Vec<Scenario> {
    [quiet_clusters(), copies_and_claims(), neighbours(), unreadable_objects(), missing_secrets()].concat()
}

/// Machines with default timeouts, in a cluster with few events.
fn quiet(replicas: u32, troubles: Vec<Trouble>) -> Run {
    Run { replicas, quiet: true, bookmarks: Some(120), ..with_heartbeats(troubles) }
}

fn with_heartbeats(troubles: Vec<Trouble>) -> Run {
    Run { heartbeats: true, ..run([], troubles) }
}

/// An error that the user corrects after a minute.
fn user_error(user_error: UserError) -> Trouble {
    at(25_000, Act::Err(user_error, 60))
}

fn garbled(kind: &str) -> Trouble {
    user_error(UserError::Garble(of(kind), 1))
}

fn quiet_clusters() -> Vec<Scenario> {
    vec![
        named("a VM dies on a quiet cluster", quiet(3, vec![at(400_000, Act::KillVm(0))])),
        named(
            "a VM dies on a quiet cluster whose watches get no bookmarks",
            Run { bookmarks: Some(0), ..quiet(3, vec![at(400_000, Act::KillVm(0))]) },
        ),
        named(
            "a manager starts when kubelets have been silent for long",
            quiet(
                2,
                vec![
                    // The first manager would replace it at 945 s. The restarted one must not: the kubelet reports at 1,080 s.
                    at(300_000, Act::SilenceKubelet(0, 780)),
                    at(900_000, Act::ApiDown(90)),
                    at(901_000, Act::Crash),
                ],
            ),
        ),
        named("four of five VMs die at once", quiet(5, (0..4).map(|vm| at(400_000, Act::KillVm(vm))).collect())),
    ]
}

fn copies_and_claims() -> Vec<Scenario> {
    vec![
        named(
            "a copy of a machine, with its labels",
            run([], vec![user_error(UserError::Copy { machine: 1, labelled: true })]),
        ),
        named(
            "a copy of a machine, without labels",
            run([], vec![user_error(UserError::Copy { machine: 1, labelled: false })]),
        ),
        named(
            "a machine that is made by hand for the VM of another cluster",
            run([], vec![user_error(UserError::Claim)]),
        ),
        named("a machine that claims the VM of another cluster", run([], vec![user_error(UserError::ProviderId(1))])),
        named(
            "a machine that claims the VM of another cluster, and is deleted",
            run([], vec![user_error(UserError::ProviderId(1)), at(30_000, delete(1))]),
        ),
        named(
            "a machine that claims the Node of no machine, and is deleted",
            run([], vec![user_error(UserError::NodeLabel(1)), at(25_001, delete(1))]),
        ),
        named("a second Node with the providerID of a machine", run([], vec![user_error(UserError::NodeByHand(1))])),
        named(
            "a second Node with the providerID of a machine, which is deleted",
            run([], vec![user_error(UserError::NodeByHand(1)), at(30_000, delete(1))]),
        ),
        named(
            "a class that names another cluster while its machines go",
            run([], vec![user_error(UserError::ClassCluster), at(26_000, scale(0))]),
        ),
    ]
}

/// They end without machines: as long as there are some, the VM of another namespace whose name ours had is a suspect, of which each
/// pass says that it is kept.
fn neighbours() -> Vec<Scenario> {
    let neighbour = |machine| user_error(UserError::Neighbour(machine));
    vec![
        named(
            "machines of another namespace have the names of ours, and all of ours go",
            run([], vec![neighbour(0), neighbour(1), at(30_000, scale(0))]),
        ),
        named(
            "a machine of another namespace has the name that ours will have, and all of ours go",
            run([], vec![user_error(UserError::NeighbourAhead), at(30_000, scale(4)), at(60_000, scale(0))]),
        ),
        named(
            "a ledger is edited so that it retires all machines",
            run([], vec![user_error(UserError::EditLedger(0))]),
        ),
    ]
}

fn unreadable_objects() -> Vec<Scenario> {
    vec![
        named(
            "a Node that cannot be read",
            with_heartbeats(vec![at(25_000, Act::Err(UserError::Garble(of("nodes"), 1), 900))]),
        ),
        named(
            "a Node that cannot be read while its machine goes",
            run([], vec![garbled("nodes"), at(30_000, delete(1))]),
        ),
        named(
            "a machine that cannot be read, in a pool that may not be larger for a while",
            Run { surge: 0, unavailable: 1, ..run([], vec![garbled("machines")]) },
        ),
        named("a set that cannot be read", run([], vec![garbled("machinesets")])),
        named("a class that cannot be read", run([], vec![garbled("machineclasses"), at(30_000, delete(0))])),
    ]
}

fn missing_secrets() -> Vec<Scenario> {
    vec![
        named(
            "a rollout to a class whose Secret is missing, and back, when a VM has died",
            with_heartbeats(vec![
                at(20_000, Act::Err(UserError::ClassSecret(of("large")), 3_000)),
                at(21_000, roll("large")),
                at(40_000, roll("small")),
                at(60_000, Act::KillVm(0)),
            ]),
        ),
        named(
            "a VM dies while a machine without one cannot go for want of its Secret",
            quiet(
                3,
                vec![
                    at(300_000, lasting(FaultOperation::Create, fails())),
                    at(301_000, roll("large")),
                    at(330_000, Act::Err(UserError::ClassSecret(of("large")), 7_200)),
                    // A VM was asked for, so its machine stays until the cloud can be asked again. It counts as stuck after 15 min.
                    at(400_000, roll("small")),
                    at(1_000_000, Act::KillVm(0)),
                ],
            ),
        ),
    ]
}
