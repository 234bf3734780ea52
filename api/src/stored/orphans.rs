//! The orphaned VMs of a MachineClass, by provider id, as JSON.

use std::{collections::BTreeMap, fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Seconds;

/// Orphaned VMs whose deletion was asked for, and the Machines of their tags.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweptVms(pub BTreeMap<String, String>);

/// Orphaned VMs of whose deletion nothing is known, and since when each was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnexplainedVms(pub BTreeMap<String, Timestamp>);

impl fmt::Display for UnexplainedVms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: BTreeMap<_, _> = self.0.iter().map(|(id, since)| (id, Seconds(*since).to_string())).collect();
        json!(texts).fmt(f)
    }
}

impl FromStr for UnexplainedVms {
    type Err = serde_json::Error;

    fn from_str(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text).map(Self)
    }
}
