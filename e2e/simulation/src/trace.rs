//! The trace of a run, line by line.

use std::{
    cell::RefCell,
    collections::VecDeque,
    fmt,
    hash::{DefaultHasher, Hasher},
    io,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// The number of lines that are kept to be printed.
const KEPT: usize = 400;

/// The filter for the managers' log: the lines that explain their actions.
const LOGGED: &str = "nodewright_runtime=debug,nodewright_controllers=debug";

thread_local! {
    /// The target for the log of this thread's managers.
    static LOG: RefCell<Option<Trace>> = const { RefCell::new(None) };
}

/// The detail of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The last lines.
    Brief,
    /// The last lines, with the managers' log, which gives the reason for each step.
    Explained,
    /// All lines, with the managers' log.
    Whole,
}

/// Runs `act`, and writes the log of this thread's managers into its trace if the detail includes the log.
pub(super) fn logged<T>(detail: Detail, act: impl FnOnce() -> T) -> T {
    if detail == Detail::Brief {
        return act();
    }
    let format = tracing_subscriber::fmt().with_ansi(false).with_level(false).with_target(false).without_time();
    let subscriber = format.with_env_filter(LOGGED).with_writer(|| Log).finish();
    let made = tracing::subscriber::with_default(subscriber, act);
    LOG.set(None);
    made
}

/// Writes log lines into this thread's trace. They do not count for its digest.
struct Log;

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow(|trace| {
            let Some(Trace(lines)) = trace else { return };
            let text = String::from_utf8_lossy(bytes);
            let mut lines = lines.lock();
            if lines.secrets.iter().any(|secret| text.contains(secret.as_str())) {
                lines.leaks += 1;
            }
            lines.keep(format!("{:>9} {}", "", text.trim_end()));
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn keep(&mut self, line: String) {
        if !self.keeps_all && self.last.len() >= KEPT {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }
}

/// The lines of a run. A clone shares the lines of the original.
#[derive(Clone)]
pub(super) struct Trace(Arc<Mutex<Lines>>);

struct Lines {
    begun: Instant,
    digest: DefaultHasher,
    /// The last lines, or all of them.
    last: VecDeque<String>,
    keeps_all: bool,
    /// Texts that must appear in no log line, and the number of lines that contain one.
    secrets: Vec<String>,
    leaks: u64,
}

impl Trace {
    /// An empty trace that begins now.
    pub(super) fn new(detail: Detail) -> Self {
        // Without random keys, so the digest is the same in each process.
        let (digest, keeps_all) = (DefaultHasher::new(), detail == Detail::Whole);
        let (begun, last, secrets) = (Instant::now(), VecDeque::new(), vec![]);
        let trace = Self(Arc::new(Mutex::new(Lines { begun, digest, last, keeps_all, secrets, leaks: 0 })));
        LOG.set((detail != Detail::Brief).then(|| trace.clone()));
        trace
    }

    /// Adds a line with the current time.
    pub(super) fn line(&self, what: fmt::Arguments<'_>) {
        let mut lines = self.0.lock();
        let line = format!("{:>9.3} {what}", lines.begun.elapsed().as_secs_f64());
        lines.digest.write(line.as_bytes());
        lines.keep(line);
    }

    /// Registers a text that must appear in no log line.
    pub(super) fn keep_secret(&self, text: &str) {
        self.0.lock().secrets.push(text.to_owned());
    }

    /// The number of log lines that contain a secret.
    pub(super) fn leaks(&self) -> u64 {
        self.0.lock().leaks
    }

    /// A digest of all lines.
    pub(super) fn digest(&self) -> u64 {
        self.0.lock().digest.finish()
    }

    /// The kept lines, oldest first.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().last).into()
    }
}
