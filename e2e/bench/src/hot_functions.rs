//! `nodewright-bench hot-functions`: which functions a manager has run, as a list for the linker.
//!
//! The linker puts them side by side, so that the pages of the program that are in memory hold little else: see
//! `controllers/manager/build.rs`, and `hack/hot-functions`, which makes the list.
//!
//! A line of the list is how the names of functions begin, as Rust's [v0 mangling](https://doc.rust-lang.org/rustc/symbol-mangling/v0.html)
//! writes them, but without the hash of a crate: it differs between builds, so `Cs_` stands for any. A line is as short as it can be
//! without naming much that was not run. So it still fits after small changes, and functions that are new go beside those like them.
//!
//! # Caveats
//! Functions with the same code are one for the linker, and all of their names count as run.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::RangeInclusive,
    path::PathBuf,
    process::Command,
};

use nodewright_e2e_lab::process::ProcessError;

use crate::{callgrind::executed, error::BenchError, measure::print};

/// A line may name functions that were not run, with this share of the code of those that were.
const COLD_SHARE: f64 = 0.3;

/// How the names of all functions in Rust begin.
const RUST: &str = "_R";

/// The length of the hash of a crate: 64 bits, of which each character has almost six.
const HASH: RangeInclusive<usize> = 10..=11;

const HEADER: &str = "\
# How the names of functions begin that a manager of a fleet runs: controllers/manager/build.rs has the linker put them side by side.
# Made by hack/hot-functions; not to be edited.
";

/// Print the functions that a manager has run, as a list for the linker; see hack/hot-functions.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct HotFunctionsArguments {
    /// What callgrind wrote, with --demangle=no
    #[arg(long)]
    profile: PathBuf,
    /// The manager that ran
    #[arg(long)]
    program: PathBuf,
}

/// Runs the command.
pub(crate) fn run(arguments: &HotFunctionsArguments) -> Result<(), BenchError> {
    let HotFunctionsArguments { profile, program } = arguments;
    let file = std::fs::File::open(profile).map_err(ProcessError::file("open", profile))?;
    let executed = executed(io::BufReader::new(file), program).map_err(ProcessError::file("read", profile))?;
    let output = Command::new("nm").arg("--print-size").arg(program).output();
    let output = output.map_err(|source| ProcessError::Spawn { program: "nm".into(), source })?;
    let functions = Function::all(&String::from_utf8_lossy(&output.stdout));
    let lines = list(&functions, &executed);
    if lines.is_empty() {
        return Err(BenchError::Failed(format!(
            "{} has run none of the functions of {}",
            profile.display(),
            program.display()
        )));
    }
    print(&format!("{HEADER}{}", lines.join("\n")))
}

/// A function of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Function {
    address: String,
    /// In bytes.
    size: u64,
    name: String,
}

impl Function {
    /// All of the output of `nm --print-size`.
    fn all(text: &str) -> Vec<Self> {
        let of = |line: &str| {
            let [address, size, kind, name] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
            let size = u64::from_str_radix(size, 16).ok()?;
            "tTwW".contains(kind).then(|| Self { address: address.to_owned(), size, name: name.to_owned() })
        };
        text.lines().filter_map(of).collect()
    }
}

/// The lines of the list.
fn list(functions: &[Function], executed: &BTreeSet<String>) -> Vec<String> {
    let of_executed = functions.iter().filter(|function| executed.contains(&function.name));
    let addresses: BTreeSet<&str> = of_executed.map(|function| function.address.as_str()).collect();
    let mut code: BTreeMap<String, Code> = BTreeMap::new();
    // Functions of C have short names, of which a part could name anything.
    for function in functions.iter().filter(|function| function.name.starts_with(RUST)) {
        let code = code.entry(without_hashes(&function.name)).or_default();
        let is_hot = addresses.contains(function.address.as_str());
        *if is_hot { &mut code.hot } else { &mut code.cold } += function.size;
    }
    let mut names: Vec<_> = code.iter().map(|(name, code)| Name { parts: parts(name), code: *code }).collect();
    names.sort_by(|one, other| one.parts.cmp(&other.parts));
    let mut lines = BTreeSet::new();
    cover(&names, RUST.len(), &mut lines);
    lines.into_iter().collect()
}

/// How many bytes of code were run, and not run.
#[derive(Clone, Copy, Debug, Default)]
struct Code {
    hot: u64,
    cold: u64,
}

/// A name that is not cut within its parts.
struct Name<'a> {
    parts: Vec<&'a str>,
    code: Code,
}

/// Adds lines for names whose first `depth` parts are the same.
fn cover(names: &[Name<'_>], depth: usize, lines: &mut BTreeSet<String>) {
    let Some(first) = names.first() else { return };
    let [hot, cold] = [|code: &Code| code.hot, |code: &Code| code.cold]
        .map(|of| names.iter().map(|name| of(&name.code)).sum::<u64>());
    if hot == 0 {
        return;
    }
    #[expect(clippy::cast_precision_loss, reason = "a share needs no more digits")]
    if cold as f64 <= COLD_SHARE * hot as f64 || first.parts.len() == depth && names.len() == 1 {
        lines.insert(first.parts[..depth].concat());
        return;
    }
    for group in names.chunk_by(|one, other| one.parts.get(depth) == other.parts.get(depth)) {
        let ends = group[0].parts.len() == depth;
        cover(group, if ends { depth } else { depth + 1 }, lines);
    }
}

/// `_RNvCs_4core3ptr` of `_RNvCsgEmfK2I1SDS_4core3ptr.llvm.12`.
fn without_hashes(name: &str) -> String {
    let name = name.split('.').next().unwrap_or(name);
    let mut short = String::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, after)) = rest.split_once("Cs") {
        short.push_str(before);
        short.push_str("Cs");
        let hash = after.find(|letter: char| !letter.is_ascii_alphanumeric()).filter(|end| HASH.contains(end));
        let is_hash = |end: &usize| {
            let mut behind = after[*end..].chars();
            behind.next() == Some('_') && behind.next().is_some_and(|letter| letter.is_ascii_digit())
        };
        rest = &after[hash.filter(is_hash).unwrap_or(0)..];
    }
    short + rest
}

/// A crate's name is one part; any other character, too.
fn parts(name: &str) -> Vec<&str> {
    let (mut parts, mut rest) = (vec![], name);
    while let Some(letter) = rest.chars().next() {
        let (part, behind) = rest.split_at(crate_name(rest).unwrap_or(letter.len_utf8()));
        parts.push(part);
        rest = behind;
    }
    parts
}

/// The length of `Cs_4core` at the beginning of a text.
fn crate_name(text: &str) -> Option<usize> {
    let behind = text.strip_prefix("Cs_")?;
    let digits = behind.find(|letter: char| !letter.is_ascii_digit())?;
    let length: usize = behind[..digits].parse().ok()?;
    // An underscore divides the length from a name that begins with a digit or an underscore.
    let divider = usize::from(behind[digits..].starts_with('_'));
    let end = "Cs_".len() + digits + divider + length;
    text.is_char_boundary(end).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_crates_are_left_out() {
        for (name, expected) in [
            ("_RNvCsgEmfK2I1SDS_4core3ptr", "_RNvCs_4core3ptr"),
            ("_RINvCsgEmfK2I1SD1_1aCsfdVbw0rcxMX_6rustls", "_RINvCs_1aCs_6rustls"),
            ("_RNvC3Css_1a", "_RNvC3Css_1a"),
            ("_RNvCsgEmfK2I1SD1_5bytes12static_clone.977", "_RNvCs_5bytes12static_clone"),
            ("ring_core_0_17_14__p256_mul", "ring_core_0_17_14__p256_mul"),
        ] {
            assert_eq!(without_hashes(name), expected, "{name}");
        }
    }

    #[test]
    fn a_crates_name_is_one_part() {
        assert_eq!(parts("NvCs_2h2Cs_3_1st5a"), ["N", "v", "Cs_2h2", "Cs_3_1st", "5", "a"]);
        assert_eq!(parts("Cs_9h"), ["C", "s", "_", "9", "h"], "too short for a name");
    }

    fn function(address: &str, size: u64, name: &str) -> Function {
        Function { address: address.to_owned(), size, name: name.to_owned() }
    }

    #[test]
    fn functions_of_nm_have_a_size() {
        let text = "0001 000a t _RNvCsgEmfK2I1SD1_1a1b\n0002 T no_size\n                 U malloc\n0003 0010 r constant\n0004 0010 W weak\n";
        assert_eq!(Function::all(text), [function("0001", 10, "_RNvCsgEmfK2I1SD1_1a1b"), function("0004", 16, "weak")]);
    }

    #[test]
    fn a_line_is_as_short_as_it_can_be_without_much_that_was_not_run() {
        let functions = [
            function("1", 100, "_RNvCsgEmfK2I1SD1_1a3one"),
            function("2", 100, "_RNvCsgEmfK2I1SD1_1a3two"),
            function("3", 20, "_RNvCsgEmfK2I1SD1_1a4rare"),
            function("4", 500, "_RNvCsfdVbw0rcxMX_1b3cut"),
            function("5", 100, "_RNvCsfdVbw0rcxMX_1b3run"),
            function("6", 10, "_RNvCsjrHSEGnQ3l9_1c4idle"),
            // The linker has put this one at the place of another that has run.
            function("1", 100, "_RNvCsiR3swAtRBlp_1d5alias"),
            function("7", 100, "free"),
        ];
        let executed = ["_RNvCsgEmfK2I1SD1_1a3one", "_RNvCsgEmfK2I1SD1_1a3two", "_RNvCsfdVbw0rcxMX_1b3run", "free"]
            .map(str::to_owned)
            .into();
        assert_eq!(list(&functions, &executed), ["_RNvCs_1a", "_RNvCs_1b3r", "_RNvCs_1d"]);
    }

    #[test]
    fn a_name_that_begins_others_has_a_line_if_it_has_run() {
        let functions = [function("1", 10, "_RNvCsgEmfK2I1SD1_1a1b"), function("2", 90, "_RNvCsgEmfK2I1SD1_1a1b0")];
        assert_eq!(list(&functions, &["_RNvCsgEmfK2I1SD1_1a1b".to_owned()].into()), ["_RNvCs_1a1b"]);
    }
}
