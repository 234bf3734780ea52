//! The parameters of EC2's requests, as pure functions. `action` has the names of EC2's query protocol.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use nodewright_api::Code;
use nodewright_driver::{DriverError, MachineRequest, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{
    placement,
    spec::{
        BlockDevice, CAPACITY_BLOCK, CapacityReservation, CpuOptions, Identity, MetadataOptions, NAME_TAG,
        NetworkInterface, Placement, ProviderSpec, ROOT_DEVICE, SPOT,
    },
};

/// The version of EC2's interface.
const VERSION: &str = "2016-11-15";
/// The version of the interface of STS.
const STS_VERSION: &str = "2011-06-15";
/// What a VM may be booted with, in bytes before the encoding.
const MOST_USER_DATA: usize = 16 << 10;
/// The longest token of a creation.
const LONGEST_TOKEN: usize = 64;
/// A tag is written on all that a VM is made of.
const TAGGED: [&str; 3] = ["instance", "volume", "network-interface"];
/// All states but `terminated`: that VM is gone, though EC2 shows it for an hour.
const LIVE_STATES: [&str; 5] = ["pending", "running", "shutting-down", "stopping", "stopped"];

/// Characters of a form that have to be encoded.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A request of EC2 or STS. It may have user data or a token in it, so it is not printed.
#[derive(Clone)]
pub(crate) struct Action {
    pub name: &'static str,
    /// What the request counts as in metrics: the names of machine-controller-manager's provider, and of its providers for other clouds.
    pub service: &'static str,
    version: &'static str,
    parameters: Vec<(String, String)>,
}

impl Action {
    pub(crate) fn new(name: &'static str, service: &'static str) -> Self {
        Self { name, service, version: VERSION, parameters: vec![] }
    }

    /// A request of STS. Those are not counted.
    pub(crate) fn of_sts(name: &'static str) -> Self {
        Self { version: STS_VERSION, ..Self::new(name, "") }
    }

    #[allow(clippy::needless_pass_by_value, reason = "a call with a number or a text reads better without a reference")]
    fn set(&mut self, name: impl Into<String>, value: impl ToString) {
        self.parameters.push((name.into(), value.to_string()));
    }

    fn set_some(&mut self, name: impl Into<String>, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }

    /// Adds a text unless it is empty.
    fn set_text(&mut self, name: impl Into<String>, value: Option<&String>) {
        self.set_some(name, value.filter(|text| !text.is_empty()));
    }

    /// The same request with another parameter.
    pub(crate) fn with(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.set(name, value);
        self
    }

    fn with_filter(mut self, number: usize, name: &str, values: &[&str]) -> Self {
        self.set(format!("Filter.{number}.Name"), name);
        for (at, value) in values.iter().enumerate() {
            self.set(format!("Filter.{number}.Value.{}", at + 1), value);
        }
        self
    }

    /// The body of the request: a form.
    pub(crate) fn body(&self) -> String {
        let escaped = |text: &str| utf8_percent_encode(text, RESERVED).to_string();
        let mut body = format!("Action={}&Version={}", escaped(self.name), self.version);
        for (name, value) in &self.parameters {
            body.extend(["&", &escaped(name), "=", &escaped(value)]);
        }
        body
    }

    #[cfg(test)]
    pub(crate) fn parameters(&self) -> &[(String, String)] {
        &self.parameters
    }
}

/// The root device of the class's AMI is looked up: classes call it `/root`.
pub(crate) fn describe_image(ami: &str) -> Action {
    Action::new("DescribeImages", "image_get").with("ImageId.1", ami)
}

pub(crate) fn describe_instance(id: &str) -> Action {
    Action::new("DescribeInstances", "instance_get_by_id").with("InstanceId.1", id)
}

/// The VMs of a Machine that are not gone: those with all these tags.
pub(crate) fn describe_owned(tags: &BTreeMap<String, String>) -> Action {
    describe_tagged("instance_get_by_machine", tags)
}

/// The VMs of a cluster that are not gone: those with all these tags.
pub(crate) fn describe_all(tags: &BTreeMap<String, String>) -> Action {
    describe_tagged("instance_get_by_tag_and_status", tags)
}

fn describe_tagged(service: &'static str, tags: &BTreeMap<String, String>) -> Action {
    let live = Action::new("DescribeInstances", service).with_filter(1, "instance-state-name", &LIVE_STATES);
    tags.iter()
        .enumerate()
        .fold(live, |action, (at, (key, value))| action.with_filter(at + 2, &format!("tag:{key}"), &[&literal(value)]))
}

/// A filter has wildcards.
fn literal(text: &str) -> String {
    text.replace('\\', "\\\\").replace('*', "\\*").replace('?', "\\?")
}

pub(crate) fn terminate(id: &str) -> Action {
    Action::new("TerminateInstances", "instance_terminate").with("InstanceId.1", id)
}

/// Lets a VM forward packets that are not its own. It is said of each interface, since EC2 takes it for a VM of one only.
pub(crate) fn stop_source_check(interface: &str) -> Action {
    Action::new("ModifyNetworkInterfaceAttribute", "instance_disable_source_dest_check")
        .with("NetworkInterfaceId", interface)
        .with("SourceDestCheck.Value", false)
}

/// The tags by which the VM of a Machine is found.
pub(crate) fn owner_tags(identity: &Identity, machine: &str) -> BTreeMap<String, String> {
    let mut tags = identity.tags.clone();
    tags.insert(NAME_TAG.to_owned(), machine.to_owned());
    tags
}

/// The creation of a Machine's VM. `root_device` is the AMI's name of its root device, which only block devices need.
///
/// # Errors
/// `InvalidArgument` for user data, tokens and placements that EC2 does not take.
pub(crate) fn run_instances(spec: &ProviderSpec, request: &MachineRequest, root_device: &str) -> Result<Action> {
    let mut action = Action::new("RunInstances", "instance_create");
    action.set("ImageId", &spec.ami);
    action.set("InstanceType", &spec.machine_type);
    action.set("MinCount", 1);
    action.set("MaxCount", 1);
    action.set("ClientToken", token(&request.uid)?);
    action.set_text("KeyName", spec.key_name.as_ref());
    add_user_data(&mut action, &request.user_data.0)?;
    action.set_text("IamInstanceProfile.Name", Some(&spec.iam.name));
    action.set_text("IamInstanceProfile.Arn", Some(&spec.iam.arn));
    add_devices(&mut action, &spec.block_devices, root_device);
    for (at, interface) in spec.network_interfaces.iter().enumerate() {
        add_interface(&mut action, at, interface);
    }
    add_tags(&mut action, spec, &request.name);
    if let Some(options) = &spec.instance_metadata_options {
        add_metadata(&mut action, options);
    }
    if let Some(options) = &spec.cpu_options {
        add_cpu(&mut action, options);
    }
    match &spec.placement {
        Some(placement) => add_placement(&mut action, placement),
        None => {
            for (field, value) in placement::annotated(request)? {
                action.set(format!("Placement.{field}"), value);
            }
        }
    }
    if let Some(reservation) = &spec.capacity_reservation {
        add_reservation(&mut action, reservation);
    }
    add_market(&mut action, spec);
    Ok(action)
}

/// Whether the AMI's name of its root device is needed.
pub(crate) fn names_root_device(devices: &[BlockDevice]) -> bool {
    devices.len() == 1 || devices.iter().any(|device| device.device_name == ROOT_DEVICE)
}

fn token(uid: &str) -> Result<&str> {
    let is_token = (1..=LONGEST_TOKEN).contains(&uid.len()) && uid.bytes().all(|byte| byte.is_ascii_graphic());
    is_token.then_some(uid).ok_or_else(|| {
        let message = "the Machine's UID cannot be a client token: it must have 1 to 64 characters of ASCII";
        DriverError::new(Code::InvalidArgument, message)
    })
}

fn add_user_data(action: &mut Action, data: &str) -> Result<()> {
    if data.len() > MOST_USER_DATA {
        let message = format!("user data of {} bytes is too long; EC2 takes {MOST_USER_DATA}", data.len());
        return Err(DriverError::new(Code::InvalidArgument, message));
    }
    if !data.is_empty() {
        action.set("UserData", STANDARD.encode(data));
    }
    Ok(())
}

fn add_devices(action: &mut Action, devices: &[BlockDevice], root_device: &str) {
    for (at, device) in devices.iter().enumerate() {
        let path = format!("BlockDeviceMapping.{}", at + 1);
        let is_root = devices.len() == 1 || device.device_name == ROOT_DEVICE;
        action.set(format!("{path}.DeviceName"), if is_root { root_device } else { &device.device_name });
        let (path, ebs) = (format!("{path}.Ebs"), &device.ebs);
        action.set(format!("{path}.DeleteOnTermination"), ebs.delete_on_termination.unwrap_or(true));
        action.set(format!("{path}.Encrypted"), ebs.encrypted);
        action.set_some(format!("{path}.Iops"), (ebs.iops > 0).then_some(ebs.iops));
        action.set_some(format!("{path}.Throughput"), ebs.throughput);
        action.set_text(format!("{path}.KmsKeyId"), ebs.kms_key_id.as_ref());
        action.set_text(format!("{path}.SnapshotId"), ebs.snapshot_id.as_ref());
        action.set(format!("{path}.VolumeSize"), ebs.volume_size);
        action.set(format!("{path}.VolumeType"), &ebs.volume_type);
    }
}

fn add_interface(action: &mut Action, at: usize, interface: &NetworkInterface) {
    let path = format!("NetworkInterface.{}", at + 1);
    let device = interface.device_index.map_or_else(|| at.to_string(), |index| index.to_string());
    action.set(format!("{path}.DeviceIndex"), device);
    action.set(format!("{path}.SubnetId"), &interface.subnet_id);
    for (number, group) in interface.security_group_ids.iter().enumerate() {
        action.set(format!("{path}.SecurityGroupId.{}", number + 1), group);
    }
    action.set(format!("{path}.DeleteOnTermination"), interface.delete_on_termination.unwrap_or(true));
    action.set_some(format!("{path}.AssociatePublicIpAddress"), interface.associate_public_ip_address);
    action.set_text(format!("{path}.Description"), interface.description.as_ref());
    action.set_text(format!("{path}.InterfaceType"), interface.interface_type.as_ref());
    action.set_some(format!("{path}.Ipv6AddressCount"), interface.ipv6_address_count);
    action.set_some(format!("{path}.Ipv6PrefixCount"), interface.ipv6_prefix_count);
    action.set_some(format!("{path}.NetworkCardIndex"), interface.network_card_index);
    // As machine-controller-manager's provider does, so that the address of a node does not change.
    let primary = interface.primary_ipv6.or_else(|| interface.ipv6_address_count.map(|_| true));
    action.set_some(format!("{path}.PrimaryIpv6"), primary);
}

/// Sorted: with one token, EC2 refuses a request that differs.
fn add_tags(action: &mut Action, spec: &ProviderSpec, machine: &str) {
    // A name in the class would hide the VM from its Machine.
    let mut tags: BTreeMap<&str, &str> = spec.tags.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    tags.insert(NAME_TAG, machine);
    for (number, resource) in TAGGED.iter().enumerate() {
        let path = format!("TagSpecification.{}", number + 1);
        action.set(format!("{path}.ResourceType"), resource);
        for (at, (key, value)) in tags.iter().enumerate() {
            action.set(format!("{path}.Tag.{}.Key", at + 1), key);
            action.set(format!("{path}.Tag.{}.Value", at + 1), value);
        }
    }
}

fn add_metadata(action: &mut Action, options: &MetadataOptions) {
    action.set_text("MetadataOptions.HttpEndpoint", options.http_endpoint.as_ref());
    action.set_text("MetadataOptions.HttpTokens", options.http_tokens.as_ref());
    action.set_some("MetadataOptions.HttpPutResponseHopLimit", options.http_put_response_hop_limit);
    action.set_text("MetadataOptions.HttpProtocolIpv6", options.http_protocol_ipv6.as_ref());
}

fn add_cpu(action: &mut Action, options: &CpuOptions) {
    action.set_some("CpuOptions.CoreCount", options.core_count);
    action.set_some("CpuOptions.ThreadsPerCore", options.threads_per_core);
    action.set_text("CpuOptions.AmdSevSnp", options.amd_sev_snp.as_ref());
}

fn add_placement(action: &mut Action, placement: &Placement) {
    action.set_text("Placement.Affinity", placement.affinity.as_ref());
    action.set_text("Placement.GroupId", placement.group_id.as_ref());
    action.set_text("Placement.HostId", placement.host_id.as_ref());
    action.set_some("Placement.PartitionNumber", placement.partition_number);
    action.set_text("Placement.Tenancy", placement.tenancy.as_ref());
}

fn add_reservation(action: &mut Action, reservation: &CapacityReservation) {
    let path = "CapacityReservationSpecification";
    let target = format!("{path}.CapacityReservationTarget");
    let preference = reservation.capacity_reservation_preference.as_ref();
    action.set_text(format!("{path}.CapacityReservationPreference"), preference);
    let group = reservation.capacity_reservation_resource_group_arn.as_ref();
    action.set_text(format!("{target}.CapacityReservationId"), reservation.capacity_reservation_id.as_ref());
    action.set_text(format!("{target}.CapacityReservationResourceGroupArn"), group);
}

/// EC2 takes spot VMs for one-time ones if nothing else is asked for.
fn add_market(action: &mut Action, spec: &ProviderSpec) {
    let path = "InstanceMarketOptions";
    let is_block = spec.capacity_reservation.as_ref().is_some_and(|reservation| reservation.is_ml_capacity_block);
    if let Some(options) = &spec.instance_market_options {
        action.set(format!("{path}.MarketType"), &options.market_type);
    } else if is_block {
        action.set(format!("{path}.MarketType"), CAPACITY_BLOCK);
    } else if let Some(price) = &spec.spot_price {
        action.set(format!("{path}.MarketType"), SPOT);
        action.set(format!("{path}.SpotOptions.SpotInstanceType"), "one-time");
        action.set_text(format!("{path}.SpotOptions.MaxPrice"), Some(price));
    }
}

#[cfg(test)]
mod tests {
    use nodewright_api::RawJson;
    use nodewright_driver::SecretText;
    use nodewright_driver_contract::{class, machine};
    use serde_json::{Value, json};

    use super::*;
    use crate::spec::tests::{full, small};

    fn asked(document: &Value, root_device: &str) -> Vec<String> {
        let spec = ProviderSpec::read(&RawJson::from(document)).unwrap();
        let request = machine("m-1", class(document));
        let action = run_instances(&spec, &request, root_device).unwrap();
        action.parameters().iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    /// What a field adds to the request of a small class.
    #[track_caller]
    fn adds(field: &str, value: Value, expected: &[&str]) {
        let mut document = small("c");
        document[field] = value;
        let (without, with) = (asked(&small("c"), "/dev/xvda"), asked(&document, "/dev/xvda"));
        let new: Vec<&String> = with.iter().filter(|parameter| !without.contains(parameter)).collect();
        assert_eq!(new, expected, "{field}");
    }

    #[test]
    fn a_small_class_asks_for_little() {
        let expected = [
            "ImageId=ami-1",
            "InstanceType=t3.small",
            "MinCount=1",
            "MaxCount=1",
            "ClientToken=uid-of-m-1",
            "IamInstanceProfile.Name=nodes",
            "NetworkInterface.1.DeviceIndex=0",
            "NetworkInterface.1.SubnetId=subnet-1",
            "NetworkInterface.1.SecurityGroupId.1=sg-1",
            "NetworkInterface.1.DeleteOnTermination=true",
        ];
        let asked = asked(&small("c"), "");
        assert_eq!(asked[..expected.len()], expected);
        assert!(asked[expected.len()..].iter().all(|parameter| parameter.starts_with("TagSpecification.")));
    }

    #[test]
    fn each_field_becomes_the_parameters_of_machine_controller_managers_provider() {
        adds("keyName", json!("key"), &["KeyName=key"]);
        adds("keyName", json!(""), &[]);
        let arn = "arn:aws:iam::1:instance-profile/n";
        adds("iam", json!({"arn": arn}), &[&format!("IamInstanceProfile.Arn={arn}")]);
        adds(
            "spotPrice",
            json!(""),
            &["InstanceMarketOptions.MarketType=spot", "InstanceMarketOptions.SpotOptions.SpotInstanceType=one-time"],
        );
        adds(
            "spotPrice",
            json!("0.05"),
            &[
                "InstanceMarketOptions.MarketType=spot",
                "InstanceMarketOptions.SpotOptions.SpotInstanceType=one-time",
                "InstanceMarketOptions.SpotOptions.MaxPrice=0.05",
            ],
        );
        for market in ["spot", "capacity-block", "interruptible-capacity-reservation"] {
            let expected = format!("InstanceMarketOptions.MarketType={market}");
            adds("instanceMarketOptions", json!({"marketType": market}), &[&expected]);
        }
        let metadata = json!({"httpEndpoint": "enabled", "httpTokens": "required", "httpPutResponseHopLimit": 2, "httpProtocolIpv6": ""});
        adds(
            "instanceMetadataOptions",
            metadata,
            &[
                "MetadataOptions.HttpEndpoint=enabled",
                "MetadataOptions.HttpTokens=required",
                "MetadataOptions.HttpPutResponseHopLimit=2",
            ],
        );
        adds(
            "cpuOptions",
            json!({"coreCount": 4, "threadsPerCore": 1, "amdSevSnp": "enabled"}),
            &["CpuOptions.CoreCount=4", "CpuOptions.ThreadsPerCore=1", "CpuOptions.AmdSevSnp=enabled"],
        );
        adds("cpuOptions", json!({"amdSevSnp": "enabled"}), &["CpuOptions.AmdSevSnp=enabled"]);
        adds(
            "placement",
            json!({"groupId": "pg-1", "partitionNumber": 2}),
            &["Placement.GroupId=pg-1", "Placement.PartitionNumber=2"],
        );
        // machine-controller-manager's provider takes these and does not send them.
        for field in ["ebsOptimized", "monitoring", "srcAndDstChecksEnabled"] {
            adds(field, json!(true), &[]);
        }
    }

    #[test]
    fn a_capacity_reservation_is_named_by_preference_id_or_group() {
        let path = "CapacityReservationSpecification.CapacityReservation";
        adds(
            "capacityReservation",
            json!({"capacityReservationPreference": "none"}),
            &[&format!("{path}Preference=none")],
        );
        adds(
            "capacityReservation",
            json!({"capacityReservationId": "cr-1"}),
            &[&format!("{path}Target.CapacityReservationId=cr-1")],
        );
        adds(
            "capacityReservation",
            json!({"capacityReservationResourceGroupArn": "arn:1"}),
            &[&format!("{path}Target.CapacityReservationResourceGroupArn=arn:1")],
        );
        adds(
            "capacityReservation",
            json!({"capacityReservationId": "cr-1", "isMLCapacityBlock": true}),
            &[&format!("{path}Target.CapacityReservationId=cr-1"), "InstanceMarketOptions.MarketType=capacity-block"],
        );
    }

    #[test]
    fn two_names_of_a_market_are_one_parameter() {
        let mut document = small("c");
        document["capacityReservation"] = json!({"capacityReservationId": "cr-1", "isMLCapacityBlock": true});
        document["instanceMarketOptions"] = json!({"marketType": "capacity-block"});
        let market = |document| {
            let mut asked = asked(document, "");
            asked.retain(|parameter| parameter.starts_with("InstanceMarketOptions."));
            asked
        };
        assert_eq!(market(&document), ["InstanceMarketOptions.MarketType=capacity-block"]);
        let mut document = small("c");
        document["spotPrice"] = json!("");
        document["instanceMarketOptions"] = json!({"marketType": "spot"});
        assert_eq!(market(&document), ["InstanceMarketOptions.MarketType=spot"]);
    }

    #[test]
    fn block_devices_are_deleted_with_the_vm_unless_the_class_keeps_them() {
        let ebs = json!({"volumeSize": 50, "volumeType": "gp3"});
        let one = &[
            "BlockDeviceMapping.1.DeviceName=/dev/xvda",
            "BlockDeviceMapping.1.Ebs.DeleteOnTermination=true",
            "BlockDeviceMapping.1.Ebs.Encrypted=false",
            "BlockDeviceMapping.1.Ebs.VolumeSize=50",
            "BlockDeviceMapping.1.Ebs.VolumeType=gp3",
        ];
        // The only device is the root device, whatever its name.
        for name in ["/root", "", "/dev/sdf"] {
            adds("blockDevices", json!([{"deviceName": name, "ebs": ebs}]), one);
        }
        let data = json!({"volumeSize": 20, "volumeType": "io1", "iops": 100, "throughput": 125, "encrypted": true,
            "kmsKeyID": "key-1", "snapshotID": "snap-1", "deleteOnTermination": false});
        let second = [
            "BlockDeviceMapping.2.DeviceName=/dev/sdf",
            "BlockDeviceMapping.2.Ebs.DeleteOnTermination=false",
            "BlockDeviceMapping.2.Ebs.Encrypted=true",
            "BlockDeviceMapping.2.Ebs.Iops=100",
            "BlockDeviceMapping.2.Ebs.Throughput=125",
            "BlockDeviceMapping.2.Ebs.KmsKeyId=key-1",
            "BlockDeviceMapping.2.Ebs.SnapshotId=snap-1",
            "BlockDeviceMapping.2.Ebs.VolumeSize=20",
            "BlockDeviceMapping.2.Ebs.VolumeType=io1",
        ];
        let both = json!([{"deviceName": "/root", "ebs": ebs}, {"deviceName": "/dev/sdf", "ebs": data}]);
        adds("blockDevices", both, &[&one[..], &second[..]].concat());
    }

    #[test]
    fn an_interface_has_all_its_fields() {
        let asked = asked(&full("c"), "/dev/xvda");
        let second: Vec<&str> =
            asked.iter().filter_map(|parameter| parameter.strip_prefix("NetworkInterface.2.")).collect();
        assert_eq!(
            second,
            [
                "DeviceIndex=3",
                "SubnetId=subnet-2",
                "SecurityGroupId.1=sg-2",
                "SecurityGroupId.2=sg-3",
                "DeleteOnTermination=false",
                "AssociatePublicIpAddress=false",
                "Description=second",
                "InterfaceType=efa",
                "Ipv6AddressCount=1",
                "Ipv6PrefixCount=1",
                "NetworkCardIndex=1",
                "PrimaryIpv6=true",
            ]
        );
    }

    #[test]
    fn the_first_ipv6_address_of_an_interface_is_its_primary_one_unless_the_class_says_otherwise() {
        for (fields, expected) in [
            (json!({"ipv6AddressCount": 1}), vec!["Ipv6AddressCount=1", "PrimaryIpv6=true"]),
            (json!({"ipv6AddressCount": 1, "primaryIpv6": false}), vec!["Ipv6AddressCount=1", "PrimaryIpv6=false"]),
            (json!({}), vec![]),
        ] {
            let mut document = small("c");
            for (name, value) in fields.as_object().unwrap() {
                document["networkInterfaces"][0][name] = value.clone();
            }
            let asked = asked(&document, "");
            let ipv6: Vec<&str> = asked
                .iter()
                .filter_map(|parameter| parameter.strip_prefix("NetworkInterface.1."))
                .filter(|parameter| parameter.contains("pv6"))
                .collect();
            assert_eq!(ipv6, expected);
        }
    }

    #[test]
    fn tags_are_sorted_and_the_name_is_the_machines() {
        let mut document = small("c");
        document["tags"]["Name"] = json!("of-the-class");
        document["tags"]["zone"] = json!("a");
        document["tags"]["Owner"] = json!("me");
        let asked = asked(&document, "");
        for (number, resource) in TAGGED.iter().enumerate() {
            let prefix = format!("TagSpecification.{}.", number + 1);
            let tags: Vec<&str> = asked.iter().filter_map(|parameter| parameter.strip_prefix(&prefix)).collect();
            let expected = [
                &format!("ResourceType={resource}"),
                "Tag.1.Key=Name",
                "Tag.1.Value=m-1",
                "Tag.2.Key=Owner",
                "Tag.2.Value=me",
                "Tag.3.Key=kubernetes.io/cluster/c",
                "Tag.3.Value=1",
                "Tag.4.Key=kubernetes.io/role/node",
                "Tag.4.Value=1",
                "Tag.5.Key=zone",
                "Tag.5.Value=a",
            ];
            assert_eq!(tags, expected);
        }
    }

    #[test]
    fn user_data_is_encoded_and_bounded() {
        let spec = ProviderSpec::read(&RawJson::from(&small("c"))).unwrap();
        let with = |data: String| {
            let request = MachineRequest { user_data: SecretText(data.into()), ..machine("m", class(&small("c"))) };
            run_instances(&spec, &request, "").map(|action| {
                action.parameters().iter().find(|(name, _)| name == "UserData").map(|(_, value)| value.clone())
            })
        };
        assert_eq!(with(String::new()), Ok(None));
        assert_eq!(with("#!/bin/sh\n".to_owned()), Ok(Some("IyEvYmluL3NoCg==".to_owned())));
        assert!(with("x".repeat(16 << 10)).is_ok());
        let error = with("x".repeat((16 << 10) + 1)).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
        assert!(!error.message.contains("xx"), "{error}");
    }

    #[test]
    fn a_token_is_what_ec2_takes() {
        let spec = ProviderSpec::read(&RawJson::from(&small("c"))).unwrap();
        for (uid, is_token) in
            [("a".repeat(64), true), ("a".repeat(65), false), (String::new(), false), ("ü".to_owned(), false)]
        {
            let request = MachineRequest { uid: uid.clone(), ..machine("m", class(&small("c"))) };
            assert_eq!(run_instances(&spec, &request, "").is_ok(), is_token, "{uid}");
        }
    }

    #[test]
    fn a_body_is_a_form_and_a_filter_has_no_wildcards() {
        let tags = BTreeMap::from([("a/b".to_owned(), "x*?\\ &=ü".to_owned())]);
        let body = describe_owned(&tags).body();
        assert!(body.starts_with(
            "Action=DescribeInstances&Version=2016-11-15&Filter.1.Name=instance-state-name&Filter.1.Value.1=pending&"
        ));
        assert!(
            body.ends_with("&Filter.2.Name=tag%3Aa%2Fb&Filter.2.Value.1=x%5C%2A%5C%3F%5C%5C%20%26%3D%C3%BC"),
            "{body}"
        );
    }
}
