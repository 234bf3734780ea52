//! The request to the API server whether a Machine with a name exists.

use std::{sync::Arc, time::Duration};

use nodewright_runtime::{
    effect::Effect,
    request::{Call, Connection},
};
use serde::de::IgnoredAny;

use crate::shared::lists::{items, machines_named};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineSearch {
    /// Whether it is the one that ends the grace; the other one starts it.
    pub(super) is_second: bool,
    pub(super) node_uid: String,
    pub(super) machine: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    None,
    Machine,
    Failed(String),
}

impl Effect for MachineSearch {
    type Outcome = Found;

    fn serialization_key(&self) -> Arc<str> {
        self.node_uid.as_str().into()
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

/// Looks for a Machine in all namespaces: another controller manager may serve a different one.
pub(crate) async fn look_up(control: Connection, lookup: MachineSearch) -> Found {
    match control.send(Call::get(format!("{}&limit=1", machines_named(&lookup.machine)))).await {
        Ok(answer) => match items::<IgnoredAny>(answer.body()) {
            Ok(machines) if machines.iter().flatten().next().is_none() => Found::None,
            Ok(_) => Found::Machine,
            Err(_) => Found::Failed("the API server's answer is no list".to_owned()),
        },
        Err(error) => Found::Failed(format!(
            "failed to list machines named {} in all namespaces: {error}; where that is forbidden, allow it",
            lookup.machine
        )),
    }
}
