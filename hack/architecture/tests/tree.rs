//! The tree keeps to the tables in CONTRIBUTING.md.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use nodewright_architecture::{
    Manifest, circles, is_test, linked, module_graph, module_of, product_code, rust_files, table,
};

/// Where the crates are that the product is made of: their files may not import one another in circles.
const PRODUCT: [&str; 4] = ["api", "runtime", "controllers", "webhooks"];
/// Crates among them that only tests use.
const LABORATORY: [&str; 2] = ["runtime/testing", "controllers/driver/contract"];

/// What the runtime knows nothing of.
const FOREIGN: [&str; 5] = ["machine", "provider", "control cluster", "target cluster", "kubelet"];

/// What a plan must not read while it is made: it depends on the context and the snapshot alone.
const LIVE: [&str; 5] = ["Atomic", "Mutex", "RwLock", "tokio", "dyn Driver"];
/// The files of controllers that no plan is made in: they wire, make calls, render, or collect metrics. A snapshot may ask a driver
/// for its properties; that of a class lets it validate a providerSpec, too, which is to become a call.
const NO_PLANS: [&str; 13] = [
    "controller_config/call.rs",
    "in_use/mod.rs",
    "machine/caller.rs",
    "machine/mod.rs",
    "machine/others.rs",
    "machine_class/call.rs",
    "machine_class/mod.rs",
    "orphan_vm/metrics.rs",
    "orphan_vm/mod.rs",
    "orphan_vm/sweep.rs",
    "shared/driver.rs",
    "shared/schema.rs",
    "wiring.rs",
];

/// What the manager contains of drivers: their contract, their protocol, and its own side of that.
const OF_DRIVERS: [&str; 3] = ["nodewright-driver", "nodewright-driver-protocol", "nodewright-driver-remote"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

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
    let src = root().join("controllers/src");
    let (mut wrong, mut live) = (Vec::new(), BTreeSet::new());
    for file in rust_files(&src).unwrap().into_iter().filter(|file| !is_test(&module_of(&src, file))) {
        let path = file.strip_prefix(&src).unwrap().display().to_string();
        let code = product_code(&fs::read_to_string(&file).unwrap());
        for (number, line) in code.lines().enumerate() {
            let found: Vec<_> = LIVE.iter().filter(|word| line.contains(*word)).collect();
            if NO_PLANS.contains(&path.as_str()) {
                live.extend(found.first().map(|_| path.clone()));
            } else {
                wrong.extend(found.iter().map(|word| format!("controllers/src/{path}:{}: {word}", number + 1)));
            }
        }
    }
    let unneeded = NO_PLANS.iter().filter(|path| !live.contains(**path));
    wrong.extend(unneeded.map(|path| format!("controllers/src/{path} needs no exception")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
