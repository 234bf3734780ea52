//! An allocator that tells a test of each allocation.
//!
//! It is a crate of its own because it has the only `unsafe` code of the workspace: it passes each call on to the allocator of the
//! system.

use std::alloc::{GlobalAlloc, Layout, System};

/// The allocator of the system. It calls the function with the size of each block that it allocates, in bytes; with the new size
/// when a block is moved or resized.
///
/// # Assumptions
/// * The function does not allocate and does not panic.
#[derive(Debug)]
pub struct ObservedAllocator(pub fn(usize));

#[allow(unsafe_code, reason = "the trait is unsafe")]
// SAFETY: each call goes to the system's allocator with its own arguments.
unsafe impl GlobalAlloc for ObservedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        (self.0)(layout.size());
        // SAFETY: the caller keeps the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        (self.0)(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        (self.0)(size);
        // SAFETY: as above; the block came from the system's allocator.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}
