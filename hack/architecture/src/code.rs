//! Source text without what imports nothing.

/// The code of a file with comments, strings and the modules and imports of tests blanked out. Each line keeps its number.
pub fn product_code(text: &str) -> String {
    without_tests(&without_text(text))
}

/// Blanks out comments, strings and characters.
fn without_text(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = text_length(rest, code.chars().next_back());
        if skipped == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            code.push(' ');
            code.extend(rest[..skipped].chars().filter(|skipped| *skipped == '\n'));
            rest = &rest[skipped..];
        }
    }
    code
}

/// How many bytes at the start are a comment, a string or a character; `before` is the character before them.
fn text_length(rest: &str, before: Option<char>) -> usize {
    let until = |end: &str, from: usize| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return until("*/", 2);
    }
    let in_word = before.is_some_and(|before| before.is_alphanumeric() || before == '_');
    let raw = rest.trim_start_matches(['b', 'c']);
    let hashes = raw.strip_prefix('r').map(|raw| raw.len() - raw.trim_start_matches('#').len());
    if let Some(hashes) = hashes.filter(|hashes| !in_word && raw[1 + hashes..].starts_with('"')) {
        return until(&format!("\"{}", "#".repeat(hashes)), rest.len() - raw.len() + hashes + 2);
    }
    match rest.as_bytes() {
        [b'"', ..] => 1 + quoted(&rest[1..], '"'),
        [b'\'', b'\\', ..] => 1 + quoted(&rest[1..], '\''),
        // A lifetime has no second quote.
        [b'\'', ..] => rest.chars().nth(2).filter(|third| *third == '\'').map_or(0, |_| until("'", 1)),
        _ => 0,
    }
}

/// The length up to and with the closing quote.
fn quoted(inner: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, next) in inner.char_indices() {
        match next {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            next if next == quote => return at + next.len_utf8(),
            _ => {}
        }
    }
    inner.len()
}

/// Drops each item behind `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find("#[cfg(test)]") {
        kept.push_str(&rest[..at]);
        let (item, behind) = rest[at..].split_at(item_length(&rest[at..]));
        kept.extend(item.chars().filter(|next| *next == '\n'));
        rest = behind;
    }
    kept.push_str(rest);
    kept
}

/// The length of an item: up to its semicolon, or to the brace that closes its first one.
fn item_length(item: &str) -> usize {
    let mut depth = 0_usize;
    for (at, next) in item.char_indices() {
        match next {
            '{' => depth += 1,
            '}' if depth <= 1 && !item[at + 1..].starts_with(';') => return at + 1,
            '}' => depth = depth.saturating_sub(1),
            ';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    item.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_strings_and_tests_are_no_code() {
        let text = r##"
            use a::b; // use c::d;
            const TEXT: &str = "use e::f; \" use g::h;";
            const RAW: &str = r#"use i::j; " use k::l;"#;
            fn life<'a>(x: &'a str) -> char { '"' }
            #[cfg(test)]
            use m::n;
            #[cfg(test)]
            mod tests { fn inner() { use o::p; } }
            use q::r;
        "##;
        let code = product_code(text);
        let words = code.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("use a::b;") && words.contains("use q::r;") && words.contains("fn life<'a>"), "{words}");
        for gone in ["c::d", "e::f", "g::h", "i::j", "k::l", "m::n", "o::p"] {
            assert!(!words.contains(gone), "{gone} is in {words}");
        }
    }
}
