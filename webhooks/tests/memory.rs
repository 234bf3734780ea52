//! The memory of reviews, counted by the allocator.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::time::Duration;

use futures::future::join_all;
use nodewright_webhooks::Limits;
use peak_alloc::PeakAlloc;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use support::{Running, TEST_TIMEOUT};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// The heap is the process's, and tests run in threads of one process: each has it alone.
static ALONE: Mutex<()> = Mutex::const_new(());

const MIB: usize = 1 << 20;

/// A review of an update to this deployment, from the same.
fn review(kind: &str, object: &str) -> Vec<u8> {
    format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u",
           "kind":{{"group":"machine.sapcloud.io","version":"v1alpha1","kind":"{kind}"}},
           "name":"pool","namespace":"fleet","operation":"UPDATE","object":{object},"oldObject":{object}}}}}"#
    )
    .into_bytes()
}

/// Elements separated by commas, of at least `size` bytes together.
fn many(size: usize, element: impl Fn(usize) -> String) -> String {
    let mut text = String::new();
    for index in 0.. {
        if text.len() >= size {
            break;
        }
        if index > 0 {
            text.push(',');
        }
        text.push_str(&element(index));
    }
    text
}

fn deployment(metadata: &str, spec: &str, template: &str) -> Vec<u8> {
    let object = format!(
        r#"{{"metadata":{{"name":"pool"{metadata}}},"spec":{{"replicas":1,"selector":{{"matchLabels":{{"name":"pool"}}}},
           "template":{{"metadata":{{"labels":{{"name":"pool"}}}},"spec":{{"class":{{"kind":"MachineClass","name":"a"}}{template}}}}}{spec}}}}}"#
    );
    review("MachineDeployment", &object)
}

fn class(provider_spec: &str) -> Vec<u8> {
    let object = format!(
        r#"{{"metadata":{{"name":"pool"}},"provider":"simulated","secretRef":{{"name":"a"}},"providerSpec":{provider_spec}}}"#
    );
    review("MachineClass", &object)
}

/// Bodies of many small values, with their kinds.
fn shapes() -> Vec<(&'static str, Vec<u8>)> {
    let half = 2_700_000;
    let pairs = |size: usize| many(size, |index| format!(r#""a{index}":"""#));
    let objects = many(150_000, |_| r#"{"a":1}"#.into());
    let managed = many(200_000, |_| r#"{"fieldsV1":{"a":{}}}"#.into());
    let taints = many(200_000, |_| r#"{"key":"","effect":""}"#.into());
    let labels = many(450_000, |index| format!(r#""-{index}":"-""#));
    let deployments = [
        deployment(&format!(r#","annotations":{{{}}}"#, pairs(half)), "", ""),
        deployment(&format!(r#","annotations":{{{}}}"#, pairs(450_000)), "", ""),
        deployment(&format!(r#","labels":{{{}}}"#, pairs(450_000)), "", ""),
        deployment(&format!(r#","managedFields":[{managed}]"#), "", ""),
        deployment("", &format!(r#","strategy":{{"x":[{objects}]}}"#), ""),
        deployment("", "", &format!(r#","nodeTemplate":{{"spec":{{"taints":[{taints}]}}}}"#)),
        deployment(
            "",
            "",
            &format!(r#","nodeTemplate":{{"metadata":{{"labels":{{{labels}}}}}}},"maxEvictRetries":-1"#),
        ),
    ];
    let classes = [
        class(&format!(r#"{{"labels":{{{}}}}}"#, pairs(half))),
        class(&format!(r#"{{"x":[{objects}]}}"#)),
        class(&format!("{{{}}}", pairs(450_000))),
    ];
    let deployments = deployments.into_iter().map(|body| ("MachineDeployment", body));
    deployments.chain(classes.into_iter().map(|body| ("MachineClass", body))).collect()
}

/// Sends `count` reviews at once. Returns the responses, the peak growth of the heap, and the growth afterwards.
async fn send(server: &Running, path: &str, body: &[u8], count: usize) -> (Vec<Value>, usize, usize) {
    let clients = join_all((0..count).map(|_| server.client())).await;
    let bodies: Vec<_> = clients.into_iter().map(|client| (client, bytes::Bytes::copy_from_slice(body))).collect();
    HEAP.reset_peak_usage();
    let before = HEAP.current_usage();
    let answers = join_all(bodies.into_iter().map(async |(mut client, body)| {
        let (status, answer) = client.post(path, body, &[]).await;
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
        serde_json::from_slice::<Value>(&answer).unwrap()["response"].clone()
    }))
    .await;
    let peak = HEAP.peak_usage().saturating_sub(before);
    (answers, peak, rest(before).await)
}

/// What the heap keeps of what it has grown since `before`. The server frees the last of a review after its response.
async fn rest(before: usize) -> usize {
    let grown = || HEAP.current_usage().saturating_sub(before);
    let settled = async {
        while grown() >= 2 * MIB {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // A timeout leaves what is kept for the caller to refuse.
    let _ = tokio::time::timeout(TEST_TIMEOUT, settled).await;
    grown()
}

/// The memory of the client's bodies is allocated before the measurement. TLS and hyper buffer some of them.
#[tokio::test(flavor = "multi_thread")]
async fn reviews_of_many_small_values_cost_little() {
    let _alone = ALONE.lock().await;
    // On a busy machine large reviews wait for each other longer than a client would.
    let server = Running::start(Limits { memory: TEST_TIMEOUT, ..Limits::default() }).await;
    for (index, (kind, body)) in shapes().iter().enumerate() {
        for action in ["mutate", "validate"] {
            let path = format!("/{action}-{}", kind.to_lowercase());
            let (answers, peak, rest) = send(&server, &path, body, 4).await;
            let about = format!(
                "{path} of shape {index}, {} kB: peak {} kB, rest {} kB",
                body.len() / 1000,
                peak / 1000,
                rest / 1000
            );
            eprintln!("{about}");
            assert!(peak < 80 * MIB && rest < 2 * MIB, "{about}");
            assert_eq!(answers.len(), 4);
        }
    }
    server.stop().await;
}

/// A review of a change of a MachineConfig with this Ignition config.
fn machine_config(config: &str) -> Vec<u8> {
    let object = format!(
        r#"{{"metadata":{{"name":"a","labels":{{"machineconfiguration.openshift.io/role":"worker"}}}},"spec":{{"config":
           {{"ignition":{{"version":"3.5.0"}},{config}}}}}}}"#
    );
    let body = review("MachineConfig", &object);
    let text = String::from_utf8(body).unwrap();
    text.replace("machine.sapcloud.io", "machineconfiguration.openshift.io").replace("v1alpha1", "v1").into_bytes()
}

/// Configs are read as values and as types, raised to one version, and validated; what is in files is decoded.
#[tokio::test(flavor = "multi_thread")]
async fn reviews_of_machine_configs_cost_little() {
    let _alone = ALONE.lock().await;
    let server = Running::start(Limits { memory: TEST_TIMEOUT, ..Limits::default() }).await;
    let files = |size: usize, rest: &str| {
        let files = many(size, |index| format!(r#"{{"path":"/etc/a{index}","mode":420{rest}}}"#));
        machine_config(&format!(r#""storage":{{"files":[{files}]}}"#))
    };
    let contents = r#","contents":{"source":"data:,a","verification":{"hash":"sha256-0"}}"#;
    let plain = "x".repeat(1_000_000);
    let one = format!(r#""storage":{{"files":[{{"path":"/a","contents":{{"source":"data:,{plain}"}}}}]}}"#);
    let unused = many(300_000, |index| format!(r#""a{index}":0"#));
    let table = [
        ("small files", files(400_000, "")),
        // They were wrong before, which is no reason to refuse the change.
        ("files that are wrong", files(350_000, contents)),
        ("a large file", machine_config(&one)),
        ("fields without effect", machine_config(&unused)),
        (
            "units",
            machine_config(&format!(
                r#""systemd":{{"units":[{}]}}"#,
                many(400_000, |index| format!(r#"{{"name":"{index}.service"}}"#))
            )),
        ),
    ];
    for (about, body) in table {
        let (answers, peak, rest) = send(&server, "/validate-machineconfig", &body, 4).await;
        let about = format!("{about}, {} kB: peak {} kB, rest {} kB", body.len() / 1000, peak / 1000, rest / 1000);
        eprintln!("{about}");
        assert!(answers.iter().all(|answer| answer["allowed"] == true), "{about}: {}", answers[0]);
        assert!(peak < 80 * MIB && rest < 2 * MIB, "{about}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_objects_of_ordinary_shape_pass() {
    let _alone = ALONE.lock().await;
    let server = Running::start(Limits { memory: TEST_TIMEOUT, ..Limits::default() }).await;
    // An object as large as etcd keeps it, before and after; with annotations as large as an API server allows.
    let annotations = many(250 << 10, |index| format!(r#""example.com/annotation-{index}":"some value""#));
    let managed = many(256 << 10, |index| format!(r#""f:example.com/annotation-{index}":{{}}"#));
    let metadata = format!(r#","annotations":{{{annotations}}},"managedFields":[{{"fieldsV1":{{{managed}}}}}]"#);
    let large = deployment(&metadata, &format!(r#","x":"{}""#, "x".repeat(1_000_000)), "");
    let class = class(&format!(r#"{{"cluster":"a","userData":"{}"}}"#, "x".repeat(1_500_000)));
    for (path, body) in [
        ("/mutate-machinedeployment", &large),
        ("/validate-machinedeployment", &large),
        ("/mutate-machineclass", &class),
        ("/validate-machineclass", &class),
    ] {
        let (answers, peak, _) = send(&server, path, body, 4).await;
        assert!(answers.iter().all(|answer| answer["allowed"] == true), "{path}: {answers:?}");
        assert!(peak < 80 * MIB, "{path}: {peak}");
    }
    let huge =
        deployment(&format!(r#","annotations":{{{}}}"#, many(2_700_000, |index| format!(r#""a{index}":"""#))), "", "");
    let (answers, ..) = send(&server, "/mutate-machinedeployment", &huge, 1).await;
    assert_eq!((&answers[0]["allowed"], &answers[0]["status"]["code"]), (&json!(false), &json!(413)), "{}", answers[0]);
    server.stop().await;
}
