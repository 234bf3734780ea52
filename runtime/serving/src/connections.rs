//! Selects the connection to close for a new one.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::task::{AbortHandle, Id};
use tokio::time::Instant;

use crate::progress::Progress;

/// The open connections of a port, by their tasks.
#[derive(Default)]
pub(super) struct Places {
    open: HashMap<Id, Place>,
    /// How many connections each address has.
    by_address: HashMap<IpAddr, usize>,
    /// How many connections there have been in total.
    count: u64,
}

struct Place {
    address: IpAddr,
    /// Orders connections with the same instant.
    number: u64,
    task: AbortHandle,
    progress: Arc<Progress>,
}

impl Places {
    pub(super) fn insert(&mut self, address: IpAddr, task: AbortHandle, progress: Arc<Progress>) {
        self.count += 1;
        *self.by_address.entry(address).or_default() += 1;
        self.open.insert(task.id(), Place { address, number: self.count, task, progress });
    }

    pub(super) fn remove(&mut self, id: Id) -> Option<AbortHandle> {
        let place = self.open.remove(&id)?;
        if let Some(count) = self.by_address.get_mut(&place.address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&place.address);
            }
        }
        Some(place.task)
    }

    /// Removes and returns the connection to close; `None` if all are answering requests.
    pub(super) fn take_idle(&mut self) -> Option<AbortHandle> {
        let idle = self.open.iter().filter_map(|(id, place)| {
            let candidate = Candidate {
                of_its_address: self.by_address.get(&place.address).copied().unwrap_or_default(),
                idle_since: place.progress.idle_since()?,
                number: place.number,
            };
            Some((candidate, *id))
        });
        let (_, id) = idle.reduce(|one, other| if other.0.goes_before(&one.0) { other } else { one })?;
        self.remove(id)
    }
}

/// An idle connection as a candidate to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    /// How many connections its address has. The address with the most loses one first, so that no client can take all places.
    of_its_address: usize,
    idle_since: Instant,
    number: u64,
}

impl Candidate {
    fn goes_before(&self, other: &Self) -> bool {
        let key =
            |candidate: &Self| (std::cmp::Reverse(candidate.of_its_address), candidate.idle_since, candidate.number);
        key(self) < key(other)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::task::JoinSet;

    use super::*;

    /// Connections as (address, seconds idle, or None while it answers). Returns the one to close.
    fn victim(open: &[(u8, Option<u64>)]) -> Option<usize> {
        let now = Instant::now() + Duration::from_hours(1);
        let (mut places, mut tasks, mut ids) = (Places::default(), JoinSet::new(), vec![]);
        for (address, idle) in open {
            let progress = Progress::new(now - Duration::from_secs(idle.unwrap_or_default()));
            if idle.is_none() {
                progress.head_read(false);
            }
            let task = tasks.spawn(std::future::pending::<()>());
            ids.push(task.id());
            places.insert(IpAddr::from([10, 0, 0, *address]), task, Arc::new(progress));
        }
        let taken = places.take_idle()?.id();
        assert_eq!(places.open.len(), open.len() - 1);
        assert_eq!(places.by_address.values().sum::<usize>(), open.len() - 1);
        ids.iter().position(|id| *id == taken)
    }

    #[tokio::test]
    async fn the_longest_idle_of_the_address_with_the_most_gives_way() {
        assert_eq!(victim(&[]), None);
        assert_eq!(victim(&[(1, Some(5)), (1, Some(9)), (1, Some(7))]), Some(1), "the longest idle");
        assert_eq!(victim(&[(1, Some(5)), (1, Some(5))]), Some(0), "of two equal ones the first");
        assert_eq!(victim(&[(1, None), (1, Some(1))]), Some(1), "one that answers does not");
        assert_eq!(victim(&[(1, None), (1, None)]), None, "all answer");
        let fair = [(1, Some(90)), (2, Some(3)), (2, Some(4)), (2, Some(2))];
        assert_eq!(victim(&fair), Some(2), "the address with the most");
        let busy = [(1, Some(90)), (2, None), (2, None), (3, Some(91))];
        assert_eq!(victim(&busy), Some(3), "the address with the most answers");
    }
}
