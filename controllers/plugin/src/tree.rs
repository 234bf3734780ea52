//! What exists, from deployments to nodes: unhealthy first, and equal ones in one line.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use nodewright_api::{Machine, MachineDeployment, MachineSet, machine_config::MachineConfigPool, reasons};
use nodewright_runtime::{
    clip::{clip, few},
    object::{Kind, controller_uid, name, namespace},
};
use serde::Serialize;

use crate::{
    fault::{Outcome, fail},
    names::{Target, TargetKind},
    output::{Colours, Format, State, age, counted, document, nameless, rounded, table, timeless},
    read::Scope,
    snapshot::{Snapshot, node_name, revision},
    why::{
        Finding, deployment, machine,
        manager::{self, Absence},
        node_state, pool, set,
    },
};

/// How many names of a group are shown.
const NAMED: usize = 3;
/// How long a message in a table may be, in bytes, and its first sentence, which names the cause.
const LONGEST_MESSAGE: usize = 160;
const LONGEST_SENTENCE: usize = 400;

/// An object, or several equal ones, with what is below.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Branch {
    /// In words; programs have the next three.
    pub(crate) object: String,
    pub(crate) kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) namespace: String,
    pub(crate) names: Vec<String>,
    /// How many objects it stands for.
    pub(crate) count: usize,
    pub(crate) state: State,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) ready: String,
    pub(crate) status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<Timestamp>,
    /// What is awaited.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
    /// The message without the object's own names, which is that of equal ones.
    #[serde(skip)]
    shared: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) children: Vec<Branch>,
}

impl Branch {
    /// The line of one object, without what is known of it.
    fn of<K: Kind>(object: &K) -> Self {
        let (kind, named) = (K::kind(&()).into_owned(), name(object).to_owned());
        Self {
            object: format!("{}/{named}", kind.to_ascii_lowercase()),
            kind,
            namespace: namespace(object).to_owned(),
            names: vec![named],
            count: 1,
            ..Self::default()
        }
    }
}

/// How trees are printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) now: Timestamp,
    pub(crate) colours: Colours,
    /// With messages in full.
    pub(crate) is_wide: bool,
    /// With the namespace of each object.
    pub(crate) has_namespaces: bool,
}

/// What programs get.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Forest {
    /// Where nobody acts on what the trees show.
    #[serde(rename = "noManager", skip_serializing_if = "Vec::is_empty")]
    absences: Vec<Absence>,
    trees: Vec<Branch>,
}

/// The command `tree`.
pub(crate) async fn run(scope: &Scope, wanted: Option<String>, format: Option<Format>) -> Outcome<String> {
    let wanted = wanted.map(|text| Wanted::parse(&text)).transpose()?;
    let snapshot = scope.snapshot().await?;
    let forest = Forest::of(&snapshot, wanted.as_ref(), format == Some(Format::Wide));
    if let (Some(wanted), true) = (&wanted, forest.trees.is_empty()) {
        return fail(wanted.missing());
    }
    snapshot.gaps.iter().for_each(|gap| eprintln!("note: {gap}"));
    let unreadable = snapshot.unreadable.iter();
    unreadable.for_each(|it| eprintln!("note: {} {}: {}", it.kind, it.name, it.why));
    if let Some(format @ (Format::Json | Format::Yaml)) = format {
        return document(&forest, format);
    }
    let (is_wide, has_namespaces) = (format == Some(Format::Wide), scope.namespace.is_none());
    Ok(forest.text(View { now: snapshot.now, colours: Colours::detect(), is_wide, has_namespaces }))
}

impl Forest {
    pub(crate) fn of(snapshot: &Snapshot, wanted: Option<&Wanted>, each: bool) -> Self {
        Self { absences: manager::absences(snapshot), trees: trees(snapshot, wanted, each) }
    }

    pub(crate) fn text(&self, view: View) -> String {
        let absences = self.absences.iter().map(|it| view.colours.of(State::Blocked, &it.to_string()) + "\n");
        absences.chain([rows(&self.trees, view)]).collect()
    }

    /// A line for each object, with messages in full, and with namespaces if there are several.
    pub(crate) fn wide_text(&self, now: Timestamp, colours: Colours) -> String {
        let namespaces: BTreeSet<_> = self.trees.iter().map(|it| &it.namespace).filter(|it| !it.is_empty()).collect();
        self.text(View { now, colours, is_wide: true, has_namespaces: namespaces.len() > 1 })
    }
}

/// The deployment or pool that the command names; of both kinds if it names none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    kinds: Vec<TargetKind>,
    name: String,
}

impl Wanted {
    /// # Errors
    /// It is of a kind that has no tree.
    pub(crate) fn parse(text: &str) -> Outcome<Self> {
        let both = vec![TargetKind::Deployment, TargetKind::Pool];
        if !text.contains('/') {
            return Ok(Self { kinds: both, name: text.to_owned() });
        }
        let target = text.parse::<Target>().or_else(fail)?;
        if !both.contains(&target.kind) {
            return fail(format!(
                "tree takes a MachineDeployment or MachineConfigPool: see kubectl nodewright why {target}"
            ));
        }
        Ok(Self { kinds: vec![target.kind], name: target.name })
    }

    fn is(&self, kind: TargetKind, name: &str) -> bool {
        self.kinds.contains(&kind) && self.name == name
    }

    fn missing(&self) -> String {
        let kinds = self.kinds.iter().map(|kind| format!("no {}", kind.kind())).collect::<Vec<_>>().join(" and ");
        let is_namespaced = self.kinds.iter().any(|kind| kind.is_namespaced());
        format!("there is {kinds} {}{}", self.name, if is_namespaced { " (see --namespace)" } else { "" })
    }
}

/// The trees of all deployments and pools, or of those of a name. `each`: one line for each object.
pub(crate) fn trees(snapshot: &Snapshot, wanted: Option<&Wanted>, each: bool) -> Vec<Branch> {
    let is_wanted = |kind, name: &str| wanted.is_none_or(|wanted| wanted.is(kind, name));
    let deployments = snapshot.deployments.iter().filter(|it| is_wanted(TargetKind::Deployment, name(*it)));
    let mut all: Vec<_> = deployments.map(|it| of_deployment(snapshot, it, each)).collect();
    let pools = snapshot.pools.iter().filter(|it| is_wanted(TargetKind::Pool, name(*it)));
    all.extend(pools.map(|it| of_pool(snapshot, it, each)));
    if wanted.is_none() {
        let without = |set: &&MachineSet| snapshot.deployment_of(set).is_none();
        all.extend(snapshot.sets.iter().filter(without).map(|set| of_set(snapshot, set, each)));
        let lone = snapshot.machines.iter().filter(|it| controller_uid(*it).is_none()).collect::<Vec<_>>();
        all.extend(machines(snapshot, &lone, each));
    }
    sort(&mut all);
    all
}

/// Unhealthy first.
fn sort(branches: &mut [Branch]) {
    branches.sort_by_key(|branch| Reverse(branch.state));
}

fn message(found: &Finding) -> String {
    if found.state == State::Done { String::new() } else { found.cause.clone() }
}

/// The sentences of a message that have room in a table, at least the first.
fn shortened(text: &str) -> String {
    let head = |most: usize| text.get(..text.floor_char_boundary(most)).unwrap_or_default();
    let first = text.split("; ").next().unwrap_or_default();
    if text.len() <= LONGEST_MESSAGE {
        return text.to_owned();
    }
    match head(LONGEST_MESSAGE).rsplit_once("; ") {
        Some((sentences, _)) => format!("{sentences}; …"),
        None if first.len() > LONGEST_SENTENCE => format!("{}…", head(LONGEST_SENTENCE)),
        None if first.len() < text.len() => format!("{first}; …"),
        None => first.to_owned(),
    }
}

fn of_deployment(snapshot: &Snapshot, deployment: &MachineDeployment, each: bool) -> Branch {
    let found = deployment::finding(snapshot, deployment);
    let sets = snapshot.sets_of(deployment);
    let shown = sets.iter().filter(|set| each || set.spec.replicas > 0 || !snapshot.machines_of(set).is_empty());
    let mut children: Vec<_> = shown.map(|set| of_set(snapshot, set, each)).collect();
    sort(&mut children);
    let available = deployment.status.as_ref().map_or(0, |status| status.available_replicas);
    let subject = deployment::subject(deployment);
    // What a child says is not repeated.
    let own = if found.subject == subject { message(&found) } else { String::new() };
    Branch {
        state: found.state,
        ready: format!("{available}/{}", deployment.spec.replicas),
        status: word(&found, deployment.is_deleting(), deployment.spec.paused),
        since: found.since,
        message: own,
        children,
        ..Branch::of(deployment)
    }
}

fn word(found: &Finding, is_deleting: bool, is_paused: bool) -> String {
    match found.state {
        _ if is_deleting => "Deleting".to_owned(),
        State::Done if is_paused => "Paused".to_owned(),
        State::Done => "Available".to_owned(),
        _ => found.reason.clone(),
    }
}

fn of_set(snapshot: &Snapshot, set: &MachineSet, each: bool) -> Branch {
    let found = set::finding(snapshot, set);
    let all = snapshot.machines_of(set);
    let subject = set::subject(set);
    let is_own = found.subject == subject;
    let up = all.iter().filter(|machine| set::is_up(machine)).count();
    Branch {
        object: format!("{subject} (revision {})", revision(set)),
        state: found.state,
        ready: format!("{up}/{}", set.spec.replicas),
        status: if is_own { word(&found, set.is_deleting(), false) } else { String::new() },
        since: found.since.filter(|_| is_own),
        message: if is_own { message(&found) } else { String::new() },
        children: machines(snapshot, &all, each),
        ..Branch::of(set)
    }
}

fn machines(snapshot: &Snapshot, all: &[&Machine], each: bool) -> Vec<Branch> {
    let lines = all.iter().map(|machine| of_machine(snapshot, machine)).collect();
    grouped(lines, "machine", each)
}

fn of_machine(snapshot: &Snapshot, machine: &Machine) -> Branch {
    let found = machine::finding(snapshot, machine);
    let status = match machine.phase().as_str() {
        _ if machine.is_deleting() => "Terminating",
        "" => "New",
        phase => phase,
    };
    let of_node = |node: &Node| Branch {
        state: if node_state::is_ready(node) { State::Done } else { State::Blocked },
        status: node_state::state_words(node),
        since: node_state::described(node).1,
        ..Branch::of(node)
    };
    let kept = machine::preserved(machine);
    let status = if kept.is_some() { format!("{status}, preserved") } else { status.to_owned() };
    // The message of one that has failed has it already.
    let kept = kept.filter(|_| found.reason != reasons::machine::PRESERVED);
    let parts = [Some(message(&found)).filter(|text| !text.is_empty()), kept];
    let message = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
    Branch {
        state: found.state,
        status,
        since: machine.phase_since().or(found.since),
        shared: shared(&message, machine),
        message,
        children: snapshot.node_of(machine).map(of_node).into_iter().collect(),
        ..Branch::of(machine)
    }
}

/// A message about a machine without its provider ID, VM, node and name.
fn shared(message: &str, machine: &Machine) -> String {
    let id = machine.provider_id().unwrap_or_default();
    let vm = id.rsplit('/').next().unwrap_or_default();
    let names = [id, vm, node_name(machine).unwrap_or_default(), name(machine)];
    names.iter().fold(message.to_owned(), |text, name| nameless(&text, name))
}

/// Puts equal lines together, unless each is asked for.
fn grouped(lines: Vec<Branch>, noun: &str, each: bool) -> Vec<Branch> {
    let mut groups: BTreeMap<String, Vec<Branch>> = BTreeMap::new();
    for line in lines {
        let below = line.children.iter().map(|child| child.status.as_str()).collect::<Vec<_>>().join(",");
        let text = timeless(&line.shared);
        let key = if each { line.object.clone() } else { format!("{} {} {text} {below}", line.namespace, line.status) };
        groups.entry(key).or_default().push(line);
    }
    let mut all: Vec<_> = groups.into_values().map(|group| merged(group, noun)).collect();
    all.sort_by(|a, b| b.state.cmp(&a.state).then_with(|| b.count.cmp(&a.count)).then_with(|| a.object.cmp(&b.object)));
    all
}

fn merged(mut group: Vec<Branch>, noun: &str) -> Branch {
    if group.len() == 1 {
        return group.pop().unwrap_or_default();
    }
    let names = group.iter().flat_map(|it| it.names.clone()).collect::<Vec<_>>();
    let object = format!("{} ({})", counted(group.len(), noun), few(NAMED, names.iter()));
    let nodes = group.iter().flat_map(|it| &it.children).flat_map(|it| it.names.clone()).collect::<Vec<_>>();
    let first = group.first().cloned().unwrap_or_default();
    let below = first.children.first().map(|child| Branch {
        object: counted(nodes.len(), "node"),
        count: nodes.len(),
        names: nodes,
        children: vec![],
        since: None,
        ..child.clone()
    });
    let since = group.iter().filter_map(|it| it.since).min();
    let is_equal = group.iter().all(|it| it.shared == first.shared);
    let message = if is_equal { first.shared.clone() } else { timeless(&first.shared) };
    Branch { object, names, count: group.len(), since, message, children: below.into_iter().collect(), ..first }
}

fn of_pool(snapshot: &Snapshot, pool: &MachineConfigPool, each: bool) -> Branch {
    let found = pool::finding(snapshot, pool);
    let target = pool.spec.configuration.name.as_deref().unwrap_or_default();
    let line = |it: &&Node| {
        let progress = node_state::Progress::of(it, target);
        let reason = nodewright_runtime::object::annotation(*it, nodewright_api::machine_config::REASON);
        let reason = reason.filter(|_| progress == node_state::Progress::Failed).unwrap_or_default();
        let repaired = if node_state::has_no_health_timeout(it) { ", being repaired" } else { "" };
        let ready = if node_state::is_ready(it) { "" } else { ", not ready" };
        Branch {
            state: progress.state().max(if node_state::is_ready(it) { State::Done } else { State::Waiting }),
            status: format!("{}{ready}{repaired}", progress.word()),
            shared: nameless(&clip(rounded(reason)), name(*it)),
            message: clip(rounded(reason)),
            ..Branch::of(*it)
        }
    };
    let status = pool.status.clone().unwrap_or_default();
    Branch {
        state: found.state,
        ready: format!("{}/{}", status.updated_machine_count, status.machine_count),
        status: if found.state == State::Done { "Updated".to_owned() } else { found.reason.clone() },
        since: found.since,
        message: message(&found),
        children: grouped(snapshot.nodes_of(pool).iter().map(line).collect(), "node", each),
        ..Branch::of(pool)
    }
}

fn rows(trees: &[Branch], view: View) -> String {
    if trees.is_empty() {
        return "nothing found\n".to_owned();
    }
    let first = view.has_namespaces.then_some("NAMESPACE");
    let header = first.into_iter().chain(["NAME", "READY", "STATUS", "SINCE", "MESSAGE"]);
    let mut rows = vec![header.map(str::to_owned).collect()];
    for tree in trees {
        add(&mut rows, tree, (String::new(), String::new()), view);
    }
    table(&rows)
}

fn add(rows: &mut Vec<Vec<String>>, branch: &Branch, (own, below): (String, String), view: View) {
    rows.push(row(branch, &own, view));
    let last = branch.children.len().saturating_sub(1);
    for (at, child) in branch.children.iter().enumerate() {
        let (own, next) = if at == last { ("└─", "  ") } else { ("├─", "│ ") };
        add(rows, child, (format!("{below}{own}"), format!("{below}{next}")), view);
    }
}

fn row(branch: &Branch, indent: &str, View { now, colours, is_wide, has_namespaces }: View) -> Vec<String> {
    let since = branch.since.map(|since| age(since, now)).unwrap_or_default();
    let message = if is_wide { branch.message.clone() } else { shortened(&branch.message) };
    let status = colours.of(branch.state, &branch.status);
    let first = has_namespaces.then(|| branch.namespace.clone());
    let others = [format!("{indent}{}", branch.object), branch.ready.clone(), status, since, message];
    first.into_iter().chain(others).collect()
}
