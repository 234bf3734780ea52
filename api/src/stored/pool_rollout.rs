//! The rollout of the target of a MachineConfigPool, for its trace.

use std::{fmt, str::FromStr};

use jiff::Timestamp;

use super::{Malformed, Seconds};

/// The rollout of a target, as
/// `<target>;<RFC 3339>;<traceparent>;<version>/<generation>/<generation>`, and `;<RFC 3339>` once it has ended. Written only while spans
/// are exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolRollout {
    /// The rendered MachineConfig.
    pub target: String,
    /// When it became the target.
    pub since: Timestamp,
    /// The W3C trace context that the span of the rollout is below, or that span itself if it is the root of its trace.
    pub traceparent: String,
    /// What it was rendered of.
    pub inputs: RolloutInputs,
    /// When all Nodes ran it.
    pub ended: Option<Timestamp>,
}

/// How new the inputs of a target were when it was chosen: what is newer has been changed since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RolloutInputs {
    /// The largest resourceVersion of the selected MachineConfigs.
    pub version: u64,
    /// The generation of the pool once it had the target.
    pub pool: i64,
    /// The generation of the ControllerConfig; 0 without one.
    pub controller_config: i64,
}

impl fmt::Display for PoolRollout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, since, traceparent, inputs, ended } = self;
        let RolloutInputs { version, pool, controller_config } = inputs;
        write!(f, "{target};{};{traceparent};{version}/{pool}/{controller_config}", Seconds(*since))?;
        ended.map_or(Ok(()), |ended| write!(f, ";{}", Seconds(ended)))
    }
}

impl FromStr for PoolRollout {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let read = || {
            let mut parts = text.split(';');
            let (target, since) = (parts.next()?.to_owned(), parts.next()?.parse().ok()?);
            let (traceparent, inputs) = (parts.next()?.to_owned(), RolloutInputs::read(parts.next()?)?);
            let ended = parts.next().map(str::parse).transpose().ok()?;
            let is_whole = parts.next().is_none() && !target.is_empty() && !traceparent.is_empty();
            is_whole.then_some(Self { target, since, traceparent, inputs, ended })
        };
        read().ok_or_else(|| Malformed::new("rollout of a pool", text))
    }
}

impl RolloutInputs {
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let version = parts.next()?.parse().ok()?;
        let (pool, controller_config) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        parts.next().is_none().then_some(Self { version, pool, controller_config })
    }
}
