//! Functions of other libraries that this one has functions of the same name for.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the C library, or of whichever library is next.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Next {
    /// Null until it is asked for.
    found: AtomicPtr<c_void>,
    name: &'static CStr,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    pub(crate) const fn name(&self) -> &'static CStr {
        self.name
    }

    /// Where it is; null if there is none.
    pub(crate) fn get(&self) -> *mut c_void {
        // Relaxed: an address of code, which was there before.
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: a lookup of a name, ended by zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        // Relaxed: as above; whoever comes second finds the same.
        self.found.store(found, Ordering::Relaxed);
        found
    }
}
