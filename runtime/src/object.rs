//! The identity of objects: cluster, kind, name, UID, version.

use std::{borrow::Cow, fmt, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use serde::de::DeserializeOwned;

/// A Kubernetes kind that can be watched, cached and written: any type of `k8s-openapi`, any `CustomResource`, or a projection
/// that keeps only some fields ([`view_of!`](crate::view_of)).
pub trait Kind:
    Resource<DynamicType = (), Scope: 'static> + DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static
{
}

impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope: 'static> + DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static
{
}

/// Makes a type with a field `metadata` a view of a kind: the same resource, of which it keeps some fields. Unlike the derive of
/// `kube::Resource` with `inherit`, the names of the resource are not copied at each use.
#[macro_export]
macro_rules! view_of {
    ($kind:ty, $view:ty) => {
        impl ::kube::Resource for $view {
            type DynamicType = ();
            type Scope = <$kind as ::kube::Resource>::Scope;

            fn kind(_: &()) -> ::std::borrow::Cow<'_, str> {
                <$kind as ::kube::Resource>::kind(&())
            }
            fn group(_: &()) -> ::std::borrow::Cow<'_, str> {
                <$kind as ::kube::Resource>::group(&())
            }
            fn version(_: &()) -> ::std::borrow::Cow<'_, str> {
                <$kind as ::kube::Resource>::version(&())
            }
            fn plural(_: &()) -> ::std::borrow::Cow<'_, str> {
                <$kind as ::kube::Resource>::plural(&())
            }
            fn meta(&self) -> &::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

/// A cluster, by a name that metrics and logs show. One API server may serve two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cluster(&'static str);

impl Cluster {
    /// The cluster of this name.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The cluster, namespace and name of an object of a known kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// The cluster of the object.
    pub cluster: Cluster,
    /// Its namespace; empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl ObjectRef {
    /// A key from its parts.
    pub fn new(cluster: Cluster, namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { cluster, namespace: namespace.into(), name: name.into() }
    }

    /// The key of an object that was read from `cluster`.
    pub fn of<K: Kind>(cluster: Cluster, object: &K) -> Self {
        Self::new(cluster, namespace(object), name(object))
    }

    /// The key of another object in the same cluster and namespace.
    #[must_use]
    pub fn sibling(&self, name: impl Into<Arc<str>>) -> Self {
        Self { cluster: self.cluster, namespace: self.namespace.clone(), name: name.into() }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// The API resource of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResourceType {
    /// API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// API version.
    pub version: Cow<'static, str>,
    /// Kind, as in `kind:`.
    pub kind: Cow<'static, str>,
    /// Plural, as in the URL.
    pub plural: Cow<'static, str>,
}

impl ResourceType {
    /// The resource of a kind.
    pub fn of<K: Kind>() -> Self {
        Self { group: K::group(&()), version: K::version(&()), kind: K::kind(&()), plural: K::plural(&()) }
    }

    /// `apiVersion` as in objects.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_string() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The URL path of the collection in a namespace (empty: of the whole cluster).
    pub fn collection(&self, namespace: &str) -> String {
        self.path(namespace, None)
    }

    /// The path of a collection, or of the object of it that has this name.
    fn path(&self, namespace: &str, name: Option<&str>) -> String {
        // With room for a subresource and a query.
        let mut path = String::with_capacity(256);
        path.extend([if self.group.is_empty() { "/api" } else { "/apis/" }, &self.group, "/", &self.version]);
        if !namespace.is_empty() {
            path.extend(["/namespaces/", namespace]);
        }
        path.extend(["/", &self.plural]);
        if let Some(name) = name {
            path.extend(["/", name]);
        }
        path
    }

    /// The URL path of one object.
    pub fn object(&self, key: &ObjectRef) -> String {
        self.path(&key.namespace, Some(&key.name))
    }
}

impl fmt::Display for ResourceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.plural)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        Ok(())
    }
}

/// An object with preconditions for a write. It is only made from a live object, so that no write hits a namesake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    key: ObjectRef,
    resource: ResourceType,
    uid: Arc<str>,
    seen: u64,
    if_unchanged: bool,
}

impl Target {
    /// The object with the UID of `object`, in any version.
    pub fn of<K: Kind>(cluster: Cluster, object: &K) -> Self {
        Self {
            key: ObjectRef::of(cluster, object),
            resource: ResourceType::of::<K>(),
            uid: uid(object).into(),
            seen: resource_version(object),
            if_unchanged: false,
        }
    }

    /// The object in exactly this version: the API server refuses the write if the object has changed since.
    #[must_use]
    pub fn if_unchanged(mut self) -> Self {
        self.if_unchanged = true;
        self
    }

    /// Its name.
    pub fn key(&self) -> &ObjectRef {
        &self.key
    }

    /// Its resource type.
    pub fn resource(&self) -> &ResourceType {
        &self.resource
    }

    /// The required UID.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The required version, if there is one.
    pub fn version(&self) -> Option<u64> {
        self.if_unchanged.then_some(self.seen)
    }

    /// The version of the object that the reference was made from.
    pub fn seen(&self) -> u64 {
        self.seen
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.resource.kind, self.key)
    }
}

/// The namespace of an object; empty for cluster-scoped kinds.
pub fn namespace<K: Kind>(object: &K) -> &str {
    object.meta().namespace.as_deref().unwrap_or_default()
}

/// The name of an object.
pub fn name<K: Kind>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}

/// The UID of an object; empty if it never came from a server.
pub fn uid<K: Kind>(object: &K) -> &str {
    object.meta().uid.as_deref().unwrap_or_default()
}

/// When an object was created; `None` if it never came from a server.
pub fn created<K: Kind>(object: &K) -> Option<Timestamp> {
    object.meta().creation_timestamp.as_ref().map(|created| created.0)
}

/// The `resourceVersion` of an object; 0 if it never came from a server. Versions of one resource type are comparable
/// (KEP-5504); versions of different types are not.
pub fn resource_version<K: Kind>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().and_then(parse_version).unwrap_or_default()
}

/// `None` if it is no number: no cache could wait for it.
pub(crate) fn parse_version(text: &str) -> Option<u64> {
    text.parse().ok()
}

/// The owner that controls an object.
pub fn controller<K: Kind>(object: &K) -> Option<&OwnerReference> {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true))
}

/// The UID of the owner that controls an object.
pub fn controller_uid<K: Kind>(object: &K) -> Option<&str> {
    controller(object).map(|owner| owner.uid.as_str())
}

/// The metadata of a new object that `owner` controls. Garbage collection deletes it with its owner.
pub fn child_of<K: Kind>(owner: &K, namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()),
        owner_references: owner.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// Whether deletion of the object has begun.
pub fn is_deleting<K: Kind>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

/// The version of an object in an answer; `None` if it is gone with its last finalizer.
pub(crate) fn standing(version: Option<&str>, deleting: bool, finalizers: &[String]) -> Option<u64> {
    version.filter(|_| !deleting || !finalizers.is_empty()).and_then(parse_version)
}

/// A label of an object.
pub fn label<'a, K: Kind>(object: &'a K, key: &str) -> Option<&'a str> {
    object.meta().labels.as_ref()?.get(key).map(String::as_str)
}

/// An annotation of an object.
pub fn annotation<'a, K: Kind>(object: &'a K, key: &str) -> Option<&'a str> {
    object.meta().annotations.as_ref()?.get(key).map(String::as_str)
}

/// Whether an object has a finalizer.
pub fn has_finalizer<K: Kind>(object: &K, finalizer: &str) -> bool {
    object.meta().finalizers.as_ref().is_some_and(|list| list.iter().any(|f| f == finalizer))
}
