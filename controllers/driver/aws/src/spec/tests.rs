use std::collections::BTreeSet;

use serde_json::{Map, json};

use super::*;

/// The least that a class has to say.
pub(crate) fn small(cluster: &str) -> Value {
    json!({
        "ami": "ami-1", "region": "eu-west-1", "machineType": "t3.small", "iam": {"name": "nodes"},
        "networkInterfaces": [{"subnetID": "subnet-1", "securityGroupIDs": ["sg-1"]}],
        "tags": {format!("kubernetes.io/cluster/{cluster}"): "1", "kubernetes.io/role/node": "1"},
    })
}

/// A class with every field.
pub(crate) fn full(cluster: &str) -> Value {
    json!({
        "apiVersion": "mcm.gardener.cloud/v1alpha1", "kind": "AWSProviderSpec",
        "ami": "ami-1", "region": "eu-west-1", "machineType": "m6a.large", "keyName": "key", "iam": {"name": "nodes"},
        "blockDevices": [
            {"deviceName": "/root", "ebs": {"volumeSize": 50, "volumeType": "gp3", "throughput": 125, "iops": 3000},
                "noDevice": "", "virtualName": ""},
            {"deviceName": "/dev/sdf", "ebs": {"volumeSize": 20, "volumeType": "io1", "iops": 100, "encrypted": true,
                "kmsKeyID": "key-1", "snapshotID": "snap-1", "deleteOnTermination": true}},
        ],
        "capacityReservation": {"capacityReservationPreference": "open"},
        "cpuOptions": {"coreCount": 1, "threadsPerCore": 2, "amdSevSnp": "disabled"},
        "ebsOptimized": true, "monitoring": true,
        "instanceMarketOptions": {"marketType": "spot"},
        "instanceMetadataOptions": {"httpEndpoint": "enabled", "httpTokens": "required", "httpPutResponseHopLimit": 2,
            "httpProtocolIpv6": "disabled"},
        "networkInterfaces": [
            {"subnetID": "subnet-1", "securityGroupIDs": ["sg-1"]},
            {"subnetID": "subnet-2", "securityGroupIDs": ["sg-2", "sg-3"], "associatePublicIPAddress": false,
                "deleteOnTermination": false, "description": "second", "deviceIndex": 3, "interfaceType": "efa",
                "ipv6AddressCount": 1, "ipv6PrefixCount": 1, "networkCardIndex": 1, "primaryIpv6": true},
        ],
        "placement": {"affinity": "default", "groupId": "pg-1", "hostId": "h-1", "partitionNumber": 1, "tenancy": "host"},
        "spotPrice": "", "srcAndDstChecksEnabled": false,
        "tags": {format!("kubernetes.io/cluster/{cluster}"): "1", "kubernetes.io/role/node": "1", "zone": "a"},
    })
}

fn paths(document: &Value) -> Vec<String> {
    let document = RawJson::from(document);
    let faults = validate(&document);
    assert_eq!(faults.is_empty(), ProviderSpec::read(&document).is_ok(), "both agree on {}", document.text());
    assert!(faults.iter().all(|(_, what)| !what.is_empty()));
    faults.into_iter().map(|(path, _)| path).collect()
}

/// The full class, with another value at a JSON pointer; null removes.
fn changed(pointer: &str, value: &Value) -> Value {
    let mut document = full("c");
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    match document.pointer_mut(parent).unwrap() {
        Value::Object(fields) => drop(fields.insert(last.to_owned(), value.clone())),
        Value::Array(items) => items[last.parse::<usize>().unwrap()] = value.clone(),
        other => panic!("{parent} is {other}"),
    }
    document
}

#[test]
fn good_classes_are_read() {
    for document in [small("c"), full("c")] {
        assert_eq!(paths(&document), Vec::<String>::new());
    }
    let spec = ProviderSpec::read(&RawJson::from(&full("c"))).unwrap();
    assert_eq!((spec.block_devices.len(), spec.network_interfaces.len(), spec.tags.len()), (2, 2, 3));
    assert_eq!((spec.spot_price.as_deref(), spec.src_and_dst_checks_enabled), (Some(""), Some(false)));
}

/// The fields of `AWSProviderSpec` of machine-controller-manager's provider, by the object that has them.
const FIELDS_OF_MCM: [(&str, &[&str]); 10] = [
    (
        "",
        &[
            "apiVersion",
            "ami",
            "blockDevices",
            "capacityReservation",
            "ebsOptimized",
            "iam",
            "machineType",
            "keyName",
            "monitoring",
            "networkInterfaces",
            "region",
            "spotPrice",
            "srcAndDstChecksEnabled",
            "tags",
            "instanceMarketOptions",
            "instanceMetadataOptions",
            "cpuOptions",
            "placement",
        ],
    ),
    ("/blockDevices/0", &["deviceName", "ebs", "noDevice", "virtualName"]),
    (
        "/blockDevices/0/ebs",
        &[
            "deleteOnTermination",
            "encrypted",
            "iops",
            "throughput",
            "kmsKeyID",
            "snapshotID",
            "volumeSize",
            "volumeType",
        ],
    ),
    (
        "/capacityReservation",
        &["capacityReservationPreference", "capacityReservationId", "capacityReservationResourceGroupArn"],
    ),
    ("/iam", &["arn", "name"]),
    ("/instanceMarketOptions", &["marketType"]),
    (
        "/networkInterfaces/0",
        &[
            "associatePublicIPAddress",
            "ipv6AddressCount",
            "ipv6PrefixCount",
            "deleteOnTermination",
            "description",
            "securityGroupIDs",
            "subnetID",
            "interfaceType",
            "networkCardIndex",
            "deviceIndex",
            "primaryIpv6",
        ],
    ),
    ("/placement", &["groupId", "tenancy", "hostId", "partitionNumber", "affinity"]),
    ("/instanceMetadataOptions", &["httpEndpoint", "httpPutResponseHopLimit", "httpTokens", "httpProtocolIpv6"]),
    ("/cpuOptions", &["coreCount", "threadsPerCore", "amdSevSnp"]),
];

#[test]
fn every_field_of_machine_controller_managers_provider_is_a_field_here() {
    let is_field = |pointer: &str| {
        let faults = validate(&RawJson::from(&changed(pointer, &json!(null))));
        !faults.iter().any(|(_, what)| what.starts_with("is no field"))
    };
    for (parent, fields) in FIELDS_OF_MCM {
        for field in fields {
            assert!(is_field(&format!("{parent}/{field}")), "{parent}/{field}");
        }
        assert!(!is_field(&format!("{parent}/other")), "{parent}");
    }
}

#[test]
fn what_machine_controller_manager_takes_is_taken() {
    for (pointer, value) in [
        ("/spotPrice", json!(null)),
        ("/instanceMarketOptions", json!(null)),
        ("/keyName", json!("")),
        ("/keyName", json!(null)),
        ("/blockDevices", json!([])),
        ("/cpuOptions", json!({"amdSevSnp": "enabled"})),
        ("/blockDevices", json!([{"ebs": {"volumeSize": 1, "volumeType": "standard"}}])),
        ("/blockDevices/1/deviceName", json!("/dev/xvdba")),
        ("/blockDevices/0/ebs/deleteOnTermination", json!(null)),
        ("/capacityReservation", json!({})),
        ("/networkInterfaces/0/interfaceType", json!("")),
        ("/capacityReservation", json!({"capacityReservationPreference": "", "capacityReservationId": "cr-1"})),
        ("/instanceMetadataOptions", json!({"httpTokens": "", "httpPutResponseHopLimit": 0})),
        ("/iam", json!({"arn": "arn:aws:iam::1:instance-profile/n"})),
        ("/tags/Name", json!("not-used")),
    ] {
        assert_eq!(paths(&changed(pointer, &value)), Vec::<String>::new(), "{pointer}");
    }
}

#[test]
fn every_fault_is_named_by_its_path() {
    let many_tags: Map<String, Value> = (0..49)
        .map(|number| (format!("t{number}"), json!("")))
        .chain([("kubernetes.io/cluster/c".to_owned(), json!("")), ("kubernetes.io/role/node".to_owned(), json!(""))])
        .collect();
    let device = |name: &str| json!({"deviceName": name, "ebs": {"volumeSize": 1, "volumeType": "gp3"}});
    let table: Vec<(&str, Value, &str)> = vec![
        ("/ami", json!(null), "ami"),
        ("/ami", json!(""), "ami"),
        ("/ami", json!(7), "ami"),
        ("/region", json!(null), "region"),
        ("/region", json!("eu-west-1.example.org/"), "region"),
        ("/region", json!("-"), "region"),
        ("/machineType", json!(""), "machineType"),
        ("/iam", json!({}), "iam"),
        ("/iam", json!({"name": "n", "arn": "a"}), "iam"),
        ("/iam", json!("nodes"), "iam"),
        ("/keyName", json!(["key"]), "keyName"),
        ("/spotPrice", json!("cheap"), "spotPrice"),
        ("/spotPrice", json!("-1"), "spotPrice"),
        ("/spotPrice", json!(0.05), "spotPrice"),
        ("/spotPrice", json!("0.05"), "spotPrice"),
        ("/instanceMarketOptions", json!("spot"), "instanceMarketOptions"),
        ("/instanceMarketOptions", json!({}), "instanceMarketOptions.marketType"),
        ("/instanceMarketOptions/marketType", json!(""), "instanceMarketOptions.marketType"),
        ("/instanceMarketOptions/marketType", json!("on-demand"), "instanceMarketOptions.marketType"),
        ("/instanceMarketOptions/marketType", json!("capacity-block"), "spotPrice"),
        ("/instanceMarketOptions/spotOptions", json!({}), "instanceMarketOptions.spotOptions"),
        ("/srcAndDstChecksEnabled", json!("false"), "srcAndDstChecksEnabled"),
        ("/blockDevices", json!({}), "blockDevices"),
        ("/blockDevices", json!([device("/dev/sda"), device("/dev/sdb")]), "blockDevices"),
        ("/blockDevices/1/deviceName", json!("/root"), "blockDevices[1].deviceName"),
        ("/blockDevices/1/deviceName", json!("sdf"), "blockDevices[1].deviceName"),
        ("/blockDevices/1/deviceName", json!("/dev/xvdda"), "blockDevices[1].deviceName"),
        ("/blockDevices/1/ebs", json!(null), "blockDevices[1].ebs"),
        ("/blockDevices/1/ebs/volumeSize", json!(0), "blockDevices[1].ebs.volumeSize"),
        ("/blockDevices/1/ebs/volumeSize", json!("20"), "blockDevices[1].ebs.volumeSize"),
        ("/blockDevices/1/ebs/volumeSize", json!(1.5), "blockDevices[1].ebs.volumeSize"),
        ("/blockDevices/1/ebs/volumeSize", json!(1_u64 << 40), "blockDevices[1].ebs.volumeSize"),
        ("/blockDevices/1/ebs/volumeType", json!("fast"), "blockDevices[1].ebs.volumeType"),
        ("/blockDevices/1/ebs/iops", json!(0), "blockDevices[1].ebs.iops"),
        ("/blockDevices/1/ebs/iops", json!(-1), "blockDevices[1].ebs.iops"),
        ("/blockDevices/1/ebs/throughput", json!(0), "blockDevices[1].ebs.throughput"),
        ("/blockDevices/1/ebs/encrypted", json!("yes"), "blockDevices[1].ebs.encrypted"),
        ("/blockDevices/1/ebs/kmsKeyId", json!("key"), "blockDevices[1].ebs.kmsKeyId"),
        ("/networkInterfaces", json!([]), "networkInterfaces"),
        ("/networkInterfaces", json!(null), "networkInterfaces"),
        ("/networkInterfaces/1", json!("eth0"), "networkInterfaces[1]"),
        ("/networkInterfaces/1/subnetID", json!(""), "networkInterfaces[1].subnetID"),
        ("/networkInterfaces/1/subnetId", json!("subnet-1"), "networkInterfaces[1].subnetId"),
        ("/networkInterfaces/1/securityGroupIDs", json!([]), "networkInterfaces[1].securityGroupIDs"),
        ("/networkInterfaces/1/securityGroupIDs", json!(["sg-1", ""]), "networkInterfaces[1].securityGroupIDs[1]"),
        ("/networkInterfaces/1/securityGroupIDs", json!(["sg-1", 2]), "networkInterfaces[1].securityGroupIDs[1]"),
        ("/networkInterfaces/1/interfaceType", json!("wifi"), "networkInterfaces[1].interfaceType"),
        ("/networkInterfaces/1/ipv6AddressCount", json!(-1), "networkInterfaces[1].ipv6AddressCount"),
        (
            "/capacityReservation/capacityReservationId",
            json!("cr-1"),
            "capacityReservation.capacityReservationPreference",
        ),
        (
            "/capacityReservation",
            json!({"capacityReservationId": "cr-1", "capacityReservationResourceGroupArn": "arn:1"}),
            "capacityReservation.capacityReservationResourceGroupArn",
        ),
        ("/capacityReservation/isMLCapacityBlock", json!(true), "capacityReservation.isMLCapacityBlock"),
        ("/cpuOptions/coreCount", json!(null), "cpuOptions.coreCount"),
        ("/cpuOptions/threadsPerCore", json!(3), "cpuOptions.threadsPerCore"),
        ("/cpuOptions/amdSevSnp", json!("on"), "cpuOptions.amdSevSnp"),
        ("/instanceMetadataOptions/httpTokens", json!("maybe"), "instanceMetadataOptions.httpTokens"),
        ("/instanceMetadataOptions/httpEndpoint", json!(true), "instanceMetadataOptions.httpEndpoint"),
        (
            "/instanceMetadataOptions/httpPutResponseHopLimit",
            json!(65),
            "instanceMetadataOptions.httpPutResponseHopLimit",
        ),
        ("/placement/tenancy", json!("shared"), "placement.tenancy"),
        ("/placement/partitionNumber", json!(0), "placement.partitionNumber"),
        ("/tags", json!(null), "tags"),
        ("/tags", json!({"kubernetes.io/cluster/c": "1"}), "tags"),
        ("/tags", json!({"kubernetes.io/role/node": "1"}), "tags"),
        ("/tags", Value::Object(many_tags), "tags"),
        ("/tags/zone", json!(1), "tags.zone"),
        ("/tags/zone", json!("x".repeat(257)), "tags.zone"),
        ("/tags/aws:zone", json!("a"), "tags.aws:zone"),
        ("/colour", json!("red"), "colour"),
    ];
    let distinct: BTreeSet<String> = table.iter().map(|(pointer, value, _)| format!("{pointer} {value}")).collect();
    assert!(distinct.len() >= 40);
    for (pointer, value, path) in table {
        assert_eq!(paths(&changed(pointer, &value)), [path], "{pointer}: {value}");
    }
    for document in [json!(null), json!([]), json!("text")] {
        assert_eq!(paths(&document), [""]);
    }
    let required = ["ami", "iam", "machineType", "networkInterfaces", "region", "tags"];
    assert_eq!(paths(&json!({})), required);
}

#[test]
fn a_field_that_is_written_otherwise_is_suggested() {
    let faults = validate(&RawJson::from(&changed("/networkInterfaces/1/subnetId", &json!("subnet-1"))));
    assert_eq!(faults[0].1, "is no field; it is written subnetID");
    let faults = validate(&RawJson::from(&changed("/iam/role", &json!("nodes"))));
    assert_eq!(faults[0].1, "is no field; there are arn, name");
}

#[test]
fn values_are_never_quoted_and_names_are_bounded() {
    let secret = "hunter2";
    let mut documents = vec![json!(secret), json!({"password": secret})];
    for name in full("c").as_object().unwrap().keys() {
        for value in [json!([secret]), json!({"x": [secret]}), json!([{"ebs": {"volumeType": secret}}])] {
            documents.push(changed(&format!("/{name}"), &value));
        }
    }
    for document in documents {
        let document = RawJson::from(&document);
        let read = ProviderSpec::read(&document).unwrap_err();
        let reported = format!("{:?} {read:?} {:?}", validate(&document), Identity::read(&document).err());
        assert!(!reported.contains(secret), "{reported}");
    }
    let many: Map<String, Value> = (0..1_000).map(|it| (format!("{it}{}", "x".repeat(1_000)), json!(1))).collect();
    let reported = validate(&RawJson::from(&Value::Object(many)));
    assert!(reported.len() <= 20 && reported.iter().all(|(path, _)| path.len() <= 64), "{reported:?}");
}

#[test]
fn vms_are_found_with_a_class_that_has_other_faults() {
    let identity = |document: &Value| Identity::read(&RawJson::from(document));
    let found = identity(&json!({"region": "eu-west-1", "tags": small("c")["tags"], "ami": 7, "x": 1})).unwrap();
    assert_eq!(found, identity(&small("c")).unwrap());
    assert_eq!(found.tags.keys().collect::<Vec<_>>(), ["kubernetes.io/cluster/c", "kubernetes.io/role/node"]);
    assert!(identity(&full("c")).unwrap().forwards && !found.forwards);
    for (pointer, value) in [
        ("/region", json!("a/b")),
        ("/region", json!(null)),
        ("/tags", json!({"kubernetes.io/cluster/c": "1"})),
        ("/tags/kubernetes.io~1role~1node", json!(null)),
    ] {
        let mut document = full("c");
        *document.pointer_mut(pointer).unwrap() = value;
        assert_eq!(identity(&document).unwrap_err().code, Code::InvalidArgument, "{pointer}");
    }
}

#[test]
fn a_deeply_nested_spec_is_refused() {
    let text = format!("{{\"tags\":{}{}}}", "[".repeat(500), "]".repeat(500));
    let document = RawJson::from_text(text).unwrap();
    assert!(!validate(&document).is_empty());
    assert_eq!(ProviderSpec::read(&document).unwrap_err().code, Code::InvalidArgument);
    assert_eq!(Identity::read(&document).unwrap_err().code, Code::InvalidArgument);
}
