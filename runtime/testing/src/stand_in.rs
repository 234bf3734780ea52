//! Tells what stand-ins do, such as the API server of a test, from what the process under test does: both run in one thread.
//!
//! A stand-in does its work in [`within`] where it is called, and wraps the futures of its tasks in [`polled`]. A test that counts
//! something in that thread, such as allocations, asks [`is_active`].

use std::{cell::Cell, future::poll_fn, marker::PhantomData};

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether a stand-in works at present, in this thread.
pub fn is_active() -> bool {
    DEPTH.try_with(|depth| depth.get() > 0).unwrap_or(true)
}

/// Does work of a stand-in.
pub fn within<T>(work: impl FnOnce() -> T) -> T {
    let is_inner = is_active();
    let _active = Active::enter();
    if is_inner { work() } else { outermost(work) }
}

/// The same future: each of its polls is work of a stand-in.
pub fn polled<F: Future>(future: F) -> impl Future<Output = F::Output> + use<F> {
    let mut future = Box::pin(future);
    poll_fn(move |context| within(|| future.as_mut().poll(context)))
}

/// A function of its own, because `make bench-instructions` knows by its name when stand-ins work. It is never called within itself.
#[inline(never)]
fn outermost<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// The work of a stand-in, until it is dropped, also by a panic.
struct Active(PhantomData<*const ()>);

impl Active {
    fn enter() -> Self {
        DEPTH.with(|depth| depth.set(depth.get() + 1));
        Self(PhantomData)
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_polls_of_a_stand_in_are_its_work() {
        let stand_in = tokio::spawn(polled(async {
            let first = is_active();
            tokio::task::yield_now().await;
            first && is_active()
        }));
        tokio::task::yield_now().await;
        assert!(!is_active());
        assert!(stand_in.await.unwrap());
        let (inner, outer) = within(|| (within(is_active), is_active()));
        assert!(inner && outer && !is_active());
    }
}
