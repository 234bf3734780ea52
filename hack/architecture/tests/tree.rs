//! The tree keeps to the tables in CONTRIBUTING.md.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use nodewright_architecture::{
    Manifest, circles, functions, imports, is_test, linked, module_graph, module_of, product_code, root, rust_files,
    table,
};

/// Where the crates are that the product is made of: their files may not import one another in circles.
const PRODUCT: [&str; 4] = ["api", "runtime", "controllers", "webhooks"];
/// Crates among them that only tests use.
const LABORATORY: [&str; 2] = ["runtime/testing", "controllers/driver/contract"];

/// How many lines a function of the product may have: it fits a screen.
const MOST_LINES: usize = 60;
/// How many parameters it may have, `self` aside.
const MOST_PARAMETERS: usize = 5;
/// How many types the runtime may show to its users.
const MOST_TYPES: usize = 45;
/// How many names of ours the smallest controller may need.
const MOST_NAMES: usize = 14;

/// What the runtime knows nothing of.
const FOREIGN: [&str; 5] = ["machine", "provider", "control cluster", "target cluster", "kubelet"];

/// What a plan must not read while it is made: it depends on the context and the snapshot alone.
const LIVE: [&str; 21] = [
    "Atomic",
    "Mutex",
    "RwLock",
    "RefCell",
    ".lock()",
    "OnceLock",
    "LazyLock",
    "ArcSwap",
    "Timestamp::now",
    "Instant::now",
    "SystemTime",
    "dyn Clock",
    "async ",
    "tokio",
    "off_worker",
    "thread::",
    "fs::",
    "env::",
    "getrandom",
    "dyn Driver",
    "&Connection",
];
/// What changes behind a shared reference, and the file whose cell begins empty with each plan: what calls need is made once for it.
const CELLS: [&str; 1] = ["Cell<"];
const OF_ONE_PLAN: [&str; 1] = ["machine/scope.rs"];
/// The files of controllers that no plan is made in: they wire, make calls, render, or collect metrics.
const NO_PLANS: [&str; 29] = [
    "controller_config/call.rs",
    "controller_config/folder.rs",
    "in_use/call.rs",
    "in_use/mod.rs",
    "machine/caller.rs",
    "machine/mcm_metrics/durations.rs",
    "machine/mod.rs",
    "machine/namesakes.rs",
    "machine/others.rs",
    "machine/token.rs",
    "machine/volume_ids.rs",
    "machine_class/call.rs",
    "machine_class/metrics.rs",
    "machine_class/mod.rs",
    "machine_set/metrics.rs",
    "node_drain/metrics.rs",
    "node_lifecycle/brake.rs",
    "orphan_node/lookup.rs",
    "orphan_vm/metrics.rs",
    "orphan_vm/mod.rs",
    "orphan_vm/sweep.rs",
    "shared/drain/preview.rs",
    "shared/driver.rs",
    "shared/mcm_metrics/calls.rs",
    "shared/rendering.rs",
    "shared/schema.rs",
    "unowned_node/call.rs",
    "unowned_node/mod.rs",
    "wiring.rs",
];

/// What reads a text, as facts are stored in annotations, labels, and messages of conditions: `api/src/stored` does it.
const READS_TEXT: [&str; 11] = [
    ".parse()",
    ".parse::<",
    "::parse",
    "from_str(",
    "strip_prefix(",
    "strip_suffix(",
    "split(",
    "split_once(",
    "splitn(",
    ".message.as_deref()",
    ".message.parse",
];
/// The files of controllers that read other texts: settings of users, lists of a spec, addresses, ids of providers, paths of a
/// rendering, Kubernetes' bootstrap tokens; and messages that are compared with a new one, or passed on to people.
const NO_FACTS: [&str; 13] = [
    "in_use/call.rs",
    "machine/budget/pool.rs",
    "machine/health/node.rs",
    "machine/status.rs",
    "machine/terminate/mod.rs",
    "machine/token.rs",
    "machine/waiting.rs",
    "machine_config_pool/decision.rs",
    "machine_deployment/blockers.rs",
    "machine_deployment/stalls.rs",
    "shared/cloud_node.rs",
    "shared/drain/preview.rs",
    "shared/indexes.rs",
];
/// What the manager contains of drivers: their contract, their protocol, and its own side of that.
const OF_DRIVERS: [&str; 3] = ["nodewright-driver", "nodewright-driver-protocol", "nodewright-driver-remote"];

/// What each folder of a controller has.
const SHAPE: [&str; 4] = ["mod.rs", "snapshot.rs", "decision.rs", "plan.rs"];
/// What a decision must not make: it returns values, of which the plan makes steps. The verb of a step that failed is a value.
const STEPS: [&str; 9] =
    ["Plan", "Planned", "PartialPlan", "Step", "Event", "ScopedWatch", "StatusWrite", "json_patch", "PatchOperation"];

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn members() -> Vec<(String, Manifest)> {
    let members = Manifest::members(&read("Cargo.toml"));
    members.into_iter().map(|path| (path.clone(), Manifest::read(&root().join(&path)).unwrap())).collect()
}

/// The allowed imports of each crate, and those that its tests may have besides.
fn allowed() -> BTreeMap<String, [BTreeSet<String>; 2]> {
    let rows = table(&read("CONTRIBUTING.md"), &["crate", "uses", "its tests use besides"]);
    let set = |cell: &Vec<String>| cell.iter().cloned().collect::<BTreeSet<_>>();
    rows.iter().map(|row| (row[0][0].clone(), [set(&row[1]), set(&row[2])])).collect()
}

#[test]
fn crates_depend_on_what_the_table_allows() {
    let (allowed, mut wrong) = (allowed(), Vec::new());
    for (path, manifest) in members() {
        let Some([normal, tests]) = allowed.get(&manifest.name) else {
            wrong.push(format!("{} ({path}) is missing in the table of CONTRIBUTING.md", manifest.name));
            continue;
        };
        let bad = manifest.dependencies.iter().filter(|name| !normal.contains(*name));
        wrong.extend(bad.map(|name| format!("{path}/Cargo.toml: {} may not depend on {name}", manifest.name)));
        let bad = manifest.dev_dependencies.iter().filter(|name| !normal.contains(*name) && !tests.contains(*name));
        wrong.extend(bad.map(|name| format!("{path}/Cargo.toml: tests of {} may not use {name}", manifest.name)));
    }
    let known: BTreeSet<_> = members().into_iter().map(|(_, manifest)| manifest.name).collect();
    wrong.extend(allowed.keys().filter(|name| !known.contains(*name)).map(|name| format!("there is no crate {name}")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_manager_links_no_driver_and_nothing_of_the_laboratory() {
    let manifests: Vec<_> = members().into_iter().map(|(_, manifest)| manifest).collect();
    let linked = linked(&manifests, "nodewright");
    assert!(linked.len() > 8 && OF_DRIVERS.iter().all(|name| linked.contains(*name)), "{linked:?}");
    let is_driver = |name: &str| name.starts_with("nodewright-driver") && !OF_DRIVERS.contains(&name);
    let is_laboratory = |name: &str| name.starts_with("nodewright-e2e-") || name == "nodewright-testing";
    let wrong: Vec<_> = linked.iter().filter(|name| is_driver(name) || is_laboratory(name)).collect();
    assert!(
        wrong.is_empty(),
        "controllers/manager/Cargo.toml: nodewright links {wrong:?}, by itself or by what it uses"
    );
}

#[test]
fn decisions_are_where_the_table_has_them() {
    let rows = table(&read("CONTRIBUTING.md"), &["that", "file", "function"]);
    assert!(rows.len() > 10, "the table of decisions was not found");
    let mut wrong = Vec::new();
    for row in rows {
        let path = &row[1][0];
        let Ok(source) = fs::read_to_string(root().join(path)) else {
            wrong.push(format!("there is no {path}"));
            continue;
        };
        let is_missing =
            |name: &&String| !source.contains(&format!("fn {name}(")) && !source.contains(&format!("fn {name}<"));
        wrong.extend(row[2].iter().filter(is_missing).map(|name| format!("{path} has no function {name}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn controllers_import_what_the_table_allows() {
    let rows = table(&read("CONTRIBUTING.md"), &["room", "uses"]);
    let rooms: BTreeMap<_, BTreeSet<_>> =
        rows.iter().map(|row| (row[0][0].clone(), row[1].iter().cloned().collect())).collect();
    let mut wrong = Vec::new();
    let src = root().join("controllers/src");
    for (module, imported) in module_graph(&src).unwrap() {
        let Some(room) = module.first() else { continue };
        let Some(uses) = rooms.get(room) else {
            wrong.push(format!("controllers/src/{room} is missing in the table of CONTRIBUTING.md"));
            continue;
        };
        let bad =
            imported.iter().filter_map(|path| path.first()).filter(|other| *other != room && !uses.contains(*other));
        wrong.extend(bad.map(|other| format!("controllers/src: {} may not import {other}", module.join("::"))));
    }
    let known: BTreeSet<_> =
        module_graph(&src).unwrap().into_keys().filter_map(|module| module.first().cloned()).collect();
    wrong.extend(
        rooms.keys().filter(|room| !known.contains(*room)).map(|room| format!("there is no controllers/src/{room}")),
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_files_of_the_product_import_one_another_in_a_circle() {
    let mut wrong = Vec::new();
    let is_product = |path: &str| PRODUCT.iter().any(|part| path.starts_with(part)) && !LABORATORY.contains(&path);
    for (path, _) in members().into_iter().filter(|(path, _)| is_product(path)) {
        for circle in circles(&module_graph(&root().join(&path).join("src")).unwrap()) {
            let files: Vec<_> = circle.iter().map(|module| module.join("::")).collect();
            wrong.push(format!("{path}: {} import one another", files.join(", ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A file that no `mod` names is not compiled, and its tests do not run.
#[test]
fn every_file_below_src_is_a_module() {
    let (mut unnamed, mut files) = (Vec::new(), 0);
    for (path, _) in members() {
        let src = root().join(path).join("src");
        for file in rust_files(&src).unwrap() {
            files += 1;
            if !is_named(&src, &file) {
                unnamed.push(file.strip_prefix(root()).unwrap().display().to_string());
            }
        }
    }
    assert!(files > 500, "only {files} files were found");
    assert!(unnamed.is_empty(), "no mod names {}", unnamed.join(", "));
}

/// Whether a file is the root of a crate, or its parent has a `mod` for it. Generated code is included by `include!`.
fn is_named(src: &Path, file: &Path) -> bool {
    let stem = file.file_stem().unwrap().to_str().unwrap();
    let mut folder = file.parent().unwrap();
    if folder == src && ["lib", "main"].contains(&stem) || folder == src.join("bin") || folder.ends_with("generated") {
        return true;
    }
    let mut name = stem;
    if stem == "mod" {
        name = folder.file_name().unwrap().to_str().unwrap();
        folder = folder.parent().unwrap();
    }
    let declared = [format!("mod {name};"), format!("mod {name} {{")];
    let mut parents = vec![folder.with_extension("rs")];
    parents.extend(["mod.rs", "lib.rs", "main.rs"].map(|parent| folder.join(parent)));
    let parents = parents.iter().filter_map(|parent| fs::read_to_string(parent).ok());
    parents.into_iter().any(|text| declared.iter().any(|declared| text.contains(declared)))
}

/// The files of the product, without tests and generated code.
fn product_files() -> Vec<PathBuf> {
    let is_product = |path: &str| PRODUCT.iter().any(|part| path.starts_with(part)) && !LABORATORY.contains(&path);
    let crates = members().into_iter().map(|(path, _)| path).filter(|path| is_product(path));
    let files = crates.flat_map(|path| {
        let src = root().join(path).join("src");
        let files = rust_files(&src).unwrap();
        files.into_iter().filter(move |file| {
            let module = module_of(&src, file);
            !is_test(&module) && !module.iter().any(|name| name == "generated")
        })
    });
    files.collect()
}

/// rustdoc reads a whole crate for its examples, so that crates without any turn them off.
#[test]
fn examples_in_docs_are_tested() {
    let mut wrong = Vec::new();
    for (path, _) in members() {
        let src = root().join(&path).join("src");
        if !src.join("lib.rs").exists() {
            continue;
        }
        let is_off = read(&format!("{path}/Cargo.toml")).contains("doctest = false");
        let files = rust_files(&src).unwrap();
        let has_example = files.iter().any(|file| has_example(&fs::read_to_string(file).unwrap()));
        if has_example == is_off {
            wrong.push(format!("{path}/Cargo.toml: examples in docs: {has_example}, `doctest = false`: {is_off}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether the docs have a block of code that is Rust's.
fn has_example(source: &str) -> bool {
    let docs = source.lines().filter_map(|line| line.trim_start().strip_prefix("//")?.strip_prefix(['!', '/']));
    // Each second fence ends a block.
    let mut begins = docs.filter_map(|line| line.trim_start().strip_prefix("```")).step_by(2);
    begins.any(|tag| ["", "rust", "no_run", "ignore", "should_panic", "compile_fail"].contains(&tag.trim()))
}

#[test]
fn functions_fit_a_screen() {
    let mut wrong = Vec::new();
    for file in product_files() {
        let all = functions(&product_code(&fs::read_to_string(&file).unwrap()));
        let long = all.into_iter().filter(|it| it.lines > MOST_LINES || it.parameters > MOST_PARAMETERS);
        wrong.extend(long.map(|it| {
            format!("{}:{}: {} has {} lines, {} parameters", file.display(), it.line, it.name, it.lines, it.parameters)
        }));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// All that the runtime declares `pub` can be reached from outside, or the lint `unreachable_pub` rejects it.
#[test]
fn the_runtime_shows_few_types() {
    let mut types = BTreeSet::new();
    let src = root().join("runtime/src");
    for file in rust_files(&src).unwrap().into_iter().filter(|file| !is_test(&module_of(&src, file))) {
        let code = product_code(&fs::read_to_string(&file).unwrap());
        let words: Vec<_> = code.split_whitespace().collect();
        for declared in words.windows(3) {
            if declared[0] == "pub" && matches!(declared[1], "struct" | "enum" | "union" | "trait" | "type") {
                types.insert(declared[2].split(|next: char| !next.is_alphanumeric()).next().unwrap().to_owned());
            }
        }
        // A type of another crate under a name of ours is one more to learn.
        let exports = code.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next());
        let renamed = exports.flat_map(|export| export.split(" as ").skip(1));
        types.extend(
            renamed.filter_map(|rest| rest.split(|next: char| !next.is_alphanumeric()).next()).map(str::to_owned),
        );
    }
    assert!(types.len() <= MOST_TYPES, "{} public types: {types:?}", types.len());
}

#[test]
fn the_smallest_controller_needs_few_names() {
    let code = product_code(&read("runtime/examples/share.rs"));
    let names: BTreeSet<_> =
        imports(&code, &[]).into_iter().filter(|path| path[0].starts_with("nodewright_")).collect();
    assert!((1..=MOST_NAMES).contains(&names.len()), "{} names: {names:?}", names.len());
}

#[test]
fn the_runtime_speaks_of_kubernetes_alone() {
    let src = root().join("runtime/src");
    let mut wrong = Vec::new();
    for file in rust_files(&src).unwrap().into_iter().filter(|file| !is_test(&module_of(&src, file))) {
        let text = fs::read_to_string(&file).unwrap().to_lowercase().replace("apimachinery", "");
        let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (number, line) in product.lines().enumerate() {
            let found = FOREIGN.iter().filter(|word| line.contains(*word));
            wrong.extend(found.map(|word| format!("{}:{}: {word}", file.display(), number + 1)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn plans_read_nothing_live() {
    let wrong = [uses(&LIVE, &NO_PLANS), uses(&CELLS, &OF_ONE_PLAN)].concat();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn stored_facts_are_read_in_one_module() {
    let wrong = uses(&READS_TEXT, &NO_FACTS);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Where the code of the controllers has one of the words, but for the files that may, and those of them that need no exception.
fn uses(words: &[&str], exceptions: &[&str]) -> Vec<String> {
    let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
    for (path, code) in controller_files() {
        for (number, line) in code.lines().enumerate() {
            let found: Vec<_> = words.iter().filter(|word| line.contains(*word)).collect();
            if exceptions.contains(&path.as_str()) {
                used.extend(found.first().map(|_| path.clone()));
            } else {
                wrong.extend(found.iter().map(|word| format!("controllers/src/{path}:{}: {word}", number + 1)));
            }
        }
    }
    let unneeded = exceptions.iter().filter(|path| !used.contains(**path));
    wrong.extend(unneeded.map(|path| format!("controllers/src/{path} needs no exception")));
    wrong
}

/// The files of the controllers that a plan may be made in, with their code without tests.
fn controller_files() -> Vec<(String, String)> {
    let src = root().join("controllers/src");
    let files = rust_files(&src).unwrap().into_iter().filter(|file| !is_test(&module_of(&src, file)));
    let named = |file: PathBuf| {
        let path = file.strip_prefix(&src).unwrap().display().to_string();
        (path, product_code(&fs::read_to_string(&file).unwrap()))
    };
    files.map(named).collect()
}

#[test]
fn each_controller_has_a_folder_of_the_same_files() {
    let files: BTreeMap<_, _> = controller_files().into_iter().collect();
    let (mut wrong, mut controllers) = (Vec::new(), 0);
    for (path, _) in files.iter().filter(|(_, code)| code.contains("\nimpl Controller for ")) {
        controllers += 1;
        let Some(folder) = path.strip_suffix("mod.rs").filter(|folder| folder.matches('/').count() == 1) else {
            wrong.push(format!("controllers/src/{path}: a controller stands in the mod.rs of a folder of its own"));
            continue;
        };
        let missing = SHAPE.iter().filter(|file| !files.contains_key(&format!("{folder}{file}")));
        wrong.extend(missing.map(|file| format!("controllers/src/{folder}{file} is missing")));
    }
    assert!(controllers > 10, "only {controllers} controllers were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn decisions_are_values() {
    let is_decision = |path: &str| path == "decision.rs" || path.ends_with("/decision.rs");
    let mut wrong = Vec::new();
    for (path, code) in controller_files().into_iter().filter(|(path, _)| is_decision(path)) {
        for (number, line) in code.lines().enumerate() {
            let words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            let found = words.filter(|word| STEPS.contains(word));
            wrong.extend(found.map(|word| format!("controllers/src/{path}:{}: {word}", number + 1)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
