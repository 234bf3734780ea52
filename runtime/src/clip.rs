//! Texts of bounded length, for statuses, events and logs: a text from another program may have any length.

/// Limit of a text in a status, in bytes: the same as for an Event's message.
pub const LONGEST: usize = 1_024;

/// Clips the text to [`LONGEST`] bytes, see [`clip_to`].
pub fn clip(text: impl Into<String>) -> String {
    clip_to(LONGEST, text)
}

/// Clips the text to `most` bytes, at least a hundred. Its beginning, which names the subject, and its end, which has the
/// cause, remain, with the original length between them. Clipping twice changes nothing.
pub fn clip_to(most: usize, text: impl Into<String>) -> String {
    let text = text.into();
    if text.len() <= most {
        return text;
    }
    let mark = format!("… ({} bytes in all) …", text.len());
    let room = most.saturating_sub(mark.len());
    let (head, tail) = (text.floor_char_boundary(room / 2), text.ceil_char_boundary(text.len() - room.div_ceil(2)));
    [text.get(..head).unwrap_or_default(), &mark, text.get(tail..).unwrap_or_default()].concat()
}

/// The first `count` texts, each clipped to `most` bytes, and the number of the others.
pub fn clip_list(count: usize, most: usize, texts: impl ExactSizeIterator<Item = String>, separator: &str) -> String {
    first_of(count, texts.map(|text| clip_to(most, text)), separator, &format!("{separator}and"))
}

/// The first `count` texts, and the number of the others.
pub fn few(count: usize, texts: impl ExactSizeIterator<Item = impl Into<String>>) -> String {
    first_of(count, texts.map(Into::into), ", ", " and")
}

fn first_of(count: usize, texts: impl ExactSizeIterator<Item = String>, separator: &str, and: &str) -> String {
    let more = texts.len().saturating_sub(count);
    let text = texts.take(count).collect::<Vec<_>>().join(separator);
    if more == 0 { text } else { format!("{text}{and} {more} more") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_list_the_first_texts_remain_and_the_rest_is_counted() {
        let list = |texts: &[&str]| clip_list(2, 100, texts.iter().map(|text| (*text).to_owned()), "; ");
        assert_eq!(list(&[]), "");
        assert_eq!(list(&["a", "b"]), "a; b");
        assert_eq!(list(&["a", "b", "c", "d"]), "a; b; and 2 more");
        assert_eq!(list(&[&"x".repeat(200)]).len(), 100);
    }

    #[test]
    fn of_names_the_first_are_reported_and_the_rest_is_counted() {
        assert_eq!(few(2, ["a", "b"].into_iter()), "a, b");
        assert_eq!(few(2, ["a", "b", "c"].into_iter()), "a, b and 1 more");
    }

    #[test]
    fn a_text_is_cut_in_the_middle_between_characters_and_says_so() {
        let fits = "x".repeat(LONGEST);
        assert_eq!(clip(fits.clone()), fits);
        for long in ["xy".repeat(15_000), "ü".repeat(15_000), format!("x{}y", "🦀".repeat(7_500))] {
            let clipped = clip(long.clone());
            assert!((LONGEST - 7..=LONGEST).contains(&clipped.len()), "{}", clipped.len());
            let (head, tail) = clipped.split_once(&format!("… ({} bytes in all) …", long.len())).unwrap();
            assert!(long.starts_with(head) && long.ends_with(tail));
            assert!(head.len().abs_diff(tail.len()) < 8, "{} {}", head.len(), tail.len());
            assert_eq!(clip(clipped.clone()), clipped);
        }
    }

    #[test]
    fn what_failed_and_why_both_remain() {
        let clipped = clip(format!("failed to patch Node a: {}: year is out of range", "details ".repeat(1_000)));
        assert!(clipped.starts_with("failed to patch Node a: details"), "{clipped}");
        assert!(clipped.ends_with("details : year is out of range"), "{clipped}");
    }
}
