//! The open connections of a port, and which of them to close for a new one.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::task::{AbortHandle, Id, JoinSet};

use crate::connection_state::ConnectionState;

/// The open connections of a port, by their tasks.
#[derive(Default)]
pub(super) struct Connections {
    tasks: JoinSet<()>,
    open: HashMap<Id, Open>,
    count: u64,
}

struct Open {
    address: IpAddr,
    /// Orders connections with the same instant.
    number: u64,
    task: AbortHandle,
    state: Arc<ConnectionState>,
}

impl Connections {
    /// Includes closed connections whose tasks have not ended.
    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    pub(super) fn open(
        &mut self,
        address: IpAddr,
        state: Arc<ConnectionState>,
        run: impl Future<Output = ()> + Send + 'static,
    ) {
        self.count += 1;
        let task = self.tasks.spawn(run);
        self.open.insert(task.id(), Open { address, number: self.count, task, state });
    }

    /// Waits until a connection has ended. `None` if there is none.
    pub(super) async fn ended(&mut self) -> Option<()> {
        let ended = self.tasks.join_next_with_id().await?;
        self.open.remove(&ended.map_or_else(|error| error.id(), |(id, ())| id));
        Some(())
    }

    /// Closes a connection. Returns false if all are answering requests. The address with the most connections loses one first,
    /// so that no client can have all.
    pub(super) fn close_idle(&mut self) -> bool {
        let mut of_address = HashMap::<_, usize>::new();
        for open in self.open.values() {
            *of_address.entry(open.address).or_default() += 1;
        }
        let idle = self.open.iter().filter_map(|(id, open)| {
            let priority = (Reverse(of_address.get(&open.address)), open.state.idle_since()?, open.number);
            Some((priority, *id))
        });
        let closed = idle.min_by_key(|(priority, _)| *priority).and_then(|(_, id)| self.open.remove(&id));
        closed.inspect(|open| open.task.abort()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    /// Connections as (address, seconds idle, or None while it answers). Returns the one to close.
    fn closed(open: &[(u8, Option<u64>)]) -> Option<u64> {
        let now = Instant::now() + Duration::from_hours(1);
        let mut connections = Connections::default();
        for (address, idle) in open {
            let state = ConnectionState::new(now - Duration::from_secs(idle.unwrap_or_default()));
            if idle.is_none() {
                state.head_read(false);
            }
            connections.open(IpAddr::from([10, 0, 0, *address]), Arc::new(state), std::future::pending());
        }
        let is_closed = connections.close_idle();
        let left: Vec<_> = connections.open.values().map(|open| open.number).collect();
        assert_eq!(left.len(), open.len() - usize::from(is_closed));
        (1..=connections.count).find(|number| !left.contains(number)).map(|number| number - 1)
    }

    #[tokio::test]
    async fn the_longest_idle_of_the_address_with_the_most_gives_way() {
        assert_eq!(closed(&[]), None);
        assert_eq!(closed(&[(1, Some(5)), (1, Some(9)), (1, Some(7))]), Some(1), "the longest idle");
        assert_eq!(closed(&[(1, Some(5)), (1, Some(5))]), Some(0), "of two equal ones the first");
        assert_eq!(closed(&[(1, None), (1, Some(1))]), Some(1), "one that answers does not");
        assert_eq!(closed(&[(1, None), (1, None)]), None, "all answer");
        let fair = [(1, Some(90)), (2, Some(3)), (2, Some(4)), (2, Some(2))];
        assert_eq!(closed(&fair), Some(2), "the address with the most");
        let busy = [(1, Some(90)), (2, None), (2, None), (3, Some(91))];
        assert_eq!(closed(&busy), Some(3), "the address with the most answers");
    }
}
