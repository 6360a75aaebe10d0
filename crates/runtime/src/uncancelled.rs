//! All code of this crate that uses files runs [`Uncancelled`]: file functions are cancellation
//! points, and Rust code ends the process when it is cancelled there.

use std::ffi::c_int;

unsafe extern "C" {
    /// pthread_setcancelstate(3).
    safe fn pthread_setcancelstate(state: c_int, before: &mut c_int) -> c_int;
}

/// The calling thread cannot be cancelled until this is dropped.
#[derive(Debug)]
pub(crate) struct Uncancelled(c_int);

impl Uncancelled {
    pub(crate) fn begin() -> Self {
        /// Source: glibc, sysdeps/nptl/pthread.h.
        const DISABLE: c_int = 1;
        let mut before = 0;
        pthread_setcancelstate(DISABLE, &mut before);
        Self(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        pthread_setcancelstate(self.0, &mut 0);
    }
}
