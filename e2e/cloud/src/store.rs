//! The state file of the cloud: a journal with one JSON line per change, written before the answer is sent.
//!
//! # Guarantees
//! * Everything that was answered is in the file: killing the process loses nothing that a caller knows.
//! * A partial last line is ignored. Its call was not answered.
//! * The file is rewritten (under another name, then renamed) at each start, and when it is much larger than the
//!   memory.
//!
//! # Caveats
//! * The file is not flushed to disk: it survives the process, not a crash of the computer.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use super::memory::{Change, Memory};

/// The number of bytes of changes after which the file is rewritten, if it has also grown fourfold.
const COMPACT_AFTER_BYTES: u64 = 16 << 20;

/// Why the state file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file operation failed.
    #[error("failed to {action} the state file {path:?}: {source}; check the path, its permissions and the free space")]
    Io {
        /// The operation.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A line cannot be decoded.
    #[error(
        "failed to understand line {line} of the state file {path:?}: {source}; name another file or remove this one"
    )]
    Malformed {
        /// The number of the line, from 1.
        line: usize,
        /// The path.
        path: PathBuf,
        /// Why it cannot be decoded.
        source: serde_json::Error,
    },
}

/// The state file.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    file: File,
    fresh_bytes: u64,
    bytes: u64,
}

impl Store {
    /// Opens or creates the file. Returns the memory that it holds.
    pub fn open(path: &Path) -> Result<(Self, Memory), StoreError> {
        let memory = read(path)?;
        let (file, bytes) = write_again(path, &memory)?;
        Ok((Self { path: path.to_owned(), file, fresh_bytes: bytes, bytes }, memory))
    }

    /// Appends changes. `memory` is the memory after them.
    pub fn append(&mut self, changes: &[Change], memory: &Memory) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        let mut lines = Vec::new();
        for change in changes {
            serde_json::to_writer(&mut lines, change).map_err(|error| self.failed("write", error.into()))?;
            lines.push(b'\n');
        }
        self.file.write_all(&lines).map_err(|error| self.failed("write", error))?;
        self.bytes += lines.len() as u64;
        if self.bytes - self.fresh_bytes > COMPACT_AFTER_BYTES && self.bytes > 4 * self.fresh_bytes {
            (self.file, self.fresh_bytes) = write_again(&self.path, memory)?;
            self.bytes = self.fresh_bytes;
        }
        Ok(())
    }

    fn failed(&self, action: &'static str, source: io::Error) -> StoreError {
        StoreError::Io { action, path: self.path.clone(), source }
    }
}

fn read(path: &Path) -> Result<Memory, StoreError> {
    let failed = |action| move |source| StoreError::Io { action, path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Memory::default()),
        Err(error) => return Err(failed("open")(error)),
    };
    let mut memory = Memory::default();
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        reader.read_until(b'\n', &mut line).map_err(failed("read"))?;
        // A line without newline is partial: the process was killed while it wrote.
        if line.pop() != Some(b'\n') {
            break;
        }
        let change = serde_json::from_slice(&line).map_err(|source| StoreError::Malformed {
            line: number,
            path: path.to_owned(),
            source,
        })?;
        memory.apply(change);
    }
    Ok(memory)
}

/// Serializes like [`Change::Everything`], but borrows: the memory may be large.
#[derive(serde::Serialize)]
struct Everything<'a> {
    everything: &'a Memory,
}

/// Replaces the file by one with this memory only. Returns the open file and its size.
fn write_again(path: &Path, memory: &Memory) -> Result<(File, u64), StoreError> {
    let failed = |action| move |source| StoreError::Io { action, path: path.to_owned(), source };
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let beside = PathBuf::from(name);
    let mut file = BufWriter::new(File::create(&beside).map_err(failed("create"))?);
    serde_json::to_writer(&mut file, &Everything { everything: memory })
        .map_err(|error| failed("write")(error.into()))?;
    file.write_all(b"\n").and_then(|()| file.flush()).map_err(failed("write"))?;
    std::fs::rename(&beside, path).map_err(failed("replace"))?;
    let file = OpenOptions::new().append(true).open(path).map_err(failed("open"))?;
    let bytes = file.metadata().map_err(failed("read"))?.len();
    Ok((file, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Event, EventKind, Quota};
    use jiff::Timestamp;

    fn event(number: u64) -> Change {
        Change::Event(Box::new(Event {
            number,
            at: Timestamp::UNIX_EPOCH,
            kind: EventKind::FaultStruck,
            vm: None,
            name: None,
            token: None,
            live: 0,
            note: None,
        }))
    }

    #[test]
    fn what_was_appended_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let (mut store, mut memory) = Store::open(&path).unwrap();
        for change in [Change::Quota(Quota { vms: Some(7) }), event(1), event(2)] {
            memory.apply(change.clone());
            store.append(&[change], &memory).unwrap();
        }
        drop(store);
        let (_, read) = Store::open(&path).unwrap();
        assert_eq!(read, memory);
        let (_, again) = Store::open(&path).unwrap();
        assert_eq!(again, memory, "the compacted file says the same");
    }

    #[test]
    fn a_line_cut_short_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let (mut store, memory) = Store::open(&path).unwrap();
        store.append(&[event(1)], &memory).unwrap();
        store.file.write_all(b"{\"quota\":{\"vms\":").unwrap();
        let (_, read) = Store::open(&path).unwrap();
        assert_eq!((read.last_event, read.quota.vms), (1, None));
    }

    #[test]
    fn a_foreign_file_is_refused_and_left_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        std::fs::write(&path, "hello\n").unwrap();
        let error = Store::open(&path).unwrap_err().to_string();
        assert!(error.contains("line 1"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "hello\n");
    }
}
