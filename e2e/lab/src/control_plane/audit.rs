//! Reads the audit log of an API server while it grows, and counts requests.
//!
//! # Guarantees
//!
//! * Each request is returned once: when it was answered; a watch when its answer begins.
//! * A partial line at the end of the log is left for the next read.
//! * A rotated log is an error: requests would be missing.
//!
//! # Caveats
//!
//! * A read right after an answer may miss its line; [`AuditLog::read_until`] waits for expected requests.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
    ops::Range,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde::Deserialize;

/// Bytes of the log that are read at once.
const BUFFER: usize = 1 << 20;
/// Time between two reads of a growing log.
const INTERVAL: Duration = Duration::from_millis(50);

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The `User-Agent` of the client.
    pub user_agent: String,
    /// The authenticated user.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`; server-side apply is `patch`. For
    /// paths such as `/readyz`, the HTTP method in lower case.
    pub verb: String,
    /// The plural name of the resource. Empty for paths such as `/readyz`.
    pub resource: String,
    /// Such as `status`. Empty for the object itself.
    pub subresource: String,
    /// The namespace. Empty for cluster-scoped resources.
    pub namespace: String,
    /// The name of the object. Empty for lists, and for creations with `generateName`.
    pub name: String,
    /// The HTTP status code of the answer.
    pub code: u16,
    /// Path and query.
    pub uri: String,
    /// When the API server received the request.
    pub received: jiff::Timestamp,
    /// When it answered; of a watch, when it began to.
    pub answered: jiff::Timestamp,
    /// Where in the log the request comes and where it is answered, in bytes. Only of evictions the log has both.
    pub lines: Option<Range<u64>>,
    /// The body of a write, if the level of the log is [`AuditLevel::Request`](super::AuditLevel::Request). Else null.
    pub body: serde_json::Value,
}

/// The highest number of requests that were waiting for their answers at one moment, by the order of the log's lines: a clock
/// that is set does not matter. None if the log does not have the arrival of each request.
///
/// The API server writes the line of an arrival before it handles the request, and that of an answer before it sends it. So a
/// client that waits for an answer before it sends the next request never has two at once.
pub fn most_at_once<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Option<usize> {
    let mut changes = vec![];
    for entry in entries {
        let Range { start, end } = entry.lines.clone()?;
        changes.extend([(start, true), (end, false)]);
    }
    changes.sort_unstable();
    let (mut waiting, mut most) = (0_usize, 0);
    for (_, begins) in changes {
        waiting = if begins { waiting + 1 } else { waiting.saturating_sub(1) };
        most = most.max(waiting);
    }
    Some(most)
}

impl Entry {
    /// Whether the request changes something if it succeeds.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch" | "head" | "options")
    }
}

/// A line of the log, without the fields that are not used here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    #[serde(rename = "auditID", borrow)]
    id: Cow<'a, str>,
    stage: String,
    verb: String,
    #[serde(rename = "requestURI")]
    uri: String,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    user: User,
    #[serde(default)]
    object_ref: ObjectReference,
    #[serde(default)]
    response_status: ResponseStatus,
    #[serde(default)]
    request_object: serde_json::Value,
    request_received_timestamp: jiff::Timestamp,
    stage_timestamp: jiff::Timestamp,
}

#[derive(Default, Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
struct ObjectReference {
    #[serde(default)]
    resource: String,
    #[serde(default)]
    subresource: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
}

#[derive(Default, Deserialize)]
struct ResponseStatus {
    #[serde(default)]
    code: u16,
}

impl Line<'_> {
    /// Whether this line counts as the answer: of a watch, the line of its start, because its end may be far away; of other
    /// requests, the line of their completion or of a panic of their handler.
    fn is_answer(&self) -> bool {
        match self.stage.as_str() {
            "ResponseStarted" => self.verb == "watch",
            "ResponseComplete" => self.verb != "watch",
            stage => stage == "Panic",
        }
    }

    fn into_entry(self, lines: Option<Range<u64>>) -> Entry {
        Entry {
            user_agent: self.user_agent,
            user: self.user.username,
            verb: self.verb,
            resource: self.object_ref.resource,
            subresource: self.object_ref.subresource,
            namespace: self.object_ref.namespace,
            name: self.object_ref.name,
            code: self.response_status.code,
            uri: self.uri,
            received: self.request_received_timestamp,
            answered: self.stage_timestamp,
            lines,
            body: self.request_object,
        }
    }
}

/// A reader of an audit log. Each read continues where the last one ended.
#[derive(Clone, Debug)]
pub struct AuditLog {
    path: PathBuf,
    offset: u64,
    /// Where requests came that are not answered yet, by their IDs.
    arrived: HashMap<Box<str>, u64>,
}

impl AuditLog {
    /// Starts at the beginning of the log. The file need not exist yet.
    pub fn from_start(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), offset: 0, arrived: HashMap::new() }
    }

    /// Starts at the present end of the log: with the line that is being written, if there is one.
    pub fn from_now(path: impl Into<PathBuf>) -> io::Result<Self> {
        let mut log = Self::from_start(path);
        log.offset = match File::open(&log.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            result => end_of_lines(&mut result?)?,
        };
        Ok(log)
    }

    /// The path of the log.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The requests that were answered since the last read.
    pub fn read(&mut self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        self.each(|entry| entries.push(entry))?;
        Ok(entries)
    }

    /// Calls `visit` with each request that was answered since the last read. There may be millions of them.
    pub fn each(&mut self, mut visit: impl FnMut(Entry)) -> io::Result<()> {
        let mut arrived = std::mem::take(&mut self.arrived);
        let read = self.each_line(|offset, line| {
            if let Some(entry) = parse(&mut arrived, offset, line)? {
                visit(entry);
            }
            Ok(())
        });
        self.arrived = arrived;
        read
    }

    /// Calls `visit` with each line since the last read, and with its offset.
    pub fn each_line(&mut self, mut visit: impl FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            result => result?,
        };
        if file.metadata()?.len() < self.offset {
            return Err(io::Error::other("it is shorter than before, so requests are missing: was it rotated?"));
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let (mut file, mut line) = (BufReader::with_capacity(BUFFER, file), Vec::new());
        while file.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            visit(self.offset, &line)?;
            self.offset += line.len() as u64;
            line.clear();
        }
        Ok(())
    }

    /// Reads until the requests of this call satisfy `enough`, or until the timeout. Returns them in both cases.
    pub async fn read_until(&mut self, timeout: Duration, enough: impl Fn(&[Entry]) -> bool) -> io::Result<Vec<Entry>> {
        let since = Instant::now();
        let mut entries = self.read()?;
        while !enough(&entries) && since.elapsed() < timeout {
            tokio::time::sleep(INTERVAL).await;
            entries.extend(self.read()?);
        }
        Ok(entries)
    }
}

/// The request of the line at the offset, if the line is its answer.
fn parse(arrived: &mut HashMap<Box<str>, u64>, offset: u64, line: &[u8]) -> io::Result<Option<Entry>> {
    let line: Line<'_> = serde_json::from_slice(line)?;
    if line.stage == "RequestReceived" {
        arrived.insert(line.id.as_ref().into(), offset);
    }
    if !line.is_answer() {
        return Ok(None);
    }
    let lines = arrived.remove(line.id.as_ref()).map(|arrived| arrived..offset);
    Ok(Some(line.into_entry(lines)))
}

/// Where the last complete line of a file ends.
fn end_of_lines(file: &mut File) -> io::Result<u64> {
    let length = file.metadata()?.len();
    let mut tail = 0;
    let mut read = Vec::new();
    while tail < length {
        tail = (tail + BUFFER as u64).min(length);
        file.seek(SeekFrom::Start(length - tail))?;
        read.clear();
        file.take(tail).read_to_end(&mut read)?;
        if let Some(at) = read.iter().rposition(|byte| *byte == b'\n') {
            return Ok(length - tail + at as u64 + 1);
        }
    }
    Ok(0)
}

/// The properties by which requests are counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// As in [`Entry::resource`].
    pub resource: String,
    /// As in [`Entry::subresource`].
    pub subresource: String,
    /// As in [`Entry::verb`].
    pub verb: String,
    /// As in [`Entry::code`].
    pub code: u16,
}

impl From<&Entry> for Request {
    fn from(entry: &Entry) -> Self {
        Self {
            resource: entry.resource.clone(),
            subresource: entry.subresource.clone(),
            verb: entry.verb.clone(),
            code: entry.code,
        }
    }
}

/// Numbers of requests. Its `Display` is a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<Request, u64>);

impl Counts {
    /// Counts requests.
    pub fn of<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Self {
        entries.into_iter().collect()
    }

    /// Counts the requests of clients whose `User-Agent` begins with `user_agent`, such as `nodewright/`.
    pub fn by_agent<'a>(entries: impl IntoIterator<Item = &'a Entry>, user_agent: &str) -> Self {
        entries.into_iter().filter(|entry| entry.user_agent.starts_with(user_agent)).collect()
    }

    /// The number of requests that `select` selects.
    pub fn count(&self, select: impl Fn(&Request) -> bool) -> u64 {
        self.0.iter().filter(|(request, _)| select(request)).map(|(_, count)| count).sum()
    }

    /// The number of requests with this verb on this resource, without its subresources, that got this status code.
    pub fn exactly(&self, verb: &str, resource: &str, code: u16) -> u64 {
        self.count(|request| {
            request.verb == verb
                && request.resource == resource
                && request.subresource.is_empty()
                && request.code == code
        })
    }

    /// The number of all requests.
    pub fn total(&self) -> u64 {
        self.count(|_| true)
    }

    /// The numbers by resource, subresource, verb and code.
    pub fn iter(&self) -> impl Iterator<Item = (&Request, u64)> {
        self.0.iter().map(|(request, count)| (request, *count))
    }
}

impl<'a> FromIterator<&'a Entry> for Counts {
    fn from_iter<I: IntoIterator<Item = &'a Entry>>(entries: I) -> Self {
        let mut counts = Self::default();
        for entry in entries {
            *counts.0.entry(entry.into()).or_default() += 1;
        }
        counts
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<_> = self.iter().map(|(request, count)| (row_name(request), request, count)).collect();
        let width = rows.iter().map(|(name, ..)| name.len()).max().unwrap_or(0).max("RESOURCE".len());
        writeln!(formatter, "{:width$}  {:16}  {:>4}  {:>8}", "RESOURCE", "VERB", "CODE", "REQUESTS")?;
        for (name, request, count) in &rows {
            writeln!(formatter, "{name:width$}  {:16}  {:>4}  {count:>8}", request.verb, request.code)?;
        }
        writeln!(formatter, "{:width$}  {:16}  {:>4}  {:>8}", "total", "", "", self.total())
    }
}

fn row_name(request: &Request) -> String {
    match (request.resource.as_str(), request.subresource.as_str()) {
        ("", _) => "(no resource)".to_owned(),
        (resource, "") => resource.to_owned(),
        (resource, subresource) => format!("{resource}/{subresource}"),
    }
}

#[cfg(test)]
mod tests;
