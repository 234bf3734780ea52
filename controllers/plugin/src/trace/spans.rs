//! The spans of one machine as a tree with bars: what led to it, and what it led to.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::jaeger::{SERVICE, Span};
use crate::output::{age, table};

/// The width of the longest bar.
const WIDTH: i128 = 40;
/// How many spans of a trace are printed.
const MOST: usize = 300;

/// The spans about a machine, those above and those below them: of a trace of a hundred machines those of the others are left out.
pub(super) fn of_machine(machine: &str, spans: Vec<Span>) -> Vec<Span> {
    let id = |span: &Span| (span.trace_id.clone(), span.id.clone());
    let parent = |span: &Span| (span.trace_id.clone(), span.parent.clone());
    let about: BTreeSet<_> = spans.iter().filter(|span| span.machine.as_deref() == Some(machine)).map(id).collect();
    let (mut below, mut above) = (about.clone(), about);
    loop {
        let before = (below.len(), above.len());
        below.extend(spans.iter().filter(|span| below.contains(&parent(span))).map(id).collect::<Vec<_>>());
        let parents: Vec<_> = spans.iter().filter(|span| above.contains(&id(span))).map(parent).collect();
        above.extend(parents);
        if before == (below.len(), above.len()) {
            break;
        }
    }
    spans.into_iter().filter(|span| below.contains(&id(span)) || above.contains(&id(span))).collect()
}

/// The spans without what other services do within theirs: of a request to the API server, such as `PATCH /api/v1/nodes/{:name}`, that
/// span remains.
pub(super) fn shortened(spans: &[Span]) -> Vec<Span> {
    let by_id: BTreeMap<_, _> = spans.iter().map(|span| (span.id.as_str(), span)).collect();
    let parent = |span: &Span| by_id.get(span.parent.as_str()).copied();
    // The drivers are ours, too.
    let is_ours = |span: &Span| span.service.starts_with(SERVICE);
    let is_shown = |span: &Span| is_ours(span) || span.name.contains(" /") || parent(span).is_some_and(is_ours);
    let nearest = |span: &Span| {
        let above = std::iter::successors(parent(span), |span| parent(span)).take(spans.len());
        above.into_iter().find(|span| is_shown(span)).map_or_else(|| span.parent.clone(), |it| it.id.clone())
    };
    let shown = spans.iter().filter(|span| is_shown(span));
    shown.map(|span| Span { parent: nearest(span), ..span.clone() }).collect()
}

/// Each trace as a tree, in the order of time.
pub(super) fn text(spans: &[Span]) -> String {
    let mut traces: Vec<&str> = vec![];
    for span in spans {
        if !traces.contains(&span.trace_id.as_str()) {
            traces.push(&span.trace_id);
        }
    }
    let one = |id: &&str| {
        let spans: Vec<_> = spans.iter().filter(|span| span.trace_id == **id).collect();
        format!("trace {id}, {}", tree(&spans))
    };
    traces.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn tree(spans: &[&Span]) -> String {
    let first = spans.iter().map(|span| span.began).min().unwrap_or_default();
    let last = spans.iter().map(|span| span.ended).max().unwrap_or_default();
    let mut rows = vec![["SPAN", "SERVICE", "BEGAN", "TOOK", ""].map(str::to_owned).to_vec()];
    let has_parent = |span: &Span| spans.iter().any(|other| other.id == span.parent);
    for root in spans.iter().filter(|span| !has_parent(span)) {
        add(&mut rows, spans, root, 0, (first, last));
    }
    let left_out = rows.len().saturating_sub(MOST + 1);
    rows.truncate(MOST + 1);
    let more = if left_out > 0 { format!("and {left_out} more spans\n") } else { String::new() };
    format!("since {first:.0}\n{}\n{more}", table(&rows).trim_end())
}

fn add(rows: &mut Vec<Vec<String>>, spans: &[&Span], span: &Span, depth: usize, whole: (Timestamp, Timestamp)) {
    // A trace in which a span is below itself has no end.
    if rows.len() > spans.len() {
        return;
    }
    let error = span.error.as_ref().map(|error| format!(" failed: {error}")).unwrap_or_default();
    let held = span.blocked_by.as_ref().map(|why| format!(" blocked: {why}")).unwrap_or_default();
    rows.push(vec![
        format!("{}{}", "  ".repeat(depth), span.name),
        span.service.clone(),
        format!("+{}", length(whole.0, span.began)),
        length(span.began, span.ended),
        bar((span.began, span.ended), whole) + &held + &error,
    ]);
    for child in spans.iter().filter(|child| child.parent == span.id) {
        add(rows, spans, child, depth + 1, whole);
    }
}

/// A bar for a part of a whole, in its proportion.
pub(super) fn bar((began, ended): (Timestamp, Timestamp), (first, last): (Timestamp, Timestamp)) -> String {
    let whole = last.duration_since(first).as_millis().max(1);
    let column = |at: Timestamp| {
        let share = at.duration_since(first).as_millis() * WIDTH / whole;
        usize::try_from(share).unwrap_or_default()
    };
    let (from, to) = (column(began), column(ended));
    format!("{}{}", " ".repeat(from), "█".repeat(to.saturating_sub(from).max(1)))
}

/// Parts of a second count in a trace.
fn length(began: Timestamp, ended: Timestamp) -> String {
    let milliseconds = ended.duration_since(began).as_millis();
    match milliseconds {
        i128::MIN..1_000 => format!("{milliseconds}ms"),
        1_000..10_000 => format!("{}.{}s", milliseconds / 1_000, milliseconds % 1_000 / 100),
        _ => age(began, ended),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(id: &str, parent: &str, name: &str, (from, to): (i64, i64), machine: Option<&str>) -> Span {
        let at = |milliseconds| Timestamp::from_millisecond(1_780_000_000_000 + milliseconds).unwrap();
        Span {
            trace_id: "t".to_owned(),
            id: id.to_owned(),
            parent: parent.to_owned(),
            name: name.to_owned(),
            service: "nodewright".to_owned(),
            began: at(from),
            ended: at(to),
            machine: machine.map(str::to_owned),
            blocked_by: None,
            error: None,
        }
    }

    #[test]
    fn a_trace_is_a_tree_of_what_is_about_the_machine() {
        let mut spans = vec![
            span("1", "0", "admission", (0, 40), None),
            span("2", "1", "creation decision", (50, 50), Some("m")),
            span("3", "1", "creation decision", (50, 50), Some("other")),
            span("4", "2", "machine creation", (100, 20_050), Some("m")),
            span("5", "4", "reconcile", (200, 1_700), None),
            span("6", "3", "machine creation", (100, 20_000), Some("other")),
        ];
        spans[4].error = Some("refused".to_owned());
        let text = text(&of_machine("m", spans));
        let expected = [
            "trace t, since 2026-05-28T20:26:40Z",
            "SPAN                   SERVICE      BEGAN    TOOK",
            "admission              nodewright   +0ms     40ms   █",
            "  creation decision    nodewright   +50ms    0ms    █",
            "    machine creation   nodewright   +100ms   19s    ████████████████████████████████████████",
            "      reconcile        nodewright   +200ms   1.5s   ███ failed: refused",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected, "{text}");
    }

    #[test]
    fn requests_are_shown_without_what_the_api_server_does_for_them() {
        let of = |service: &str, span: Span| Span { service: service.to_owned(), ..span };
        let spans = vec![
            of("apiserver", span("0", "", "authentication", (0, 40), None)),
            of("apiserver", span("1", "0", "PATCH /apis", (0, 40), None)),
            of("apiserver", span("2", "1", "webhook", (0, 40), None)),
            span("3", "2", "admission", (0, 40), None),
            span("4", "3", "reconcile", (0, 40), None),
            of("apiserver", span("5", "4", "PATCH", (0, 40), None)),
            of("apiserver", span("6", "5", "etcd", (0, 40), None)),
        ];
        let shown: Vec<_> = shortened(&spans).into_iter().map(|span| (span.id, span.parent)).collect();
        let expected = [("1", "0"), ("3", "1"), ("4", "3"), ("5", "4")];
        assert_eq!(shown, expected.map(|(id, parent)| (id.to_owned(), parent.to_owned())));
    }

    #[test]
    fn a_circle_has_an_end() {
        let spans = vec![span("1", "2", "a", (0, 1), Some("m")), span("2", "1", "b", (0, 1), None)];
        assert_eq!(of_machine("m", spans.clone()).len(), 2);
        assert!(text(&spans).contains("SPAN"));
        assert_eq!(shortened(&spans).len(), 2);
        let itself =
            [span("0", "", "root", (0, 1), None), span("1", "0", "a", (0, 1), None), span("1", "1", "a", (0, 1), None)];
        assert!(text(&itself).lines().count() < 10);
    }
}
