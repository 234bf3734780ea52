//! The state machine of a Node's agent, as far as a controller sees it: machine-config-daemon's handshake. Pure.
//!
//! ```text
//! desiredConfig ─▶ Working ─▶ desiredDrain = drain-R ─▶ (lastAppliedDrain) ─▶ R is applied, the Node reboots
//!      ─▶ desiredDrain = uncordon-R ─▶ (lastAppliedDrain) ─▶ currentConfig = R, Done
//! ```

use std::time::Duration;

use nodewright_api::machine_config::{
    CURRENT_CONFIG, DEGRADED, DESIRED_CONFIG, DESIRED_DRAIN, DONE, LAST_APPLIED_DRAIN, REASON, STATE, UNRECONCILABLE,
    WORKING,
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

/// How long an agent takes to apply a configuration.
pub(super) const APPLIES_FOR: Duration = Duration::from_millis(300);
/// The reason that it gives for a failure.
pub const FAILURE: &str = "unexpected on-disk state: it was told to fail";

/// What the agent of a Node does, which has this configuration on its disk.
pub(super) fn next(seen: &Seen, disk: &str, fault: &Fault) -> Act {
    let write = |writes: &[(&'static str, &str)]| {
        let is_news = |(key, value): &&(&'static str, &str)| {
            *value
                != match *key {
                    CURRENT_CONFIG => seen.current.as_str(),
                    DESIRED_CONFIG => seen.desired.as_str(),
                    STATE => seen.state.as_str(),
                    DESIRED_DRAIN => seen.asks.as_str(),
                    LAST_APPLIED_DRAIN => seen.done.as_str(),
                    // A reason goes with a state.
                    _ => return false,
                }
        };
        if writes.iter().any(|write| is_news(&write)) {
            Act::Write(writes.iter().map(|(key, value)| (*key, (*value).to_owned())).collect())
        } else {
            Act::Wait
        }
    };
    let desired = seen.desired.as_str();
    let fails = |with: &str| with.is_empty() || with == desired;
    if seen.current == desired {
        let uncordon = format!("uncordon-{desired}");
        return match fault {
            Fault::Drift => write(&[(STATE, DEGRADED), (REASON, FAILURE)]),
            // It was drained for another one, which has failed.
            _ if seen.asks.starts_with("drain-") || seen.asks == uncordon && seen.done != uncordon => {
                write(&[(DESIRED_DRAIN, &uncordon)])
            }
            _ => write(&[(STATE, DONE), (REASON, "")]),
        };
    }
    let is_failed = [DEGRADED, UNRECONCILABLE].contains(&seen.state.as_str());
    match fault {
        Fault::NeverStart => return Act::Wait,
        Fault::Unreconcilable(with) if fails(with) => return write(&[(STATE, UNRECONCILABLE), (REASON, FAILURE)]),
        Fault::FailBeforeDrain(with) if fails(with) => return write(&[(STATE, DEGRADED), (REASON, FAILURE)]),
        _ if !is_failed && seen.state != WORKING => return write(&[(STATE, WORKING)]),
        Fault::Hang => return Act::Wait,
        _ => {}
    }
    let (drain, uncordon) = (format!("drain-{desired}"), format!("uncordon-{desired}"));
    if disk != desired {
        return match fault {
            _ if seen.done != drain => write(&[(DESIRED_DRAIN, &drain)]),
            Fault::FailAfterDrain(with) if fails(with) => write(&[(STATE, DEGRADED), (REASON, FAILURE)]),
            _ => Act::Apply(desired.to_owned()),
        };
    }
    if seen.done != uncordon {
        return write(&[(DESIRED_DRAIN, &uncordon)]);
    }
    write(&[(CURRENT_CONFIG, desired), (STATE, DONE), (REASON, "")])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries its writes out, with a controller that does at once what it asks for.
    fn run(seen: &mut Seen, disk: &mut String, fault: &Fault) -> Vec<String> {
        let mut states = vec![];
        for _ in 0..20 {
            match next(seen, disk, fault) {
                Act::Wait => break,
                Act::Apply(config) => *disk = config,
                Act::Write(writes) => {
                    for (key, value) in writes {
                        match key {
                            CURRENT_CONFIG => seen.current = value,
                            STATE => seen.state = value,
                            DESIRED_DRAIN => (seen.asks, seen.done) = (value.clone(), value),
                            _ => {}
                        }
                    }
                    states.push(format!("{} {}", seen.state, seen.done));
                }
            }
        }
        states
    }

    #[test]
    fn an_update_is_asked_for_step_by_step() {
        let mut seen = Seen { current: "a".into(), desired: "b".into(), state: DONE.into(), ..Seen::default() };
        let mut disk = "a".to_owned();
        let states = run(&mut seen, &mut disk, &Fault::None);
        assert_eq!(states, ["Working ", "Working drain-b", "Working uncordon-b", "Done uncordon-b"]);
        assert_eq!((seen.current.as_str(), disk.as_str()), ("b", "b"));
        assert_eq!(next(&seen, &disk, &Fault::None), Act::Wait);
    }

    #[test]
    fn a_node_that_has_failed_goes_back() {
        for fault in
            [Fault::FailBeforeDrain("b".into()), Fault::FailAfterDrain("b".into()), Fault::Unreconcilable("b".into())]
        {
            let mut seen = Seen { current: "a".into(), desired: "b".into(), state: DONE.into(), ..Seen::default() };
            let mut disk = "a".to_owned();
            run(&mut seen, &mut disk, &fault);
            assert!(seen.state == DEGRADED || seen.state == UNRECONCILABLE, "{seen:?}");
            seen.desired = "a".into();
            run(&mut seen, &mut disk, &fault);
            assert_eq!((seen.state.as_str(), seen.current.as_str(), disk.as_str()), (DONE, "a", "a"));
        }
    }
}
