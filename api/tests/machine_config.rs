//! The kinds of node configuration on the wire.

#![allow(clippy::needless_pass_by_value, reason = "a test may")]

use nodewright_api::machine_config::{ControllerConfig, KubeletConfig, MachineConfig, MachineConfigPool};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Checks that an object with all fields of a kind is written as it was read.
fn check_round_trip<T: DeserializeOwned + Serialize>(kind: &str, parts: Value) {
    let mut object = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": kind, "metadata": {"name": "a"},
    });
    object.as_object_mut().expect("an object").extend(parts.as_object().expect("an object").clone());
    let read: T = serde_json::from_str(&object.to_string()).expect("readable");
    let written: Value = serde_json::from_str(&serde_json::to_string(&read).expect("writable")).expect("JSON");
    assert_eq!(written, object);
}

fn conditions() -> Value {
    json!([{
        "type": "Updated", "status": "True", "lastTransitionTime": "2026-11-22T12:00:00Z", "reason": "A", "message": "b",
    }])
}

#[test]
fn a_machine_config_is_written_as_it_was_read() {
    check_round_trip::<MachineConfig>(
        "MachineConfig",
        json!({"spec": {
            "baseOSExtensionsContainerImage": "extensions",
            "config": {"ignition": {"version": "3.5.0"}, "unknown": [1, {"deep": null}]},
            "extensions": ["usbguard"],
            "fips": true,
            "kernelArguments": ["a", "a"],
            "kernelType": "64k-pages",
            "osImageURL": "image",
        }}),
    );
}

#[test]
fn a_pool_is_written_as_it_was_read() {
    let source =
        json!([{"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "name": "00-worker"}]);
    let configuration = json!({"name": "rendered-worker-0", "source": source, "uid": "u"});
    let synchronizer = json!({
        "availableMachineCount": 3, "machineCount": 4, "observedGeneration": 1, "poolSynchronizerType": "PinnedImageSets",
        "readyMachineCount": 2, "unavailableMachineCount": 1, "updatedMachineCount": 2,
    });
    check_round_trip::<MachineConfigPool>(
        "MachineConfigPool",
        json!({
            "spec": {
                "configuration": configuration,
                "machineConfigSelector": {"matchLabels": {"role": "worker"}},
                "maxUnavailable": "10%",
                "nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
                "osImageStream": {"name": "stream"},
                "paused": true,
                "pinnedImageSets": [{"name": "images"}],
            },
            "status": {
                "certExpirys": [{"bundle": "b", "expiry": "2026-11-22T12:00:00Z", "subject": "s"}],
                "conditions": conditions(),
                "configuration": configuration,
                "degradedMachineCount": 1,
                "machineCount": 4,
                "observedGeneration": 2,
                "osImageStream": {"name": "stream"},
                "poolSynchronizersStatus": [synchronizer],
                "readyMachineCount": 2,
                "unavailableMachineCount": 1,
                "updatedMachineCount": 3,
            },
        }),
    );
}

#[test]
fn a_kubelet_config_is_written_as_it_was_read() {
    check_round_trip::<KubeletConfig>(
        "KubeletConfig",
        json!({
            "spec": {
                "autoSizingReserved": false,
                "kubeletConfig": {"maxPods": 500, "protectKernelDefaults": false},
                "logLevel": 5,
                "machineConfigPoolSelector": {"matchLabels": {"pools.operator.machineconfiguration.openshift.io/worker": ""}},
                "tlsSecurityProfile": {"type": "Old", "old": {}},
            },
            "status": {"conditions": conditions(), "observedGeneration": 1},
        }),
    );
}

#[test]
fn a_controller_config_is_written_as_it_was_read() {
    let bundle = json!([{"data": "Y2VydAo=", "file": "registry.example.com..5000"}]);
    check_round_trip::<ControllerConfig>(
        "ControllerConfig",
        json!({
            "spec": {
                "additionalTrustBundle": "Y2VydAo=",
                "baseOSContainerImage": "image",
                "baseOSExtensionsContainerImage": "extensions",
                "cloudProviderCAData": "Y2VydAo=",
                "cloudProviderConfig": "config",
                "clusterDNSIP": "10.0.0.10",
                "dns": {"apiVersion": "config.openshift.io/v1", "kind": "DNS", "spec": {"baseDomain": "example.com"}},
                "imageRegistryBundleData": bundle,
                "imageRegistryBundleUserData": bundle,
                "images": {"haproxy": "image"},
                "infra": {"apiVersion": "config.openshift.io/v1", "kind": "Infrastructure"},
                "internalRegistryPullSecret": "e30=",
                "ipFamilies": "DualStackIPv6Primary",
                "kubeAPIServerServingCAData": "Y2VydAo=",
                "network": {"mtuMigration": {"network": {"from": 1400}}},
                "networkType": "OVNKubernetes",
                "osImageURL": "image",
                "platform": "none",
                "proxy": {"httpProxy": "http://proxy"},
                "pullSecret": {"name": "pull-secret", "namespace": "openshift-config"},
                "releaseImage": "image",
                "rootCAData": "Y2VydAo=",
            },
            "status": {
                "conditions": conditions(),
                "controllerCertificates": [{
                    "bundleFile": "RootCAData", "notAfter": "2036-11-22T12:00:00Z", "notBefore": "2026-11-22T12:00:00Z",
                    "signer": "s", "subject": "t",
                }],
                "observedGeneration": 1,
            },
        }),
    );
}

#[test]
fn null_is_read_as_absent() {
    let text =
        json!({"metadata": {"name": "a"}, "spec": {"config": null, "kernelArguments": null, "kernelType": null}});
    let object: MachineConfig = serde_json::from_str(&text.to_string()).expect("readable");
    assert_eq!(object.spec, MachineConfig::default().spec);
}
