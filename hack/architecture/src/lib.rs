//! Reads which module imports which, for the test that compares the tree with the tables in CONTRIBUTING.md.
//!
//! The parser is our own because it has to know `use` and paths only. `syn` with its `full` and `visit` features would be
//! compiled beside the `syn` of all derive macros, and everything that derives would be compiled twice.

mod bodies;
mod circles;
mod code;
mod functions;
mod imports;
mod manifest;
mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

pub use self::{
    bodies::{MUTANT, combine},
    circles::circles,
    code::product_code,
    functions::{Function, functions},
    imports::imports,
    manifest::{Manifest, linked},
    table::table,
};

/// A module by the names on the way from the root of its crate; empty for the root.
pub type Module = Vec<String>;

/// The root of the tree.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/")).to_owned()
}

/// The Rust files below a directory, in order of their paths.
///
/// # Errors
/// When a directory cannot be read.
pub fn rust_files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::path);
    for entry in entries {
        let path = entry.path();
        if path.is_dir() {
            files.append(&mut rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}

/// The module that a file below `src` holds.
pub fn module_of(src: &Path, file: &Path) -> Module {
    let inner = file.strip_prefix(src).unwrap_or(file).with_extension("");
    let mut module: Module = inner.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        module.pop();
    }
    module
}

/// Whether a module holds tests: it may import what it likes.
pub fn is_test(module: &[String]) -> bool {
    module.iter().any(|name| name == "tests" || name == "testing")
}

/// Which modules each module of a crate imports, tests left out. An imported item counts as the module that declares the
/// longest part of its path.
///
/// # Errors
/// When a file cannot be read.
pub fn module_graph(src: &Path) -> io::Result<BTreeMap<Module, BTreeSet<Module>>> {
    let files: BTreeMap<Module, PathBuf> =
        rust_files(src)?.into_iter().map(|file| (module_of(src, &file), file)).filter(|(m, _)| !is_test(m)).collect();
    let mut graph = BTreeMap::new();
    for (module, file) in &files {
        let paths = imports(&product_code(&fs::read_to_string(file)?), module);
        let own = paths.iter().filter(|path| path.first().is_some_and(|first| first == "crate"));
        let targets = own.filter_map(|path| declared(&files, &path[1..]));
        graph.insert(module.clone(), targets.filter(|target| target != module).collect());
    }
    Ok(graph)
}

/// The module that declares the longest part of a path.
fn declared(files: &BTreeMap<Module, PathBuf>, path: &[String]) -> Option<Module> {
    let parts = (0..=path.len()).rev().map(|end| &path[..end]);
    parts.into_iter().find(|part| files.contains_key(*part)).map(<[String]>::to_vec)
}
