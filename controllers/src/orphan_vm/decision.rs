//! When the VMs are listed, and which orphans are deleted. Which VMs are orphans at all is in `orphans`; the last look at one before
//! its deletion, which may keep it, is in `sweep`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{Machine, reasons::machine_class as reasons};
use nodewright_runtime::object::{ObjectRef, name, uid};

use super::{
    OrphanVmSettings,
    calls::{Call, Listed, Orphan, Outcome, Request, SweepResult},
    memory::{Context, Note},
    orphans::{orphans, shows_ours},
    snapshot::{BlockedBy, Snapshot},
    unexplained::Unexplained,
};
use crate::shared::{indexes::instance_id, node::Node, node_claims::machine_name, ownership::noted_id};

/// A list that is older says nothing about now.
const FRESH: Duration = Duration::from_mins(1);
/// The shortest pause between two lists.
const SHORTEST: Duration = Duration::from_secs(1);
/// For so long a VM that a Machine turned out to have, or may have, is left alone.
const KEPT_FOR: Duration = Duration::from_hours(24);

/// What is to be done about the VMs of a class.
pub(super) enum Decision<'a> {
    /// Another class lists the same VMs, and has its own record.
    Elsewhere,
    /// They cannot be listed.
    Unlisted(&'a BlockedBy),
    /// A call is in progress.
    Calling,
    /// There is no list; the next one begins at this time.
    First(Timestamp),
    /// The list is of another version of the class or of its Secrets: it may be about other VMs.
    Stale,
    /// The list failed; the next one begins at this time.
    Failed(&'a str, Timestamp),
    /// The list is so old that Machines may have gone since with their VMs; the next one begins at this time.
    Old(Timestamp),
    /// The list is rejected.
    Rejected(List<'a>, BlockedBy),
    /// The list is accepted.
    Accepted(Findings<'a>, SweepAction),
}

/// What happens to the orphans of a list.
pub(super) enum SweepAction {
    /// None is due; the next list begins at this time.
    Wait(Timestamp),
    /// Orphans are due, and kept.
    Blocked(BlockedBy),
    /// A sweep has followed this list; why it has left some.
    Swept(Option<String>),
    /// These are deleted.
    Delete(Arc<[Orphan]>),
}

/// A list: when it began and ended, and what it shows.
#[derive(Clone, Copy)]
pub(super) struct List<'a> {
    begun: Timestamp,
    pub(super) ended: Timestamp,
    pub(super) listed: &'a Listed,
}

/// What a list shows that is believed.
pub(super) struct Findings<'a> {
    pub(super) list: List<'a>,
    /// The orphans.
    pub(super) candidates: Vec<Candidate>,
    /// The orphans that a sweep has left.
    pub(super) kept: Vec<Candidate>,
    /// Those whose Machines were not deleted as far as is known.
    pub(super) unexplained: Unexplained,
    /// The Nodes without a Machine.
    pub(super) lost_nodes: Vec<(Arc<Node>, LostNode)>,
}

/// An orphan: when it was seen first, and from when on a list confirms that it may be deleted.
pub(super) struct Candidate {
    pub(super) orphan: Orphan,
    since: Option<Timestamp>,
    pub(super) due: Timestamp,
}

impl Candidate {
    /// Whether a list began after another had shown this orphan.
    pub(super) fn is_confirmed(&self, list: &List<'_>) -> bool {
        self.since.is_some_and(|since| since < list.begun)
    }
}

/// What a list shows of a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LostNode {
    /// It has the VM.
    Listed,
    /// It lacks the VM; another list has yet to confirm that.
    Missing,
    /// It confirms that the VM is missing.
    Confirmed,
}

/// What the decision rests on.
#[derive(Clone, Copy)]
pub(super) struct Search<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) snapshot: &'a Snapshot,
    pub(super) settings: &'a OrphanVmSettings,
}

/// Decides about the VMs of a class.
pub(super) fn decide(search: Search<'_>) -> Decision<'_> {
    let Search { context, snapshot, settings } = search;
    let call = match &snapshot.lister {
        None => return Decision::Elsewhere,
        Some(Err(error)) => return Decision::Unlisted(error),
        Some(Ok(_)) if context.outcomes.any_running() => return Decision::Calling,
        Some(Ok(class)) => Call::List(request(snapshot, class)),
    };
    let known = context.outcomes.get(&call);
    let Some((known, (ended, outcome))) = known.and_then(|known| Some((known, known.last.as_ref()?))) else {
        return Decision::First(after(context.leader_since, settings.period));
    };
    if context.outcomes.asked(&call).is_none_or(|asked| asked.revision() != call.revision()) {
        return Decision::Stale;
    }
    let usual = after(*ended, settings.period);
    match outcome {
        Outcome::Listed(listed) => search.evaluate(List { begun: known.begun, ended: *ended, listed }),
        Outcome::Failed { message, .. } => Decision::Failed(message, usual),
        Outcome::Swept(_) => Decision::First(usual),
    }
}

/// The request for a list with a usable class.
pub(super) fn request(snapshot: &Snapshot, class: &nodewright_driver::Class) -> Arc<Request> {
    let key = ObjectRef::of(crate::shared::CONTROL, snapshot.class.as_ref());
    Arc::new(Request { class: class.clone(), key, deadline: snapshot.deadline })
}

impl<'a> Search<'a> {
    fn evaluate(self, list: List<'a>) -> Decision<'a> {
        if after(list.ended, FRESH) < self.context.now {
            return Decision::Old(self.after_old(&list));
        }
        let orphans = match orphans(list.listed, &self.snapshot.fleet) {
            Ok(orphans) => orphans,
            Err(error) => return Decision::Rejected(list, error),
        };
        let unexplained = Unexplained::recorded(&self.snapshot.class).after(orphans.iter(), self.context.now);
        let candidates = orphans.into_iter().map(|orphan| self.candidate(&list, orphan, Some(&unexplained)));
        let (kept, candidates) = candidates.partition(|candidate| self.is_kept(&candidate.orphan.provider_id));
        let findings = Findings { list, candidates, kept, unexplained, lost_nodes: self.lost_nodes(&list) };
        let action = GATES.iter().find_map(|gate| gate(self, &findings));
        let action = action.unwrap_or_else(|| SweepAction::Delete(self.due(&findings).into()));
        Decision::Accepted(findings, action)
    }

    /// An orphan that nothing explains is kept until the record has had it for long.
    fn candidate(&self, list: &List<'_>, orphan: Orphan, unexplained: Option<&Unexplained>) -> Candidate {
        let since = self.context.noted_since(&Note::Orphan(orphan.provider_id.as_str().into()));
        let since = since.filter(|since| *since >= self.context.connected_since);
        let seen = since.unwrap_or(self.context.now);
        let created = list.listed.get(&orphan.provider_id).and_then(|vm| vm.created);
        let of_age = after(created.unwrap_or(seen), self.settings.minimum_age);
        let kept = unexplained.filter(|_| !orphan.explained).map(|record| {
            after(record.since(&orphan.provider_id).unwrap_or(self.context.now), self.settings.vanished_pause)
        });
        let due = after(seen, self.settings.grace).max(of_age).max(kept.unwrap_or(of_age));
        Candidate { orphan, since, due }
    }

    /// When to list again after a list that is too old: it shows no new orphans.
    fn after_old(&self, list: &List<'_>) -> Timestamp {
        let orphan =
            |id: &String| Orphan { provider_id: id.clone(), machine: String::new(), keeps: None, explained: true };
        let known = list.listed.keys().map(|id| self.candidate(list, orphan(id), None));
        let due = known.filter(|candidate| candidate.since.is_some()).map(|candidate| candidate.due).min();
        due.filter(|due| *due > list.begun).map_or(self.usual(list), |due| self.no_later_than_usual(list, due))
    }

    fn usual(&self, list: &List<'_>) -> Timestamp {
        after(list.ended, self.settings.period)
    }

    fn no_later_than_usual(&self, list: &List<'_>, due: Timestamp) -> Timestamp {
        due.max(after(list.ended, SHORTEST)).min(self.usual(list))
    }

    /// When the last sweep ended, and what became of the VMs.
    pub(super) fn last_sweep(&self) -> Option<&'a (Timestamp, Outcome)> {
        self.context.outcomes.get(&self.any_sweep()?).and_then(|known| known.last.as_ref())
    }

    /// Any sweep: all are the same call.
    fn any_sweep(&self) -> Option<Call> {
        let class = self.snapshot.lister.as_ref()?.as_ref().ok()?;
        Some(Call::Sweep(request(self.snapshot, class), Arc::new([])))
    }

    /// Whether a sweep has left a VM less than a day ago.
    pub(super) fn is_kept(&self, id: &str) -> bool {
        let is_of = |(of, result): &(String, SweepResult)| of == id && *result == SweepResult::Kept;
        let answered = self.last_sweep().and_then(|(ended, outcome)| match outcome {
            Outcome::Swept(results) if results.iter().any(is_of) => Some(*ended),
            _ => None,
        });
        let since = self.context.noted_since(&Note::Kept(id.into())).max(answered);
        since.is_some_and(|since| after(since, KEPT_FOR) > self.context.now)
    }

    /// Whether a swept VM is gone: the list is of later, lacks it, and no Machine names it.
    pub(super) fn is_gone(&self, list: &List<'_>, id: &str) -> bool {
        let is_later = self.last_sweep().is_none_or(|(ended, _)| *ended <= list.begun);
        is_later && !list.listed.contains_key(id) && !self.snapshot.fleet.names(id)
    }

    fn due(&self, findings: &Findings<'_>) -> Vec<Orphan> {
        let due = findings.candidates.iter().filter(|candidate| candidate.due <= findings.list.begun);
        due.take(self.settings.per_pass).map(|candidate| candidate.orphan.clone()).collect()
    }
}

impl Search<'_> {
    /// What a list shows of the Nodes without a Machine; nothing if it has no VM of ours.
    fn lost_nodes(&self, list: &List<'_>) -> Vec<(Arc<Node>, LostNode)> {
        let snapshot = self.snapshot;
        if snapshot.lost_nodes.is_empty()
            || !snapshot.cloud_manager.is_on(self.context)
            || !shows_ours(list.listed, &snapshot.fleet)
        {
            return vec![];
        }
        // Providers and kubelets may write the beginning of an id differently.
        let ids: BTreeMap<&str, &str> =
            list.listed.iter().map(|(id, vm)| (instance_id(id), vm.machine.as_str())).collect();
        let machines: BTreeSet<&str> = ids.values().copied().collect();
        let is_named = |machine: &Arc<Machine>| {
            let listed = noted_id(machine).and_then(|id| ids.get(instance_id(id)));
            listed.is_none_or(|named| *named == name(machine.as_ref()))
        };
        let are_named = snapshot.fleet.listed.iter().all(is_named);
        let has_vm = |node: &Node| match node.provider_id() {
            Some(id) => ids.contains_key(instance_id(id)),
            // Nobody has given it one: its VM has the tags of its Machine, if VMs have the tags of theirs.
            None => !are_named || machine_name(node).is_some_and(|machine| machines.contains(machine)),
        };
        let finding = |node: &Arc<Node>| if has_vm(node) { LostNode::Listed } else { self.missing(list, node) };
        snapshot.lost_nodes.iter().map(|node| (node.clone(), finding(node))).collect()
    }

    fn missing(&self, list: &List<'_>, node: &Node) -> LostNode {
        let since = self.context.noted_since(&Note::LostNode(uid(node).into()));
        let since = since.filter(|since| *since >= self.context.connected_since);
        let is_confirmed = since.is_some_and(|since| after(since, self.snapshot.lost_node_grace) <= list.begun);
        if is_confirmed { LostNode::Confirmed } else { LostNode::Missing }
    }
}

/// What may keep all orphans of a list from being deleted, in the order of precedence.
type Gate = fn(Search<'_>, &Findings<'_>) -> Option<SweepAction>;
const GATES: [Gate; 4] = [not_due, machines_vanished, dry_run, already_swept];

fn not_due(search: Search<'_>, findings: &Findings<'_>) -> Option<SweepAction> {
    let list = &findings.list;
    match findings.candidates.iter().map(|candidate| candidate.due).min() {
        None => Some(SweepAction::Wait(search.usual(list))),
        Some(first) if first > list.begun => Some(SweepAction::Wait(search.no_later_than_usual(list, first))),
        Some(_) => None,
    }
}

/// A Machine that has vanished without a deletion may have lost its object, and not its VM.
fn machines_vanished(search: Search<'_>, _: &Findings<'_>) -> Option<SweepAction> {
    let (vanished, now) = (search.snapshot.vanished, search.context.now);
    let since = search.context.noted_since(&Note::Vanished(vanished)).unwrap_or(now);
    let until = after(since, search.settings.vanished_pause);
    (vanished > 0 && until > now).then(|| {
        let text = format!(
            "{vanished} machines have vanished from the API server without having been deleted: orphaned VMs may be theirs, and are \
             kept until {until:.0}"
        );
        SweepAction::Blocked((reasons::MACHINES_VANISHED, text))
    })
}

fn dry_run(search: Search<'_>, _: &Findings<'_>) -> Option<SweepAction> {
    let text = || "orphaned VMs are due, and kept: --orphan-vms-dry-run".to_owned();
    search.settings.dry_run.then(|| SweepAction::Blocked(("DryRun", text())))
}

/// One sweep for each list: a VM that could not be deleted shows in the next one.
fn already_swept(search: Search<'_>, findings: &Findings<'_>) -> Option<SweepAction> {
    let known = search.context.outcomes.get(&search.any_sweep()?).filter(|known| known.begun >= findings.list.ended)?;
    Some(SweepAction::Swept(known.last.as_ref().and_then(|(_, outcome)| failure(outcome))))
}

/// Why orphans could not be deleted.
fn failure(outcome: &Outcome) -> Option<String> {
    let why = match outcome {
        Outcome::Swept(results) => results.iter().find_map(|(id, result)| match result {
            SweepResult::Failed(why) => Some(format!("{id}: {why}")),
            SweepResult::Deleted | SweepResult::Kept => None,
        })?,
        Outcome::Failed { message, .. } => message.clone(),
        Outcome::Listed(_) => return None,
    };
    Some(format!("failed to delete orphaned VMs, which is tried again after the next list: {why}"))
}

pub(super) fn after(begun: Timestamp, pause: Duration) -> Timestamp {
    let pause = SignedDuration::try_from(pause).unwrap_or(SignedDuration::MAX);
    begun.checked_add(pause).unwrap_or(Timestamp::MAX)
}
