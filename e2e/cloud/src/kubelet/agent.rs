//! The task of a kubelet: sleeps until the next action is due, and executes it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::sync::watch;

use super::{
    KubeletSpec, LEASE_NAMESPACE, Shared, node,
    registry::Registration,
    schedule::{Action, ObservedNode, Ready, Schedule},
};
use crate::{node_view::NodeView, request::RequestError};

/// Runs a kubelet until the sender of `orders` is dropped.
pub(super) async fn run(shared: Arc<Shared>, name: String, mut orders: watch::Receiver<KubeletSpec>) {
    let seed = name.bytes().fold(shared.settings.seed, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let mut schedule = Schedule::new(shared.settings, shared.clock.wall(), seed);
    let mut registration = shared.registry.join(&name);
    let agent = Agent {
        nodes: Api::all(shared.client.clone()),
        leases: Api::namespaced(shared.client.clone(), LEASE_NAMESPACE),
        shared: &shared,
        name: &name,
    };
    loop {
        let spec = orders.borrow_and_update().clone();
        if spec.silent {
            registration.set_reporting(false);
            if orders.changed().await.is_err() {
                return;
            }
            schedule.wake(shared.clock.wall());
            continue;
        }
        registration.set_reporting(true);
        tokio::select! {
            biased;
            changed = orders.changed() => if changed.is_err() { return },
            () = agent.live(&mut schedule, &registration, &spec) => {}
        }
    }
}

struct Agent<'a> {
    // For reads: the complete type cannot hold all times that others may write.
    nodes: Api<NodeView>,
    leases: Api<Lease>,
    shared: &'a Shared,
    name: &'a str,
}

impl Agent<'_> {
    /// Executes actions until the future is dropped. May be dropped at any await: an action that was not recorded is
    /// repeated.
    async fn live(&self, schedule: &mut Schedule, registration: &Registration, spec: &KubeletSpec) {
        loop {
            let now = self.shared.clock.wall();
            let (seen, gone) = registration.view();
            if let Some(seen) = seen {
                schedule.seen(&seen);
            }
            if let Some(uid) = gone {
                schedule.node_gone(&uid, now);
            }
            let Some((at, action)) = schedule.next(spec, now) else {
                registration.changed_in_watch.notified().await;
                continue;
            };
            if at > now {
                let nap = Duration::try_from(now.duration_until(at)).unwrap_or_default();
                tokio::select! {
                    biased;
                    () = registration.changed_in_watch.notified() => {}
                    () = tokio::time::sleep(nap) => {}
                }
                continue;
            }
            if let Err(error) = self.action(schedule, spec, action).await {
                tracing::debug!(node = self.name, ?action, %error, "a kubelet's request failed");
                schedule.failed(self.shared.clock.wall());
            }
        }
    }

    async fn action(&self, schedule: &mut Schedule, spec: &KubeletSpec, action: Action) -> Result<(), RequestError> {
        match (action, schedule.node().cloned()) {
            (Action::Register, _) | (_, None) => {
                let node = self.register(spec).await?;
                schedule.registered(node, self.shared.clock.wall());
            }
            (Action::Status, Some(node)) => match self.post(schedule, spec, &node).await {
                Ok(node) => schedule.posted(node, self.shared.clock.wall()),
                // The Node was deleted, and perhaps created again. The watch has not reported it yet.
                Err(error) if error.is_not_found() || error.is_conflict() => {
                    schedule.node_gone(&node.uid, self.shared.clock.wall());
                }
                Err(error) => return Err(error),
            },
            (Action::Lease, Some(node)) => {
                self.renew(&node.uid).await?;
                schedule.renewed(self.shared.clock.wall());
            }
        }
        Ok(())
    }

    /// Registers the Node, or adopts an existing one.
    async fn register(&self, spec: &KubeletSpec) -> Result<ObservedNode, RequestError> {
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

    async fn take_over(&self, spec: &KubeletSpec) -> Result<ObservedNode, RequestError> {
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
        let lacks_id = provider_id.is_empty() && !spec.has_external_cloud_provider;
        if differing.is_empty() && !lacks_id {
            return Ok(node::seen(&node.metadata, node.conditions()));
        }
        let mut patch = json!({ "metadata": { "uid": node.metadata.uid, "labels": differing } });
        if lacks_id {
            patch["spec"] = json!({ "providerID": spec.provider_id });
        }
        let patch = Patch::Strategic(patch);
        let node = self.shared.request(self.nodes.patch(self.name, &PatchParams::default(), &patch)).await?;
        Ok(node::seen(&node.metadata, node.conditions()))
    }

    async fn post(
        &self,
        schedule: &Schedule,
        spec: &KubeletSpec,
        node: &ObservedNode,
    ) -> Result<ObservedNode, RequestError> {
        let now = self.shared.clock.wall();
        let ready: Ready = schedule.wanted(spec, now);
        let since = schedule.transition(ready, now);
        let status = node::status(self.name, spec, &self.shared.settings, ready, since, now);
        // The UID protects a new Node of the same name.
        let patch = Patch::Strategic(json!({ "metadata": { "uid": node.uid }, "status": status }));
        let node = self.shared.request(self.nodes.patch_status(self.name, &PatchParams::default(), &patch)).await?;
        Ok(node::seen(&node.metadata, node.conditions()))
    }

    async fn renew(&self, uid: &str) -> Result<(), RequestError> {
        let lease = node::lease(self.name, uid, &self.shared.settings, self.shared.clock.wall());
        // Patches owner and spec, not only the time: an earlier machine of this name may have left the Lease.
        let patch = Patch::Merge(json!({
            "metadata": { "ownerReferences": lease.metadata.owner_references },
            "spec": lease.spec,
        }));
        match self.shared.request(self.leases.patch(self.name, &PatchParams::default(), &patch)).await {
            Err(error) if error.is_not_found() => {
                match self.shared.request(self.leases.create(&PostParams::default(), &lease)).await {
                    // Another writer was faster. The next renewal patches the Lease.
                    Err(error) if !error.is_conflict() => Err(error),
                    _ => Ok(()),
                }
            }
            other => other.map(drop),
        }
    }
}
