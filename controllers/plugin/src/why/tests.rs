//! Broken clusters, and the answers of `why`: `tests/clusters/NAME.yaml` has the objects, with the question and words of the cause
//! in its first lines, and `NAME.txt` the answer. `UPDATE_GOLDEN=1` writes the answers.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::*;
use crate::{
    output::Colours,
    tree::{Forest, View},
};

/// A file of objects.
struct Case {
    path: PathBuf,
    question: Target,
    cause: String,
    snapshot: Snapshot,
}

impl Case {
    fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap();
        let line = |prefix: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(prefix));
            found.unwrap_or_else(|| panic!("{}: no line {prefix:?}", path.display())).to_owned()
        };
        let (question, now) = line("# why ").split_once(" at ").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        let mut snapshot = Snapshot::at(now.parse().unwrap());
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        for object in &objects {
            snapshot.add(object);
        }
        Self { question: question.parse().unwrap(), cause: line("# cause: "), snapshot, path }
    }
}

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clusters");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    paths.sort();
    paths.into_iter().map(Case::read).collect()
}

#[test]
fn the_first_line_names_the_cause() {
    let (all, mut wrong) = (cases(), vec![]);
    assert!(all.len() >= 50, "only {} clusters", all.len());
    for Case { path, question, cause, snapshot } in all {
        let text = explain(&snapshot, &question).unwrap().text(Colours::default());
        let first = text.lines().next().unwrap_or_default();
        if !first.contains(&cause) {
            wrong.push(format!("{}: {cause:?} is not in {first:?}", path.display()));
        }
        if !(1..=10).contains(&text.lines().count()) {
            wrong.push(format!("{}: {} lines", path.display(), text.lines().count()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_cluster_is_explained_as_its_file_says() {
    let updates = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut wrong = vec![];
    for Case { path, question, snapshot, .. } in cases() {
        let explanation = explain(&snapshot, &question).unwrap();
        let text = explanation.text(Colours::default());
        let golden = path.with_extension("txt");
        if updates {
            fs::write(&golden, &text).unwrap();
        } else if fs::read_to_string(&golden).unwrap_or_default() != text {
            wrong.push(format!("{}:\n{text}", golden.display()));
        }
    }
    assert!(wrong.is_empty(), "UPDATE_GOLDEN=1 writes them:\n{}", wrong.join("\n"));
}

fn case(file: &str) -> Case {
    cases().into_iter().find(|case| case.path.ends_with(file)).unwrap()
}

/// A tree as the command prints it.
fn tree(snapshot: &Snapshot, is_wide: bool) -> String {
    let view = View { now: snapshot.now, colours: Colours::default(), is_wide, has_namespaces: false };
    Forest::of(snapshot, None, is_wide).text(view)
}

/// What is blocked has something that changes it; what is well has nothing.
#[test]
fn each_wait_has_a_field_or_flag_that_changes_it() {
    let mut wrong = vec![];
    for Case { path, question, snapshot, .. } in cases() {
        let explanation = explain(&snapshot, &question).unwrap();
        let is_done = explanation.state == State::Done;
        if is_done != explanation.changes.is_empty() && explanation.reason != "Failed" {
            wrong.push(format!("{}: {explanation:?}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn trees_show_problems_first_and_put_equal_machines_together() {
    let case = case("quota.yaml");
    let text = tree(&case.snapshot, false);
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[1].starts_with("machinedeployment/pool") && lines[1].contains("2/3"), "{text}");
    assert!(lines[3].contains("machine/pool-58vxm-nz7jc") && lines[3].contains("quota of 2 vms"), "{text}");
    assert!(lines[4].contains("2 machines (pool-58vxm-96vmf, pool-58vxm-vblrh)"), "{text}");
    assert!(lines[5].contains("2 nodes") && lines[5].contains("Ready"), "{text}");
    let each = crate::tree::Forest::of(&case.snapshot, Some(&crate::tree::Wanted::parse("pool").unwrap()), true);
    let each = each.wide_text(case.snapshot.now, Colours::default());
    assert!(each.contains("machine/pool-58vxm-96vmf") && each.contains("node/pool-58vxm-vblrh"), "{each}");
}

#[test]
fn a_tree_begins_with_the_manager_that_does_not_run() {
    let forest = |file: &str| {
        let snapshot = case(file).snapshot;
        (tree(&snapshot, false), serde_json::to_value(Forest::of(&snapshot, None, false)).unwrap())
    };
    let (text, json) = forest("manager-down.yaml");
    let line = "no manager runs: nodewright-7d9f has not renewed the lease for 10m (since 2026-06-01T12:20:00Z): \
        lease/machine-controller-manager, lease/machine-controller in namespace shoot; what follows may be old\nNAME ";
    assert!(text.starts_with(line), "{text}");
    let absence = &json["noManager"][0];
    assert_eq!(absence["leases"], json!(["lease/machine-controller-manager", "lease/machine-controller"]));
    assert_eq!((&absence["namespace"], &absence["since"]), (&json!("shoot"), &json!("2026-06-01T12:20:00Z")));
    let (text, json) = forest("all-well.yaml");
    assert!(text.starts_with("NAME ") && json.get("noManager").is_none() && json["trees"].is_array(), "{text}");
    let mut snapshot = case("manager-down.yaml").snapshot;
    snapshot.leases.clear();
    assert!(tree(&snapshot, false).starts_with("NAME "), "nothing is known without Leases");
}

#[test]
fn machines_with_the_same_problem_are_one_line() {
    let mut snapshot = case("kubelet-does-not-join.yaml").snapshot;
    let joining = snapshot.machines.iter().find(|it| it.phase().as_str() == "Pending").unwrap().clone();
    for number in 1..12 {
        let mut machine = joining.clone();
        machine.metadata.name = Some(format!("pool-58vxm-x{number}"));
        machine.metadata.creation_timestamp.as_mut().unwrap().0 += jiff::SignedDuration::from_secs(number);
        machine.spec.provider_id = format!("simulated:///vm-x{number}");
        machine.metadata.labels.as_mut().unwrap().insert("node".to_owned(), format!("pool-58vxm-x{number}"));
        snapshot.machines.push(machine);
    }
    let text = tree(&snapshot, false);
    let line = text.lines().find(|line| line.contains("12 machines (")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains("no node has the provider ID …; without a healthy node it fails at …"), "{line}");
    let other = snapshot.machines.iter_mut().find(|it| it.provider_id() == Some("simulated:///vm-x3")).unwrap();
    other.spec.provider_id = "other".to_owned();
    other.status.as_mut().unwrap().current_status.phase = nodewright_api::MachinePhase::Failed;
    assert!(tree(&snapshot, false).contains("11 machines ("));
}

#[test]
fn programs_get_kinds_namespaces_and_all_names_of_a_tree() {
    let snapshot = case("never-joins.yaml").snapshot;
    let forest = Forest::of(&snapshot, None, false);
    let json = serde_json::to_value(&forest).unwrap();
    let (deployment, set) = (&json["trees"][0], &json["trees"][0]["children"][0]);
    let kinds = [deployment, set].map(|it| (it["kind"].as_str().unwrap(), it["names"][0].as_str().unwrap()));
    assert_eq!(kinds, [("MachineDeployment", "pool"), ("MachineSet", "pool-58vxm")]);
    let group = set["children"].as_array().unwrap().iter().find(|it| it["count"] == 2).unwrap();
    assert_eq!((&group["kind"], &group["namespace"]), (&json!("Machine"), &json!("shoot")));
    assert_eq!(group["names"], json!(["pool-58vxm-96vmf", "pool-58vxm-vblrh"]));
    let nodes = &group["children"][0];
    assert_eq!((&nodes["kind"], &nodes["names"]), (&json!("Node"), &group["names"]));
    assert_eq!((&nodes["count"], nodes.get("namespace")), (&json!(2), None));
}

#[test]
fn a_tree_of_all_namespaces_names_them() {
    let mut snapshot = case("never-joins.yaml").snapshot;
    snapshot.machines[0].metadata.owner_references = None;
    let mut other = snapshot.machines[0].clone();
    other.metadata.namespace = Some("other".to_owned());
    snapshot.machines.push(other);
    let view = View { now: snapshot.now, colours: Colours::default(), is_wide: false, has_namespaces: true };
    let text = Forest::of(&snapshot, None, false).text(view);
    let lines: Vec<_> = text.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>()).collect();
    for expected in [["NAMESPACE", "NAME"], ["shoot", "machinedeployment/pool"], ["other", "machine/pool-58vxm-96vmf"]]
    {
        assert!(lines.iter().any(|line| *line == expected), "{expected:?}: {text}");
    }
    assert!(!tree(&snapshot, false).contains("NAMESPACE"));
}

#[test]
fn preserved_machines_are_named_with_what_ends_it() {
    let mut snapshot = case("all-well.yaml").snapshot;
    let until = "2026-06-04T12:30:00.5Z".parse().unwrap();
    let machine = &mut snapshot.machines[0];
    let named = machine.metadata.name.clone().unwrap();
    machine.status.as_mut().unwrap().current_status.preserve_expiry_time =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(until));
    let line = format!("preserved until 2026-06-04T12:30:00Z: kubectl nodewright release {named} ends that\n");
    for target in [Target::new(TargetKind::Machine, &named), Target::new(TargetKind::Node, &named)] {
        let text = explain(&snapshot, &target).unwrap().text(Colours::default());
        assert!(text.contains(&format!("  kept     {line}")), "{text}");
    }
    let text = tree(&snapshot, false);
    assert!(text.contains("Running, preserved") && text.contains(&line), "{text}");
    snapshot.machines[0].metadata.deletion_timestamp = snapshot.machines[0].metadata.creation_timestamp.clone();
    assert!(!tree(&snapshot, false).contains("preserved"), "it goes all the same");
}

#[test]
fn a_node_without_a_condition_ready_is_not_ready() {
    let mut snapshot = case("all-well.yaml").snapshot;
    let mut stray = snapshot.nodes[0].clone();
    stray.metadata.name = Some("stray".to_owned());
    stray.spec.as_mut().unwrap().provider_id = None;
    stray.status = None;
    snapshot.nodes.push(stray);
    let found = explain(&snapshot, &Target::new(TargetKind::Node, "stray")).unwrap();
    assert_eq!((found.state, found.reason.as_str()), (State::Blocked, "NoReadyCondition"));
    let named = snapshot.nodes[0].metadata.name.clone().unwrap();
    snapshot.nodes[0].status = None;
    let found = explain(&snapshot, &Target::new(TargetKind::Machine, &named)).unwrap();
    assert!(found.cause.starts_with(&format!("its node {named} has no condition Ready")), "{found:?}");
}

#[test]
fn a_class_that_is_deleted_waits_since_then() {
    let mut snapshot = case("class-in-use.yaml").snapshot;
    let target = Target::new(TargetKind::Class, "small");
    let since = |snapshot: &Snapshot| explain(snapshot, &target).unwrap().since.unwrap().to_string();
    assert_eq!(since(&snapshot), "2026-06-01T12:20:00Z");
    snapshot.classes[0].status.as_mut().unwrap().conditions.pop();
    assert_eq!(since(&snapshot), "2026-06-01T12:20:00Z");
    snapshot.classes[0].metadata.deletion_timestamp = None;
    let conditions = &mut snapshot.classes[0].status.as_mut().unwrap().conditions;
    conditions[0].message = "the secret exists, and is being deleted".to_owned();
    let cause = explain(&snapshot, &target).unwrap().cause;
    assert_eq!(cause, "the secret exists, and is being deleted; the driver can read its providerSpec");
}

#[test]
fn a_young_machine_without_a_status_may_wait_for_the_driver() {
    let mut snapshot = case("manager-down.yaml").snapshot;
    snapshot.leases.clear();
    let machine = snapshot.machines.iter_mut().find(|machine| machine.phase().as_str().is_empty()).unwrap();
    let (created, target) =
        (machine.metadata.creation_timestamp.as_mut().unwrap(), Target::new(TargetKind::Deployment, "pool"));
    created.0 = "2026-06-01T12:29:14Z".parse().unwrap();
    let text = explain(&snapshot, &target).unwrap().text(Colours::default());
    assert!(
        text.contains("waits for machine/pool-58vxm-nz7jc: no status was written yet: the call of the driver"),
        "{text}"
    );
    assert!(text.contains("change   the driver's timeout of a call"), "{text}");
    snapshot.now += jiff::SignedDuration::from_secs(14);
    assert!(explain(&snapshot, &target).unwrap().cause.starts_with("no manager has seen it"), "a minute has passed");
}

/// Changes why the machine of `drain-budget.yaml` is not drained.
fn set_drained(snapshot: &mut Snapshot, message: &str) {
    let is_deleted = |machine: &&mut nodewright_api::Machine| machine.metadata.deletion_timestamp.is_some();
    let deleted = snapshot.machines.iter_mut().find(is_deleted).unwrap();
    let conditions = &mut deleted.status.as_mut().unwrap().conditions;
    let drained = conditions.iter_mut().find(|it| it.type_ == "Drained").unwrap();
    drained.message = Some(message.to_owned());
}

#[test]
fn times_are_shown_in_whole_seconds() {
    let Case { mut snapshot, question, .. } = case("drain-budget.yaml");
    set_drained(&mut snapshot, "a VM that was asked for may still appear until 2026-06-01T21:56:37.982460541Z");
    let why = explain(&snapshot, &question).unwrap().text(Colours::default());
    for text in [why, tree(&snapshot, false)] {
        assert!(text.contains("appear until 2026-06-01T21:56:37Z\n"), "{text}");
    }
    snapshot = case("manager-down.yaml").snapshot;
    for lease in &mut snapshot.leases {
        lease.metadata.managed_fields = None;
        let written = "2026-06-01T12:20:00.123456Z".parse().unwrap();
        lease.spec.as_mut().unwrap().renew_time =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(written));
    }
    let json = serde_json::to_value(explain(&snapshot, &question).unwrap()).unwrap();
    assert_eq!((&json["reason"], &json["since"]), (&json!("NoLeader"), &json!("2026-06-01T12:20:00Z")));
}

#[test]
fn a_message_in_a_tree_is_cut_after_its_cause() {
    let mut snapshot = case("drain-budget.yaml").snapshot;
    let text = tree(&snapshot, false);
    let sentence = "its node is not drained: pod shop/web-7d4b9-x2x5p is not evicted: disruption budget web allows no disruption \
        although all its 3 pods are healthy: raise its maxUnavailable or lower its minAvailable; …\n";
    assert!(text.contains(sentence) && !text.contains("bytes in all"), "{text}");
    assert!(tree(&snapshot, true).contains("minAvailable; pods that are left are deleted without grace at "));
    let json = serde_json::to_string(&Forest::of(&snapshot, None, false)).unwrap();
    assert!(json.contains("are deleted without grace at 2026-06-01T14:10:00Z"), "{json}");
    let mut set_message = |message: &str| {
        let deleted =
            snapshot.machines.iter_mut().find(|machine| machine.metadata.deletion_timestamp.is_some()).unwrap();
        let conditions = &mut deleted.status.as_mut().unwrap().conditions;
        conditions.iter_mut().find(|it| it.type_ == "Drained").unwrap().message = Some(message.to_owned());
        (tree(&snapshot, false), tree(&snapshot, true))
    };
    let (short, wide) = set_message(&format!("a{}z", "ü".repeat(400)));
    assert!(short.contains("üü…\n") && !short.contains("üz") && wide.contains("üz\n"), "{short}");
    let (short, _) = set_message(&["one; two; ", &"x".repeat(160)].concat());
    assert!(short.contains(": one; two; …\n"), "{short}");
}

#[test]
fn an_object_that_does_not_exist_is_named_with_those_that_do() {
    let case = &cases()[0];
    let missing = Target::new(TargetKind::Deployment, "other");
    let error = explain(&case.snapshot, &missing).unwrap_err().to_string();
    assert!(error.starts_with("machinedeployment/other not found: there are pool"), "{error}");
}
