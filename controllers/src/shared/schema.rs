//! Which of our additions to the CRDs the API server serves. This can change at runtime: a gardenlet replaces our CRDs by those
//! of machine-controller-manager.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use nodewright_api::served::Served;

/// Whether the served schema of a kind is ours, or machine-controller-manager's. All clones change together.
#[derive(Clone, Debug)]
pub struct FullSchema(Arc<AtomicBool>);

impl FullSchema {
    /// Whether it is ours.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, full: bool) {
        self.0.store(full, Ordering::Relaxed);
    }
}

impl From<bool> for FullSchema {
    fn from(full: bool) -> Self {
        Self(Arc::new(full.into()))
    }
}

/// The served schemas of the kinds with our additions. All clones change together.
#[derive(Clone, Debug)]
pub struct Schemas {
    pub(crate) class: FullSchema,
    pub(crate) set: FullSchema,
    pub(crate) deployment: FullSchema,
}

impl From<Served> for Schemas {
    fn from(served: Served) -> Self {
        Self {
            class: served.machine_class_status.into(),
            set: served.machine_set_selector.into(),
            deployment: served.machine_deployment_selector.into(),
        }
    }
}

impl Schemas {
    /// Updates to the served schemas. Statuses that are written from now on have their fields.
    pub fn update(&self, served: &Served) {
        self.class.set(served.machine_class_status);
        self.set.set(served.machine_set_selector);
        self.deployment.set(served.machine_deployment_selector);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_that_run_see_what_is_served_now() {
        let schemas = Schemas::from(Served { machine_set_selector: true, ..Served::default() });
        let (set, class) = (schemas.set.clone(), schemas.class.clone());
        assert!(set.get() && !class.get());
        schemas.update(&Served { machine_class_status: true, ..Served::default() });
        assert!(!set.get() && class.get());
    }
}
