//! What `nodewright plan pool` prints.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use nodewright_api::machine_config::MachineConfigPoolSpec;
use nodewright_controllers::machine_config_pool::{Move, Preview, Stay};
use nodewright_runtime::clip::few;
use serde_json::{Value, json};

use super::costs::Cost;

/// Above so many nodes that move, or that stay, text has a line for each group.
const LINES: usize = 40;
/// How many nodes of a group, and how many changes, text names.
const GROUP: usize = 2;
const CHANGES: usize = 20;
/// How many nodes are named that take all of maxUnavailable.
const NAMED: usize = 5;

pub(super) struct Plan<'a> {
    pub(super) name: &'a str,
    pub(super) spec: MachineConfigPoolSpec,
    pub(super) preview: Preview,
    /// By the MachineConfig that nodes run before.
    pub(super) costs: BTreeMap<String, Cost>,
}

impl Plan<'_> {
    /// For programs.
    pub(super) fn value(&self) -> Value {
        let preview = &self.preview;
        let step = |step: &Move| {
            let cost = &self.costs[&step.from];
            let mut value = json!(step);
            value["cost"] = cost.text.as_str().into();
            value["drains"] = cost.drains.into();
            value["reboots"] = cost.reboots.into();
            value
        };
        let cost = |(from, cost): (&String, &Cost)| json!({"from": from, "cost": cost.text, "changes": cost.changes});
        let mut value = json!(preview);
        value["pool"] = self.name.into();
        value["paused"] = self.spec.paused.into();
        value["present"] = self.spec.configuration.name.clone().into();
        value["costs"] = self.costs.iter().map(cost).collect();
        value["rounds"] = preview.rounds.iter().map(|round| round.iter().map(step).collect::<Value>()).collect();
        value
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut lines = self.head();
        for (from, cost) in &self.costs {
            lines.push(format!("cost from {from}: {}", cost.text));
            lines.extend(cost.changes.iter().take(CHANGES).map(|change| format!("  {change}")));
            let more = cost.changes.len().saturating_sub(CHANGES);
            lines.extend((more > 0).then(|| format!("  and {more} more")));
        }
        let moves = self.preview.rounds.iter().flatten().count();
        if moves > 0 {
            lines.push(String::new());
            lines.extend(table(self.rows(moves > LINES)));
        }
        lines.push(String::new());
        lines.push(self.summary(moves));
        lines.extend(self.stays());
        lines.iter().flat_map(|line| [line, "\n"]).collect()
    }

    /// The target, and what keeps to it.
    fn head(&self) -> Vec<String> {
        let target = &self.preview.target;
        let present = self.spec.configuration.name.as_deref().unwrap_or_default();
        let made = if target.exists { "" } else { " (would be made)" };
        let mut lines = vec![match present {
            _ if present == target.name => format!("pool {}: {present}", self.name),
            "" => format!("pool {}: {}{made}", self.name, target.name),
            _ => format!("pool {}: {present} -> {}{made}", self.name, target.name),
        }];
        lines.extend(target.held.clone());
        if self.spec.paused {
            lines.push("the pool is paused: the rounds begin once spec.paused is false".to_owned());
        }
        lines.push(format!("maxUnavailable: {}, {} unavailable now", self.budget(), self.preview.disrupted));
        lines
    }

    /// `3 (10% of 30)`.
    fn budget(&self) -> String {
        let most = self.preview.max_unavailable;
        let written = match &self.spec.max_unavailable {
            None => "default".to_owned(),
            Some(IntOrString::Int(number)) if usize::try_from(*number).ok() == Some(most) => return most.to_string(),
            Some(IntOrString::Int(number)) => format!("spec: {number}"),
            Some(IntOrString::String(text)) => format!("{text} of {}", self.preview.nodes),
        };
        format!("{most} ({written})")
    }

    fn summary(&self, moves: usize) -> String {
        let Preview { rounds, nodes, updated, disrupted, stays, .. } = &self.preview;
        let mut text = format!("{moves} of {nodes} nodes move in {} rounds; {updated} run the target", rounds.len());
        if rounds.is_empty() && stays.iter().any(|it| it.reason == "Waiting") {
            let unavailable: Vec<_> = stays.iter().filter(|it| it.is_unavailable).collect();
            let named = unavailable.iter().map(|it| format!("{} {}", it.node, it.message));
            text.extend([
                &format!("; no round can begin, as {disrupted} are unavailable: "),
                few(NAMED, named).as_str(),
            ]);
        }
        text
    }

    /// A row for each node, or for all that are alike: those of one zone that run the same.
    fn rows(&self, is_grouped: bool) -> Vec<[String; 5]> {
        let mut groups: Vec<(usize, usize, Vec<&Move>)> = vec![];
        let mut known = BTreeMap::new();
        let rounds = self.preview.rounds.iter().zip(1..);
        for (step, round) in rounds.flat_map(|(steps, round)| steps.iter().map(move |step| (step, round))) {
            let alike = (&step.zone, &step.from, step.is_begun, (!is_grouped).then_some(&step.node));
            let at = *known.entry(alike).or_insert(groups.len());
            groups.resize_with(groups.len().max(at + 1), || (round, round, vec![]));
            groups[at].1 = round;
            groups[at].2.push(step);
        }
        let row = |(first, last, steps): &(usize, usize, Vec<&Move>)| {
            let step = steps.first()?;
            let rounds = if first == last { first.to_string() } else { format!("{first}-{last}") };
            let cost = [self.costs[&step.from].text.as_str(), if step.is_begun { " (begun)" } else { "" }].concat();
            let zone = step.zone.clone().unwrap_or_else(|| "-".to_owned());
            Some([rounds, names(steps.iter().map(|step| step.node.as_str())), zone, short(&step.from), cost])
        };
        groups.iter().filter_map(row).collect()
    }

    /// The nodes that do not move, and why: a line for each, or for all that are alike.
    fn stays(&self) -> Vec<String> {
        let stays = &self.preview.stays;
        let mut groups = BTreeMap::<_, Vec<&Stay>>::new();
        for stay in stays {
            let alone = (stays.len() <= LINES).then_some(&stay.node);
            groups.entry((alone, &stay.message, stay.is_unavailable)).or_default().push(stay);
        }
        let line = |stays: &Vec<&Stay>| {
            let (stay, named) = (stays.first()?, names(stays.iter().map(|it| it.node.as_str())));
            let named = if stays.len() > 1 { named + ":" } else { named };
            let counts = if stay.is_unavailable { " (unavailable)" } else { "" };
            // An agent may say anything: no line of the plan, and nothing to the terminal.
            let message = stay.message.replace(char::is_control, " ");
            Some(format!("{named} {message}{counts}"))
        };
        groups.values().filter_map(line).collect()
    }
}

/// The name of a node, or how many there are and the first ones.
fn names<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let count = if names.len() > 1 { format!("{}: ", names.len()) } else { String::new() };
    count + &few(GROUP, names)
}

/// The name of a rendered MachineConfig with a part of its digest.
fn short(name: &str) -> String {
    const SHOWN: usize = 8;
    const DIGITS: usize = 32;
    match name.rsplit_once('-') {
        Some((pool, digest)) if digest.len() == DIGITS => format!("{pool}-{}…", digest.get(..SHOWN).unwrap_or(digest)),
        _ => name.to_owned(),
    }
}

/// Columns as wide as they have to be.
fn table(rows: Vec<[String; 5]>) -> Vec<String> {
    let head = ["ROUND", "NODE", "ZONE", "FROM", "COST"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths = [0, 1, 2, 3, 4].map(width);
    let line = |row: &[String; 5]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}
