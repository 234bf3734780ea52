//! Long computations, away from the threads that drive tasks.

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::block_in_place,
};

/// What is larger, in bytes, takes so long to decode that other tasks would wait for it noticeably.
pub(crate) const LARGE: usize = 64 << 10;

/// Runs a long computation such that the other tasks of the runtime go on: its worker thread hands them over to another thread
/// first. How many run at once is bounded by the tasks that compute, such as the loop of a controller, which makes one plan at a
/// time. In a runtime of one thread, as in a simulation, it just runs.
pub fn off_worker<T>(work: impl FnOnce() -> T) -> T {
    let has_workers = Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if has_workers { block_in_place(work) } else { work() }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_go_on_though_the_only_worker_computes() {
        let computed = tokio::spawn(async {
            let (done, finished) = mpsc::channel();
            tokio::spawn(async move { done.send(()) });
            off_worker(|| finished.recv_timeout(Duration::from_secs(20)).is_ok())
        });
        assert!(computed.await.unwrap());
    }

    #[tokio::test]
    async fn a_runtime_of_one_thread_computes_in_place() {
        assert_eq!(off_worker(|| 3), 3);
    }
}
