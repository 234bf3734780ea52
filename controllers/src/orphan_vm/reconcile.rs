//! When the VMs are listed, and which orphans are due.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{labels, reasons::machine_class as reasons};
use nodewright_runtime::{
    effect::Known,
    events::Event,
    object::{ObjectRef, is_deleting, label, name},
    plan::{Context, Plan, Step, reference},
};

use super::{
    OrphanVmSettings,
    calls::{Call, Fate, Listed, Orphan, Outcome, Request},
    judge::judge,
    snapshot::{Problem, Snapshot},
    swept::Swept,
    unexplained::Unexplained,
};
use crate::shared::{CONTROL, TARGET, node::Node};

/// A list that is older says nothing about now.
const FRESH: Duration = Duration::from_mins(1);
/// The shortest pause between two lists.
const SHORTEST: Duration = Duration::from_secs(1);
/// For so long a VM that a Machine turned out to have, or may have, is left alone.
const KEPT_FOR: Duration = Duration::from_hours(24);
/// How many VMs a message names.
const NAMED: usize = 5;

pub(super) fn plan(context: &Context<'_, Call>, snapshot: &Snapshot) -> Plan<Call> {
    let settings = &snapshot.settings;
    let mut plan = Plan::idle();
    plan.scoped_watches.extend(snapshot.scoped_watches.iter().cloned());
    let class = match &snapshot.lister {
        Some(Ok(class)) => class.clone(),
        other => {
            if let Some(Err((reason, text))) = other {
                plan.wait(reason, format!("no orphaned VMs are looked for: {text}"));
            }
            // What was seen before does not count after this.
            plan.notes = Some(vec![]);
            plan.forgets_outcomes = true;
            if other.is_none() {
                // Another class lists, and has its own record.
                let patch = Unexplained::default().patch(&snapshot.class);
                plan.then("the class no longer lists VMs", Step::edit(CONTROL, snapshot.class.as_ref(), patch));
            }
            plan.wake_at(after(context.now, settings.period));
            return plan;
        }
    };
    let key = ObjectRef::of(CONTROL, snapshot.class.as_ref());
    let request = Arc::new(Request { class, key, deadline: snapshot.deadline });
    Search { context, snapshot, settings, request }.go_on(plan)
}

struct Search<'a> {
    context: &'a Context<'a, Call>,
    snapshot: &'a Snapshot,
    settings: &'a OrphanVmSettings,
    request: Arc<Request>,
}

/// A list: when it began and ended, and what it shows.
struct List<'a> {
    begun: Timestamp,
    ended: Timestamp,
    listed: &'a Listed,
}

/// An orphan: when it was seen first, and from when on a list confirms that it may be deleted.
struct Suspect {
    orphan: Orphan,
    since: Option<Timestamp>,
    due: Timestamp,
}

impl Suspect {
    /// Whether a list began after another had shown this orphan.
    fn is_confirmed(&self, list: &List<'_>) -> bool {
        self.since.is_some_and(|since| since < list.begun)
    }
}

impl Search<'_> {
    fn go_on(&self, mut plan: Plan<Call>) -> Plan<Call> {
        let call = Call::List(self.request.clone());
        let outcomes = self.context.outcomes;
        let known = outcomes.get(&call);
        if outcomes.any_running() {
            return plan;
        }
        // An answer for another version of the class or of its Secrets may be about other VMs.
        let is_current = outcomes.asked(&call).is_some_and(|asked| asked.revision() == call.revision());
        let next = match known.and_then(|known| Some((known, known.last.as_ref()?))) {
            Some((known, (ended, Outcome::Listed(listed)))) if is_current => {
                let list = List { begun: known.begun, ended: *ended, listed };
                match self.judged(&list, &mut plan) {
                    Ok(next) => next,
                    Err(sweep) => return *sweep,
                }
            }
            Some((_, (ended, outcome))) if is_current => {
                if let Outcome::Failed { message, .. } = outcome {
                    plan.wait("VMListFailed", format!("no orphaned VMs are looked for: {message}"));
                }
                after(*ended, self.settings.period)
            }
            Some(_) => {
                plan.notes = Some(vec![]);
                self.context.now
            }
            None => after(self.context.leader_since, self.settings.period),
        };
        if next > self.context.now {
            plan.wake_at(next);
        } else {
            plan.then("which VMs has no machine?", Step::Call(call));
        }
        plan
    }

    /// When to list again; or the plan that deletes orphans.
    fn judged(&self, list: &List<'_>, plan: &mut Plan<Call>) -> Result<Timestamp, Box<Plan<Call>>> {
        if after(list.ended, FRESH) < self.context.now {
            return Ok(self.after_old(list, plan));
        }
        let vanished = self.vanished();
        let mut notes: Vec<Arc<str>> = vec![];
        if self.snapshot.vanished > 0 {
            notes.push(vanished.as_str().into());
        }
        let (suspects, problem) = match judge(list.listed, &self.snapshot.fleet) {
            Ok(orphans) => {
                self.delete_nodes(list, plan);
                (self.suspects(list, orphans, plan), None)
            }
            Err(problem) => (vec![], Some(problem)),
        };
        // One that was seen before an outage is seen anew.
        notes.extend(suspects.iter().map(|suspect| note_of(&suspect.orphan)));
        notes.extend(
            suspects.iter().filter(|suspect| suspect.is_confirmed(list)).map(|suspect| reported(&suspect.orphan)),
        );
        notes.extend(suspects.iter().filter_map(|suspect| self.kept(&suspect.orphan.provider_id)));
        let is_outdated =
            |note: &Arc<str>| self.context.noted(note).is_some_and(|at| at < self.context.connected_since);
        notes.retain(|note| **note == *vanished || !is_outdated(note));
        plan.notes = Some(notes);
        let usual = after(list.ended, self.settings.period);
        if let Some(problem) = problem {
            self.tell(plan, problem);
            return Ok(usual);
        }
        let suspects = self.without_kept(plan, suspects);
        let Some(first) = suspects.iter().map(|suspect| suspect.due).min() else { return Ok(usual) };
        self.report(list, plan, &suspects);
        if first > list.begun {
            return Ok(first.max(after(list.ended, SHORTEST)).min(usual));
        }
        if let Some(problem) = self.held(&vanished) {
            self.tell(plan, problem);
            return Ok(usual);
        }
        let due = suspects.into_iter().filter(|suspect| suspect.due <= list.begun).map(|suspect| suspect.orphan);
        let due: Vec<_> = due.take(self.settings.per_pass).collect();
        let sweep = Call::Sweep(self.request.clone(), due.into());
        let known = self.context.outcomes.get(&sweep).filter(|known| known.begun >= list.ended);
        if let Some(known) = known {
            if let Some(text) = failed(known) {
                plan.wait("OrphanVMsFailed", text);
            }
            return Ok(usual);
        }
        let Call::Sweep(_, due) = &sweep else { return Ok(usual) };
        let text = format!("deleting {} that no machine has: {}", vms(due.len()), named(due.iter()));
        plan.event(Event::warning(reference(self.snapshot.class.as_ref()), reasons::DELETING_ORPHAN_VMS, text));
        let record = Swept::recorded(&self.snapshot.class).with(due.iter()).patch(&self.snapshot.class);
        let record = Step::edit(CONTROL, self.snapshot.class.as_ref(), record);
        plan.then("the nodes of these VMs have to go after them", record);
        plan.then("two lists have shown VMs without a machine", Step::Call(sweep));
        Err(Box::new(std::mem::replace(plan, Plan::idle())))
    }

    /// Deletes the Nodes of swept VMs that a believed list lacks: they are gone. Removes from the record what is over.
    fn delete_nodes(&self, list: &List<'_>, plan: &mut Plan<Call>) {
        let class = self.snapshot.class.as_ref();
        let swept = Swept::recorded(class);
        // Without the Nodes nothing is over.
        let Some(nodes) = self.snapshot.nodes_of_swept.as_ref().filter(|_| swept.iter().next().is_some()) else {
            return;
        };
        let of = |id: &str| nodes.get(id).into_iter().flatten();
        for (id, machine) in swept.iter().filter(|(id, _)| self.is_gone(list, id)) {
            let left = of(id).filter(|node| is_node_of_machine(node, machine) && !is_deleting(node.as_ref()));
            for node in left {
                let text = format!(
                    "deleting node {} of VM {id}, which no machine had, and which is gone",
                    name(node.as_ref())
                );
                plan.event(Event::normal(reference(class), reasons::DELETING_ORPHAN_VMS, text));
                plan.beside("its VM was an orphan, and is gone", Step::delete(TARGET, node.as_ref()));
            }
        }
        let is_open = |id: &str| {
            let has_node =
                swept.iter().any(|(it, machine)| it == id && of(id).any(|node| is_node_of_machine(node, machine)));
            !self.snapshot.fleet.names(id) && self.kept(id).is_none() && (list.listed.contains_key(id) || has_node)
        };
        if let Some(step) = Step::edit(CONTROL, class, swept.clone().only(is_open).patch(class)) {
            plan.beside("nothing is left of these VMs", step);
        }
    }

    /// When the last sweep ended, and what became of the VMs.
    fn last_sweep(&self) -> Option<&(Timestamp, Outcome)> {
        let sweep = Call::Sweep(self.request.clone(), Arc::new([]));
        self.context.outcomes.get(&sweep).and_then(|known| known.last.as_ref())
    }

    /// Whether a swept VM is gone: the list is of later, lacks it, and no Machine names it.
    fn is_gone(&self, list: &List<'_>, id: &str) -> bool {
        let swept = self.last_sweep();
        let is_later = swept.is_none_or(|(ended, _)| *ended <= list.begun);
        is_later && !list.listed.contains_key(id) && !self.snapshot.fleet.names(id)
    }

    /// When to list again after a list that is so old that Machines may have gone since with their VMs: it shows no new orphans.
    fn after_old(&self, list: &List<'_>, plan: &mut Plan<Call>) -> Timestamp {
        let mut notes: Vec<Arc<str>> = self.context.notes.iter().map(|note| note.text.clone()).collect();
        let vanished = self.vanished();
        if self.snapshot.vanished > 0 && self.context.noted(&vanished).is_none() {
            notes.push(vanished.into());
        }
        plan.notes = Some(notes);
        let usual = after(list.ended, self.settings.period);
        let orphan =
            |id: &String| Orphan { provider_id: id.clone(), machine: String::new(), keeps: None, explained: true };
        let suspects = list.listed.keys().map(|id| self.suspect(list, orphan(id), None));
        let due = suspects.filter(|suspect| suspect.since.is_some()).map(|suspect| suspect.due).min();
        let due = due.filter(|due| *due > list.begun);
        due.map_or(usual, |due| due.max(after(list.ended, SHORTEST)).min(usual))
    }

    fn vanished(&self) -> String {
        format!("{} machines have vanished", self.snapshot.vanished)
    }

    /// The orphans of a list, and the record of those whose Machines were not deleted as far as is known.
    fn suspects(&self, list: &List<'_>, orphans: Vec<Orphan>, plan: &mut Plan<Call>) -> Vec<Suspect> {
        let class = self.snapshot.class.as_ref();
        let unexplained = Unexplained::recorded(class).after(orphans.iter(), self.context.now);
        if let Some(step) = Step::edit(CONTROL, class, unexplained.patch(class)) {
            plan.beside("a restart must not forget since when these VMs have no machine", step);
        }
        orphans.into_iter().map(|orphan| self.suspect(list, orphan, Some(&unexplained))).collect()
    }

    /// An orphan that nobody explains is kept until the record has had it for long.
    fn suspect(&self, list: &List<'_>, orphan: Orphan, unexplained: Option<&Unexplained>) -> Suspect {
        let since = self.context.noted(&note_of(&orphan)).filter(|since| *since >= self.context.connected_since);
        let seen = since.unwrap_or(self.context.now);
        let created = list.listed.get(&orphan.provider_id).and_then(|vm| vm.created);
        let of_age = after(created.unwrap_or(seen), self.settings.minimum_age);
        let kept = unexplained.filter(|_| !orphan.explained).map(|record| {
            after(record.since(&orphan.provider_id).unwrap_or(self.context.now), self.settings.vanished_pause)
        });
        let due = after(seen, self.settings.grace).max(of_age).max(kept.unwrap_or(of_age));
        Suspect { orphan, since, due }
    }

    /// The note of a VM that a sweep has left, because a Machine has it or may have it: of another namespace, mostly.
    fn kept(&self, id: &str) -> Option<Arc<str>> {
        let swept = self.last_sweep();
        let is_kept = |fates: &[(String, Fate)]| fates.iter().any(|(of, fate)| of == id && *fate == Fate::Kept);
        let answered = swept.and_then(|(ended, outcome)| match outcome {
            Outcome::Swept(fates) if is_kept(fates) => Some(*ended),
            _ => None,
        });
        let note = format!("kept {id}");
        let since = self.context.noted(&note).max(answered);
        since.filter(|since| after(*since, KEPT_FOR) > self.context.now).map(|_| note.into())
    }

    /// The suspects that a sweep may delete. Reports those that one has just left.
    fn without_kept(&self, plan: &mut Plan<Call>, suspects: Vec<Suspect>) -> Vec<Suspect> {
        let (kept, suspects): (Vec<_>, Vec<_>) =
            suspects.into_iter().partition(|suspect| self.kept(&suspect.orphan.provider_id).is_some());
        let is_new = |suspect: &&Suspect| {
            let note = self.kept(&suspect.orphan.provider_id);
            note.is_some_and(|note| self.context.noted(&note).is_none())
        };
        let new: Vec<_> = kept.iter().filter(is_new).map(|suspect| &suspect.orphan).collect();
        if !new.is_empty() {
            let text = format!(
                "{} that no machine of this namespace has: {}; a machine of that name exists, and may have it",
                vms(new.len()),
                named(new.iter().copied())
            );
            let class = reference(self.snapshot.class.as_ref());
            plan.event(Event::warning(class, reasons::ORPHAN_VMS_KEPT, text));
        }
        suspects
    }

    /// Why orphans that are due are kept.
    fn held(&self, vanished: &str) -> Option<Problem> {
        let since = self.context.noted(vanished).unwrap_or(self.context.now);
        let until = after(since, self.settings.vanished_pause);
        if self.snapshot.vanished > 0 && until > self.context.now {
            let text = format!(
                "{vanished} from the API server without having been deleted: orphaned VMs may be theirs, and are kept until {until:.0}"
            );
            return Some((reasons::MACHINES_VANISHED, text));
        }
        self.settings.dry_run.then(|| ("DryRun", "orphaned VMs are due, and kept: --orphan-vms-dry-run".to_owned()))
    }

    /// Reports orphans that this list is the second to show. A list that began before a Machine went still shows its VM.
    fn report(&self, list: &List<'_>, plan: &mut Plan<Call>, suspects: &[Suspect]) {
        let is_new =
            |suspect: &&Suspect| suspect.is_confirmed(list) && self.context.noted(&reported(&suspect.orphan)).is_none();
        let new: Vec<_> = suspects.iter().filter(is_new).collect();
        let Some(due) = new.iter().map(|suspect| suspect.due).max() else { return };
        let names = named(new.iter().map(|suspect| &suspect.orphan));
        let text = format!("the provider shows {} that no machine has: {names}; due at {due:.0}", vms(new.len()));
        plan.event(Event::warning(reference(self.snapshot.class.as_ref()), reasons::ORPHAN_VMS, text));
    }

    /// Says why orphans are kept: once in an event, and for as long as it holds in a wait.
    fn tell(&self, plan: &mut Plan<Call>, (reason, text): Problem) {
        let note = format!("told {reason}");
        if self.context.noted(&note).is_none() {
            let class = reference(self.snapshot.class.as_ref());
            plan.event(Event::warning(class, reasons::ORPHAN_VMS_KEPT, text.as_str()));
        }
        plan.notes.get_or_insert_default().push(note.into());
        plan.wait(reason, text);
    }
}

/// Whether a Node with the id of a VM that is gone has the label of the Machine of the VM's tags, or none: after a restore of etcd, a
/// kubelet has registered the Node again, and nobody has written the label. It would keep the next VM of that name from joining.
fn is_node_of_machine(node: &Node, machine: &str) -> bool {
    label(node, labels::MACHINE_NAME).is_none_or(|of| of == machine)
}

/// Why orphans could not be deleted.
fn failed(known: &Known<Outcome>) -> Option<String> {
    let why = match &known.last.as_ref()?.1 {
        Outcome::Swept(fates) => fates.iter().find_map(|(id, fate)| match fate {
            Fate::Failed(why) => Some(format!("{id}: {why}")),
            Fate::Deleted | Fate::Kept => None,
        })?,
        Outcome::Failed { message, .. } => message.clone(),
        Outcome::Listed(_) => return None,
    };
    Some(format!("failed to delete orphaned VMs, which is tried again after the next list: {why}"))
}

fn note_of(orphan: &Orphan) -> Arc<str> {
    format!("orphan {}", orphan.provider_id).into()
}

/// The note of an orphan that has been reported.
fn reported(orphan: &Orphan) -> Arc<str> {
    format!("reported {}", orphan.provider_id).into()
}

fn vms(count: usize) -> String {
    if count == 1 { "1 VM".to_owned() } else { format!("{count} VMs") }
}

fn named<'a>(orphans: impl ExactSizeIterator<Item = &'a Orphan>) -> String {
    let more = orphans.len().saturating_sub(NAMED);
    let text = |orphan: &Orphan| match &orphan.keeps {
        Some(keeps) => format!("{} (of {}, which keeps {keeps})", orphan.provider_id, orphan.machine),
        None => format!("{} (of {})", orphan.provider_id, orphan.machine),
    };
    let names = orphans.take(NAMED).map(text).collect::<Vec<_>>().join(", ");
    if more == 0 { names } else { format!("{names} and {more} more") }
}

fn after(begun: Timestamp, pause: Duration) -> Timestamp {
    let pause = SignedDuration::try_from(pause).unwrap_or(SignedDuration::MAX);
    begun.checked_add(pause).unwrap_or(Timestamp::MAX)
}
