//! The volumes of the Pods that leave: whether they are still attached.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use nodewright_runtime::object::{Target, namespace};

use super::{
    Blocker, Detachment, Drain, DrainProgress, End, FORCED_LIMIT, How, Note, Owners, PodView, Removal, Volume, first,
    view::{Attached, AttachmentView, Volumes},
};

const ABANDONED: &str = "its node is abandoned";

impl Drain<'_> {
    /// Waits until the volumes of the Pods that left are detached. A forced drain has them detached, and does not wait.
    ///
    /// Caveat: Kubernetes takes a volume off the Node's status when it begins to detach it. If this process started after that,
    /// it does not look for the `VolumeAttachment`, and the end of the detachment is not waited for.
    pub(crate) fn detachment(&self) -> DrainProgress {
        let mut progress = self.detached_or_not();
        if self.traces && progress.end.is_some() {
            self.report_detachment(&mut progress);
        }
        progress
    }

    /// Reports the wait for volumes once it is over, once.
    fn report_detachment(&self, progress: &mut DrainProgress) {
        let waited = |(note, since): (&Note, &Timestamp)| match note {
            Note::Detaching(volume) => Some((volume.to_string(), *since)),
            _ => None,
        };
        let waited: Vec<_> = self.notes.iter().filter_map(waited).collect();
        let is_reported = self.since(&Note::DetachmentReported).is_some();
        if let Some(since) = waited.iter().map(|(_, since)| *since).min().filter(|_| !is_reported) {
            let is_left = progress.notes.iter().any(|note| matches!(note, Note::Detaching(_)));
            let volumes = first(waited.into_iter().map(|(volume, _)| volume), ", ");
            progress.detachment = Some(Detachment { since, volumes, is_left });
        }
        if is_reported || progress.detachment.is_some() {
            progress.notes.push(Note::DetachmentReported);
        }
    }

    fn detached_or_not(&self) -> DrainProgress {
        if let Some(limit) = self.abandoned_at() {
            return self.abandonment(limit.checked_add(FORCED_LIMIT).unwrap_or(limit));
        }
        let mut progress = DrainProgress::default();
        if !self.has_volumes([]) {
            return DrainProgress { end: Some(End::Done), ..progress };
        }
        self.watch_volumes(&mut progress);
        let is_detaching = self.detaching(&mut progress);
        if is_detaching {
            self.awaits_owners(&mut progress);
        }
        let is_moving = is_detaching | self.unnamed(&mut progress);
        DrainProgress { end: (!is_moving).then_some(End::Done), ..progress }
    }

    /// Has the volumes detached from a Node that is abandoned, without Pods to wait for.
    pub(crate) fn release(&self) -> DrainProgress {
        self.abandonment(self.forced_since().checked_add(FORCED_LIMIT).unwrap_or(self.now))
    }

    fn abandonment(&self, limit: Timestamp) -> DrainProgress {
        let mut progress = DrainProgress::default();
        if !self.has_volumes([]) {
            return DrainProgress { end: Some(End::Done), ..progress };
        }
        self.watch_volumes(&mut progress);
        progress.notes.push(Note::Forced);
        if limit <= self.now {
            return DrainProgress { end: Some(End::TimedOut), ..progress };
        }
        progress.wake_at(limit);
        match &self.view.volumes {
            Volumes::Known(attached) => self.abandon(attached, &mut progress),
            Volumes::Unknown(_) => progress.end = Some(End::Done),
            Volumes::Pending => {}
        }
        progress
    }

    pub(super) fn watch_volumes(&self, progress: &mut DrainProgress) {
        progress.watches.extend(self.view.watch_volumes());
        progress.notes.push(Note::WatchingVolumes);
        if let Volumes::Unknown(why) = &self.view.volumes {
            progress.blockers.push(Blocker::VolumesUnknown(why.clone()));
        }
    }

    /// Deletes the attachments: Kubernetes would wait six minutes before it takes a volume from a Node that does not answer.
    fn abandon(&self, attached: &Attached, progress: &mut DrainProgress) {
        let left = attached.here.iter().filter(|attachment| attachment.metadata.deletion_timestamp.is_none());
        let removal = |attachment: &Arc<AttachmentView>| {
            let target = Target::of(self.view.cluster(), attachment.as_ref());
            Removal { why: ABANDONED, how: How::Delete, target }
        };
        progress.removals.extend(left.map(removal));
        progress.end = progress.removals.is_empty().then_some(End::Done);
    }

    /// Whether the drain has to see volumes: only then are they watched.
    pub(super) fn has_volumes<'p>(&self, pods: impl IntoIterator<Item = &'p Arc<PodView>>) -> bool {
        let is_attached = self.node.status.volumes_attached.as_ref().is_some_and(|attached| !attached.is_empty());
        let mut leaving = pods.into_iter().filter(|pod| pod.leaves());
        is_attached || self.notes.keys().any(is_of_volumes) || leaving.any(|pod| pod.claims().next().is_some())
    }

    /// Whether a Pod has attached volumes, or may have some: such Pods leave one after the other.
    pub(super) fn has_turns(&self, pod: &PodView) -> bool {
        match &self.view.volumes {
            _ if pod.is_finished() => false,
            Volumes::Pending => pod.claims().next().is_some(),
            Volumes::Unknown(_) => false,
            Volumes::Known(attached) => {
                let mut volumes = attached.volumes_of(pod);
                volumes.any(|volume| self.here(attached).any(|here| here == volume))
            }
        }
    }

    /// Whether Pods with volumes wait until it is known whose their volumes are.
    pub(super) fn awaits_owners(&self, progress: &mut DrainProgress) -> bool {
        match self.owners {
            Owners::Unasked => progress.question = self.view.attached_volumes(),
            Owners::Asked(until) => progress.wake_at(until),
            Owners::Unknown | Owners::Foreign(_) => return false,
        }
        true
    }

    /// The attached volumes that count.
    fn here<'v>(&'v self, attached: &'v Attached) -> impl Iterator<Item = &'v str> {
        attached.here.iter().filter_map(|attachment| attachment.volume()).filter(|volume| self.is_own(volume))
    }

    /// Whether a volume is the provider's, as far as that is known.
    fn is_own(&self, volume: &str) -> bool {
        !matches!(self.owners, Owners::Foreign(foreign) if foreign.contains(volume))
    }

    /// Notes the volumes that are on their way from this Node to another. Returns whether the next Pod with volumes waits.
    pub(super) fn moving(&self, progress: &mut DrainProgress) -> bool {
        self.detaching(progress) | self.attaching(progress)
    }

    fn detaching(&self, progress: &mut DrainProgress) -> bool {
        if matches!(self.view.volumes, Volumes::Pending) {
            // What was noted before a watch began again still counts.
            let kept = self.notes.keys().filter(|note| is_of_volumes(note) && **note != Note::WatchingVolumes);
            progress.notes.extend(kept.cloned());
            return true;
        }
        let mut is_moving = false;
        for volume in self.loose() {
            is_moving |= self.detaches(named(volume), progress);
        }
        is_moving
    }

    /// The volumes that are attached and that no Pod of the Node uses.
    fn loose(&self) -> BTreeSet<&str> {
        let (Volumes::Known(attached), Some(pods)) = (&self.view.volumes, &self.view.pods) else {
            return BTreeSet::new();
        };
        let users = pods.iter().filter(|pod| !pod.is_finished());
        let used: BTreeSet<&str> = users.flat_map(|pod| attached.volumes_of(pod)).collect();
        self.here(attached).filter(|volume| !used.contains(volume)).collect()
    }

    /// Whether the Node names more volumes than there are attachments: those of plug-ins that make none, or that are not known.
    fn unnamed(&self, progress: &mut DrainProgress) -> bool {
        let named = self.node.status.volumes_attached.as_ref().map_or(0, Vec::len);
        let is_so = match &self.view.volumes {
            Volumes::Known(attached) => named > attached.here.len(),
            Volumes::Unknown(_) => named > 0,
            Volumes::Pending => false,
        };
        is_so && self.detaches(Volume::OfNode, progress)
    }

    fn detaches(&self, volume: Volume, progress: &mut DrainProgress) -> bool {
        let shown = volume.to_string();
        let note = Note::Detaching(volume);
        let since = self.since(&note).unwrap_or(self.now);
        progress.notes.push(note);
        let Some(limit) = self.pending(since, self.rules.detach_timeout) else { return false };
        progress.wake_at(limit);
        progress.blockers.push(Blocker::Detaching { volume: shown, since });
        true
    }

    fn attaching(&self, progress: &mut DrainProgress) -> bool {
        let Volumes::Known(attached) = &self.view.volumes else { return false };
        let is_there =
            |volume: &str| attached.elsewhere.iter().any(|it| it.status.attached && it.volume() == Some(volume));
        let mut is_moving = false;
        for (volume, since) in self.detached(attached) {
            let limit = self.pending(since, self.rules.reattach_timeout).filter(|_| !is_there(volume));
            let Some(limit) = limit else { continue };
            progress.notes.push(Note::Attaching(named(volume)));
            progress.wake_at(limit);
            progress.blockers.push(Blocker::Attaching { volume: volume.to_owned(), since });
            is_moving = true;
        }
        is_moving
    }

    /// The noted volumes that count and are no longer attached to the Node, and since when.
    fn detached(&self, attached: &Attached) -> Vec<(&str, Timestamp)> {
        let gone = self.notes.iter().filter_map(|(note, since)| match note {
            Note::Attaching(Volume::Named(volume)) => Some((&**volume, *since)),
            Note::Detaching(Volume::Named(volume)) => Some((&**volume, self.now)),
            _ => None,
        });
        let is_gone = |volume: &str| attached.here.iter().all(|it| it.volume() != Some(volume));
        gone.filter(|(volume, _)| self.is_own(volume) && is_gone(volume)).collect()
    }
}

fn is_of_volumes(note: &Note) -> bool {
    matches!(note, Note::WatchingVolumes | Note::Detaching(_) | Note::Attaching(_))
}

fn named(volume: &str) -> Volume {
    Volume::Named(volume.into())
}

impl Attached {
    /// The volumes of a Pod's claims.
    pub(super) fn volumes_of(&self, pod: &PodView) -> impl Iterator<Item = &str> {
        let namespace = namespace(pod).to_owned();
        pod.claims().filter_map(move |claim| Some(self.claims.get(&(namespace.clone(), claim))?.as_str()))
    }
}

impl AttachmentView {
    pub(super) fn volume(&self) -> Option<&str> {
        self.spec.source.persistent_volume_name.as_deref()
    }
}
