//! The numbers side by side, and the goals that they meet.

use std::collections::BTreeMap;

use crate::{
    contender::Contender,
    fixture::{self, MACHINES},
    memory::PARTS,
};

/// The results of one contender, by name.
pub(crate) type Numbers = BTreeMap<String, f64>;

/// A count as a floating-point number.
#[allow(clippy::cast_precision_loss)] // far below 2^52
pub(crate) fn float(count: usize) -> f64 {
    count as f64
}

/// The quantile of the values at `share`.
pub(crate) fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a place in the list
    let place = (float(values.len()) * share) as usize;
    values[place.min(values.len() - 1)]
}

/// All results, by measure and contender.
#[derive(Default)]
pub(crate) struct Report(BTreeMap<(String, &'static str), Numbers>);

/// A goal, and the measured value.
struct Goal {
    what: String,
    reached: f64,
    most: f64,
}

impl Report {
    pub(crate) fn add(&mut self, measure: &str, who: Contender, numbers: Numbers) {
        self.0.insert((measure.to_owned(), who.name()), numbers);
    }

    fn get(&self, measure: &str, who: Contender, name: &str) -> Option<f64> {
        self.0.get(&(measure.to_owned(), who.name()))?.get(name).copied()
    }

    fn ours(&self, measure: &str, name: &str) -> f64 {
        self.get(measure, Contender::Ours, name).unwrap_or(f64::NAN)
    }

    fn line(&self, label: &str, measure: &str, name: &str) {
        let cells = Contender::ALL.map(|who| self.get(measure, who, name).map_or("-".to_owned(), short));
        println!("  {label:<46}{:>16}{:>16}{:>20}", cells[0], cells[1], cells[2]);
    }

    /// Prints all results, and returns whether every goal is met.
    pub(crate) fn print(&self) -> bool {
        let (whole, bare) = fixture::sizes();
        let [ours, kube, trimmed] = Contender::ALL.map(Contender::name);
        println!("\n{:<48}{ours:>16}{kube:>16}{trimmed:>20}", "");
        println!("A cache of {MACHINES} Machines; as JSON each has {whole} bytes, and {bare} without managedFields");
        self.line("bytes per object", "memory", "bytes");
        self.line("  of the resident set", "memory", "resident");
        self.line("  of the resident set, at most, with the lists", "memory", "most resident");
        self.line("list again, nothing changed: peak / steady", "memory", "unchanged");
        self.line("list again, everything changed: peak / steady", "memory", "changed");
        self.line("bytes per object, after a controller's plans", "rate", "bytes");
        println!("What a set owns: nanoseconds");
        self.line("look-up of one machine", "owners", "one");
        self.line("look-up of a hundred", "owners", "hundred");
        self.line("  each of the hundred", "owners", "hundred, each");
        println!("Reconciles per second, with nothing to do");
        self.line("first look at each machine", "rate", "first");
        self.line("woken by one change that concerns all", "rate", "again");
        println!("From event to plan: microseconds");
        for (label, name) in [
            ("idle", "idle"),
            ("with 10000 that wait", "waiting"),
            ("with 10000 that wait, of one that waits", "one that waits"),
            ("alone: to wake a task", "wake"),
            ("alone: to decode a machine", "decode"),
            ("alone: the same without managedFields", "decode bare"),
        ] {
            self.line(&format!("{label}, p50"), "latency", &format!("{name} p50"));
            self.line(&format!("{label}, p99"), "latency", &format!("{name} p99"));
        }
        self.print_parts();
        self.print_goals(float(bare))
    }

    fn print_parts(&self) {
        println!("Where the bytes per object go");
        self.line("the struct", "memory", "struct");
        for (part, _) in PARTS {
            self.line(part, "memory", &format!("part {part}"));
        }
        self.line("names, owners and the like, indexes", "memory", "rest");
    }

    fn goals(&self, json: f64) -> Vec<Goal> {
        let goal = |what: &str, reached: f64, most: f64| Goal { what: what.to_owned(), reached, most };
        let bytes = self.ours("memory", "bytes");
        let kube = self.get("memory", Contender::Kube, "bytes").unwrap_or(f64::NAN);
        let relist = self.ours("memory", "unchanged").max(self.ours("memory", "changed"));
        let idle = self.ours("latency", "idle p50");
        vec![
            goal("bytes per object, of the JSON without managedFields", bytes / json, 1.2),
            goal("bytes per object, of kube-runtime's", bytes / kube, 0.5),
            goal("list again: peak, of the steady state", relist, 1.1),
            goal("look-up of one machine by its owner, ns", self.ours("owners", "one"), 100.0),
            goal("event to plan, p50, idle, µs", idle, 50.0),
            goal("event to plan, p50, with 10000 that wait, of idle", self.ours("latency", "waiting p50") / idle, 1.25),
        ]
    }

    fn print_goals(&self, json: f64) -> bool {
        println!("Goals");
        let goals = self.goals(json);
        let is_met = |goal: &&Goal| goal.reached <= goal.most;
        for goal in &goals {
            let word = if is_met(&goal) { "met" } else { "MISSED" };
            println!("  {:<8}{:<54}{:>10} (at most {})", word, goal.what, short(goal.reached), goal.most);
        }
        let met = goals.iter().filter(is_met).count();
        println!("{met} of {} goals are met", goals.len());
        met == goals.len()
    }
}

/// Formats a number with three digits, or with all digits before the point if there are more.
fn short(number: f64) -> String {
    match number.abs() {
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}
