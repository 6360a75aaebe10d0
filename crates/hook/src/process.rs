//! What hooked calls know of their process.

use std::arch::asm;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, Ordering};

/// Whether calls are only counted in this process.
pub(crate) static ONLY_COUNTS: AtomicU32 = AtomicU32::new(0);

/// The kernel's number of this process.
pub(crate) static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Where, as from a thread's FS base, the C library keeps the kernel's number of it; 0 where that
/// is not known.
pub(crate) static TID_AT: AtomicI64 = AtomicI64::new(0);

/// Where the head of the ledger is mapped.
pub(crate) static LEDGER: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// From now on, no call of a hooked function is timed or moved in this process: neither are time
/// stamps read nor return addresses taken off the stack. Calls that are under way return as ever.
/// Async-signal-safe.
pub fn only_count() {
    ONLY_COUNTS.store(1, Ordering::SeqCst);
}

/// Prepares hooked calls, before anything is hooked. Threads without a slot are counted in the head
/// of the mapped ledger, which must stay mapped for as long as any function is hooked.
pub(crate) fn begin(ledger: *mut u8) {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    TID_AT.store(tid_at().unwrap_or_default(), Ordering::Relaxed);
    // Release: whoever sees the ledger sees the rest.
    LEDGER.store(ledger, Ordering::Release);
}

/// Where the C library keeps a thread's number, as it tells debuggers (glibc,
/// `nptl_db/structs.def`): the size of the field in bits, how many there are, and how far it is
/// from the FS base.
fn tid_at() -> Option<i64> {
    /// Further than any description of a thread is long.
    const FAR: u32 = 1 << 13;
    // SAFETY: a lookup of a name, ended by zero.
    let field = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_thread_db_pthread_tid".as_ptr()) };
    let field = field.cast::<[u32; 3]>();
    // SAFETY: null, or three numbers that the C library keeps for debuggers and that never change.
    let [bits, _, at] = *unsafe { field.as_ref() }?;
    if bits != u32::BITS || !(1..FAR).contains(&at) {
        return None;
    }
    let at = i64::from(at);
    let tid: u32;
    // SAFETY: above the FS base lies the C library's description of the thread, and it says where.
    unsafe {
        asm!("mov {:e}, fs:[{}]", out(reg) tid, in(reg) at, options(nostack, readonly, preserves_flags));
    }
    (i32::try_from(tid) == Ok(rustix::thread::gettid().as_raw_pid())).then_some(at)
}

/// In the child of a fork.
pub(crate) fn begin_child() {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
}
