//! A MachineClass with its Secrets, as a driver gets it, or why it cannot be used.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Secret, SecretReference};
use nodewright_api::{ClassIdentity, MachineClass, finalizers, reasons::unreadable as reasons, stored::MissingClass};
use nodewright_driver::{Class, SecretData};
use nodewright_runtime::{
    cache::{Lookup, Stores},
    object::{has_finalizer, name, namespace, uid},
};

use crate::shared::{
    CONTROL,
    class_secrets::{self, ClassSecrets},
    driver::Provider,
};

/// Reason: there is no MachineClass of that name.
pub(crate) const CLASS_NOT_FOUND: &str = MissingClass::REASON;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassError {
    pub reason: &'static str,
    pub message: String,
    /// Whether no VM can have been asked for with the class: that needs our finalizers on the class and all its Secrets. So a
    /// class without the finalizer was never used; nor was one that names a missing Secret and was never edited
    /// (`metadata.generation` 1).
    ///
    /// Caveats: a finalizer that was removed by force; a Machine whose class was changed; a VM that
    /// machine-controller-manager, which has no such rule, asked for just before a take-over.
    pub never_used: bool,
}

/// The class with its Secrets. Secrets of other namespaces are never read, whatever the class says.
pub(crate) fn usable(secrets: &ClassSecrets, class: &MachineClass, provider: &str) -> Result<Class, ClassError> {
    let wanted = name(class);
    let error = |reason, message: String| ClassError { reason, message, never_used: false };
    if !class.provider.is_empty() && !class.provider.eq_ignore_ascii_case(provider) {
        let text = format!(
            "MachineClass {wanted:?} is one of provider {:?}, and this manager runs {provider:?}: run the one that fits, or correct the class",
            class.provider
        );
        return Err(error("ProviderMismatch", text));
    }
    let is_held = has_finalizer(class, finalizers::MACHINE_CONTROLLER_MANAGER);
    let never_used = !is_held || class.metadata.generation == Some(1);
    let unusable = |reason, message: String| ClassError { reason, message, never_used };
    let mut used = Vec::new();
    let mut revision = format!("{}/{}", uid(class), class.metadata.generation.unwrap_or_default());
    for reference in class.secret_refs() {
        let secret = reference.name.as_deref().unwrap_or_default();
        let own = namespace(class);
        let namespace = reference.namespace.as_deref().filter(|namespace| !namespace.is_empty()).unwrap_or(own);
        let text = || format!("Secret {secret:?} of MachineClass {wanted:?}");
        if namespace != own {
            let text = text();
            let text =
                format!("{text} is in namespace {namespace:?}: only Secrets of the class's own namespace are read");
            return Err(unusable("SecretForbidden", text));
        }
        let found = match secrets.find(namespace, secret) {
            Lookup::Found(found) => found,
            Lookup::Missing => {
                let text = text();
                let text =
                    format!("{text} does not exist in namespace {namespace:?}, or is not of type Opaque: create it");
                return Err(unusable(class_secrets::NOT_FOUND, text));
            }
            Lookup::Unreadable(object) => return Err(error(reasons::SECRET, object.describe::<Secret>())),
            Lookup::Pending => return Err(error(class_secrets::PENDING, format!("{} has yet to be read", text()))),
            Lookup::Failed(why) => return Err(error(class_secrets::NOT_READ, class_secrets::not_read(&text(), why))),
        };
        revision.push('/');
        revision.push_str(found.metadata.resource_version.as_deref().unwrap_or_default());
        used.push(found.clone());
    }
    let secret = SecretData::of(used);
    Ok(Class { name: wanted.to_owned(), revision, provider_spec: class.provider_spec.clone(), secret })
}

/// The classes that list the same VMs, in the order of their names: those with the same cluster and credentials. One whose
/// Secrets are missing, or that another provider serves, leads no group.
pub(crate) fn group_of(stores: &Stores, class: &Arc<MachineClass>, provider: &Provider) -> Vec<Arc<MachineClass>> {
    let key = |class: &MachineClass| {
        let credentials = class.credentials_secret_ref.as_ref().or(class.secret_ref.as_ref());
        let named = |reference: &SecretReference| (reference.namespace.clone(), reference.name.clone());
        (ClassIdentity::of(class, &provider.identity).to_string(), credentials.map(named))
    };
    let own = key(class);
    let mut group = stores.of::<MachineClass>(CONTROL).all();
    group.retain(|other| key(other) == own);
    group.sort_by_cached_key(|class| {
        let is_unusable = usable(&ClassSecrets::of(stores, class), class, &provider.name).is_err();
        (is_unusable, name(class.as_ref()).to_owned())
    });
    group
}

/// Whether a class is the one of its [group](group_of) that is asked with.
pub(crate) fn leads(group: &[Arc<MachineClass>], class: &MachineClass) -> bool {
    group.first().is_some_and(|first| uid(first.as_ref()) == uid(class))
}
