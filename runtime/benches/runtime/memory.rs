//! Bytes per object, and the peak of a relist.
//!
//! The watch fills a cache. The cache costs the bytes that are allocated then, less those allocated before; pages are
//! generated on demand and freed by then. Twice the server answers 410 Gone: once with nothing changed since, once with
//! everything changed. Pages count once towards the peak, as if they had come over a network.

use nodewright_api::Machine;
use nodewright_runtime::object::resource_version;

use crate::{
    contender::{Cache, Contender},
    fixture::{Fixture, MACHINES},
    heap,
    report::{Numbers, float},
    server::Server,
};

/// The number of machines in the cache that shows the bytes of each part.
const SAMPLE: usize = 5_000;

/// The measured parts of a machine. The owners are not among them: the cache recognizes siblings by their owners.
pub(crate) const PARTS: [(&str, &[&str]); 5] = [
    ("managedFields", &["/metadata/managedFields"]),
    ("labels, annotations, finalizers", &["/metadata/labels", "/metadata/annotations", "/metadata/finalizers"]),
    ("nodeTemplate", &["/spec/nodeTemplate"]),
    (
        "the class and the time-outs",
        &["/spec/class", "/spec/creationTimeout", "/spec/drainTimeout", "/spec/nodeConditions"],
    ),
    ("conditions", &["/status/conditions"]),
];

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
    numbers.extend(parts(who).await);
    numbers
}

fn oldest(cache: &Cache) -> u64 {
    cache.all().iter().map(|machine| resource_version(machine.as_ref())).min().unwrap_or_default()
}

/// A list is complete when the watch begins; the last objects may still be on their way to the cache.
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

/// The bytes of each part of an object: how much less a small cache needs if its machines lack the part. So the number
/// includes whatever the cache does with the part: spare capacity, or sharing between siblings.
async fn parts(who: Contender) -> Numbers {
    let all = bytes_without(who, &[]).await;
    let mut numbers = Numbers::new();
    let mut rest = all - float(size_of::<Machine>());
    for (name, paths) in PARTS {
        let part = all - bytes_without(who, paths).await;
        rest -= part;
        numbers.insert(format!("part {name}"), part);
    }
    numbers.insert("struct".to_owned(), float(size_of::<Machine>()));
    numbers.insert("rest".to_owned(), rest);
    numbers
}

/// Bytes per object of a small cache whose machines lack the fields at these paths.
async fn bytes_without(who: Contender, paths: &[&str]) -> f64 {
    let server = Server::of(SAMPLE, Fixture::without(paths));
    let before = heap::live();
    let cache = who.cache(&server);
    server.watched(1).await;
    at_rest().await;
    assert_eq!(cache.len(), SAMPLE, "the cache is full");
    float(heap::live() - before) / float(SAMPLE)
}
