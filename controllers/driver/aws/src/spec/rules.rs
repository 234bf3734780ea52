//! The rules that a providerSpec has to keep beyond its types: those of machine-controller-manager's AWS provider, and limits of
//! EC2 that it would otherwise report only when a VM is made.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    BlockDevice, CAPACITY_BLOCK, CLUSTER_TAG, CapacityReservation, Faults, NAME_TAG, NetworkInterface, ProviderSpec,
    ROLE_TAG, ROOT_DEVICE, SPOT,
};

pub(super) const REGION: &str = "must be the name of a region, such as eu-west-1";
pub(super) const TAGS: &str =
    "must have a key with kubernetes.io/cluster/ and one with kubernetes.io/role/, whose values are texts";

/// EC2's limits for tags; the tag Name is added to those of the class.
const MOST_TAGS: usize = 49;
const LONGEST_KEY: usize = 128;
const LONGEST_VALUE: usize = 256;

pub(super) fn check(spec: &ProviderSpec, faults: &mut Faults) {
    for (path, text) in [("ami", &spec.ami), ("machineType", &spec.machine_type)] {
        if text.is_empty() {
            faults.add(path, "must not be empty");
        }
    }
    if !is_region(&spec.region) {
        faults.add("region", REGION);
    }
    if spec.iam.name.is_empty() == spec.iam.arn.is_empty() {
        faults.add("iam", "must have either a name or an arn");
    }
    check_market(spec, faults);
    check_devices(&spec.block_devices, faults);
    check_interfaces(&spec.network_interfaces, faults);
    if let Some(options) = &spec.cpu_options
        && options.core_count.is_some() != options.threads_per_core.is_some()
    {
        let missing = if options.core_count.is_none() { "coreCount" } else { "threadsPerCore" };
        faults.add(format!("cpuOptions.{missing}"), "must be there: coreCount and threadsPerCore go together");
    }
    if let Some(reservation) = &spec.capacity_reservation {
        check_reservation(reservation, faults);
    }
    check_tags(&spec.tags, faults);
}

/// The region becomes a part of the host that gets the requests.
pub(super) fn is_region(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=32).contains(&text.len()) && text.bytes().all(is_allowed) && !text.starts_with('-') && !text.ends_with('-')
}

/// Whether the tags name a cluster and a role: VMs of the cluster that are no nodes must not be found.
pub(super) fn has_owner(tags: &BTreeMap<String, String>) -> bool {
    [CLUSTER_TAG, ROLE_TAG].iter().all(|part| tags.keys().any(|key| key.contains(part)))
}

fn is_price(text: &str) -> bool {
    text.is_empty() || text.parse::<f64>().is_ok_and(|price| price.is_finite() && price > 0.0)
}

/// machine-controller-manager's provider sends the market of `instanceMarketOptions`, and leaves the price of `spotPrice` out then.
fn check_market(spec: &ProviderSpec, faults: &mut Faults) {
    let market = spec.instance_market_options.as_ref().map(|options| options.market_type.as_str());
    let price = spec.spot_price.as_deref();
    if price.is_some_and(|price| !is_price(price)) {
        faults.add("spotPrice", "must be a price in dollars, such as 0.05, or empty");
    } else if market.is_some_and(|market| price.is_some_and(|price| !price.is_empty() || market != SPOT)) {
        faults.add("spotPrice", "must be absent if there are instanceMarketOptions: it would not count");
    }
    let is_block = spec.capacity_reservation.as_ref().is_some_and(|reservation| reservation.is_ml_capacity_block);
    if is_block && (price.is_some() || market.is_some_and(|market| market != CAPACITY_BLOCK)) {
        let what = "must not be true if there is a spotPrice, or instanceMarketOptions name another market";
        faults.add("capacityReservation.isMLCapacityBlock", what);
    }
}

fn check_devices(devices: &[BlockDevice], faults: &mut Faults) {
    let mut names = BTreeSet::new();
    for (at, device) in devices.iter().enumerate() {
        let path = format!("blockDevices[{at}]");
        // The only device is the root device, whatever its name.
        if devices.len() > 1 && device.device_name != ROOT_DEVICE && !is_data_device(&device.device_name) {
            faults.add(format!("{path}.deviceName"), "must be /root, /dev/sda to /dev/sdz, or /dev/xvda to /dev/xvdcz");
        }
        if !names.insert(&device.device_name) {
            faults.add(format!("{path}.deviceName"), "must not be the name of an earlier device");
        }
        if ["io1", "io2"].contains(&device.ebs.volume_type.as_str()) && device.ebs.iops == 0 {
            faults.add(format!("{path}.ebs.iops"), "must be at least 1 for volumes of type io1 and io2");
        }
    }
    if devices.len() > 1 && !names.iter().any(|name| *name == ROOT_DEVICE) {
        faults.add("blockDevices", "must have a device named /root if there are several");
    }
}

/// EC2's names of devices, as machine-controller-manager's provider allows them.
fn is_data_device(name: &str) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_lowercase();
    if let Some(rest) = name.strip_prefix("/dev/sd") {
        return matches!(rest.as_bytes(), [letter] if is_letter(letter));
    }
    match name.strip_prefix("/dev/xvd").unwrap_or_default().as_bytes() {
        [b'a'..=b'c'] => true,
        [b'a'..=b'c', letter] => is_letter(letter),
        _ => false,
    }
}

fn check_interfaces(interfaces: &[NetworkInterface], faults: &mut Faults) {
    if interfaces.is_empty() {
        faults.add("networkInterfaces", "must have at least one interface");
    }
    for (at, interface) in interfaces.iter().enumerate() {
        let path = format!("networkInterfaces[{at}]");
        if interface.subnet_id.is_empty() {
            faults.add(format!("{path}.subnetID"), "must not be empty");
        }
        if interface.security_group_ids.is_empty() {
            faults.add(format!("{path}.securityGroupIDs"), "must have at least one security group");
        }
        let empty = interface.security_group_ids.iter().enumerate().filter(|(_, group)| group.is_empty());
        for (group, _) in empty {
            faults.add(format!("{path}.securityGroupIDs[{group}]"), "must not be empty");
        }
    }
}

fn check_reservation(reservation: &CapacityReservation, faults: &mut Faults) {
    let has_preference = reservation.capacity_reservation_preference.as_deref().is_some_and(|it| !it.is_empty());
    let (id, group) = (&reservation.capacity_reservation_id, &reservation.capacity_reservation_resource_group_arn);
    let targets = usize::from(id.is_some()) + usize::from(group.is_some());
    if has_preference && targets > 0 {
        faults.add(
            "capacityReservation.capacityReservationPreference",
            "must be absent if there is a capacityReservationId or a capacityReservationResourceGroupArn",
        );
    }
    if targets > 1 {
        let what = "must be absent if there is a capacityReservationId";
        faults.add("capacityReservation.capacityReservationResourceGroupArn", what);
    }
}

fn check_tags(tags: &BTreeMap<String, String>, faults: &mut Faults) {
    if !has_owner(tags) {
        faults.add("tags", TAGS);
    }
    if tags.keys().filter(|key| *key != NAME_TAG).count() > MOST_TAGS {
        faults.add("tags", format!("must have at most {MOST_TAGS} entries"));
    }
    for (key, value) in tags {
        let is_key = (1..=LONGEST_KEY).contains(&key.chars().count()) && !key.starts_with("aws:");
        if !is_key || value.chars().count() > LONGEST_VALUE {
            let what =
                "must have a key of 1 to 128 characters that does not begin with aws:, and a value of at most 256";
            let shown = &key[..key.floor_char_boundary(LONGEST_KEY)];
            faults.add(format!("tags.{shown}"), what);
        }
    }
}
