//! What is allocated, counted by the allocator; and what the kernel says, as a cross-check.

use std::fs;

use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Bytes that are allocated, as they were asked for: without what the allocator itself adds.
pub(crate) fn live() -> usize {
    HEAP.current_usage()
}

/// The most that was allocated at once since [`forget_peak`].
pub(crate) fn peak() -> usize {
    HEAP.peak_usage()
}

/// Lets the peak begin again at what is live.
pub(crate) fn forget_peak() {
    HEAP.reset_peak_usage();
}

/// Bytes in memory now. 0 where there is no `/proc`.
pub(crate) fn resident() -> usize {
    status("VmRSS:")
}

/// The most bytes that were in memory at once.
pub(crate) fn most_resident() -> usize {
    status("VmHWM:")
}

fn status(field: &str) -> usize {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<usize>().ok()).unwrap_or(0) * 1024
}
