//! The snapshot of a Secret with the finalizer.

use std::sync::Arc;

use nodewright_api::MachineClass;
use nodewright_runtime::{cache::Stores, object::ObjectRef};

use crate::shared::{
    CONTROL,
    class_secrets::{SecretMetadata, users},
};

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub secret: Arc<SecretMetadata>,
    /// How many classes refer to it, including those that are being deleted.
    pub users: usize,
    /// Why a class that may refer to it cannot be read.
    pub unreadable: Option<String>,
}

impl Snapshot {
    pub(super) fn take(stores: &Stores, key: &ObjectRef) -> Option<Self> {
        let secret = stores.of::<SecretMetadata>(CONTROL).get(key)?;
        // An unreadable class may refer to any Secret.
        let unreadable = stores.of::<MachineClass>(CONTROL).unreadable();
        let unreadable = unreadable.first().map(|class| class.describe::<MachineClass>());
        Some(Self { secret, users: users(stores, key).len(), unreadable })
    }
}
