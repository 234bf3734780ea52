//! What is found about one object, and its ten lines.

use jiff::Timestamp;
use nodewright_runtime::clip::clip_to;
use serde::Serialize;

use crate::{
    output::{Colours, State, age, rounded, whole},
    snapshot::Snapshot,
};

/// How long the cause may be, in bytes: longer than what a status or an event has.
const LONGEST_CAUSE: usize = 2_000;
/// How much of it is in the first line.
const LONGEST_HEAD: usize = 600;
const LONGEST_LINE: usize = 300;
/// How many lines an explanation has at most.
const LINES: usize = 10;
const MOST_CHANGES: usize = 3;

/// A step on the way from the desired state to what is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Link {
    pub(crate) label: &'static str,
    pub(crate) text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<Timestamp>,
}

impl Link {
    pub(crate) fn new(label: &'static str, text: impl Into<String>) -> Self {
        Self { label, text: text.into(), since: None }
    }

    pub(crate) fn since(self, since: Option<Timestamp>) -> Self {
        Self { since: since.map(whole), ..self }
    }
}

/// What keeps an object from what it is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) state: State,
    /// The object that it is about, such as `machine/a`.
    pub(crate) subject: String,
    /// In a word: the reason of a condition, or a phase.
    pub(crate) reason: String,
    /// A sentence without its subject.
    pub(crate) cause: String,
    pub(crate) since: Option<Timestamp>,
    /// From the desired state to the subject.
    pub(crate) chain: Vec<Link>,
    /// Fields, flags and commands that end the wait or change it.
    pub(crate) changes: Vec<String>,
    /// What else there is to say.
    pub(crate) also: Option<String>,
}

impl Finding {
    fn new(state: State, subject: String, reason: &str, cause: impl Into<String>) -> Self {
        let cause = clip_to(LONGEST_CAUSE, rounded(&cause.into().replace('\n', " ")));
        Self { state, subject, reason: reason.to_owned(), cause, ..Self::default() }
    }

    pub(crate) fn done(subject: String, cause: impl Into<String>) -> Self {
        Self::new(State::Done, subject, "", cause)
    }

    pub(crate) fn waiting(subject: String, reason: &str, cause: impl Into<String>) -> Self {
        Self::new(State::Waiting, subject, reason, cause)
    }

    pub(crate) fn blocked(subject: String, reason: &str, cause: impl Into<String>) -> Self {
        Self::new(State::Blocked, subject, reason, cause)
    }

    pub(crate) fn since(self, since: Option<Timestamp>) -> Self {
        Self { since: since.map(whole).or(self.since), ..self }
    }

    pub(crate) fn link(mut self, link: Link) -> Self {
        self.chain.push(link);
        self
    }

    /// Puts links before those that there are.
    pub(crate) fn below(mut self, links: impl IntoIterator<Item = Link>) -> Self {
        let mut chain: Vec<_> = links.into_iter().collect();
        chain.append(&mut self.chain);
        Self { chain, ..self }
    }

    pub(crate) fn changed_by(mut self, change: impl Into<String>) -> Self {
        self.changes.push(change.into());
        self
    }

    pub(crate) fn changed_by_all(mut self, changes: impl IntoIterator<Item = String>) -> Self {
        self.changes.extend(changes);
        self
    }

    pub(crate) fn also(self, also: Option<String>) -> Self {
        Self { also: also.or(self.also), ..self }
    }
}

/// What is printed of a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Explanation {
    pub(crate) object: String,
    pub(crate) state: State,
    /// The object that is waited for, which may be the same.
    pub(crate) subject: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    pub(crate) cause: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<Timestamp>,
    pub(crate) chain: Vec<Link>,
    pub(crate) changes: Vec<String>,
    pub(crate) notes: Vec<String>,
    #[serde(skip)]
    now: Timestamp,
}

impl Explanation {
    pub(super) fn of(object: String, finding: Finding, snapshot: &Snapshot) -> Self {
        let Finding { state, subject, reason, cause, since, chain, changes, also } = finding;
        let notes = also.into_iter().collect();
        Self { object, state, subject, reason, cause, since, chain, changes, notes, now: snapshot.now }
    }

    /// Something keeps the manager from it, so that what the object says may be old.
    pub(super) fn overrule(&mut self, by: Finding) {
        let said = if self.cause.is_empty() { String::new() } else { format!("{}: {}", self.subject, self.cause) };
        self.chain.push(Link::new("reported", said).since(self.since));
        (self.state, self.subject, self.reason) = (by.state, by.subject, by.reason);
        (self.cause, self.since, self.changes) = (by.cause, by.since, by.changes);
    }

    /// Nothing is to be done, and changes would be refused.
    pub(super) fn refused(&mut self, by: Finding) {
        self.chain.insert(0, Link::new("reported", std::mem::take(&mut self.cause)));
        (self.state, self.subject, self.reason) = (by.state, by.subject, by.reason);
        (self.cause, self.since, self.changes) = (by.cause, by.since, by.changes);
    }

    /// At most ten lines; the first one has the cause.
    pub(crate) fn text(&self, colours: Colours) -> String {
        let is_own = self.subject == self.object || self.subject.is_empty();
        let verb = match self.state {
            State::Done => "",
            State::Waiting if is_own => " waits",
            State::Waiting => " waits for ",
            State::Blocked if is_own => " is blocked",
            State::Blocked => " is blocked by ",
        };
        let subject = if is_own || self.state == State::Done { "" } else { &self.subject };
        let head = format!("{}{}{subject}", colours.bold(&self.object), colours.of(self.state, verb));
        let mut lines = vec![format!("{head}: {}", clip_to(LONGEST_HEAD, self.cause.as_str()))];
        lines.extend(self.details().into_iter().map(|(label, text)| {
            let label = colours.dim(&format!("{label:<8}"));
            format!("  {label} {}", clip_to(LONGEST_LINE, text))
        }));
        lines.truncate(LINES);
        lines.join("\n") + "\n"
    }

    /// The lines below the first. What changes a wait is never left out for notes.
    fn details(&self) -> Vec<(&'static str, String)> {
        let with_age = |text: &str, since: Option<Timestamp>| match since {
            Some(since) => format!("{text} (since {since:.0}, {})", age(since, self.now)),
            None => text.to_owned(),
        };
        let mut lines: Vec<_> = self.chain.iter().map(|link| (link.label, with_age(&link.text, link.since))).collect();
        if self.state != State::Done {
            let reason = if self.reason.is_empty() { "waiting" } else { &self.reason };
            let shown = self.chain.iter().any(|link| link.since.is_some() && link.since == self.since);
            if self.since.is_some() && !shown {
                lines.push(("wait", with_age(reason, self.since)));
            }
        }
        lines.truncate(LINES - 1 - MOST_CHANGES.min(self.changes.len()));
        lines.extend(self.changes.iter().take(MOST_CHANGES).map(|change| ("change", change.clone())));
        lines.extend(self.notes.iter().map(|note| ("note", note.clone())));
        lines
    }
}
