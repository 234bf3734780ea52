//! What happened in a run, line by line.

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

/// How many lines are kept to be shown.
const KEPT: usize = 400;

/// The log of the managers, as far as it says why they do what they do.
const LOGGED: &str = "nodewright_runtime=debug,nodewright_controllers=debug";

thread_local! {
    /// Where the log of the managers of this thread goes.
    static LOG: RefCell<Option<Trace>> = const { RefCell::new(None) };
}

/// How much of a run is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The last lines.
    Brief,
    /// The last lines, with what the managers log: why each step is taken.
    Explained,
    /// All lines, with that.
    Whole,
}

/// Lets the managers of this thread log into the trace that is made in `act`, if that is to have the log.
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

/// Writes lines of the log into this thread's trace. They do not count for its digest.
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

/// The lines of a run. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(super) struct Trace(Arc<Mutex<Lines>>);

struct Lines {
    begun: Instant,
    digest: DefaultHasher,
    /// The last ones, or all of them.
    last: VecDeque<String>,
    keeps_all: bool,
    /// What must stand in no line of the log, and in how many it stands.
    secrets: Vec<String>,
    leaks: u64,
}

impl Trace {
    /// An empty one that begins now.
    pub(super) fn new(detail: Detail) -> Self {
        // Without keys: the digest is the same in each process.
        let (digest, keeps_all) = (DefaultHasher::new(), detail == Detail::Whole);
        let (begun, last, secrets) = (Instant::now(), VecDeque::new(), vec![]);
        let trace = Self(Arc::new(Mutex::new(Lines { begun, digest, last, keeps_all, secrets, leaks: 0 })));
        LOG.set((detail != Detail::Brief).then(|| trace.clone()));
        trace
    }

    /// Adds a line, under the time.
    pub(super) fn line(&self, what: fmt::Arguments<'_>) {
        let mut lines = self.0.lock();
        let line = format!("{:>9.3} {what}", lines.begun.elapsed().as_secs_f64());
        lines.digest.write(line.as_bytes());
        lines.keep(line);
    }

    /// A text that must stand in no line of the log.
    pub(super) fn keep_secret(&self, text: &str) {
        self.0.lock().secrets.push(text.to_owned());
    }

    /// In how many lines of the log a secret stands.
    pub(super) fn leaks(&self) -> u64 {
        self.0.lock().leaks
    }

    /// A number that stands for all lines.
    pub(super) fn digest(&self) -> u64 {
        self.0.lock().digest.finish()
    }

    /// The lines that are kept, oldest first.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().last).into()
    }
}
