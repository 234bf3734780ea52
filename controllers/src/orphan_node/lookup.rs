//! The request to the API server whether a Machine with a name exists.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use nodewright_api::Machine;
use nodewright_runtime::{
    effect::Effect,
    object::ResourceType,
    request::{Call, Connection},
};
use serde::{Deserialize, de::IgnoredAny};

/// The first or the second lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Round {
    /// The one that starts the grace.
    First,
    /// The one that ends the grace.
    Second,
}

/// A lookup of the Machine of a Node. Two lookups of one round for one Node UID are the same call.
#[derive(Clone, Debug)]
pub struct Lookup {
    round: Round,
    node: String,
    machine: String,
}

impl Lookup {
    pub(super) fn new(round: Round, node: &str, machine: &str) -> Self {
        Self { round, node: node.to_owned(), machine: machine.to_owned() }
    }

    pub(super) fn machine(&self) -> &str {
        &self.machine
    }
}

impl PartialEq for Lookup {
    fn eq(&self, other: &Self) -> bool {
        (self.round, &self.node) == (other.round, &other.node)
    }
}

impl Eq for Lookup {}

impl Hash for Lookup {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.round, &self.node).hash(state);
    }
}

/// The result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No namespace has a Machine with the name.
    None,
    /// A Machine.
    Machine,
    /// The lookup failed.
    Failed(String),
}

impl Effect for Lookup {
    type Outcome = Found;

    fn serialization_key(&self) -> Arc<str> {
        self.node.as_str().into()
    }

    fn name(&self) -> &'static str {
        "look_for_machine"
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs(30)
    }

    fn timeout_outcome(&self) -> Found {
        Found::Failed("the API server did not answer in time".to_owned())
    }

    fn succeeded(outcome: &Found) -> bool {
        !matches!(outcome, Found::Failed(_))
    }
}

#[derive(Deserialize)]
struct Items {
    #[serde(default)]
    items: Option<Vec<IgnoredAny>>,
}

/// Looks for a Machine in all namespaces: another controller manager may serve a different one.
pub async fn look_up(control: Connection, lookup: Lookup) -> Found {
    let machines = ResourceType::of::<Machine>().collection("");
    let path = format!("{machines}?fieldSelector=metadata.name%3D{}&limit=1", lookup.machine);
    match control.send(Call::get(path)).await {
        Ok(answer) => match serde_json::from_slice::<Items>(answer.body()) {
            Ok(list) if list.items.iter().flatten().next().is_none() => Found::None,
            Ok(_) => Found::Machine,
            Err(_) => Found::Failed("the API server's answer is no list".to_owned()),
        },
        Err(error) => Found::Failed(format!(
            "failed to list machines named {} in all namespaces: {error}; where that is forbidden, allow it",
            lookup.machine
        )),
    }
}
