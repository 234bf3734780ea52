//! Namespaces: what may be created in them, and how they go.

use super::refusal;
use super::route::{Id, Resource};
use super::store::{Refused, Store};

impl Store {
    /// Refuses a creation in a namespace that is not there, or not for long.
    pub(super) fn check_namespace(&self, id: &Id) -> Result<(), Refused> {
        if !self.enforces_namespaces || id.namespace.is_empty() {
            return Ok(());
        }
        let namespace = Id { resource: Resource::namespaces(), namespace: String::new(), name: id.namespace.clone() };
        match self.find(&namespace) {
            None => Err(refusal::not_found(&namespace)),
            Some(live) if live["status"]["phase"] == "Terminating" => Err(refusal::terminating(id)),
            Some(_) => Ok(()),
        }
    }
}
