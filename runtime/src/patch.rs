//! The operations of JSON patches that fail if what they change has changed since it was read.

use json_patch::{AddOperation, PatchOperation, RemoveOperation, ReplaceOperation, TestOperation, jsonptr::PointerBuf};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

/// Tests that the object has the version that was read.
pub fn same_version(seen: &ObjectMeta) -> PatchOperation {
    test(&["metadata", "resourceVersion"], seen.resource_version.clone().into())
}

/// Tests a field. An API server treats a missing one as null.
pub fn test(path: &[&str], value: Value) -> PatchOperation {
    PatchOperation::Test(TestOperation { path: pointer(path), value })
}

/// Sets a field, whether or not it exists.
pub fn set(path: &[&str], value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: pointer(path), value })
}

/// Removes a field that exists.
pub fn remove(path: &[&str]) -> PatchOperation {
    PatchOperation::Remove(RemoveOperation { path: pointer(path) })
}

/// Replaces a field that exists.
pub fn replace(path: &[&str], value: Value) -> PatchOperation {
    PatchOperation::Replace(ReplaceOperation { path: pointer(path), value })
}

fn pointer(path: &[&str]) -> PointerBuf {
    PointerBuf::from_tokens(path.iter().copied())
}
