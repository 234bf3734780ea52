//! The machines that are being updated in place.

use std::{collections::BTreeSet, fmt, str::FromStr};

use super::Malformed;

/// Names of Machines, separated by commas: those that are being updated in place to the template of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Updating(pub BTreeSet<String>);

impl FromStr for Updating {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let is_name = |name: &&str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
        };
        let names: BTreeSet<_> = text.split(',').collect();
        if !names.iter().all(is_name) {
            return Err(Malformed::new("list of machines", text));
        }
        Ok(Self(names.into_iter().map(str::to_owned).collect()))
    }
}

impl fmt::Display for Updating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, name) in self.0.iter().enumerate() {
            write!(f, "{}{name}", if at > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}
