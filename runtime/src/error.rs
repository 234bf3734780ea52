//! Formats errors for people.

use std::error::Error;

/// An error with its causes, outermost first, separated by `": "`. A cause that the text contains already is left out.
#[must_use]
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = next.to_string();
        if !text.contains(&next_text) {
            text.push_str(": ");
            text.push_str(&next_text);
        }
        cause = next.source();
    }
    text
}

/// The same in one line.
#[must_use]
pub fn one_line(error: &dyn Error) -> String {
    with_causes(error).replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Nested {
        text: &'static str,
        source: Option<Box<Nested>>,
    }

    #[test]
    fn causes_follow_the_error_and_are_said_once() {
        let nest = |text, source| Nested { text, source: Some(Box::new(source)) };
        let refused = || Nested { text: "refused", source: None };
        assert_eq!(
            with_causes(&nest("failed to list", nest("no connection", refused()))),
            "failed to list: no connection: refused"
        );
        assert_eq!(with_causes(&nest("failed to list: refused", refused())), "failed to list: refused");
    }
}
