//! The two texts in which metrics are served.
//!
//! The library writes `OpenMetrics`. Who does not ask for that gets the text format of Prometheus, which differs in the names of
//! counters' families and has neither exemplars nor an end marker: a parser of it refuses the whole scrape for an exemplar.

use std::fmt;

/// A format of [`Metrics::encode_as`](super::Metrics::encode_as).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format 0.0.4, which every client reads.
    #[default]
    Text,
    /// `OpenMetrics` 1.0, with exemplars.
    OpenMetrics,
}

impl Format {
    /// The format that a client prefers by its `Accept` header, as Prometheus' client for Go chooses it: `OpenMetrics` only for
    /// clients that name it.
    pub fn preferred(accept: &str) -> Self {
        let (mut best, mut chosen) = (0.0, Self::default());
        for (format, quality) in accept.split(',').filter_map(clause) {
            if quality > best {
                (best, chosen) = (quality, format);
            }
        }
        chosen
    }

    /// The `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A format of an `Accept` header, and how much the client wants it. `None` for one that is not served.
fn clause(clause: &str) -> Option<(Format, f64)> {
    let mut parts = clause.split(';').map(str::trim);
    let kind = parts.next()?;
    let parameters: Vec<_> = parts.filter_map(|parameter| parameter.split_once('=')).collect();
    let value = |key: &str| {
        let found = parameters.iter().find(|(name, _)| name.trim().eq_ignore_ascii_case(key));
        found.map(|(_, value)| value.trim().trim_matches('"'))
    };
    let quality = value("q").map_or(1.0, |quality| quality.parse().unwrap_or(0.0));
    match (kind.to_ascii_lowercase().as_str(), value("version")) {
        ("application/openmetrics-text", None | Some("0.0.1" | "1.0.0")) => Some((Format::OpenMetrics, quality)),
        ("text/plain", None | Some("0.0.4")) => Some((Format::Text, quality)),
        _ => None,
    }
}

/// Turns `OpenMetrics` into the text format, line by line as it is written, so that the text is in memory once.
#[derive(Debug)]
pub(super) struct TextWriter<'a> {
    text: &'a mut String,
    /// Where the current line begins.
    line: usize,
    /// Where the `HELP` of the current family begins: the name in it changes with the type, which follows.
    help: usize,
    is_histogram: bool,
}

const HELP: &str = "# HELP ";
const TYPE: &str = "# TYPE ";
/// A quote in the value of a label is escaped, so nothing but an exemplar has this.
const EXEMPLAR: &str = " # {trace_id=\"";

impl<'a> TextWriter<'a> {
    pub(super) fn new(text: &'a mut String) -> Self {
        let line = text.len();
        Self { text, line, help: line, is_histogram: false }
    }

    fn end_line(&mut self) {
        let line = &self.text[self.line..];
        if line.starts_with(HELP) {
            self.help = self.line;
        } else if line.starts_with(TYPE) {
            self.end_type();
        } else if line.starts_with("# ") {
            // `UNIT` and `EOF` are comments there: they would do no harm, and no good.
            self.text.truncate(self.line);
        } else if self.is_histogram
            && let Some(exemplar) = line.rfind(EXEMPLAR)
        {
            self.text.truncate(self.line + exemplar);
            self.text.push('\n');
        }
        self.line = self.text.len();
    }

    /// A family of counters has the name of its series there, and the type `unknown` another name.
    fn end_type(&mut self) {
        let Some((name, kind)) = self.text[self.line + TYPE.len()..].trim_end().rsplit_once(' ') else { return };
        let (length, is_counter, is_unknown) = (name.len(), kind == "counter", kind == "unknown");
        self.is_histogram = kind == "histogram";
        let end_of_name = |line: usize| line + TYPE.len() + length;
        if is_unknown {
            self.text.truncate(end_of_name(self.line));
            self.text.push_str(" untyped\n");
        } else if is_counter {
            // The later place first: the earlier one moves it.
            self.text.insert_str(end_of_name(self.line), "_total");
            self.text.insert_str(end_of_name(self.help), "_total");
        }
    }
}

impl fmt::Write for TextWriter<'_> {
    fn write_str(&mut self, written: &str) -> fmt::Result {
        for piece in written.split_inclusive('\n') {
            self.text.push_str(piece);
            if piece.ends_with('\n') {
                self.end_line();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    #[test]
    fn a_client_gets_openmetrics_only_if_it_asks_for_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for (accept, format) in [
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/html, */*;q=0.8", Format::Text),
            (prometheus, Format::OpenMetrics),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("Application/OpenMetrics-Text; Version=\"1.0.0\"", Format::OpenMetrics),
            ("application/openmetrics-text;q=0.2, text/plain;q=0.5", Format::Text),
            ("application/openmetrics-text;q=0", Format::Text),
            ("application/openmetrics-text;version=2.0.0", Format::Text),
            ("application/vnd.google.protobuf;q=0.9,application/openmetrics-text;q=0.1", Format::OpenMetrics),
        ] {
            assert_eq!(Format::preferred(accept), format, "{accept}");
        }
    }

    #[test]
    fn the_text_format_has_other_names_of_families_and_no_exemplars() {
        let openmetrics = "# HELP a A.\n# TYPE a counter\na_total 1\n\
            # HELP b_seconds B.\n# TYPE b_seconds histogram\n# UNIT b_seconds seconds\nb_seconds_sum 0.5\n\
            b_seconds_bucket{le=\"1.0\"} 1 # {trace_id=\"0f\",span_id=\"01\"} 0.5 1700000000.0\n\
            b_seconds_bucket{le=\"+Inf\",x=\" # {trace_id=\\\"1\"} 1\n\
            # HELP c C.\n# TYPE c unknown\nc{x=\" # {trace_id=\"} 7\n# HELP d D.\n# TYPE d gauge\nd 2\n# EOF\n";
        let expected = "# HELP a_total A.\n# TYPE a_total counter\na_total 1\n\
            # HELP b_seconds B.\n# TYPE b_seconds histogram\nb_seconds_sum 0.5\nb_seconds_bucket{le=\"1.0\"} 1\n\
            b_seconds_bucket{le=\"+Inf\",x=\" # {trace_id=\\\"1\"} 1\n\
            # HELP c C.\n# TYPE c untyped\nc{x=\" # {trace_id=\"} 7\n# HELP d D.\n# TYPE d gauge\nd 2\n";
        for size in [1, 7, openmetrics.len()] {
            let mut text = String::new();
            let mut writer = TextWriter::new(&mut text);
            for piece in openmetrics.as_bytes().chunks(size) {
                writer.write_str(str::from_utf8(piece).unwrap()).unwrap();
            }
            assert_eq!(text, expected, "in pieces of {size}");
        }
    }
}
