//! The state machine of a Node's agent, as far as a controller sees it: machine-config-daemon's handshake. Pure.
//!
//! ```text
//! desiredConfig ─▶ Working ─▶ desiredDrain = drain-R ─▶ (lastAppliedDrain) ─▶ R is applied, Rebooting
//!      ─▶ desiredDrain = uncordon-R ─▶ (lastAppliedDrain) ─▶ currentConfig = R, Done
//! ```
//!
//! `make test-mcd` checks that the daemon writes the same as this stand-in.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
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
pub struct Seen {
    /// What the Node runs.
    pub current: String,
    /// What it is to run.
    pub desired: String,
    /// How far the agent is.
    pub state: String,
    /// What it asks for.
    pub asks: String,
    /// What was done last of what it asked for.
    pub done: String,
    /// What it does to have the configuration take effect.
    pub action: String,
}

/// What the agent does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Nothing, until something changes.
    Wait,
    /// It writes these annotations of its Node.
    Write(Vec<(&'static str, String)>),
    /// It applies this configuration to the disk, and reboots.
    Apply(String),
}

/// The annotation by which an agent says that its Node reboots; empty afterwards.
pub const POST_CONFIG_ACTION: &str = "machineconfiguration.openshift.io/post-config-action";
const REBOOTING: &str = "Rebooting";
/// How long an agent takes to apply a configuration.
pub const APPLIES_FOR: Duration = Duration::from_millis(300);
/// The reason that it gives for a failure.
pub const FAILURE: &str = "unexpected on-disk state: a fault was requested";

/// What an agent writes that finds no annotations on its Node, which has this configuration on its disk.
pub fn first_words(disk: &str) -> Act {
    Act::Write(
        [(CURRENT_CONFIG, disk), (DESIRED_CONFIG, disk), (STATE, DONE)]
            .map(|(key, value)| (key, value.to_owned()))
            .to_vec(),
    )
}

/// What the agent of a Node does, which has this configuration on its disk.
pub fn next(seen: &Seen, disk: &str, fault: &Fault) -> Act {
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
    /// The annotations, each by its key.
    pub fn read(of: impl Fn(&str) -> String) -> Self {
        Self {
            current: of(CURRENT_CONFIG),
            desired: of(DESIRED_CONFIG),
            state: of(STATE),
            asks: of(DESIRED_DRAIN),
            done: of(LAST_APPLIED_DRAIN),
            action: of(POST_CONFIG_ACTION),
        }
    }

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

/// What the daemon writes for an update, as [`difference`] tells it.
pub const UPDATE: [&str; 6] = [
    "state=Working",
    "desiredDrain=drain-NEW",
    "post-config-action=Rebooting",
    "post-config-action=",
    "desiredDrain=uncordon-NEW",
    "currentConfig=NEW state=Done",
];
/// What it writes when its configuration is taken back once it has asked for the drain: it gets there first.
pub const TAKEN_BACK: [&str; 9] = [
    "state=Working",
    "desiredDrain=drain-NEW",
    "post-config-action=Rebooting",
    "post-config-action=",
    "desiredDrain=drain-OLD",
    "post-config-action=Rebooting",
    "post-config-action=",
    "desiredDrain=uncordon-OLD",
    "state=Done",
];
/// The annotations that a daemon writes of its Node, in the order of their names.
const WRITTEN: [&str; 5] = [CURRENT_CONFIG, DESIRED_DRAIN, POST_CONFIG_ACTION, REASON, STATE];

/// What of a daemon's annotations differs between two versions of a Node, if anything: `key=value`, without the domain.
/// Configurations are called by these names.
pub fn difference(before: &Node, after: &Node, configs: &[(&str, &str)]) -> Option<String> {
    let changed = WRITTEN.into_iter().filter(|key| said(before, key) != said(after, key));
    let texts: Vec<_> = changed.map(|key| write_text(key, said(after, key), configs)).collect();
    (!texts.is_empty()).then(|| texts.join(" "))
}

fn write_text(key: &str, value: &str, configs: &[(&str, &str)]) -> String {
    let value = configs.iter().fold(value.to_owned(), |value, (config, name)| value.replace(config, name));
    format!("{}={value}", key.rsplit('/').next().unwrap_or_default())
}

/// An annotation of a Node; empty without one.
pub fn said<'a>(node: &'a Node, key: &str) -> &'a str {
    node.metadata.annotations.as_ref().and_then(|all| all.get(key)).map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

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
