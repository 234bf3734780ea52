//! Tells what stand-ins do, such as the API server of a test, from what the process under test does: both run in one thread.
//!
//! A stand-in enters by [`enter`] where it is called, and wraps the futures of its tasks in [`polled`]. A test that counts
//! something in that thread, such as allocations, asks [`is_active`].

use std::{cell::Cell, future::poll_fn, marker::PhantomData};

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether a stand-in works at present, in this thread.
pub fn is_active() -> bool {
    DEPTH.try_with(|depth| depth.get() > 0).unwrap_or(true)
}

/// The work of a stand-in, until it is dropped.
#[derive(Debug)]
#[must_use = "the work ends when this is dropped"]
pub struct Active(PhantomData<*const ()>);

/// Begins work of a stand-in, in this thread.
pub fn enter() -> Active {
    DEPTH.with(|depth| depth.set(depth.get() + 1));
    Active(PhantomData)
}

impl Drop for Active {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}

/// The same future: each of its polls is work of a stand-in.
pub fn polled<F: Future>(future: F) -> impl Future<Output = F::Output> + use<F> {
    let mut future = Box::pin(future);
    poll_fn(move |context| {
        let _active = enter();
        future.as_mut().poll(context)
    })
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
        let (outer, inner) = (enter(), enter());
        drop(inner);
        assert!(is_active());
        drop(outer);
        assert!(!is_active());
    }
}
