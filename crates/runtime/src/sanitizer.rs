//! What sanitizers have to be told of threads that travel.
//!
//! AddressSanitizer keeps what it knows of a thread, its stack among it, in thread-local storage,
//! which travels with the stack: nothing has to be told. (Its fake stacks do not bear that the
//! trampoline stack uses the same storage meanwhile: `ci/sanitizers.sh` switches them off. Programs
//! that are instrumented while this crate is not do not have the problem.)
//!
//! ThreadSanitizer keeps a thread's clock there. So a kernel thread that waits on the trampoline
//! stack, instrumented, would use the clock of the thread that runs elsewhere meanwhile.
//! `__tsan_switch_to_fiber` does not help, as it changes a pointer in that same storage. With
//! `--cfg dimmer_tsan` the trampoline stack therefore has the storage of a thread that does nothing
//! else, and the switches between the two, which it does not see, are told to it. Otherwise all of
//! this is nothing.

/// Thread-local storage for a trampoline stack.
#[cfg(not(dimmer_tsan))]
#[derive(Debug)]
pub(crate) struct Storage;

#[cfg(not(dimmer_tsan))]
impl Storage {
    pub(crate) fn new() -> Self {
        Self
    }

    /// The trampoline stack's own storage from now on; to be called on arrival in it.
    #[inline(always)]
    pub(crate) fn moor<T>(&self, _: *const T) {}

    /// The thread's again; to be called before leaving the trampoline stack.
    #[inline(always)]
    pub(crate) fn cast_off(&self, _: u64) {}
}

/// What the calling thread has done is seen by whoever is told of [`arrive`] with the same address.
#[cfg(not(dimmer_tsan))]
#[inline(always)]
pub(crate) fn leave<T>(_: *const T) {}

/// What was done before [`leave`] with the same address is seen.
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

    use crate::{fork, signals, switch};

    unsafe extern "C" {
        fn __tsan_acquire(address: *mut c_void);
        fn __tsan_release(address: *mut c_void);
    }

    #[inline(always)]
    pub(crate) fn leave<T>(address: *const T) {
        // SAFETY: an address is all that it wants.
        unsafe { __tsan_release(address.cast_mut().cast()) };
    }

    #[inline(always)]
    pub(crate) fn arrive<T>(address: *const T) {
        // SAFETY: as above.
        unsafe { __tsan_acquire(address.cast_mut().cast()) };
    }

    /// What the thread that lends its storage shares.
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
            let lent = Arc::clone(&lender);
            // Its storage is not its own: no handler may run on it.
            let mask = signals::exchange();
            let thread = std::thread::Builder::new().spawn(move || {
                let number = rustix::thread::gettid().as_raw_nonzero().get();
                lent.number.store(number.unsigned_abs(), Ordering::Relaxed);
                // SAFETY: `Traveller::new` has found that it may be read.
                let own = unsafe { switch::thread_pointer() };
                lent.thread_pointer.store(own, Ordering::Release);
                while lent.must_end.load(Ordering::Acquire) == 0 {
                    let _ = futex::wait(&lent.must_end, futex::Flags::PRIVATE, 0, None);
                }
            });
            signals::set(&mask);
            while lender.thread_pointer.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            // Only once it sleeps does it leave its storage alone.
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
            // SAFETY: nobody else uses it.
            unsafe { switch::set_thread_pointer(self.thread_pointer) };
            arrive(from);
        }

        #[inline(always)]
        pub(crate) fn cast_off(&self, thread_pointer: u64) {
            // SAFETY: the thread's, which is here again.
            unsafe { switch::set_thread_pointer(thread_pointer) };
        }
    }

    impl Drop for Storage {
        fn drop(&mut self) {
            let thread = self.thread.take();
            if fork::forks() != self.forks {
                // In a child that thread never was.
                std::mem::forget(thread);
                return;
            }
            self.lender.must_end.store(1, Ordering::Release);
            let _ = futex::wake(&self.lender.must_end, futex::Flags::PRIVATE, 1);
            let _ = thread.map(JoinHandle::join);
        }
    }
}
