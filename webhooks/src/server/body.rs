//! Request bodies of bounded size, time and memory.
//!
//! The reader reserves memory before it uses it: first for the bytes of a body, then for the object that is decoded from them.
//! A request waits for memory in order, and for a bounded time. Small bodies, which nearly all are, have their own share, so
//! that they do not wait for large ones.

use std::sync::Arc;

use axum::body::{Body, BodyDataStream, HttpBody};
use futures::TryStreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::Limits;
use crate::admission::memory_for;

/// The unit of reservations, in bytes.
const STEP: usize = 64 << 10;
/// Maximum size of a small body, and of the memory for its review.
const SMALL: usize = 256 << 10;
const SMALL_REVIEW: usize = 2 << 20;
/// How many times the limit is read and discarded of a body that is too large. A client that still writes would not see the
/// response if the server closed the connection.
const DISCARDED: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyError {
    TooLarge,
    TooSlow,
    Busy,
    Broken,
}

/// A body, with reservations of memory for its bytes and its review. Dropping it releases them.
#[derive(Debug)]
pub(super) struct BufferedBody {
    pub(super) bytes: Vec<u8>,
    _memory: [OwnedSemaphorePermit; 2],
}

#[derive(Clone, Debug)]
pub(super) struct Reader {
    limits: Limits,
    small: Share,
    large: Share,
}

/// The memory of small or of large bodies, with a permit for each step.
#[derive(Clone, Debug)]
struct Share {
    bodies: Arc<Semaphore>,
    reviews: Arc<Semaphore>,
}

impl Share {
    fn new(bodies: usize, reviews: usize) -> Self {
        let share = |bytes: usize| Arc::new(Semaphore::new(bytes / STEP));
        Self { bodies: share(bodies), reviews: share(reviews) }
    }
}

impl Reader {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            small: Share::new(limits.small_bodies_size, limits.small_reviews_size),
            large: Share::new(limits.large_bodies_size, limits.large_reviews_size),
        }
    }

    /// Reserves memory for a body, reads it, and reserves memory for its review.
    pub(super) async fn read(&self, body: Body) -> Result<BufferedBody, BodyError> {
        // A body without a length may have any.
        let announced = body.size_hint().upper().and_then(|size| usize::try_from(size).ok());
        let mut body = body.into_data_stream();
        if announced.is_some_and(|size| size > self.limits.body_size) {
            return Err(self.discard(&mut body, 0).await);
        }
        let size = announced.unwrap_or(self.limits.body_size);
        let share = if size <= SMALL { &self.small } else { &self.large };
        let for_body = self.reserve(&share.bodies, size).await?;
        let reading = self.read_all(&mut body, size);
        let bytes = timeout(self.limits.body, reading).await.unwrap_or(Err(BodyError::TooSlow))?;
        let needed = memory_for(&bytes);
        let share = if needed <= SMALL_REVIEW { &self.small } else { &self.large };
        let for_review = self.reserve(&share.reviews, needed).await?;
        Ok(BufferedBody { bytes, _memory: [for_body, for_review] })
    }

    /// Waits for memory, in order. A request that waits for the memory of its body holds none, so there is no deadlock.
    async fn reserve(&self, memory: &Arc<Semaphore>, size: usize) -> Result<OwnedSemaphorePermit, BodyError> {
        let steps = u32::try_from(size.div_ceil(STEP).max(1)).map_err(|_| BodyError::TooLarge)?;
        let reserved = timeout(self.limits.memory, memory.clone().acquire_many_owned(steps)).await;
        reserved.ok().and_then(Result::ok).ok_or(BodyError::Busy)
    }

    async fn read_all(&self, body: &mut BodyDataStream, size: usize) -> Result<Vec<u8>, BodyError> {
        // The kernel provides memory only for the pages that are written.
        let mut bytes = Vec::with_capacity(size);
        while let Some(data) = body.try_next().await.map_err(|_| BodyError::Broken)? {
            if bytes.len() + data.len() > size {
                drop(bytes);
                return Err(self.discard(body, data.len()).await);
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    }

    async fn discard(&self, body: &mut BodyDataStream, mut discarded: usize) -> BodyError {
        let limit = self.limits.body_size.saturating_mul(DISCARDED);
        let rest = async {
            while discarded <= limit
                && let Ok(Some(data)) = body.try_next().await
            {
                discarded += data.len();
            }
        };
        // The response does not depend on the rest.
        let _ = timeout(self.limits.body, rest).await;
        BodyError::TooLarge
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Bytes;
    use futures::stream;
    use tokio::task::yield_now;

    use super::*;

    fn reader(body_size: usize) -> Reader {
        Reader::new(Limits { body_size, ..Limits::default() })
    }

    /// A body without a length.
    fn chunks(count: usize, size: usize) -> Body {
        let chunk = Bytes::from(vec![b'x'; size]);
        Body::from_stream(stream::iter((0..count).map(move |_| Ok::<_, std::io::Error>(chunk.clone()))))
    }

    fn of_size(size: usize) -> Body {
        Body::from(vec![b'x'; size])
    }

    #[tokio::test]
    async fn a_body_up_to_the_limit_is_read() {
        let reader = reader(10 * STEP);
        let free = reader.large.bodies.available_permits();
        let whole = reader.read(chunks(10, STEP)).await.unwrap();
        assert_eq!(whole.bytes.len(), 10 * STEP);
        assert_eq!(reader.large.bodies.available_permits(), free - 10);
        drop(whole);
        assert_eq!(reader.large.bodies.available_permits(), free);
        assert_eq!(reader.read(Body::empty()).await.unwrap().bytes, b"");
    }

    #[tokio::test]
    async fn a_larger_one_is_not_even_if_it_never_ends() {
        let reader = reader(STEP);
        assert_eq!(reader.read(chunks(2, STEP)).await.unwrap_err(), BodyError::TooLarge);
        assert_eq!(reader.read(of_size(2 * STEP)).await.unwrap_err(), BodyError::TooLarge);
        let endless = stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 1_024])));
        assert_eq!(reader.read(Body::from_stream(endless)).await.unwrap_err(), BodyError::TooLarge);
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_memory_waits_in_order_and_not_for_ever() {
        let limits = Limits { large_bodies_size: 8 << 20, ..Limits::default() };
        let reader = Reader::new(limits);
        let first = reader.read(of_size(6 << 20)).await.unwrap();
        let read = |size: usize| {
            let reader = reader.clone();
            tokio::spawn(async move { reader.read(of_size(size)).await.map(|whole| whole.bytes.len()) })
        };
        let (second, third) = (read(4 << 20), read(1 << 20));
        yield_now().await;
        assert_eq!(reader.read(of_size(SMALL)).await.unwrap().bytes.len(), SMALL, "a small one does not wait");
        assert!(!second.is_finished() && !third.is_finished(), "the third waits behind the second");
        drop(first);
        assert_eq!((second.await.unwrap(), third.await.unwrap()), (Ok(4 << 20), Ok(1 << 20)));
        let first = reader.read(of_size(6 << 20)).await.unwrap();
        assert_eq!(read(4 << 20).await.unwrap(), Err(BodyError::Busy));
        drop(first);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_made_of_bodies_is_bounded_too() {
        let many = |count: usize| Body::from(format!("[{}0]", "0,".repeat(count)));
        let limits = Limits { large_reviews_size: memory_for(&vec![b','; 150_000]) + STEP, ..Limits::default() };
        let reader = Reader::new(limits);
        let first = reader.read(many(140_000)).await.unwrap();
        assert_eq!(reader.read(many(140_000)).await.unwrap_err(), BodyError::Busy);
        assert!(reader.read(of_size(1 << 20)).await.is_ok(), "one long value needs little");
        drop(first);
        assert!(reader.read(many(140_000)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_one_fails() {
        let drops = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), ()))
        });
        assert_eq!(reader(STEP).read(Body::from_stream(drops)).await.unwrap_err(), BodyError::TooSlow);
    }
}
