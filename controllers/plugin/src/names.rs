//! The names of objects in arguments: `machine/a`, `mcd/pool`.

use std::{fmt, str::FromStr};

use crate::resources::{CLASSES, DEPLOYMENTS, KUBELET_CONFIGS, MACHINES, NODES, POOLS, Resource, SETS};

/// The kinds that can be explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetKind {
    Deployment,
    Set,
    Machine,
    Class,
    Node,
    Pool,
    KubeletConfig,
}

impl TargetKind {
    pub(crate) const ALL: [Self; 7] =
        [Self::Deployment, Self::Set, Self::Machine, Self::Class, Self::Node, Self::Pool, Self::KubeletConfig];

    pub(crate) fn resource(self) -> Resource {
        match self {
            Self::Deployment => DEPLOYMENTS,
            Self::Set => SETS,
            Self::Machine => MACHINES,
            Self::Class => CLASSES,
            Self::Node => NODES,
            Self::Pool => POOLS,
            Self::KubeletConfig => KUBELET_CONFIGS,
        }
    }

    pub(crate) fn kind(self) -> &'static str {
        self.resource().kind
    }

    pub(crate) fn is_namespaced(self) -> bool {
        self.resource().namespaced
    }

    fn short(self) -> &'static str {
        match self {
            Self::Deployment => "mcd",
            Self::Set => "mcs",
            Self::Machine => "mc",
            Self::Class => "mcc",
            Self::Node => "no",
            Self::Pool => "mcp",
            Self::KubeletConfig => "kubeletconfig",
        }
    }

    /// By the words that kubectl takes: the kind, the plural, with the group behind a dot, or the short name.
    fn from_word(word: &str) -> Option<Self> {
        let word = word.to_ascii_lowercase();
        let word = word.split('.').next().unwrap_or_default();
        let is = |kind: &Self| {
            [kind.kind().to_ascii_lowercase().as_str(), kind.resource().plural, kind.short()].contains(&word)
        };
        Self::ALL.into_iter().find(is)
    }
}

/// An object by kind and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) kind: TargetKind,
    pub(crate) name: String,
}

impl Target {
    pub(crate) fn new(kind: TargetKind, name: impl Into<String>) -> Self {
        Self { kind, name: name.into() }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.kind().to_ascii_lowercase(), self.name)
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kinds = TargetKind::ALL.map(|kind| kind.kind().to_ascii_lowercase()).join(", ");
        let (kind, name) = text
            .split_once('/')
            .filter(|(_, name)| !name.is_empty() && !name.contains('/'))
            .ok_or_else(|| format!("write KIND/NAME, where KIND is one of {kinds}"))?;
        let kind =
            TargetKind::from_word(kind).ok_or_else(|| format!("there is no kind {kind:?} here; one of {kinds}"))?;
        Ok(Self::new(kind, name))
    }
}

/// The name of an object of one kind, with or without that kind in front.
pub(crate) fn name_of(kind: TargetKind, text: &str) -> Result<String, String> {
    match text.parse::<Target>() {
        Ok(target) if target.kind == kind => Ok(target.name),
        Ok(target) => Err(format!("{target} is no {}", kind.kind())),
        Err(error) if text.contains('/') => Err(error),
        Err(_) if text.is_empty() => Err("a name is missing".to_owned()),
        Err(_) => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_kubectl_name_a_kind() {
        for word in ["mcd", "MachineDeployment", "machinedeployments", "machinedeployment.machine.sapcloud.io"] {
            let target: Target = format!("{word}/pool").parse().unwrap();
            assert_eq!(target, Target::new(TargetKind::Deployment, "pool"), "{word}");
        }
        assert_eq!("node/a".parse::<Target>().unwrap().to_string(), "node/a");
        for wrong in ["pool", "pod/a", "machine/", "machine/a/b"] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
        assert_eq!(name_of(TargetKind::Deployment, "pool").as_deref(), Ok("pool"));
        assert_eq!(name_of(TargetKind::Deployment, "mcd/pool").as_deref(), Ok("pool"));
        assert_eq!(name_of(TargetKind::Deployment, "mc/pool"), Err("machine/pool is no MachineDeployment".to_owned()));
    }
}
