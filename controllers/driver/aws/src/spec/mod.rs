//! The providerSpec of a MachineClass of this provider: the fields of machine-controller-manager's AWS provider.

mod rules;
mod shape;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;

use nodewright_api::{Code, RawJson, without_nulls};
use nodewright_driver::DriverError;
use serde::Deserialize;
use serde_json::Value;

/// The name of the AMI's root device, whatever the AMI calls it.
pub(crate) const ROOT_DEVICE: &str = "/root";
/// What the keys of tags contain that name the cluster of a VM.
pub(crate) const CLUSTER_TAG: &str = "kubernetes.io/cluster/";
/// What the keys of tags contain that tell a node from other VMs of the cluster, such as a bastion.
pub(crate) const ROLE_TAG: &str = "kubernetes.io/role/";
/// The key of the tag with the Machine's name.
pub(crate) const NAME_TAG: &str = "Name";

/// The market for spare capacity.
pub(crate) const SPOT: &str = "spot";
/// The market for capacity that is reserved for a time, such as for machine learning.
pub(crate) const CAPACITY_BLOCK: &str = "capacity-block";

/// The maximum number of errors in a message. The rest is reported once these are fixed.
const MOST_FAULTS: usize = 20;

/// What a MachineClass says of its VMs. Names and meaning are those of `AWSProviderSpec`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ProviderSpec {
    #[serde(default, rename = "apiVersion")]
    _api_version: Option<String>,
    #[serde(default, rename = "kind")]
    _kind: Option<String>,
    pub ami: String,
    #[serde(default)]
    pub block_devices: Vec<BlockDevice>,
    pub capacity_reservation: Option<CapacityReservation>,
    pub cpu_options: Option<CpuOptions>,
    /// Accepted and not sent, as by machine-controller-manager's provider.
    #[serde(default, rename = "ebsOptimized")]
    _ebs_optimized: bool,
    pub iam: IamProfile,
    pub instance_market_options: Option<MarketOptions>,
    pub instance_metadata_options: Option<MetadataOptions>,
    pub key_name: Option<String>,
    pub machine_type: String,
    /// Accepted and not sent, as by machine-controller-manager's provider.
    #[serde(default, rename = "monitoring")]
    _monitoring: bool,
    pub network_interfaces: Vec<NetworkInterface>,
    pub placement: Option<Placement>,
    pub region: String,
    /// The older way to the spot market: the highest price of an hour, in dollars; empty for the price on demand.
    pub spot_price: Option<String>,
    pub src_and_dst_checks_enabled: Option<bool>,
    pub tags: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct BlockDevice {
    #[serde(default)]
    pub device_name: String,
    pub ebs: Ebs,
    /// Accepted and not sent, as by machine-controller-manager's provider.
    #[serde(default, rename = "noDevice")]
    _no_device: String,
    /// Accepted and not sent, as by machine-controller-manager's provider.
    #[serde(default, rename = "virtualName")]
    _virtual_name: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Ebs {
    pub delete_on_termination: Option<bool>,
    #[serde(default)]
    pub encrypted: bool,
    /// I/O operations per second; 0 for the default of the volume's type.
    #[serde(default)]
    pub iops: i32,
    #[serde(rename = "kmsKeyID")]
    pub kms_key_id: Option<String>,
    #[serde(rename = "snapshotID")]
    pub snapshot_id: Option<String>,
    /// In MiB per second.
    pub throughput: Option<i32>,
    /// In GiB.
    pub volume_size: i32,
    pub volume_type: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(clippy::struct_field_names, reason = "they are the names in the class")]
pub(crate) struct CapacityReservation {
    pub capacity_reservation_preference: Option<String>,
    pub capacity_reservation_id: Option<String>,
    pub capacity_reservation_resource_group_arn: Option<String>,
    /// An older name for the market `capacity-block`, which machine-controller-manager's provider does not know.
    #[serde(default, rename = "isMLCapacityBlock")]
    pub is_ml_capacity_block: bool,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CpuOptions {
    pub core_count: Option<i32>,
    pub threads_per_core: Option<i32>,
    pub amd_sev_snp: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct IamProfile {
    #[serde(default)]
    pub arn: String,
    #[serde(default)]
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct MarketOptions {
    pub market_type: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(clippy::struct_field_names, reason = "they are the names in the class")]
pub(crate) struct MetadataOptions {
    pub http_endpoint: Option<String>,
    pub http_protocol_ipv6: Option<String>,
    pub http_put_response_hop_limit: Option<i32>,
    pub http_tokens: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct NetworkInterface {
    #[serde(rename = "associatePublicIPAddress")]
    pub associate_public_ip_address: Option<bool>,
    pub delete_on_termination: Option<bool>,
    pub description: Option<String>,
    pub device_index: Option<i32>,
    pub interface_type: Option<String>,
    pub ipv6_address_count: Option<i32>,
    pub ipv6_prefix_count: Option<i32>,
    pub network_card_index: Option<i32>,
    pub primary_ipv6: Option<bool>,
    #[serde(rename = "securityGroupIDs")]
    pub security_group_ids: Vec<String>,
    #[serde(rename = "subnetID")]
    pub subnet_id: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Placement {
    pub affinity: Option<String>,
    pub group_id: Option<String>,
    pub host_id: Option<String>,
    pub partition_number: Option<i32>,
    pub tenancy: Option<String>,
}

impl ProviderSpec {
    /// All of a providerSpec, for `create`.
    pub(crate) fn read(document: &RawJson) -> Result<Self, DriverError> {
        examine(document).map_err(|faults| {
            let faults: Vec<String> = faults.into_iter().map(|(path, what)| format!("{path}: {what}")).collect();
            invalid(faults.join("; ").trim_start_matches(": "))
        })
    }
}

/// By what VMs are found: what `status`, `delete` and `list` need. An error in another field must not keep a VM.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Identity {
    pub region: String,
    /// The tags of the cluster and of the role, sorted.
    pub tags: BTreeMap<String, String>,
    /// Whether the VM's source/destination check has to be switched off. A field that is wrong counts as absent.
    pub forwards: bool,
}

impl Identity {
    pub(crate) fn read(document: &RawJson) -> Result<Self, DriverError> {
        let document: Value = document.parse().map_err(|_| invalid("it is nested too deeply, or is not JSON"))?;
        let region = document.get("region").and_then(Value::as_str).filter(|region| rules::is_region(region));
        let region = region.ok_or_else(|| invalid(&format!("region: {}", rules::REGION)))?;
        let all = document.get("tags").and_then(Value::as_object).into_iter().flatten();
        let own = all.filter(|(key, _)| key.contains(CLUSTER_TAG) || key.contains(ROLE_TAG));
        let tags: Option<BTreeMap<_, _>> =
            own.map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
        let tags = tags.filter(rules::has_owner).ok_or_else(|| invalid(&format!("tags: {}", rules::TAGS)))?;
        let checks = document.get("srcAndDstChecksEnabled").and_then(Value::as_bool);
        Ok(Self { region: region.to_owned(), tags, forwards: checks == Some(false) })
    }
}

/// All errors of a providerSpec: each a path and what is allowed there. Empty exactly if it can be read.
pub(crate) fn validate(document: &RawJson) -> Vec<(String, String)> {
    examine(document).err().unwrap_or_default()
}

fn examine(document: &RawJson) -> Result<ProviderSpec, Vec<(String, String)>> {
    let mut faults = Faults::default();
    let document =
        document.parse::<Value>().map_err(|_| one("", "cannot be read: it is nested too deeply, or is not JSON"))?;
    shape::check(&document, &mut faults);
    if !faults.0.is_empty() {
        return Err(faults.0);
    }
    // Go reads null as absent.
    let spec = serde_json::from_value::<ProviderSpec>(without_nulls(document));
    // The parser's text may quote a confidential value.
    let spec = spec.map_err(|_| one("", "has a field of another type"))?;
    rules::check(&spec, &mut faults);
    if faults.0.is_empty() { Ok(spec) } else { Err(faults.0) }
}

fn one(path: &str, what: &str) -> Vec<(String, String)> {
    vec![(path.to_owned(), what.to_owned())]
}

/// Errors in a providerSpec. None of them has a value in it: users put passwords into wrong fields.
#[derive(Default)]
struct Faults(Vec<(String, String)>);

impl Faults {
    fn add(&mut self, path: impl Into<String>, what: impl Into<String>) {
        if self.0.len() < MOST_FAULTS {
            self.0.push((path.into(), what.into()));
        }
    }
}

fn invalid(what: &str) -> DriverError {
    DriverError::new(Code::InvalidArgument, format!("failed to read providerSpec: {what}; correct the MachineClass"))
}
