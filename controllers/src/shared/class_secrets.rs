//! The Secrets that a `MachineClass` names: each has a scoped watch of its name, and no others are watched. A Secret of another
//! namespace than its class's, or of a type that belongs to another program, is never read.

use std::sync::Arc;

use crate::shared::{
    CONTROL,
    indexes::{CLASSES_BY_CREDENTIALS, CLASSES_BY_SECRET, object_key},
};
use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use nodewright_api::MachineClass;
use nodewright_runtime::{
    cache::{Lookup, Stores},
    object::{ObjectRef, name, namespace},
    scoped_watch::ScopedWatch,
};
use serde::Deserialize;

/// The metadata of a Secret. Its values are neither requested nor kept.
#[derive(Clone, Debug, Deserialize)]
pub struct SecretMetadata {
    #[serde(default)]
    pub metadata: ObjectMeta,
}

nodewright_runtime::view_of!(Secret, SecretMetadata);

/// A field selector of the Secrets that a class may name. The others belong to other programs.
pub(crate) const NAMEABLE: &str = "type!=kubernetes.io/tls,type!=kubernetes.io/service-account-token,\
     type!=bootstrap.kubernetes.io/token,type!=helm.sh/release.v1";

/// The key of the user data of a VM.
pub(crate) const USER_DATA: &str = "userData";

pub(crate) const PENDING: &str = "SecretPending";
pub(crate) const NOT_READ: &str = "SecretNotRead";
pub(crate) const NOT_FOUND: &str = "SecretNotFound";
pub(crate) const USER_DATA_MISSING: &str = "UserDataMissing";

pub(crate) fn scoped_watches(class: &MachineClass) -> Vec<ScopedWatch> {
    let own = class.secret_names().filter(|(of, secret)| *of == namespace(class) && can_exist(secret));
    own.map(|(of, secret)| ScopedWatch::named::<Secret>(&ObjectRef::new(CONTROL, of, secret), NAMEABLE)).collect()
}

/// A Secret that a class of its namespace names, as far as it is known while a scoped watch requests it.
pub(crate) fn find(stores: &Stores, secret: &ObjectRef) -> Lookup<Secret> {
    if can_exist(&secret.name) { stores.named(secret, NAMEABLE) } else { Lookup::Missing }
}

/// The Secrets that a class names, as far as they are known while their scoped watches request them.
pub(crate) struct ClassSecrets {
    watches: Vec<ScopedWatch>,
    known: Vec<Lookup<Secret>>,
}

impl ClassSecrets {
    pub(crate) fn of(stores: &Stores, class: &MachineClass) -> Self {
        let watches = scoped_watches(class);
        let known = watches.iter().map(|watch| stores.watched(watch)).collect();
        Self { watches, known }
    }

    /// One of them. It is missing if it is of another namespace, or can have no such name.
    pub(crate) fn find(&self, namespace: &str, name: &str) -> &Lookup<Secret> {
        let is_it = |watch: &ScopedWatch| {
            watch.object().is_some_and(|secret| (&*secret.namespace, &*secret.name) == (namespace, name))
        };
        self.watches.iter().position(is_it).map_or(&Lookup::Missing, |at| &self.known[at])
    }

    pub(crate) fn into_watches(self) -> Vec<ScopedWatch> {
        self.watches
    }
}

pub(crate) fn has_user_data(secret: &Secret) -> bool {
    secret.data.as_ref().is_some_and(|data| data.contains_key(USER_DATA))
}

/// What to do about a class whose Secrets have no user data.
pub(crate) fn without_user_data() -> String {
    format!("no secret of the class has the key {USER_DATA:?}: add it; until then no VM is created")
}

pub(crate) fn not_read(secret: &str, why: &str) -> String {
    format!("{secret} could not be read: {why}; the manager needs get, list and watch on it")
}

/// Whether an object can have the name. A field selector cannot contain other names.
pub(crate) fn can_exist(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    !name.is_empty() && name.bytes().all(is_allowed)
}

/// The classes that name a Secret, sorted by name and without duplicates.
pub(crate) fn users(stores: &Stores, secret: &ObjectRef) -> Vec<Arc<MachineClass>> {
    let classes = stores.of::<MachineClass>(CONTROL);
    let secret = object_key(&secret.namespace, &secret.name);
    let mut users = classes.by(CLASSES_BY_SECRET, &secret);
    users.extend(classes.by(CLASSES_BY_CREDENTIALS, &secret));
    users.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
    users.dedup_by(|a, b| Arc::ptr_eq(a, b));
    users
}
