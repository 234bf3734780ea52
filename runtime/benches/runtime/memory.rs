//! Bytes per object, and the most that a list needs which begins again.
//!
//! A cache is filled through its watch. What is live then, less what was live before, is what it costs; pages are made
//! on the fly and are gone by then. Twice the server answers "too old": once nothing has changed since, once everything.
//! Pages count towards the peak, once, as they would if they had come over a network.

use std::{hint::black_box, mem::take, sync::Arc};

use k8s_openapi::{
    api::core::v1::{NodeCondition, NodeSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use nodewright_api::Machine;
use nodewright_runtime::object::Version;

use crate::{
    contender::{Cache, Contender},
    fixture::MACHINES,
    heap,
    report::{Numbers, float},
    server::Server,
};

/// How many machines are taken apart.
const SAMPLE: usize = 1_000;

pub(crate) async fn measure(who: Contender) -> Numbers {
    let server = Server::new(MACHINES);
    let before = (heap::live(), heap::resident());
    let cache = who.cache(&server);
    server.watched(1).await;
    at_rest().await;
    assert_eq!(cache.len(), MACHINES, "the cache is full");
    let steady = heap::live() - before.0;
    let mut numbers = Numbers::new();
    numbers.insert("bytes".to_owned(), float(steady) / float(MACHINES));
    numbers.insert("resident".to_owned(), float(heap::resident().saturating_sub(before.1)) / float(MACHINES));
    let filled = oldest(&cache);
    for (times, name) in [(2, "unchanged"), (3, "changed")] {
        if name == "changed" {
            server.change_all();
        }
        heap::forget_peak();
        server.expire();
        server.watched(times).await;
        numbers.insert(name.to_owned(), float(heap::peak() - before.0) / float(steady));
        at_rest().await;
        assert_eq!(oldest(&cache) > filled, name == "changed", "the cache has taken in the list");
    }
    let most = heap::most_resident().saturating_sub(before.1);
    numbers.insert("most resident".to_owned(), float(most) / float(MACHINES));
    numbers.extend(parts(&cache.all()[..SAMPLE]));
    numbers
}

fn oldest(cache: &Cache) -> Version {
    cache.all().iter().map(|machine| Version::of(machine.as_ref())).min().unwrap_or_default()
}

/// A list is complete when its watch is asked for; what was taken in last may still be on its way.
pub(crate) async fn at_rest() {
    let mut live = heap::live();
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let now = heap::live();
        if now == live {
            return;
        }
        live = now;
    }
}

/// Where the bytes of one machine go, in an exact copy: what the cache needs beyond that is spare room and indexes.
fn parts(machines: &[Arc<Machine>]) -> Numbers {
    let mut copies = Vec::with_capacity(SAMPLE);
    let before = heap::live();
    copies.extend(machines.iter().map(|machine| machine.as_ref().clone()));
    let all = float(heap::live() - before) / float(SAMPLE);
    let mut numbers = Numbers::new();
    let mut part = |name: &str, bytes: f64| numbers.insert(format!("part {name}"), bytes);
    part("Machine itself: ObjectMeta", float(size_of::<ObjectMeta>()));
    part("Machine itself: nodeTemplate's ObjectMeta", float(size_of::<ObjectMeta>()));
    part("Machine itself: nodeTemplate's NodeSpec", float(size_of::<NodeSpec>()));
    part("Machine itself: the rest", float(size_of::<Machine>() - 2 * size_of::<ObjectMeta>() - size_of::<NodeSpec>()));
    let mut heap_of = |clear: fn(&mut Machine)| {
        let before = heap::live();
        black_box(&mut copies).iter_mut().for_each(clear);
        float(before - heap::live()) / float(SAMPLE)
    };
    let managed = heap_of(|machine| drop(machine.metadata.managed_fields.take()));
    part("managedFields", managed);
    let maps = heap_of(|machine| drop((machine.metadata.labels.take(), machine.metadata.annotations.take())));
    part("labels, annotations", maps);
    let owners = heap_of(|machine| drop(machine.metadata.owner_references.take()));
    part("ownerReferences", owners);
    let meta = heap_of(|machine| drop(take(&mut machine.metadata)));
    part("name, uid and the like", meta);
    let template = heap_of(|machine| drop(take(&mut machine.spec.node_template)));
    part("nodeTemplate: labels, annotations, taints", template);
    let spec = heap_of(|machine| drop(take(&mut machine.spec)));
    part("spec: the rest", spec);
    let conditions = heap_of(|machine| machine.status.iter_mut().for_each(|status| drop(take(&mut status.conditions))));
    let in_line = float(7 * size_of::<NodeCondition>());
    part("conditions: seven structs", in_line.min(conditions));
    part("conditions: their text", (conditions - in_line).max(0.0));
    let status = heap_of(|machine| drop(machine.status.take()));
    part("status: the rest", status);
    let heap = managed + maps + owners + meta + template + spec + conditions + status;
    numbers.insert("exact".to_owned(), float(size_of::<Machine>()) + heap);
    assert!((all - heap).abs() < 1.0, "the parts are the whole: {all} and {heap}");
    numbers
}
