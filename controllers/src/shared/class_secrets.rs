//! The Secrets that a `MachineClass` names: each is looked at by its name, and none but these.
//!
//! # Guarantees
//! * The values of a Secret that no class names are not asked for, and not kept.
//! * A Secret of another namespace than its class's, or of a type that is another program's, is never read, whatever the class
//!   says.

use crate::shared::clusters::CONTROL;
use k8s_openapi::api::core::v1::Secret;
use nodewright_api::MachineClass;
use nodewright_runtime::{
    cache::{Lookup, Stores},
    object::{ObjectRef, namespace},
    scoped_watch::ScopedWatch,
};

/// A field selector of the Secrets that a class may name. Others are the secrets of other programs: the key of the webhooks,
/// the tokens of service accounts. None of them gets a finalizer, and none is read, whatever a class says.
pub(crate) const NAMEABLE: &str = "type!=kubernetes.io/tls,type!=kubernetes.io/service-account-token,\
     type!=bootstrap.kubernetes.io/token,type!=helm.sh/release.v1";

/// The reason of those who wait for the first answer about a Secret.
pub(crate) const PENDING: &str = "SecretPending";
/// The reason of those who wait because the API server does not tell what is in a Secret.
pub(crate) const NOT_READ: &str = "SecretNotRead";
/// The reason of those who wait because there is no such Secret.
pub(crate) const NOT_FOUND: &str = "SecretNotFound";

/// What to look at to see the Secrets of a class.
pub(crate) fn looks(class: &MachineClass) -> Vec<ScopedWatch> {
    let own = class.secret_names().filter(|(place, secret)| *place == namespace(class) && can_exist(secret));
    own.map(|(place, secret)| ScopedWatch::named::<Secret>(&ObjectRef::new(CONTROL, place, secret), NAMEABLE)).collect()
}

/// What is known of a Secret that a class of its namespace names, while somebody looks at it.
pub(crate) fn find(stores: &Stores, place: &str, secret: &str) -> Lookup<Secret> {
    if can_exist(secret) { stores.named(&ObjectRef::new(CONTROL, place, secret), NAMEABLE) } else { Lookup::Missing }
}

/// What to do about a Secret that cannot be read.
pub(crate) fn not_read(secret: &str, why: &str) -> String {
    format!("{secret} could not be read: {why}; the manager needs get, list and watch on it")
}

/// Whether an object can have the name. What cannot is no field selector's value.
fn can_exist(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    !name.is_empty() && name.bytes().all(is_allowed)
}
