//! Which limits the calls of Machines share.

use std::sync::Arc;

use nodewright_api::Code;
use nodewright_driver::{DriverError, SecretData};
use nodewright_runtime::effect::{Effect, Group};

use super::{super::CallLimits, *};

/// A Machine of a class whose Secret has these data, and of a set of a deployment.
fn scene_of(name: &str, class_name: &str, secret: &Value, deployment: &str) -> Fixture {
    let mut set = machine_set(&format!("{deployment}-1"), 1, None);
    let owner = json!([{"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment", "name": deployment,
        "uid": deployment, "controller": true}]);
    set.metadata.owner_references = serde_json::from_value(owner).unwrap();
    let mut fixture = fixture(machine(name)).set(set);
    let secret = serde_json::from_value(json!({"metadata": {"name": class_name}, "data": secret})).unwrap();
    fixture.snapshot.class =
        Ok(Class { name: class_name.into(), secret: SecretData::of(vec![Arc::new(secret)]), ..class() });
    fixture
}

/// The names of the groups that two calls share.
fn shared(one: &Call, other: &Call) -> Vec<String> {
    let others = other.groups();
    let names = one.groups().into_iter().filter(|group| others.contains(group)).map(|group| group.name.to_string());
    names.map(|name| name.split_once(' ').map_or(name.clone(), |(first, _)| first.to_owned())).collect()
}

#[test]
fn calls_share_limits_by_kind_deployment_class_and_credentials() {
    let (account, user_data) = (json!({"key": "YQ=="}), json!({"key": "YQ==", "userData": "Yg=="}));
    let one = scene_of("m1", "small", &account, "pool");
    let sibling = scene_of("m2", "small", &account, "pool");
    let other_class = scene_of("m3", "large", &user_data, "pool");
    let other_pool = scene_of("m4", "large", &json!({"key": "Yg=="}), "other");
    let create = one.call(Verb::Create);
    assert_eq!(
        shared(&create, &sibling.call(Verb::Create)),
        ["creations", "creations", "creations", "creations", "credentials"]
    );
    assert_eq!(shared(&create, &sibling.call(Verb::Initialize)).len(), 5, "it belongs to the creation");
    assert_eq!(shared(&create, &sibling.call(Verb::Delete)), ["credentials"], "creations block no deletion");
    assert_eq!(shared(&create, &sibling.call(Verb::Status)), ["credentials"]);
    assert_eq!(shared(&create, &sibling.call(Verb::DropToken)), [""; 0]);
    // Two Secrets with the same key are the same credentials, whatever user data they have.
    assert_eq!(
        shared(&create, &other_class.call(Verb::Create)),
        ["creations", "creations", "creations", "credentials"]
    );
    assert_eq!(shared(&create, &other_pool.call(Verb::Create)), ["creations"], "only the limit of all");
}

#[test]
fn only_credentials_pause_and_only_for_what_is_throttled() {
    let call = scene_of("m1", "small", &json!({}), "pool").call(Verb::Create);
    let pausing: Vec<Group> = call.groups().into_iter().filter(|group| group.pauses).collect();
    assert!(pausing.len() == 2 && pausing.iter().all(|group| group.name.contains("credentials ")), "{pausing:?}");
    let error = DriverError::new(Code::Unavailable, "too many");
    assert!(Call::is_throttled(&Outcome::Failed(error.clone().throttled())));
    assert!(!Call::is_throttled(&Outcome::Failed(error)) && !Call::is_throttled(&Outcome::Done));
}

#[test]
fn the_limits_of_two_kinds_leave_calls_for_the_third() {
    let limits = MachineSettings::default().limits;
    let (creations, deletions, others) = (limits.creations, limits.deletions, limits.others);
    assert!([creations + deletions, creations + others, deletions + others].into_iter().all(|two| two < 200));
    assert_eq!((CallLimits::of(6).per_deployment, CallLimits::of(6).creations), (6, 6), "few calls are not divided");
    assert!(limits.per_deployment < creations && limits.per_class < creations && limits.per_credentials < 200);
}
