//! Rules of a MachineConfig. Those of its Ignition config are in `nodewright-render`.

use super::Validate;
use crate::field::FieldError;
use crate::machine_config::{MachineConfig, ROLE};
use kube::Resource;

impl Validate for MachineConfig {
    fn validate(&self) -> Vec<FieldError> {
        Vec::new()
    }

    fn warnings(&self) -> Vec<String> {
        let is_owned = self.meta().owner_references.as_ref().is_some_and(|owners| !owners.is_empty());
        let text = format!("metadata.labels: without the label {ROLE} hardly any MachineConfigPool selects it");
        if self.role().is_some() || is_owned { Vec::new() } else { vec![text] }
    }
}
