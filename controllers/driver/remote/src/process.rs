//! A driver's program: started, watched over, and started again when it ends.

use std::{
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use futures::future::join_all;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader},
    process::Command,
    time::{Instant, sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

/// The longest line in the log, in bytes. One that is longer becomes several.
const LONGEST_LINE: u64 = 8 << 10;
/// How long the last lines of a driver that has ended may take.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The pauses before a driver that has ended is started again: the first one, which doubles up to the longest one. After a run
/// that was longer than the longest pause it is the first one again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restarts {
    /// The first pause.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
}

impl Default for Restarts {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), longest: Duration::from_mins(1) }
    }
}

impl Restarts {
    /// The pause after a run of this length, when the one before it was `pause`.
    fn after(self, run: Duration, pause: Option<Duration>) -> Duration {
        let grown = pause.filter(|_| run <= self.longest).map(|pause| (2 * pause).min(self.longest));
        grown.unwrap_or(self.first)
    }
}

/// Starts the program, and keeps it running until the task ends. Returns its socket.
pub(crate) fn start(program: PathBuf, restarts: Restarts) -> io::Result<(PathBuf, AbortOnDropHandle<()>)> {
    let private = PermissionsExt::from_mode(0o700);
    let folder = tempfile::Builder::new().prefix("nodewright-driver-").permissions(private).tempdir()?;
    let socket = folder.path().join("driver.sock");
    let task = tokio::spawn({
        let socket = socket.clone();
        async move {
            let _folder = folder;
            keep_running(&program, &socket, restarts).await;
        }
    });
    Ok((socket, AbortOnDropHandle::new(task)))
}

async fn keep_running(program: &Path, socket: &Path, restarts: Restarts) {
    let mut pause = None;
    loop {
        let begun = Instant::now();
        let end = run(program, socket).await;
        let wait = restarts.after(begun.elapsed(), pause);
        tracing::error!(program = %program.display(), "the driver {end}; it is started again in {wait:?}");
        sleep(wait).await;
        pause = Some(wait);
    }
}

/// Runs the program until it ends, and says how it ended. It ends with the future, and with this process, which closes its
/// standard input.
async fn run(program: &Path, socket: &Path) -> String {
    let mut command = Command::new(program);
    command.arg(format!("--socket={}", socket.display())).arg("--stop-with-stdin");
    // A signal from the terminal is for this process, which may still need the driver to end well.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return format!("cannot be started: {error}"),
    };
    tracing::info!(program = %program.display(), pid = child.id(), "started the driver");
    let stdin = child.stdin.take();
    let log = [
        AbortOnDropHandle::new(tokio::spawn(relay(child.stdout.take()))),
        AbortOnDropHandle::new(tokio::spawn(relay(child.stderr.take()))),
    ];
    let ended = child.wait().await;
    drop(stdin);
    // What it has started may still write.
    let _last_lines = timeout(LAST_LINES, join_all(log)).await;
    ended.map_or_else(|error| format!("is lost: {error}"), |status| format!("has ended with {status}"))
}

/// Logs what the driver writes, line by line, whatever it is: a pipe that nobody reads would stop the driver.
async fn relay(output: Option<impl AsyncRead + Unpin + Send>) {
    let Some(output) = output else { return };
    let (mut output, mut line) = (BufReader::new(output), vec![]);
    while (&mut output).take(LONGEST_LINE).read_until(b'\n', &mut line).await.is_ok_and(|read| read > 0) {
        tracing::info!(target: "nodewright_driver", "{}", String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pauses_double_until_a_run_has_lasted() {
        let (seconds, restarts) = (Duration::from_secs, Restarts::default());
        let mut pause = None;
        let pauses: Vec<_> = (0..9)
            .map(|_| {
                pause = Some(restarts.after(seconds(1), pause));
                pause.map_or(0, |pause| pause.as_secs())
            })
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(restarts.after(seconds(61), pause), seconds(1));
    }
}
