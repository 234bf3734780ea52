//! The size of a JSON text, without decoding it.
//!
//! The memory of a decoded object depends on the number of its values more than on the bytes of the text: 7 bytes can be an
//! entry of a map that takes 200.

/// The number of values of a JSON text, and its depth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JsonSize {
    /// An upper bound of the number of values.
    pub(crate) values: usize,
    pub(crate) depth: usize,
}

impl JsonSize {
    /// Counts in one pass, without recursion. The result is meaningless for a text that is not JSON.
    pub(crate) fn of(text: &[u8]) -> Self {
        let (mut size, mut depth) = (Self { values: 1, depth: 0 }, 0_usize);
        let mut bytes = text.iter();
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' => skip_string(&mut bytes),
                b',' => size.values += 1,
                b'{' | b'[' => {
                    size.values += 1;
                    depth += 1;
                    size.depth = size.depth.max(depth);
                }
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        size
    }
}

fn skip_string(bytes: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_depth_are_counted() {
        for (text, values, depth) in [
            ("", 1, 0),
            ("7", 1, 0),
            ("[]", 2, 1),
            (r#"{"a":1,"b":[{},{}]}"#, 7, 3),
            (r#"{"a":"[[,\",{{"}"#, 2, 1),
            (r#"{"a":"\\","b":"\\\""}"#, 3, 1),
            ("]]]}{", 2, 1),
        ] {
            assert_eq!(JsonSize::of(text.as_bytes()), JsonSize { values, depth }, "{text}");
        }
    }

    #[test]
    fn no_text_is_too_deep_for_it() {
        assert_eq!(JsonSize::of("[".repeat(1_000_000).as_bytes()).depth, 1_000_000);
    }
}
