//! A driver's program: started, watched over, and started again when it ends.

use std::{
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader},
    process::Command,
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::Level;

/// The longest line in the log, in bytes. One that is longer becomes several.
const LONGEST_LINE: u64 = 8 << 10;
/// How long the last lines of a driver that has ended may take.
const LAST_LINES: Duration = Duration::from_secs(1);

/// When a driver is started again. The pauses after its end: the first one, which doubles up to the longest one. After a run that was
/// longer than the longest pause it is the first one again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restarts {
    /// The first pause.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
    /// How long it may answer nothing before it is ended.
    pub silence: Duration,
}

impl Default for Restarts {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), longest: Duration::from_mins(1), silence: Duration::from_mins(2) }
    }
}

impl Restarts {
    /// The pause after a run of this length, when the one before it was `pause`.
    fn after(self, run: Duration, pause: Option<Duration>) -> Duration {
        let grown = pause.filter(|_| run <= self.longest).map(|pause| (2 * pause).min(self.longest));
        grown.unwrap_or(self.first)
    }
}

/// A driver's program and how it is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its path.
    pub path: PathBuf,
    /// What its environment has besides that of this process, unless that has it.
    pub environment: Vec<(&'static str, String)>,
    /// When it is started again.
    pub restarts: Restarts,
}

impl Program {
    /// The program at a path, in the environment of this process.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), environment: vec![], restarts: Restarts::default() }
    }
}

/// Starts the program, and keeps it running until the task ends. Returns its socket.
/// `answers` gets each answer of the driver.
pub(crate) fn start(program: Program, answers: Arc<Notify>) -> io::Result<(PathBuf, AbortOnDropHandle<()>)> {
    let private = PermissionsExt::from_mode(0o700);
    let folder = tempfile::Builder::new().prefix("nodewright-driver-").permissions(private).tempdir();
    let folder = folder.map_err(|error| {
        let text = format!("--driver needs a folder for temporary files, for its socket; TMPDIR names it: {error}");
        io::Error::new(error.kind(), text)
    })?;
    let socket = folder.path().join("driver.sock");
    let task = tokio::spawn({
        let socket = socket.clone();
        async move {
            let _folder = folder;
            keep_running(&program, &socket, &answers).await;
        }
    });
    Ok((socket, AbortOnDropHandle::new(task)))
}

async fn keep_running(program: &Program, socket: &Path, answers: &Notify) {
    let restarts = program.restarts;
    let mut pause = None;
    loop {
        let begun = Instant::now();
        let end = run(program, socket, silence(answers, restarts.silence)).await;
        let wait = restarts.after(begun.elapsed(), pause);
        tracing::error!(program = %program.path.display(), "the driver {end}; it is started again in {wait:?}");
        sleep(wait).await;
        pause = Some(wait);
    }
}

/// Ends once there was no answer for so long.
async fn silence(answers: &Notify, longest: Duration) {
    while timeout(longest, answers.notified()).await.is_ok() {}
}

/// Runs the program until it ends, or `hangs` does, and says how it ended. It ends with the future, and with this process, which
/// closes its standard input.
async fn run(program: &Program, socket: &Path, hangs: impl Future<Output = ()>) -> String {
    let Program { path, environment, .. } = program;
    let mut command = Command::new(path);
    command.envs(environment.iter().filter(|(name, _)| std::env::var_os(name).is_none()).cloned());
    command.arg(format!("--socket={}", socket.display())).arg("--stop-with-stdin");
    // A signal from the terminal is for this process, which may still need the driver to end well.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return format!("cannot be started: {error}"),
    };
    tracing::info!(program = %path.display(), pid = child.id(), "started the driver");
    let stdin = child.stdin.take();
    let log = [
        AbortOnDropHandle::new(tokio::spawn(relay(child.stdout.take()))),
        AbortOnDropHandle::new(tokio::spawn(relay(child.stderr.take()))),
    ];
    let (ended, silent) = tokio::select! {
        ended = child.wait() => (ended, ""),
        () = hangs => {
            // It may have ended just now.
            let _ended = child.start_kill();
            (child.wait().await, ", killed because it did not answer")
        }
    };
    drop(stdin);
    // What it has started may still write.
    let _last_lines = timeout(LAST_LINES, join_all(log)).await;
    ended.map_or_else(|error| format!("is lost: {error}"), |status| format!("has ended with {status}{silent}"))
}

/// Logs what the driver writes, line by line, whatever it is: a pipe that nobody reads would stop the driver.
async fn relay(output: Option<impl AsyncRead + Unpin + Send>) {
    let Some(output) = output else { return };
    let (mut output, mut line) = (BufReader::new(output), vec![]);
    while (&mut output).take(LONGEST_LINE).read_until(b'\n', &mut line).await.is_ok_and(|read| read > 0) {
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        match severity(text) {
            Level::ERROR => tracing::error!(target: "nodewright_driver", "{text}"),
            Level::WARN => tracing::warn!(target: "nodewright_driver", "{text}"),
            _ => tracing::info!(target: "nodewright_driver", "{text}"),
        }
        line.clear();
    }
}

/// The level that a line of a log begins with, after a time perhaps: a word, or the letter and the four digits of the date of klog. The
/// first line of a panic is an error.
fn severity(line: &str) -> Level {
    if line.starts_with("thread '") && line.contains(" panicked at ") {
        return Level::ERROR;
    }
    let is_klog = |word: &str| word.len() == 5 && word.bytes().skip(1).all(|byte| byte.is_ascii_digit());
    let level = |word: &str| match word {
        "ERROR" | "level=ERROR" | "error:" | "panic:" => Some(Level::ERROR),
        "WARN" | "level=WARN" | "warning:" => Some(Level::WARN),
        _ if is_klog(word) && word.starts_with(['E', 'F']) => Some(Level::ERROR),
        _ if is_klog(word) && word.starts_with('W') => Some(Level::WARN),
        _ => None,
    };
    line.split_whitespace().take(2).find_map(level).unwrap_or(Level::INFO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_their_level() {
        for (line, level) in [
            ("ERROR nodewright_driver_protocol: failed to serve the socket", Level::ERROR),
            ("2026-11-23T16:00:00Z  WARN a: b", Level::WARN),
            ("E1123 16:00:00.000000       1 server.go:7] failed", Level::ERROR),
            ("W1123 16:00:00.000000       1 server.go:7] odd", Level::WARN),
            ("I1123 16:00:00.000000       1 server.go:7] fine", Level::INFO),
            ("panic: runtime error", Level::ERROR),
            ("thread 'main' panicked at src/main.rs:2:5:", Level::ERROR),
            ("thread '<unnamed>' (17) panicked at src/main.rs:2:5:", Level::ERROR),
            ("nothing has panicked at all", Level::INFO),
            ("level=ERROR msg=\"failed\"", Level::ERROR),
            ("nothing of an ERROR", Level::INFO),
            ("", Level::INFO),
        ] {
            assert_eq!(severity(line), level, "{line}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_is_silent_once_it_has_not_answered_for_so_long() {
        let (answers, begun) = (Arc::new(Notify::new()), Instant::now());
        let talks = {
            let answers = answers.clone();
            async move {
                for _ in 0..10 {
                    sleep(Duration::from_secs(50)).await;
                    answers.notify_one();
                }
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = talks => {}
            () = silence(&answers, Duration::from_mins(1)) => {}
        }
        assert_eq!(begun.elapsed(), Duration::from_secs(10 * 50 + 60));
    }

    #[tokio::test]
    async fn a_driver_that_hangs_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("hangs");
        std::fs::write(&program, "#!/bin/sh\nkill -STOP $$\n").unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).unwrap();
        let end = run(&Program::at(&program), Path::new("/none"), sleep(Duration::from_millis(200))).await;
        assert!(end.contains("killed because it did not answer"), "{end}");
    }

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
