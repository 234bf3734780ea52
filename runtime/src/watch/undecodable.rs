//! Reports objects that cannot be decoded.

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

const UNDECODABLE: &str = "Undecodable";

/// Metrics name at most this many objects: a user who can create one can create many.
const NAMED: usize = 100;

/// An object that could not be decoded. Its content is not kept, so that it cannot reach a log.
#[derive(Clone, Debug, Default)]
pub(super) struct Undecodable {
    pub(super) object: Unreadable,
    pub(super) version: Option<u64>,
    pub(super) why: String,
}

/// Cluster, resource and selector of a watch.
type Source = (Cluster, String, Arc<str>);
type Name = (String, String);

/// The objects of a manager that currently cannot be decoded: a metric for each, and an event for each and for its changes, as
/// soon as this process may write events.
pub(crate) struct DecodeFailures {
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<Source, BTreeMap<Name, Event>>,
    named: BTreeSet<(Source, Name)>,
    /// Absent while another process leads, because events are writes.
    recorder: Option<Recorder>,
}

impl State {
    fn count(&self, cluster: Cluster, resource: &str) -> usize {
        let sources = self.objects.iter().filter(|(source, _)| source.0 == cluster && source.1 == resource);
        sources.map(|(_, objects)| objects.len()).sum()
    }
}

impl DecodeFailures {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { metrics, state: Mutex::default() })
    }

    /// Publishes the events of known and later objects: this process may write now.
    pub(crate) fn publish_to(&self, recorder: Recorder) {
        let mut state = self.state.lock();
        state.objects.values().flat_map(BTreeMap::values).for_each(|event| recorder.publish(event.clone()));
        state.recorder = Some(recorder);
    }

    pub(super) fn add(
        &self,
        cluster: Cluster,
        resource: &ResourceType,
        selector: &Arc<str>,
        object: &Unreadable,
        why: &str,
    ) {
        let (source, name) = key(cluster, resource, selector, object);
        let event = event(resource, object, why);
        let mut state = self.state.lock();
        if let Some(recorder) = &state.recorder {
            recorder.publish(event.clone());
        }
        state.objects.entry(source.clone()).or_default().insert(name.clone(), event);
        self.metrics.undecodable_objects(cluster, resource, state.count(cluster, &source.1));
        if state.named.len() < NAMED && state.named.insert((source, name)) {
            self.metrics.undecodable_object(cluster, resource, object.namespace(), object.name(), true);
        }
    }

    /// Removes an object that is gone, can be decoded again, or is not watched any more.
    pub(super) fn remove(&self, cluster: Cluster, resource: &ResourceType, selector: &Arc<str>, object: &Unreadable) {
        let (source, name) = key(cluster, resource, selector, object);
        let mut state = self.state.lock();
        let Some(all) = state.objects.get_mut(&source) else { return };
        if all.remove(&name).is_none() {
            return;
        }
        if all.is_empty() {
            state.objects.remove(&source);
        }
        self.metrics.undecodable_objects(cluster, resource, state.count(cluster, &source.1));
        if state.named.remove(&(source, name)) {
            self.metrics.undecodable_object(cluster, resource, object.namespace(), object.name(), false);
        }
    }
}

fn key(cluster: Cluster, resource: &ResourceType, selector: &Arc<str>, object: &Unreadable) -> (Source, Name) {
    let source = (cluster, resource.to_string(), selector.clone());
    (source, (object.namespace().to_owned(), object.name().to_owned()))
}

fn event(resource: &ResourceType, object: &Unreadable, why: &str) -> Event {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let regarding = ObjectReference {
        api_version: Some(resource.api_version()),
        kind: Some(resource.kind.to_string()),
        namespace: some(object.namespace()),
        name: some(object.name()),
        uid: some(object.uid()),
        ..ObjectReference::default()
    };
    let text = format!("this object cannot be read; until it is corrected or gone, what depends on it waits: {why}");
    Event::warning(regarding, UNDECODABLE, text)
}
