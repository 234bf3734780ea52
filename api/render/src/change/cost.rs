//! What a change costs a node: a reboot, or less for paths that a policy names.

use super::{Difference, differences};
use crate::spec::RenderedSpec;
use std::collections::BTreeSet;
use std::fmt;

/// Something that is done to a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Its Pods are evicted.
    Drain,
    /// A service reads its configuration again.
    Reload(String),
    /// A service is started again.
    Restart(String),
    /// The node is drained and started again.
    Reboot,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drain => f.write_str("drain"),
            Self::Reload(unit) => write!(f, "reload {unit}"),
            Self::Restart(unit) => write!(f, "restart {unit}"),
            Self::Reboot => f.write_str("reboot"),
        }
    }
}

/// What is done for a change of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePolicy {
    /// A file, or a folder with all below it.
    pub path: String,
    /// What is done. Empty: nothing.
    pub actions: Vec<Action>,
}

/// What is done for which change. A reboot where it has no rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// By path. The longest one that fits counts.
    pub files: Vec<FilePolicy>,
}

const CRIO: &str = "crio.service";

/// The defaults of machine-config-operator.
impl Default for Policy {
    fn default() -> Self {
        let file = |path: &str, actions: &[Action]| FilePolicy { path: path.to_owned(), actions: actions.to_vec() };
        let reload = || Action::Reload(CRIO.to_owned());
        let restart = |unit: &str| Action::Restart(unit.to_owned());
        Self {
            files: vec![
                file("/etc/containers/policy.json", &[reload()]),
                // A change that only adds mirrors for digests needs no drain. The daemon sees that, a preview is careful.
                file("/etc/containers/registries.conf", &[Action::Drain, reload()]),
                file("/etc/containers/registries.d", &[reload()]),
                file("/etc/crio/policies", &[reload()]),
                file("/etc/kubernetes/credential-providers", &[restart("kubelet.service")]),
                file("/etc/kubernetes/kubelet-ca.crt", &[]),
                file("/etc/machine-config-daemon/no-reboot/containers-gpg.pub", &[reload()]),
                file("/etc/nmstate/openshift", &[]),
                file(
                    "/etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt",
                    &[restart("coreos-update-ca-trust.service"), restart(CRIO)],
                ),
                file("/var/lib/kubelet/config.json", &[]),
            ],
        }
    }
}

impl Policy {
    /// What is done for a change of a file. None if the policy has no rule.
    pub fn of_file(&self, path: &str) -> Option<&[Action]> {
        let is_below =
            |folder: &str| path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let fitting = self.files.iter().filter(|policy| is_below(policy.path.trim_end_matches('/')));
        fitting.max_by_key(|policy| policy.path.trim_end_matches('/').len()).map(|policy| policy.actions.as_slice())
    }

    /// What is done for a difference. None if the policy has no rule.
    fn of(&self, difference: &Difference) -> Option<&[Action]> {
        let element = |list: &str| difference.key.strip_prefix(list)?.strip_prefix('[')?.strip_suffix(']');
        match element("config.storage.files") {
            Some(path) => self.of_file(path),
            // Keys and passwords of users need nothing.
            None => element("config.passwd.users").map(|_| [].as_slice()),
        }
    }
}

/// What a change costs each node, in the order in which it is done. Empty: nothing that a Pod would notice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost(Vec<Action>);

impl Cost {
    /// Whether the Pods of the node have to leave it.
    pub fn drains(&self) -> bool {
        self.0.iter().any(|action| matches!(action, Action::Drain | Action::Reboot))
    }

    /// Whether the node starts again.
    pub fn reboots(&self) -> bool {
        self.0.contains(&Action::Reboot)
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let actions: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&actions.join(", "))
    }
}

/// What a change costs each node.
pub fn cost(old: &RenderedSpec, new: &RenderedSpec, policy: &Policy) -> Cost {
    let mut actions = BTreeSet::new();
    for difference in differences(old, new) {
        match policy.of(&difference) {
            Some(more) => actions.extend(more.iter().cloned()),
            None => return Cost(vec![Action::Reboot]),
        }
    }
    if actions.contains(&Action::Reboot) {
        return Cost(vec![Action::Reboot]);
    }
    // A service that is started again reads its configuration.
    let restarted: BTreeSet<_> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Restart(unit) => Some(unit.clone()),
            _ => None,
        })
        .collect();
    actions.retain(|action| !matches!(action, Action::Reload(unit) if restarted.contains(unit)));
    Cost(actions.into_iter().collect())
}
