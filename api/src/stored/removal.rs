//! Requests of other programs that stand in metadata.

use std::fmt;

use jiff::Timestamp;

use super::Malformed;

/// A Machine that the cluster autoscaler removes, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal<'a> {
    /// The name of the Machine.
    pub machine: &'a str,
    /// The time as it was written, in RFC 3339: it is copied, and must not change its form.
    pub time: Option<&'a str>,
}

impl fmt::Display for Removal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.machine)?;
        self.time.map_or(Ok(()), |time| write!(f, "~{time}"))
    }
}

/// The list of the Machines that the cluster autoscaler removes: `machine~time,…`. The time is optional. [`removals`] reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removals<'a>(pub Vec<Removal<'a>>);

impl fmt::Display for Removals<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, removal) in self.0.iter().enumerate() {
            f.write_str(if place == 0 { "" } else { "," })?;
            removal.fmt(f)?;
        }
        Ok(())
    }
}

/// The entries of the list [`Removals`], of which each is read by itself.
pub fn removals(list: &str) -> impl Iterator<Item = Result<Removal<'_>, Malformed>> {
    list.split(',').map(str::trim).map(|entry| {
        let Some((machine, time)) = entry.split_once('~') else { return Ok(Removal { machine: entry, time: None }) };
        match time.parse::<Timestamp>() {
            Ok(_) => Ok(Removal { machine, time: Some(time) }),
            Err(_) => Err(Malformed::new("removal of a machine", entry)),
        }
    })
}

/// Whether a finalizer of a KubeletConfig is one of machine-config-operator, which has the name of a MachineConfig.
pub fn is_operator_finalizer(finalizer: &str) -> bool {
    finalizer.starts_with("99-") && finalizer.contains("-generated-kubelet")
}
