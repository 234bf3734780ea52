//! The class of a Node's Machine, as the Node keeps it.

use std::{fmt, str::FromStr};

/// The MachineClass of a Node's Machine: the lists of that class have its VM. A class that was made again has another UID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeClass {
    /// The namespace of the class, and of the Machine.
    pub namespace: String,
    /// The name of the class.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl fmt::Display for NodeClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name, uid } = self;
        write!(f, "{namespace}/{name}/{uid}")
    }
}

/// The text is not `NAMESPACE/NAME/UID`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be NAMESPACE/NAME/UID of a MachineClass")]
pub struct InvalidNodeClass;

impl FromStr for NodeClass {
    type Err = InvalidNodeClass;

    fn from_str(text: &str) -> Result<Self, InvalidNodeClass> {
        let parts: Vec<_> = text.split('/').map(str::to_owned).collect();
        let [namespace, name, uid] = parts.try_into().map_err(|_| InvalidNodeClass)?;
        Ok(Self { namespace, name, uid })
    }
}
