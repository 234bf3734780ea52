//! What the suite has to know of a driver and its provider.

use std::{collections::BTreeSet, error::Error, sync::Arc, time::Duration};

use futures::{
    FutureExt,
    future::{BoxFuture, ready},
};
use nodewright_api::RawJson;
use nodewright_driver::{Class, Driver};

/// The answer of a hook; `None` if the fixture does not have it. Then the checks that need it are skipped.
pub type Hook<'a, T> = BoxFuture<'a, Result<Option<T>, Box<dyn Error + Send + Sync>>>;

/// The answer of a hook that a fixture does not have.
pub fn missing<'a, T: Send + 'a>() -> Hook<'a, T> {
    ready(Ok(None)).boxed()
}

/// A `providerSpec` with one fault.
#[derive(Clone, Debug)]
pub struct InvalidSpec {
    /// The JSON path below `providerSpec` of the field that is wrong.
    pub path: &'static str,
    /// The document.
    pub spec: RawJson,
}

/// How a provider fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// It accepts requests and never answers them. They have no effect, not even when the outage is over.
    Silent,
    /// It answers each request with an error of its own, which has no effect.
    Failing,
    /// It has no capacity for another VM. Everything else works.
    Full,
}

/// A driver, its provider, and what can be seen of and done to that provider without the driver.
///
/// The methods with a default are optional: without them, some checks are skipped, and the report says which. The more a
/// fixture can, the more the suite finds.
pub trait Fixture: Sync {
    /// A new driver, as after a restart of the manager.
    fn driver(&self) -> Arc<dyn Driver>;

    /// A valid class with its credentials. Its VMs belong to this cluster.
    fn class(&self, cluster: &str) -> Class;

    /// The beginning of each provider id, such as `aws:///`.
    fn provider_id_prefix(&self) -> &'static str;

    /// Documents of this cluster with one fault each. Fields that are not in [`Driver::identity`] should be among them.
    fn invalid_specs(&self, cluster: &str) -> Vec<InvalidSpec>;

    /// A class whose credentials the provider rejects; `None` if it needs none.
    fn rejected_class(&self, _cluster: &str) -> Option<Class> {
        None
    }

    /// The `spec` of a `PersistentVolume` of the provider, which need not exist, and the id of the volume at the provider.
    fn volume(&self) -> Option<(RawJson, String)> {
        None
    }

    /// Texts that must not appear in any answer, such as passwords in the Secrets of [`Fixture::class`].
    fn secrets(&self) -> Vec<String> {
        vec![]
    }

    /// How long a deletion may take, or a failure that passes by itself may last.
    fn eventual_timeout(&self) -> Duration {
        Duration::from_mins(1)
    }

    /// How many VMs a list must be able to have: more than the provider puts on one page.
    fn list_size(&self) -> usize {
        3
    }

    /// The provider ids of all VMs that exist, with and without tags, including those that are being deleted. Without this
    /// hook the suite has to believe the driver's list.
    fn vms(&self) -> Hook<'_, BTreeSet<String>> {
        missing()
    }

    /// Switches a VM off. It stays, and keeps its disk.
    fn stop_vm(&self, _provider_id: &str) -> Hook<'_, ()> {
        missing()
    }

    /// Makes a VM that has no tags, and answers with its provider id. It is the fixture's to delete.
    fn untagged_vm(&self) -> Hook<'_, String> {
        missing()
    }

    /// Hides the VM that is created next, for a part of [`Driver::consistency`].
    fn hide_next_vm(&self) -> Hook<'_, ()> {
        missing()
    }

    /// Makes the provider fail, until [`Fixture::end_outage`]. A fixture may be without one of the outages.
    fn begin_outage(&self, _outage: Outage) -> Hook<'_, ()> {
        missing()
    }

    /// Ends the outage that was begun.
    fn end_outage(&self) -> Hook<'_, ()> {
        missing()
    }
}
