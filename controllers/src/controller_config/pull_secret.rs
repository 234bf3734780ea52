//! The Secret with the credentials of image registries, which templates may print.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use nodewright_api::machine_config::ControllerConfigSpec;
use nodewright_runtime::{
    cache::{Lookup, Stores},
    object::{ObjectRef, uid},
    scoped_watch::ScopedWatch,
};

use crate::shared::{TARGET, class_secrets::can_exist};

/// The type of such a Secret. One of another type is not requested.
const TYPE: &str = "kubernetes.io/dockerconfigjson";
const FIELDS: &str = "type=kubernetes.io/dockerconfigjson";
const KEY: &str = ".dockerconfigjson";

/// What is known of the Secret.
#[derive(Clone, Debug)]
pub(super) struct PullSecret {
    /// The name of a state of it.
    pub(super) version: String,
    /// Its content, or why that is not known.
    pub(super) content: Result<Content, String>,
}

/// A content that no message shows.
#[derive(Clone)]
pub(super) struct Content(pub(super) Arc<str>);

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Content({} bytes)", self.0.len())
    }
}

/// The Secret that a spec names, if it can exist.
fn named(spec: &ControllerConfigSpec) -> Option<ObjectRef> {
    let reference = spec.pull_secret.as_ref()?;
    let text = |text: &Option<String>| text.clone().filter(|text| can_exist(text));
    Some(ObjectRef::new(TARGET, text(&reference.namespace)?, text(&reference.name)?))
}

/// The watch that [`PullSecret::of`] needs.
pub(super) fn watch(spec: &ControllerConfigSpec) -> Option<ScopedWatch> {
    named(spec).map(|secret| ScopedWatch::named::<Secret>(&secret, FIELDS))
}

impl PullSecret {
    /// What is known of the Secret that a spec names. None before the API server has answered.
    pub(super) fn of(stores: &Stores, spec: &ControllerConfigSpec) -> Option<Self> {
        let unknown = |why: String| Some(Self { version: why.clone(), content: Err(why) });
        let Some(key) = named(spec) else { return unknown("spec.pullSecret names no Secret".to_owned()) };
        let shown = format!("Secret {}/{}", key.namespace, key.name);
        match stores.named::<Secret>(&key, FIELDS) {
            Lookup::Pending => None,
            Lookup::Failed(why) => {
                unknown(format!("{shown} could not be read: {why}; the manager needs get, list and watch on it"))
            }
            Lookup::Missing => unknown(format!("there is no {shown} of the type {TYPE}")),
            Lookup::Unreadable(_) => unknown(format!("{shown} cannot be read")),
            Lookup::Found(secret) => {
                let version = secret.metadata.resource_version.as_deref().unwrap_or_default();
                let version = format!("{}/{version}", uid(secret.as_ref()));
                let content = content(&secret).map(|content| Content(content.into()));
                Some(Self { version, content: content.map_err(|why| format!("{shown}: {why}")) })
            }
        }
    }
}

/// The credentials in a Secret.
///
/// # Errors
/// It has none, or another type.
pub fn content(secret: &Secret) -> Result<String, String> {
    if secret.type_.as_deref() != Some(TYPE) {
        return Err(format!("type: must be {TYPE}"));
    }
    let bytes = secret.data.as_ref().and_then(|data| data.get(KEY)).ok_or(format!("data[{KEY}]: Required value"))?;
    String::from_utf8(bytes.0.clone()).map_err(|_| format!("data[{KEY}]: must be text in UTF-8"))
}
