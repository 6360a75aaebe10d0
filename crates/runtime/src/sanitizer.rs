//! Calls that sanitizers need for threads that migrate.
//!
//! AddressSanitizer keeps its data of a thread, including the stack, in thread-local storage, which
//! migrates with the stack: it needs no calls. (Its fake stacks do not work while the trampoline
//! stack uses the same storage: `ci/sanitizers.sh` switches them off. The problem does not exist in
//! instrumented programs if this crate is not instrumented.)
//!
//! ThreadSanitizer keeps a thread's clock there. An instrumented kernel thread that waits on the
//! trampoline stack would therefore use the clock of the thread that runs elsewhere meanwhile.
//! `__tsan_switch_to_fiber` does not help, since it changes a pointer in that same storage. So with
//! `--cfg dimmer_tsan`, the trampoline stack uses the storage of a thread that does nothing else.
//! The switches between the two, which ThreadSanitizer does not see, are reported to it. Without
//! that option, all functions here do nothing.

/// Thread-local storage for a trampoline stack.
#[cfg(not(dimmer_tsan))]
#[derive(Debug)]
pub(crate) struct Storage;

#[cfg(not(dimmer_tsan))]
impl Storage {
    pub(crate) fn new() -> Self {
        Self
    }

    /// Switches to the trampoline stack's own storage. Call it on arrival on that stack.
    #[inline(always)]
    pub(crate) fn moor<T>(&self, _: *const T) {}

    /// Switches back to the thread's storage. Call it before leaving the trampoline stack.
    #[inline(always)]
    pub(crate) fn cast_off(&self, _: u64) {}
}

/// Makes the calling thread's previous writes visible to a thread that calls [`arrive`] with the
/// same address.
#[cfg(not(dimmer_tsan))]
#[inline(always)]
pub(crate) fn leave<T>(_: *const T) {}

/// Makes writes before [`leave`] with the same address visible here.
#[cfg(not(dimmer_tsan))]
#[inline(always)]
pub(crate) fn arrive<T>(_: *const T) {}

#[cfg(dimmer_tsan)]
pub(crate) use told::{Storage, arrive, leave};

#[cfg(dimmer_tsan)]
mod told {
    use std::ffi::c_void;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    use std::thread::JoinHandle;

    use dimmer_host::root::Root;
    use rustix::thread::futex;

    use crate::{arch, fork, signals};

    unsafe extern "C" {
        fn __tsan_acquire(address: *mut c_void);
        fn __tsan_release(address: *mut c_void);
    }

    #[inline(always)]
    pub(crate) fn leave<T>(address: *const T) {
        // SAFETY: any address is valid.
        unsafe { __tsan_release(address.cast_mut().cast()) };
    }

    #[inline(always)]
    pub(crate) fn arrive<T>(address: *const T) {
        // SAFETY: any address is valid.
        unsafe { __tsan_acquire(address.cast_mut().cast()) };
    }

    /// Data shared with the thread whose storage is used.
    #[derive(Debug, Default)]
    struct Lender {
        thread_pointer: AtomicU64,
        number: AtomicU32,
        must_end: AtomicU32,
    }

    #[derive(Debug)]
    pub(crate) struct Storage {
        thread_pointer: u64,
        lender: Arc<Lender>,
        thread: Option<JoinHandle<()>>,
        forks: u32,
    }

    impl Storage {
        pub(crate) fn new() -> Self {
            let lender = Arc::new(Lender::default());
            let delegated = Arc::clone(&lender);
            // The thread's storage is used elsewhere: no signal handler may run on it.
            let mask = signals::exchange();
            let thread = std::thread::Builder::new().spawn(move || {
                let number = rustix::thread::gettid().as_raw_nonzero().get();
                delegated.number.store(number.unsigned_abs(), Ordering::Relaxed);
                // SAFETY: `OwnedMigrationState::new` has found that reading it is allowed.
                let own = unsafe { arch::thread_pointer() };
                // Ordering: pairs with the load of the creator: the number is visible with it.
                delegated.thread_pointer.store(own, Ordering::Release);
                // Ordering: pairs with the store in `drop`.
                while delegated.must_end.load(Ordering::Acquire) == 0 {
                    let _ = futex::wait(&delegated.must_end, futex::Flags::PRIVATE, 0, None);
                }
            });
            signals::set(&mask);
            // Ordering: pairs with the store of the new thread.
            while lender.thread_pointer.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            // The thread stops using its storage only when it sleeps.
            let number = lender.number.load(Ordering::Relaxed);
            let state = || Root::live().text(&format!("/proc/self/task/{number}/stat"));
            while !state().is_ok_and(|state| state.contains(") S ")) {
                std::thread::yield_now();
            }
            let thread_pointer = lender.thread_pointer.load(Ordering::Relaxed);
            Self { thread_pointer, lender, thread: thread.ok(), forks: fork::forks() }
        }

        #[inline(always)]
        pub(crate) fn moor<T>(&self, from: *const T) {
            // SAFETY: no other thread uses it.
            unsafe { arch::set_thread_pointer(self.thread_pointer) };
            arrive(from);
        }

        #[inline(always)]
        pub(crate) fn cast_off(&self, thread_pointer: u64) {
            // SAFETY: the storage of the thread, which is here again.
            unsafe { arch::set_thread_pointer(thread_pointer) };
        }
    }

    impl Drop for Storage {
        fn drop(&mut self) {
            let thread = self.thread.take();
            if fork::forks() != self.forks {
                // In a child that thread never existed.
                std::mem::forget(thread);
                return;
            }
            // Ordering: pairs with the load of the thread whose storage it is.
            self.lender.must_end.store(1, Ordering::Release);
            let _ = futex::wake(&self.lender.must_end, futex::Flags::PRIVATE, 1);
            let _ = thread.map(JoinHandle::join);
        }
    }
}
