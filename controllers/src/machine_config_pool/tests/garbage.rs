use std::time::Duration;

use nodewright_runtime::cache::Unreadable;
use serde_json::json;

use super::{World, cluster_object, config, two_configs};
use crate::{machine_config_pool::memory::Note, shared::node::Node};

const UNUSED: &str = "nodewright.dev/unused-since";

/// Renders `count` configurations one after the other, a minute apart. Returns their names.
fn history(world: &mut World, count: usize) -> Vec<String> {
    let mut names = vec![];
    for round in 0..count {
        world.put(config("10-b", json!({"kernelArguments": [format!("round={round}")]})));
        world.settle();
        world.now += Duration::from_mins(1);
        names.push(world.target().to_owned());
    }
    names
}

#[test]
fn what_nothing_names_goes_after_the_retention_and_the_newest_ten_stay() {
    let mut world = two_configs();
    let names = history(&mut world, 13);
    let marked =
        |world: &World, name: &str| world.configs[name].metadata.annotations.as_ref().unwrap().contains_key(UNUSED);
    assert!(names[..12].iter().all(|name| marked(&world, name)) && !marked(&world, &names[12]));
    world.now += Duration::from_hours(71);
    assert_eq!(world.act(), Vec::<String>::new());
    let wake = world.plan().wake.unwrap();
    assert!(wake > world.now && wake < world.now + Duration::from_hours(2), "{wake}");
    world.now += Duration::from_hours(2);
    let mut gone = world.act();
    gone.sort();
    let mut expected: Vec<_> = names[..3].iter().map(|name| format!("delete {name}")).collect();
    expected.sort();
    assert_eq!(gone, expected);
    assert_eq!(world.act(), Vec::<String>::new());
}

#[test]
fn what_a_node_or_a_pool_names_is_never_deleted() {
    let mut world = two_configs();
    let names = history(&mut world, 14);
    let node = |name: &str, key: &str, value: &str| -> Node {
        cluster_object(name).annotation(&format!("machineconfiguration.openshift.io/{key}"), value).build()
    };
    world.nodes = vec![node("n1", "currentConfig", &names[0]), node("n2", "desiredConfig", &names[1])];
    let mut status = world.pool.status.clone().unwrap();
    status.configuration.name = Some(names[2].clone());
    world.pool.status = Some(status);
    world.now += Duration::from_hours(100);
    let done = world.settle();
    assert!(names[..3].iter().all(|name| done.contains(&format!("edit {name}"))), "unmarked: {done:?}");
    assert!(done.contains(&format!("delete {}", names[3])), "{done:?}");
    assert!(names[..3].iter().all(|name| world.configs.contains_key(name)));
    // A Node that cannot be read may name anything.
    let mut world = two_configs();
    history(&mut world, 14);
    world.now += Duration::from_hours(100);
    world.unreadable_node = Some(Unreadable::named("", "n", "u"));
    assert_eq!(world.act(), Vec::<String>::new());
    assert!(world.plan().to_string().contains("wait UseUnknown"));
}

#[test]
fn what_is_wanted_again_loses_its_mark_before_the_pool_names_it() {
    let mut world = two_configs();
    let names = history(&mut world, 2);
    world.put(config("10-b", json!({"kernelArguments": ["round=0"]})));
    let first = format!("1 edit MachineConfig {}", names[0]);
    let plan = world.plan().to_string();
    assert!(plan.starts_with(&first) && !plan.contains("apply"), "{plan}");
    // It may still be there after the quiet period.
    world.notes = [(Note::Desired(names[0].clone()), world.now - Duration::from_secs(5))].into();
    let plan = world.plan().to_string();
    assert!(plan.starts_with(&first), "{plan}");
    assert!(plan.contains("\n2 apply"), "a stage of its own: {plan}");
    world.settle();
    assert_eq!(world.target(), names[0]);
}

#[test]
fn what_others_have_rendered_is_left_alone() {
    let mut world = two_configs();
    world.settle();
    let owner = world.pool.clone();
    for number in 0..12 {
        let name = format!("rendered-worker-{number:032}");
        world.put(
            cluster_object(&name).owned_by(&owner).created("2026-01-01T00:00:00Z").with("/spec", json!({})).build(),
        );
    }
    world.now += Duration::from_hours(1000);
    assert_eq!(world.settle(), Vec::<String>::new());
}

#[test]
fn a_mark_that_is_wrong_is_made_anew() {
    let mut world = two_configs();
    let names = history(&mut world, 12);
    for wrong in ["yesterday", "2027-01-01T00:00:00Z"] {
        let annotations = world.configs.get_mut(&names[0]).unwrap().metadata.annotations.as_mut().unwrap();
        annotations.insert(UNUSED.to_owned(), wrong.to_owned());
        assert_eq!(world.act(), [format!("edit {}", names[0])]);
        let noted = &world.configs[&names[0]].metadata.annotations.as_ref().unwrap()[UNUSED];
        assert_eq!(noted, &world.now.to_string());
    }
}
