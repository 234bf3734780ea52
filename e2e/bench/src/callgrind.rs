//! Reads the file that callgrind writes: <https://valgrind.org/docs/manual/cl-format.html>.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::{self, BufRead},
    path::Path,
};

use nodewright_e2e_lab::process::repository;

/// What callgrind calls a file that it does not know.
const UNKNOWN: &str = "???";
/// Where cargo unpacks crates, and where the standard library's sources were when it was compiled.
const REGISTRY: &str = "/registry/src/";
const LIBRARY: &str = "/library/";
/// The same for the crates that the standard library uses.
const OF_LIBRARY: &str = "/rust/deps/";
/// Where controllers stand, in the tree and in the names of functions.
const CONTROLLERS: &str = "controllers/src/";
const CONTROLLER_NAMES: &str = "nodewright_controllers::";

/// Instructions of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    /// By source file; of machine code without one, by library.
    files: BTreeMap<String, u64>,
    /// Of plans with all that they call, by controller.
    plans: BTreeMap<String, u64>,
}

impl Profile {
    pub(crate) fn read(text: impl BufRead) -> io::Result<Self> {
        let (mut profile, mut at) = (Self::default(), Position::default());
        for line in text.lines() {
            if let Some(cost) = at.follow(&line?) {
                profile.cost(cost, &mut at);
            }
        }
        Ok(profile)
    }

    /// The line after `calls` has the instructions of the function that is called and of all that it calls.
    fn cost(&mut self, cost: u64, at: &mut Position) {
        if std::mem::take(&mut at.is_call) {
            let (called, by) = (room_of_plan(&at.callee), room_of_plan(&at.function));
            // The plan of a controller may be a function that calls the actual one.
            if let Some(room) = called.filter(|_| called != by) {
                *self.plans.entry(room.to_owned()).or_default() += cost;
            }
            return;
        }
        let file = if at.file == UNKNOWN { library(&at.object) } else { &at.file };
        *self.files.entry(file.to_owned()).or_default() += cost;
    }

    pub(crate) fn total(&self) -> u64 {
        self.files.values().sum()
    }

    /// By crate.
    pub(crate) fn by_crate(&self) -> BTreeMap<String, u64> {
        self.sums(|file| Some(crate_of(file)))
    }

    /// The controllers' own code, by controller.
    pub(crate) fn by_room(&self) -> BTreeMap<String, u64> {
        self.sums(|file| Some(file.split_once(CONTROLLERS)?.1.split(['/', '.']).next()?.to_owned()))
    }

    /// Plans with all that they call, by controller.
    pub(crate) fn plans(&self) -> &BTreeMap<String, u64> {
        &self.plans
    }

    fn sums(&self, key: impl Fn(&str) -> Option<String>) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for (file, count) in &self.files {
            if let Some(key) = key(file) {
                *sums.entry(key).or_default() += count;
            }
        }
        sums
    }
}

const OBJECT: usize = 0;
const FILE: usize = 1;
const FUNCTION: usize = 2;

/// The functions of an object that have run.
pub(crate) fn executed(text: impl BufRead, object: &Path) -> io::Result<BTreeSet<String>> {
    let (mut functions, mut at) = (BTreeSet::new(), Position::default());
    for line in text.lines() {
        if at.follow(&line?).is_some() && Path::new(&at.object) == object {
            // A function that calls itself is listed again, with a number.
            functions.insert(at.function.split('\'').next().unwrap_or_default().to_owned());
        }
    }
    Ok(functions)
}

/// What the lines so far say of the next one.
#[derive(Default)]
struct Position {
    object: String,
    file: String,
    function: String,
    callee: String,
    is_call: bool,
    names: [Names; 3],
}

impl Position {
    /// Reads a line. Returns its instructions, if it has any.
    fn follow(&mut self, line: &str) -> Option<u64> {
        if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            return Some(line.split(' ').nth(1).and_then(|cost| cost.parse().ok()).unwrap_or(0));
        }
        let (key, value) = line.split_once('=')?;
        match key {
            "ob" => self.object = self.names[OBJECT].of(value),
            "fl" | "fi" | "fe" => self.file = self.names[FILE].of(value),
            "fn" => self.function = self.names[FUNCTION].of(value),
            "cfn" => self.callee = self.names[FUNCTION].of(value),
            // Not needed, but a number is explained where it comes first.
            "cfi" | "cfl" => drop(self.names[FILE].of(value)),
            "cob" => drop(self.names[OBJECT].of(value)),
            "calls" => self.is_call = true,
            _ => {}
        }
        None
    }
}

/// Names are written once, with a number that stands for them afterwards.
#[derive(Default)]
struct Names(HashMap<String, String>);

impl Names {
    fn of(&mut self, value: &str) -> String {
        let Some((number, name)) = value.strip_prefix('(').and_then(|rest| rest.split_once(')')) else {
            return value.to_owned();
        };
        if name.trim().is_empty() {
            return self.0.get(number).cloned().unwrap_or_default();
        }
        self.0.insert(number.to_owned(), name.trim().to_owned());
        name.trim().to_owned()
    }
}

fn library(object: &str) -> &str {
    object.rsplit('/').next().unwrap_or(object)
}

/// The controller whose plan a function makes, as in `nodewright_controllers::machine::plan::plan`.
fn room_of_plan(function: &str) -> Option<&str> {
    let is_plan = function.ends_with("::plan") || function.contains("::plan'");
    function.split_once(CONTROLLER_NAMES).filter(|_| is_plan)?.1.split("::").next()
}

fn crate_of(file: &str) -> String {
    let root = repository().to_string_lossy();
    let file = file.strip_prefix(root.as_ref()).map_or(file, |file| file.trim_start_matches('/'));
    if let Some((_, rest)) = file.split_once(REGISTRY) {
        return without_version(rest.split('/').nth(1).unwrap_or(rest)).to_owned();
    }
    if let Some((_, rest)) = file.split_once(OF_LIBRARY) {
        return without_version(rest.split('/').next().unwrap_or(rest)).to_owned();
    }
    if let Some((_, rest)) = file.split_once(LIBRARY) {
        return format!("Rust's {}", rest.split('/').next().unwrap_or(rest));
    }
    let ends = ["/src/", "/tests/", "/out/"].iter().filter_map(|folder| file.find(folder));
    ends.min().map_or(file, |end| &file[..end]).to_owned()
}

/// `tokio-util` of `tokio-util-0.7.1`.
fn without_version(name: &str) -> &str {
    let mut hyphens = name.match_indices('-').map(|(at, _)| at);
    let end = hyphens.find(|at| name[at + 1..].starts_with(|first: char| first.is_ascii_digit()));
    end.map_or(name, |end| &name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# callgrind format
events: Ir

ob=(1) /t/budget
fl=(1) controllers/src/machine/mod.rs
fn=(1) nodewright_runtime::reconcile::run
10 100
fi=(2) /root/.cargo/registry/src/index.crates.io-1/serde_json-1.0.1/src/de.rs
+3 20
fe=(1)
cfn=(2) <nodewright_controllers::machine::Machine as nodewright_runtime::Controller>::plan
calls=2 5
* 900
-1 5

fn=(2)
5 40
cfi=(3) controllers/src/machine/plan.rs
cfn=(3) nodewright_controllers::machine::plan::plan
calls=2 7
+1 860
ob=(2) /lib/libc.so.6
fl=(4) ???
fn=(4) malloc
0 7

totals: 172
";

    #[test]
    fn a_file_is_read() {
        let profile = Profile::read(FILE.as_bytes()).unwrap();
        assert_eq!(profile.total(), 172, "what is called does not count twice");
        let crates = [("controllers", 145), ("libc.so.6", 7), ("serde_json", 20)];
        assert_eq!(profile.by_crate(), crates.map(|(name, count)| (name.to_owned(), count)).into());
        assert_eq!(profile.by_room(), [("machine".to_owned(), 145)].into());
        assert_eq!(profile.plans(), &[("machine".to_owned(), 900)].into(), "one plan that calls another is one");
    }

    #[test]
    fn the_functions_of_the_program_are_read_from_a_profile() {
        let profile = "version: 1\n\nob=/lib/libc.so\nfl=???\nfn=malloc\n0 7\n\nob=/t/nodewright\nfl=a.rs\nfn=_RNvCsgEmfK2I1SD1_1a1b'2\n1 1\n\
            cob=/lib/libc.so\ncfn=free\ncalls=1 0\n2 2\n\nfn=_RNvCsgEmfK2I1SD1_1a1c\n3 3\n";
        let names = executed(profile.as_bytes(), Path::new("/t/nodewright")).unwrap();
        assert_eq!(names, ["_RNvCsgEmfK2I1SD1_1a1b", "_RNvCsgEmfK2I1SD1_1a1c"].map(str::to_owned).into());
    }

    #[test]
    fn functions_that_are_written_as_numbers_are_named() {
        let names = executed(FILE.as_bytes(), Path::new("/lib/libc.so.6")).unwrap();
        assert_eq!(names, ["malloc".to_owned()].into());
        let names = executed(FILE.as_bytes(), Path::new("/t/budget")).unwrap();
        assert_eq!(names.last().map(String::as_str), Some("nodewright_runtime::reconcile::run"));
    }

    #[test]
    fn a_source_belongs_to_a_crate() {
        let root = repository().display();
        for (file, expected) in [
            ("/root/.cargo/registry/src/index.crates.io-1/tokio-util-0.7.1/src/x.rs", "tokio-util"),
            ("/rustc/0123/library/alloc/src/vec/mod.rs", "Rust's alloc"),
            ("/rust/deps/hashbrown-0.15.0/src/raw.rs", "hashbrown"),
            ("runtime/testing/src/stand_in.rs", "runtime/testing"),
            (&format!("{root}/e2e/simulation/tests/budget/main.rs"), "e2e/simulation"),
            ("libc.so.6", "libc.so.6"),
        ] {
            assert_eq!(crate_of(file), expected, "{file}");
        }
    }
}
