//! Preserves the C library's error number: programs may read it after Dimmer's code has run.

/// Restores `errno` when it is dropped.
#[derive(Debug)]
pub struct KeepErrno {
    /// The address of `errno`: in thread-local storage, which migrates with the thread.
    place: *mut i32,
    number: i32,
}

impl KeepErrno {
    /// Saves the current `errno`.
    #[expect(clippy::new_without_default, reason = "it is nothing without its drop")]
    #[must_use]
    pub fn new() -> Self {
        // SAFETY: has no preconditions.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: the thread's own variable.
        Self { place, number: unsafe { *place } }
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        // SAFETY: the thread's own variable.
        unsafe { *self.place = self.number };
    }
}
