//! Compiles the mutants of a file into one program, and runs its unit tests with one after the other:
//! `try-mutants TREE FILE LIST PACKAGE [FILTER]`. TREE is a copy of the sources, whose FILE is written; LIST is what `cargo mutants --list
//! --json` prints of it. Prints the mutants that no test notices, one in a line, and to stderr what becomes of all.

use std::{
    collections::BTreeSet,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nodewright_architecture::{MUTANT, combine};
use serde::Deserialize;
use serde_json::Value;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// After this time a run counts as noticed: the mutant waits for ever.
const TIMEOUT: Duration = Duration::from_mins(5);

#[derive(Deserialize)]
struct Mutant {
    name: String,
    replacement: String,
    span: Span,
}

#[derive(Deserialize)]
struct Span {
    start: Position,
    end: Position,
}

/// Counted from 1, in characters.
#[derive(Deserialize)]
struct Position {
    line: usize,
    column: usize,
}

struct Tests<'a> {
    tree: &'a Path,
    file: &'a str,
    package: &'a str,
}

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [tree, file, list, package, filter @ ..] = arguments.as_slice() else {
        return Err("usage: try-mutants TREE FILE LIST PACKAGE [FILTER]".into());
    };
    let tests = Tests { tree: Path::new(tree), file, package };
    let mutants: Vec<Mutant> = serde_json::from_str(&fs::read_to_string(list)?)?;
    let text = fs::read_to_string(tests.tree.join(file))?;
    let versions: Vec<_> =
        mutants.iter().enumerate().map(|(number, mutant)| (number.to_string(), mutant.applied_to(&text))).collect();
    let (program, tried) = tests.compiled(&text, versions)?;
    if tests.notice(&program, filter, "")? {
        return Err("the tests fail without a change".into());
    }
    let mut noticed = 0;
    for (number, mutant) in mutants.iter().enumerate().filter(|(number, _)| tried.contains(&number.to_string())) {
        if tests.notice(&program, filter, &number.to_string())? {
            noticed += 1;
        } else {
            println!("{}", mutant.name);
        }
    }
    eprintln!("{file}: {} changes, {} compiled and run, {noticed} noticed", mutants.len(), tried.len());
    Ok(())
}

impl Mutant {
    fn applied_to(&self, text: &str) -> String {
        let at = |position: &Position| -> usize {
            let before: usize = text.split_inclusive('\n').take(position.line - 1).map(str::len).sum();
            before + text[before..].chars().take(position.column - 1).map(char::len_utf8).sum::<usize>()
        };
        [&text[..at(&self.span.start)], &self.replacement, &text[at(&self.span.end)..]].concat()
    }
}

impl Tests<'_> {
    /// Compiles the versions, without those that do not compile, and returns the program and the names of those it has.
    fn compiled(&self, text: &str, mut versions: Vec<(String, String)>) -> Result<(PathBuf, BTreeSet<String>)> {
        loop {
            let combined = match combine(text, &versions) {
                Ok(combined) => combined,
                Err(name) => {
                    let name = name.to_owned();
                    versions.retain(|(other, _)| *other != name);
                    continue;
                }
            };
            fs::write(self.tree.join(self.file), &combined)?;
            match self.build()? {
                Ok(program) => return Ok((program, versions.into_iter().map(|(name, _)| name).collect())),
                Err(lines) => {
                    let broken: BTreeSet<_> = lines.iter().filter_map(|line| version_at(&combined, *line)).collect();
                    if broken.is_empty() {
                        return Err("it does not compile, and no change is the reason".into());
                    }
                    eprintln!("{} changes do not compile", broken.len());
                    versions.retain(|(name, _)| !broken.contains(name));
                }
            }
        }
    }

    /// The program of the unit tests, or the lines of the file that do not compile.
    fn build(&self) -> Result<std::result::Result<PathBuf, Vec<usize>>> {
        let arguments = ["test", "--locked", "--no-run", "--lib", "--message-format=json", "--package", self.package];
        let output = Command::new("cargo").args(arguments).current_dir(self.tree).stderr(Stdio::null()).output()?;
        let (mut program, mut lines) = (None, vec![]);
        for line in String::from_utf8(output.stdout)?.lines() {
            let message: Value = serde_json::from_str(line)?;
            if let Some(executable) = message["executable"].as_str() {
                program = Some(PathBuf::from(executable));
            }
            if message["message"]["level"] == "error" {
                let spans = message["message"]["spans"].as_array().into_iter().flatten();
                let own = spans.filter(|span| span["file_name"].as_str().is_some_and(|it| self.file.ends_with(it)));
                lines.extend(own.filter_map(|span| usize::try_from(span["line_start"].as_u64()?).ok()));
            }
        }
        Ok(if output.status.success() { Ok(program.ok_or("there is no program")?) } else { Err(lines) })
    }

    /// Whether a test fails with this change.
    fn notice(&self, program: &Path, filter: &[String], mutant: &str) -> Result<bool> {
        let crate_folder =
            Path::new(self.file).ancestors().find(|folder| self.tree.join(folder).join("Cargo.toml").is_file());
        let folder = self.tree.join(crate_folder.ok_or("the file is in no crate")?);
        let mut command = Command::new(program);
        command.args(filter).env(MUTANT, mutant).env("CARGO_MANIFEST_DIR", &folder).current_dir(folder);
        let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let begun = Instant::now();
        loop {
            if let Some(status) = run.try_wait()? {
                return Ok(!status.success());
            }
            if begun.elapsed() > TIMEOUT {
                run.kill()?;
                run.wait()?;
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The version whose text has this line, or in whose function it is.
fn version_at(combined: &str, line: usize) -> Option<String> {
    let before: Vec<_> = combined.lines().take(line).collect();
    let marker = format!("std::env::var(\"{MUTANT}\").is_ok_and(|chosen| chosen == \"");
    let name = before.iter().rev().find_map(|line| line.split_once(&marker))?.1;
    name.split_once('"').map(|(name, _)| name.to_owned())
}
