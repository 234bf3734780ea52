//! Prometheus' text format, read.

use std::collections::{BTreeMap, BTreeSet};

/// The names and values of a series' labels. The bounds of buckets (`le`) are written as Rust writes numbers.
pub(super) type Labels = BTreeMap<String, String>;

/// A family: its series have its name, or its name and a suffix if it is a histogram.
#[derive(Clone, Debug, Default)]
pub(super) struct Family {
    /// `counter`, `gauge`, `histogram`, `summary` or `untyped`.
    pub kind: String,
    pub help: String,
    /// By suffix (`_bucket`, `_sum` or `_count`, else empty) and labels.
    pub series: BTreeMap<(String, Labels), f64>,
}

impl Family {
    /// The sets of names of labels that its series have. That of a bucket's bound is none of them.
    pub(super) fn label_names(&self) -> BTreeSet<Vec<&str>> {
        let names = self.series.keys().map(|(_, labels)| labels.keys().map(String::as_str));
        names.map(|names| names.filter(|name| *name != "le").collect()).collect()
    }

    /// The values of one label.
    pub(super) fn values_of(&self, label: &str) -> BTreeSet<&str> {
        self.series.keys().filter_map(|(_, labels)| labels.get(label)).map(String::as_str).collect()
    }

    /// The sum of the series with this suffix and these labels, which may have others.
    pub(super) fn sum(&self, suffix: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |all: &Labels| labels.iter().all(|(name, value)| all.get(*name).is_some_and(|it| it == value));
        self.series.iter().filter(|((of, all), _)| of == suffix && has(all)).map(|(_, value)| value).sum()
    }
}

/// The families whose names begin with a prefix, by name.
pub(super) fn families(text: &str, prefix: &str) -> BTreeMap<String, Family> {
    let mut all = BTreeMap::<String, Family>::new();
    let mut present = String::new();
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let [what, name, rest] = [(); 3].map(|()| words.next().unwrap_or_default());
            name.clone_into(&mut present);
            if name.starts_with(prefix) {
                let family = all.entry(name.to_owned()).or_default();
                let part = if what == "TYPE" { &mut family.kind } else { &mut family.help };
                rest.clone_into(part);
            }
        } else if let Some((name, labels, value)) = sample(line)
            && let Some(suffix) = name.strip_prefix(&present)
            && let Some(family) = all.get_mut(&present)
        {
            // Both processes of machine-controller-manager have a queue for Machines, by the same name.
            *family.series.entry((suffix.to_owned(), labels)).or_default() += value;
        }
    }
    all
}

/// The name, labels and value of a line.
fn sample(line: &str) -> Option<(&str, Labels, f64)> {
    let (series, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let Some((name, text)) = series.strip_suffix('}').and_then(|series| series.split_once('{')) else {
        return Some((series, Labels::new(), value));
    };
    Some((name, labels(text)?, value))
}

fn labels(mut text: &str) -> Option<Labels> {
    let mut all = Labels::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"")?;
        let (value, rest) = quoted(rest)?;
        let value = if name == "le" { value.parse::<f64>().ok()?.to_string() } else { value };
        all.insert(name.to_owned(), value);
        text = rest.strip_prefix(',').unwrap_or(rest);
    }
    Some(all)
}

/// A value up to its quote, and what follows that.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut characters) = (String::new(), text.char_indices());
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match characters.next()?.1 {
                'n' => '\n',
                escaped => escaped,
            }),
            _ => value.push(character),
        }
    }
    None
}

#[test]
fn names_labels_and_values_are_read() {
    let text = "# HELP mcm_a A is b.\n# TYPE mcm_a gauge\nmcm_a{x=\"1,}\\\"\\n\",y=\"\"} 2\nmcm_a{x=\"1,}\\\"\\n\",y=\"\"} 1\n\
        # HELP other O.\n# TYPE other gauge\nother 1\n# HELP mcm_h H.\n# TYPE mcm_h histogram\n\
        mcm_h_bucket{le=\"1\",z=\"q\"} 3\nmcm_h_sum{z=\"q\"} 0.5\n";
    let all = families(text, "mcm_");
    assert_eq!(all.keys().collect::<Vec<_>>(), ["mcm_a", "mcm_h"]);
    let gauge = &all["mcm_a"];
    assert_eq!((gauge.kind.as_str(), gauge.help.as_str()), ("gauge", "A is b."));
    assert_eq!(gauge.values_of("x"), BTreeSet::from(["1,}\"\n"]));
    assert_eq!(gauge.sum("", &[("y", "")]), 3.0);
    let histogram = &all["mcm_h"];
    assert_eq!(histogram.label_names(), BTreeSet::from([vec!["z"]]));
    assert_eq!(histogram.sum("_bucket", &[("le", "1")]), 3.0);
    assert_eq!(histogram.sum("_sum", &[("z", "q")]), 0.5);
}
