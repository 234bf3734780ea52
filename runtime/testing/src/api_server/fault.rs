//! What goes wrong, by command.

use std::time::Duration;

use kube::core::Status;
use parking_lot::Mutex;

use super::{RequestRecord, refusal};

/// What becomes of a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is refused with this status code, and does nothing.
    Status(u16),
    /// It is refused with exactly this, and does nothing.
    Refuse(Box<Status>),
    /// The server cannot be reached; it does nothing.
    Unreachable,
    /// It takes effect, and the connection breaks before the answer.
    LoseAnswer,
    /// The connection breaks at once, and it takes effect after so long.
    CommitLate(Duration),
    /// It takes effect and is answered after so long.
    Delay(Duration),
    /// It takes effect at once and is answered after so long.
    AnswerLate(Duration),
    /// It takes effect, and is answered with this status code all the same, as by a server that gave up waiting.
    StatusAfter(u16),
    /// It does nothing and is never answered.
    Hang,
    /// It takes effect and is never answered.
    HangAfter,
    /// If it is a read that takes any version (`resourceVersion=0`, and watches without one), it is answered by a
    /// server that has seen no more than this version. All else goes on as without a fault.
    AsOf(u64),
}

impl Fault {
    /// A refusal of an eviction or of a request too many: "too many requests", with the time to wait if there is one.
    pub fn too_many_requests(message: &str, retry_after_seconds: u32) -> Self {
        Self::Refuse(Box::new(refusal::too_many_requests(message, retry_after_seconds).status))
    }
}

/// Which requests: those that fit everything that was said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    verb: Option<&'static str>,
    path: Option<String>,
    path_end: Option<String>,
    user_agent: Option<String>,
}

impl Match {
    /// Every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// Those of a verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`.
    pub fn verb(verb: &'static str) -> Self {
        Self { verb: Some(verb), ..Self::default() }
    }

    /// Those whose path (without query) contains this.
    #[must_use]
    pub fn path(self, part: impl Into<String>) -> Self {
        Self { path: Some(part.into()), ..self }
    }

    /// Those whose path (without query) ends with this.
    #[must_use]
    pub fn path_end(self, end: impl Into<String>) -> Self {
        Self { path_end: Some(end.into()), ..self }
    }

    /// Those whose `User-Agent` contains this.
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
    /// How many requests it still hits; none: all.
    left: Option<usize>,
}

/// Says what becomes of a request, if it is not to be answered as usual.
type Decide = Box<dyn FnMut(&RequestRecord) -> Option<Fault> + Send>;

/// The faults in force; the oldest that fits is taken.
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
