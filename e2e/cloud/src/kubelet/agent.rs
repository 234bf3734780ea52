//! One kubelet at work: sleeps until its next beat, does it, and listens for orders meanwhile.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::sync::watch;

use super::{
    KubeletSpec, LEASE_NAMESPACE, Shared,
    heart::{Beat, Heart, NodeSeen, Ready},
    node,
    registry::Player,
};
use crate::{node_view::NodeView, request::RequestError};

/// Plays a kubelet until nobody gives it orders any more.
pub(super) async fn run(shared: Arc<Shared>, name: String, mut orders: watch::Receiver<KubeletSpec>) {
    let seed = name.bytes().fold(shared.settings.seed, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let mut heart = Heart::new(shared.settings, shared.clock.wall(), seed);
    let mut player = shared.registry.join(&name);
    let agent = Agent {
        nodes: Api::all(shared.client.clone()),
        leases: Api::namespaced(shared.client.clone(), LEASE_NAMESPACE),
        shared: &shared,
        name: &name,
    };
    loop {
        let spec = orders.borrow_and_update().clone();
        if spec.silent {
            player.speak(false);
            if orders.changed().await.is_err() {
                return;
            }
            heart.wake(shared.clock.wall());
            continue;
        }
        player.speak(true);
        tokio::select! {
            biased;
            changed = orders.changed() => if changed.is_err() { return },
            () = agent.live(&mut heart, &player, &spec) => {}
        }
    }
}

struct Agent<'a> {
    // For reads: a taint may have a time that the complete type cannot hold.
    nodes: Api<NodeView>,
    leases: Api<Lease>,
    shared: &'a Shared,
    name: &'a str,
}

impl Agent<'_> {
    /// Beats under one and the same order, for ever. May be dropped at any await: what was not recorded in the heart
    /// is done again.
    async fn live(&self, heart: &mut Heart, player: &Player, spec: &KubeletSpec) {
        loop {
            let now = self.shared.clock.wall();
            let (seen, gone) = player.view();
            if let Some(seen) = seen {
                heart.seen(&seen);
            }
            if let Some(uid) = gone {
                heart.node_gone(&uid, now);
            }
            let Some((at, beat)) = heart.next(spec, now) else {
                player.poke.notified().await;
                continue;
            };
            if at > now {
                let nap = Duration::try_from(now.duration_until(at)).unwrap_or_default();
                tokio::select! {
                    biased;
                    () = player.poke.notified() => {}
                    () = tokio::time::sleep(nap) => {}
                }
                continue;
            }
            if let Err(error) = self.beat(heart, spec, beat).await {
                tracing::debug!(node = self.name, ?beat, %error, "a kubelet's request failed");
                heart.failed(self.shared.clock.wall());
            }
        }
    }

    async fn beat(&self, heart: &mut Heart, spec: &KubeletSpec, beat: Beat) -> Result<(), RequestError> {
        match (beat, heart.node().cloned()) {
            (Beat::Register, _) | (_, None) => {
                let node = self.register(spec).await?;
                heart.registered(node, self.shared.clock.wall());
            }
            (Beat::Status, Some(node)) => match self.post(heart, spec, &node).await {
                Ok(node) => heart.posted(node, self.shared.clock.wall()),
                // Deleted, and perhaps made again by somebody else: the watch has not said so yet.
                Err(error) if error.is_not_found() || error.is_conflict() => {
                    heart.node_gone(&node.uid, self.shared.clock.wall());
                }
                Err(error) => return Err(error),
            },
            (Beat::Lease, Some(node)) => {
                self.renew(&node.uid).await?;
                heart.renewed(self.shared.clock.wall());
            }
        }
        Ok(())
    }

    /// Registers the Node, or takes over the one that is there.
    async fn register(&self, spec: &KubeletSpec) -> Result<NodeSeen, RequestError> {
        let node = node::registration(self.name, spec, &self.shared.settings, self.shared.clock.wall());
        let nodes: Api<Node> = Api::all(self.shared.client.clone());
        match self.shared.request(nodes.create(&PostParams::default(), &node)).await {
            Ok(node) => {
                let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
                Ok(node::seen(&node.metadata, conditions.unwrap_or_default()))
            }
            Err(error) if error.is_conflict() => self.take_over(spec).await,
            Err(error) => Err(error),
        }
    }

    async fn take_over(&self, spec: &KubeletSpec) -> Result<NodeSeen, RequestError> {
        let node = self.shared.request(self.nodes.get(self.name)).await?;
        let provider_id = node.provider_id().unwrap_or_default();
        if !provider_id.is_empty() && provider_id != spec.provider_id {
            tracing::warn!(
                node = self.name,
                provider_id,
                own = spec.provider_id,
                "the node belongs to another machine"
            );
        }
        let wanted = node::labels(self.name, spec);
        let labels = node.metadata.labels.as_ref();
        let differing: BTreeMap<_, _> =
            wanted.iter().filter(|(key, value)| labels.and_then(|labels| labels.get(*key)) != Some(value)).collect();
        if differing.is_empty() && !provider_id.is_empty() {
            return Ok(node::seen(&node.metadata, node.conditions()));
        }
        let mut patch = json!({ "metadata": { "uid": node.metadata.uid, "labels": differing } });
        if provider_id.is_empty() {
            patch["spec"] = json!({ "providerID": spec.provider_id });
        }
        let patch = Patch::Strategic(patch);
        let node = self.shared.request(self.nodes.patch(self.name, &PatchParams::default(), &patch)).await?;
        Ok(node::seen(&node.metadata, node.conditions()))
    }

    async fn post(&self, heart: &Heart, spec: &KubeletSpec, node: &NodeSeen) -> Result<NodeSeen, RequestError> {
        let now = self.shared.clock.wall();
        let ready: Ready = heart.wanted(spec, now);
        let since = heart.transition(ready, now);
        let status = node::status(self.name, spec, &self.shared.settings, ready, since, now);
        // The UID guards against a namesake.
        let patch = Patch::Strategic(json!({ "metadata": { "uid": node.uid }, "status": status }));
        let node = self.shared.request(self.nodes.patch_status(self.name, &PatchParams::default(), &patch)).await?;
        Ok(node::seen(&node.metadata, node.conditions()))
    }

    async fn renew(&self, uid: &str) -> Result<(), RequestError> {
        let lease = node::lease(self.name, uid, &self.shared.settings, self.shared.clock.wall());
        // All of it, not the time alone: a Lease that an earlier machine of this name left behind becomes ours.
        let patch = Patch::Merge(json!({
            "metadata": { "ownerReferences": lease.metadata.owner_references },
            "spec": lease.spec,
        }));
        match self.shared.request(self.leases.patch(self.name, &PatchParams::default(), &patch)).await {
            Err(error) if error.is_not_found() => {
                match self.shared.request(self.leases.create(&PostParams::default(), &lease)).await {
                    // Somebody was faster; the next beat patches it.
                    Err(error) if !error.is_conflict() => Err(error),
                    _ => Ok(()),
                }
            }
            other => other.map(drop),
        }
    }
}
