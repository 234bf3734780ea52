//! Which `data:` URLs Ignition takes: those that its library `dataurl` decodes, a state machine after RFC 2397.

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{GeneralPurpose, GeneralPurposeConfig},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Why Ignition refuses a URL that begins with `data:`. None if it takes it.
pub(super) fn error(url: &str) -> Option<&'static str> {
    // The scheme may have any case, and the library knows only the lower one.
    let Some(rest) = url.strip_prefix("data:") else { return Some("must begin with data: in lower case") };
    read(rest).err()
}

/// What a `data:` URL has in it. None if Ignition would not take it.
pub(crate) fn decode(url: &str) -> Option<Vec<u8>> {
    let (data, is_base64) = parameters(media_type(url.strip_prefix("data:")?).ok()?).ok()?;
    if !is_base64 {
        percent_encoded(data).ok()?;
        return Some(percent_decode_str(data).collect());
    }
    base64(data).ok()?;
    let digits: Vec<u8> = data.bytes().filter(|byte| *byte != b'\n').collect();
    // As Go's decoder, which does not mind the unused bits of the last digit.
    let config = GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true);
    GeneralPurpose::new(&STANDARD, config).decode(digits).ok()
}

/// What its library `dataurl` does not escape besides letters and digits.
const ESCAPED: AsciiSet = NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'!')
    .remove(b'~')
    .remove(b'*')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')');

/// A text as a `data:` URL, byte for byte as machine-config-operator makes one of an `inline`: a daemon compares the URLs.
pub(crate) fn of_text(text: &str) -> String {
    format!("data:,{}", utf8_percent_encode(text, &ESCAPED))
}

/// Bytes in base64, for a `data:` URL.
pub(crate) fn encode(bytes: &[u8]) -> String {
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new()).encode(bytes)
}

type Checked<T> = Result<T, &'static str>;

/// Reads `[<media type>][;<attribute>=<value>]…[;base64],<data>`.
fn read(rest: &str) -> Checked<()> {
    let rest = media_type(rest)?;
    let (data, is_base64) = parameters(rest)?;
    if is_base64 { base64(data) } else { percent_encoded(data) }
}

/// Skips the media type. What is left begins with a comma or a semicolon.
fn media_type(rest: &str) -> Checked<&str> {
    const INVALID: &str = "must have a media type such as text/plain, or none";
    if rest.starts_with([',', ';']) {
        return Ok(rest);
    }
    let (main, after) = rest.split_once('/').ok_or("must have a comma before its data")?;
    let is_token_text = main.chars().all(is_token);
    let is_extension = main.starts_with("x-") || main.starts_with("X-");
    let known = ["text", "image", "audio", "video", "application", "message", "multipart"];
    if !is_token_text || !(is_extension || known.iter().any(|known| main.starts_with(known))) {
        return Err(INVALID);
    }
    let end = after.find([',', ';']).ok_or("must have a comma before its data")?;
    if after[..end].chars().all(is_token) { Ok(&after[end..]) } else { Err(INVALID) }
}

/// Reads the parameters. Returns the data, and whether it is in base64.
fn parameters(mut rest: &str) -> Checked<(&str, bool)> {
    const INVALID: &str = "must have parameters of the form ;attribute=value, or ;base64 as the last one";
    loop {
        if let Some(data) = rest.strip_prefix(',') {
            return Ok((data, false));
        }
        let parameter = rest.strip_prefix(';').ok_or(INVALID)?;
        let end = parameter.find(|c| !is_token(c)).filter(|end| *end > 0).ok_or(INVALID)?;
        let (attribute, after) = parameter.split_at(end);
        if let Some(data) = after.strip_prefix(',') {
            return if attribute == "base64" { Ok((data, true)) } else { Err(INVALID) };
        }
        rest = value(after.strip_prefix('=').ok_or(INVALID)?).ok_or(INVALID)?;
    }
}

/// Skips the value of a parameter.
fn value(text: &str) -> Option<&str> {
    if let Some(quoted) = text.strip_prefix('"') {
        return quoted_value(quoted);
    }
    let end = text.find(|c| !is_token(c)).filter(|end| *end > 0)?;
    is_escaped_well(&text[..end]).then(|| &text[end..])
}

/// Skips a value in quotes, of which Go's `strconv.Unquote` must read what is inside.
fn quoted_value(text: &str) -> Option<&str> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if !c.is_ascii() => return None,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return is_unquotable(&text[..at]).then(|| &text[at + 1..]),
            _ => {}
        }
    }
    None
}

/// Whether Go reads a text as what is inside of a string in double quotes.
fn is_unquotable(text: &str) -> bool {
    let mut rest = text;
    while let Some(at) = rest.find(['\\', '\n']) {
        let mut after = rest[at + 1..].chars();
        let digits = |rest: &str, count: usize, radix: u32| {
            rest.get(..count).filter(|digits| digits.chars().all(|c| c.is_digit(radix))).map(|digits| {
                let code = u32::from_str_radix(digits, radix).unwrap_or(u32::MAX);
                (code, count)
            })
        };
        let tail = &rest[at + 1..];
        let length = match (rest.as_bytes()[at], after.next()) {
            (b'\\', Some('a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '\\' | '"')) => Some(1),
            (b'\\', Some('x')) => digits(&tail[1..], 2, 16).map(|(_, count)| count + 1),
            (b'\\', Some(letter @ ('u' | 'U'))) => {
                let count = if letter == 'u' { 4 } else { 8 };
                digits(&tail[1..], count, 16).filter(|(code, _)| char::from_u32(*code).is_some()).map(|(_, n)| n + 1)
            }
            (b'\\', Some('0'..='7')) => digits(tail, 3, 8).filter(|(code, _)| *code <= 255).map(|(_, count)| count),
            _ => None,
        };
        match length {
            Some(length) => rest = &tail[length..],
            None => return false,
        }
    }
    true
}

/// A character of a token (RFC 2045).
fn is_token(c: char) -> bool {
    c.is_ascii_graphic() && !"()<>@,;:\\\"/[]?=".contains(c)
}

fn percent_encoded(data: &str) -> Checked<()> {
    let is_plain = |c: char| c.is_ascii_graphic() && !"<>#\"{}|\\^[]`".contains(c);
    if !data.chars().all(is_plain) {
        return Err(
            "must have data that is percent-encoded or in base64: blanks, quotes and the like are to be escaped",
        );
    }
    if is_escaped_well(data) { Ok(()) } else { Err("must have two hexadecimal digits after each %") }
}

/// Whether each percent sign begins an escaped byte.
pub(super) fn is_escaped_well(text: &str) -> bool {
    escapes(text).all(|escaped| escaped.is_some())
}

/// The escaped bytes of a text. None for a percent sign that is not followed by two hexadecimal digits.
pub(super) fn escapes(text: &str) -> impl Iterator<Item = Option<u8>> {
    text.split('%').skip(1).map(|after| {
        let digits = after.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        u8::from_str_radix(digits, 16).ok()
    })
}

/// Go's standard encoding: line feeds are ignored, padding is required, the unused bits of the last digit may be anything.
fn base64(data: &str) -> Checked<()> {
    let digits: Vec<u8> = data.bytes().filter(|byte| *byte != b'\n').collect();
    let padding = digits.iter().rev().take_while(|byte| **byte == b'=').count();
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let is_valid =
        digits.len().is_multiple_of(4) && padding <= 2 && digits[..digits.len() - padding].iter().all(is_digit);
    if is_valid { Ok(()) } else { Err("must have data in base64 with its padding") }
}

#[cfg(test)]
mod tests {
    use super::{decode, encode, error};

    #[test]
    fn content_is_decoded_as_ignition_does() {
        let decoded = |url: &str| decode(url).map(|bytes| String::from_utf8(bytes).unwrap());
        for (url, text) in [
            ("data:,hello%20world", Some("hello world")),
            ("data:text/plain;charset=utf-8;base64,aGVsbG8=", Some("hello")),
            ("data:;base64,YX==", Some("a")),
            ("data:;base64,Y\nQ==", Some("a")),
            ("data:;base64,YQ", None),
            ("data:,a b", None),
            ("https://example.com", None),
        ] {
            assert_eq!(decoded(url).as_deref(), text, "{url}");
        }
        assert_eq!(decoded(&format!("data:;base64,{}", encode("üöä".as_bytes()))).as_deref(), Some("üöä"));
    }

    #[test]
    fn urls_are_taken_or_not_as_by_ignition() {
        for (url, taken) in [
            ("data:,", true),
            ("data:,hello%20world", true),
            ("data:,hello world", false),
            ("data:,a%2", false),
            ("data:text/plain,a", true),
            ("data:text/plain;charset=utf-8,a", true),
            ("data:text/plain;charset=utf-8;base64,YQ==", true),
            ("data:text/plain;charset=\"u\\\"t\",a", true),
            ("data:text/plain;charset=\"u\\q\",a", false),
            ("data:;base64,YQ==", true),
            ("data:;base64,YQ=", false),
            ("data:;base64,YQ", false),
            ("data:;base64,Y\nQ==", true),
            ("data:;base64;a=b,YQ==", false),
            ("data:foo/bar,a", false),
            ("data:x-foo/bar,a", true),
            ("data:text", false),
            ("data:text/plain", false),
            ("data:;charset=,a", false),
            ("DATA:,a", false),
        ] {
            assert_eq!(error(url).is_none(), taken, "{url}");
        }
    }
}
