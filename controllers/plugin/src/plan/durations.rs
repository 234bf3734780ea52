//! How long machines take, as those that there are have taken.

use std::time::Duration;

use clap::Args;
use jiff::SignedDuration;
use nodewright_api::Machine;
use nodewright_controllers::rollout_preview::Durations;

use crate::{
    arguments::duration,
    output::{counted, seconds},
};

/// How long it takes until a machine runs if there is none to learn from.
const CREATION: SignedDuration = SignedDuration::from_mins(3);
/// How long it takes until a machine is gone. No object remembers it.
const DELETION: SignedDuration = SignedDuration::from_mins(2);
/// How long an update in place takes. No object remembers it.
const UPDATE: SignedDuration = SignedDuration::from_mins(10);

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Takes {
    /// How long a machine takes until it runs. [default: the median of the machines of its class, or of all]
    #[arg(long = "creation-takes", value_name = "DURATION", value_parser = duration)]
    pub(crate) creation: Option<Duration>,
    /// How long a machine takes to go: its drain, and the deletion of its VM. No object remembers it. [default: 2m]
    #[arg(long = "deletion-takes", value_name = "DURATION", value_parser = duration)]
    pub(crate) deletion: Option<Duration>,
    /// How long an update of a machine in place takes: the drain, and the program on the node. No object remembers it. [default: 10m]
    #[arg(long = "update-takes", value_name = "DURATION", value_parser = duration)]
    pub(crate) update: Option<Duration>,
}

/// How long machines take, and where that is from.
pub(super) struct Estimate {
    pub(super) durations: Durations,
    pub(super) source: String,
    pub(super) source_of_update: String,
    /// The durations that are neither given nor seen.
    pub(super) assumed: Vec<&'static str>,
}

/// Where a duration is from that no object remembers.
fn unremembered(is_given: bool, flag: &str) -> String {
    if is_given { flag.to_owned() } else { format!("assumed, as no object remembers it; set it with {flag}") }
}

/// How long an update in place takes, and where that is from.
pub(super) fn update(given: Option<Duration>) -> (SignedDuration, String) {
    let update = given.and_then(|takes| SignedDuration::try_from(takes).ok()).unwrap_or(UPDATE);
    let source = unremembered(given.is_some(), "--update-takes");
    (update, format!("{} for an update ({source})", seconds(update)))
}

/// How long machines of a class take.
pub(super) fn estimate(takes: &Takes, class: &str, machines: &[Machine]) -> Estimate {
    let given = |takes: Option<Duration>| takes.and_then(|takes| SignedDuration::try_from(takes).ok());
    let deletion = given(takes.deletion).unwrap_or(DELETION);
    let (update, source_of_update) = update(takes.update);
    let unknown = (deletion, update);
    let of_class = Durations::seen(machines.iter().filter(|machine| machine.class_name() == class), unknown);
    let seen = of_class.or_else(|| Durations::seen(machines.iter(), unknown));
    let count = seen.map_or(0, |(_, count)| count);
    let unseen = Durations { vm: CREATION / 2, creation: CREATION, deletion, update };
    let mut durations = seen.map_or(unseen, |(durations, _)| durations);
    let mut from = format!("median of {}", counted(count, "machine"));
    if let Some(creation) = given(takes.creation) {
        durations = Durations { creation, vm: durations.vm.min(creation), ..durations };
        "--creation-takes".clone_into(&mut from);
    } else if count == 0 {
        "assumed, as there is no machine to learn from; set it with --creation-takes".clone_into(&mut from);
    }
    let of_deletion = unremembered(takes.deletion.is_some(), "--deletion-takes");
    let source = format!(
        "estimated with {} until a machine runs ({from}) and {} until one is gone ({of_deletion})",
        seconds(durations.creation),
        seconds(deletion)
    );
    let of = [
        ("creation", count == 0 && takes.creation.is_none()),
        ("deletion", takes.deletion.is_none()),
        ("update", takes.update.is_none()),
    ];
    let assumed = of.into_iter().filter(|(_, is_assumed)| *is_assumed).map(|(part, _)| part).collect();
    Estimate { durations, source, source_of_update, assumed }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn machine(class: &str, vm: u32, joined: u32) -> Machine {
        let at = |seconds: u32| format!("2026-06-01T12:{:02}:{:02}Z", seconds / 60, seconds % 60);
        let condition =
            |kind: &str, seconds| json!({"type": kind, "status": "True", "lastTransitionTime": at(seconds)});
        serde_json::from_value(json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "m", "creationTimestamp": at(0)}, "spec": {"class": {"name": class}},
            "status": {"conditions": [condition("InstanceProvisioned", vm), condition("NodeJoined", joined)]},
        }))
        .unwrap()
    }

    #[test]
    fn the_median_of_the_class_counts_then_that_of_all_and_flags_before_both() {
        let machines = [machine("a", 10, 60), machine("a", 20, 80), machine("a", 30, 100), machine("b", 5, 30)];
        let minutes = |minutes: u64| Some(Duration::from_secs(60 * minutes));
        let none = Takes::default();
        let given = Takes { creation: minutes(7), deletion: minutes(1), update: minutes(4) };
        for (takes, class, machines, vm, creation, deletion, from) in [
            (&none, "a", &machines[..], 20, 80, 120, "median of 3 machines"),
            (&none, "b", &machines[..], 5, 30, 120, "median of 1 machine"),
            (&none, "c", &machines[..], 20, 80, 120, "median of 4 machines"),
            (&none, "a", &[], 90, 180, 120, "no machine to learn from"),
            (&given, "a", &machines[..], 20, 420, 60, "(--creation-takes)"),
        ] {
            let estimate = estimate(takes, class, machines);
            let of = SignedDuration::from_secs;
            let update = if takes.update.is_some() { of(240) } else { UPDATE };
            let expected = Durations { vm: of(vm), creation: of(creation), deletion: of(deletion), update };
            assert_eq!(estimate.durations, expected, "{class}");
            assert!(estimate.source.contains(from), "{}", estimate.source);
            let assumed = if takes.deletion.is_some() { vec![] } else { vec!["deletion", "update"] };
            let assumed: Vec<_> = machines.is_empty().then_some("creation").into_iter().chain(assumed).collect();
            assert_eq!(estimate.assumed, assumed);
            let words = "2m until one is gone (assumed, as no object remembers it; set it with --deletion-takes)";
            assert_eq!(estimate.source.contains(words), takes.deletion.is_none(), "{}", estimate.source);
        }
    }
}
