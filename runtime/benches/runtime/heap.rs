//! The allocated memory, counted by the allocator; and the resident memory, as a cross-check.

use std::fs;

use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Allocated bytes as requested, without the overhead of the allocator.
pub(crate) fn live() -> usize {
    HEAP.current_usage()
}

/// The maximum of allocated bytes since [`forget_peak`].
pub(crate) fn peak() -> usize {
    HEAP.peak_usage()
}

/// Resets the peak to the bytes that are allocated now.
pub(crate) fn forget_peak() {
    HEAP.reset_peak_usage();
}

/// Resident bytes. 0 without `/proc`.
pub(crate) fn resident() -> usize {
    status("VmRSS:")
}

/// The maximum of resident bytes.
pub(crate) fn most_resident() -> usize {
    status("VmHWM:")
}

fn status(field: &str) -> usize {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<usize>().ok()).unwrap_or(0) * 1024
}
