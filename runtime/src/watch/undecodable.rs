//! Reports objects that cannot be decoded: a metric and an event for each, for as long as it stays so.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::ObjectReference;
use parking_lot::Mutex;

use crate::{
    cache::Unreadable,
    events::{Event, Recorder},
    object::{Cluster, ResourceType},
};
use nodewright_observability::metrics::Metrics;

/// Reason of the event of an object that cannot be decoded.
const UNDECODABLE: &str = "Undecodable";

/// Metrics name at most this many objects: a user who can create one can create many.
const NAMED: usize = 100;

/// The known facts about an object that could not be decoded. Its content is not kept, so that it cannot reach a log.
#[derive(Clone, Debug, Default)]
pub(super) struct Undecodable {
    pub(super) object: Unreadable,
    pub(super) version: Option<u64>,
    pub(super) why: String,
}

/// Cluster, resource, and the selector of the watch: the lists of one watch say nothing about the objects of others.
type Place = (Cluster, String, Arc<str>);
type Name = (String, String);

/// All objects of a manager that currently cannot be decoded.
///
/// # Guarantees
/// * One event for each object, as soon as this process may write events. Another one when the object has changed and still
///   cannot be decoded.
/// * Nothing of their content is kept.
pub(crate) struct DecodeFailures {
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<Place, BTreeMap<Name, Event>>,
    named: BTreeSet<(Place, Name)>,
    /// Absent while another process leads, because events are writes.
    recorder: Option<Recorder>,
}

impl State {
    fn count(&self, cluster: Cluster, resource: &str) -> usize {
        let places = self.objects.iter().filter(|(place, _)| place.0 == cluster && place.1 == resource);
        places.map(|(_, objects)| objects.len()).sum()
    }
}

impl DecodeFailures {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { metrics, state: Mutex::default() })
    }

    /// Publishes events for the known objects and for later ones: this process may write now.
    pub(crate) fn tell(&self, recorder: Recorder) {
        let mut state = self.state.lock();
        state.objects.values().flat_map(BTreeMap::values).for_each(|event| recorder.publish(event.clone()));
        state.recorder = Some(recorder);
    }

    pub(super) fn add(&self, cluster: Cluster, resource: &ResourceType, selector: &Arc<str>, object: &Undecodable) {
        let place = (cluster, resource.to_string(), selector.clone());
        let name = (object.object.namespace().to_owned(), object.object.name().to_owned());
        let event = event(resource, object);
        let mut state = self.state.lock();
        if let Some(recorder) = &state.recorder {
            recorder.publish(event.clone());
        }
        state.objects.entry(place.clone()).or_default().insert(name.clone(), event);
        self.metrics.undecodable_objects(cluster, resource, state.count(cluster, &place.1));
        if state.named.len() < NAMED && state.named.insert((place, name)) {
            self.metrics.undecodable_object(cluster, resource, object.object.namespace(), object.object.name(), true);
        }
    }

    /// Removes an object that is gone or can be decoded again.
    pub(super) fn remove(
        &self,
        cluster: Cluster,
        resource: &ResourceType,
        selector: &Arc<str>,
        namespace: &str,
        name: &str,
    ) {
        let mut state = self.state.lock();
        // The common case: the map is empty, and the check costs little.
        if state.objects.is_empty() {
            return;
        }
        let place = (cluster, resource.to_string(), selector.clone());
        let name = (namespace.to_owned(), name.to_owned());
        let Some(all) = state.objects.get_mut(&place) else { return };
        if all.remove(&name).is_none() {
            return;
        }
        if all.is_empty() {
            state.objects.remove(&place);
        }
        self.metrics.undecodable_objects(cluster, resource, state.count(cluster, &place.1));
        if state.named.remove(&(place, name.clone())) {
            self.metrics.undecodable_object(cluster, resource, &name.0, &name.1, false);
        }
    }

    /// Keeps only these objects, which a complete list of this watch has shown. The list is empty when the watch has ended.
    pub(crate) fn retain(
        &self,
        cluster: Cluster,
        resource: &ResourceType,
        selector: &Arc<str>,
        seen: &BTreeSet<(String, String)>,
    ) {
        let place = (cluster, resource.to_string(), selector.clone());
        let known = self.state.lock().objects.get(&place).cloned().unwrap_or_default();
        for (namespace, name) in known.into_keys().filter(|name| !seen.contains(name)) {
            self.remove(cluster, resource, selector, &namespace, &name);
        }
    }
}

fn event(resource: &ResourceType, object: &Undecodable) -> Event {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let regarding = ObjectReference {
        api_version: Some(resource.api_version()),
        kind: Some(resource.kind.to_string()),
        namespace: some(object.object.namespace()),
        name: some(object.object.name()),
        uid: some(object.object.uid()),
        ..ObjectReference::default()
    };
    let text =
        format!("this object cannot be read; until it is corrected or gone, what depends on it waits: {}", object.why);
    Event::warning(regarding, UNDECODABLE, text)
}
