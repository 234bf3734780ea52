//! The table of the budget, and its comparison with what was counted.

use std::{collections::BTreeMap, fmt::Write};

/// How many percent more or less are no difference.
const TOLERANCE: u64 = 3;
const HEADER: &str = "size\tphase\tcount\tvalue";

/// The values by size, phase and count.
pub(crate) type Table = BTreeMap<[String; 3], u64>;

pub(crate) fn text(table: &Table) -> String {
    let mut text = format!("{HEADER}\n");
    for ([size, phase, count], value) in table {
        writeln!(text, "{size}\t{phase}\t{count}\t{value}").expect("text can be written");
    }
    text
}

/// The table of a text; `None` if it is none.
pub(crate) fn parse(text: &str) -> Option<Table> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('\t').collect();
        let [size, phase, count, value] = cells[..] else { return None };
        Some(([size, phase, count].map(str::to_owned), value.parse().ok()?))
    };
    text.strip_prefix(HEADER)?.lines().filter(|line| !line.is_empty()).map(row).collect()
}

/// The lines that differ, each with what to do.
pub(crate) fn differences(former: &Table, present: &Table) -> Vec<String> {
    let lines: std::collections::BTreeSet<_> = former.keys().chain(present.keys()).collect();
    let value = |table: &Table, line: &[String; 3]| table.get(line).copied().unwrap_or(0);
    lines.into_iter().filter_map(|line| difference(line, value(former, line), value(present, line))).collect()
}

/// Of what is below 34 a difference of one is too much.
fn difference(line: &[String; 3], former: u64, present: u64) -> Option<String> {
    if former.abs_diff(present) * 100 <= former * TOLERANCE {
        return None;
    }
    let what = if present > former {
        "a rise: find what does more, or say in the commit why it must, and regenerate by make budget"
    } else {
        "a fall: regenerate by make budget"
    };
    Some(format!("{}: {former} -> {present}, {what}", line.join(", ")))
}

#[test]
fn a_rise_fails_and_a_fall_asks_to_regenerate() {
    let cases = [
        (0, 0, None),
        (0, 1, Some("a rise")),
        (1, 0, Some("a fall")),
        (33, 34, Some("a rise")),
        (33, 32, Some("a fall")),
        (34, 35, None),
        (34, 36, Some("a rise")),
        (1_000, 1_030, None),
        (1_000, 1_031, Some("a rise")),
        (1_000, 970, None),
        (1_000, 969, Some("a fall")),
    ];
    let line = ["100 machines", "2 at rest", "plans machine"].map(str::to_owned);
    for (former, present, expected) in cases {
        let table = |value: u64| (value > 0).then(|| (line.clone(), value)).into_iter().collect::<Table>();
        let found = differences(&table(former), &table(present));
        let begin = format!("100 machines, 2 at rest, plans machine: {former} -> {present}, ");
        let expected: Vec<String> = expected.into_iter().map(|what| format!("{begin}{what}")).collect();
        assert_eq!(found.len(), expected.len(), "{former} -> {present}");
        assert!(found.iter().zip(&expected).all(|(found, expected)| found.starts_with(expected.as_str())), "{found:?}");
    }
}

#[test]
fn a_table_is_read_as_it_is_written() {
    let table = Table::from([(["a", "b", "c d"].map(str::to_owned), 3), (["a", "c", "d"].map(str::to_owned), 4)]);
    assert_eq!(parse(&text(&table)), Some(table));
    assert_eq!(parse("size\tphase\tcount\tvalue\na\tb\t3\n"), None);
}

/// What the table of the repository has is compared, line by line: none is left out.
#[test]
fn a_rise_of_each_line_is_found_and_named() {
    let table = parse(include_str!("../../../../docs/reference/budget.tsv")).unwrap();
    for (line, value) in &table {
        let mut risen = table.clone();
        risen.insert(line.clone(), value + value * TOLERANCE / 100 + 1);
        let found = differences(&table, &risen);
        assert!(found.len() == 1 && found[0].starts_with(&line.join(", ")), "{line:?}: {found:?}");
    }
}
