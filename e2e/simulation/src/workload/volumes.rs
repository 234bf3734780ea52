//! The attach-detach controller and the attachers of the CSI drivers.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    keeper::State,
    objects::{ATTACHMENTS, PODS, attached_name, is_deleting, is_finished, name, node_of},
};
use crate::names::NODES;

/// How long an attachment takes, and the detachment of a volume that belongs to no app.
const TAKES: Duration = Duration::from_millis(500);

impl State {
    /// Detaches volumes whose pods have left, and those whose attachments somebody deleted. As in Kubernetes, a volume leaves the
    /// Node's status before it is detached.
    pub(super) fn detach(&mut self) {
        let attachments = self.server.objects(ATTACHMENTS);
        let used = self.used();
        for attachment in &attachments {
            let (volume, node) = (volume_of(attachment), attachment["spec"]["nodeName"].as_str().unwrap_or_default());
            if used.contains(&(volume.to_owned(), node.to_owned())) && !is_deleting(attachment) {
                continue;
            }
            self.report(attachment, false);
            if !is_deleting(attachment) {
                self.server.delete(&format!("{ATTACHMENTS}/{}", name(attachment)));
            }
            let begun = *self.detaching.entry(name(attachment).to_owned()).or_insert_with(Instant::now);
            let Some(due) = self.takes(volume, node).map(|takes| begun + takes) else { continue };
            if due <= Instant::now() {
                self.server.remove(&format!("{ATTACHMENTS}/{}", name(attachment)));
                self.detaching.remove(name(attachment));
                self.attaching.remove(name(attachment));
            } else {
                self.wake_at(due);
            }
        }
    }

    /// How long a detachment takes; `None` for ever. It ends soon if the Node is gone.
    fn takes(&self, volume: &str, node: &str) -> Option<Duration> {
        let of_app = self.app_of(volume.strip_prefix("pv-").unwrap_or_default()).and_then(|app| app.volume);
        if of_app.is_none() || self.server.object(&format!("{NODES}/{node}")).is_none() {
            return Some(TAKES);
        }
        Some(Duration::from_secs(of_app?.detaches?.into()))
    }

    /// The volumes that pods use, with the Nodes of these pods.
    fn used(&self) -> BTreeSet<(String, String)> {
        let pods = self.server.objects(PODS);
        let running = pods.iter().filter(|pod| !node_of(pod).is_empty() && !is_finished(pod));
        let volumes = running.flat_map(|pod| self.volumes_of(pod).into_iter().map(|volume| (volume, node_of(pod))));
        volumes.map(|(volume, node)| (name(&volume).to_owned(), node.to_owned())).collect()
    }

    /// Completes attachments.
    pub(super) fn attach(&mut self) {
        for attachment in self.server.objects(ATTACHMENTS) {
            if is_deleting(&attachment) || attachment["status"]["attached"] == true {
                continue;
            }
            let due = *self.attaching.entry(name(&attachment).to_owned()).or_insert_with(Instant::now) + TAKES;
            if due <= Instant::now() {
                let path = format!("{ATTACHMENTS}/{}", name(&attachment));
                self.server.change(&path, |attachment| attachment["status"]["attached"] = true.into());
                self.report(&attachment, true);
            } else {
                self.wake_at(due);
            }
        }
    }

    /// Adds an attachment to the status of its Node, or removes it there.
    fn report(&self, attachment: &Value, is_attached: bool) {
        let path = format!("{NODES}/{}", attachment["spec"]["nodeName"].as_str().unwrap_or_default());
        let driver = attachment["spec"]["attacher"].as_str().unwrap_or_default();
        let own = attached_name(driver, volume_of(attachment));
        let Some(node) = self.server.object(&path) else { return };
        let mut listed = node["status"]["volumesAttached"].as_array().cloned().unwrap_or_default();
        if listed.iter().any(|volume| volume["name"] == own.as_str()) == is_attached {
            return;
        }
        if is_attached {
            listed.push(json!({"name": own, "devicePath": ""}));
        } else {
            listed.retain(|volume| volume["name"] != own.as_str());
        }
        self.server.change(&path, |node| node["status"]["volumesAttached"] = listed.into());
    }

    /// The attachments of a volume.
    pub(super) fn attachments_of(&self, volume: &str) -> impl Iterator<Item = Arc<Value>> {
        self.server.objects(ATTACHMENTS).into_iter().filter(move |attachment| volume_of(attachment) == volume)
    }
}

fn volume_of(attachment: &Value) -> &str {
    attachment["spec"]["source"]["persistentVolumeName"].as_str().unwrap_or_default()
}
