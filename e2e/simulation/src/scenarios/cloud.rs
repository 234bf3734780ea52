//! The cloud answers late, wrongly or not at all.

use nodewright_e2e_cloud::{Effect, FaultOperation};

use super::builders::{at, cloud, delete, fails, for_seconds, lasting, late_by, named, one, run, scale, struck};
use crate::{
    run::{Run, Scenario},
    schedule::{Act, Edit, Trouble},
};

pub(super) fn clouds() -> Vec<Scenario> {
    vec![
        named(
            "a clock that is set ahead while the cloud does not show a VM that it has made, and is to remove",
            one(vec![
                at(0, cloud(FaultOperation::Create, Effect::Invisible { seconds: 4.0 })),
                at(350, Act::JumpClock(60)),
                at(400, delete(0)),
            ]),
        ),
        named(
            "a clock that is set ahead when machines run whose VMs the cloud does not show yet, and that are to go",
            one(vec![
                at(19_900, cloud(FaultOperation::Create, Effect::Invisible { seconds: 4.0 })),
                at(20_000, scale(3)),
                at(23_300, Act::JumpClock(60)),
                at(23_350, scale(0)),
            ]),
        ),
        named(
            "a clock that is behind, a manager that is killed when it has asked for a VM, and a machine that is to go",
            one(vec![
                at(0, cloud(FaultOperation::Create, Effect::Invisible { seconds: 4.0 })),
                at(0, Act::JumpClock(-60)),
                at(240, Act::Crash),
                at(400, delete(0)),
            ]),
        ),
        named(
            "answers of the cloud that are lost",
            run([], vec![at(0, cloud(FaultOperation::Create, Effect::Cut { applied: true }))]),
        ),
        named(
            "a VM that its cloud does not list at once, and a manager that is killed meanwhile",
            run(
                [],
                vec![
                    at(0, cloud(FaultOperation::Create, Effect::Invisible { seconds: 4.0 })),
                    at(400, Act::Crash),
                    at(2_900, Act::Crash),
                ],
            ),
        ),
        named(
            "a VM whose making was never answered, and lists that fail for a minute while its machine goes",
            one(vec![
                at(0, cloud(FaultOperation::Create, Effect::Cut { applied: true })),
                at(300, lasting(FaultOperation::List, fails())),
                at(500, delete(0)),
            ]),
        ),
        named(
            "calls that never end, and answers that nobody understands",
            run(
                [scale(5)],
                vec![
                    at(0, cloud(FaultOperation::Create, Effect::Hang { applied: true })),
                    at(1, cloud(FaultOperation::List, Effect::Garbage)),
                ],
            ),
        ),
    ]
}

/// A machine is deleted while its VM is still being created, combined with other events.
pub(super) fn lost_vms() -> Vec<Scenario> {
    let lost = || at(100_000, Act::LoseVms(3));
    vec![
        named("three VMs that no machine has", run([], vec![lost()])),
        named(
            "three VMs that no machine has, and a manager that starts when they are nearly old enough",
            run([], vec![lost(), at(940_000, Act::Crash)]),
        ),
        // The list shows the lost VMs and that of one machine.
        named(
            "three VMs that no machine has, and lists that lack the VMs of most machines",
            run(
                [],
                vec![
                    at(0, Act::LoseVms(3)),
                    at(1, for_seconds(3_000.0, FaultOperation::List, Effect::ListTruncated { items: 4 })),
                ],
            ),
        ),
    ]
}

pub(super) fn late_vms() -> Vec<Scenario> {
    let late = |deleted, more: Vec<Trouble>| {
        let made = cloud(FaultOperation::Create, late_by(20.0));
        one([vec![at(0, made), at(deleted, delete(0))], more].concat())
    };
    vec![
        named("a VM that appears after its machine was deleted", late(1_500, vec![])),
        named(
            "a machine that is created again twice while its VMs are on their way, and that is to go",
            late(920, [300, 900].map(|millis| at(millis, Act::Edit(Edit::RecreateMachine(0)))).into()),
        ),
        named(
            "a clock that is set ahead while a VM is on its way to a machine that was deleted",
            late(1_500, vec![at(2_000, Act::JumpClock(536))]),
        ),
        named(
            "a manager with a slow clock takes over a machine that goes, whose VM is on its way",
            late(900, vec![at(500, Act::JumpClock(-45)), at(1_000, Act::Crash)]),
        ),
        named(
            "a manager that sleeps while a VM is on its way to a machine that was deleted",
            late(1_500, vec![at(2_000, Act::Sleep(20))]),
        ),
        named(
            "a VM that appears after its machine was deleted, and whose making had waited long for its turn",
            Run {
                calls_at_once: Some(1),
                ..run(
                    [],
                    vec![
                        // Two calls use the one slot for 15 s each, and the third waits for it. Each fault counts them all.
                        at(0, struck(FaultOperation::Create, 2, Effect::Hang { applied: false })),
                        at(1, struck(FaultOperation::Create, 3, late_by(18.0))),
                        at(31_000, scale(0)),
                    ],
                )
            },
        ),
        named(
            "a VM that appears between two attempts to delete it, when its node has joined",
            late(
                1_500,
                vec![
                    // The list begins before the provider fails, and reports no VM.
                    at(1_400, lasting(FaultOperation::List, Effect::Latency { seconds: 3.0 })),
                    at(3_000, lasting(FaultOperation::List, fails())),
                    // No call looks at the VM while it is being deleted.
                    at(60_000, lasting(FaultOperation::Delete, Effect::AnswerLate { seconds: 8.0 })),
                ],
            ),
        ),
    ]
}
