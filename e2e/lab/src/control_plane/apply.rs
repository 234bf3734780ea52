//! Applying manifests as `kubectl apply --server-side` does.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    path::{Path, PathBuf},
    time::Duration,
};

use futures::future::try_join_all;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams, TypeMeta},
    core::GroupVersionKind,
    discovery::{self, ApiCapabilities, ApiResource, Scope},
};
use serde::Deserialize;
use serde_json::Value;

use crate::control_plane::ControlPlaneError;

/// The field manager.
const FIELD_MANAGER: &str = "end-to-end";
/// How long the API server may take to serve a new kind.
const ESTABLISH_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause between two looks whether it does.
const LOOK: Duration = Duration::from_millis(50);

/// Applies all objects of a YAML text in order, with force. Namespaced objects without a namespace go to `default`. Waits
/// after the last of adjacent `CustomResourceDefinition`s until the API server serves the new kinds, so that later objects can
/// use them, and at the end until the schemas of all new kinds are published.
///
/// Returns the stored objects.
pub async fn apply_yaml(client: &Client, yaml: &str) -> Result<Vec<DynamicObject>, ControlPlaneError> {
    apply_all(client, parse_manifest(yaml, "given as text")?).await
}

/// Applies a file, or all `.yaml` files of a directory in alphabetical order; see [`apply_yaml`].
pub async fn apply_file(client: &Client, path: &Path) -> Result<Vec<DynamicObject>, ControlPlaneError> {
    apply_files(client, &[path.to_owned()]).await
}

/// The same for several files and directories. It waits once for the definitions of all.
pub(crate) async fn apply_files(client: &Client, paths: &[PathBuf]) -> Result<Vec<DynamicObject>, ControlPlaneError> {
    let mut objects = Vec::new();
    for path in paths {
        for file in manifests(path)? {
            let text = tokio::fs::read_to_string(&file).await.map_err(ControlPlaneError::file("read", &file))?;
            objects.extend(parse_manifest(&text, &file.display().to_string())?);
        }
    }
    apply_all(client, objects).await
}

/// The objects of a YAML text with any number of documents. Skips empty documents. `origin` names the text in errors.
pub fn parse_manifest(yaml: &str, origin: &str) -> Result<Vec<DynamicObject>, ControlPlaneError> {
    let invalid = |reason: String| ControlPlaneError::Manifest { origin: origin.to_owned(), reason };
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).map_err(|error| invalid(error.to_string()))?;
    documents
        .into_iter()
        .filter(|document| !document.is_null())
        .map(|document| serde_json::from_value(document).map_err(|error| invalid(error.to_string())))
        .collect()
}

fn manifests(path: &Path) -> Result<Vec<PathBuf>, ControlPlaneError> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let read = || -> std::io::Result<Vec<PathBuf>> {
        std::fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path())).collect()
    };
    let mut files = read().map_err(ControlPlaneError::file("read", path))?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    Ok(files)
}

/// Applies objects in order; see [`apply_yaml`].
pub async fn apply_all(client: &Client, objects: Vec<DynamicObject>) -> Result<Vec<DynamicObject>, ControlPlaneError> {
    let mut applied = Vec::with_capacity(objects.len());
    let (mut new, mut served, mut kinds) = (Vec::new(), Vec::new(), Kinds::default());
    for object in objects {
        let kind = kind_of(&object)?;
        let is_definition = kind.kind == "CustomResourceDefinition";
        if !is_definition {
            served.extend(wait_until_all_served(client, std::mem::take(&mut new)).await?);
        }
        let stored = apply_one(client, &mut kinds, &kind, &object).await?;
        if is_definition {
            new.push(stored.name_any());
        }
        applied.push(stored);
    }
    served.extend(wait_until_all_served(client, new).await?);
    for (document, kinds) in documents(&served) {
        wait_until_published(client, &document, &kinds).await?;
    }
    Ok(applied)
}

fn kind_of(object: &DynamicObject) -> Result<GroupVersionKind, ControlPlaneError> {
    let none = TypeMeta::default();
    GroupVersionKind::try_from(object.types.as_ref().unwrap_or(&none))
        .map_err(|error| ControlPlaneError::Manifest { origin: object.name_any(), reason: error.to_string() })
}

/// The kinds of a cluster, each of which is looked up once.
#[derive(Debug, Default)]
pub struct Kinds(HashMap<GroupVersionKind, (ApiResource, ApiCapabilities)>);

impl Kinds {
    /// The API of an object. If it is namespaced and names no namespace, it is in `namespace`.
    pub async fn api_of(
        &mut self,
        client: &Client,
        object: &DynamicObject,
        namespace: &str,
    ) -> Result<Api<DynamicObject>, ControlPlaneError> {
        let kind = kind_of(object)?;
        let what = format!("look up {}", kind.kind);
        let (resource, capabilities) = match self.0.entry(kind) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let found = discovery::pinned_kind(client, unknown.key()).await;
                unknown.insert(found.map_err(ControlPlaneError::request(what))?)
            }
        };
        let own = object.namespace();
        Ok(match capabilities.scope {
            Scope::Cluster => Api::all_with(client.clone(), resource),
            Scope::Namespaced => Api::namespaced_with(client.clone(), own.as_deref().unwrap_or(namespace), resource),
        })
    }
}

async fn apply_one(
    client: &Client,
    kinds: &mut Kinds,
    kind: &GroupVersionKind,
    object: &DynamicObject,
) -> Result<DynamicObject, ControlPlaneError> {
    let name = object.name_any();
    let what = || format!("apply {} {name}", kind.kind);
    let api = kinds.api_of(client, object, "default").await?;
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    api.patch(&name, &parameters, &Patch::Apply(object))
        .await
        .map_err(|error| ControlPlaneError::request(what())(error))
}

/// Waits until the kinds of definitions with these names can be used.
async fn wait_until_all_served(
    client: &Client,
    names: Vec<String>,
) -> Result<Vec<CustomResourceDefinition>, ControlPlaneError> {
    try_join_all(names.into_iter().map(|name| wait_until_served(client, name))).await
}

/// Waits until a kind can be used: discovery lists it a moment after its definition is established.
async fn wait_until_served(client: &Client, name: String) -> Result<CustomResourceDefinition, ControlPlaneError> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let served = async {
        loop {
            let definition =
                api.get(&name).await.map_err(|error| ControlPlaneError::request(format!("read {name}"))(error))?;
            if is_established(&definition) && is_served(client, &definition).await {
                return Ok(definition);
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    let timeout = |_| ControlPlaneError::Timeout { what: format!("serving of {name}"), waited: ESTABLISH_TIMEOUT };
    tokio::time::timeout(ESTABLISH_TIMEOUT, served).await.map_err(timeout)?
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// Whether all versions can be listed. At first the API server answers that it initialises their storage.
async fn is_served(client: &Client, definition: &CustomResourceDefinition) -> bool {
    let spec = &definition.spec;
    for version in spec.versions.iter().filter(|version| version.served) {
        let kind = GroupVersionKind::gvk(&spec.group, &version.name, &spec.names.kind);
        let Ok((resource, _)) = discovery::pinned_kind(client, &kind).await else { return false };
        let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        if objects.list(&ListParams::default().limit(1)).await.is_err() {
            return false;
        }
    }
    true
}

/// The kinds of definitions by the path of the document that has their schemas: that of their group and version.
fn documents(definitions: &[CustomResourceDefinition]) -> BTreeMap<String, BTreeSet<String>> {
    let mut documents = BTreeMap::<_, BTreeSet<_>>::new();
    for spec in definitions.iter().map(|definition| &definition.spec) {
        for version in spec.versions.iter().filter(|version| version.served) {
            let path = format!("/openapi/v3/apis/{}/{}", spec.group, version.name);
            documents.entry(path).or_default().insert(spec.names.kind.clone());
        }
    }
    documents
}

/// Waits until the schemas of kinds are published, about a second after they are served. The manager reads them at its start.
async fn wait_until_published(
    client: &Client,
    document: &str,
    kinds: &BTreeSet<String>,
) -> Result<(), ControlPlaneError> {
    let published = async {
        while !published_kinds(client, document).await.is_superset(kinds) {
            tokio::time::sleep(LOOK).await;
        }
    };
    let what = || format!("publication of the schemas of {kinds:?}");
    let timeout = |_| ControlPlaneError::Timeout { what: what(), waited: ESTABLISH_TIMEOUT };
    tokio::time::timeout(ESTABLISH_TIMEOUT, published).await.map_err(timeout)
}

/// The kinds of the schemas in a document; the rest is left out.
#[derive(Deserialize)]
struct Document {
    components: Components,
}

#[derive(Deserialize)]
struct Components {
    #[serde(default)]
    schemas: BTreeMap<String, Schema>,
}

#[derive(Deserialize)]
struct Schema {
    #[serde(default, rename = "x-kubernetes-group-version-kind")]
    kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    kind: String,
}

async fn published_kinds(client: &Client, document: &str) -> BTreeSet<String> {
    let Ok(request) = http::Request::get(document).body(Vec::new()) else { return BTreeSet::new() };
    let Ok(document) = client.request::<Document>(request).await else { return BTreeSet::new() };
    document.components.schemas.into_values().flat_map(|schema| schema.kinds).map(|kind| kind.kind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_may_have_several_documents_and_empty_ones() {
        let yaml = "---\n# a comment\n---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: a\n---\n\
                    apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: b\ndata:\n  on: \"yes\"\n";
        let objects = parse_manifest(yaml, "test").unwrap();
        let names: Vec<_> = objects.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(objects[1].data["data"]["on"], "yes");
    }

    #[test]
    fn an_error_names_the_manifest() {
        let error = parse_manifest("a: [", "some.yaml").unwrap_err().to_string();
        assert!(error.contains("some.yaml"), "{error}");
    }
}
