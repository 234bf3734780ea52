//! The open watches, and how tests delay or break them.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::fault::Match;

/// How fast the events of a watch reach its client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// At once.
    #[default]
    Live,
    /// This long after each change, in order.
    Late(Duration),
    /// Never, and neither does the end of the watch: a black-holed connection, or a frozen server.
    Held,
}

/// When an idle watch gets bookmarks. A real server sends them after 60 or 120 s and two seconds before the watch ends; none
/// for a kind that has not changed since the server started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bookmarks {
    /// After this time, and two seconds before the end.
    Every(Duration),
    /// Never.
    Never,
}

impl Default for Bookmarks {
    fn default() -> Self {
        Self::Every(Duration::from_mins(1))
    }
}

impl Bookmarks {
    /// When a watch that lasts until `end` gets its next bookmark.
    pub(super) fn next(self, now: Instant, end: Instant) -> Option<Instant> {
        let Self::Every(interval) = self else { return None };
        let last = end.checked_sub(BEFORE_END).filter(|last| *last > now);
        Some(last.map_or(now + interval, |last| last.min(now + interval)))
    }
}

/// How long before the end of a watch its last bookmark is sent.
const BEFORE_END: Duration = Duration::from_secs(2);

/// An open watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenWatch {
    /// The number of the watch, in the order of opening over the life of the server.
    pub number: u64,
    /// The path without the query.
    pub path: String,
    /// The `User-Agent` header.
    pub user_agent: String,
}

/// All open watches. Every change wakes them, and each then checks what concerns it.
pub(super) struct Watches {
    wake: watch::Sender<u64>,
    opened: Mutex<u64>,
    /// With whether the connection is to break.
    open: Mutex<BTreeMap<u64, (OpenWatch, bool)>>,
    paces: Mutex<Vec<(Match, Pace)>>,
    bookmarks: Mutex<Bookmarks>,
}

impl Default for Watches {
    fn default() -> Self {
        let wake = watch::Sender::new(0);
        let (opened, open, paces) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { wake, opened, open, paces, bookmarks: Mutex::default() }
    }
}

impl Watches {
    pub(super) fn wake(&self) {
        self.wake.send_modify(|wakes| *wakes = wakes.wrapping_add(1));
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.wake.subscribe()
    }

    pub(super) fn open(&self, path: &str, user_agent: &str) -> u64 {
        let mut opened = self.opened.lock();
        *opened += 1;
        let watch = OpenWatch { number: *opened, path: path.to_owned(), user_agent: user_agent.to_owned() };
        self.open.lock().insert(*opened, (watch, false));
        *opened
    }

    pub(super) fn close(&self, number: u64) {
        self.open.lock().remove(&number);
    }

    pub(super) fn list(&self) -> Vec<OpenWatch> {
        self.open.lock().values().map(|(watch, _)| watch.clone()).collect()
    }

    pub(super) fn break_those(&self, fits: impl Fn(&OpenWatch) -> bool) {
        for (watch, broken) in self.open.lock().values_mut() {
            *broken |= fits(watch);
        }
        self.wake();
    }

    pub(super) fn is_broken(&self, number: u64) -> bool {
        self.open.lock().get(&number).is_none_or(|(_, broken)| *broken)
    }

    pub(super) fn set_bookmarks(&self, bookmarks: Bookmarks) {
        *self.bookmarks.lock() = bookmarks;
    }

    pub(super) fn bookmarks(&self) -> Bookmarks {
        *self.bookmarks.lock()
    }

    /// Sets the pace of the matching watches. It replaces an earlier pace for the same matcher.
    pub(super) fn set_pace(&self, watches: Match, pace: Pace) {
        let mut paces = self.paces.lock();
        paces.retain(|(earlier, _)| *earlier != watches);
        paces.push((watches, pace));
        drop(paces);
        self.wake();
    }

    /// The latest pace that matches the watch.
    pub(super) fn pace(&self, number: u64) -> Pace {
        let open = self.open.lock();
        let Some((watch, _)) = open.get(&number) else { return Pace::Live };
        let paces = self.paces.lock();
        let said = paces.iter().rev().find(|(watches, _)| watches.fits("watch", &watch.path, &watch.user_agent));
        said.map_or(Pace::Live, |(_, pace)| *pace)
    }
}
