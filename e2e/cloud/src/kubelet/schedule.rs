//! When a kubelet does what: a pure machine that is told the time.
//!
//! It has three beats, as the real one: it registers its Node once, renews its Lease at a short interval, and posts
//! its Node's status at a long one, and when the status changes or somebody else changed what it says: at once, but no
//! more than once a second.

use std::time::Duration;

use jiff::Timestamp;

use super::{KubeletSpec, Settings};

/// Between two posts of news. Two kubelets of one Node contradict each other, and each has news at once.
const BETWEEN_POSTS: Duration = Duration::from_secs(1);

/// The status that a Node's Ready condition has or should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    True,
    False,
    /// What the node lifecycle controller writes when the kubelet is silent.
    Unknown,
}

impl Ready {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// What stands in the Node, as far as the kubelet cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeSeen {
    pub uid: String,
    /// The resource version as a number; 0 if it is none.
    pub version: u64,
    pub ready: Option<(Ready, Timestamp)>,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beat {
    Register,
    Status,
    Lease,
}

/// The state of one kubelet.
#[derive(Debug)]
pub(super) struct Heart {
    settings: Settings,
    /// The Node as last seen or written; none before registration and after the Node was deleted.
    node: Option<NodeSeen>,
    /// When to register; never, if the Node was deleted and the kubelet is not to register again.
    register_at: Option<Timestamp>,
    /// When the status was posted last.
    posted_at: Option<Timestamp>,
    status_at: Timestamp,
    lease_at: Timestamp,
    /// Before this time nothing is tried again after a failure.
    retry_at: Option<Timestamp>,
    failures: u32,
    random: fastrand::Rng,
}

impl Heart {
    pub(super) fn new(settings: Settings, now: Timestamp, seed: u64) -> Self {
        Self {
            settings,
            node: None,
            register_at: Some(now),
            posted_at: None,
            status_at: now,
            lease_at: now,
            retry_at: None,
            failures: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// The Node that the kubelet registered.
    pub(super) fn node(&self) -> Option<&NodeSeen> {
        self.node.as_ref()
    }

    /// The next beat, and when it is due.
    pub(super) fn next(&self, spec: &KubeletSpec, now: Timestamp) -> Option<(Timestamp, Beat)> {
        let (at, beat) = match &self.node {
            None => (self.register_at?, Beat::Register),
            Some(node) => self.next_of(node, spec, now)?,
        };
        Some((self.retry_at.map_or(at, |retry_at| retry_at.max(at)), beat))
    }

    /// The next beat of a registered kubelet. Without heartbeats it only posts what is news.
    fn next_of(&self, node: &NodeSeen, spec: &KubeletSpec, now: Timestamp) -> Option<(Timestamp, Beat)> {
        let is_known = node.ready.is_some_and(|(ready, _)| ready == self.wanted(spec, now));
        let soonest = self.posted_at.map_or(now, |posted| now.max(posted + BETWEEN_POSTS));
        let news = if is_known { self.next_flip(spec, now) } else { Some(soonest) };
        if !self.settings.heartbeats {
            return news.map(|at| (at, Beat::Status));
        }
        let status_at = news.map_or(self.status_at, |at| at.min(self.status_at));
        Some(if status_at <= self.lease_at { (status_at, Beat::Status) } else { (self.lease_at, Beat::Lease) })
    }

    /// What the kubelet reports now.
    pub(super) fn wanted(&self, spec: &KubeletSpec, now: Timestamp) -> Ready {
        if spec.not_ready || now < self.first_ready(spec) {
            return Ready::False;
        }
        match flaps(spec, now) {
            Some(turn) if turn % 2 == 0 => Ready::False,
            _ => Ready::True,
        }
    }

    fn first_ready(&self, spec: &KubeletSpec) -> Timestamp {
        spec.running_since + self.settings.ready_after
    }

    /// When the report changes by itself.
    fn next_flip(&self, spec: &KubeletSpec, now: Timestamp) -> Option<Timestamp> {
        let first_ready = self.first_ready(spec);
        if now < first_ready {
            return Some(first_ready);
        }
        let turns = u32::try_from(flaps(spec, now)? + 1).ok()?;
        Some(spec.mood_since + spec.flap?.checked_mul(turns)?)
    }

    /// Since when the Ready condition has the status that is about to be posted.
    pub(super) fn transition(&self, ready: Ready, now: Timestamp) -> Timestamp {
        match self.node.as_ref().and_then(|node| node.ready) {
            Some((before, since)) if before == ready => since,
            _ => now,
        }
    }

    /// The Node was read or written by the kubelet.
    pub(super) fn registered(&mut self, node: NodeSeen, now: Timestamp) {
        self.node = Some(node);
        self.register_at = None;
        self.lease_at = now;
        self.status_at = now;
        self.succeeded();
    }

    /// The status was posted; the answer shows the Node as it is now.
    pub(super) fn posted(&mut self, node: NodeSeen, now: Timestamp) {
        self.node = Some(node);
        self.posted_at = Some(now);
        self.status_at = now + self.stray(self.settings.status_period);
        self.succeeded();
    }

    /// The Lease was renewed.
    pub(super) fn renewed(&mut self, now: Timestamp) {
        self.lease_at = now + self.stray(self.settings.lease_period);
        self.succeeded();
    }

    /// The Node was seen in the watch. What is older than the kubelet's own writes is nothing new.
    pub(super) fn seen(&mut self, seen: &NodeSeen) {
        if let Some(node) = &mut self.node
            && node.uid == seen.uid
            && node.version < seen.version
        {
            *node = seen.clone();
        }
    }

    /// The Node with this UID is gone.
    pub(super) fn node_gone(&mut self, uid: &str, now: Timestamp) {
        if self.node.as_ref().is_some_and(|node| node.uid == uid) {
            self.node = None;
            self.register_at = self.settings.register_again_after.map(|after| now + after);
        }
    }

    /// A request failed: a pause, longer each time, up to ten seconds.
    pub(super) fn failed(&mut self, now: Timestamp) {
        let pause = Duration::from_millis(500) * 2_u32.saturating_pow(self.failures.min(5));
        self.failures += 1;
        self.retry_at = Some(now + self.stray(pause.min(Duration::from_secs(10))));
    }

    fn succeeded(&mut self) {
        self.failures = 0;
        self.retry_at = None;
    }

    /// The kubelet speaks again after a silence: it posts and renews at once.
    pub(super) fn wake(&mut self, now: Timestamp) {
        self.status_at = now;
        self.lease_at = now;
        self.succeeded();
    }

    fn stray(&mut self, period: Duration) -> Duration {
        period.mul_f64((1.0 + self.settings.jitter * (2.0 * self.random.f64() - 1.0)).max(0.0))
    }
}

/// How many whole turns of flapping have passed; none if it does not flap.
fn flaps(spec: &KubeletSpec, now: Timestamp) -> Option<u128> {
    let turn = spec.flap.filter(|turn| !turn.is_zero())?;
    let passed = Duration::try_from(spec.mood_since.duration_until(now)).unwrap_or_default();
    Some(passed.as_nanos() / turn.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn settings() -> Settings {
        Settings { jitter: 0.0, ..Settings::default() }
    }

    fn spec() -> KubeletSpec {
        KubeletSpec { running_since: at(0), mood_since: at(0), ..KubeletSpec::default() }
    }

    fn node(version: u64, ready: Ready, since: i64) -> NodeSeen {
        NodeSeen { uid: "u1".into(), version, ready: Some((ready, at(since))) }
    }

    #[test]
    fn a_kubelet_registers_turns_ready_and_beats() {
        let (mut heart, spec) = (Heart::new(settings(), at(0), 1), spec());
        assert_eq!(heart.next(&spec, at(0)), Some((at(0), Beat::Register)));
        heart.registered(node(1, Ready::False, 0), at(0));
        assert_eq!(heart.next(&spec, at(0)), Some((at(0), Beat::Status)));
        heart.posted(node(2, Ready::False, 0), at(0));
        assert_eq!(heart.next(&spec, at(0)), Some((at(0), Beat::Lease)));
        heart.renewed(at(0));
        assert_eq!(heart.next(&spec, at(0)), Some((at(1), Beat::Status)), "ready after a second");
        assert_eq!(heart.wanted(&spec, at(1)), Ready::True);
        heart.posted(node(3, Ready::True, 1), at(1));
        assert_eq!(heart.next(&spec, at(1)), Some((at(10), Beat::Lease)));
        for second in (10..300).step_by(10) {
            assert_eq!(heart.next(&spec, at(second)), Some((at(second), Beat::Lease)));
            heart.renewed(at(second));
        }
        heart.renewed(at(300));
        assert_eq!(heart.next(&spec, at(300)), Some((at(301), Beat::Status)), "five minutes after the last");
    }

    #[test]
    fn without_heartbeats_only_news_are_posted() {
        let (mut heart, spec) = (Heart::new(Settings { heartbeats: false, ..settings() }, at(0), 1), spec());
        assert_eq!(heart.next(&spec, at(0)), Some((at(0), Beat::Register)));
        heart.registered(node(1, Ready::False, 0), at(0));
        assert_eq!(heart.next(&spec, at(0)), Some((at(1), Beat::Status)), "ready after a second");
        heart.posted(node(2, Ready::True, 1), at(1));
        assert_eq!(heart.next(&spec, at(1)), None);
        heart.seen(&node(3, Ready::Unknown, 60));
        assert_eq!(heart.next(&spec, at(60)), Some((at(60), Beat::Status)));
    }

    #[test]
    fn what_others_wrote_is_answered_at_once_and_own_echoes_are_not() {
        let (mut heart, spec) = (Heart::new(settings(), at(0), 1), spec());
        heart.registered(node(5, Ready::True, 1), at(10));
        heart.posted(node(6, Ready::True, 1), at(10));
        heart.renewed(at(10));
        heart.seen(&node(4, Ready::False, 0));
        assert_eq!(heart.next(&spec, at(11)), Some((at(20), Beat::Lease)));
        heart.seen(&node(7, Ready::Unknown, 11));
        assert_eq!(heart.next(&spec, at(12)), Some((at(12), Beat::Status)));
        assert_eq!(heart.transition(Ready::True, at(12)), at(12));
    }

    #[test]
    fn two_that_contradict_each_other_do_so_once_a_second() {
        let (mut heart, spec) = (Heart::new(Settings { heartbeats: false, ..settings() }, at(0), 1), spec());
        heart.registered(node(5, Ready::True, 1), at(10));
        heart.posted(node(6, Ready::True, 1), at(10));
        heart.seen(&node(7, Ready::False, 10));
        assert_eq!(heart.next(&spec, at(10)), Some((at(11), Beat::Status)));
        heart.posted(node(8, Ready::True, 11), at(11));
        heart.seen(&node(9, Ready::False, 11));
        assert_eq!(heart.next(&spec, at(11)), Some((at(12), Beat::Status)));
    }

    #[test]
    fn a_deleted_node_is_registered_again_or_not() {
        for (after, next) in [(Some(Duration::from_secs(5)), Some((at(25), Beat::Register))), (None, None)] {
            let settings = Settings { register_again_after: after, ..settings() };
            let mut heart = Heart::new(settings, at(0), 1);
            heart.registered(node(5, Ready::True, 1), at(10));
            heart.node_gone("another", at(20));
            assert!(heart.node().is_some());
            heart.node_gone("u1", at(20));
            assert_eq!(heart.next(&spec(), at(20)), next);
        }
    }

    #[test]
    fn flapping_turns_at_every_boundary() {
        let mut heart = Heart::new(settings(), at(0), 1);
        let spec = KubeletSpec { flap: Some(Duration::from_secs(3)), mood_since: at(100), ..spec() };
        heart.registered(node(5, Ready::True, 1), at(100));
        heart.posted(node(5, Ready::False, 100), at(100));
        heart.renewed(at(100));
        assert_eq!(heart.wanted(&spec, at(100)), Ready::False);
        assert_eq!(heart.next(&spec, at(101)), Some((at(103), Beat::Status)));
        assert_eq!(heart.wanted(&spec, at(103)), Ready::True);
        heart.posted(node(6, Ready::True, 103), at(103));
        assert_eq!(heart.next(&spec, at(103)), Some((at(106), Beat::Status)));
        assert_eq!(heart.wanted(&spec, at(106)), Ready::False);
    }

    #[test]
    fn failures_pause_longer_and_longer() {
        let mut heart = Heart::new(settings(), at(0), 1);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            heart.failed(at(0));
            let (next, _) = heart.next(&spec(), at(0)).unwrap();
            pauses.push(at(0).duration_until(next).as_millis());
        }
        assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000]);
    }
}
