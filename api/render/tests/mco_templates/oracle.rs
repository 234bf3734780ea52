//! Machine-config-operator's own code, in a process that answers line by line.

use super::cluster::Cluster;
use nodewright_render::templates::Generated;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A MachineConfig that templates make.
#[derive(Debug, Deserialize, PartialEq)]
pub(crate) struct Made {
    pub(crate) name: String,
    pub(crate) role: String,
    pub(crate) spec: Value,
}

impl From<Generated> for Made {
    fn from(made: Generated) -> Self {
        Self { name: made.name, role: made.role, spec: canonical(serde_json::to_value(&made.spec).unwrap()) }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    machine_configs: Option<Vec<Made>>,
    error: String,
}

pub(crate) struct Oracle {
    directory: PathBuf,
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Oracle {
    /// Builds the oracle if it is missing, and starts it. None without the source of machine-config-operator.
    pub(crate) fn start() -> Option<Self> {
        env::var_os("NODEWRIGHT_MCO_SOURCE").filter(|source| !source.is_empty())?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack/mco.sh");
        let output = Command::new(&script).stderr(Stdio::inherit()).output().expect("hack/mco.sh runs");
        assert!(output.status.success(), "{} ended with {}; see above", script.display(), output.status);
        let directory = PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim_end());
        let mut process = Command::new(directory.join("oracle"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the oracle starts");
        let questions = process.stdin.take().expect("its standard input");
        let answers = BufReader::new(process.stdout.take().expect("its standard output"));
        Some(Self { directory, process, questions, answers })
    }

    /// Machine-config-operator's own templates.
    pub(crate) fn templates(&self) -> PathBuf {
        self.directory.join("templates")
    }

    /// What the templates of a folder become, by name, or what is wrong.
    pub(crate) fn render(&mut self, folder: &Path, cluster: &Cluster) -> Result<BTreeMap<String, Made>, String> {
        let mut question = cluster.json();
        question["templates"] = json!(folder);
        writeln!(self.questions, "{question}").expect("the oracle reads");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the oracle answers");
        let Answer { machine_configs, error } = serde_json::from_str(&line).expect("an answer");
        if !error.is_empty() {
            return Err(error);
        }
        let made = machine_configs.unwrap_or_default().into_iter();
        Ok(made.map(|made| (made.name.clone(), Made { spec: canonical(made.spec), ..made })).collect())
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Go writes empty structs and zero values. Like `null` and empty lists, they have no effect.
fn canonical(mut spec: Value) -> Value {
    if let Some(fields) = spec.as_object_mut() {
        fields.retain(|_, value| *value != json!(false) && *value != json!(""));
    }
    prune(&mut spec);
    spec
}

fn prune(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(prune),
        Value::Object(object) => {
            object.values_mut().for_each(prune);
            object.retain(|_, value| !(value.is_null() || *value == json!([]) || *value == json!({})));
        }
        _ => {}
    }
}
