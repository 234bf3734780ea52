//! The manager's metrics, and the page that lists them.
//!
//! Each scenario compares what its manager shows with `docs/reference/metrics.md`, at its end. With `UPDATE_METRICS=1` it adds to the page
//! what that lacks, also whenever it asks for a metric: labels are known only of families with a series.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write,
    fs,
    path::PathBuf,
};

use nodewright_e2e_lab::process::repository;
use parking_lot::Mutex;

use crate::{Environment, TestResult, ensure};

/// The value of the one series whose line has this prefix: a name, and the relevant labels.
pub fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(series))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

impl Environment {
    /// The value of a series of the manager, see [`value`]; `None` if there is no such series yet.
    pub async fn metric(&self, series: &str) -> TestResult<Option<f64>> {
        let scrape = self.manager().await?.metrics().await?;
        if updates() {
            update(&scrape)?;
        }
        Ok(value(&scrape, series))
    }
}

/// The labels of histograms and summaries that no page needs.
const OF_TYPES: [&str; 2] = ["le", "quantile"];
/// What precedes the rows of the page.
const HEAD: &str = "<!-- Made by the end-to-end scenarios of what managers have shown (UPDATE_METRICS=1). Add by hand labels of families \
    of which no scenario shows a series, and no more. -->\n\n\
    # Metrics of the manager\n\n\
    Each family at `/metrics`, in Prometheus' text format. [What they mean](telemetry.md#metrics) says more, also of \
    machine-controller-manager's families.\n\n\
    | family | type | labels | help |\n|---|---|---|---|\n";

/// A family of metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Family {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

type Families = BTreeMap<String, Family>;

impl Family {
    fn row(&self, name: &str) -> String {
        let labels: Vec<_> = self.labels.iter().map(|label| format!("`{label}`")).collect();
        format!("| `{name}` | {} | {} | {} |\n", self.kind, labels.join(", "), self.help)
    }

    /// Adds the labels of another scrape, whose type and help are newer.
    fn update(&mut self, newer: &Self) {
        let labels = self.labels.union(&newer.labels).cloned().collect();
        *self = Self { labels, ..newer.clone() };
    }

    /// Whether it is that of the page. Without a series it has no labels.
    fn is_as(&self, page: &Self) -> bool {
        (&self.kind, &self.help) == (&page.kind, &page.help) && self.labels.is_subset(&page.labels)
    }
}

/// The families of a scrape in Prometheus' text format.
fn families(scrape: &str) -> Families {
    let (mut families, mut last) = (Families::new(), String::new());
    for line in scrape.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            help.trim_end_matches('.').clone_into(&mut families.entry(name.to_owned()).or_default().help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            kind.clone_into(&mut families.entry(name.to_owned()).or_default().kind);
            name.clone_into(&mut last);
        } else if let Some(family) = families.get_mut(&last) {
            family.labels.extend(labels(line));
        }
    }
    families
}

/// The names of the labels of a series.
fn labels(series: &str) -> Vec<String> {
    let Some((_, mut rest)) = series.split_once('{') else { return vec![] };
    let mut names = vec![];
    while let Some((name, after)) = rest.split_once("=\"") {
        names.push(name.trim_start_matches(',').to_owned());
        // The value ends at a quotation mark that no backslash escapes.
        let mut is_escaped = false;
        let end = after.find(|c| {
            let ends = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            ends
        });
        rest = end.map_or("", |end| &after[end + 1..]);
        if rest.starts_with('}') {
            break;
        }
    }
    names.retain(|name| !OF_TYPES.contains(&name.as_str()));
    names
}

/// The families of the page.
fn listed(page: &str) -> Families {
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let name = cells.next()?.trim_end_matches('`').to_owned();
        let (kind, labels) = (cells.next()?.to_owned(), cells.next()?);
        let labels = labels.split(", ").map(|label| label.trim_matches('`').to_owned());
        let labels = labels.filter(|label| !label.is_empty()).collect();
        let help = cells.next()?.trim_end_matches(" |").to_owned();
        Some((name, Family { kind, help, labels }))
    };
    page.lines().filter_map(row).collect()
}

fn page() -> PathBuf {
    repository().join("docs/reference/metrics.md")
}

fn updates() -> bool {
    env::var_os("UPDATE_METRICS").is_some_and(|value| value == "1")
}

/// Adds to the page what it lacks.
fn update(scrape: &str) -> TestResult {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock();
    let mut all = listed(&fs::read_to_string(page()).unwrap_or_default());
    for (name, family) in &families(scrape) {
        all.entry(name.clone()).or_default().update(family);
    }
    let mut text = HEAD.to_owned();
    for (name, family) in &all {
        write!(text, "{}", family.row(name))?;
    }
    Ok(fs::write(page(), text)?)
}

/// Compares what the manager shows with the page, if there is a manager that answers.
pub(crate) async fn check(env: &Environment) -> TestResult {
    let Ok(scrape) = async { TestResult::Ok(env.manager().await?.metrics().await?) }.await else { return Ok(()) };
    if updates() {
        return update(&scrape);
    }
    let (shown, listed) = (families(&scrape), listed(&fs::read_to_string(page())?));
    let differs = |(name, family): &(&String, &Family)| !listed.get(*name).is_some_and(|page| family.is_as(page));
    let differing: String = shown.iter().filter(differs).map(|(name, family)| family.row(name)).collect();
    ensure(differing.is_empty(), || {
        format!("docs/reference/metrics.md differs; run the scenario with UPDATE_METRICS=1:\n{differing}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRAPE: &str = "# HELP a_total Things.\n# TYPE a_total counter\na_total{b=\"x\\\"}\",c=\"\"} 1\na_total{b=\"y, z\"} 2\n\
        # HELP h_seconds Times.\n# TYPE h_seconds histogram\nh_seconds_bucket{le=\"1\",of=\"a\"} 1\nh_seconds_sum{of=\"a\"} 1\n";

    #[test]
    fn families_are_read_from_a_scrape_and_from_the_page() {
        let shown = families(SCRAPE);
        let rows: String = shown.iter().map(|(name, family)| family.row(name)).collect();
        assert_eq!(rows, "| `a_total` | counter | `b`, `c` | Things |\n| `h_seconds` | histogram | `of` | Times |\n");
        assert_eq!(listed(&format!("{HEAD}{rows}")), shown);
    }

    #[test]
    fn a_family_differs_by_type_help_and_labels() {
        let shown = families(SCRAPE).remove("a_total").unwrap();
        let fewer = Family { labels: BTreeSet::from(["b".to_owned()]), ..shown.clone() };
        assert!(shown.is_as(&shown) && fewer.is_as(&shown));
        let other = |kind: &str, help: &str| Family { kind: kind.to_owned(), help: help.to_owned(), ..shown.clone() };
        for different in [other("gauge", "Things"), other("counter", "Other things"), fewer] {
            assert!(!shown.is_as(&different), "{different:?}");
        }
    }
}
