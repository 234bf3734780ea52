//! The actions of a kubelet and their times: a state machine without clock.
//!
//! A kubelet has three actions: it registers its Node once, renews its Lease in a short interval, and posts the status
//! of its Node in a long one. It also posts when the status changes or when another client changed it: at once, but at
//! most once a second.

use std::time::Duration;

use jiff::Timestamp;

use super::{KubeletSpec, Settings};

/// The minimum time between two posts of changes. Two kubelets of one Node contradict each other all the time.
const MIN_POST_INTERVAL: Duration = Duration::from_secs(1);

/// The status of the Ready condition of a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    True,
    False,
    /// Written by the node lifecycle controller when the kubelet is silent.
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

/// The parts of a Node that a kubelet uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObservedNode {
    pub uid: String,
    /// The resource version as a number, or 0.
    pub version: u64,
    pub ready: Option<(Ready, Timestamp)>,
}

/// An action of a kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Register,
    Status,
    Lease,
}

/// The state of a kubelet.
#[derive(Debug)]
pub(super) struct Schedule {
    settings: Settings,
    /// The Node as last observed or written. `None` before the registration and after a deletion.
    node: Option<ObservedNode>,
    /// When to register. `None`: never again.
    register_at: Option<Timestamp>,
    /// The time of the last post of the status.
    posted_at: Option<Timestamp>,
    status_at: Timestamp,
    lease_at: Timestamp,
    /// No retries before this time.
    retry_at: Option<Timestamp>,
    failures: u32,
    random: fastrand::Rng,
}

impl Schedule {
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

    /// The registered Node.
    pub(super) fn node(&self) -> Option<&ObservedNode> {
        self.node.as_ref()
    }

    /// The next action, and when it is due.
    pub(super) fn next(&self, spec: &KubeletSpec, now: Timestamp) -> Option<(Timestamp, Action)> {
        let (at, action) = match &self.node {
            None => (self.register_at?, Action::Register),
            Some(node) => self.next_of(node, spec, now)?,
        };
        Some((self.retry_at.map_or(at, |retry_at| retry_at.max(at)), action))
    }

    /// The next action of a registered kubelet. Without heartbeats it posts changes only.
    fn next_of(&self, node: &ObservedNode, spec: &KubeletSpec, now: Timestamp) -> Option<(Timestamp, Action)> {
        let is_known = node.ready.is_some_and(|(ready, _)| ready == self.wanted(spec, now));
        let soonest = self.posted_at.map_or(now, |posted| now.max(posted + MIN_POST_INTERVAL));
        let news = if is_known { self.next_flip(spec, now) } else { Some(soonest) };
        if !self.settings.heartbeats {
            return news.map(|at| (at, Action::Status));
        }
        let status_at = news.map_or(self.status_at, |at| at.min(self.status_at));
        Some(if status_at <= self.lease_at { (status_at, Action::Status) } else { (self.lease_at, Action::Lease) })
    }

    /// The status that the kubelet reports now.
    pub(super) fn wanted(&self, spec: &KubeletSpec, now: Timestamp) -> Ready {
        if spec.not_ready || now < self.ready_at(spec) {
            return Ready::False;
        }
        match flaps(spec, now) {
            Some(turn) if turn % 2 == 0 => Ready::False,
            _ => Ready::True,
        }
    }

    fn ready_at(&self, spec: &KubeletSpec) -> Timestamp {
        spec.running_since + self.settings.ready_after
    }

    /// When the reported status changes next.
    fn next_flip(&self, spec: &KubeletSpec, now: Timestamp) -> Option<Timestamp> {
        let ready_at = self.ready_at(spec);
        if now < ready_at {
            return Some(ready_at);
        }
        let turns = u32::try_from(flaps(spec, now)? + 1).ok()?;
        Some(spec.behavior_since + spec.flap?.checked_mul(turns)?)
    }

    /// The transition time of the Ready condition for the next post.
    pub(super) fn transition(&self, ready: Ready, now: Timestamp) -> Timestamp {
        match self.node.as_ref().and_then(|node| node.ready) {
            Some((before, since)) if before == ready => since,
            _ => now,
        }
    }

    /// The Node was registered or adopted.
    pub(super) fn registered(&mut self, node: ObservedNode, now: Timestamp) {
        self.node = Some(node);
        self.register_at = None;
        self.lease_at = now;
        self.status_at = now;
        self.succeeded();
    }

    /// The status was posted. `node` is the answer.
    pub(super) fn posted(&mut self, node: ObservedNode, now: Timestamp) {
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

    /// The watch reported the Node. Versions older than the own writes are ignored.
    pub(super) fn seen(&mut self, seen: &ObservedNode) {
        if let Some(node) = &mut self.node
            && node.uid == seen.uid
            && node.version < seen.version
        {
            *node = seen.clone();
        }
    }

    /// The Node with this UID was deleted.
    pub(super) fn node_gone(&mut self, uid: &str, now: Timestamp) {
        if self.node.as_ref().is_some_and(|node| node.uid == uid) {
            self.node = None;
            self.register_at = self.settings.register_again_after.map(|after| now + after);
        }
    }

    /// A request failed: pauses, longer each time, up to ten seconds.
    pub(super) fn failed(&mut self, now: Timestamp) {
        let pause = Duration::from_millis(500) * 2_u32.saturating_pow(self.failures.min(5));
        self.failures += 1;
        self.retry_at = Some(now + self.stray(pause.min(Duration::from_secs(10))));
    }

    fn succeeded(&mut self) {
        self.failures = 0;
        self.retry_at = None;
    }

    /// The kubelet reports again after a silence: it posts and renews at once.
    pub(super) fn wake(&mut self, now: Timestamp) {
        self.status_at = now;
        self.lease_at = now;
        self.succeeded();
    }

    fn stray(&mut self, period: Duration) -> Duration {
        period.mul_f64((1.0 + self.settings.jitter * (2.0 * self.random.f64() - 1.0)).max(0.0))
    }
}

/// How many phases of flapping have passed. `None` if it does not flap.
fn flaps(spec: &KubeletSpec, now: Timestamp) -> Option<u128> {
    let turn = spec.flap.filter(|turn| !turn.is_zero())?;
    let passed = Duration::try_from(spec.behavior_since.duration_until(now)).unwrap_or_default();
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
        KubeletSpec { running_since: at(0), behavior_since: at(0), ..KubeletSpec::default() }
    }

    fn node(version: u64, ready: Ready, since: i64) -> ObservedNode {
        ObservedNode { uid: "u1".into(), version, ready: Some((ready, at(since))) }
    }

    #[test]
    fn a_kubelet_registers_turns_ready_and_beats() {
        let (mut schedule, spec) = (Schedule::new(settings(), at(0), 1), spec());
        assert_eq!(schedule.next(&spec, at(0)), Some((at(0), Action::Register)));
        schedule.registered(node(1, Ready::False, 0), at(0));
        assert_eq!(schedule.next(&spec, at(0)), Some((at(0), Action::Status)));
        schedule.posted(node(2, Ready::False, 0), at(0));
        assert_eq!(schedule.next(&spec, at(0)), Some((at(0), Action::Lease)));
        schedule.renewed(at(0));
        assert_eq!(schedule.next(&spec, at(0)), Some((at(1), Action::Status)), "ready after a second");
        assert_eq!(schedule.wanted(&spec, at(1)), Ready::True);
        schedule.posted(node(3, Ready::True, 1), at(1));
        assert_eq!(schedule.next(&spec, at(1)), Some((at(10), Action::Lease)));
        for second in (10..300).step_by(10) {
            assert_eq!(schedule.next(&spec, at(second)), Some((at(second), Action::Lease)));
            schedule.renewed(at(second));
        }
        schedule.renewed(at(300));
        assert_eq!(schedule.next(&spec, at(300)), Some((at(301), Action::Status)), "five minutes after the last");
    }

    #[test]
    fn without_heartbeats_only_news_are_posted() {
        let (mut schedule, spec) = (Schedule::new(Settings { heartbeats: false, ..settings() }, at(0), 1), spec());
        assert_eq!(schedule.next(&spec, at(0)), Some((at(0), Action::Register)));
        schedule.registered(node(1, Ready::False, 0), at(0));
        assert_eq!(schedule.next(&spec, at(0)), Some((at(1), Action::Status)), "ready after a second");
        schedule.posted(node(2, Ready::True, 1), at(1));
        assert_eq!(schedule.next(&spec, at(1)), None);
        schedule.seen(&node(3, Ready::Unknown, 60));
        assert_eq!(schedule.next(&spec, at(60)), Some((at(60), Action::Status)));
    }

    #[test]
    fn what_others_wrote_is_answered_at_once_and_own_echoes_are_not() {
        let (mut schedule, spec) = (Schedule::new(settings(), at(0), 1), spec());
        schedule.registered(node(5, Ready::True, 1), at(10));
        schedule.posted(node(6, Ready::True, 1), at(10));
        schedule.renewed(at(10));
        schedule.seen(&node(4, Ready::False, 0));
        assert_eq!(schedule.next(&spec, at(11)), Some((at(20), Action::Lease)));
        schedule.seen(&node(7, Ready::Unknown, 11));
        assert_eq!(schedule.next(&spec, at(12)), Some((at(12), Action::Status)));
        assert_eq!(schedule.transition(Ready::True, at(12)), at(12));
    }

    #[test]
    fn two_that_contradict_each_other_do_so_once_a_second() {
        let (mut schedule, spec) = (Schedule::new(Settings { heartbeats: false, ..settings() }, at(0), 1), spec());
        schedule.registered(node(5, Ready::True, 1), at(10));
        schedule.posted(node(6, Ready::True, 1), at(10));
        schedule.seen(&node(7, Ready::False, 10));
        assert_eq!(schedule.next(&spec, at(10)), Some((at(11), Action::Status)));
        schedule.posted(node(8, Ready::True, 11), at(11));
        schedule.seen(&node(9, Ready::False, 11));
        assert_eq!(schedule.next(&spec, at(11)), Some((at(12), Action::Status)));
    }

    #[test]
    fn a_deleted_node_is_registered_again_or_not() {
        for (after, next) in [(Some(Duration::from_secs(5)), Some((at(25), Action::Register))), (None, None)] {
            let settings = Settings { register_again_after: after, ..settings() };
            let mut schedule = Schedule::new(settings, at(0), 1);
            schedule.registered(node(5, Ready::True, 1), at(10));
            schedule.node_gone("another", at(20));
            assert!(schedule.node().is_some());
            schedule.node_gone("u1", at(20));
            assert_eq!(schedule.next(&spec(), at(20)), next);
        }
    }

    #[test]
    fn flapping_turns_at_every_boundary() {
        let mut schedule = Schedule::new(settings(), at(0), 1);
        let spec = KubeletSpec { flap: Some(Duration::from_secs(3)), behavior_since: at(100), ..spec() };
        schedule.registered(node(5, Ready::True, 1), at(100));
        schedule.posted(node(5, Ready::False, 100), at(100));
        schedule.renewed(at(100));
        assert_eq!(schedule.wanted(&spec, at(100)), Ready::False);
        assert_eq!(schedule.next(&spec, at(101)), Some((at(103), Action::Status)));
        assert_eq!(schedule.wanted(&spec, at(103)), Ready::True);
        schedule.posted(node(6, Ready::True, 103), at(103));
        assert_eq!(schedule.next(&spec, at(103)), Some((at(106), Action::Status)));
        assert_eq!(schedule.wanted(&spec, at(106)), Ready::False);
    }

    #[test]
    fn failures_pause_longer_and_longer() {
        let mut schedule = Schedule::new(settings(), at(0), 1);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            schedule.failed(at(0));
            let (next, _) = schedule.next(&spec(), at(0)).unwrap();
            pauses.push(at(0).duration_until(next).as_millis());
        }
        assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000]);
    }
}
