//! A thread for leader election alone: renewals need CPU time, and get it from the kernel, not from workers that may be busy.
//!
//! # Guarantees
//! * What runs here, the connections of its client included, waits for no task of the process' other runtime.
//! * The thread ends when the last handle is dropped. It delays no exit of the process.

use std::{io, sync::Arc, thread};

use tokio::{
    runtime::{Builder, Handle},
    task::JoinHandle,
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// A handle of the thread. Cheap to clone.
#[derive(Clone)]
pub(super) struct ElectionThread {
    runtime: Handle,
    _end: Arc<DropGuard>,
}

impl ElectionThread {
    /// Starts the thread.
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, end) = (runtime.handle().clone(), CancellationToken::new());
        let ended = end.clone();
        thread::Builder::new().name("leader-election".to_owned()).spawn(move || {
            runtime.block_on(ended.cancelled());
            // A look-up of a name may hang.
            runtime.shutdown_background();
        })?;
        Ok(Self { runtime: handle, _end: Arc::new(end.drop_guard()) })
    }

    /// Makes a client whose tasks run on the thread.
    pub(super) fn make<T>(&self, make: impl FnOnce() -> T) -> T {
        let _entered = self.runtime.enter();
        make()
    }

    pub(super) fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(work)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn it_works_while_the_other_runtime_does_not() {
        let thread = ElectionThread::start().unwrap();
        let (done, finished) = std::sync::mpsc::channel();
        thread.spawn(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            done.send(thread::current().name().map(str::to_owned))
        });
        // This runtime has one thread, which stands still here.
        assert_eq!(finished.recv_timeout(Duration::from_secs(20)).unwrap().as_deref(), Some("leader-election"));
    }
}
