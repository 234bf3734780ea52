//! The state machine of a Node's agent, as far as a controller sees it: machine-config-daemon's handshake. Pure.
//!
//! ```text
//! desiredConfig ─▶ Working ─▶ desiredDrain = drain-R ─▶ (lastAppliedDrain) ─▶ R is applied, Rebooting
//!      ─▶ desiredDrain = uncordon-R ─▶ (lastAppliedDrain) ─▶ currentConfig = R, Done
//! ```
//!
//! `make test-mcd` checks that the daemon writes the same as this stand-in.

use std::time::Duration;

use nodewright_api::machine_config::{
    CURRENT_CONFIG, DEGRADED, DESIRED_DRAIN, DONE, REASON, STATE, UNRECONCILABLE, WORKING,
};

/// What goes wrong on a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// The agent does not begin.
    NeverStart,
    /// It begins, and does nothing more.
    Hang,
    /// It refuses this configuration, or any if it has no name, before it asks for a drain: no running node can get there.
    Unreconcilable(String),
    /// It fails with this configuration, or any, before it asks for a drain.
    FailBeforeDrain(String),
    /// It fails with this configuration, or any, once the Node is drained.
    FailAfterDrain(String),
    /// The Node does not return from its reboot.
    NoReturn,
    /// A file was changed by hand: the Node is no longer what its configuration says.
    Drift,
}

/// The annotations of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// What the Node runs.
    pub(super) current: String,
    /// What it is to run.
    pub(super) desired: String,
    /// How far the agent is.
    pub(super) state: String,
    /// What it asks for.
    pub(super) asks: String,
    /// What was done last of what it asked for.
    pub(super) done: String,
    /// What it does to have the configuration take effect.
    pub(super) action: String,
}

/// What the agent does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Nothing, until something changes.
    Wait,
    /// It writes these annotations of its Node.
    Write(Vec<(&'static str, String)>),
    /// It applies this configuration to the disk, and reboots.
    Apply(String),
}

/// The annotation by which an agent says that its Node reboots; empty afterwards.
pub(super) const POST_CONFIG_ACTION: &str = "machineconfiguration.openshift.io/post-config-action";
const REBOOTING: &str = "Rebooting";
/// How long an agent takes to apply a configuration.
pub(super) const APPLIES_FOR: Duration = Duration::from_millis(300);
/// The reason that it gives for a failure.
pub const FAILURE: &str = "unexpected on-disk state: it was told to fail";

/// What the agent of a Node does, which has this configuration on its disk.
pub(super) fn next(seen: &Seen, disk: &str, fault: &Fault) -> Act {
    // The drain that an agent has asked for is for what it goes on to do, whatever is desired meanwhile.
    let asked = seen.asks.strip_prefix("drain-").filter(|asked| seen.state == WORKING && *asked != disk);
    let desired = asked.unwrap_or(&seen.desired);
    if disk == desired {
        return arrived(seen, desired, fault);
    }
    let fails = |with: &str| with.is_empty() || with == desired;
    let is_failed = [DEGRADED, UNRECONCILABLE].contains(&seen.state.as_str());
    match fault {
        Fault::NeverStart => return Act::Wait,
        Fault::Unreconcilable(with) if fails(with) => {
            return seen.write(&[(STATE, UNRECONCILABLE), (REASON, FAILURE)]);
        }
        Fault::FailBeforeDrain(with) if fails(with) => return seen.write(&[(STATE, DEGRADED), (REASON, FAILURE)]),
        _ if seen.is_rebooted(disk) => return seen.write(&[(POST_CONFIG_ACTION, "")]),
        _ if !is_failed && seen.state != WORKING => return seen.write(&[(STATE, WORKING)]),
        Fault::Hang => return Act::Wait,
        _ => {}
    }
    let drain = format!("drain-{desired}");
    match fault {
        _ if seen.done != drain => seen.write(&[(DESIRED_DRAIN, &drain)]),
        Fault::FailAfterDrain(with) if fails(with) => seen.write(&[(STATE, DEGRADED), (REASON, FAILURE)]),
        _ if seen.action != REBOOTING => seen.write(&[(POST_CONFIG_ACTION, REBOOTING)]),
        _ => Act::Apply(desired.to_owned()),
    }
}

/// What it does once the disk has what is desired.
fn arrived(seen: &Seen, desired: &str, fault: &Fault) -> Act {
    let uncordon = format!("uncordon-{desired}");
    match fault {
        Fault::Drift => seen.write(&[(STATE, DEGRADED), (REASON, FAILURE)]),
        _ if !seen.action.is_empty() => seen.write(&[(POST_CONFIG_ACTION, "")]),
        _ if seen.asks != uncordon || seen.done != uncordon => seen.write(&[(DESIRED_DRAIN, &uncordon)]),
        _ => seen.write(&[(CURRENT_CONFIG, desired), (STATE, DONE), (REASON, "")]),
    }
}

impl Seen {
    /// Writes these annotations, unless all of them are there.
    fn write(&self, writes: &[(&'static str, &str)]) -> Act {
        let is_news = |(key, value): &(&'static str, &str)| {
            let known = match *key {
                CURRENT_CONFIG => &self.current,
                STATE => &self.state,
                DESIRED_DRAIN => &self.asks,
                POST_CONFIG_ACTION => &self.action,
                // A reason goes with a state.
                _ => return false,
            };
            *value != known.as_str()
        };
        if !writes.iter().any(is_news) {
            return Act::Wait;
        }
        Act::Write(writes.iter().map(|(key, value)| (*key, (*value).to_owned())).collect())
    }

    /// Whether the reboot that it says it does is over: it was drained for what is on the disk.
    fn is_rebooted(&self, disk: &str) -> bool {
        self.action == REBOOTING && self.done == format!("drain-{disk}")
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;

    use super::*;
    use crate::node_agent::{TAKEN_BACK, UPDATE, difference};

    /// Carries its writes out, with a controller that does at once what it asks for. `meddle` may change what it sees after each
    /// write. Returns the writes.
    fn run(seen: &mut Seen, disk: &mut String, fault: &Fault, mut meddle: impl FnMut(&mut Seen)) -> Vec<String> {
        let mut all = vec![];
        for _ in 0..30 {
            match next(seen, disk, fault) {
                Act::Wait => break,
                Act::Apply(config) => *disk = config,
                Act::Write(writes) => {
                    let before = seen.node();
                    for (key, value) in writes {
                        match key {
                            CURRENT_CONFIG => seen.current = value,
                            STATE => seen.state = value,
                            DESIRED_DRAIN => (seen.asks, seen.done) = (value.clone(), value),
                            POST_CONFIG_ACTION => seen.action = value,
                            _ => {}
                        }
                    }
                    all.extend(difference(&before, &seen.node(), &[]));
                    meddle(seen);
                }
            }
        }
        all
    }

    impl Seen {
        /// A Node with these annotations.
        fn node(&self) -> Node {
            let annotations = [
                (CURRENT_CONFIG, &self.current),
                (STATE, &self.state),
                (DESIRED_DRAIN, &self.asks),
                (POST_CONFIG_ACTION, &self.action),
            ];
            let annotations = annotations.map(|(key, value)| (key.to_owned(), value.clone()));
            let mut node = Node::default();
            node.metadata.annotations = Some(annotations.into());
            node
        }
    }

    /// On its way from `OLD` to `NEW`.
    fn at_rest() -> (Seen, String) {
        let seen = Seen { current: "OLD".into(), desired: "NEW".into(), state: DONE.into(), ..Seen::default() };
        (seen, "OLD".to_owned())
    }

    #[test]
    fn an_update_is_asked_for_step_by_step() {
        let (mut seen, mut disk) = at_rest();
        assert_eq!(run(&mut seen, &mut disk, &Fault::None, |_| ()), UPDATE);
        assert_eq!((seen.current.as_str(), disk.as_str()), ("NEW", "NEW"));
        assert_eq!(next(&seen, &disk, &Fault::None), Act::Wait);
    }

    #[test]
    fn what_is_taken_back_after_the_drain_is_applied_and_left_again() {
        let (mut seen, mut disk) = at_rest();
        let take_back = |seen: &mut Seen| {
            if !seen.asks.is_empty() {
                seen.desired = "OLD".into();
            }
        };
        assert_eq!(run(&mut seen, &mut disk, &Fault::None, take_back), TAKEN_BACK);
        assert_eq!((seen.current.as_str(), disk.as_str()), ("OLD", "OLD"));
    }

    #[test]
    fn a_node_that_has_failed_goes_back() {
        for fault in [
            Fault::FailBeforeDrain("NEW".into()),
            Fault::FailAfterDrain("NEW".into()),
            Fault::Unreconcilable("NEW".into()),
        ] {
            let (mut seen, mut disk) = at_rest();
            run(&mut seen, &mut disk, &fault, |_| ());
            assert!(seen.state == DEGRADED || seen.state == UNRECONCILABLE, "{seen:?}");
            seen.desired = "OLD".into();
            run(&mut seen, &mut disk, &fault, |_| ());
            assert_eq!((seen.state.as_str(), seen.current.as_str(), disk.as_str()), (DONE, "OLD", "OLD"));
        }
    }
}
