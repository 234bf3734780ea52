//! The MachineDeployment that last sized a MachineSet.

use std::{fmt, str::FromStr};

use super::Malformed;

/// The UID and the generation of the MachineDeployment that last sized a MachineSet, as `<uid>/<generation>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizedFor {
    /// The UID of the deployment: one that was restored has another, and does not count.
    pub uid: String,
    /// Its generation.
    pub generation: i64,
}

impl fmt::Display for SizedFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.uid, self.generation)
    }
}

impl FromStr for SizedFor {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let found = text
            .rsplit_once('/')
            .and_then(|(uid, generation)| Some(Self { uid: uid.to_owned(), generation: generation.parse().ok()? }));
        found.ok_or_else(|| Malformed::new("size of a deployment", text))
    }
}
