//! Namespaces: they restrict creations, and are emptied before they are removed.

use std::sync::Arc;

use serde_json::Value;

use super::controllers::attempt;
use super::delete::{DeleteOptions, Propagation};
use super::refusal;
use super::route::{Id, Resource};
use super::store::{Refused, Store, Writer, Written, said, seconds};

impl Store {
    /// Refuses a creation in a namespace that does not exist or is terminating.
    pub(super) fn check_namespace(&self, id: &Id) -> Result<(), Refused> {
        if !self.enforces_namespaces || id.namespace.is_empty() {
            return Ok(());
        }
        let namespace = Id { resource: Resource::namespaces(), namespace: String::new(), name: id.namespace.clone() };
        match self.find(&namespace) {
            None => Err(refusal::not_found(&namespace)),
            Some(live) if is_terminating(live) => Err(refusal::terminating(id)),
            Some(_) => Ok(()),
        }
    }

    /// Marks a namespace as terminating: its controller empties and removes it.
    pub(super) fn delete_namespace(
        &mut self,
        id: &Id,
        options: &DeleteOptions,
        writer: &Writer<'_>,
    ) -> Result<Written, Refused> {
        let live = self.get(id)?;
        let check = |name: &str, asked: Option<&String>, field: &str| match asked {
            Some(asked) if Some(asked.as_str()) != said(&live, field) => {
                let found = said(&live, field).unwrap_or("");
                let why =
                    format!("Precondition failed: {name} in precondition: {asked}, {name} in object meta: {found}");
                Err(refusal::conflict(id, &why))
            }
            _ => Ok(()),
        };
        check("UID", options.uid.as_ref(), "uid")?;
        check("ResourceVersion", options.version.as_ref(), "resourceVersion")?;
        if !live["metadata"]["deletionTimestamp"].is_null() {
            return Ok(Written::Updated(live));
        }
        let mut going = (*live).clone();
        going["metadata"]["deletionTimestamp"] = seconds(writer.now).into();
        going["status"]["phase"] = "Terminating".into();
        if writer.dry_run {
            return Ok(Written::Updated(Arc::new(going)));
        }
        Ok(Written::Updated(self.commit(id, going)))
    }

    /// Deletes the objects in terminating namespaces, and the namespaces that are empty.
    pub(super) fn empty_namespaces(&mut self, writer: &Writer<'_>) {
        let namespaces: Vec<_> = self.all(&Resource::namespaces()).filter(|it| is_terminating(it)).cloned().collect();
        for namespace in namespaces {
            let name = said(&namespace, "name").unwrap_or("");
            let content = self.content(name);
            for (id, object) in &content {
                if object["metadata"]["deletionTimestamp"].is_null() {
                    let propagation = Some(Propagation::Background);
                    let options = DeleteOptions { propagation, ..DeleteOptions::default() };
                    attempt(self.delete(id, &options, writer));
                }
            }
            if content.is_empty() {
                attempt(self.finalize(&Id::of(&Resource::namespaces(), &namespace), &namespace));
            }
        }
    }

    fn content(&self, namespace: &str) -> Vec<(Id, Arc<Value>)> {
        let resources: Vec<_> = self.resources().cloned().collect();
        let inside = |resource| {
            let all = self.all(resource).filter(|object| said(object, "namespace") == Some(namespace));
            all.map(|object| (Id::of(resource, object), object.clone()))
        };
        resources.iter().flat_map(inside).collect()
    }

    fn finalize(&mut self, id: &Id, namespace: &Value) -> Result<(), Refused> {
        if super::write::has_finalizers(namespace) {
            let mut empty = namespace.clone();
            empty["spec"] = serde_json::json!({});
            if empty != *namespace {
                self.commit(id, empty);
            }
            return Ok(());
        }
        self.evaporate(id).map(drop)
    }
}

fn is_terminating(namespace: &Value) -> bool {
    namespace["status"]["phase"] == "Terminating"
}
