//! Texts of bounded length, for statuses.
//!
//! What a provider, a kubelet or an API server says may be as long as they like, and goes into objects that have to fit
//! into etcd, and into memory once for each machine.

/// The most bytes of a text in a status: what an Event's message may have. The log has all of it.
pub(crate) const LONGEST: usize = 1_024;

/// The text, or its beginning and how long it was, in [`LONGEST`] bytes. What has been clipped stays as it is.
pub(crate) fn clip(text: impl Into<String>) -> String {
    clip_to(LONGEST, text)
}

/// The same in so many bytes, a hundred at least: for what is a part of another text.
pub(crate) fn clip_to(most: usize, text: impl Into<String>) -> String {
    let mut text = text.into();
    if text.len() <= most {
        return text;
    }
    let mark = format!("… ({} bytes in all)", text.len());
    let most = most.saturating_sub(mark.len());
    let end = (0..=most).rev().find(|&end| text.is_char_boundary(end)).unwrap_or_default();
    text.truncate(end);
    text.push_str(&mark);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters_and_says_so() {
        let fits = "x".repeat(LONGEST);
        assert_eq!(clip(fits.clone()), fits);
        for long in ["x".repeat(30_000), "ü".repeat(15_000), format!("x{}", "🦀".repeat(7_500))] {
            let clipped = clip(long.clone());
            assert!((LONGEST - 4..=LONGEST).contains(&clipped.len()), "{}", clipped.len());
            let (head, mark) = clipped.split_once('…').unwrap();
            assert!(long.starts_with(head));
            assert_eq!(mark, format!(" ({} bytes in all)", long.len()));
            assert_eq!(clip(clipped.clone()), clipped);
        }
    }
}
