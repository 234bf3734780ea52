//! Reconciles per second when there is nothing to do: the controller plans each machine of a full cache once when it starts,
//! and once more after a change of an object that all depend on.
//!
//! The first measure begins with the first plan and so excludes the list; the second begins with the change.

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

/// Counts plans.
#[derive(Default)]
struct Plans {
    seen: AtomicUsize,
    first: Mutex<Option<Instant>>,
    last: Mutex<Option<Instant>>,
    all: Notify,
}

impl Plans {
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

    /// When the last of all machines was planned, and when the first.
    async fn complete(&self) -> (Instant, Instant) {
        self.all.notified().await;
        self.seen.store(0, Relaxed);
        let taken = |at: &Mutex<Option<Instant>>| at.lock().take().expect("all were planned");
        (taken(&self.last), taken(&self.first))
    }
}

pub(crate) async fn measure(who: Contender) -> Numbers {
    let server = Server::new(MACHINES);
    let before = heap::live();
    let plans = Arc::new(Plans::default());
    let counted = plans.clone();
    who.control(&server, Job::new(move |_| counted.count()));
    let (last, first) = plans.complete().await;
    server.watched_all().await;
    at_rest().await;
    let live = heap::live() - before;
    let changed = Instant::now();
    server.touch();
    let again = plans.complete().await.0;
    [
        ("first", float(MACHINES) / (last - first).as_secs_f64()),
        ("again", float(MACHINES) / (again - changed).as_secs_f64()),
        ("bytes", float(live) / float(MACHINES)),
    ]
    .map(|(name, number)| (name.to_owned(), number))
    .into()
}
