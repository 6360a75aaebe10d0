//! A small stack, with an inaccessible page below it.

use std::ffi::c_void;
use std::io;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::sanitizer;

/// Size of a page (bytes).
const PAGE: usize = 4096;
/// Size of the stack (bytes). Enough for a wait: a few frames, and the frame that the kernel writes
/// for the handler of a fault.
const BYTES: usize = 8 * PAGE;

/// Size of a cache line (bytes).
const LINE: usize = 64;

/// Address of a synchronization for ThreadSanitizer: a new mapping may reuse the memory of a stack
/// that was unmapped, and ThreadSanitizer does not see the unmapping.
static MAPPINGS: u8 = 0;

/// The stack. Dropping it frees its memory.
#[derive(Debug)]
pub(crate) struct Stack(*mut c_void);

impl Stack {
    /// Maps a stack.
    ///
    /// # Errors
    /// The system's, if there is no memory.
    pub(crate) fn map() -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, at an address that the kernel chooses.
        let memory = unsafe {
            mmap_anonymous(std::ptr::null_mut(), PAGE + BYTES, protection, MapFlags::PRIVATE)?
        };
        sanitizer::arrive(&raw const MAPPINGS);
        let stack = Self(memory);
        // SAFETY: the lowest page of the new mapping.
        unsafe { mprotect(memory, PAGE, MprotectFlags::empty())? };
        Ok(stack)
    }

    /// The place for a value at the top of the stack. The stack grows down from there.
    pub(crate) const fn top<T>(&self) -> *mut T {
        const {
            assert!(size_of::<T>() <= PAGE && align_of::<T>() <= LINE);
        }
        // SAFETY: within the mapping, above the inaccessible page.
        unsafe { self.0.byte_add(PAGE + BYTES - size_of::<T>().next_multiple_of(LINE)) }.cast()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        sanitizer::leave(&raw const MAPPINGS);
        // SAFETY: mapped by `map`, and no thread uses it as its stack.
        let _ = unsafe { munmap(self.0, PAGE + BYTES) };
    }
}
