//! The commands `up`, `manager`, `down` and `run`, on a directory of their own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use support::{TestResult, eventually, signal};
use tempfile::TempDir;

mod support;

const PROCESSES: [&str; 7] =
    ["cloud", "etcd", "daemon", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "manager"];

/// The directory of a devcluster. Dropping it ends the devcluster.
struct TestDirectory(TempDir);

impl TestDirectory {
    fn new() -> TestResult<Self> {
        Ok(Self(tempfile::Builder::new().prefix("nodewright-devcluster-").tempdir()?))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodewright-devcluster"));
        command.arg(name).arg("--directory").arg(self.0.path());
        command
    }

    /// Runs a command to its end.
    fn call(&self, name: &str) -> TestResult<(bool, String)> {
        let Output { status, stdout, stderr } = self.command(name).output()?;
        Ok((status.success(), String::from_utf8(stdout)? + &String::from_utf8(stderr)?))
    }

    /// Runs a command that must succeed.
    fn succeed(&self, name: &str) -> TestResult<String> {
        match self.call(name)? {
            (true, said) => Ok(said),
            (false, said) => Err(format!("{name} failed: {said}").into()),
        }
    }

    /// Starts the command `run`.
    fn run(&self) -> TestResult<Child> {
        let output = fs::File::create(self.file("said"))?;
        Ok(self.command("run").stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).spawn()?)
    }

    fn pid(&self, process: &str) -> TestResult<u32> {
        Ok(fs::read_to_string(self.file("pids").join(process))?.trim().parse()?)
    }

    fn pids(&self) -> TestResult<Vec<u32>> {
        PROCESSES.into_iter().map(|process| self.pid(process)).collect()
    }

    /// The output of a script in a user's shell that has sourced `env`.
    fn shell(&self, script: &str) -> TestResult<String> {
        let script = format!(". \"$1\" && {script}");
        let output = Command::new("sh").args(["-ec", &script, "sh"]).arg(self.file("env")).output()?;
        if output.status.success() {
            return Ok(String::from_utf8(output.stdout)?);
        }
        Err(format!("{script}: {}", String::from_utf8_lossy(&output.stderr)).into())
    }

    /// Whether no files of a devcluster are left.
    fn is_clean(&self) -> bool {
        ["env", "pids", "socket", "kubeconfig", "etcd", "pki"].iter().all(|name| !self.file(name).exists())
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        // A failed test may have left a devcluster behind.
        let _ = self.call("down");
    }
}

#[test]
fn a_set_goes_up_survives_its_manager_and_goes_down() -> TestResult {
    let set = TestDirectory::new()?;
    assert!(!set.call("manager")?.0, "there is no set yet");
    let said = set.succeed("up")?;
    assert!(said.contains("kubectl get machinedeployments"), "{said}");
    it_can_be_reached(&set)?;
    a_second_one_is_refused(&set)?;
    the_manager_can_be_killed_and_started_again(&set)?;
    the_cloud_comes_back_by_itself(&set)?;
    it_goes_down(&set)
}

fn it_can_be_reached(set: &TestDirectory) -> TestResult {
    assert_eq!(living(&set.pids()?).len(), PROCESSES.len());
    for process in PROCESSES.into_iter().filter(|process| *process != "daemon") {
        assert!(set.file("logs").join(format!("{process}.log")).is_file(), "{process} has a log");
    }
    let phases = "kubectl get machines -n $NODEWRIGHT_NAMESPACE -o jsonpath='{.items[*].status.currentStatus.phase}'";
    assert_eq!(set.shell(phases)?, "Running Running Running");
    assert!(set.shell("printf %s $NODEWRIGHT_CLOUD_URL")?.starts_with("http://127.0.0.1:"));
    assert!(set.shell("cat $NODEWRIGHT_AUDIT_LOG")?.contains("nodewright/"));
    Ok(())
}

fn a_second_one_is_refused(set: &TestDirectory) -> TestResult {
    let said = set.succeed("up")?;
    assert!(said.contains("is up already"), "{said}");
    let (succeeded, said) = set.call("run")?;
    assert!(!succeeded && said.contains("make down"), "{said}");
    Ok(())
}

fn the_manager_can_be_killed_and_started_again(set: &TestDirectory) -> TestResult {
    let (succeeded, said) = set.call("manager")?;
    assert!(!succeeded && said.contains("runs already"), "{said}");
    let others = |set: &TestDirectory| -> TestResult<Vec<u32>> {
        PROCESSES.into_iter().filter(|process| *process != "manager").map(|process| set.pid(process)).collect()
    };
    let (before, others_before) = (set.pid("manager")?, others(set)?);
    let driver = children(before)?;
    assert_eq!(living(&driver).len(), 1, "the manager has started a driver");
    signal("KILL", before)?;
    eventually("the end of the driver", || Ok(living(&driver).is_empty()))?;
    eventually("a set without a manager is reported", || Ok(!set.call("up")?.0))?;
    set.succeed("manager")?;
    assert_ne!(set.pid("manager")?, before);
    assert_eq!(others(set)?, others_before, "nothing else was touched");
    set.succeed("up")?;
    Ok(())
}

fn the_cloud_comes_back_by_itself(set: &TestDirectory) -> TestResult {
    let before = set.pid("cloud")?;
    signal("KILL", before)?;
    eventually("another cloud", || Ok(set.pid("cloud").is_ok_and(|pid| pid != before)))?;
    let nodes = "kubectl get nodes -o jsonpath='{.items[*].metadata.name}'";
    eventually("its nodes are still there", || Ok(set.shell(nodes)?.split_whitespace().count() == 3))
}

fn it_goes_down(set: &TestDirectory) -> TestResult {
    let pids = set.pids()?;
    set.succeed("down")?;
    assert_eq!(living(&pids), Vec::<u32>::new());
    assert!(set.is_clean());
    let said = set.succeed("down")?;
    assert!(said.contains("Nothing runs"), "{said}");
    Ok(())
}

#[test]
fn a_set_in_the_foreground_ends_on_interrupt_and_with_its_command() -> TestResult {
    let set = TestDirectory::new()?;
    let mut command = set.run()?;
    let pids = wait_for_machines(&set)?;
    let driver = children(set.pid("manager")?)?;
    signal("INT", command.id())?;
    let status = command.wait()?;
    assert!(status.success(), "{status}: {}", fs::read_to_string(set.file("said"))?);
    assert_eq!(living(&pids), Vec::<u32>::new());
    assert!(set.is_clean());
    eventually("the end of the driver", || Ok(living(&driver).is_empty()))?;

    let mut command = set.run()?;
    let pids = [wait_for_machines(&set)?, children(set.pid("manager")?)?].concat();
    command.kill()?;
    command.wait()?;
    eventually("the end of all processes", || Ok(living(&pids).is_empty()))?;
    // The remains of a killed devcluster do not block `down`.
    set.succeed("down")?;
    assert!(set.is_clean());
    Ok(())
}

/// Waits until the command has printed that the machines run. Returns the processes of the devcluster.
fn wait_for_machines(set: &TestDirectory) -> TestResult<Vec<u32>> {
    eventually("three machines", || Ok(fs::read_to_string(set.file("said"))?.contains("3 machines are Running")))?;
    set.pids()
}

/// The processes that a process has started.
fn children(pid: u32) -> TestResult<Vec<u32>> {
    let output = Command::new("ps").args(["-o", "pid=", "--ppid", &pid.to_string()]).output()?;
    Ok(String::from_utf8(output.stdout)?.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}

/// The processes that have not ended. Zombies count as ended.
fn living(pids: &[u32]) -> Vec<u32> {
    let is_living = |pid: &&u32| {
        let output = Command::new("ps").args(["-o", "stat=", "-p", &pid.to_string()]).output();
        let state = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
        !state.is_empty() && !state.starts_with('Z')
    };
    pids.iter().filter(is_living).copied().collect()
}

/// The path of a socket is limited to about a hundred bytes.
#[test]
fn a_long_path_is_no_obstacle() -> TestResult {
    let set = TestDirectory::new()?;
    let deep: &Path = &set.file(&"d".repeat(200));
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodewright-devcluster"));
    let output = command.arg("down").arg("--directory").arg(deep).output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
