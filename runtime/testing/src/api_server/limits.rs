//! The maximum size and depth of a body.

use serde_json::Value;

use super::refusal;
use super::store::Refused;

/// The maximum size of a body, `--max-request-body-bytes` of a real server.
const BODY: usize = 3 * 1024 * 1024;
/// The maximum size of a request to etcd (`--max-request-bytes`).
const STORED: usize = 1_572_864;
/// The maximum size of a message of etcd's client.
const SENT: usize = 2 * 1024 * 1024;
/// The maximum depth of JSON. A real server allows ten times that, which needs a larger stack.
const DEPTH: usize = 1_000;

/// The size of objects is checked only if their JSON is longer than this.
pub(super) const SMALL: usize = 512 * 1024;

/// Refuses a body that is too large or too deep.
pub(super) fn check_body(body: &[u8]) -> Result<(), Refused> {
    if body.len() > BODY {
        return Err(refusal::too_large(BODY));
    }
    if depth(body) > DEPTH {
        return Err(refusal::too_deep());
    }
    Ok(())
}

/// Refuses an object that is too large to be stored.
pub(super) fn check_stored(object: &Value) -> Result<(), Refused> {
    let bytes = object.to_string().len();
    match bytes {
        SENT.. => {
            let message = format!(
                "rpc error: code = ResourceExhausted desc = trying to send message larger than max ({bytes} vs. {SENT})"
            );
            Err(refusal::new(500, "", &message))
        }
        STORED.. => Err(refusal::new(500, "", "etcdserver: request is too large")),
        _ => Ok(()),
    }
}

fn depth(body: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_text, mut escaped) = (0_usize, 0, false, false);
    for byte in body {
        match (in_text, escaped, byte) {
            (true, true, _) => escaped = false,
            (true, false, b'\\') => escaped = true,
            (_, _, b'"') => in_text = !in_text,
            (false, _, b'{' | b'[') => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            (false, _, b'}' | b']') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_that_of_brackets_outside_of_texts() {
        assert_eq!(depth(br#"{"a": [{"[{\"[": "]"}], "b": {}}"#), 3);
        assert_eq!(depth(b"1"), 0);
    }
}
