//! Ignition's own code, in a process that answers line by line.

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// What is wrong with each config, the merge of all if nothing is, and what is wrong with that.
#[derive(Debug, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) inputs: Vec<Option<BTreeSet<String>>>,
    pub(crate) merged: Option<Value>,
    pub(crate) result: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Evaluation {
    valid: bool,
    paths: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Answer {
    inputs: Vec<Evaluation>,
    merged: Option<Value>,
    result: Evaluation,
}

pub(crate) struct Ignition {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Ignition {
    /// Builds the oracle if it is missing, and starts it.
    pub(crate) fn start() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack/ignition.sh");
        let output = Command::new(&script).stderr(Stdio::inherit()).output().expect("hack/ignition.sh runs");
        assert!(output.status.success(), "{} ended with {}; see above", script.display(), output.status);
        let folder = String::from_utf8(output.stdout).expect("a path");
        let mut process = Command::new(Path::new(folder.trim_end()).join("oracle"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the oracle starts");
        let questions = process.stdin.take().expect("its standard input");
        let answers = BufReader::new(process.stdout.take().expect("its standard output"));
        Self { process, questions, answers }
    }

    pub(crate) fn evaluate(&mut self, configs: &[Value]) -> Verdict {
        let question = Value::Array(configs.to_vec());
        writeln!(self.questions, "{question}").expect("the oracle reads");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the oracle answers");
        let answer: Answer = serde_json::from_str(&line).expect("an answer");
        Verdict {
            inputs: answer.inputs.iter().map(|evaluation| (!evaluation.valid).then(|| paths(evaluation))).collect(),
            merged: answer.merged.map(canonical),
            result: paths(&answer.result),
        }
    }
}

impl Drop for Ignition {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// The paths of errors, `$.storage.files[0].mode` for Ignition's `$.storage.files.0.mode`.
fn paths(evaluation: &Evaluation) -> BTreeSet<String> {
    let path = |path: &String| {
        let parts = path.split('.').map(|part| match part.parse::<usize>() {
            Ok(index) => format!("[{index}]"),
            Err(_) => format!(".{part}"),
        });
        parts.collect::<String>().trim_start_matches('.').to_owned()
    };
    let paths = evaluation.paths.iter().flatten().map(path);
    // The source of a key file is reported a second time, under a name that no field has.
    paths.filter(|path| path.rsplit('.').next() != Some("keys")).collect()
}

/// Go writes empty structs. Like `null` and empty lists, they have no effect.
fn canonical(mut value: Value) -> Value {
    prune(&mut value);
    value
}

fn prune(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(prune),
        Value::Object(object) => {
            object.values_mut().for_each(prune);
            object.retain(|_, value| !(value.is_null() || *value == Value::Array(vec![]) || is_empty(value)));
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty)
}
