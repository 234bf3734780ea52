//! The scale subresource: a view of an object with one writable number.

use serde_json::{Value, json};

use super::checks::FieldError;
use super::kinds::{Kind, Scale};
use super::refusal;
use super::store::{Refused, Store, Written, said, set_or_remove};
use super::write::Target;

/// Stands for an absent number of replicas; no client asks for this value.
const UNSET: i64 = i32::MIN as i64;

pub(super) fn read(kind: &Kind, object: &Value) -> Result<Value, Refused> {
    let paths = paths(kind)?;
    if object.pointer(&paths.replicas).is_none() {
        let path = paths.replicas.replace('/', ".");
        return Err(refusal::internal(&format!("the spec replicas field {path:?} does not exist")));
    }
    Ok(view(paths, object))
}

fn paths(kind: &Kind) -> Result<&Scale, Refused> {
    kind.scale.as_ref().ok_or_else(refusal::no_such_resource)
}

fn view(paths: &Scale, object: &Value) -> Value {
    let number = |path: &str| object.pointer(path).and_then(Value::as_i64).unwrap_or(0);
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        set_or_remove(&mut metadata, field, object["metadata"].get(field).cloned());
    }
    let mut status = json!({ "replicas": number(&paths.status_replicas) });
    let selector = paths.selector.as_ref().and_then(|path| object.pointer(path)).filter(|selector| *selector != "");
    set_or_remove(&mut status, "selector", selector.cloned());
    let replicas = number(&paths.replicas);
    let mut spec = json!({});
    // An absent number means 0.
    set_or_remove(&mut spec, "replicas", (replicas != 0).then(|| replicas.into()));
    json!({
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": metadata,
        "spec": spec,
        "status": status,
    })
}

impl Store {
    /// Changes the scale of an object: `edit` returns the wanted scale for the live one.
    pub(super) fn scale(
        &mut self,
        target: &Target<'_>,
        uid: Option<&str>,
        edit: impl FnOnce(&Value) -> Result<Value, Refused>,
    ) -> Result<Value, Refused> {
        let paths = paths(&target.kind)?.clone();
        let written = self.update(target, uid, |live| {
            let mut scale = view(&paths, live);
            if live.pointer(&paths.replicas).is_none() {
                scale["spec"]["replicas"] = UNSET.into();
            }
            let scale = edit(&scale)?;
            let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
            if replicas == UNSET {
                let path = paths.replicas.replace('/', ".");
                return Err(refusal::bad_request(&format!("the spec replicas field {path:?} cannot be empty")));
            }
            if replicas < 0 {
                let why = "should be a non-negative integer";
                let error = FieldError::invalid(&paths.replicas.replace('/', "."), &replicas.to_string(), why);
                return Err(refusal::invalid(target.id, &target.kind.name, &[error]));
            }
            let mut wanted = live.clone();
            set_at(&mut wanted, &paths.replicas, replicas.into());
            if let Some(version) = said(&scale, "resourceVersion") {
                wanted["metadata"]["resourceVersion"] = version.into();
            }
            let path: Vec<_> = paths.replicas.split('/').skip(1).map(str::to_owned).collect();
            let before = live.pointer(&paths.replicas).and_then(Value::as_i64).unwrap_or(UNSET);
            target.rescale(&mut wanted, &path, before, replicas);
            Ok(wanted)
        })?;
        let (Written::Created(object) | Written::Updated(object) | Written::Deleted(object)) = written;
        Ok(view(&paths, &object))
    }
}

fn set_at(object: &mut Value, pointer: &str, value: Value) {
    let place = pointer.split('/').skip(1).fold(object, |place, key| &mut place[key]);
    *place = value;
}
