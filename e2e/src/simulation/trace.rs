//! What happened in a run, line by line.

use std::{
    collections::VecDeque,
    fmt,
    hash::{DefaultHasher, Hasher},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// How many lines are kept to be shown.
const KEPT: usize = 400;

/// The lines of a run. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(super) struct Trace(Arc<Mutex<Lines>>);

struct Lines {
    begun: Instant,
    count: u64,
    digest: DefaultHasher,
    /// The last ones, or all of them.
    last: VecDeque<String>,
    keeps_all: bool,
}

impl Trace {
    /// An empty one that begins now; one that keeps all lines is for people and for comparisons.
    pub(super) fn new(keeps_all: bool) -> Self {
        // Without keys: the digest is the same in each process.
        let digest = DefaultHasher::new();
        Self(Arc::new(Mutex::new(Lines { begun: Instant::now(), count: 0, digest, last: VecDeque::new(), keeps_all })))
    }

    /// Adds a line, under the time.
    pub(super) fn line(&self, what: fmt::Arguments<'_>) {
        let mut lines = self.0.lock();
        let line = format!("{:>9.3} {what}", lines.begun.elapsed().as_secs_f64());
        lines.digest.write(line.as_bytes());
        lines.count += 1;
        if !lines.keeps_all && lines.last.len() >= KEPT {
            lines.last.pop_front();
        }
        lines.last.push_back(line);
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
