//! Asks which `PersistentVolumes` are not the provider's: the API server for their specs, and the driver for their ids.

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt, future::BoxFuture, stream};
use k8s_openapi::api::core::v1::PersistentVolume;
use nodewright_api::{Code, RawJson};
use nodewright_driver::DriverError;
use nodewright_runtime::{
    object::{ObjectRef, ResourceType},
    request::{Call as ApiCall, Connection, FailureClass},
};
use serde::Deserialize;
use tokio::time::timeout;

use super::calls::{Outcome, VOLUME_IDS_WITHIN};
use crate::shared::TARGET;

/// How many `PersistentVolumes` are read at once for one Node.
const AT_ONCE: usize = 8;

/// The driver's answer: for each volume its id, if it is the provider's.
type Ids = BoxFuture<'static, Result<Vec<Option<String>>, DriverError>>;

#[derive(Deserialize)]
struct Volume {
    spec: RawJson,
}

/// Reads the volumes, and asks the driver for their ids.
pub(super) async fn look_up(
    ask: impl FnOnce(Vec<RawJson>) -> Ids,
    target: &Connection,
    names: &BTreeSet<String>,
) -> Outcome {
    let answer = timeout(VOLUME_IDS_WITHIN, foreign(ask, target, names)).await.unwrap_or_else(|_| {
        Err(DriverError::new(Code::DeadlineExceeded, format!("there was no answer within {VOLUME_IDS_WITHIN:?}")))
    });
    answer.map_or_else(Outcome::Failed, Outcome::ForeignVolumes)
}

async fn foreign(
    ask: impl FnOnce(Vec<RawJson>) -> Ids,
    target: &Connection,
    names: &BTreeSet<String>,
) -> Result<BTreeSet<String>, DriverError> {
    let specs = stream::iter(names.clone()).map(|name| read(target, name)).buffered(AT_ONCE);
    let specs: Vec<Option<RawJson>> = specs.try_collect().await?;
    let asked: Vec<RawJson> = specs.iter().flatten().cloned().collect();
    let count = asked.len();
    let ids = if asked.is_empty() { vec![] } else { ask(asked).await? };
    if ids.len() != count {
        let message = format!("the driver answers with {} ids for {count} volumes", ids.len());
        return Err(DriverError::new(Code::Internal, message));
    }
    let mut ids = ids.into_iter();
    // A volume that does not exist is not the provider's, as in machine-controller-manager.
    let mut is_foreign = |spec: Option<RawJson>| spec.is_none_or(|_| ids.next().flatten().is_none());
    Ok(names.iter().zip(specs).filter_map(|(name, spec)| is_foreign(spec).then(|| name.clone())).collect())
}

/// The spec of a `PersistentVolume`; `None` if there is none of the name.
async fn read(target: &Connection, name: String) -> Result<Option<RawJson>, DriverError> {
    let path = ResourceType::of::<PersistentVolume>().object(&ObjectRef::new(TARGET, "", name.as_str()));
    match target.send(ApiCall::get(path)).await {
        Ok(answer) => match serde_json::from_slice::<Volume>(answer.body()) {
            Ok(volume) => Ok(Some(volume.spec)),
            Err(_) => Err(DriverError::new(Code::Internal, format!("PersistentVolume {name} cannot be decoded"))),
        },
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => {
            let is_forbidden = error.class == FailureClass::Forbidden;
            let code = if is_forbidden { Code::PermissionDenied } else { Code::Unavailable };
            Err(DriverError::new(code, format!("failed to read PersistentVolume {name}: {error}")))
        }
    }
}
