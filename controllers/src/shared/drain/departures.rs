//! Which Pods have left the Node, since when they did, and what held them back: for the spans of a drain.
//!
//! The drain notes each Pod that it asks for, or that was ending before, until the Pod is gone. Without traces it notes none.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use nodewright_runtime::{
    clip::clip_to,
    object::{name, namespace, uid},
    plan::Refusal,
};

use super::{Blocker, Drain, DrainProgress, LONGEST_BLOCKER, Note, PodView, evictions::title};

/// Limit of Pods that one process reports of one drain.
pub(super) const REPORTED: usize = 100;

/// A Pod that leaves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leaver {
    pub uid: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// When its deletion was requested, if that was before this process asked for it.
    pub ending_since: Option<Timestamp>,
}

/// What holds back the Pod of a UID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldBack {
    pub uid: Arc<str>,
    pub why: Arc<str>,
}

/// A Pod that has left, or that is still there when the drain ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Departure {
    pub(crate) pod: Arc<Leaver>,
    /// Since when it was asked for, or was ending.
    pub(crate) since: Timestamp,
    /// What made it leave, as far as this process knows.
    pub(crate) removal: Option<&'static str>,
    /// What held it back last.
    pub(crate) blocked_by: Option<Arc<str>>,
    pub(crate) is_left: bool,
}

impl Departure {
    /// The name of its span.
    pub(crate) fn title(&self) -> String {
        format!("pod {}/{}", self.pod.namespace, self.pod.name)
    }

    pub(crate) fn attributes(&self) -> Vec<(&'static str, String)> {
        let mut attributes = vec![
            ("k8s.namespace.name", self.pod.namespace.to_string()),
            ("k8s.pod.name", self.pod.name.to_string()),
            ("k8s.pod.uid", self.pod.uid.to_string()),
        ];
        attributes.extend(self.removal.map(|removal| ("nodewright.pod.removal", removal.to_owned())));
        attributes.extend(self.blocked_by.as_ref().map(|why| ("nodewright.pod.blocked_by", why.to_string())));
        attributes
    }

    pub(crate) fn error(&self) -> Option<String> {
        self.is_left.then(|| "the drain ended before the pod did".to_owned())
    }
}

impl Drain<'_> {
    /// Reports the Pods that have left since the last plan, and notes the ones that are leaving.
    pub(super) fn departures(&self, progress: &mut DrainProgress) {
        let Some(pods) = &self.view.pods else {
            let is_of_pods = |note: &&Note| matches!(note, Note::Leaving(_) | Note::HeldBack(_) | Note::Leavers { .. });
            progress.notes.extend(self.notes.keys().filter(is_of_pods).cloned());
            return;
        };
        let present: BTreeSet<&str> = pods.iter().map(|pod| uid(pod.as_ref())).collect();
        let reasons = self.reasons_by_pod(pods, progress);
        let mut known = BTreeSet::new();
        for (note, since) in &self.notes {
            let Note::Leaving(pod) = note else { continue };
            let (is_left, reason) = (present.contains(&*pod.uid), reasons.get(&*pod.uid));
            known.insert(&*pod.uid);
            if is_left && progress.end.is_none() {
                progress.notes.push(note.clone());
                let held = reason.map(|why| Note::HeldBack(HeldBack { uid: pod.uid.clone(), why: why.clone() }.into()));
                progress.notes.extend(held);
                continue;
            }
            progress.departures.push(Departure {
                pod: pod.clone(),
                since: pod.ending_since.unwrap_or(*since).min(*since),
                removal: self.removal_of(pod),
                blocked_by: reason.cloned(),
                is_left,
            });
        }
        self.note_leavers(pods, &known, progress);
    }

    /// Notes the Pods that have begun to leave, of which only so many are reported.
    fn note_leavers(&self, pods: &[Arc<PodView>], known: &BTreeSet<&str>, progress: &mut DrainProgress) {
        let former = |note: &Note| match note {
            Note::Leavers { reported, others } => Some((*reported, *others)),
            _ => None,
        };
        let (reported, others) = self.notes.keys().find_map(former).unwrap_or_default();
        let asked: BTreeSet<&str> = progress.removals.iter().map(|removal| removal.target.uid()).collect();
        let begins = |pod: &&Arc<PodView>| {
            let leaves = pod.leaves() && progress.end.is_none();
            let id = uid(pod.as_ref());
            leaves && !known.contains(id) && (pod.ends_at().is_some() || asked.contains(id))
        };
        let new: Vec<Note> = pods.iter().filter(begins).map(|pod| Note::Leaving(leaver(pod).into())).collect();
        let room = REPORTED.saturating_sub(reported).min(new.len());
        let (reported, others) = (reported + room, others.max(new.len() - room));
        progress.notes.extend(new.into_iter().take(room));
        if reported > 0 {
            progress.notes.push(Note::Leavers { reported, others });
        }
    }

    /// What holds each Pod back now, or did last. That one ends too late does not take the place of what refused its eviction: that took
    /// longer, as a rule, and somebody can change it.
    fn reasons_by_pod(&self, pods: &[Arc<PodView>], progress: &DrainProgress) -> BTreeMap<Arc<str>, Arc<str>> {
        let former = self.notes.keys().filter_map(|note| match note {
            Note::HeldBack(held) => Some((held.uid.clone(), held.why.clone())),
            _ => None,
        });
        let titles: BTreeMap<String, &str> = pods.iter().map(|pod| (title(pod), uid(pod.as_ref()))).collect();
        let mut reasons: BTreeMap<Arc<str>, Arc<str>> = former.collect();
        for blocker in &progress.blockers {
            let (Blocker::Refused { pod, .. } | Blocker::Overdue { pod, .. }) = blocker else { continue };
            let Some(id) = titles.get(pod) else { continue };
            let text = || clip_to(LONGEST_BLOCKER, blocker.to_string()).into();
            if matches!(blocker, Blocker::Refused { .. }) {
                reasons.insert((*id).into(), text());
            } else {
                reasons.entry((*id).into()).or_insert_with(text);
            }
        }
        reasons
    }

    /// A refused eviction ended no Pod, and this process asked for none that was ending when it was first seen: then it was another
    /// client, or the process before this one.
    fn removal_of(&self, pod: &Leaver) -> Option<&'static str> {
        if self.since(&Note::Deleting(pod.uid.clone())).is_some() {
            return Some("deletion");
        }
        let is_ours = pod.ending_since.is_none() && Refusal::of(self.refusals, &pod.uid).is_none();
        is_ours.then_some("eviction")
    }
}

fn leaver(pod: &PodView) -> Leaver {
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
    Leaver {
        uid: uid(pod).into(),
        namespace: namespace(pod).into(),
        name: name(pod).into(),
        ending_since: pod.ends_at().and_then(|ends_at| ends_at.checked_sub(grace).ok()),
    }
}
