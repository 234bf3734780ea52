//! Checks that the list of the kubelet's fields is that of Go's types, in the version of Kubernetes that the repository pins.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::process::Command;

#[test]
fn the_fields_are_those_of_the_kubelet() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../hack/kubelet-fields.sh");
    let output = Command::new(script).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
