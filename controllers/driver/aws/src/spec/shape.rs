//! The fields of a providerSpec and their types, as a table: what is unknown or of another type, by its path.

use serde_json::{Map, Value};

use super::Faults;

/// The longest name of a user's field in a message, in bytes.
const LONGEST_NAME: usize = 64;

/// The type of a field. Null counts as absent.
enum Shape {
    Text,
    Flag,
    /// A whole number between these two.
    Whole(i32, i32),
    OneOf(&'static [&'static str]),
    Texts,
    TextMap,
    Object(&'static [Field]),
    Objects(&'static [Field]),
}

use Shape::{Flag, Object, Objects, OneOf, Text, TextMap, Texts, Whole};

/// A field: its name, whether it has to be there, and its type.
struct Field(&'static str, bool, Shape);

const REQUIRED: bool = true;
const OPTIONAL: bool = false;

const SPEC: &[Field] = &[
    Field("ami", REQUIRED, Text),
    Field("apiVersion", OPTIONAL, Text),
    Field("blockDevices", OPTIONAL, Objects(BLOCK_DEVICE)),
    Field("capacityReservation", OPTIONAL, Object(CAPACITY_RESERVATION)),
    Field("cpuOptions", OPTIONAL, Object(CPU_OPTIONS)),
    Field("ebsOptimized", OPTIONAL, Flag),
    Field("iam", REQUIRED, Object(IAM)),
    Field("instanceMarketOptions", OPTIONAL, Object(MARKET)),
    Field("instanceMetadataOptions", OPTIONAL, Object(METADATA)),
    Field("keyName", OPTIONAL, Text),
    Field("kind", OPTIONAL, Text),
    Field("machineType", REQUIRED, Text),
    Field("monitoring", OPTIONAL, Flag),
    Field("networkInterfaces", REQUIRED, Objects(NETWORK_INTERFACE)),
    Field("placement", OPTIONAL, Object(PLACEMENT)),
    Field("region", REQUIRED, Text),
    Field("spotPrice", OPTIONAL, Text),
    Field("srcAndDstChecksEnabled", OPTIONAL, Flag),
    Field("tags", REQUIRED, TextMap),
];

const BLOCK_DEVICE: &[Field] = &[
    Field("deviceName", OPTIONAL, Text),
    Field("ebs", REQUIRED, Object(EBS)),
    Field("noDevice", OPTIONAL, Text),
    Field("virtualName", OPTIONAL, Text),
];

/// machine-controller-manager's provider does not know io2.
const VOLUME_TYPES: &[&str] = &["gp2", "gp3", "io1", "io2", "st1", "sc1", "standard"];

const EBS: &[Field] = &[
    Field("deleteOnTermination", OPTIONAL, Flag),
    Field("encrypted", OPTIONAL, Flag),
    Field("iops", OPTIONAL, Whole(0, i32::MAX)),
    Field("kmsKeyID", OPTIONAL, Text),
    Field("snapshotID", OPTIONAL, Text),
    Field("throughput", OPTIONAL, Whole(1, i32::MAX)),
    Field("volumeSize", REQUIRED, Whole(1, i32::MAX)),
    Field("volumeType", REQUIRED, OneOf(VOLUME_TYPES)),
];

const CAPACITY_RESERVATION: &[Field] = &[
    Field("capacityReservationId", OPTIONAL, Text),
    Field("capacityReservationPreference", OPTIONAL, OneOf(&["", "open", "none", "capacity-reservations-only"])),
    Field("capacityReservationResourceGroupArn", OPTIONAL, Text),
    Field("isMLCapacityBlock", OPTIONAL, Flag),
];

const CPU_OPTIONS: &[Field] = &[
    Field("amdSevSnp", OPTIONAL, OneOf(&["enabled", "disabled"])),
    Field("coreCount", OPTIONAL, Whole(1, i32::MAX)),
    Field("threadsPerCore", OPTIONAL, Whole(1, 2)),
];

const IAM: &[Field] = &[Field("arn", OPTIONAL, Text), Field("name", OPTIONAL, Text)];

const MARKET: &[Field] =
    &[Field("marketType", REQUIRED, OneOf(&["spot", "capacity-block", "interruptible-capacity-reservation"]))];

const METADATA: &[Field] = &[
    Field("httpEndpoint", OPTIONAL, OneOf(&["", "enabled", "disabled"])),
    Field("httpProtocolIpv6", OPTIONAL, OneOf(&["", "enabled", "disabled"])),
    Field("httpPutResponseHopLimit", OPTIONAL, Whole(0, 64)),
    Field("httpTokens", OPTIONAL, OneOf(&["", "required", "optional"])),
];

const NETWORK_INTERFACE: &[Field] = &[
    Field("associatePublicIPAddress", OPTIONAL, Flag),
    Field("deleteOnTermination", OPTIONAL, Flag),
    Field("description", OPTIONAL, Text),
    Field("deviceIndex", OPTIONAL, Whole(0, i32::MAX)),
    Field("interfaceType", OPTIONAL, OneOf(&["", "interface", "efa", "efa-only"])),
    Field("ipv6AddressCount", OPTIONAL, Whole(0, i32::MAX)),
    Field("ipv6PrefixCount", OPTIONAL, Whole(0, i32::MAX)),
    Field("networkCardIndex", OPTIONAL, Whole(0, i32::MAX)),
    Field("primaryIpv6", OPTIONAL, Flag),
    Field("securityGroupIDs", REQUIRED, Texts),
    Field("subnetID", REQUIRED, Text),
];

const PLACEMENT: &[Field] = &[
    Field("affinity", OPTIONAL, OneOf(&["default", "host"])),
    Field("groupId", OPTIONAL, Text),
    Field("hostId", OPTIONAL, Text),
    Field("partitionNumber", OPTIONAL, Whole(1, i32::MAX)),
    Field("tenancy", OPTIONAL, OneOf(&["default", "dedicated", "host"])),
];

/// Adds what is missing, unknown, or of another type.
pub(super) fn check(document: &Value, faults: &mut Faults) {
    check_object(document, SPEC, "", faults);
}

fn check_object(value: &Value, known: &[Field], path: &str, faults: &mut Faults) {
    let Some(fields) = value.as_object() else { return faults.add(path, "must be an object") };
    for Field(name, required, shape) in known {
        match fields.get(*name).filter(|value| !value.is_null()) {
            Some(value) => check_value(value, shape, &below(path, name), faults),
            None if *required => faults.add(below(path, name), format!("is required; it must be {}", allowed(shape))),
            None => {}
        }
    }
    check_unknown(fields, known, path, faults);
}

/// A field that is misspelled would otherwise be left out of the VM without a word.
fn check_unknown(fields: &Map<String, Value>, known: &[Field], path: &str, faults: &mut Faults) {
    for name in fields.keys().filter(|name| known.iter().all(|Field(known, ..)| known != name)) {
        let meant = known.iter().find(|Field(known, ..)| known.eq_ignore_ascii_case(name));
        let names: Vec<&str> = known.iter().map(|Field(name, ..)| *name).collect();
        let what = match meant {
            Some(Field(meant, ..)) => format!("is no field; it is written {meant}"),
            None => format!("is no field; there are {}", names.join(", ")),
        };
        faults.add(below(path, shown(name)), what);
    }
}

fn check_value(value: &Value, shape: &Shape, path: &str, faults: &mut Faults) {
    let is_right = match shape {
        Text => value.is_string(),
        Flag => value.is_boolean(),
        Whole(least, most) => {
            value.as_i64().is_some_and(|number| (i64::from(*least)..=i64::from(*most)).contains(&number))
        }
        OneOf(values) => value.as_str().is_some_and(|text| values.contains(&text)),
        Texts => return check_texts(value, path, faults),
        TextMap => return check_text_map(value, path, faults),
        Object(fields) => return check_object(value, fields, path, faults),
        Objects(fields) => return check_objects(value, fields, path, faults),
    };
    if !is_right {
        faults.add(path, format!("must be {}", allowed(shape)));
    }
}

fn check_objects(value: &Value, fields: &[Field], path: &str, faults: &mut Faults) {
    let Some(items) = value.as_array() else { return faults.add(path, "must be a list of objects") };
    for (at, item) in items.iter().enumerate() {
        check_object(item, fields, &format!("{path}[{at}]"), faults);
    }
}

fn check_texts(value: &Value, path: &str, faults: &mut Faults) {
    let Some(items) = value.as_array() else { return faults.add(path, "must be a list of texts") };
    for (at, _) in items.iter().enumerate().filter(|(_, item)| !item.is_string()) {
        faults.add(format!("{path}[{at}]"), "must be a text");
    }
}

fn check_text_map(value: &Value, path: &str, faults: &mut Faults) {
    let Some(entries) = value.as_object() else { return faults.add(path, "must be an object of texts") };
    for (key, _) in entries.iter().filter(|(_, value)| !value.is_string()) {
        faults.add(below(path, shown(key)), "must be a text");
    }
}

fn allowed(shape: &Shape) -> String {
    match shape {
        Text => "a text".to_owned(),
        Flag => "true or false".to_owned(),
        Whole(least, i32::MAX) => format!("a whole number of at least {least}"),
        Whole(least, most) => format!("a whole number from {least} to {most}"),
        OneOf(values) => {
            let values: Vec<&str> = values.iter().filter(|value| !value.is_empty()).copied().collect();
            format!("one of {}", values.join(", "))
        }
        Texts => "a list of texts".to_owned(),
        TextMap => "an object of texts".to_owned(),
        Object(_) => "an object".to_owned(),
        Objects(_) => "a list of objects".to_owned(),
    }
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn shown(name: &str) -> &str {
    &name[..name.floor_char_boundary(LONGEST_NAME)]
}
