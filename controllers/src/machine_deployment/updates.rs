//! Updates in place: which Machines are updated now, and which move to the set of their new template.
//!
//! A Machine is *listed* in the annotation `updating` of a set while it is being updated to the template of that set, and still one of
//! another set. Then its Node is selected (`rollout_node`), the Machine controller drains it, and the program on it updates it. When
//! the Node shows that this was successful, the Machine moves: it gets the owner and the labels of the set, and the label
//! `update-result`, by which no set deletes it before it is counted. The set of the former template has the label
//! `scale-up-disabled`, by which it does not replace what has moved. Both labels are machine-controller-manager's, which may
//! take over at any moment, or be taken over from.
//!
//! # Guarantees
//! * The list is written before a Node is selected, and its write is refused once the set has changed: neither a stale cache nor
//!   another leader selects more than the bounds of the strategy allow.
//! * For no moment do the sets own, or may they create, more Machines than before a move.
//! * A Machine whose template changes during its update moves to the set of the template that it was updated to, and is a candidate
//!   again.

use std::collections::{BTreeMap, BTreeSet};

use json_patch::{Patch, PatchOperation};
use nodewright_api::{
    Machine, MachinePhase, MachineSet, annotations, labels,
    stored::{UPDATING, Updating},
};
use nodewright_runtime::{
    annotations::set_label,
    effect::Never,
    object::{is_deleting, label, name, uid},
    plan::{Planned, Step},
};
use serde_json::json;

use super::{
    mode::RolloutMode,
    snapshot::{Scope, SetView, Snapshot, count},
};
use crate::shared::{
    CONTROL,
    in_place::{Progress, awaits_components, is_begun, is_moving, is_updated},
    metadata::ChildMeta,
    node::Node,
    patch,
    preservation::preserve_expiry,
};

/// What comes before the sizes of the sets.
#[derive(Debug, Default)]
pub(super) struct Updates<'a> {
    /// Sets, and whether they create Machines from now on.
    labels: Vec<(&'a MachineSet, bool)>,
    moves: Vec<Move<'a>>,
    /// Machines that are counted where they have moved to.
    arrived: Vec<&'a Machine>,
}

#[derive(Debug)]
struct Move<'a> {
    machine: &'a Machine,
    from: &'a MachineSet,
    to: &'a MachineSet,
}

/// The lists of the sets, by UID.
pub(super) type Lists = BTreeMap<String, Updating>;

impl<'a> Updates<'a> {
    pub(super) fn of(scope: &Scope<'a>) -> Self {
        let (snapshot, mode) = (scope.snapshot, RolloutMode::of(scope.snapshot));
        if !snapshot.may_have_moved() {
            return Self::default();
        }
        let labels = snapshot.staying().filter_map(|view| {
            let is_disabled = wants_scale_up_disabled(scope, mode, view);
            (is_disabled != view.is_scale_up_disabled()).then_some((view.set.as_ref(), !is_disabled))
        });
        let moves = if mode.updates() { moves(snapshot) } else { vec![] };
        let arrived = snapshot.staying().filter(|view| view.uncounted() == 0).flat_map(|view| {
            view.machines
                .iter()
                .map(AsRef::as_ref)
                .filter(|machine| is_moving(machine) && !is_in_progress(snapshot, machine))
        });
        Self { labels: labels.collect(), moves, arrived: arrived.collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.moves.is_empty() && self.arrived.is_empty()
    }

    pub(super) fn machines(&self) -> impl Iterator<Item = &'a Machine> {
        self.moves.iter().map(|it| it.machine).chain(self.arrived.iter().copied())
    }

    /// The steps of each stage.
    pub(super) fn stages(&self) -> [Vec<Planned<Never>>; 2] {
        let label = |(set, creates): &(&MachineSet, bool)| {
            let value = (!creates).then_some(labels::SCALE_UP_DISABLED_VALUE);
            let step = Step::edit(CONTROL, *set, set_label(&set.metadata, labels::SCALE_UP_DISABLED, value))?;
            let why = if *creates {
                "no machine of the set is updated in place"
            } else {
                "its machines are updated in place"
            };
            Some(Planned { why: why.into(), step })
        };
        let moves = self.moves.iter().filter_map(Move::step);
        let arrived = self.arrived.iter().filter_map(|machine| {
            let step = Step::edit(CONTROL, *machine, set_label(&machine.metadata, labels::UPDATE_RESULT, None))?;
            Some(Planned { why: "the machine is counted where it has moved to".into(), step })
        });
        [self.labels.iter().filter_map(label).collect(), moves.chain(arrived).collect()]
    }
}

impl Move<'_> {
    fn step(&self) -> Option<Planned<Never>> {
        let why = format!("it was updated in place to the template of machine set {}", name(self.to)).into();
        Some(Planned { why, step: Step::edit(CONTROL, self.machine, self.patch())? })
    }

    /// The owner, and the labels of the template: those of the former one go, as does the index in the ledger of its set, which uses
    /// the name up. If the Machine returns, it has none. It fails if the Machine has changed.
    fn patch(&self) -> Patch {
        let meta = &self.machine.metadata;
        let mut own = meta.labels.clone().unwrap_or_default();
        for key in template_labels(self.from).keys() {
            own.remove(key);
        }
        own.extend(template_labels(self.to));
        own.insert(labels::UPDATE_RESULT.to_owned(), labels::UPDATE_SUCCESSFUL.to_owned());
        let owners = ChildMeta::default().owned_by(self.to).owner_references;
        let mut operations: Vec<PatchOperation> = vec![
            patch::same_version(meta),
            patch::set(&["metadata", "labels"], json!(own)),
            patch::set(&["metadata", "ownerReferences"], json!(owners)),
        ];
        operations.extend(patch::unannotate(meta, [annotations::INDEX]));
        Patch(operations)
    }
}

/// The labels by which a set selects its Machines, and those that it creates them with.
fn template_labels(set: &MachineSet) -> BTreeMap<String, String> {
    let mut all = set.spec.template.metadata.labels.clone().unwrap_or_default();
    let selector = set.spec.selector.as_ref().and_then(|selector| selector.match_labels.clone());
    all.extend(selector.unwrap_or_default());
    all
}

/// Whether a set creates no Machine: one that it lacks is updated in place, or is created by the set of the present template. While
/// nothing is updated, each set may grow.
fn wants_scale_up_disabled(scope: &Scope<'_>, mode: RolloutMode, view: &SetView) -> bool {
    let snapshot = scope.snapshot;
    // Not before each Machine that has moved is counted, and is no longer marked as moving.
    let is_settling = || {
        let is_marked = |view: &SetView| !snapshot.is_in_place() && view.has_moving();
        snapshot.staying().any(|view| view.uncounted() > 0 || is_marked(view))
    };
    if view.is_scale_up_disabled() && is_settling() {
        return true;
    }
    if !mode.updates() {
        false
    } else if snapshot.is_current(&view.set) {
        // Machines that were updated to a template that was taken back since; or its size is from before some have left it.
        let is_too_large = || {
            let all: i64 = snapshot.sets.iter().map(|view| view.size().at_most()).sum();
            let size = view.size();
            size.replicas > size.live && all > scope.goal.ceiling()
        };
        view.is_scale_up_disabled() && is_too_large()
            || view.machines.iter().any(|machine| target(snapshot, view, machine).is_some())
    } else {
        view.set.spec.replicas > 0 || !view.machines.is_empty()
    }
}

fn moves(snapshot: &Snapshot) -> Vec<Move<'_>> {
    // A set that could replace what moves gets its label first.
    let views = snapshot.staying().filter(|view| view.is_scale_up_disabled());
    let all = views.flat_map(|view| view.machines.iter().map(move |machine| (view, machine.as_ref())));
    all.filter_map(|(from, machine)| {
        let to = target(snapshot, from, machine)?;
        Some(Move { machine, from: from.set.as_ref(), to: to.set.as_ref() })
    })
    .collect()
}

/// The set that a Machine moves to now: the other one that lists it, or else that of the present template.
fn target<'a>(snapshot: &'a Snapshot, from: &SetView, machine: &Machine) -> Option<&'a SetView> {
    // One that has moved is counted, and its Node cleaned, before it moves on.
    let is_ready = !is_deleting(machine)
        && !is_moving(machine)
        && is_done(machine)
        && snapshot.node_of(machine).is_some_and(is_updated);
    let is_other = |to: &&SetView| uid_of(to) != uid_of(from);
    let names = |to: &&SetView| UPDATING.of(to.set.as_ref()).is_some_and(|list| list.0.contains(name(machine)));
    let listed = || snapshot.staying().filter(is_other).find(names);
    is_ready.then(|| listed().or_else(|| snapshot.current().filter(is_other))).flatten()
}

/// Whether its status has the result of its update.
fn is_done(machine: &Machine) -> bool {
    matches!(machine.phase(), MachinePhase::Running | MachinePhase::InPlaceUpdateSuccessful | MachinePhase::Unknown)
}

/// Whether the Node of a Machine has yet to lose the labels of its update.
fn is_in_progress(snapshot: &Snapshot, machine: &Machine) -> bool {
    match &snapshot.nodes {
        None => snapshot.is_in_place(),
        // It may be a candidate again, of the next template.
        Some(_) => snapshot.node_of(machine).is_some_and(|node| Progress::of(node) >= Progress::Selected),
    }
}

/// The lists as they are to be; a set without one lists nothing. `replicas`: those of the current set after this plan.
pub(super) fn lists(scope: &Scope<'_>, mode: RolloutMode, replicas: i64) -> Lists {
    let snapshot = scope.snapshot;
    if !snapshot.is_in_place() {
        return Lists::new();
    }
    let mut lists: Lists = snapshot.staying().map(|view| (uid_of(view).to_owned(), kept(snapshot, view))).collect();
    let Some(current) = snapshot.current().filter(|_| snapshot.nodes.is_some()) else { return lists };
    let listed: BTreeSet<&str> = names(&lists).collect();
    let adopted = snapshot.old().flat_map(|view| &view.machines).filter(|machine| {
        let is_selected = snapshot.node_of(machine).is_some_and(|node| Progress::of(node) >= Progress::Selected);
        is_selected && !is_deleting(machine.as_ref()) && !listed.contains(name(machine.as_ref()))
    });
    let adopted: Vec<_> = adopted.map(|machine| name(machine.as_ref()).to_owned()).collect();
    let own = uid_of(current).to_owned();
    lists.entry(own.clone()).or_default().0.extend(adopted);
    let selected = selected(scope, mode, replicas, &lists);
    lists.entry(own).or_default().0.extend(selected);
    lists
}

fn names(lists: &Lists) -> impl Iterator<Item = &str> {
    lists.values().flat_map(|list| &list.0).map(String::as_str)
}

fn uid_of(view: &SetView) -> &str {
    uid(view.set.as_ref())
}

/// What of the list of a set stays.
fn kept(snapshot: &Snapshot, view: &SetView) -> Updating {
    let list = UPDATING.of(view.set.as_ref()).unwrap_or_default();
    if list.0.is_empty() {
        return list;
    }
    // Where users select Nodes, the list follows the labels.
    let is_selection = snapshot.is_current(&view.set) && !snapshot.deployment.spec.strategy.is_manual();
    let others =
        || snapshot.sets.iter().filter(|other| uid_of(other) != uid_of(view)).flat_map(|other| &other.machines);
    let stays = |entry: &String| {
        let machine = others().find(|machine| name(machine.as_ref()) == entry && !is_deleting(machine.as_ref()));
        let Some(machine) = machine else { return false };
        if snapshot.nodes.is_none() || is_selection {
            return true;
        }
        let node = snapshot.node_of(machine);
        node.is_none_or(|node| Progress::of(node) >= Progress::Selected || is_begun(machine, node))
    };
    Updating(list.0.into_iter().filter(stays).collect())
}

/// The names of the Machines that are selected now: as many as availability allows.
fn selected(scope: &Scope<'_>, mode: RolloutMode, replicas: i64, lists: &Lists) -> Vec<String> {
    let (snapshot, goal) = (scope.snapshot, scope.goal);
    if !mode.updates() || mode.settles || scope.deployment.spec.strategy.is_manual() {
        return vec![];
    }
    let listed: BTreeSet<&str> = names(lists).collect();
    let is_updating = |machine: &Machine| {
        let of_node = |node: &Node| Progress::of(node) >= Progress::Selected || awaits_components(node);
        listed.contains(name(machine)) || snapshot.node_of(machine).is_some_and(of_node) || is_moving(machine)
    };
    let staying = || snapshot.staying().flat_map(|view| view.machines.iter().map(move |machine| (view, machine)));
    let available = staying().filter(|(view, machine)| view.is_available(machine) && !is_updating(machine));
    let preserved: i64 = snapshot.staying().map(|view| view.size().preserved).sum();
    let spare = count(available) - (goal.floor() - preserved);
    let updating = count(staying().filter(|(_, machine)| is_updating(machine)));
    let at_once = goal.unavailable + goal.surge - updating;
    let old = || snapshot.old().flat_map(|view| view.machines.iter().map(move |machine| (view, machine)));
    let due = goal.desired - replicas - count(old().filter(|(_, machine)| is_updating(machine)));
    let candidates = old().filter(|(view, machine)| {
        let has_node = snapshot.node_of(machine).is_some_and(|node| !is_deleting(node));
        view.is_available(machine) && has_node && !is_updating(machine) && !machine.is_removal_candidate()
    });
    let mut candidates: Vec<_> = candidates.map(|(_, machine)| machine).collect();
    // One that is preserved is updated last; otherwise those of the oldest set come first.
    candidates.sort_by_key(|machine| preserve_expiry(machine).is_some());
    let room = usize::try_from(spare.min(due).min(at_once)).unwrap_or(0);
    candidates.into_iter().take(room).map(|machine| name(machine.as_ref()).to_owned()).collect()
}

impl Snapshot {
    /// Whether Machines may be moving between its sets.
    pub(super) fn may_have_moved(&self) -> bool {
        self.is_in_place() || self.staying().any(SetView::is_scale_up_disabled)
    }

    /// The Node of a Machine, as far as it is known.
    pub(super) fn node_of(&self, machine: &Machine) -> Option<&Node> {
        self.nodes.as_ref()?.get(name(machine)).map(AsRef::as_ref)
    }
}

impl SetView {
    pub(super) fn is_scale_up_disabled(&self) -> bool {
        label(self.set.as_ref(), labels::SCALE_UP_DISABLED).is_some()
    }

    fn moving(&self) -> impl Iterator<Item = &Machine> {
        let machines = self.machines.iter().map(AsRef::as_ref);
        machines.filter(|machine| is_moving(machine) && !is_deleting(*machine))
    }

    /// Whether Machines have moved to it that its set may not delete yet.
    pub(super) fn has_moving(&self) -> bool {
        self.moving().next().is_some()
    }

    /// How many Machines have moved to it and are not counted yet.
    pub(super) fn uncounted(&self) -> i64 {
        let moving = count(self.moving());
        // Mostly there is none, and a size counts all Machines.
        if moving == 0 {
            return 0;
        }
        let size = self.size();
        moving.min(size.live - size.replicas).max(0)
    }
}
