//! What commands print: tables, ages, colours, JSON and YAML.

use std::{
    fmt,
    io::{self, IsTerminal, Write},
};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::fault::{Fault, Outcome};

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// As the default, with each object in a line of its own.
    Wide,
    Json,
    Yaml,
}

/// How urgent something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) enum State {
    /// There is nothing to wait for.
    #[default]
    Done,
    /// It goes on by itself.
    Waiting,
    /// It needs somebody.
    Blocked,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Whether texts have colours.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Colours(bool);

impl Colours {
    /// Only on a terminal that has them, and not if the environment has `NO_COLOR`.
    pub(crate) fn detect() -> Self {
        let is_off = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self(io::stdout().is_terminal() && !is_off && !is_dumb)
    }

    pub(crate) fn of(self, state: State, text: &str) -> String {
        let code = match state {
            State::Done => "32",
            State::Waiting => "33",
            State::Blocked => "31",
        };
        self.with(code, text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 && !text.is_empty() { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// The time that has passed, as kubectl prints it.
pub(crate) fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let two = |large: i64, unit: &str, small: i64, of: &str| {
        if small == 0 { format!("{large}{unit}") } else { format!("{large}{unit}{small}{of}") }
    };
    match () {
        () if seconds < -1 => "<invalid>".to_owned(),
        () if seconds < 0 => "0s".to_owned(),
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, "d", hours % 24, "h"),
        () if days < 2 * 365 => format!("{days}d"),
        () if days < 8 * 365 => two(days / 365, "y", days % 365, "d"),
        () => format!("{}y", days / 365),
    }
}

/// A duration, as ages are printed.
pub(crate) fn seconds(duration: SignedDuration) -> String {
    age(Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH.saturating_add(duration).unwrap_or(Timestamp::MAX))
}

/// A time in whole seconds, as on the wire of the API server.
pub(crate) fn whole(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// A text with its times in whole seconds.
pub(crate) fn rounded(text: &str) -> String {
    let (mut done, mut rest) = (String::new(), text);
    while let Some((head, tail)) = rest.split_once('.') {
        let end = tail.trim_start_matches(|letter: char| letter.is_ascii_digit());
        let is_time = end.len() < tail.len() && end.starts_with('Z') && ends_with_clock(head);
        done.push_str(head);
        if !is_time {
            done.push('.');
        }
        rest = if is_time { end } else { tail };
    }
    done + rest
}

/// What stands for a part of a text that differs among equal ones.
const ELLIPSIS: &str = "…";

/// A text without its times, which are in whole seconds.
pub(crate) fn timeless(text: &str) -> String {
    let masked = |word: &str| {
        let core = word.trim_matches(|letter: char| !letter.is_alphanumeric());
        let is_time = core.strip_suffix('Z').is_some_and(ends_with_clock);
        if is_time { word.replace(core, ELLIPSIS) } else { word.to_owned() }
    };
    text.split(' ').map(masked).collect::<Vec<_>>().join(" ")
}

/// A text without a name, where that stands by itself.
pub(crate) fn nameless(text: &str, name: &str) -> String {
    if name.is_empty() {
        return text.to_owned();
    }
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '-';
    let (mut done, mut rest) = (String::new(), text);
    while let Some((head, tail)) = rest.split_once(name) {
        done.push_str(head);
        let is_whole = !done.ends_with(is_part) && !tail.starts_with(is_part);
        done.push_str(if is_whole { ELLIPSIS } else { name });
        rest = tail;
    }
    done + rest
}

/// Whether a text ends with hours, minutes and seconds.
fn ends_with_clock(text: &str) -> bool {
    let end: Vec<_> = text.chars().rev().take(8).collect();
    let is_part =
        |(at, letter): (usize, &char)| if at == 2 || at == 5 { *letter == ':' } else { letter.is_ascii_digit() };
    end.len() == 8 && end.iter().enumerate().all(is_part)
}

/// A number with its noun.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Columns as wide as they have to be; the last one is never padded. Colours do not count.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| shown(cell)).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| {
            let padding = width.saturating_sub(shown(cell));
            format!("{cell}{}", " ".repeat(padding))
        });
        cells.collect::<Vec<_>>().join("   ").trim_end().to_owned()
    };
    rows.iter().map(|row| line(row) + "\n").collect()
}

/// How many columns a text takes on a terminal, without the codes of colours.
fn shown(text: &str) -> usize {
    let (mut count, mut in_code) = (0, false);
    for letter in text.chars() {
        match letter {
            '\u{1b}' => in_code = true,
            'm' if in_code => in_code = false,
            _ if in_code => {}
            _ => count += 1,
        }
    }
    count
}

/// A value in one of the forms for programs.
pub(crate) fn document(value: &impl Serialize, format: Format) -> Outcome<String> {
    let failed = |error: &dyn fmt::Display| Fault::Message(format!("failed to write the output: {error}"));
    if format == Format::Yaml {
        return serde_saphyr::to_string(value).map_err(|error| failed(&error));
    }
    let text = serde_json::to_string_pretty(value).map_err(|error| failed(&error))?;
    Ok(text + "\n")
}

/// Prints. A reader that has closed the pipe has seen enough.
pub(crate) fn print(text: &str) {
    let mut out = io::stdout().lock();
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_kubectls() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let table = [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (599, "9m59s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_700, "3h15m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (94_694_400, "3y1d"),
        ];
        for (seconds, expected) in table {
            assert_eq!(age(at(0), at(seconds)), expected, "{seconds}");
        }
    }

    #[test]
    fn times_have_whole_seconds() {
        let text = "no VM 1.5 until 2026-06-01T21:56:37.982460541Z, or 21:56:37.5Z. At 10.0.0.1:80:90.5Z";
        assert_eq!(rounded(text), "no VM 1.5 until 2026-06-01T21:56:37Z, or 21:56:37Z. At 10.0.0.1:80:90.5Z");
        assert_eq!((rounded(""), rounded("a.")), (String::new(), "a.".to_owned()));
        assert_eq!(whole("2026-06-01T21:56:37.9Z".parse().unwrap()).to_string(), "2026-06-01T21:56:37Z");
    }

    #[test]
    fn texts_of_equal_objects_are_equal() {
        assert_eq!(timeless("it fails at 2026-06-01T12:25:00Z; or (12:25:00Z)."), "it fails at …; or (…).");
        assert_eq!(timeless("zone 12:25 of Z"), "zone 12:25 of Z");
        assert_eq!(nameless("node a-1 of a, b/a: a1, aa", "a"), "node a-1 of …, b/…: a1, aa");
        assert_eq!(nameless("node a", ""), "node a");
    }

    #[test]
    fn colours_take_no_room() {
        let red = Colours(true).of(State::Blocked, "abc");
        let rows = [vec![red.clone(), "x".to_owned()], vec!["ab".to_owned(), "y".to_owned()]];
        assert_eq!(table(&rows), format!("{red}   x\nab    y\n"));
        assert_eq!(Colours(false).of(State::Blocked, "abc"), "abc");
    }
}
