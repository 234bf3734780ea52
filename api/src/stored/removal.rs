//! Requests of other programs that stand in metadata.

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

impl Removal<'_> {
    /// The entry, with a time for one that has none.
    pub fn text(&self, since: &str) -> String {
        format!("{}~{}", self.machine, self.time.unwrap_or(since))
    }
}

/// The entries of the list `machine~time,…`. The time is optional.
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
