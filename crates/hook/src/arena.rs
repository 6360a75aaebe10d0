//! Memory near code, for stubs: a direct jump reaches no further than 2 GiB.

use std::ffi::c_void;
use std::io;
use std::ops::Range;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

/// The distance between two addresses that are tried (bytes).
const STEP: u64 = 1 << 16;

/// The largest distance of the memory from the code, with room to spare (bytes).
const REACH: u64 = 0x7000_0000;

/// The smallest address that a process may map by default.
const LOWEST: u64 = 1 << 16;

/// New memory near code: first writable, then executable, never both.
#[derive(Debug)]
pub(crate) struct Arena {
    memory: *mut u8,
    length: usize,
}

impl Arena {
    /// Maps `length` bytes, rounded up to pages, within reach of all of `code`.
    ///
    /// # Errors
    /// If no such place is free.
    pub(crate) fn near(code: &Range<u64>, length: usize) -> io::Result<Self> {
        let length = length.next_multiple_of(4096);
        let lowest = code.end.saturating_sub(REACH).max(LOWEST);
        let highest = code.start.saturating_add(REACH).saturating_sub(length as u64);
        let below = (1..).map(|n| (code.start & !(STEP - 1)).checked_sub(n * STEP + length as u64));
        let below = below.map_while(|at| at.filter(|at| *at >= lowest));
        let above = (1..).map(|n| (code.end & !(STEP - 1)).saturating_add(n * STEP));
        let above = above.take_while(|at| *at <= highest);
        for at in below.map(|at| at & !4095).chain(above) {
            match map_at(at, length) {
                Ok(memory) => return Ok(Self { memory, length }),
                Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::new(io::ErrorKind::OutOfMemory, "no free memory within reach of the code"))
    }

    /// The address of its first byte.
    pub(crate) fn address(&self) -> u64 {
        self.memory as u64
    }

    /// Copies `bytes` to `at` (bytes from the start). Returns false if there is no room.
    #[must_use]
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        if at.checked_add(bytes.len()).is_none_or(|end| end > self.length) {
            return false;
        }
        // SAFETY: within the mapping, as just checked.
        let to = unsafe { self.memory.add(at) };
        // SAFETY: no other thread has the memory's address yet, and the memory is writable until it
        // is executable.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        true
    }

    /// Makes the memory executable for the rest of the process's life.
    ///
    /// # Errors
    /// If the system does not allow that.
    pub(crate) fn seal(self) -> io::Result<()> {
        let access = MprotectFlags::READ | MprotectFlags::EXEC;
        // SAFETY: the mapping is this arena's own, and no thread writes to it any more.
        unsafe { rustix::mm::mprotect(self.memory.cast(), self.length, access) }?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is this arena's own, and was not sealed, so no code leads there.
        let unmapped = unsafe { rustix::mm::munmap(self.memory.cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

fn map_at(at: u64, length: usize) -> Result<*mut u8, rustix::io::Errno> {
    let wanted =
        std::ptr::without_provenance_mut::<c_void>(usize::try_from(at).unwrap_or_default());
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: a new mapping, which replaces none.
    let memory = unsafe { rustix::mm::mmap_anonymous(wanted, length, access, flags) }?;
    if memory == wanted {
        return Ok(memory.cast());
    }
    // A kernel before 4.17 takes the address only as a hint.
    // SAFETY: the mapping was just made.
    unsafe { rustix::mm::munmap(memory, length) }?;
    Err(rustix::io::Errno::EXIST)
}
