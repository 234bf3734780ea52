//! Reads a snapshot of the clusters. Secrets are never requested.

use jiff::Timestamp;

use crate::{
    client::Cluster,
    fault::{Fault, Outcome},
    resources::{
        CLASSES, CONTROLLER_CONFIGS, DEPLOYMENTS, ENDPOINTS, EVENTS, KUBELET_CONFIGS, LEASES, MACHINES, MUTATING,
        NODES, POOLS, Resource, SETS, VALIDATING,
    },
    snapshot::Snapshot,
};

/// The Leases by which it shows whether a manager leads.
pub(crate) const LEASE_NAMES: [&str; 3] =
    ["machine-controller-manager", "machine-controller", "nodewright-machine-config"];
/// The label by which an `EndpointSlice` names its service.
pub(crate) const OF_SERVICE: &str = "kubernetes.io/service-name";

/// The clusters, and what of them is read.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) control: Cluster,
    /// The cluster of the nodes.
    pub(crate) target: Cluster,
    /// The namespace of the machines; all of them without one.
    pub(crate) namespace: Option<String>,
    /// Whether `--namespace` has it, and not the context.
    pub(crate) is_namespace_given: bool,
}

impl Scope {
    /// All that explanations need. What may be missing, or may not be read, leaves a gap.
    pub(crate) async fn snapshot(&self) -> Outcome<Snapshot> {
        let mut snapshot = Snapshot::at(Timestamp::now());
        let machines = self.machines(&mut snapshot).await;
        self.node_configuration(&mut snapshot).await;
        // A cluster may have pools alone.
        if let Err(error) = machines
            && (!error.is_not_served() || snapshot.pools.is_empty())
        {
            return Err(error);
        }
        self.surroundings(&mut snapshot).await;
        Ok(snapshot)
    }

    async fn machines(&self, into: &mut Snapshot) -> Outcome<()> {
        let namespace = self.namespace.as_deref();
        for resource in [DEPLOYMENTS, SETS, MACHINES] {
            let objects = self.control.list(resource, namespace, "").await?;
            for object in &objects {
                into.add(object);
            }
        }
        optional(into, self.control.list(CLASSES, namespace, "").await);
        Ok(())
    }

    async fn node_configuration(&self, into: &mut Snapshot) {
        for resource in [POOLS, KUBELET_CONFIGS, CONTROLLER_CONFIGS] {
            optional(into, self.target.list(resource, None, "").await);
        }
        optional(into, self.target.list(NODES, None, "").await);
    }

    /// Events, Leases and webhooks: what tells that a controller does not run, or is refused.
    async fn surroundings(&self, into: &mut Snapshot) {
        let namespace = self.namespace.as_deref();
        let warnings = "type=Warning";
        optional(into, self.control.list(EVENTS, namespace, warnings).await);
        if !into.pools.is_empty() && namespace != Some("default") && namespace.is_some() {
            optional(into, self.target.list(EVENTS, Some("default"), warnings).await);
        }
        let wanted = LEASE_NAMES.into_iter().filter(|lease| *lease != LEASE_NAMES[2] || !into.pools.is_empty());
        for lease in wanted.collect::<Vec<_>>() {
            optional(into, self.control.list(LEASES, namespace, &format!("metadata.name={lease}")).await);
        }
        for resource in [VALIDATING, MUTATING] {
            self.webhooks(into, resource).await;
        }
    }

    /// The configurations of our kinds, and the endpoints of their services.
    async fn webhooks(&self, into: &mut Snapshot, resource: Resource) {
        let configurations = match self.control.list(resource, None, "").await {
            Ok(all) => all,
            Err(error) => return optional(into, Err(error)),
        };
        for configuration in configurations {
            let is_ours = |text: &str| text.contains(nodewright_api::GROUP);
            if !is_ours(&configuration["webhooks"].to_string()) {
                continue;
            }
            let service = |webhook: &serde_json::Value| {
                let service = webhook.pointer("/clientConfig/service")?;
                Some((service["namespace"].as_str()?.to_owned(), service["name"].as_str()?.to_owned()))
            };
            let services = configuration["webhooks"].as_array().into_iter().flatten().filter_map(service);
            let mut services: Vec<_> = services.collect();
            services.sort();
            services.dedup();
            into.add(&configuration);
            for (namespace, name) in services {
                self.endpoints(into, &namespace, &name).await;
            }
        }
    }

    async fn endpoints(&self, into: &mut Snapshot, namespace: &str, service: &str) {
        let is_of = |slice: &serde_json::Value| slice["metadata"]["labels"][OF_SERVICE] == service;
        match self.control.list(ENDPOINTS, Some(namespace), "").await {
            Ok(slices) => slices.iter().filter(|slice| is_of(slice)).for_each(|slice| into.add(slice)),
            Err(error) => {
                // Without its endpoints nothing can be said about a webhook.
                into.validating.clear();
                into.mutating.clear();
                optional(into, Err(error));
            }
        }
    }
}

/// Adds objects that an explanation can do without. A kind that the cluster does not serve is no gap.
fn optional(into: &mut Snapshot, objects: Result<Vec<serde_json::Value>, Fault>) {
    match objects {
        Ok(objects) => objects.iter().for_each(|object| into.add(object)),
        Err(error) if error.is_not_served() => {}
        Err(error) => {
            let gap = format!("not read: {}", error.short());
            if !into.gaps.contains(&gap) {
                into.gaps.push(gap);
            }
        }
    }
}
