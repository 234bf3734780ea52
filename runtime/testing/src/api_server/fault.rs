//! Faults that tests inject.

use std::time::Duration;

use kube::core::Status;
use parking_lot::Mutex;

use super::{RequestRecord, refusal};

/// What happens to a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The server refuses the request with this status code. It has no effect.
    Status(u16),
    /// The server refuses the request with this Status. It has no effect.
    Refuse(Box<Status>),
    /// The server cannot be reached. The request has no effect.
    Unreachable,
    /// The request takes effect, and the connection breaks before the answer.
    LoseAnswer,
    /// The connection breaks at once, and the request takes effect after this time.
    CommitLate(Duration),
    /// The request takes effect and is answered after this time.
    Delay(Duration),
    /// The request takes effect at once and is answered after this time.
    AnswerLate(Duration),
    /// The request takes effect, but the answer has this status code, as from a server that gave up waiting.
    StatusAfter(u16),
    /// The request has no effect and is never answered.
    Hang,
    /// The request takes effect and is never answered.
    HangAfter,
    /// A read at any version (`resourceVersion=0`, and watches without a version) is answered by a server that has seen no more
    /// than this version. All other requests have no fault.
    AsOf(u64),
}

impl Fault {
    /// A refusal of an eviction or of too many requests: 429 Too Many Requests, with the time to wait if there is one.
    pub fn too_many_requests(message: &str, retry_after_seconds: u32) -> Self {
        Self::Refuse(Box::new(refusal::too_many_requests(message, retry_after_seconds).status))
    }
}

/// A matcher of requests. All of its conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    verb: Option<&'static str>,
    path: Option<String>,
    path_end: Option<String>,
    user_agent: Option<String>,
}

impl Match {
    /// Matches every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// Matches a verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`.
    pub fn verb(verb: &'static str) -> Self {
        Self { verb: Some(verb), ..Self::default() }
    }

    /// Restricts it to paths (without query) that contain `part`.
    #[must_use]
    pub fn path(self, part: impl Into<String>) -> Self {
        Self { path: Some(part.into()), ..self }
    }

    /// Restricts it to paths (without query) that end with `end`.
    #[must_use]
    pub fn path_end(self, end: impl Into<String>) -> Self {
        Self { path_end: Some(end.into()), ..self }
    }

    /// Restricts it to requests whose `User-Agent` contains `part`.
    #[must_use]
    pub fn user_agent(self, part: impl Into<String>) -> Self {
        Self { user_agent: Some(part.into()), ..self }
    }

    pub(super) fn fits(&self, verb: &str, path: &str, user_agent: &str) -> bool {
        self.verb.is_none_or(|wanted| wanted == verb)
            && self.path.as_ref().is_none_or(|part| path.contains(part.as_str()))
            && self.path_end.as_ref().is_none_or(|end| path.ends_with(end.as_str()))
            && self.user_agent.as_ref().is_none_or(|part| user_agent.contains(part.as_str()))
    }
}

#[derive(Debug)]
struct Rule {
    requests: Match,
    fault: Fault,
    /// The number of requests that still fail; `None`: all.
    left: Option<usize>,
}

/// Decides what happens to a request; `None`: it is answered as usual.
type Decide = Box<dyn FnMut(&RequestRecord) -> Option<Fault> + Send>;

/// The active faults. The oldest that matches applies.
#[derive(Default)]
pub(super) struct Faults {
    decide: Mutex<Option<Decide>>,
    rules: Mutex<Vec<Rule>>,
}

impl Faults {
    pub(super) fn set_decide(&self, decide: Option<Decide>) {
        *self.decide.lock() = decide;
    }

    pub(super) fn add(&self, requests: Match, fault: Fault, left: Option<usize>) {
        self.rules.lock().push(Rule { requests, fault, left });
    }

    pub(super) fn clear(&self) {
        self.rules.lock().clear();
    }

    pub(super) fn hit(&self, request: &RequestRecord) -> Option<Fault> {
        let decided = self.decide.lock().as_mut().and_then(|decide| decide(request));
        decided.or_else(|| self.hit_rule(request))
    }

    fn hit_rule(&self, request: &RequestRecord) -> Option<Fault> {
        let mut rules = self.rules.lock();
        let fits = |rule: &Rule| rule.requests.fits(request.verb, &request.path, &request.user_agent);
        let index = rules.iter().position(fits)?;
        let rule = &mut rules[index];
        let fault = rule.fault.clone();
        if let Some(left) = &mut rule.left {
            *left -= 1;
            if *left == 0 {
                rules.remove(index);
            }
        }
        Some(fault)
    }
}
