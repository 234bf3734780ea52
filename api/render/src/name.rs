//! The name of a rendered configuration, which follows from its content.

use crate::spec::RenderedSpec;
use ring::digest::{SHA256, digest};
use serde::Serialize;
use std::fmt::Write;

/// How many hexadecimal digits of the digest are in a name: as many as machine-config-operator has.
const DIGITS: usize = 32;

/// The name of a configuration that is rendered for a pool: `rendered-<pool>-` and the first 32 hexadecimal digits of the
/// SHA-256 of the spec as canonical JSON (RFC 8785).
///
/// # Guarantees
///
/// * It depends on nothing but the name of the pool and the content of the spec, in any release: equal specs have equal names
///   on a laptop and in a cluster.
/// * It is not the name that machine-config-operator gives, which hashes YAML with MD5.
pub fn name(pool: &str, spec: &RenderedSpec) -> String {
    format!("rendered-{pool}-{}", hexadecimal(spec, DIGITS / 2))
}

/// The first bytes of the SHA-256 of a value as canonical JSON (RFC 8785), as hexadecimal digits.
pub(crate) fn hexadecimal(value: &impl Serialize, bytes: usize) -> String {
    // Only maps with other keys than strings, and numbers that are none, are not to be written. A spec has neither.
    let text = serde_json_canonicalizer::to_vec(value).unwrap_or_default();
    let mut digits = String::new();
    for byte in &digest(&SHA256, &text).as_ref()[..bytes] {
        // Writing to a string does not fail.
        write!(digits, "{byte:02x}").ok();
    }
    digits
}
