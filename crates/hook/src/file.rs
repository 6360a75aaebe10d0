//! The bytes of a file that is scanned or hooked, without a copy of them in the program's memory.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

/// A file that is mapped for reading. It must not be truncated meanwhile: it is a file that the
/// loader has mapped as well.
#[derive(Debug)]
pub(crate) struct Mapped {
    memory: NonNull<u8>,
    length: usize,
}

impl Mapped {
    /// Maps a whole file.
    ///
    /// # Errors
    /// If the file has no bytes, or cannot be mapped.
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        let anywhere = std::ptr::null_mut();
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let memory = unsafe {
            rustix::mm::mmap(anywhere, length, ProtFlags::READ, MapFlags::PRIVATE, file, 0)
        }?;
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory, length })
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `length` bytes are mapped there as long as this value lives.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.length) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference to it is left.
        let unmapped = unsafe { rustix::mm::munmap(self.memory.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
