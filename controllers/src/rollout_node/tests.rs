//! The marks on Nodes while a rollout lasts.

use std::sync::Arc;

use nodewright_api::{Machine, MachineDeployment, MachineSet};
use nodewright_runtime::{
    cache::{Store, Stores},
    controller::Controller,
    effect::{Never, Outcomes},
    object::ObjectRef,
    plan::{Context, Plan, Step},
};
use serde_json::{Value, json};

use super::RolloutNodeController;
use crate::{
    shared::{
        CONTROL, TARGET,
        indexes::{DEPLOYMENT_BY_UID, MACHINE_BY_NODE, SET_BY_UID},
        node::Node,
    },
    testing::{MachineBuilder, NOW, machine, machine_deployment, machine_set, rolling},
};

const DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
const BY_US: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled-by-mcm";

/// A deployment of class `v1`, its set of this class, one Machine and its Node.
struct Fixture {
    deployment: Value,
    class: &'static str,
    machine: MachineBuilder,
    node: Value,
    annotates: bool,
}

impl Fixture {
    fn of(class: &'static str) -> Self {
        let proof = json!([{"type": "InstanceProvisioned", "status": "True", "reason": "Provisioned", "message": "x:///i-1"},
            {"type": "NodeJoined", "status": "True", "reason": "Joined", "message": "n"}]);
        let machine =
            machine("m").label("node", "n").with("/spec/providerID", "x:///i-1").with("/status/conditions", proof);
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "uid-n", "resourceVersion": "5"},
            "spec": {"providerID": "x:///i-1", "taints": [{"key": "theirs", "effect": "NoSchedule"}]}});
        Self { deployment: machine_deployment(3, &rolling(1, 0)), class, machine, node, annotates: true }
    }

    fn plan(&self) -> Plan<Never> {
        let deployment: MachineDeployment = serde_json::from_value(self.deployment.clone()).unwrap();
        let mut set = serde_json::to_value(machine_set("set", 3, None)).unwrap();
        set["spec"]["template"] = self.deployment["spec"]["template"].clone();
        set["spec"]["template"]["spec"]["class"]["name"] = self.class.into();
        set["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "MachineDeployment", "name": "pool",
            "uid": "uid-pool", "controller": true}]);
        let set: MachineSet = serde_json::from_value(set).unwrap();
        let machine = self.machine.clone().owned_by(&set).build();
        let node: Node = serde_json::from_value(self.node.clone()).unwrap();
        let machines = Store::<Machine>::new(CONTROL, "default");
        machines.add_index(MACHINE_BY_NODE);
        machines.apply(machine);
        let sets = Store::<MachineSet>::new(CONTROL, "default");
        sets.add_index(SET_BY_UID);
        sets.apply(set);
        let deployments = Store::<MachineDeployment>::new(CONTROL, "default");
        deployments.add_index(DEPLOYMENT_BY_UID);
        deployments.apply(deployment);
        let stores = Stores::default().with(TARGET, node);
        stores.add(Arc::new(machines));
        stores.add(Arc::new(sets));
        stores.add(Arc::new(deployments));
        let controller = RolloutNodeController { namespace: "default".into(), annotates: self.annotates };
        let snapshot = controller.snapshot(&stores, &ObjectRef::new(TARGET, "", "n")).unwrap();
        RolloutNodeController::plan(&Context::new(NOW.parse().unwrap(), &Outcomes::default()), &snapshot)
    }

    /// Executes the plan. Returns whether there was anything to do.
    fn act(&mut self) -> bool {
        let plan = self.plan();
        for planned in plan.steps() {
            let Step::Edit { patch, .. } = &planned.step else { panic!("{planned:?}") };
            nodewright_testing::json_patch(&mut self.node, patch).unwrap();
        }
        !plan.is_idle()
    }

    fn marks(&self) -> (bool, Option<&str>, Option<&str>) {
        let taints = self.node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let ours = json!({"key": "deployment.machine.sapcloud.io/prefer-no-schedule", "value": "True",
            "effect": "PreferNoSchedule"});
        assert_eq!(taints[0]["key"], "theirs", "those of others stay");
        let annotation = |key: &str| self.node["metadata"]["annotations"][key].as_str();
        (taints.contains(&ours), annotation(DISABLED), annotation(BY_US))
    }
}

#[test]
fn a_node_of_a_former_template_has_the_marks_while_the_rollout_lasts() {
    let mut fixture = Fixture::of("former");
    assert!(fixture.act());
    assert_eq!(fixture.marks(), (true, Some("true"), Some("true")));
    assert!(!fixture.act(), "once");
    fixture.class = "v1";
    assert!(fixture.act(), "the template is restored");
    assert_eq!(fixture.marks(), (false, None, None));
    assert!(!fixture.act());
}

#[test]
fn no_marks_without_a_rollout() {
    let of = |change: fn(&mut Fixture)| {
        let mut fixture = Fixture::of("former");
        change(&mut fixture);
        fixture.act();
        let (taint, disabled, by_us) = fixture.marks();
        (taint, disabled.is_some(), by_us.is_some())
    };
    let none = (false, false, false);
    assert_eq!(of(|fixture| fixture.class = "v1"), none, "the present template");
    assert_eq!(of(|fixture| fixture.deployment["spec"]["paused"] = true.into()), none, "paused");
    assert_eq!(of(|fixture| fixture.deployment["spec"]["strategy"] = json!({"type": "Recreate"})), none);
    assert_eq!(of(|fixture| fixture.machine = fixture.machine.clone().deleting()), none, "it goes anyway");
    assert_eq!(of(|fixture| fixture.node["spec"]["providerID"] = "x:///i-2".into()), none, "the node of another VM");
    assert_eq!(of(|fixture| fixture.annotates = false), (true, false, false));
}

#[test]
fn what_others_tell_the_autoscaler_stays() {
    let mut fixture = Fixture::of("former");
    fixture.node["metadata"]["annotations"] = json!({DISABLED: "true"});
    assert!(fixture.act());
    assert_eq!(fixture.marks(), (true, Some("true"), None));
    fixture.class = "v1";
    assert!(fixture.act());
    assert_eq!(fixture.marks(), (false, Some("true"), None));

    let mut preserved = Fixture::of("former");
    preserved.act();
    preserved.class = "v1";
    let until = "2026-06-05T12:00:00Z";
    preserved.machine = preserved.machine.clone().with("/status/currentStatus/preserveExpiryTime", until);
    preserved.act();
    assert_eq!(preserved.marks(), (false, Some("true"), Some("true")), "its preservation needs them");
}

#[test]
fn a_taint_that_another_writer_adds_meanwhile_is_not_lost() {
    let mut fixture = Fixture::of("former");
    let plan = fixture.plan();
    fixture.node["spec"]["taints"].as_array_mut().unwrap().push(json!({"key": "new", "effect": "NoSchedule"}));
    let Step::Edit { patch, .. } = &plan.stages[0][0].step else { panic!() };
    assert!(nodewright_testing::json_patch(&mut fixture.node, patch).is_err());
}
