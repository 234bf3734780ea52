//! Errors and warnings of objects.

use nodewright_api::field::summary;
use nodewright_api::validation::Validate;
use nodewright_api::{Machine, MachineClass, MachineDeployment, MachineSet, RawJson};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A valid deployment, with a value set at a JSON pointer.
fn deployment(changes: &[(&str, Value)]) -> MachineDeployment {
    changed(
        json!({
            "metadata": {"name": "pool", "namespace": "shoot"},
            "spec": {
                "replicas": 3,
                "selector": {"matchLabels": {"name": "pool"}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
                "template": {
                    "metadata": {"labels": {"name": "pool"}},
                    "spec": {"class": {"kind": "MachineClass", "name": "small"}},
                },
            },
        }),
        changes,
    )
}

fn class(changes: &[(&str, Value)]) -> MachineClass {
    changed(
        json!({
            "metadata": {"name": "small", "namespace": "shoot"},
            "provider": "simulated",
            "providerSpec": {"size": "small"},
            "secretRef": {"name": "user-data", "namespace": "shoot"},
            "nodeTemplate": {
                "capacity": {"cpu": "4", "gpu": "0", "memory": "16Gi"},
                "instanceType": "small", "region": "here", "zone": "here-1",
            },
        }),
        changes,
    )
}

/// Sets values at JSON pointers. Null removes a field.
fn changed<T: DeserializeOwned>(mut object: Value, changes: &[(&str, Value)]) -> T {
    for (pointer, value) in changes {
        let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
        let parent = parent.split('/').skip(1).fold(&mut object, |object, step| match step.parse::<usize>() {
            Ok(index) => &mut object[index],
            Err(_) => &mut object[step.replace("~1", "/")],
        });
        parent[name.replace("~1", "/")] = value.clone();
    }
    serde_json::from_value(object).expect("readable")
}

fn assert_errors(object: &impl Validate, expected: &[&str]) {
    let found: Vec<_> = object.validate().iter().map(ToString::to_string).collect();
    assert_eq!(found, expected);
}

#[test]
fn what_is_valid_has_no_errors() {
    assert_errors(&deployment(&[]), &[]);
    assert_errors(&class(&[]), &[]);
    assert_eq!(deployment(&[]).warnings(), Vec::<String>::new());
}

#[test]
fn what_mcm_acts_on_is_let_through() {
    for changes in [
        vec![("/spec/strategy/rollingUpdate/maxSurge", json!(0))],
        vec![("/spec/strategy/rollingUpdate/maxUnavailable", json!("100%"))],
        vec![("/spec/strategy", json!({"type": "Recreate"}))],
        vec![("/spec/minReadySeconds", json!(500)), ("/spec/progressDeadlineSeconds", json!(300))],
        vec![("/spec/revisionHistoryLimit", json!(0)), ("/spec/paused", json!(true))],
        vec![("/spec/template/spec/class/kind", json!("AWSMachineClass"))],
        vec![("/spec/template/spec/nodeConditions", json!(""))],
        vec![("/spec/strategy/inPlaceUpdate", json!({"orchestrationType": "of another strategy"}))],
        vec![(
            "/spec/selector/matchExpressions",
            json!([{"key": "name", "operator": "In", "values": ["pool", "more"]}, {"key": "x", "operator": "DoesNotExist"}]),
        )],
        vec![(
            "/spec/strategy",
            json!({"type": "InPlaceUpdate", "inPlaceUpdate": {"maxSurge": 0, "maxUnavailable": 1, "orchestrationType": "Manual"}}),
        )],
    ] {
        assert_errors(&deployment(&changes), &[]);
    }
}

#[test]
fn what_the_defaults_fill_in_is_no_error() {
    assert_errors(&deployment(&[("/spec/strategy", json!({}))]), &[]);
    assert_errors(&deployment(&[("/spec/strategy/type", json!("")), ("/spec/strategy/rollingUpdate", json!({}))]), &[]);
    assert_errors(&deployment(&[("/spec/strategy", json!({"type": "InPlaceUpdate", "inPlaceUpdate": {}}))]), &[]);
}

#[test]
fn numbers_must_not_be_negative() {
    let deployment = deployment(&[
        ("/spec/replicas", json!(-1)),
        ("/spec/minReadySeconds", json!(-2)),
        ("/spec/revisionHistoryLimit", json!(-3)),
        ("/spec/rollbackTo", json!({"revision": -4})),
        ("/spec/template/spec/maxEvictRetries", json!(-5)),
        ("/spec/template/spec/drainTimeout", json!("-6m")),
    ]);
    assert_errors(
        &deployment,
        &[
            "spec.minReadySeconds: Invalid value: -2: must be greater than or equal to 0",
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            "spec.revisionHistoryLimit: Invalid value: -3: must be greater than or equal to 0",
            "spec.rollbackTo.revision: Invalid value: -4: must be greater than or equal to 0",
            "spec.template.spec.drainTimeout: Invalid value: \"-6m0s\": must not be negative",
            "spec.template.spec.maxEvictRetries: Invalid value: -5: must be greater than or equal to 0",
        ],
    );
}

#[test]
fn a_timeout_that_is_over_at_once_is_refused_and_a_short_one_warned_about() {
    for field in ["creationTimeout", "healthTimeout", "inPlaceUpdateTimeout"] {
        let zero = deployment(&[(&format!("/spec/template/spec/{field}"), json!("0s"))]);
        let text = format!("spec.template.spec.{field}: Invalid value: \"0s\": must be greater than 0s");
        assert_errors(&zero, &[&text]);
        assert!(deployment(&[("/spec/replicas", json!(7))]).validate_update(&zero).is_empty());
    }
    let warned = |field: &str, value: &str| {
        let path = format!("/spec/template/spec/{field}");
        deployment(&[(&path, json!(value))]).warnings().iter().any(|text| text.contains("less than most machines take"))
    };
    assert!(warned("creationTimeout", "59s") && warned("healthTimeout", "1s"));
    assert!(!warned("creationTimeout", "1m") && !warned("drainTimeout", "1s"));
}

#[test]
fn a_number_of_replicas_with_a_digit_too_many_is_warned_about() {
    let of = |replicas: i32| deployment(&[("/spec/replicas", json!(replicas))]);
    let warning = of(100_000).change_warning(Some(&of(3))).unwrap();
    assert_eq!(warning, "spec.replicas: 100000 machines are created, and there were 3; is that meant?");
    for (before, after) in [(3, 100), (20, 200), (500, 5_000), (100_000, 3)] {
        assert_eq!(of(after).change_warning(Some(&of(before))), None, "{before} to {after}");
    }
    assert!(of(101).change_warning(None).is_some() && of(100).change_warning(None).is_none());
}

#[test]
fn a_class_must_be_named() {
    assert_errors(
        &deployment(&[("/spec/template/spec/class", json!({}))]),
        &[
            "spec.template.spec.class.kind: Required value: must not be empty",
            "spec.template.spec.class.name: Required value: must not be empty",
        ],
    );
    let machine: Machine =
        changed(json!({"metadata": {}, "spec": {"class": {"kind": "MachineClass", "name": "Small"}}}), &[]);
    assert_eq!(machine.validate()[0].path.as_str(), "spec.class.name");
}

#[test]
fn the_selector_must_select_the_machines_of_the_template() {
    assert_errors(
        &deployment(&[("/spec/selector", Value::Null)]),
        &["spec.selector: Required value: must select the machines by the labels of the template"],
    );
    assert_errors(
        &deployment(&[("/spec/selector", json!({}))]),
        &[
            "spec.selector: Invalid value: {}: must not be empty: an empty selector would select every machine of the namespace",
        ],
    );
    assert_errors(
        &deployment(&[("/spec/template/metadata/labels", json!({"name": "other"}))]),
        &[r#"spec.template.metadata.labels: Invalid value: {"name":"other"}: must match spec.selector"#],
    );
    assert_errors(
        &deployment(&[(
            "/spec/selector/matchExpressions",
            json!([{"key": "name", "operator": "NotIn", "values": ["pool"]}]),
        )]),
        &[r#"spec.template.metadata.labels: Invalid value: {"name":"pool"}: must match spec.selector"#],
    );
}

#[test]
fn requirements_of_a_selector_must_make_sense() {
    let deployment = deployment(&[(
        "/spec/selector/matchExpressions",
        json!([
            {"key": "a", "operator": "In"},
            {"key": "b", "operator": "Exists", "values": ["x"]},
            {"key": "c", "operator": "Like", "values": []},
            {"key": "d", "operator": "NotIn", "values": ["fine", "not fine"]},
        ]),
    )]);
    let paths: Vec<_> = deployment.validate().iter().map(|error| error.path.to_string()).collect();
    assert_eq!(
        paths,
        [
            "spec.selector.matchExpressions[0].values",
            "spec.selector.matchExpressions[1].values",
            "spec.selector.matchExpressions[2].operator",
            "spec.selector.matchExpressions[3].values[1]",
        ]
    );
}

#[test]
fn the_strategy_must_be_known_and_its_bounds_numbers() {
    assert_errors(
        &deployment(&[("/spec/strategy/type", json!("Sideways"))]),
        &[
            r#"spec.strategy.type: Unsupported value: "Sideways": supported values: "InPlaceUpdate", "Recreate", "RollingUpdate""#,
        ],
    );
    assert_errors(
        &deployment(&[("/spec/strategy/rollingUpdate", json!({"maxSurge": "x", "maxUnavailable": -1}))]),
        &[
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: -1: must not be negative",
            r#"spec.strategy.rollingUpdate.maxSurge: Invalid value: "x": must be a number or a percentage such as "25%""#,
        ],
    );
    assert_errors(
        &deployment(&[("/spec/strategy/rollingUpdate", json!({"maxSurge": "101%", "maxUnavailable": "9000000000%"}))]),
        &[
            r#"spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "9000000000%": must not be more than 100%"#,
            r#"spec.strategy.rollingUpdate.maxSurge: Invalid value: "101%": must not be more than 100%"#,
        ],
    );
    assert_errors(
        &deployment(&[(
            "/spec/strategy",
            json!({"type": "InPlaceUpdate", "inPlaceUpdate": {"maxSurge": "5", "orchestrationType": "Chance"}}),
        )]),
        &[
            r#"spec.strategy.inPlaceUpdate.maxSurge: Invalid value: "5": must be a number or a percentage such as "25%""#,
            r#"spec.strategy.inPlaceUpdate.orchestrationType: Unsupported value: "Chance": supported values: "Auto", "Manual""#,
        ],
    );
}

#[test]
fn a_template_must_be_one_of_which_machines_and_nodes_can_be_made() {
    let deployment = deployment(&[
        ("/spec/template/spec/providerID", json!("aws:///i-1")),
        ("/spec/template/metadata/labels/bad key", json!("x")),
        ("/spec/template/metadata/annotations", json!({"UPPER.example.com/fine": "", "a/b/c": ""})),
        ("/spec/template/spec/nodeConditions", json!("Ready, not a type")),
        (
            "/spec/template/spec/nodeTemplate",
            json!({
                "metadata": {"labels": {"zone": "a b"}},
                "spec": {"taints": [
                    {"key": "a", "effect": "NoSchedule"},
                    {"key": "a", "value": "other", "effect": "NoSchedule"},
                    {"key": "", "effect": "Sometimes"},
                ]},
            }),
        ),
    ]);
    let found: Vec<_> =
        deployment.validate().iter().map(|error| format!("{} {}", error.path, error.reason())).collect();
    assert_eq!(
        found,
        [
            "spec.template.spec.nodeConditions FieldValueInvalid",
            "spec.template.metadata.labels FieldValueInvalid",
            "spec.template.metadata.annotations FieldValueInvalid",
            "spec.template.spec.providerID FieldValueForbidden",
            "spec.template.spec.nodeTemplate.metadata.labels[zone] FieldValueInvalid",
            "spec.template.spec.nodeTemplate.spec.taints[1] FieldValueDuplicate",
            "spec.template.spec.nodeTemplate.spec.taints[2].key FieldValueInvalid",
            "spec.template.spec.nodeTemplate.spec.taints[2].effect FieldValueNotSupported",
        ]
    );
}

#[test]
fn our_annotations_must_be_readable() {
    let of = |key: &str, value: &str| deployment(&[("/metadata/annotations", json!({key: value}))]);
    for (key, value) in [
        ("nodewright.dev/remediation-max-in-flight", "2"),
        ("nodewright.dev/remediation-max-in-flight", "25%"),
        ("nodewright.dev/deletion-order", "Newest"),
        ("node.machine.sapcloud.io/effective-creation-timeout", "soon"),
    ] {
        assert_errors(&of(key, value), &[]);
    }
    for (key, value) in [
        ("nodewright.dev/remediation-max-in-flight", "-2"),
        ("nodewright.dev/remediation-max-in-flight", "some"),
        ("nodewright.dev/remediation-max-in-flight", "150%"),
        ("nodewright.dev/health-timeouts", "Ready=5m;DiskPressure=3m"),
        ("nodewright.dev/deletion-order", "newest"),
    ] {
        let errors = of(key, value).validate();
        assert_eq!(errors[0].path.to_string(), format!("metadata.annotations[{key}]"));
        assert_eq!(errors[0].value, json!(value));
    }
}

#[test]
fn names_leave_room_for_those_of_machines() {
    let named = |length: usize| deployment(&[("/metadata/name", json!("a".repeat(length)))]);
    assert!(named(51).validate().is_empty() && named(51).warnings().len() == 1);
    assert!(named(52).validate().is_empty() && named(52).warnings()[0].contains("labels of their Nodes"));
    assert_eq!(summary(&named(242).validate()), "metadata.name: Too long: may not be more than 241 bytes");
}

#[test]
fn an_older_invalid_value_does_not_keep_an_object_from_being_scaled() {
    let invalid =
        ("/spec/template/spec/nodeTemplate", json!({"spec": {"taints": [{"key": "", "effect": "NoSchedule"}]}}));
    let old = deployment(std::slice::from_ref(&invalid));
    let scaled = deployment(&[invalid.clone(), ("/spec/replicas", json!(5))]);
    assert_eq!(old.validate().len(), 1);
    assert_eq!(scaled.validate_update(&old), []);
    let worse = deployment(&[invalid, ("/spec/replicas", json!(-5))]);
    assert_eq!(worse.validate_update(&old).len(), 1);
}

#[test]
fn a_changed_selector_must_keep_the_machines() {
    let old = deployment(&[("/spec/template/metadata/labels", json!({"name": "pool", "team": "a"}))]);
    let kept = deployment(&[
        ("/spec/template/metadata/labels", json!({"name": "pool", "team": "a"})),
        ("/spec/selector/matchLabels", json!({"team": "a"})),
    ]);
    assert_eq!(kept.validate_update(&old), []);
    let lost = deployment(&[
        ("/spec/template/metadata/labels", json!({"name": "new"})),
        ("/spec/selector/matchLabels", json!({"name": "new"})),
    ]);
    assert!(lost.validate().is_empty());
    assert_eq!(
        summary(&lost.validate_update(&old)),
        r#"spec.selector: Invalid value: {"matchLabels":{"name":"new"}}: must still match the labels of the previous template, or its machines would be orphaned"#
    );
}

#[test]
fn a_provider_id_stays_once_it_is_set() {
    let machine = |id: &str| -> Machine {
        let spec = json!({"class": {"kind": "MachineClass", "name": "small"}, "providerID": id});
        serde_json::from_value(json!({"metadata": {"name": "m"}, "spec": spec})).unwrap()
    };
    for (old, new, refused) in [("", "", false), ("", "a", false), ("a", "a", false), ("a", "b", true), ("a", "", true)]
    {
        let errors = machine(new).validate_update(&machine(old));
        assert_eq!(!errors.is_empty(), refused, "{old:?} {new:?}: {errors:?}");
        assert!(errors.iter().all(|error| error.path.as_str() == "spec.providerID"), "{errors:?}");
    }
    assert_eq!(machine("a").validate(), [], "a restored machine comes with its id");
}

#[test]
fn a_set_has_the_rules_of_its_template() {
    let set = |changes: &[(&str, Value)]| -> MachineSet {
        changed(
            json!({
                "metadata": {"name": "pool-abc12"},
                "spec": {
                    "replicas": 0,
                    "selector": {"matchLabels": {"name": "pool"}},
                    "template": {"metadata": {"labels": {"name": "pool"}}, "spec": {"class": {"kind": "k", "name": "n"}}},
                },
            }),
            changes,
        )
    };
    assert_errors(&set(&[]), &[]);
    assert_errors(
        &set(&[("/spec/replicas", json!(-1)), ("/spec/selector", Value::Null)]),
        &[
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            "spec.selector: Required value: must select the machines by the labels of the template",
        ],
    );
}

#[test]
fn a_class_must_hold_what_the_controllers_insist_on() {
    assert_errors(&class(&[("/nodeTemplate", Value::Null), ("/secretRef", Value::Null)]), &[]);
    assert_errors(
        &class(&[
            ("/providerSpec", Value::Null),
            ("/secretRef", json!({"namespace": "shoot"})),
            ("/nodeTemplate/zone", json!("")),
            ("/nodeTemplate/capacity", json!({"cpu": "-1", "memory": "1Gi"})),
        ]),
        &[
            "providerSpec: Required value: must be the configuration of the provider",
            "secretRef.name: Required value: must be the name of a secret",
            "nodeTemplate.zone: Required value: must not be empty",
            "nodeTemplate.capacity[gpu]: Required value: must be set, to 0 if there is none",
            "nodeTemplate.capacity[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
        ],
    );
}

#[test]
fn a_provider_spec_that_is_no_object_is_refused_without_being_shown() {
    let class = MachineClass { provider_spec: RawJson::from_text(r#""a-secret""#).expect("valid"), ..class(&[]) };
    assert_errors(&class, &[r#"providerSpec: Invalid value: "string": must be an object"#]);
}

#[test]
fn what_has_no_effect_is_warned_about() {
    let deployment = deployment(&[
        ("/metadata/name", json!("a.b")),
        ("/metadata/annotations", json!({"node.machine.sapcloud.io/effective-creation-timeout": "soon"})),
        ("/spec/rollbackTo", json!({})),
        ("/spec/template/spec/class/kind", json!("AWSMachineClass")),
        ("/spec/template/spec/nodeConditions", json!("DiskPressure, KernelDeadlock")),
        ("/spec/template/spec/nodeTemplate", json!({"spec": {"unschedulable": true}})),
    ]);
    assert_errors(&deployment, &[]);
    let starts: Vec<_> =
        deployment.warnings().iter().map(|warning| warning.split_once(": ").expect("a path").0.to_owned()).collect();
    assert_eq!(
        starts,
        [
            "metadata.name",
            "spec.template.metadata.labels",
            "spec.rollbackTo",
            "spec.template.spec.class.kind",
            "spec.template.spec.nodeTemplate.spec",
            "spec.template.spec.nodeConditions",
            "metadata.annotations[node.machine.sapcloud.io/effective-creation-timeout]",
        ]
    );
    let machine: Machine = changed(
        json!({"metadata": {"annotations": {"node.machine.sapcloud.io/preserve": "forever"}}, "spec": {"class": {"kind": "MachineClass", "name": "n"}}}),
        &[],
    );
    assert_errors(&machine, &[]);
    assert!(machine.warnings()[0].contains("forever"));
    let added = json!({"capacity": {"cpu": "1", "gpu": "0", "memory": "1Gi"}, "instanceType": "a", "region": "b", "zone": "c",
        "virtualCapacity": {"cpu": "1", "a.com/b": "0.5", "a.com/c": "1k"}});
    let class = class(&[("/nodeTemplate", added)]);
    assert_errors(&class, &[]);
    let warnings = class.warnings();
    assert!(warnings[0].starts_with("nodeTemplate.virtualCapacity[a.com/b]: has no effect: \"0.5\""), "{warnings:?}");
    assert!(warnings[1].starts_with("nodeTemplate.virtualCapacity[cpu]: has no effect: only"), "{warnings:?}");
    assert_eq!(warnings.len(), 2);
    let bare = MachineClass { secret_ref: None, ..class };
    assert!(bare.warnings()[2].starts_with("secretRef: without it"), "{:?}", bare.warnings());
}

#[test]
fn what_would_be_read_as_absent_is_warned_about() {
    let machine = |metadata: Value| {
        let spec = json!({"class": {"kind": "MachineClass", "name": "n"}});
        let machine: Machine = changed(json!({"metadata": metadata, "spec": spec}), &[]);
        assert_errors(&machine, &[]);
        machine.warnings()
    };
    let forced = |value: &str| machine(json!({"labels": {"force-deletion": value}}));
    let text = r#"metadata.labels[force-deletion]: "yes" has no effect; "True" forces the deletion"#;
    assert_eq!(forced("yes"), [text]);
    for value in ["True", "true", "1", "false"] {
        assert!(forced(value).is_empty(), "{value}");
    }
    let priority = |value: &str| machine(json!({"annotations": {"machinepriority.machine.sapcloud.io": value}}));
    let text = r#"metadata.annotations[machinepriority.machine.sapcloud.io]: "low" has no effect: it is no integer; the priority is 3"#;
    assert_eq!(priority("low"), [text]);
    assert_eq!(priority("1.5").len(), 1);
    assert!(priority("-1").is_empty());
    let key = "node.machine.sapcloud.io/trigger-deletion-by-mcm";
    let list = "a~2026-06-01T12:00:00Z, b~soon,c,d~";
    let deployment = deployment(&[("/metadata", json!({"name": "pool", "annotations": {key: list}}))]);
    let expected = ["b~soon", "d~"].map(|entry| {
        format!(
            "metadata.annotations[{key}]: {entry:?} has no effect: its time must be RFC 3339, as in machine~2006-01-02T15:04:05Z"
        )
    });
    assert_eq!(deployment.warnings(), expected);
}

#[test]
fn a_misspelled_annotation_of_ours_is_warned_about() {
    let of = |annotations: Value, more: &[(&str, Value)]| {
        let all = [&[("/metadata", json!({"name": "a", "annotations": annotations}))], more].concat();
        let deployment = deployment(&all);
        assert_errors(&deployment, &[]);
        deployment.warnings().into_iter().filter(|warning| warning.contains("nodewright.dev/")).collect::<Vec<_>>()
    };
    let misspelled = of(json!({"nodewright.dev/remediation-max-inflight": "1", "example.com/any": ""}), &[]);
    let settings = "nodewright.dev/deletion-order, nodewright.dev/health-timeouts, nodewright.dev/remediation-max-in-flight, \
         nodewright.dev/shared-budget";
    let expected = format!(
        "metadata.annotations[nodewright.dev/remediation-max-inflight]: has no effect: there is no such annotation; there are {settings}"
    );
    assert_eq!(misspelled, [expected]);
    assert!(of(json!({"nodewright.dev/ledger": "{}", "nodewright.dev/sized-for": "a/1"}), &[]).is_empty());
    let timeouts = |text: &str| json!({"nodewright.dev/health-timeouts": text});
    let key = "metadata.annotations[nodewright.dev/health-timeouts]";
    assert_eq!(
        of(timeouts("Redy=5m,DiskPressure=3m,Ready=1m"), &[]),
        [format!(
            "{key}: \"Redy\" has no effect, unless the manager's flag --node-conditions lists it: only Ready and \
             KernelDeadlock, ReadonlyFilesystem, DiskPressure, NetworkUnavailable make a machine unhealthy"
        )]
    );
    let listed = [("/spec/template/spec/nodeConditions", json!("Redy"))];
    assert!(of(timeouts("Redy=5m"), &listed).is_empty());
    assert_eq!(
        of(timeouts("DiskPressure=5m"), &listed),
        [format!("{key}: \"DiskPressure\" has no effect: only Ready and Redy make a machine unhealthy")]
    );
}
