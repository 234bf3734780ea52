use std::time::Duration;

use nodewright_runtime::cache::Unreadable;
use serde_json::json;

use super::{Fixture, cluster_object, config, two_configs};
use crate::{machine_config_pool::memory::Note, shared::node::Node};

const UNUSED: &str = "nodewright.dev/unused-since";

/// Renders `count` configurations one after the other, a minute apart. Returns their names.
fn history(fixture: &mut Fixture, count: usize) -> Vec<String> {
    let mut names = vec![];
    for round in 0..count {
        fixture.put(config("10-b", json!({"kernelArguments": [format!("round={round}")]})));
        fixture.settle();
        fixture.now += Duration::from_mins(1);
        names.push(fixture.target().to_owned());
    }
    names
}

#[test]
fn what_nothing_names_goes_after_the_retention_and_the_newest_ten_stay() {
    let mut fixture = two_configs();
    let names = history(&mut fixture, 13);
    let marked = |fixture: &Fixture, name: &str| {
        fixture.configs[name].metadata.annotations.as_ref().unwrap().contains_key(UNUSED)
    };
    assert!(names[..12].iter().all(|name| marked(&fixture, name)) && !marked(&fixture, &names[12]));
    fixture.now += Duration::from_hours(71);
    assert_eq!(fixture.act(), Vec::<String>::new());
    let wake = fixture.plan().wake.unwrap();
    assert!(wake > fixture.now && wake < fixture.now + Duration::from_hours(2), "{wake}");
    fixture.now += Duration::from_hours(2);
    let mut gone = fixture.act();
    gone.sort();
    let mut expected: Vec<_> = names[..3].iter().map(|name| format!("delete {name}")).collect();
    expected.sort();
    assert_eq!(gone, expected);
    assert_eq!(fixture.act(), Vec::<String>::new());
}

#[test]
fn what_a_node_or_a_pool_names_is_never_deleted() {
    let mut fixture = two_configs();
    let names = history(&mut fixture, 14);
    let node = |name: &str, key: &str, value: &str| -> Node {
        cluster_object(name).annotation(&format!("machineconfiguration.openshift.io/{key}"), value).build()
    };
    fixture.nodes = vec![node("n1", "currentConfig", &names[0]), node("n2", "desiredConfig", &names[1])];
    let mut status = fixture.pool.status.clone().unwrap();
    status.configuration.name = Some(names[2].clone());
    fixture.pool.status = Some(status);
    fixture.now += Duration::from_hours(100);
    let done = fixture.settle();
    assert!(names[..3].iter().all(|name| done.contains(&format!("edit {name}"))), "unmarked: {done:?}");
    assert!(done.contains(&format!("delete {}", names[3])), "{done:?}");
    assert!(names[..3].iter().all(|name| fixture.configs.contains_key(name)));
    // A Node that cannot be read may name anything.
    let mut fixture = two_configs();
    history(&mut fixture, 14);
    fixture.now += Duration::from_hours(100);
    fixture.unreadable_node = Some(Unreadable::named("", "n", "u"));
    let done = fixture.act();
    assert!(done.iter().all(|step| step == "status"), "{done:?}");
    assert!(fixture.plan().to_string().contains("wait UseUnknown"));
}

#[test]
fn what_is_wanted_again_loses_its_mark_before_the_pool_names_it() {
    let mut fixture = two_configs();
    let names = history(&mut fixture, 2);
    fixture.put(config("10-b", json!({"kernelArguments": ["round=0"]})));
    let first = format!("1 edit MachineConfig {}", names[0]);
    let plan = fixture.plan().to_string();
    assert!(plan.starts_with(&first) && !plan.contains("apply"), "{plan}");
    // It may still be there after the quiet period.
    fixture.notes = [(Note::Desired(names[0].clone()), fixture.now - Duration::from_secs(5))].into();
    let plan = fixture.plan().to_string();
    assert!(plan.starts_with(&first), "{plan}");
    assert!(plan.contains("\n2 apply"), "a stage of its own: {plan}");
    fixture.settle();
    assert_eq!(fixture.target(), names[0]);
}

#[test]
fn what_others_have_rendered_is_left_alone() {
    let mut fixture = two_configs();
    fixture.settle();
    let owner = fixture.pool.clone();
    for number in 0..12 {
        let name = format!("rendered-worker-{number:032}");
        fixture.put(
            cluster_object(&name).owned_by(&owner).created("2026-01-01T00:00:00Z").with("/spec", json!({})).build(),
        );
    }
    fixture.now += Duration::from_hours(1000);
    assert_eq!(fixture.settle(), Vec::<String>::new());
}

#[test]
fn a_mark_that_is_wrong_is_made_again() {
    let mut fixture = two_configs();
    let names = history(&mut fixture, 12);
    for wrong in ["yesterday", "2027-01-01T00:00:00Z"] {
        let annotations = fixture.configs.get_mut(&names[0]).unwrap().metadata.annotations.as_mut().unwrap();
        annotations.insert(UNUSED.to_owned(), wrong.to_owned());
        assert_eq!(fixture.act(), [format!("edit {}", names[0])]);
        let noted = &fixture.configs[&names[0]].metadata.annotations.as_ref().unwrap()[UNUSED];
        assert_eq!(noted, &fixture.now.to_string());
    }
}
