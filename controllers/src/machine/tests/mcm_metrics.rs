use std::collections::BTreeSet;

use nodewright_api::{MachineClass, MachinePhase};
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::{
    cache::{Change, Store},
    leadership::tokio_clock,
};

use super::*;
use crate::{
    machine::mcm_metrics::MachineMetrics,
    shared::{CONTROL, mcm_metrics::DriverCalls},
};

const PLACE: &str = r#"namespace="default",machine_deployment="pool",instance_type="large",zone="z1""#;

/// A process with one Machine of deployment `pool`.
struct Scraped {
    metrics: Metrics,
    machines: Arc<Store<Machine>>,
    sets: Arc<Store<MachineSet>>,
    classes: Arc<Store<MachineClass>>,
    seen: MachineMetrics,
}

impl Scraped {
    fn new() -> Self {
        let (metrics, stores) = (Metrics::new(), Stores::default());
        let (machines, sets) = (Arc::new(Store::new(CONTROL, "default")), Arc::new(Store::new(CONTROL, "default")));
        let classes = Arc::new(Store::<MachineClass>::new(CONTROL, "default"));
        let template = json!({"instanceType": "large", "zone": "z1", "region": "r", "capacity": {}});
        classes.apply(nodewright_testing::object("class").with("/nodeTemplate", template).build());
        let mut set = serde_json::to_value(machine_set("set", 1, None)).unwrap();
        set["metadata"]["ownerReferences"] = json!([{"apiVersion": "machine.sapcloud.io/v1alpha1",
            "kind": "MachineDeployment", "name": "pool", "uid": "uid-pool", "controller": true}]);
        sets.apply(serde_json::from_value(set).unwrap());
        stores.add(machines.clone());
        stores.add(sets.clone());
        stores.add(classes.clone());
        let calls = DriverCalls::register(&metrics, "Simulated");
        let seen = MachineMetrics::register(&metrics, &stores, calls);
        Self { metrics, machines, sets, classes, seen }
    }

    /// The series of machine-controller-manager's families.
    fn series(&self) -> Vec<String> {
        let text = self.metrics.encode().unwrap();
        let ours = text.lines().filter(|line| line.starts_with("mcm_machine") || line.starts_with("mcm_cloud"));
        ours.filter(|line| !line.contains("_bucket{")).map(str::to_owned).collect()
    }

    fn has(&self, line: &str) -> bool {
        self.series().iter().any(|it| it == line)
    }

    fn change(&self, old: MachineBuilder, new: MachineBuilder) {
        let (old, new) = (Some(Arc::new(old.build())), Some(Arc::new(new.build())));
        self.seen.changed(&Change { old, new });
    }

    /// A call that began now and took some seconds.
    fn call(&self, verb: Verb, seconds: i64, outcome: &Outcome) {
        let begun: Timestamp = NOW.parse().unwrap();
        let during = (begun, begun + SignedDuration::from_secs(seconds));
        self.seen.called(&super::fixture(of_pool()).call(verb), during, outcome);
    }
}

fn of_pool() -> MachineBuilder {
    let zone = json!({"topology.kubernetes.io/zone": "z1"});
    machine("m").label("name", "pool").with("/spec/nodeTemplate/metadata/labels", zone)
}

fn created(phase: &str) -> MachineBuilder {
    let machine = of_pool().phase(phase).with("/status/lastOperation/type", "Create");
    machine.with("/status/currentStatus/lastUpdateTime", "2026-06-01T11:02:00Z")
}

#[test]
fn a_machine_has_machine_controller_managers_series_while_it_exists() {
    let scraped = Scraped::new();
    let ready = json!([{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "Unknown"}]);
    let machine = created("Running").label("node", "n").with("/spec/providerID", "x:///i-1");
    scraped.machines.apply(machine.with("/status/conditions", ready).build());
    let condition = |kind: &str, value: i64| {
        format!(r#"mcm_machine_status_condition{{name="m",namespace="default",condition="{kind}"}} {value}"#)
    };
    let series = scraped.series();
    assert_eq!(series[0], "mcm_machine_items_total 1");
    assert_eq!(series[1], r#"mcm_machine_current_status_phase{name="m",namespace="default"} 1"#);
    let class = r#"spec_class_api_group="",spec_class_kind="MachineClass",spec_class_name="class""#;
    let info = r#"name="m",namespace="default",createdAt="1780311600",spec_provider_id="x:///i-1""#;
    assert_eq!(series[2], format!(r#"mcm_machine_info{{{info},{class},node_name="n"}} 1"#));
    assert_eq!(series[3..], [condition("Ready", 1), condition("DiskPressure", 2)]);
    scraped.machines.remove("default", "m", 100);
    assert_eq!(scraped.series(), ["mcm_machine_items_total 0"]);
}

#[test]
fn durations_are_the_last_of_a_deployment_and_go_with_it() {
    let scraped = Scraped::new();
    scraped.machines.apply(created("Terminating").label("node", "n").deleting().build());
    scraped.change(created("Pending"), created("Running"));
    let instance = Outcome::Instance(Instance::default());
    scraped.call(Verb::Create, 5, &instance);
    scraped.call(Verb::Initialize, 7, &instance);
    scraped.call(Verb::Delete, 1, &Outcome::Failed(DriverError::new(Code::Internal, "x")));
    scraped.call(Verb::Delete, 9, &Outcome::Done);
    assert!(scraped.has(&format!("mcm_machine_join_duration_seconds{{{PLACE}}} 120")), "{:#?}", scraped.series());
    assert!(scraped.has(&format!("mcm_machine_create_duration_seconds{{{PLACE}}} 3605")));
    assert!(scraped.has(&format!("mcm_machine_initialize_duration_seconds{{{PLACE}}} 7")));
    let drain = r#"mcm_machine_drain_duration_seconds{namespace="default",machine_deployment="pool"} 3480"#;
    assert!(scraped.has(drain), "{:#?}", scraped.series());
    assert!(scraped.has(&format!("mcm_machine_delete_duration_seconds{{{PLACE}}} 69")), "{:#?}", scraped.series());
    scraped.sets.remove("default", "set", 100);
    assert!(!scraped.series().iter().any(|it| it.contains("duration") && it.starts_with("mcm_machine")));
}

#[test]
fn machines_that_do_not_join_in_time_are_counted_by_the_name_without_total() {
    let scraped = Scraped::new();
    let late = json!([{"type": "NodeJoined", "status": "False", "reason": "Timeout", "message": ""}]);
    scraped.change(created("Pending"), created("Failed").with("/status/conditions", late.clone()));
    scraped.change(created("Pending"), created("Failed"));
    assert!(scraped.has(&format!("mcm_machine_num_failed_join{{{PLACE}}} 1")), "{:#?}", scraped.series());
}

#[tokio::test]
async fn calls_are_counted_by_grpcs_numbers_and_the_provider_in_lower_case() {
    let (scraped, clock) = (Scraped::new(), tokio_clock(at(NOW)));
    let fails = async |code: Code| {
        let failure = std::future::ready(Err::<(), _>(DriverError::new(code, "x")));
        let _ = scraped.seen.calls().measure("create_machine", clock.as_ref(), failure).await;
    };
    fails(Code::ResourceExhausted).await;
    fails(Code::Unimplemented).await;
    let answer = scraped.seen.calls().measure("get_machine_status", clock.as_ref(), std::future::ready(Ok(7))).await;
    assert_eq!(answer, Ok(7));
    let failures: Vec<_> = scraped.series().into_iter().filter(|line| line.contains("requests_failed")).collect();
    let labels = r#"provider="simulated",operation="create_machine",error_code="8""#;
    assert_eq!(failures, [format!("mcm_cloud_api_driver_requests_failed_total{{{labels}}} 1")]);
    let labels = r#"provider="simulated",operation="get_machine_status""#;
    assert!(scraped.has(&format!("mcm_cloud_api_driver_request_duration_seconds_count{{{labels}}} 1")));
}

#[tokio::test]
async fn a_call_names_its_trace_in_the_bucket_of_its_duration() {
    let (scraped, clock) = (Scraped::new(), tokio_clock(at(NOW)));
    let traced = async |traceparent: Option<&str>, operation: &'static str| {
        let calls = scraped.seen.calls().within(traceparent.and_then(|text| text.parse().ok()));
        calls.measure(operation, clock.as_ref(), std::future::ready(Ok(()))).await.unwrap();
    };
    traced(Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), "create_machine").await;
    traced(Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"), "delete_machine").await;
    traced(None, "get_machine_status").await;
    let text = scraped.metrics.encode().unwrap();
    let exemplars: Vec<_> = text.lines().filter(|line| line.starts_with("mcm_") && line.contains(" # {")).collect();
    let [line] = exemplars[..] else { panic!("{exemplars:#?}") };
    let ids = r#" # {trace_id="0af7651916cd43dd8448eb211c80319c",span_id="b7ad6b7169203331"} "#;
    assert!(line.contains(r#"operation="create_machine""#) && line.contains(ids), "{line}");
}

#[test]
fn a_deletion_that_is_repeated_changes_no_duration() {
    let scraped = Scraped::new();
    scraped.machines.apply(created("Terminating").label("node", "n").deleting().build());
    scraped.call(Verb::Delete, 9, &Outcome::Done);
    let before = scraped.series();
    scraped.call(Verb::Delete, 99, &Outcome::Done);
    assert_eq!(scraped.series(), before);
    scraped.call(Verb::Create, 9, &Outcome::Retired);
    assert_eq!(scraped.series(), before, "the driver was not asked");
}

#[test]
fn mcm_defect_18_newer_phases_have_numbers_of_their_own() {
    let scraped = Scraped::new();
    let phases = MachinePhase::KNOWN.iter().filter(|phase| !phase.is_empty());
    for phase in phases.clone() {
        scraped.machines.apply(machine(&phase.to_lowercase()).phase(phase).build());
    }
    let all = scraped.series();
    let value = |line: &String| line.rsplit(' ').next().unwrap().parse::<i64>().unwrap();
    let numbers: BTreeSet<_> = all.iter().filter(|line| line.contains("_phase{")).map(value).collect();
    assert_eq!(numbers.len(), phases.count(), "{all:#?}");
}

#[test]
fn mcm_defect_3_a_class_without_node_template_has_metrics_without_a_type() {
    let scraped = Scraped::new();
    let plain = nodewright_testing::object("class").with("/metadata/resourceVersion", "99");
    scraped.classes.apply(plain.build());
    scraped.change(created("Pending"), created("Running"));
    let place = PLACE.replace("large", "");
    assert!(scraped.has(&format!("mcm_machine_join_duration_seconds{{{place}}} 120")), "{:#?}", scraped.series());
}

/// A scrape of 10,000 machines has to stay below 30 MB.
#[test]
fn a_machine_takes_few_bytes_of_a_scrape() {
    let scraped = Scraped::new();
    let empty = scraped.metrics.encode().unwrap().len();
    let conditions: Vec<_> =
        (0..12).map(|number| json!({"type": format!("SomeLongCondition{number}"), "status": "True"})).collect();
    for number in 0..100 {
        let machine = machine(&format!("a-deployment-of-some-length-5f7b9-{number:05}"))
            .with("/status/conditions", conditions.as_slice());
        scraped.machines.apply(machine.with("/spec/providerID", "aws:///eu-west-1/i-0123456789abcdef0").build());
    }
    let each = (scraped.metrics.encode().unwrap().len() - empty) / 100;
    assert!(each < 3_000, "{each} bytes");
}
