//! Reconciles per second when there is nothing to do: each of a full cache's machines is looked at once when the
//! controller begins, and once more because of one change of something that all depend on.
//!
//! The first time counts from the first look to the last, so without the list; the second from the change.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    contender::{Contender, Job},
    fixture::MACHINES,
    heap,
    memory::at_rest,
    report::{Numbers, float},
    server::Server,
};

/// Counts looks.
#[derive(Default)]
struct ScopedWatches {
    seen: AtomicUsize,
    first: Mutex<Option<Instant>>,
    last: Mutex<Option<Instant>>,
    all: Notify,
}

impl ScopedWatches {
    fn count(&self) {
        match self.seen.fetch_add(1, Relaxed) + 1 {
            1 => *self.first.lock() = Some(Instant::now()),
            MACHINES => {
                *self.last.lock() = Some(Instant::now());
                self.all.notify_one();
            }
            _ => {}
        }
    }

    /// When the last of all was looked at, and when the first.
    async fn complete(&self) -> (Instant, Instant) {
        self.all.notified().await;
        self.seen.store(0, Relaxed);
        let taken = |at: &Mutex<Option<Instant>>| at.lock().take().expect("all were looked at");
        (taken(&self.last), taken(&self.first))
    }
}

pub(crate) async fn measure(who: Contender) -> Numbers {
    let server = Server::new(MACHINES);
    let before = heap::live();
    let looks = Arc::new(ScopedWatches::default());
    let counted = looks.clone();
    who.control(&server, Job::new(move |_| counted.count()));
    let (last, first) = looks.complete().await;
    server.watched_all().await;
    at_rest().await;
    let live = heap::live() - before;
    let changed = Instant::now();
    server.touch();
    let again = looks.complete().await.0;
    [
        ("first", float(MACHINES) / (last - first).as_secs_f64()),
        ("again", float(MACHINES) / (again - changed).as_secs_f64()),
        ("bytes", float(live) / float(MACHINES)),
    ]
    .map(|(name, number)| (name.to_owned(), number))
    .into()
}
