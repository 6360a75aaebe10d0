//! The C library's functions for which this library has functions of the same name.

use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// An object of the C library: a mutex, a rwlock, a condition variable or a barrier.
pub(crate) type Object = *mut c_void;

/// A moment until which a wait lasts.
pub(crate) type Deadline = *const libc::timespec;

#[repr(C)]
pub(crate) struct Next {
    /// Null until the first lookup.
    found: AtomicPtr<c_void>,
    name: &'static CStr,
    /// The version that programs are linked with, where an older function has the same name.
    version: Option<&'static CStr>,
}

impl Next {
    /// The function's address.
    pub(crate) fn get(&self) -> *mut c_void {
        // Relaxed: an address of code, which was there before.
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.look_up() } else { found }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        let name = self.name.as_ptr();
        let mut found = std::ptr::null_mut();
        if let Some(version) = self.version {
            // SAFETY: a lookup of a name and a version, ended by zero.
            found = unsafe { libc::dlvsym(libc::RTLD_NEXT, name, version.as_ptr()) };
        }
        if found.is_null() {
            // SAFETY: a lookup of a name, ended by zero.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, name) };
        }
        if found.is_null() {
            found = lacks as *mut c_void;
        }
        // Relaxed: an address of code; a second thread finds the same one.
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Whether rwlocks may be tried before they are waited for. Before glibc 2.30, a thread that tries
/// may leave others waiting for ever (bug 23844), so a program that does not try must not begin to.
/// That version is also the first with this function.
pub(crate) fn may_try_rwlocks() -> bool {
    !std::ptr::eq(all::clockrdlock.get(), lacks as *mut c_void)
}

/// Fails, for a C library that is older than the function.
extern "C" fn lacks() -> c_int {
    libc::ENOSYS
}

/// syscall(2), whose number of arguments varies. [`crate::confine`] reads its address, which is
/// first.
pub(crate) static SYSCALL: Next =
    Next { found: AtomicPtr::new(std::ptr::null_mut()), name: c"syscall", version: None };

/// Functions that call the C library's, and [`find`], which looks all of them up.
macro_rules! next {
    ($($name:ident $symbol:literal $(@ $version:literal)? ($($argument:ident: $type:ty),*);)*) => {
        $(
            /// # Safety
            ///
            /// As for the C library's function.
            pub(crate) unsafe fn $name($($argument: $type),*) -> c_int {
                // SAFETY: what has this name takes these arguments.
                let function = unsafe {
                    std::mem::transmute::<
                        *mut c_void,
                        unsafe extern "C-unwind" fn($($type),*) -> c_int,
                    >(all::$name.get())
                };
                // SAFETY: by contract.
                unsafe { function($($argument),*) }
            }
        )*

        #[expect(non_upper_case_globals, reason = "each has the name of its function")]
        mod all {
            use super::{AtomicPtr, Next};
            $(
                pub(super) static $name: Next = Next {
                    found: AtomicPtr::new(std::ptr::null_mut()),
                    name: $symbol,
                    version: next!(@version $($version)?),
                };
            )*
        }

        /// Looks all of them up.
        pub(crate) fn find() {
            $(all::$name.get();)*
            SYSCALL.get();
        }
    };
    (@version) => { None };
    (@version $version:literal) => { Some($version) };
}

next! {
    mutex_lock c"pthread_mutex_lock" (mutex: Object);
    mutex_trylock c"pthread_mutex_trylock" (mutex: Object);
    mutex_timedlock c"pthread_mutex_timedlock" (mutex: Object, until: Deadline);
    mutex_clocklock c"pthread_mutex_clocklock" (mutex: Object, clock: c_int, until: Deadline);
    mutex_unlock c"pthread_mutex_unlock" (mutex: Object);
    rdlock c"pthread_rwlock_rdlock" (lock: Object);
    tryrdlock c"pthread_rwlock_tryrdlock" (lock: Object);
    timedrdlock c"pthread_rwlock_timedrdlock" (lock: Object, until: Deadline);
    clockrdlock c"pthread_rwlock_clockrdlock" (lock: Object, clock: c_int, until: Deadline);
    wrlock c"pthread_rwlock_wrlock" (lock: Object);
    trywrlock c"pthread_rwlock_trywrlock" (lock: Object);
    timedwrlock c"pthread_rwlock_timedwrlock" (lock: Object, until: Deadline);
    clockwrlock c"pthread_rwlock_clockwrlock" (lock: Object, clock: c_int, until: Deadline);
    rwlock_unlock c"pthread_rwlock_unlock" (lock: Object);
    cond_wait c"pthread_cond_wait" @ c"GLIBC_2.3.2" (condition: Object, mutex: Object);
    cond_timedwait c"pthread_cond_timedwait" @ c"GLIBC_2.3.2" (
        condition: Object, mutex: Object, until: Deadline
    );
    cond_clockwait c"pthread_cond_clockwait" (
        condition: Object, mutex: Object, clock: c_int, until: Deadline
    );
    barrier_wait c"pthread_barrier_wait" (barrier: Object);
    prctl c"prctl" (
        option: c_int, second: c_ulong, third: c_ulong, fourth: c_ulong, fifth: c_ulong
    );
}
