//! JSON patches as an API server takes them.

use json_patch::{Patch, PatchError, PatchOperation};
use serde_json::Value;

/// Applies a patch as an API server does: a test for null holds also where there is nothing (RFC 6902 says nothing of
/// that, and other implementations refuse it). Kubernetes' clients rely on it to say that a list is not there.
pub fn json_patch(object: &mut Value, patch: &Patch) -> Result<(), PatchError> {
    let mut patched = object.clone();
    for operation in &patch.0 {
        if let PatchOperation::Test(test) = operation
            && test.value.is_null()
            && patched.pointer(test.path.as_str()).is_none()
        {
            continue;
        }
        ::json_patch::patch(&mut patched, std::slice::from_ref(operation))?;
    }
    *object = patched;
    Ok(())
}
