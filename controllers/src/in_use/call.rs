//! Reads and writes one label.

use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nodewright_api::labels::{IN_USE, IN_USE_PREFIX, IN_USE_VALUE, PART_OF, PART_OF_VALUE};
use nodewright_runtime::{
    annotations, json,
    request::{Call, Connection, RequestError},
};
use serde::{Deserialize, de::IgnoredAny};

use super::{
    mark::{Guarded, Mark, Outcome},
    snapshot::GuardedKind,
};
use crate::shared::{CONTROL, lists::items};

/// Objects without their content: rendered MachineConfigs are large.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const LIST_OF_METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

pub(super) struct Caller {
    pub(super) namespace: String,
    pub(super) control: Connection,
    pub(super) target: Option<Connection>,
}

#[derive(Deserialize)]
struct Object {
    metadata: ObjectMeta,
}

impl Caller {
    pub(super) async fn perform(&self, mark: &Mark) -> Outcome {
        let done = self.try_perform(mark).await;
        done.unwrap_or_else(|error| {
            let (what, effect) = match &mark.on {
                Guarded::Namespace => (format!("namespace {}", self.namespace), "it is not protected from deletion"),
                Guarded::Definition(kind) => (kind.definition.clone(), "it may not be protected from deletion"),
            };
            Outcome::Failed(format!(
                "failed to keep the label of {what} that says whether it is in use: {error}; {effect}. Where that is forbidden, \
                 apply config/rbac"
            ))
        })
    }

    async fn try_perform(&self, mark: &Mark) -> Result<Outcome, RequestError> {
        let (cluster, url, key) = match &mark.on {
            Guarded::Namespace => (CONTROL, format!("/api/v1/namespaces/{}", self.namespace), IN_USE.to_owned()),
            Guarded::Definition(kind) => (
                kind.cluster,
                format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}", kind.definition),
                format!("{IN_USE_PREFIX}{}", self.namespace),
            ),
        };
        let connection = if cluster == CONTROL { Some(&self.control) } else { self.target.as_ref() };
        let Some(connection) = connection else { return Ok(Outcome::NotOurs) };
        let answer = connection.send(accepting(METADATA, Call::get(&url))).await?;
        let Ok(Object { metadata }) = json::from_slice(answer.body()) else {
            return Ok(Outcome::Failed(format!("the API server's answer to GET {url} is no object")));
        };
        let label = |key: &str| metadata.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
        if cluster != CONTROL && label(PART_OF) != Some(PART_OF_VALUE) {
            return Ok(Outcome::NotOurs);
        }
        let wanted = mark.in_use.then_some(IN_USE_VALUE);
        let change = annotations::set_label(&metadata, &key, wanted);
        if change.0.is_empty() {
            return Ok(Outcome::AsWanted);
        }
        if !mark.in_use && has_objects(connection, &mark.kinds).await? {
            return Ok(Outcome::StillInUse);
        }
        let change = serde_json::to_value(&change).unwrap_or_default();
        let call = Call::with(Method::PATCH, &url, "application/json-patch+json", &change);
        connection.send(accepting(METADATA, call)).await?;
        let object = url.rsplit('/').next().unwrap_or_default();
        let what = if mark.in_use { "is in use: labelled with" } else { "is no longer in use: removed the label" };
        Ok(Outcome::Changed(format!("{object} {what} {key}")))
    }
}

/// Consistent reads: they ask for no version.
async fn has_objects(connection: &Connection, kinds: &[GuardedKind]) -> Result<bool, RequestError> {
    for kind in kinds {
        let path = format!("{}?limit=1", kind.collection);
        let answer = connection.send(accepting(LIST_OF_METADATA, Call::get(path))).await?;
        // What is no list proves nothing.
        let is_empty = |objects: Option<Vec<IgnoredAny>>| objects.iter().flatten().next().is_none();
        if !items(answer.body()).is_ok_and(is_empty) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn accepting(accept: &'static str, mut call: Call) -> Call {
    call.accept = accept;
    call
}
