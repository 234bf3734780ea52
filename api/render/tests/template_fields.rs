//! Checks that the list of the fields that templates know is that of Go's types, in the version of openshift/api that the
//! repository pins.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::process::Command;

#[test]
fn the_fields_are_those_of_a_controller_config() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../hack/template-fields.sh");
    let output = Command::new(script).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
