//! Sees to it that no process and no file outlives whoever started them, however that ends.
//!
//! # Guarantees
//!
//! * When the [`Supervisor`] is dropped, all processes started through it are killed and its paths are removed; both
//!   is done when `drop` returns.
//! * The same happens when this process ends in any other way: a panic that aborts, `kill -9`, a power cut of the
//!   parent's terminal. The watcher, a small shell, holds the read end of a pipe of which only this process has the
//!   write end; the kernel closes that when the process ends, and the watcher then does the work.
//! * A signal sent to the terminal's foreground group (Ctrl-C) reaches neither watcher nor processes: they have
//!   process groups of their own. So the owner decides what Ctrl-C means.
//!
//! # Assumptions
//!
//! * `sh`, `sleep` and `rm` are in the PATH.
//! * A process started through the supervisor does not leave its process group. Those of a control plane do not.
//!
//! # Caveats
//!
//! * `kill -9` of both this process and its watcher leaves everything behind.

use std::{
    fs::File,
    io,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use super::PlaneError;

/// Leads the process group of all processes. It does nothing, and ends when this process does. A group needs a leader
/// that lives as long as processes may join it, whichever of them are stopped and started in between.
const ANCHOR: &str = "trap '' HUP INT TERM; while read -r _; do :; done";

/// Waits for the end of this process, then kills the group `$1` and removes the paths that follow.
///
/// The kill is repeated until nobody is left (or, after two seconds, only what nobody reaps): a process that was just
/// being started when its parent was killed may join the group late.
const WATCHER: &str = r#"
trap '' HUP INT TERM
group=$1
shift
while read -r _; do :; done
tries=0
while kill -s KILL -- "-$group" 2>/dev/null && [ "$tries" -lt 100 ]; do
    tries=$((tries + 1))
    sleep 0.02
done
rm -rf -- "$@"
"#;

/// Owns a process group and some paths, and ends both with this process. See the [module](self).
#[derive(Debug)]
pub struct Supervisor {
    group: i32,
    // Dropped in this order. Reaping the anchor first lets the watcher find an empty group.
    _anchor: Shell,
    _watcher: Shell,
}

impl Supervisor {
    /// Starts watching. `paths` must be absolute; they need not exist yet, and should not: then nothing can be left
    /// behind by a kill between their creation and this call.
    ///
    /// `lock` is kept open, and with it locked, until all is cleaned up, even if this process is long gone by then.
    pub fn start(paths: &[PathBuf], lock: Option<&File>) -> Result<Self, PlaneError> {
        debug_assert!(paths.iter().all(|path| path.is_absolute()), "the watcher runs in /");
        let result = Self::start_shells(paths, lock);
        result.map_err(|source| PlaneError::Spawn { program: PathBuf::from("sh"), source })
    }

    fn start_shells(paths: &[PathBuf], lock: Option<&File>) -> io::Result<Self> {
        let anchor = Shell::start(&mut shell(ANCHOR))?;
        let mut watcher = shell(WATCHER);
        watcher.arg(anchor.0.id().to_string()).args(paths);
        if let Some(lock) = lock {
            // The lock lives as long as somebody has this open file, and the watcher has it as its standard output.
            watcher.stdout(lock.try_clone()?);
        }
        let watcher = Shell::start(&mut watcher)?;
        let group = i32::try_from(anchor.0.id()).map_err(io::Error::other)?;
        Ok(Self { group, _anchor: anchor, _watcher: watcher })
    }

    /// Starts a process that ends with this one. The command's process group is overwritten.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        command.process_group(self.group).spawn()
    }
}

/// A shell that ends when its standard input does. Dropping it closes that and waits for the end.
#[derive(Debug)]
struct Shell(Child);

impl Shell {
    fn start(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        if let Err(error) = self.0.wait() {
            tracing::warn!(%error, pid = self.0.id(), "failed to wait for a supervising shell");
        }
    }
}

/// A shell in a process group of its own, with a pipe as standard input.
fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "nodewright-supervisor"]);
    command.current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
