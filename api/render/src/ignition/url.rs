//! Which URLs Ignition takes. It parses them with Go's `net/url`, which takes more than RFC 3986 and less than browsers, so
//! that no crate has the same opinion.

use super::data_url::{self, escapes, is_escaped_well};
use percent_encoding::percent_decode_str;
use std::net::Ipv6Addr;

/// The parts of a URL that decide.
#[derive(Debug, PartialEq)]
pub(super) struct Url<'a> {
    /// The scheme in lower case. Empty if there is none.
    pub(super) scheme: String,
    /// What follows the scheme if it does not begin with a slash.
    opaque: &'a str,
    query: &'a str,
}

/// Why Ignition refuses the source of a resource. None if it takes it. `minor` is the version of the config.
pub(super) fn error(source: &str, minor: usize) -> Option<&'static str> {
    const UNPARSABLE: &str = "must be a URL";
    const VERSION_ID: &str = "must not have an empty versionId";
    let Some(url) = parse(source) else { return Some(UNPARSABLE) };
    match url.scheme.as_str() {
        "http" | "https" | "tftp" => None,
        "gs" if minor >= 2 => None,
        "s3" => url.has_empty_version_id().then_some(VERSION_ID),
        "arn" if minor >= 4 => {
            if is_s3_arn(url.opaque) {
                url.has_empty_version_id().then_some(VERSION_ID)
            } else {
                Some("must be the ARN of an S3 object")
            }
        }
        "data" => data_url::error(source),
        _ => Some("must have the scheme data, http, https, tftp, s3, gs (since 3.2.0) or arn (since 3.4.0)"),
    }
}

/// Go's `url.Parse`.
pub(super) fn parse(text: &str) -> Option<Url<'_>> {
    let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
    if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) || !is_escaped_well(fragment) {
        return None;
    }
    let (scheme, rest) = split_scheme(text)?;
    let (rest, query) = match rest.strip_suffix('?') {
        Some(rest) if !rest.contains('?') => (rest, ""),
        _ => rest.split_once('?').unwrap_or((rest, "")),
    };
    let url = |opaque| Url { scheme: scheme.to_ascii_lowercase(), opaque, query };
    if !rest.starts_with('/') {
        if !scheme.is_empty() {
            return Some(url(rest));
        }
        // "*" is a path of its own.
        let first = rest.split('/').next().unwrap_or_default();
        return (!first.contains(':') && is_escaped_well(rest)).then(|| url(""));
    }
    let path = match rest.strip_prefix("//") {
        Some(after) if !scheme.is_empty() || !rest.starts_with("///") => {
            let (authority, path) = after.split_at(after.find('/').unwrap_or(after.len()));
            if !is_authority(authority) {
                return None;
            }
            path
        }
        _ => rest,
    };
    is_escaped_well(path).then(|| url(""))
}

/// Splits off the scheme. None if there is a colon and nothing before it.
fn split_scheme(text: &str) -> Option<(&str, &str)> {
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if at > 0 => {}
            b':' => return (at > 0).then(|| (&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    Some(("", text))
}

fn is_authority(authority: &str) -> bool {
    match authority.rsplit_once('@') {
        None => is_host(authority),
        Some((user, host)) => {
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
            is_host(host) && user.chars().all(is_allowed) && is_escaped_well(user)
        }
    }
}

fn is_host(host: &str) -> bool {
    match host.rfind('[') {
        Some(0) => host.rsplit_once(']').is_some_and(|(address, port)| is_ip_literal(&address[1..]) && is_port(port)),
        Some(_) => false,
        // Go 1.26 is stricter about colons, except in programs such as Ignition 2.26, whose module is older.
        None => host.rfind(':').is_none_or(|colon| is_port(&host[colon..])) && is_host_text(host),
    }
}

/// Whether a text is empty, or a colon and digits.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether Go takes a text for an IPv6 address, with a zone perhaps.
fn is_ip_literal(text: &str) -> bool {
    let (address, zone) = match text.split_once("%25") {
        Some((address, zone)) => (address, Some(zone)),
        None => (text, None),
    };
    let is_zone = |zone: &str| {
        let host_byte = |byte: u8| byte >= 0x80 || byte == b'%' || byte == b' ' || is_host_byte(byte);
        let plain = zone.bytes().all(|byte| byte >= 0x80 || byte == b'%' || is_host_byte(byte));
        !zone.is_empty() && plain && escapes(zone).all(|byte| byte.is_some_and(host_byte))
    };
    address.parse::<Ipv6Addr>().is_ok() && zone.is_none_or(is_zone)
}

/// Whether a host has only bytes that a host may have. Only bytes above ASCII may be escaped, and the percent sign.
fn is_host_text(host: &str) -> bool {
    host.bytes().all(|byte| byte >= 0x80 || byte == b'%' || is_host_byte(byte))
        && escapes(host).all(|byte| byte.is_some_and(|byte| byte >= 0x80 || byte == b'%'))
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!\"$&'()*+,-.:;<=>[]_~".contains(&byte)
}

impl Url<'_> {
    /// Whether the first `versionId` of the query is empty.
    fn has_empty_version_id(&self) -> bool {
        let pairs = self.query.split('&').filter(|pair| !pair.contains(';') && is_escaped_well(pair));
        let mut values = pairs.filter_map(|pair| match pair.split_once('=').unwrap_or((pair, "")) {
            (key, value) if percent_decode_str(key).eq(*b"versionId") => Some(value),
            _ => None,
        });
        values.next().is_some_and(str::is_empty)
    }
}

/// Whether what follows `arn:` names an object of S3.
fn is_s3_arn(rest: &str) -> bool {
    let mut sections = rest.splitn(5, ':');
    let (service, resource) = (sections.nth(1), sections.nth(2));
    let slashes = rest.matches('/').count();
    service == Some("s3")
        && resource.is_some_and(|resource| slashes >= if resource.starts_with("accesspoint/") { 2 } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_depend_on_the_version() {
        let taken = |source: &str| (0..6).filter(|minor| error(source, *minor).is_none()).collect::<Vec<_>>();
        assert_eq!(taken("gs://bucket/object"), [2, 3, 4, 5]);
        assert_eq!(taken("arn:aws:s3:::bucket/object"), [4, 5]);
        assert_eq!(taken("tftp://host/a"), [0, 1, 2, 3, 4, 5]);
        assert_eq!(taken("ftp://host/a"), [] as [usize; 0]);
    }

    #[test]
    fn objects_of_s3_have_a_version_or_none() {
        for (source, taken) in [
            ("s3://bucket/key", true),
            ("s3://bucket/key?versionId=7", true),
            ("s3://bucket/key?versionId=", false),
            ("s3://bucket/key?version%49d=", false),
            ("arn:aws:s3:::bucket", false),
            ("arn:aws:ec2:::bucket/object", false),
            ("arn:aws:s3:r:a:accesspoint/point", false),
            ("arn:aws:s3:r:a:accesspoint/point/object", true),
            ("arn:aws:s3:::bucket/object?versionId=", false),
        ] {
            assert_eq!(error(source, 5).is_none(), taken, "{source}");
        }
    }

    #[test]
    fn hosts_are_those_of_go() {
        for (source, taken) in [
            ("http://a b/", false),
            ("http://a:80/", true),
            ("http://a:b/", false),
            ("http://[::1]:80/x", true),
            ("http://[::1%25eth0]/x", true),
            ("http://[1.2.3.4]/x", false),
            ("http://user:word@host/", true),
            ("http://us er@host/", false),
            ("http://h%41/", false),
            ("http://h%C3%A4/", true),
            ("http://host/%zz", false),
            (":", false),
        ] {
            assert_eq!(error(source, 5).is_none(), taken, "{source}");
        }
    }
}
