//! The error number of the C library, which programs ask for after what Dimmer does unasked.

/// Puts `errno` back when it is dropped.
#[derive(Debug)]
pub struct KeepErrno {
    /// Thread-local storage, which travels with the thread.
    place: *mut i32,
    number: i32,
}

impl KeepErrno {
    /// Notes what it is now.
    #[expect(clippy::new_without_default, reason = "it is nothing without its drop")]
    #[must_use]
    pub fn new() -> Self {
        // SAFETY: needs nothing.
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
