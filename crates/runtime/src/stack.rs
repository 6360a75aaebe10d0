//! A small stack of its own, with a page below it that must not be touched.

use std::ffi::c_void;
use std::io;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::sanitizer;

/// A page.
const PAGE: usize = 4096;
/// Room for a wait: a few frames, and what the kernel puts there for a fault's handler.
const BYTES: usize = 8 * PAGE;

/// A cache line.
const LINE: usize = 64;

/// Who maps a stack may get the memory of one that is no more, of which ThreadSanitizer does not
/// see that it was unmapped.
static MAPPINGS: u8 = 0;

/// The stack; its memory goes with it.
#[derive(Debug)]
pub(crate) struct Stack(*mut c_void);

impl Stack {
    /// Maps one.
    ///
    /// # Errors
    /// The system's, if there is no memory.
    pub(crate) fn map() -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, where the kernel likes.
        let memory = unsafe {
            mmap_anonymous(std::ptr::null_mut(), PAGE + BYTES, protection, MapFlags::PRIVATE)?
        };
        sanitizer::arrive(&raw const MAPPINGS);
        let stack = Self(memory);
        // SAFETY: the lowest page of what was just mapped.
        unsafe { mprotect(memory, PAGE, MprotectFlags::empty())? };
        Ok(stack)
    }

    /// Room for a value at its top, from which on downwards it is to be filled.
    pub(crate) const fn top<T>(&self) -> *mut T {
        const {
            assert!(size_of::<T>() <= PAGE && align_of::<T>() <= LINE);
        }
        // SAFETY: within what was mapped, above the page that must not be touched.
        unsafe { self.0.byte_add(PAGE + BYTES - size_of::<T>().next_multiple_of(LINE)) }.cast()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        sanitizer::leave(&raw const MAPPINGS);
        // SAFETY: mapped by `map`, and nobody stands on it.
        let _ = unsafe { munmap(self.0, PAGE + BYTES) };
    }
}
