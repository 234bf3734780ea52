//! Bodies of bounded size, in bounded time, in bounded memory.

use std::sync::Arc;

use axum::body::Body;
use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::Limits;

/// Memory is reserved in steps of this many bytes.
const STEP: usize = 64 << 10;

/// A client that is still writing does not see an answer if its connection is closed. So of a body that is too large
/// the rest is read and thrown away, up to so many times the limit.
const DISCARDED: usize = 4;

/// Why a body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyError {
    TooLarge,
    TooSlow,
    Busy,
    Broken,
}

/// A whole body. The memory is given back when it is dropped.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) bytes: Vec<u8>,
    reserved: Option<OwnedSemaphorePermit>,
}

/// Reads bodies.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    limits: Limits,
    /// One permit for each step of all bodies under way.
    memory: Arc<Semaphore>,
}

impl Reader {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, memory: Arc::new(Semaphore::new(limits.all_bodies_size / STEP)) }
    }

    /// Reads a body. Memory is reserved for what has arrived, not for what is announced.
    pub(super) async fn read(&self, body: Body) -> Result<Whole, BodyError> {
        timeout(self.limits.body, self.read_all(body)).await.unwrap_or(Err(BodyError::TooSlow))
    }

    async fn read_all(&self, mut body: Body) -> Result<Whole, BodyError> {
        let mut whole = Whole { bytes: Vec::new(), reserved: None };
        let mut discarded = 0;
        while let Some(data) = next(&mut body).await? {
            if discarded == 0 && whole.bytes.len() + data.len() <= self.limits.body_size {
                self.reserve(&mut whole, data.len())?;
                whole.bytes.extend_from_slice(&data);
                continue;
            }
            whole = Whole { bytes: Vec::new(), reserved: None };
            discarded += data.remaining();
            if discarded > self.limits.body_size.saturating_mul(DISCARDED) {
                break;
            }
        }
        if discarded > 0 { Err(BodyError::TooLarge) } else { Ok(whole) }
    }

    fn reserve(&self, whole: &mut Whole, more: usize) -> Result<(), BodyError> {
        let steps = (whole.bytes.len() + more).div_ceil(STEP);
        let missing = steps - whole.reserved.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if missing == 0 {
            return Ok(());
        }
        let missing = u32::try_from(missing).map_err(|_| BodyError::TooLarge)?;
        let permit = self.memory.clone().try_acquire_many_owned(missing).map_err(|_| BodyError::Busy)?;
        match &mut whole.reserved {
            Some(reserved) => reserved.merge(permit),
            none => *none = Some(permit),
        }
        Ok(())
    }
}

async fn next(body: &mut Body) -> Result<Option<Bytes>, BodyError> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Err(_)) => return Err(BodyError::Broken),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::stream;

    use super::*;

    fn reader(body_size: usize, all_bodies_size: usize) -> Reader {
        Reader::new(Limits { body_size, all_bodies_size, body: Duration::from_secs(5), ..Limits::default() })
    }

    fn chunks(count: usize, size: usize) -> Body {
        let chunk = Bytes::from(vec![b'x'; size]);
        Body::from_stream(stream::iter((0..count).map(move |_| Ok::<_, std::io::Error>(chunk.clone()))))
    }

    #[tokio::test]
    async fn a_body_up_to_the_limit_is_read() {
        let reader = reader(10 * STEP, 20 * STEP);
        let whole = reader.read(chunks(10, STEP)).await.unwrap();
        assert_eq!(whole.bytes.len(), 10 * STEP);
        assert_eq!(reader.memory.available_permits(), 10);
        drop(whole);
        assert_eq!(reader.memory.available_permits(), 20);
        assert_eq!(reader.read(Body::empty()).await.unwrap().bytes, b"");
    }

    #[tokio::test]
    async fn a_larger_one_is_not_even_if_it_never_ends() {
        let reader = reader(STEP, 20 * STEP);
        assert_eq!(reader.read(chunks(2, STEP)).await.unwrap_err(), BodyError::TooLarge);
        let endless = stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 1_024])));
        assert_eq!(reader.read(Body::from_stream(endless)).await.unwrap_err(), BodyError::TooLarge);
        assert_eq!(reader.memory.available_permits(), 20);
    }

    #[tokio::test]
    async fn memory_for_all_is_bounded() {
        let reader = reader(4 * STEP, 6 * STEP);
        let first = reader.read(chunks(4, STEP)).await.unwrap();
        assert_eq!(reader.read(chunks(3, STEP)).await.unwrap_err(), BodyError::Busy);
        let second = reader.read(chunks(1, 10)).await.unwrap();
        drop((first, second));
        assert!(reader.read(chunks(3, STEP)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_one_is_given_up() {
        let drops = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), ()))
        });
        assert_eq!(reader(STEP, STEP).read(Body::from_stream(drops)).await.unwrap_err(), BodyError::TooSlow);
    }
}
