//! Wrong classes are refused by `kubectl apply`, field by field, in the words of a driver in a process of its own.
//!
//! The driver evaluates a class without EC2, so moto is not needed.

use nodewright_e2e_lab::{cloud::DriverProgram, devcluster::ManagerProcess, process::executable};
use nodewright_e2e_scenarios::{Environment, TestResult, ensure, skip_on_external_cluster};
use serde_json::{Value, json};

/// What users put into the wrong field must not be quoted.
const SECRET: &str = "hunter2-is-no-password";

/// Where the class is wrong, the value there, the path that is named, and a part of what is said to be allowed.
type Row = (&'static str, Value, &'static str, &'static str);

fn top_level() -> Vec<Row> {
    vec![
        ("/ami", json!(null), "ami", "is required; it must be a text"),
        ("/ami", json!(""), "ami", "must not be empty"),
        ("/ami", json!(7), "ami", "must be a text"),
        ("/region", json!(null), "region", "is required"),
        ("/region", json!("eu-west-1.example.org/"), "region", "such as eu-west-1"),
        ("/machineType", json!(""), "machineType", "must not be empty"),
        ("/machineType", json!(["m5.large"]), "machineType", "must be a text"),
        ("/iam", json!({}), "iam", "either a name or an arn"),
        ("/iam", json!({"name": "n", "arn": "a"}), "iam", "either a name or an arn"),
        ("/iam", json!(SECRET), "iam", "must be an object"),
        ("/keyName", json!(1), "keyName", "must be a text"),
        ("/spotPrice", json!(SECRET), "spotPrice", "a price in dollars"),
        ("/srcAndDstChecksEnabled", json!("false"), "srcAndDstChecksEnabled", "true or false"),
        ("/placement", json!({"tenancy": SECRET}), "placement.tenancy", "one of default, dedicated, host"),
        ("/placement", json!({"partitionNumber": 0}), "placement.partitionNumber", "at least 1"),
        ("/cpuOptions", json!({"coreCount": 1}), "cpuOptions.threadsPerCore", "go together"),
        ("/cpuOptions", json!({"coreCount": 1, "threadsPerCore": 3}), "cpuOptions.threadsPerCore", "from 1 to 2"),
        ("/cpuOptions", json!({"amdSevSnp": "on"}), "cpuOptions.amdSevSnp", "one of enabled, disabled"),
        ("/tags", json!({"kubernetes.io/cluster/c": "1"}), "tags", "kubernetes.io/role/"),
        ("/tags", json!(null), "tags", "is required"),
        ("/tags/zone", json!(1), "tags.zone", "must be a text"),
        ("/tags/aws:zone", json!("a"), "tags.aws:zone", "does not begin with aws:"),
        ("/colour", json!("red"), "colour", "is no field; there are ami"),
        ("/Region", json!("eu-west-1"), "Region", "it is written region"),
    ]
}

fn below() -> Vec<Row> {
    let device = |ebs: Value| json!([{"deviceName": "/root", "ebs": ebs}]);
    let metadata = |name: &str, value: Value| json!({name: value});
    vec![
        ("/blockDevices", json!({}), "blockDevices", "a list of objects"),
        ("/blockDevices", json!([{}]), "blockDevices[0].ebs", "is required"),
        ("/blockDevices", device(json!({"volumeType": "gp3"})), "blockDevices[0].ebs.volumeSize", "at least 1"),
        ("/blockDevices/0/ebs/volumeSize", json!(0), "blockDevices[0].ebs.volumeSize", "at least 1"),
        ("/blockDevices/0/ebs/volumeSize", json!("20"), "blockDevices[0].ebs.volumeSize", "a whole number"),
        ("/blockDevices/0/ebs/volumeType", json!(SECRET), "blockDevices[0].ebs.volumeType", "one of gp2, gp3, io1"),
        (
            "/blockDevices/0/ebs/volumeType",
            json!("io1"),
            "blockDevices[0].ebs.iops",
            "at least 1 for volumes of type io1",
        ),
        ("/blockDevices/0/ebs/encrypted", json!("yes"), "blockDevices[0].ebs.encrypted", "true or false"),
        ("/blockDevices/0/ebs/kmsKeyId", json!("key"), "blockDevices[0].ebs.kmsKeyId", "it is written kmsKeyID"),
        ("/networkInterfaces", json!([]), "networkInterfaces", "at least one interface"),
        ("/networkInterfaces/0", json!("eth0"), "networkInterfaces[0]", "must be an object"),
        ("/networkInterfaces/0/subnetID", json!(""), "networkInterfaces[0].subnetID", "must not be empty"),
        ("/networkInterfaces/0/subnetId", json!("s"), "networkInterfaces[0].subnetId", "it is written subnetID"),
        (
            "/networkInterfaces/0/securityGroupIDs",
            json!([]),
            "networkInterfaces[0].securityGroupIDs",
            "at least one security group",
        ),
        (
            "/networkInterfaces/0/securityGroupIDs",
            json!([2]),
            "networkInterfaces[0].securityGroupIDs[0]",
            "must be a text",
        ),
        (
            "/networkInterfaces/0/interfaceType",
            json!("wifi"),
            "networkInterfaces[0].interfaceType",
            "one of interface, efa, efa-only",
        ),
        ("/networkInterfaces/0/ipv6AddressCount", json!(-1), "networkInterfaces[0].ipv6AddressCount", "at least 0"),
        (
            "/instanceMetadataOptions",
            metadata("httpTokens", json!("maybe")),
            "instanceMetadataOptions.httpTokens",
            "one of required, optional",
        ),
        (
            "/instanceMetadataOptions",
            metadata("httpPutResponseHopLimit", json!(65)),
            "instanceMetadataOptions.httpPutResponseHopLimit",
            "from 0 to 64",
        ),
        (
            "/capacityReservation",
            json!({"capacityReservationId": "cr-1", "capacityReservationPreference": "open"}),
            "capacityReservation.capacityReservationPreference",
            "must be absent",
        ),
    ]
}

/// A class with another value at a JSON pointer; null removes.
fn class(pointer: &str, value: &Value) -> Value {
    let mut spec = json!({
        "ami": "ami-1", "region": "eu-west-1", "machineType": "t3.small", "iam": {"name": "nodes"},
        "networkInterfaces": [{"subnetID": "subnet-1", "securityGroupIDs": ["sg-1"]}],
        "blockDevices": [{"ebs": {"volumeSize": 8, "volumeType": "gp3"}}],
        "tags": {"kubernetes.io/cluster/c": "1", "kubernetes.io/role/node": "1"},
    });
    let (parent, last) = pointer.rsplit_once('/').unwrap_or_default();
    match spec.pointer_mut(parent) {
        Some(Value::Object(fields)) if value.is_null() => drop(fields.remove(last)),
        Some(Value::Object(fields)) => drop(fields.insert(last.to_owned(), value.clone())),
        Some(Value::Array(items)) => items[0] = value.clone(),
        _ => {}
    }
    json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass", "metadata": {"name": "evaluated"},
        "provider": "AWS", "providerSpec": spec,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn forty_wrong_classes_are_refused_with_the_path_and_what_is_allowed() -> TestResult {
    if skip_on_external_cluster("aws-classes", "the API server may not reach webhooks on this machine") {
        return Ok(());
    }
    let env = Environment::builder("awsclass").with_webhooks().without_manager().start().await?;
    let binary = executable("nodewright-driver-aws", "NODEWRIGHT_DRIVER_AWS_BIN")?;
    let program = DriverProgram::of(&binary, env.directory(), "driver-aws", &[])?;
    let flags = [format!("--driver={}", program.path().display())];
    let manager = ManagerProcess::start(env.manager_options("manager", true, &flags)).await?;
    let rows: Vec<Row> = top_level().into_iter().chain(below()).collect();
    ensure(rows.len() >= 40, || format!("there are {} rows", rows.len()))?;
    for (pointer, value, path, allowed) in rows {
        let refused = env.apply_refused(&class(pointer, &value)).await?;
        let says = |text: &str| refused.contains(text);
        let is_right = says(&format!("providerSpec.{path}: ")) && says(allowed) && !says(SECRET);
        ensure(is_right, || format!("{pointer} is {value}, and it should say {path:?} {allowed:?}: {refused}"))?;
    }
    env.apply(&class("/keyName", &json!("key"))).await?;
    env.kubectl("delete machineclass evaluated").await?;
    drop(manager);
    env.end().await
}
