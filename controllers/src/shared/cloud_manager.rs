//! Who does the node part of a cloud controller manager: this manager, or such a manager, as far as the Nodes of the cluster show it.
//!
//! With `--cloud-node=auto` it is this manager once a Node has kept its taint for a while, and no other has ever initialized one; what
//! decides is read from `managedFields`, and so holds for the next leader, too.
//!
//! # Guarantees
//! * This manager does nothing while a field manager that is neither itself nor a kubelet owns what initializes a Node: addresses, the
//!   provider id, or a label `beta` of the instance type, zone or region.
//! * It writes a Node only if it has seen the field managers of that version of the Node.
//!
//! # Caveats
//! * Who has only removed the taint, because a Node had all else, leaves no trace.
//! * What kubelets own is nobody else's: a cloud controller manager inside the same process (k3s) has the same field manager. It
//!   initializes Nodes long before one has kept its taint for ten minutes.

use std::{borrow::Cow, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nodewright_runtime::{
    cache::{Change, Index, Stores},
    controller::Watches,
    effect::Effect,
    object::{ObjectRef, created, name},
    plan::Context,
};
use serde::{Deserialize, de::IgnoredAny};

use super::{TARGET, node::Node};

/// The field managers of the controllers that initialize Nodes: those of Machines, and those without.
const OURS: [&str; 2] = ["nodewright-machine", "nodewright-unowned-node"];
const KUBELET: &str = "kubelet";
/// Each Node is left to others for this part of the time for which the first one has to have kept its taint.
const SHARE_OF_EACH: u32 = 20;

/// The caches of a Node and of its field managers follow two watches.
const UNSEEN: Duration = Duration::from_secs(1);

/// Who does the node part of a cloud controller manager (`--cloud-node`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CloudNodeMode {
    /// Another program, or none is needed.
    #[default]
    Off,
    /// This manager.
    On,
    /// This manager, if no other does: after a Node has kept its taint for so long.
    Auto(Duration),
}

/// The Nodes that nobody has initialized.
pub(crate) const UNINITIALIZED: Index<Node> =
    Index { name: "uninitialized", key_of: |node| node.is_uninitialized().then(String::new) };
/// The Nodes that another has initialized, by its field manager.
pub(crate) const BY_OTHER: Index<NodeManagers> = Index { name: "other", key_of: |node| node.other.clone() };
/// The Nodes that this manager has initialized.
pub(crate) const BY_US: Index<NodeManagers> = Index { name: "us", key_of: |node| node.is_ours.then(String::new) };

/// Who has written what a cloud controller manager writes of a Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Decoded")]
pub(crate) struct NodeManagers {
    /// Name and version of the Node.
    pub metadata: ObjectMeta,
    /// A field manager that is neither this manager nor a kubelet.
    other: Option<String>,
    /// Whether this manager has.
    is_ours: bool,
    /// When its taints were written last.
    tainted: Option<Timestamp>,
}

nodewright_runtime::view_of!(k8s_openapi::api::core::v1::Node, NodeManagers);

#[derive(Deserialize)]
struct Decoded<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
}

/// The runtime hands out managedFields as `fieldManagers`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    #[serde(borrow, default)]
    field_managers: Vec<Entry<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Entry<'a> {
    #[serde(borrow)]
    manager: Cow<'a, str>,
    time: Option<Timestamp>,
    fields_v1: Fields,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Fields {
    #[serde(rename = "f:metadata")]
    metadata: MetadataFields,
    #[serde(rename = "f:spec")]
    spec: SpecFields,
    #[serde(rename = "f:status")]
    status: StatusFields,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MetadataFields {
    #[serde(rename = "f:labels")]
    labels: LabelFields,
}

/// The deprecated twins, which users do not set any more: kubelets that know their id and address leave only labels to others.
#[derive(Default, Deserialize)]
#[serde(default)]
struct LabelFields {
    #[serde(rename = "f:beta.kubernetes.io/instance-type")]
    instance_type: Option<IgnoredAny>,
    #[serde(rename = "f:failure-domain.beta.kubernetes.io/zone")]
    zone: Option<IgnoredAny>,
    #[serde(rename = "f:failure-domain.beta.kubernetes.io/region")]
    region: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SpecFields {
    #[serde(rename = "f:providerID")]
    provider_id: Option<IgnoredAny>,
    #[serde(rename = "f:taints")]
    taints: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StatusFields {
    #[serde(rename = "f:addresses")]
    addresses: Option<IgnoredAny>,
    #[serde(rename = "f:conditions")]
    conditions: ConditionFields,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ConditionFields {
    #[serde(rename = r#"k:{"type":"Ready"}"#)]
    ready: Option<IgnoredAny>,
}

impl Fields {
    /// Whether they are those that initialize a Node.
    fn initialize(&self) -> bool {
        let LabelFields { instance_type, zone, region } = &self.metadata.labels;
        let marks = [&self.status.addresses, &self.spec.provider_id, instance_type, zone, region];
        marks.into_iter().any(Option::is_some)
    }
}

impl From<Decoded<'_>> for NodeManagers {
    fn from(Decoded { metadata }: Decoded<'_>) -> Self {
        let Metadata { name, uid, resource_version, field_managers: entries } = metadata;
        // Distributions run kubelets in processes of other names. Each reports that its Node is ready.
        let is_kubelet = |manager: &str| {
            let reports = |it: &Entry<'_>| it.manager == manager && it.fields_v1.status.conditions.ready.is_some();
            manager == KUBELET || entries.iter().any(reports)
        };
        let initializing = || entries.iter().filter(|it| it.fields_v1.initialize()).map(|it| it.manager.as_ref());
        Self {
            other: initializing().find(|manager| !OURS.contains(manager) && !is_kubelet(manager)).map(str::to_owned),
            tainted: entries.iter().filter(|it| it.fields_v1.spec.taints.is_some()).filter_map(|it| it.time).max(),
            is_ours: initializing().any(|manager| OURS.contains(&manager)),
            metadata: ObjectMeta { name, uid, resource_version, ..ObjectMeta::default() },
        }
    }
}

/// What the cluster shows of who initializes Nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CloudManager {
    mode: CloudNodeMode,
    /// With `--cloud-node=auto`.
    signs: Signs,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Signs {
    is_listed: bool,
    /// A Node that another has initialized, and the field manager of that.
    other: Option<(String, String)>,
    has_initialized: bool,
    /// Since when a Node has had its taints that is not initialized.
    waiting_since: Option<Timestamp>,
    /// When the taints of the Node in question were written last.
    tainted: Option<Timestamp>,
    /// The version of the Node in question whose field managers are known.
    version: Option<String>,
}

/// Who initializes Nodes, at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Initializer {
    /// Another program, if there is one.
    Other,
    /// Another program, as a Node shows: its field manager.
    Known {
        manager: String,
        node: String,
    },
    /// That is open until then, or until something happens.
    Open(Option<Timestamp>),
    This,
}

impl CloudManager {
    /// What the caches show, also of a Node.
    pub(crate) fn take(stores: &Stores, mode: CloudNodeMode, node: Option<&Node>) -> Self {
        let signs = if let CloudNodeMode::Auto(_) = mode { Signs::take(stores, node) } else { Signs::default() };
        Self { mode, signs }
    }

    pub(crate) fn initializer<E: Effect, N: Ord>(&self, context: &Context<'_, E, N>) -> Initializer {
        let time = match self.mode {
            CloudNodeMode::Off => return Initializer::Other,
            CloudNodeMode::On => return Initializer::This,
            CloudNodeMode::Auto(time) => time,
        };
        let signs = &self.signs;
        match (&signs.other, signs.waiting_since) {
            _ if !signs.is_listed => Initializer::Open(None),
            (Some((manager, node)), _) => Initializer::Known { manager: manager.clone(), node: node.clone() },
            _ if signs.has_initialized => Initializer::This,
            (None, None) => Initializer::Open(None),
            (None, Some(since)) => {
                // This process has to have seen the taint for as long, by its own clock.
                let begun = since.max(context.leader_since).max(context.connected_since);
                let due = begun.saturating_add(time).unwrap_or(Timestamp::MAX);
                if due <= context.now { Initializer::This } else { Initializer::Open(Some(due)) }
            }
        }
    }

    /// Whether this manager initializes Nodes.
    pub(crate) fn is_on<E: Effect, N: Ord>(&self, context: &Context<'_, E, N>) -> bool {
        self.initializer(context) == Initializer::This
    }

    /// Until when the Node in question is not initialized, while that is yet to come: it is left to others, or who has written it is yet to
    /// be seen. The former counts from the last write of its taints: somebody may taint a Node again before a cloud controller manager is
    /// installed.
    pub(crate) fn pause_end(&self, node: &Node, now: Timestamp) -> Option<Timestamp> {
        let CloudNodeMode::Auto(time) = self.mode else { return None };
        let left =
            tainted_since(node, self.signs.tainted).and_then(|since| since.checked_add(time / SHARE_OF_EACH).ok());
        left.filter(|due| *due > now).or_else(|| self.seen_at(node, now))
    }

    /// When the caches are to show who has written this version of the Node; `None` if they do.
    pub(crate) fn seen_at(&self, node: &Node, now: Timestamp) -> Option<Timestamp> {
        if self.has_seen(node) { None } else { now.checked_add(UNSEEN).ok() }
    }

    /// Whether it is known who has written this version of the Node.
    fn has_seen(&self, node: &Node) -> bool {
        !matches!(self.mode, CloudNodeMode::Auto(_)) || self.signs.version == node.metadata.resource_version
    }
}

impl Signs {
    fn take(stores: &Stores, node: Option<&Node>) -> Self {
        let (managers, nodes) = (stores.of::<NodeManagers>(TARGET), stores.of::<Node>(TARGET));
        let known = node.and_then(|node| managers.by_name("", name(node)));
        let mut signs = Self {
            is_listed: stores.is_listed::<NodeManagers>(TARGET) && stores.is_listed::<Node>(TARGET),
            other: managers.keys_of(BY_OTHER).into_iter().min().and_then(|other| {
                let node = managers.by(BY_OTHER, &other).into_iter().next()?;
                Some((other, name(node.as_ref()).to_owned()))
            }),
            has_initialized: managers.count(BY_US, "") > 0,
            version: known.as_ref().and_then(|known| known.metadata.resource_version.clone()),
            tainted: known.and_then(|known| known.tainted),
            waiting_since: None,
        };
        if signs.other.is_none() && !signs.has_initialized {
            let written = |node: &Node| managers.by_name("", name(node)).and_then(|known| known.tainted);
            let since = |node: &Arc<Node>| tainted_since(node, written(node));
            signs.waiting_since = nodes.by(UNINITIALIZED, "").iter().filter_map(since).min();
        }
        signs
    }
}

/// Since when a Node has had its taints: it was created with them, or they were written then.
fn tainted_since(node: &Node, written: Option<Timestamp>) -> Option<Timestamp> {
    created(node).max(written)
}

/// Watches who initializes Nodes. Plans read the caches, and are not woken: what waits looks again soon.
pub(crate) fn watch(on: &mut Watches<'_>, mode: CloudNodeMode) {
    if let CloudNodeMode::Auto(_) = mode {
        on.kind::<Node>(TARGET, "").index(UNINITIALIZED);
        on.kind::<NodeManagers>(TARGET, "").metadata_only().index(BY_OTHER).index(BY_US);
    }
}

/// The same for one controller of the process, which logs who begins to.
pub(crate) fn watch_and_log(on: &mut Watches<'_>, mode: CloudNodeMode) {
    watch(on, mode);
    if let CloudNodeMode::Auto(_) = mode {
        on.kind::<NodeManagers>(TARGET, "").wakes(log_change);
    }
}

/// Logs who begins to initialize Nodes.
fn log_change(change: &Change<NodeManagers>, stores: &Stores, _: &mut dyn FnMut(ObjectRef)) {
    let (old, Some(new)) = (change.old.as_deref(), change.new.as_deref()) else { return };
    let by_us = stores.of::<NodeManagers>(TARGET).count(BY_US, "");
    let node = name(new);
    match &new.other {
        // The first of its Nodes, also where it was first.
        Some(manager) if old.is_none_or(|old| old.other.is_none()) && (by_us > 0 || by_other(stores, manager) == 1) => {
            tracing::warn!(
                node,
                manager,
                "another program initializes nodes: this manager leaves them to it (--cloud-node=auto)"
            );
        }
        None if new.is_ours && by_us == 1 && old.is_some_and(|old| !old.is_ours) => {
            tracing::info!(node, "no other program initializes nodes: this manager does (--cloud-node=auto)");
        }
        _ => {}
    }
}

fn by_other(stores: &Stores, manager: &str) -> usize {
    stores.of::<NodeManagers>(TARGET).count(BY_OTHER, manager)
}

#[cfg(test)]
mod tests {
    use nodewright_runtime::without_managed_fields;
    use serde_json::{Value, json};

    use super::*;

    fn entry(manager: &str, fields: &Value) -> Value {
        json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "time": "2026-06-01T12:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": fields})
    }

    fn decoded(entries: &[Value]) -> (Option<String>, bool) {
        let node = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"name": "n", "uid": "u", "resourceVersion": "7", "managedFields": entries}});
        let node: NodeManagers = without_managed_fields::from_str(&node.to_string()).unwrap();
        assert_eq!((name(&node), node.metadata.resource_version.as_deref()), ("n", Some("7")));
        (node.other, node.is_ours)
    }

    #[test]
    fn who_owns_addresses_or_the_id_has_initialized_a_node() {
        let addresses =
            json!({"f:status": {"f:addresses": {".": {}, "k:{\"type\":\"InternalIP\"}": {"f:address": {}}}}});
        let id = json!({"f:spec": {"f:providerID": {}}});
        let ready = json!({"f:status": {"f:conditions": {r#"k:{"type":"Ready"}"#: {"f:status": {}}}}});
        let taints =
            json!({"f:spec": {"f:taints": {}}, "f:metadata": {"f:labels": {"f:topology.kubernetes.io/zone": {}}}});
        let label = json!({"f:metadata": {"f:labels": {".": {}, "f:beta.kubernetes.io/instance-type": {}}}});
        let other = |name: &str| (Some(name.to_owned()), false);
        for (entries, expected) in [
            (vec![], (None, false)),
            (vec![entry("kubelet", &id), entry("kubelet", &ready), entry("kubelet", &addresses)], (None, false)),
            // A kubelet of another name.
            (vec![entry("k3s", &id), entry("k3s", &ready)], (None, false)),
            (
                vec![entry("k3s", &ready), entry("aws-cloud-controller-manager", &id)],
                other("aws-cloud-controller-manager"),
            ),
            (vec![entry("cloud-controller-manager", &addresses)], other("cloud-controller-manager")),
            // What many programs write proves nothing.
            (vec![entry("kubectl-taint", &taints), entry("kube-controller-manager", &ready)], (None, false)),
            (vec![entry("nodewright-machine", &addresses), entry("kubelet", &ready)], (None, true)),
            (vec![entry("nodewright-unowned-node", &addresses), entry("kubelet", &ready)], (None, true)),
            // The kubelet was given its address and its id.
            (
                vec![entry("kubelet", &id), entry("kubelet", &addresses), entry("nodewright-machine", &label)],
                (None, true),
            ),
            (vec![entry("kubelet", &id), entry("kubelet", &addresses), entry("ccm", &label)], other("ccm")),
            (vec![entry("nodewright-machine", &addresses), entry("ccm", &addresses)], (Some("ccm".to_owned()), true)),
        ] {
            assert_eq!(decoded(&entries), expected, "{entries:?}");
        }
    }
}
