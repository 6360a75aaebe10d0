//! The bytes of a file that is scanned or hooked, without a copy of them in the program's memory.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

/// A file that is mapped, to be read. It must not be cut meanwhile: it is one that the loader has
/// mapped as well.
#[derive(Debug)]
pub(crate) struct Mapped {
    memory: NonNull<u8>,
    length: usize,
}

impl Mapped {
    /// Maps a whole file.
    ///
    /// # Errors
    /// If it has no bytes, or cannot be mapped.
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        let anywhere = std::ptr::null_mut();
        // SAFETY: a new mapping, where the kernel likes.
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
        // SAFETY: so many bytes are mapped there, for as long as this lives.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.length) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own, and nobody refers to it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.memory.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
