//! The nodes of a MachineConfigPool that may be disrupted now.

use std::{collections::BTreeMap, fmt, str::FromStr};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Malformed, Seconds};

/// The claims of a MachineConfigPool by the name of the Node, as JSON: `{"<node>":{"uid":…,"target":…,"given":…,"since":…}}`,
/// with `"from"` if the Node was in the middle of something. A Node is given a
/// configuration, and a rollout of machines disrupts it, only while the pool has a claim for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disruptions(pub BTreeMap<String, Claim>);

/// A Node that may be disrupted, by a configuration or for its Machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The UID of the Node: one that was deleted and created again has another.
    pub uid: String,
    /// The rendered MachineConfig that it is given, or [`Claim::MACHINE`].
    pub target: String,
    /// The value of [`CONFIG_GIVEN`](crate::annotations::CONFIG_GIVEN) that the Node had: while it has that, it has yet to be given the
    /// target, and afterwards nobody can give it by this claim.
    pub given: u32,
    /// The configuration that the Node was to run, if it was not done with that when it was claimed.
    pub from: Option<String>,
    /// Since when it may be disrupted.
    pub since: Timestamp,
}

impl Claim {
    /// The target of a claim for a rollout of machines, which replaces the Node or updates it in place.
    pub const MACHINE: &'static str = "machine";

    /// The time of a claim that is yet to be written: it begins with that.
    pub const SINCE_NOW: Timestamp = Timestamp::MAX;

    /// Whether it is one for a rollout of machines.
    pub fn is_of_machine(&self) -> bool {
        self.target == Self::MACHINE
    }
}

impl fmt::Display for Disruptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let claim = |claim: &Claim| {
            let since = Seconds(claim.since).to_string();
            let mut all = json!({"given": claim.given, "since": since, "target": claim.target, "uid": claim.uid});
            if let Some(from) = &claim.from {
                all["from"] = from.as_str().into();
            }
            all
        };
        let all: BTreeMap<_, Value> = self.0.iter().map(|(node, it)| (node, claim(it))).collect();
        json!(all).fmt(f)
    }
}

impl FromStr for Disruptions {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let malformed = || Malformed::new("list of disruptions", text);
        let all: BTreeMap<String, Value> = serde_json::from_str(text).map_err(|_| malformed())?;
        let claim = |value: &Value| {
            let part = |key: &str| value[key].as_str().map(str::to_owned);
            let given = u32::try_from(value["given"].as_u64()?).ok()?;
            let (from, since) = (part("from"), part("since")?.parse().ok()?);
            let claim = Claim { uid: part("uid")?, target: part("target")?, given, from, since };
            (!claim.uid.is_empty() && !claim.target.is_empty()).then_some(claim)
        };
        let claims = all.into_iter().map(|(node, value)| Some((node, claim(&value)?)));
        claims.collect::<Option<_>>().map(Self).ok_or_else(malformed)
    }
}
