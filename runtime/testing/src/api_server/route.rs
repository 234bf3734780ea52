//! Parses the method, path and query of a request.

use std::collections::BTreeMap;

use axum::extract::Query;
use http::{Method, Uri};
use serde_json::Value;

use super::refusal;
use super::store::Refused;

/// The group, version and plural of a kind, as in a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Resource {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) plural: String,
}

impl Resource {
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `machines.machine.sapcloud.io`, as in error messages.
    pub(super) fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// Whether the kind has a CRD, evaluated by the name of the group.
    pub(super) fn is_custom(&self) -> bool {
        self.group.contains('.') && !self.group.ends_with(".k8s.io")
    }

    pub(super) fn budgets() -> Self {
        Self { group: "policy".into(), version: "v1".into(), plural: "poddisruptionbudgets".into() }
    }

    pub(super) fn pods() -> Self {
        Self { group: String::new(), version: "v1".into(), plural: "pods".into() }
    }

    pub(super) fn namespaces() -> Self {
        Self { group: String::new(), version: "v1".into(), plural: "namespaces".into() }
    }

    pub(super) fn is_pod(&self) -> bool {
        self.group.is_empty() && self.plural == "pods"
    }
}

/// The resource, namespace and name of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Id {
    pub(super) resource: Resource,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Id {
    /// The id of an existing object.
    pub(super) fn of(resource: &Resource, object: &Value) -> Self {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or("").to_owned();
        Self { resource: resource.clone(), namespace: text("namespace"), name: text("name") }
    }

    pub(super) fn path(&self) -> String {
        let Resource { group, version, plural } = &self.resource;
        let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
        let within = if self.namespace.is_empty() { String::new() } else { format!("/namespaces/{}", self.namespace) };
        format!("{root}{within}/{plural}/{}", self.name)
    }
}

/// An object or one of its subresources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Part {
    Main,
    Status,
    Scale,
}

/// The target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) resource: Resource,
    /// Empty for cluster-scoped objects, and for lists over all namespaces.
    pub(super) namespace: String,
    pub(super) name: Option<String>,
    pub(super) subresource: Option<String>,
    pub(super) query: BTreeMap<String, String>,
}

impl Route {
    pub(super) fn parse(uri: &Uri) -> Result<Self, Refused> {
        let unknown = || refusal::no_such_resource();
        let mut segments = uri.path().split('/').filter(|segment| !segment.is_empty());
        let group = match segments.next() {
            Some("api") => String::new(),
            Some("apis") => segments.next().ok_or_else(unknown)?.to_owned(),
            _ => return Err(unknown()),
        };
        let version = segments.next().ok_or_else(unknown)?.to_owned();
        let mut rest: Vec<_> = segments.collect();
        let mut namespace = String::new();
        // `/namespaces/a/status` is a subresource of the Namespace, `/namespaces/a/pods` is a collection in it.
        if let ["namespaces", within, plural, ..] = rest[..]
            && !matches!(plural, "status" | "finalize")
        {
            within.clone_into(&mut namespace);
            rest.drain(..2);
        }
        let (plural, name, subresource) = match rest[..] {
            [plural] => (plural, None, None),
            [plural, name] => (plural, Some(name), None),
            [plural, name, subresource] => (plural, Some(name), Some(subresource)),
            _ => return Err(unknown()),
        };
        let query = Query::<BTreeMap<String, String>>::try_from_uri(uri);
        Ok(Self {
            resource: Resource { group, version, plural: plural.to_owned() },
            namespace,
            name: name.map(str::to_owned),
            subresource: subresource.map(str::to_owned),
            query: query.map_err(|error| refusal::bad_request(&error.to_string()))?.0,
        })
    }

    /// The object of the path.
    pub(super) fn id(&self) -> Result<Id, Refused> {
        let name = self.name.clone().ok_or_else(refusal::method_not_allowed)?;
        Ok(Id { resource: self.resource.clone(), namespace: self.namespace.clone(), name })
    }

    pub(super) fn part(&self) -> Result<Part, Refused> {
        match self.subresource.as_deref() {
            None => Ok(Part::Main),
            Some("status") => Ok(Part::Status),
            Some("scale") => Ok(Part::Scale),
            Some(_) => Err(refusal::no_such_resource()),
        }
    }

    pub(super) fn get(&self, key: &str) -> &str {
        self.query.get(key).map_or("", String::as_str)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        !self.get(key).is_empty()
    }

    pub(super) fn is_set(&self, key: &str) -> bool {
        matches!(self.get(key), "true" | "1")
    }

    /// Whether a read accepts any version that the server has.
    pub(super) fn takes_any_version(&self) -> bool {
        self.get("resourceVersion") == "0"
    }

    /// The verb of Kubernetes' authorization.
    pub(super) fn verb(&self, method: &Method) -> &'static str {
        match (method.as_str(), self.name.is_some()) {
            ("GET", _) if self.is_set("watch") => "watch",
            ("GET", true) => "get",
            ("GET", false) => "list",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", true) => "delete",
            ("DELETE", false) => "deletecollection",
            _ => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(path: &str) -> Route {
        Route::parse(&path.parse().unwrap()).unwrap()
    }

    #[test]
    fn paths_are_read() {
        let status = route("/apis/machine.sapcloud.io/v1alpha1/namespaces/a/machines/m/status?force=true&x=a%3Db");
        assert_eq!(status.resource.qualified(), "machines.machine.sapcloud.io");
        assert_eq!((status.namespace.as_str(), status.name.as_deref()), ("a", Some("m")));
        assert_eq!(status.part().ok(), Some(Part::Status));
        assert!(status.is_set("force"));
        assert_eq!(status.get("x"), "a=b");

        let namespace = route("/api/v1/namespaces/a");
        assert_eq!((namespace.resource.plural.as_str(), namespace.name.as_deref()), ("namespaces", Some("a")));
        assert_eq!(route("/api/v1/namespaces/a/pods").verb(&Method::GET), "list");
        assert_eq!(route("/api/v1/pods?watch=true").verb(&Method::GET), "watch");
        assert!(Route::parse(&"/version".parse().unwrap()).is_err());
    }
}
