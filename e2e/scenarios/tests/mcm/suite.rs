//! machine-controller-manager's own integration tests, as its release contains them, run against Nodewright. Its verdict is
//! `docs/reference/compatibility.md`; `UPDATE_COMPATIBILITY=1` writes that file. With `NODEWRIGHT_MCM_SOURCE`, the tests are those
//! of another version.
//!
//! The tests start and kill controllers by themselves, by `make start` in directories that they expect around their working
//! directory; [`Tree`] makes these. They also kill every process of the computer whose command line looks like that of
//! machine-controller-manager. So they run in a PID namespace of their own, which also ends all that they leave behind.

use std::{
    env, fmt,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use nodewright_e2e_lab::{
    cloud::{CloudProcess, CloudProcessOptions, simulated_driver},
    control_plane::{
        ControlPlane, ControlPlaneOptions, machine_controller_manager_binaries, machine_controller_manager_crds,
    },
    devcluster::manager::BINARY_VARIABLE,
    process::{executable, repository},
};
use nodewright_e2e_scenarios::{Failure, TestResult, ensure};
use serde::Deserialize;
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

/// How many seconds the suite waits for what it expects. A test that fails takes this long; the others take about ten.
const TIMEOUT_SECONDS: u32 = 60;
/// How long a VM boots. Before each test, the suite counts the Nodes once, and waits until exactly as many are ready: one that
/// joins a moment later would be one too many.
const BOOT_SECONDS: u32 = 5;
/// How long a kubelet is silent until its Node counts as unhealthy. Each test of preservation, in suites after v0.62, waits for
/// that. The default is nearly [`TIMEOUT_SECONDS`].
const GRACE_PERIOD: Duration = Duration::from_secs(20);
/// How long the whole suite may take.
const DEADLINE: Duration = Duration::from_mins(15);

/// What the suite expects and Nodewright does not do, with the reason.
const DEPARTURES: [(&str, &str); 1] = [(
    "should freeze and unfreeze machineset temporarily",
    "machine-controller-manager freezes a MachineSet for some seconds when it is scaled down, because it counts the \
     machines that it is deleting as too many. Nodewright knows which machines it deletes, so a scale-down freezes nothing.",
)];

/// What passes or fails by chance, the beginning of the message when it fails, and the reason.
const CHANCES: [(&str, &str, &str); 1] = [(
    "a preserved machine is terminated once its machinePreserveTimeout expires",
    "Failed after 1",
    "the suite looks every two seconds for the preservation, and wants it to last for its whole timeout of 15 seconds from then on. \
     Nodewright ends it when the timeout is over, machine-controller-manager the next time that it looks at the machine. So it is \
     chance whether the suite sees the end too early; it does not come to the rest of the test then.",
)];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes two minutes: make test-mcm"]
async fn nodewright_passes_machine_controller_managers_integration_tests() -> TestResult {
    let Some(isolation) = isolation().await else {
        let reason = "unshare(1) may not make a PID namespace, which needs root or user namespaces";
        // Not captured by the test runner, as the output of `eprintln` is.
        writeln!(io::stderr(), "skipped machine-controller-manager's integration tests: {reason}")?;
        return Ok(());
    };
    let program = executable("nodewright", BINARY_VARIABLE)?;
    let tests = run(&isolation, &Start::nodewright(&program, &simulated_driver()?)).await?;
    for test in &tests {
        println!("{test}");
    }
    for test in &tests {
        let is_expected = test.fails_by_chance() || test.passed() != test.departure().is_some();
        ensure(is_expected, || format!("{test}, which docs/reference/compatibility.md does not expect"))?;
    }
    report_is(&tests)
}

/// The `start` targets of the two Makefiles: shell commands that use make's variables of the suite.
struct Start {
    machine_controller_manager: String,
    machine_controller: String,
}

impl Start {
    /// The two halves of Nodewright, with the flags of machine-controller-manager's own Makefiles, and a driver.
    fn nodewright(program: &Path, driver: &Path) -> Self {
        let (program, driver) = (program.display(), driver.display());
        let common = "--control-kubeconfig=$(CONTROL_KUBECONFIG) --target-kubeconfig=$(TARGET_KUBECONFIG) \
                      --namespace=$(CONTROL_NAMESPACE) --leader-elect=$(LEADER_ELECT) --v=3 --address=127.0.0.1";
        Self {
            machine_controller_manager: format!(
                "exec {program} mcm {common} --port=0 --safety-up=2 --safety-down=1 \
                 --machine-safety-overshooting-period=$(MACHINE_SAFETY_OVERSHOOTING_PERIOD)"
            ),
            machine_controller: format!(
                "exec {program} mc {common} --port=0 --machine-creation-timeout=20m --machine-drain-timeout=5m \
                 --machine-health-timeout=10m --machine-pv-detach-timeout=2m --machine-safety-orphan-vms-period=30m \
                 --machine-safety-apiserver-statuscheck-timeout=30s \
                 --machine-safety-apiserver-statuscheck-period=1m --driver={driver}"
            ),
        }
    }
}

/// The directories around the suite's working directory, as in the repository of a provider.
struct Tree {
    root: TempDir,
}

impl Tree {
    fn new(start: &Start, crds: &Path) -> TestResult<Self> {
        let tree = Self { root: tempfile::Builder::new().prefix("nodewright-mcm-suite-").tempdir()? };
        for directory in ["test/integration/controller", ".ci/controllers-test/logs", "dev/mcm/.git"] {
            fs::create_dir_all(tree.path(directory))?;
        }
        fs::write(tree.path("Makefile"), format!("start:\n\t@{}\n", start.machine_controller))?;
        fs::write(tree.path("dev/mcm/Makefile"), format!("start:\n\t@{}\n", start.machine_controller_manager))?;
        fs::write(tree.path(".ci/controllers-test/machine-class-patch.json"), "{}")?;
        // The suite follows a link to the parent of the CRDs, but not one to their directory.
        symlink(crds.parent().unwrap_or(crds), tree.path("dev/mcm/kubernetes"))?;
        let class = json!({
            "apiVersion": nodewright_api::API_VERSION,
            "kind": "MachineClass",
            "metadata": {"name": "test-mc-v1"},
            "provider": "simulated",
            "providerSpec": {"cluster": "suite", "bootSeconds": BOOT_SECONDS},
        });
        fs::write(tree.path("class.json"), class.to_string())?;
        Ok(tree)
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.root.path().join(relative)
    }

    /// The ends of all logs, for a failure.
    fn logs(&self) -> String {
        let logs =
            ["suite.log", ".ci/controllers-test/logs/mc_process.log", ".ci/controllers-test/logs/mcm_process.log"];
        let tail = |name: &str| {
            let text = fs::read_to_string(self.path(name)).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            format!("the end of {name}:\n{}\n", lines[lines.len().saturating_sub(20)..].join("\n"))
        };
        logs.map(tail).concat()
    }
}

/// The command that runs another one in a PID namespace, if this user may make one.
async fn isolation() -> Option<Vec<&'static str>> {
    const AS_ROOT: [&str; 5] = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    for more in [&[][..], &["--user", "--map-root-user"][..]] {
        let command = [&AS_ROOT, more].concat();
        let tried = Command::new(command[0]).args(&command[1..]).arg("true").stderr(Stdio::null()).status().await;
        if tried.is_ok_and(|status| status.success()) {
            return Some(command);
        }
    }
    None
}

/// Runs the suite on a control plane and a cloud of its own.
async fn run(isolation: &[&str], start: &Start) -> TestResult<Vec<Test>> {
    let suite = machine_controller_manager_binaries().await?.join("integration-suite");
    let tree = Tree::new(start, &machine_controller_manager_crds().await?)?;
    let options =
        ControlPlaneOptions { node_monitor_grace_period: Some(GRACE_PERIOD), ..ControlPlaneOptions::default() };
    let plane = ControlPlane::start(options).await?;
    let cloud = CloudProcess::start(CloudProcessOptions {
        kubeconfig: Some(plane.kubeconfig_path()),
        log: Some(tree.path("cloud.log")),
        ..CloudProcessOptions::default()
    })?;
    let log = File::create(tree.path("suite.log"))?;
    let mut command = Command::new(isolation[0]);
    command
        .args(&isolation[1..])
        .arg(suite)
        .args(["--ginkgo.no-color", "--ginkgo.json-report=report.json"])
        .current_dir(tree.path("test/integration/controller"))
        .env("CONTROL_KUBECONFIG", plane.kubeconfig_path())
        .env("MACHINECLASS_V1", tree.path("class.json"))
        .env("TARGET_CLUSTER_NAME", "suite")
        .env("NODEWRIGHT_CLOUD_URL", cloud.url())
        .env("TIMEOUT_SECONDS", TIMEOUT_SECONDS.to_string())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true);
    let failed = |why: String| Failure::new(why).and(&tree.logs());
    // The exit code says no more than the report.
    let ended = tokio::time::timeout(DEADLINE, command.spawn()?.wait()).await;
    ended.map_err(|_| failed(format!("the suite takes longer than {DEADLINE:?}")))??;
    let report = fs::read(tree.path("test/integration/controller/report.json"));
    let report = report.map_err(|error| failed(format!("the suite wrote no report: {error}")))?;
    let suites: Vec<Suite> = serde_json::from_slice(&report)?;
    let tests: Vec<Test> =
        suites.into_iter().flat_map(|suite| suite.tests).filter(|test| !test.succeeded_around()).collect();
    if tests.iter().any(|test| !test.passed() && test.departure().is_none() && !test.fails_by_chance()) {
        return Err(failed(tests.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")));
    }
    Ok(tests)
}

/// The part of ginkgo's report that is used.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    #[serde(rename = "SpecReports")]
    tests: Vec<Test>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Test {
    #[serde(rename = "ContainerHierarchyTexts")]
    containers: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    failure: Option<TestFailure>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TestFailure {
    message: String,
}

impl Test {
    fn passed(&self) -> bool {
        self.state == "passed"
    }

    /// Whether this is no test, but code before or after them, which did its work.
    fn succeeded_around(&self) -> bool {
        self.leaf_node_type != "It" && self.passed()
    }

    /// Why it is not expected to pass.
    fn departure(&self) -> Option<&'static str> {
        DEPARTURES.iter().find(|(text, _)| *text == self.leaf_node_text).map(|(_, reason)| *reason)
    }

    /// Whether it failed, and may.
    fn fails_by_chance(&self) -> bool {
        let message = self.failure.as_ref().map_or("", |failure| failure.message.as_str());
        CHANCES.iter().any(|(text, failed, _)| *text == self.leaf_node_text && message.starts_with(failed))
    }

    /// The column of its verdict.
    fn verdict(&self) -> &str {
        let depends = CHANCES.iter().any(|(text, ..)| *text == self.leaf_node_text);
        if depends { "passed, or failed by a second" } else { &self.state }
    }

    /// Its columns in a table, except for number and verdict.
    fn cells(&self) -> String {
        format!(" | {} | {} | ", self.subject(), self.leaf_node_text)
    }

    /// What it is about. The outermost container is the same for all.
    fn subject(&self) -> String {
        self.containers.as_deref().unwrap_or_default().get(1..).unwrap_or_default().join(", ")
    }
}

impl fmt::Display for Test {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}, {} {}", self.state, self.leaf_node_type, self.subject(), self.leaf_node_text)?;
        match &self.failure {
            Some(failure) => write!(formatter, ": {}", failure.message),
            None => Ok(()),
        }
    }
}

/// The beginning of `docs/reference/compatibility.md`.
const HEADER: &str = "\
<!-- Made by e2e/scenarios/tests/mcm/suite.rs (UPDATE_COMPATIBILITY=1); do not edit. -->
# machine-controller-manager's integration tests

The integration tests of machine-controller-manager, as its module contains them (`pkg/test/integration/common`, the release
that `hack/tools/machine-controller-manager` pins), run against `nodewright mcm` and `nodewright mc` with the flags of its own
Makefiles and with its own CRDs. `make test-mcm` runs them. The verdict is the same for the release (0.62.1), and with
`NODEWRIGHT_MCM_SOURCE` for the head of 2026-08-19 (0.63.0-dev, `54caf54`). The suite reports:

";

/// What stands before the tests that the pinned release lacks.
const ADDED: &str = "
The suite of machine-controller-manager's pull request 1124 (`336520e`), run in the same way on top of that head, has these as well:

";

const COLUMNS: &str = "\
| | What | Test | Verdict |
|---|---|---|---|
";

/// The content of `docs/reference/compatibility.md` with rows of the pinned release, and rows that it lacks.
fn page(released: &str, added: &str) -> String {
    let departure = |(test, reason): (&str, &str)| format!("* *{test}*: {reason}\n");
    let departures = DEPARTURES.map(departure).concat();
    let chances = CHANCES.map(|(test, _, reason)| departure((test, reason))).concat();
    [HEADER, COLUMNS, released, ADDED, COLUMNS, added, "\nWhat does not pass:\n\n", &departures, &chances].concat()
}

/// The rows of tests.
fn rows<'a>(tests: impl IntoIterator<Item = &'a Test>) -> String {
    let row = |(number, test): (usize, &Test)| format!("| {}{}{} |\n", number + 1, test.cells(), test.verdict());
    tests.into_iter().enumerate().map(row).collect()
}

/// Compares the verdict with the page. A run of another version tells of the tests that the pinned release lacks, any other run
/// leaves these as they are.
fn report_is(tests: &[Test]) -> TestResult {
    let path = repository().join("docs/reference/compatibility.md");
    let found = fs::read_to_string(&path).unwrap_or_default();
    let (known, former) = found.split_once(ADDED).unwrap_or((&found, ""));
    let is_pinned = env::var_os("NODEWRIGHT_MCM_SOURCE").is_none_or(|source| source.is_empty());
    let (released, added): (Vec<_>, Vec<_>) = tests.iter().partition(|test| is_pinned || known.contains(&test.cells()));
    let added = if added.is_empty() { former_rows(former) } else { rows(added) };
    let content = page(&rows(released), &added);
    if env::var_os("UPDATE_COMPATIBILITY").is_some_and(|value| value == "1") {
        fs::write(&path, &content)?;
        return Ok(());
    }
    ensure(found == content, || format!("{} differs; run the test with UPDATE_COMPATIBILITY=1", path.display()))
}

/// The rows of a part of the page.
fn former_rows(part: &str) -> String {
    let is_row = |line: &&str| line.starts_with('|') && !COLUMNS.contains(*line);
    part.split_inclusive('\n').filter(is_row).collect()
}
