//! How much there is in a text of JSON, counted without reading it into anything.
//!
//! What an object costs in memory follows from the number of its values far more than from its bytes: a text of 7 bytes
//! can be an entry of a map that takes 200.

/// The values and the depth of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    /// No fewer than the values that a reader of the text would find.
    pub(crate) values: usize,
    /// How many objects and lists stand inside one another.
    pub(crate) depth: usize,
}

impl Census {
    /// Counts in one pass, without recursion. Of a text that is not JSON, the result says nothing.
    pub(crate) fn of(text: &[u8]) -> Self {
        let (mut census, mut depth) = (Self { values: 1, depth: 0 }, 0_usize);
        let mut bytes = text.iter();
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' => skip_string(&mut bytes),
                b',' => census.values += 1,
                b'{' | b'[' => {
                    census.values += 1;
                    depth += 1;
                    census.depth = census.depth.max(depth);
                }
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        census
    }
}

/// Goes on behind the end of the string that has begun.
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
            assert_eq!(Census::of(text.as_bytes()), Census { values, depth }, "{text}");
        }
    }

    #[test]
    fn no_text_is_too_deep_for_it() {
        assert_eq!(Census::of("[".repeat(1_000_000).as_bytes()).depth, 1_000_000);
    }
}
