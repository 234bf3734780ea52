//! The plan for the VMs of a class.

use std::sync::Arc;

use json_patch::Patch;
use nodewright_api::{annotations, labels, reasons::machine_class as reasons};
use nodewright_runtime::{
    clip::few,
    events::Event,
    object::{is_deleting, label, name, uid},
    plan::{Notes, Step, reference},
};

use super::{
    calls::{Call, Orphan},
    decision::{Candidate, Decision, Findings, List, LostNode, Search, SweepAction, after, decide, request},
    memory::{Context, Note, Plan},
    snapshot::{BlockedBy, Snapshot},
    swept::Swept,
    unexplained::Unexplained,
};
use crate::shared::{CONTROL, TARGET, node::Node, patch};

/// How many VMs a message names.
const NAMED: usize = 5;

pub(super) fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
    let search = Search { context, snapshot, settings: &snapshot.settings };
    let mut plan = Plan::idle();
    plan.scoped_watches.extend(snapshot.scoped_watches.iter().cloned());
    match decide(search) {
        Decision::Elsewhere => {
            search.forget(&mut plan);
            let patch = Unexplained::default().patch(&snapshot.class);
            plan.then("the class no longer lists VMs", Step::edit(CONTROL, snapshot.class.as_ref(), patch));
        }
        Decision::Unlisted((reason, text)) => {
            plan.wait(reason, format!("no orphaned VMs are looked for: {text}"));
            search.forget(&mut plan);
        }
        Decision::Calling => {}
        Decision::First(at) => search.list_at(&mut plan, at),
        Decision::Stale => {
            plan.notes = Notes::Clear;
            search.list_at(&mut plan, context.now);
        }
        Decision::Failed(why, next) => {
            plan.wait("VMListFailed", format!("no orphaned VMs are looked for: {why}"));
            search.list_at(&mut plan, next);
        }
        Decision::Old(next) => {
            plan.notes = context.notes.keys().cloned().chain(search.vanished()).collect();
            search.list_at(&mut plan, next);
        }
        Decision::Rejected(list, error) => {
            plan.notes = search.vanished().into_iter().collect();
            search.report_blocked(&mut plan, error);
            search.list_at(&mut plan, after(list.ended, search.settings.period));
        }
        Decision::Accepted(findings, action) => search.sweep(&mut plan, &findings, action),
    }
    plan
}

impl Search<'_> {
    /// What was seen before does not count after this.
    fn forget(&self, plan: &mut Plan) {
        plan.notes = Notes::Clear;
        plan.forgets_outcomes = true;
        plan.wake_at(after(self.context.now, self.settings.period));
    }

    fn list_at(&self, plan: &mut Plan, at: jiff::Timestamp) {
        let Some(Ok(class)) = &self.snapshot.lister else { return };
        if at > self.context.now {
            plan.wake_at(at);
        } else {
            plan.then("list the VMs", Step::Call(Call::List(request(self.snapshot, class))));
        }
    }

    fn vanished(&self) -> Option<Note> {
        (self.snapshot.vanished > 0).then_some(Note::Vanished(self.snapshot.vanished))
    }

    fn sweep(&self, plan: &mut Plan, findings: &Findings<'_>, action: SweepAction) {
        let class = self.snapshot.class.as_ref();
        self.delete_nodes(&findings.list, plan);
        mark_nodes(findings, plan);
        if let Some(step) = Step::edit(CONTROL, class, findings.unexplained.patch(class)) {
            plan.beside("record since when these VMs have no machine", step);
        }
        plan.notes = self.notes(findings);
        self.report_kept(plan, findings);
        self.report_orphans(plan, findings);
        let usual = after(findings.list.ended, self.settings.period);
        match action {
            SweepAction::Wait(next) => self.list_at(plan, next),
            SweepAction::Blocked(error) => {
                self.report_blocked(plan, error);
                self.list_at(plan, usual);
            }
            SweepAction::Swept(failure) => {
                if let Some(text) = failure {
                    plan.wait("OrphanVMsFailed", text);
                }
                self.list_at(plan, usual);
            }
            SweepAction::Delete(orphans) => self.delete(plan, orphans),
        }
    }

    fn delete(&self, plan: &mut Plan, orphans: Arc<[Orphan]>) {
        let class = self.snapshot.class.as_ref();
        let Some(Ok(usable)) = &self.snapshot.lister else { return };
        let text = format!("deleting {} that no machine has: {}", vms(orphans.len()), named(orphans.iter()));
        plan.event(Event::warning(reference(class), reasons::DELETING_ORPHAN_VMS, text));
        let record = Swept::recorded(class).with(orphans.iter()).patch(class);
        plan.then("record the VMs whose nodes go after them", Step::edit(CONTROL, class, record));
        let sweep = Call::Sweep(request(self.snapshot, usable), orphans);
        plan.then("delete the VMs that two lists have shown without a machine", Step::Call(sweep));
    }

    /// What the next plan has to know. An orphan that was seen before an outage is seen for the first time again.
    fn notes(&self, findings: &Findings<'_>) -> Notes<Note> {
        let id = |candidate: &Candidate| Arc::<str>::from(candidate.orphan.provider_id.as_str());
        let all = || findings.candidates.iter().chain(&findings.kept);
        let confirmed = all().filter(|candidate| candidate.is_confirmed(&findings.list));
        let of_vms = all().map(|candidate| Note::Orphan(id(candidate)));
        let of_vms = of_vms.chain(confirmed.map(|candidate| Note::Reported(id(candidate))));
        let lost = findings.lost_nodes.iter().filter(|(_, finding)| *finding != LostNode::Listed);
        let of_vms = of_vms.chain(lost.map(|(node, _)| Note::LostNode(uid(node.as_ref()).into())));
        let of_vms = of_vms.chain(findings.kept.iter().map(|candidate| Note::Kept(id(candidate))));
        let is_outdated =
            |note: &Note| self.context.noted_since(note).is_some_and(|at| at < self.context.connected_since);
        of_vms.filter(|note| !is_outdated(note)).chain(self.vanished()).collect()
    }

    /// Deletes the Nodes of swept VMs that a believed list lacks: they are gone. Removes from the record what is over.
    fn delete_nodes(&self, list: &List<'_>, plan: &mut Plan) {
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
            !self.snapshot.fleet.names(id) && !self.is_kept(id) && (list.listed.contains_key(id) || has_node)
        };
        if let Some(step) = Step::edit(CONTROL, class, swept.clone().only(is_open).patch(class)) {
            plan.beside("nothing is left of these VMs", step);
        }
    }

    /// Reports orphans that this list is the second to show. A list that began before a Machine went still shows its VM.
    fn report_orphans(&self, plan: &mut Plan, findings: &Findings<'_>) {
        let is_reported = |candidate: &Candidate| {
            self.context.noted_since(&Note::Reported(candidate.orphan.provider_id.as_str().into())).is_some()
        };
        let is_new = |candidate: &&Candidate| candidate.is_confirmed(&findings.list) && !is_reported(candidate);
        let new: Vec<_> = findings.candidates.iter().filter(is_new).collect();
        let Some(due) = new.iter().map(|candidate| candidate.due).max() else { return };
        let names = named(new.iter().map(|candidate| &candidate.orphan));
        let text = format!("the provider shows {} that no machine has: {names}; due at {due:.0}", vms(new.len()));
        plan.event(Event::warning(reference(self.snapshot.class.as_ref()), reasons::ORPHAN_VMS, text));
    }

    /// Reports the VMs that a sweep has just left.
    fn report_kept(&self, plan: &mut Plan, findings: &Findings<'_>) {
        let orphans = findings.kept.iter().map(|candidate| &candidate.orphan);
        let is_new =
            |orphan: &&Orphan| self.context.noted_since(&Note::Kept(orphan.provider_id.as_str().into())).is_none();
        let new: Vec<_> = orphans.filter(is_new).collect();
        if !new.is_empty() {
            let text = format!(
                "{} that no machine of this namespace has: {}; a machine of that name exists, and may have it",
                vms(new.len()),
                named(new.iter().copied())
            );
            let class = reference(self.snapshot.class.as_ref());
            plan.event(Event::warning(class, reasons::ORPHAN_VMS_KEPT, text));
        }
    }

    /// Reports why no VM is deleted: once in an event, and for as long as it holds in a wait.
    fn report_blocked(&self, plan: &mut Plan, (reason, text): BlockedBy) {
        let note = Note::Blocked(reason);
        if self.context.noted_since(&note).is_none() {
            let class = reference(self.snapshot.class.as_ref());
            plan.event(Event::warning(class, reasons::ORPHAN_VMS_KEPT, text.as_str()));
        }
        plan.notes.add(note);
        plan.wait(reason, text);
    }
}

/// Marks the Nodes that have neither a Machine nor a VM, and takes the mark off those that have a VM after all.
fn mark_nodes(findings: &Findings<'_>, plan: &mut Plan) {
    for (node, finding) in &findings.lost_nodes {
        let (why, patch) = match finding {
            LostNode::Missing => continue,
            LostNode::Listed => ("its VM exists", Patch(patch::unannotate(&node.metadata, [annotations::VM_MISSING]))),
            LostNode::Confirmed => {
                let id = node.provider_id().unwrap_or_default().to_owned();
                let mark = patch::annotate(&node.metadata, &[(annotations::VM_MISSING, id)].into());
                ("it has no machine, and two lists lack its VM", mark)
            }
        };
        if let Some(step) = Step::edit(TARGET, node.as_ref(), patch) {
            plan.beside(why, step);
        }
    }
}

/// Whether a Node with the id of a VM that is gone has the label of the Machine of the VM's tags, or none: after a restore of etcd, a
/// kubelet has registered the Node again, and the label has not been written. It would keep the next VM of that name from joining.
fn is_node_of_machine(node: &Node, machine: &str) -> bool {
    label(node, labels::MACHINE_NAME).is_none_or(|of| of == machine)
}

fn vms(count: usize) -> String {
    if count == 1 { "1 VM".to_owned() } else { format!("{count} VMs") }
}

fn named<'a>(orphans: impl ExactSizeIterator<Item = &'a Orphan>) -> String {
    let text = |orphan: &Orphan| match &orphan.keeps {
        Some(keeps) => format!("{} (of {}, which keeps {keeps})", orphan.provider_id, orphan.machine),
        None => format!("{} (of {})", orphan.provider_id, orphan.machine),
    };
    few(NAMED, orphans.map(text))
}
