//! Decides which events become requests, and which requests. Plain state, no I/O.

use std::{collections::HashMap, hash::Hash, time::Duration};

use super::Event;

/// How long an event counts as a repeat of an equal one: client-go's aggregation interval.
const REPEAT_WINDOW: Duration = Duration::from_mins(10);
/// How many requests one object may cause at once: client-go's spam filter.
const BURST: u32 = 25;
/// After this time the object may cause one more.
const REFILL: Duration = Duration::from_mins(5);
/// How many requests the routine events of all objects may cause at once.
const ROUTINE_BURST: u32 = 100;
/// After this time they may cause one more.
const ROUTINE_REFILL: Duration = Duration::from_secs(1);
/// How many events and objects are remembered: client-go's cache size.
const REMEMBERED: usize = 4_096;
const NAME_LIMIT: usize = 253;

/// The identity of an event: equal events have the same object and the same text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct EventName {
    pub(super) namespace: String,
    pub(super) name: String,
}

struct Series {
    count: i32,
    last: Duration,
}

#[derive(Default)]
pub(super) struct Correlator {
    series: HashMap<EventName, Series>,
    /// When the whole burst of an object is free again.
    full_at: HashMap<String, Duration>,
    /// When the whole burst of routine events is free again.
    routine_full_at: Duration,
}

impl Correlator {
    /// Returns the name of an event, and its count if it is a repeat; `None` if the spam filter holds it back.
    pub(super) fn admit(&mut self, event: &Event, now: Duration) -> Option<(EventName, Option<i32>)> {
        let name = name_of(event);
        let series = self.series.get_mut(&name).filter(|series| now.saturating_sub(series.last) < REPEAT_WINDOW);
        let count = series.map(|series| {
            *series = Series { count: series.count.saturating_add(1), last: now };
            series.count
        });
        if !self.spend(event, now) {
            return None;
        }
        if count.is_none() {
            make_room(&mut self.series, |series| series.last);
            self.series.insert(name.clone(), Series { count: 1, last: now });
        }
        Some((name, count))
    }

    pub(super) fn correct(&mut self, name: &EventName, count: i32) {
        if let Some(series) = self.series.get_mut(name) {
            series.count = count;
        }
    }

    /// Forgets an event that no longer exists, so that the next equal one is new.
    pub(super) fn forget(&mut self, name: &EventName) {
        self.series.remove(name);
    }

    /// Takes one request from the event's bursts, if it may cause one.
    fn spend(&mut self, event: &Event, now: Duration) -> bool {
        if event.is_routine && !take(&mut self.routine_full_at, now, ROUTINE_REFILL, ROUTINE_BURST) {
            return false;
        }
        let object = object_of(event);
        if !self.full_at.contains_key(&object) {
            make_room(&mut self.full_at, |full_at| *full_at);
        }
        take(self.full_at.entry(object).or_insert(now), now, REFILL, BURST)
    }
}

/// Takes one of a burst that is whole again at `full_at`. Returns whether one was left.
fn take(full_at: &mut Duration, now: Duration, refill: Duration, burst: u32) -> bool {
    let after = (*full_at).max(now) + refill;
    let is_left = after.saturating_sub(now) <= refill * burst;
    if is_left {
        *full_at = after;
    }
    is_left
}

/// Removes the least recently used quarter of a full map, so that the cost of the search is amortized.
fn make_room<K: Clone + Eq + Hash + Ord, V>(map: &mut HashMap<K, V>, age: impl Fn(&V) -> Duration) {
    if map.len() < REMEMBERED {
        return;
    }
    // Break ties by key: the result must not depend on the order of a hash map.
    let mut ages: Vec<_> = map.iter().map(|(key, value)| (age(value), key.clone())).collect();
    ages.sort_unstable();
    for (_, key) in ages.drain(..REMEMBERED / 4) {
        map.remove(&key);
    }
}

/// The UID if it is known, so that a later namesake has a budget of its own.
fn object_of(event: &Event) -> String {
    let regarding = &event.regarding;
    regarding.uid.clone().unwrap_or_else(|| {
        [&regarding.kind, &regarding.namespace, &regarding.name].map(|part| part.as_deref().unwrap_or("")).join("/")
    })
}

/// The name of the event, derived from its content, so that a repeat finds it even after a restart.
fn name_of(event: &Event) -> EventName {
    let regarding = &event.regarding;
    let object = object_of(event);
    let id =
        nodewright_observability::trace::span_id(&[&object, event.type_(), event.reason, &event.message].join("\0"));
    let suffix = format!(".{id}");
    let mut name = regarding.name.clone().unwrap_or_default();
    let end = name.floor_char_boundary(NAME_LIMIT - suffix.len());
    name.truncate(end);
    name.push_str(&suffix);
    // client-go puts the events of objects without a namespace here.
    let namespace = regarding.namespace.clone().filter(|namespace| !namespace.is_empty());
    EventName { namespace: namespace.unwrap_or_else(|| "default".to_owned()), name }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;

    fn event(uid: &str, message: &str) -> Event {
        let regarding = ObjectReference {
            namespace: Some("shoot".into()),
            name: Some("machine-a".into()),
            uid: Some(uid.into()),
            ..ObjectReference::default()
        };
        Event::normal(regarding, "Created", message)
    }

    const fn minutes(count: u64) -> Duration {
        Duration::from_mins(count)
    }

    #[test]
    fn a_repeat_within_ten_minutes_raises_the_count() {
        let mut correlator = Correlator::default();
        let Some((first, None)) = correlator.admit(&event("u", "hello"), minutes(0)) else { panic!() };
        assert_eq!(first.namespace, "shoot");
        assert!(first.name.starts_with("machine-a."));
        assert_eq!(correlator.admit(&event("u", "hello"), minutes(9)), Some((first.clone(), Some(2))));
        assert_eq!(correlator.admit(&event("u", "hello"), minutes(18)), Some((first.clone(), Some(3))));
        assert_eq!(correlator.admit(&event("u", "hello"), minutes(28)), Some((first.clone(), None)));
        let Some((other, None)) = correlator.admit(&event("u", "other"), minutes(28)) else { panic!() };
        let Some((namesake, None)) = correlator.admit(&event("v", "hello"), minutes(28)) else { panic!() };
        assert!(other != first && namesake != first && namesake != other);
    }

    #[test]
    fn one_object_causes_a_burst_and_then_one_in_five_minutes() {
        let mut correlator = Correlator::default();
        let mut sent = |from: u64, at| {
            (from..from + 100).filter(|n| correlator.admit(&event("u", &n.to_string()), at).is_some()).count()
        };
        assert_eq!(sent(0, minutes(0)), 25);
        assert_eq!(sent(100, minutes(4)), 0);
        assert_eq!(sent(200, minutes(5)), 1);
        assert_eq!(sent(300, minutes(15)), 2);
        assert!(correlator.admit(&event("v", "another object"), minutes(15)).is_some());
    }

    #[test]
    fn routine_events_of_many_objects_share_a_burst_and_others_do_not() {
        let mut correlator = Correlator::default();
        let mut sent = |objects: std::ops::Range<u64>, at: u64, kind: fn(Event) -> Event| {
            let events = objects.map(|object| kind(event(&object.to_string(), "joined")));
            events.filter(|event| correlator.admit(event, Duration::from_secs(at)).is_some()).count()
        };
        for (objects, at, kind, expected) in [
            (0..1_000, 0, Event::routine as fn(Event) -> Event, 100),
            (1_000..2_000, 0, Event::logged, 1_000),
            (2_000..2_100, 7, Event::routine, 7),
            (3_000..3_200, 1_000, Event::routine, 100),
        ] {
            assert_eq!(sent(objects.clone(), at, kind), expected, "{objects:?}");
        }
    }

    #[test]
    fn what_was_held_back_is_counted_with_the_next() {
        let mut correlator = Correlator::default();
        for _ in 0..100 {
            correlator.admit(&event("u", "again"), minutes(0));
        }
        let Some((_, Some(count))) = correlator.admit(&event("u", "again"), minutes(5)) else { panic!() };
        assert_eq!(count, 101);
    }

    #[test]
    fn memory_is_bounded() {
        let mut correlator = Correlator::default();
        for n in 0..10_000 {
            correlator.admit(&event(&n.to_string(), "hello"), Duration::from_secs(n));
        }
        assert!(correlator.series.len() <= REMEMBERED);
        assert!(correlator.full_at.len() <= REMEMBERED);
    }

    #[test]
    fn names_keep_to_the_limits() {
        let mut long = event("u", "hello");
        long.regarding.name = Some("x".repeat(253));
        long.regarding.namespace = None;
        let Some((name, None)) = Correlator::default().admit(&long, minutes(0)) else { panic!() };
        assert_eq!(name.name.len(), NAME_LIMIT);
        assert_eq!(name.namespace, "default");
    }
}
