//! Facts that controllers store in objects keep their form: this version reads what an earlier one has written, and writes what
//! an earlier one reads.
//!
//! A golden file has a fact, in lines of three columns with tabs between them: whether this version writes the text (`written`),
//! only reads it (`read`), or takes it for none (`invalid`); the text, or the status, reason and message of a condition; and its
//! value. Lines are added at the end of a file, and never changed or removed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{Display, Write as _},
    fs,
    path::PathBuf,
    str::FromStr,
};

use k8s_openapi::api::core::v1::NodeCondition;
use nodewright_api::{
    annotations, labels, operations,
    stored::{
        AdoptedVm, AppliedKeys, CONFIG_GIVEN, CORDONED, ClassIdentity, ConditionText, ConfigDrain, CreationRound,
        DisabledHealthTimeout, Disruptions, FACTS, HealthDeadline, JoinedNode, LastApplied, Ledger, MissingClass,
        MissingVm, NodeClass, Ordinal, PoolRollout, PoolTarget, Preserve, PreservedNode, ProvenVm, Removals,
        RevisionHistory, Seconds, SizedFor, SweptVms, UnexplainedVms, Updating, VirtualCapacity, is_operator_finalizer,
        removals, set_of,
    },
};
use serde_json::{Value, json};

/// Facts that are digests, compared as a whole: `nodewright-render` has golden ones.
const DIGESTS: [&str; 2] = ["render-inputs", "generated-content"];

/// How many lines of each file are final, and a digest of them. After new lines, the test prints the new rows.
const FINAL: &[(&str, usize, u32)] = &[
    ("adopted-vm", 4, 0x9ef3_f26b),
    ("applied-node-template", 5, 0x99ce_b069),
    ("class-identity", 5, 0xfcb1_37b6),
    ("config-drain", 9, 0x4de3_1368),
    ("config-given", 7, 0xa074_712c),
    ("cordoned", 4, 0x45f3_5c0f),
    ("creation-round", 9, 0x5358_552d),
    ("desired-replicas", 7, 0xa7b4_5a45),
    ("disruptions", 11, 0x4eb3_ee59),
    ("freeze", 1, 0xa156_6424),
    ("health-deadline", 9, 0xe47e_4165),
    ("joined-node", 5, 0x50ca_24c2),
    ("last-applied", 6, 0x2cc3_0e11),
    ("ledger", 13, 0x905c_4f0a),
    ("machine-name", 9, 0xbdd3_6c2c),
    ("machine-priority", 7, 0xa7b4_5a45),
    ("marked-for-deletion", 4, 0xac42_6c05),
    ("max-replicas", 7, 0xa7b4_5a45),
    ("missing-class", 4, 0xbd70_d565),
    ("missing-vm", 4, 0x69d4_d4df),
    ("node-class", 3, 0x5a77_64ef),
    ("node-preserve", 7, 0x610c_c1d0),
    ("node-vm-missing", 1, 0xc606_65fc),
    ("not-managed", 1, 0x6501_bd9d),
    ("operation", 7, 0x0fe1_9bbe),
    ("operator-finalizer", 3, 0x1ab1_7f29),
    ("ordinal", 7, 0x5b1b_e1c0),
    ("pool-rollout", 10, 0x5530_a3f6),
    ("pool-target", 2, 0xc814_68d0),
    ("preserve", 7, 0x610c_c1d0),
    ("preserve-node", 7, 0x610c_c1d0),
    ("preserved-node", 5, 0xe728_2680),
    ("proven-vm", 5, 0x92d1_09b5),
    ("removals", 4, 0x32d8_0d3d),
    ("revision", 7, 0xa7b4_5a45),
    ("revision-history", 5, 0xc9f1_a0d0),
    ("scale-down-disabled", 1, 0x128f_0344),
    ("scaler-change", 4, 0xac42_6c05),
    ("sized-for", 6, 0x7574_8b2c),
    ("swept-vms", 4, 0x0a82_d801),
    ("unexplained-vms", 4, 0xc89d_9ea0),
    ("unused-since", 4, 0xbeb6_b5fc),
    ("update-began", 4, 0xac42_6c05),
    ("updating", 7, 0x7ea1_7a53),
    ("virtual-capacity", 3, 0x9163_fe11),
];

/// The value of a text, and the text that is written for it.
type Decoded = Option<(Value, String)>;

fn text<T: FromStr + Display>(text: &str, value: impl Fn(&T) -> Value) -> Decoded {
    let fact: T = text.parse().ok()?;
    Some((value(&fact), fact.to_string()))
}

/// A fact whose text is its value as JSON.
fn as_json<T: FromStr + Display>(fact: &str) -> Decoded {
    text(fact, |fact: &T| serde_json::from_str(&fact.to_string()).unwrap())
}

fn constant(fact: &str, constant: &str) -> Decoded {
    (fact == constant).then(|| (json!(true), constant.to_owned()))
}

/// What follows from a ledger.
fn ledger(ledger: &Ledger) -> Value {
    let noted: Vec<_> = ["pool-1", "a.b"].into_iter().filter(|name| ledger.is_noted(name)).collect();
    let free: Vec<_> = ledger.lowest_free(&BTreeSet::new(), 3).iter().map(ToString::to_string).collect();
    json!({"first": ledger.name("pool", "0".parse().unwrap()), "retired": ledger.retired_count(), "free": free, "noted": noted})
}

/// A name is written for a set, a ledger and an ordinal, and read as the one and the others.
fn machine_name(name: &str) -> Decoded {
    let set = set_of(name)?;
    let ledger: Ledger = "k7f;".parse().unwrap();
    let mut ordinals = [0, 1, 41, 19_682, 19_683, 14_348_906].into_iter().filter_map(Ordinal::new);
    let ordinal = ordinals.find(|ordinal| ledger.retire([*ordinal]).has_retired(set, name))?;
    Some((json!([set, ordinal.to_string()]), ledger.name(set, ordinal)))
}

fn operation(text: &str) -> Decoded {
    let all = [
        ("CREATING_ON_PROVIDER", operations::CREATING_ON_PROVIDER),
        ("PROVIDER_MESSAGE_PREFIX", operations::PROVIDER_MESSAGE_PREFIX),
        ("GET_VM_STATUS", operations::GET_VM_STATUS),
        ("INITIATE_DRAIN", operations::INITIATE_DRAIN),
        ("DELETE_VOLUME_ATTACHMENTS", operations::DELETE_VOLUME_ATTACHMENTS),
        ("INITIATE_VM_DELETION", operations::INITIATE_VM_DELETION),
        ("INITIATE_NODE_DELETION", operations::INITIATE_NODE_DELETION),
    ];
    all.into_iter().find(|(_, known)| *known == text).map(|(name, known)| (json!(name), known.to_owned()))
}

fn all_removals(list: &str) -> Decoded {
    let all: Vec<_> = removals(list).collect::<Result<_, _>>().ok()?;
    Some((all.iter().map(|it| json!([it.machine, it.time])).collect(), Removals(all).to_string()))
}

fn condition(key: &str, text: &str) -> Decoded {
    let mut parts = text.splitn(3, ' ').map(str::to_owned);
    let condition = NodeCondition {
        type_: key.to_owned(),
        status: parts.next()?,
        reason: parts.next(),
        message: parts.next(),
        ..NodeCondition::default()
    };
    let (value, text): (Value, ConditionText) = match key {
        "InstanceProvisioned" => ProvenVm::of(&condition).map(|it| (json!([it.id, it.is_verified]), it.text()))?,
        "InstanceExists" => MissingVm::of(&condition).map(|it| (json!(it.id), it.text()))?,
        "ConfigurationValid" => MissingClass::of(&condition).map(|it| (json!(it.text), it.text()))?,
        "VMAdopted" => AdoptedVm::of(&condition).map(|it| (json!(it.uid), it.text()))?,
        "NodeJoined" => {
            JoinedNode::of(&condition).map(|it| (json!([it.name, format!("{:?}", it.progress)]), it.text()))?
        }
        "HealthTimeout" => HealthDeadline::of(&condition)
            .map(|it| (json!([it.at.to_string(), format!("{:?}", it.cause)]), it.text()))
            .or_else(|| DisabledHealthTimeout::of(&condition).map(|it| (json!("disabled"), it.text())))?,
        "Rendered" => {
            PoolTarget::of(condition.message.as_deref().unwrap_or_default()).map(|it| (json!(it.name), it.text()))?
        }
        other => panic!("there is no condition {other}"),
    };
    let status = if text.status { "True" } else { "False" };
    assert_eq!(text.kind, key);
    Some((value, format!("{status} {} {}", text.reason, text.message)))
}

fn decode(name: &str, key: &str, fact: &str) -> Decoded {
    let time = |time: &jiff::Timestamp| json!(time.to_string());
    match name {
        "ledger" => text(fact, ledger),
        "ordinal" => text(fact, |it: &Ordinal| json!(it.to_string())),
        "machine-name" => machine_name(fact),
        "creation-round" => {
            text(fact, |it: &CreationRound| json!([it.rounds, it.first.to_string(), it.begun.to_string()]))
        }
        "config-drain" => text(fact, |it: &ConfigDrain| match it {
            ConfigDrain::Open => json!("open"),
            ConfigDrain::Cordoned(it) => json!(["cordoned", it.asked, it.since.to_string()]),
            ConfigDrain::Closed(it) => json!(["closed", it.asked, it.since.to_string()]),
        }),
        "config-given" => text(fact, |it: &u32| json!(it)),
        "disruptions" => as_json::<Disruptions>(fact),
        "pool-rollout" => text(fact, |it: &PoolRollout| {
            let inputs = (it.inputs.version, it.inputs.pool, it.inputs.controller_config);
            json!([it.target, it.since.to_string(), it.traceparent, inputs, it.ended.map(|at| at.to_string())])
        }),
        "sized-for" => text(fact, |it: &SizedFor| json!([it.uid, it.generation])),
        "desired-replicas" | "max-replicas" | "revision" | "machine-priority" => text(fact, |it: &i64| json!(it)),
        "updating" => text(fact, |it: &Updating| json!(it.0)),
        "cordoned" => text(fact, |it: &bool| json!(it)),
        "node-class" => text(fact, |it: &NodeClass| json!(it.to_string())),
        "node-vm-missing" => text(fact, |it: &String| json!(it)),
        "freeze" => constant(fact, labels::FREEZE_VALUE),
        "not-managed" => constant(fact, annotations::NOT_MANAGED_VALUE),
        "revision-history" => text(fact, |it: &RevisionHistory| json!(it.to_string())),
        "scale-down-disabled" => constant(fact, "true"),
        "class-identity" => as_json::<ClassIdentity>(fact),
        "unexplained-vms" => as_json::<UnexplainedVms>(fact),
        "swept-vms" => as_json::<SweptVms>(fact),
        "applied-node-template" => as_json::<AppliedKeys>(fact),
        "last-applied" => as_json::<LastApplied>(fact),
        "virtual-capacity" => as_json::<VirtualCapacity>(fact),
        "removals" => all_removals(fact),
        "scaler-change" | "marked-for-deletion" | "update-began" => text(fact, time),
        "unused-since" => text(fact, |it: &Seconds| json!(it.to_string())),
        "preserve" | "node-preserve" | "preserve-node" => text(fact, |it: &Preserve| json!(format!("{it:?}"))),
        "preserved-node" => text(fact, |it: &PreservedNode| json!([it.is_drained, it.until])),
        "operation" => operation(fact),
        "operator-finalizer" => is_operator_finalizer(fact).then(|| (json!(true), String::new())),
        _ => condition(key, fact),
    }
}

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn lines(name: &str) -> Vec<String> {
    let text =
        fs::read_to_string(golden().join(format!("{name}.txt"))).unwrap_or_else(|error| panic!("{name}: {error}"));
    text.lines().map(str::to_owned).collect()
}

/// Why a line is not true; `None` if it is.
fn wrong(decoded: Decoded, form: &str, fact: &str, value: &str) -> Option<String> {
    match (form, decoded) {
        ("invalid", None) => None,
        ("written" | "read", Some((known, text))) => {
            let is_value = serde_json::from_str::<Value>(value).is_ok_and(|value| value == known);
            let is_text = (text == fact) == (form == "written");
            (!is_value || !is_text).then(|| format!("it is {known}, which is written as `{text}`"))
        }
        (_, decoded) => Some(format!("it is {decoded:?}")),
    }
}

#[test]
fn texts_that_were_written_are_read_and_written_the_same() {
    let mut failures = vec![];
    for fact in FACTS.iter().filter(|fact| !DIGESTS.contains(&fact.name)) {
        for line in lines(fact.name) {
            let columns: Vec<&str> = line.split('\t').collect();
            let [form, text] = [columns[0], columns[1]];
            let wrong = wrong(decode(fact.name, fact.key, text), form, text, columns.get(2).unwrap_or(&""));
            failures.extend(wrong.map(|why| format!("{}: {line:?}: {why}", fact.name)));
        }
    }
    assert!(failures.is_empty(), "an earlier version has written these:\n{}", failures.join("\n"));
}

#[test]
fn an_annotation_is_read_as_it_is_written() {
    let mut all = BTreeMap::new();
    CONFIG_GIVEN.insert(&mut all, &12);
    let (key, text) = CORDONED.written(&false);
    all.insert(key.to_owned(), text);
    let texts: Vec<_> = all.iter().map(|(key, text)| format!("{key}: {text}")).collect();
    assert_eq!(texts, ["nodewright.dev/config-given: 12", "nodewright.dev/cordoned: false"]);
    assert_eq!((CONFIG_GIVEN.within(&all), CORDONED.within(&all)), (Some(Ok(12)), Some(Ok(false))));
}

/// FNV-1a.
fn digest(lines: &[String]) -> u32 {
    let bytes = lines.iter().flat_map(|line| line.bytes().chain([b'\n']));
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The digests are no protection from who wants to change them. They make a change of a stored form one that a reviewer sees.
#[test]
fn lines_of_golden_files_are_neither_changed_nor_removed() {
    let names: BTreeSet<_> = FACTS.iter().map(|fact| fact.name).filter(|name| !DIGESTS.contains(name)).collect();
    let (mut failures, mut rows) = (vec![], String::new());
    for name in &names {
        let lines = lines(name);
        match FINAL.iter().find(|(known, ..)| known == name) {
            Some((_, count, known)) if lines.get(..*count).is_some_and(|lines| digest(lines) == *known) => {
                let more = format!("{name}.txt has lines that are not final");
                failures.extend((lines.len() > *count).then_some(more));
            }
            Some(_) => failures
                .push(format!("{name}.txt: a line was changed or removed that an earlier version may have written")),
            None => failures.push(format!("{name}.txt is new")),
        }
        writeln!(rows, "    ({name:?}, {}, {:#010x}),", lines.len(), digest(&lines)).unwrap();
    }
    assert!(failures.is_empty(), "{}\nThe rows are now:\n{rows}", failures.join("\n"));
    let files: BTreeSet<_> = fs::read_dir(golden()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let files: BTreeSet<_> = files.iter().filter_map(|path| path.file_stem()?.to_str()).collect();
    assert_eq!(files, names, "each file is of a fact");
}

/// The rows of the page are the facts of the list: kind, field and key.
#[test]
fn the_page_has_a_row_for_each_fact() {
    let page = fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/stored-facts.md"))
        .unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `")).map(|line| {
        let cells: Vec<_> = line.split('|').map(str::trim).skip(1).take(3).map(|cell| cell.replace('`', "")).collect();
        cells.join(" | ")
    });
    let facts = FACTS
        .iter()
        .map(|fact| format!("{} | {} | {} {}", fact.name, fact.object, fact.field, fact.key).trim().to_owned());
    assert_eq!(rows.collect::<Vec<_>>(), facts.collect::<Vec<_>>());
}
