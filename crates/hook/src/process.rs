//! Facts about the process that the code of hooked calls reads.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, Ordering};

use crate::arch::word_of_thread;
use crate::ledger::UNHOOK_ORDERS;

/// Whether calls are only counted in this process. 0: no; [`NEVER_TIMES`]: they are, and pass
/// marks; [`RESTRICTED`] or more: they are, and pass none.
pub(crate) static ONLY_COUNTS: AtomicU32 = AtomicU32::new(0);

/// Stands for a process whose calls are never timed.
pub(crate) const NEVER_TIMES: u32 = 1;
/// Stands for each reason to read no time stamps ([`mod@crate::giving_up`]).
pub(crate) const RESTRICTED: u32 = 2;

/// The kernel's id of this process.
pub(crate) static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Offset, from a thread's FS base, of the kernel's thread id in the C library's description of the
/// thread; 0 if it is not known.
pub(crate) static TID_AT: AtomicI64 = AtomicI64::new(0);

/// Address of the mapped head of the ledger.
pub(crate) static LEDGER: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// The number of times that the observer has ordered that hooks be taken out, modulo 2³²; see
/// [`crate::Ledger::unhook`].
pub(crate) fn unhook_orders() -> u32 {
    // Ordering: pairs with the store in `begin`.
    let ledger = LEDGER.load(Ordering::Acquire);
    if ledger.is_null() {
        return 0;
    }
    // SAFETY: the head of a ledger, which stays mapped and contains the number.
    let number = unsafe { ledger.add(UNHOOK_ORDERS) };
    // SAFETY: as above; the number is aligned. Other processes change it.
    let number = unsafe { AtomicU32::from_ptr(number.cast()) };
    // Ordering: the sites of an order, which the observer wrote before, are read after this.
    number.load(Ordering::Acquire)
}

/// The number of these orders that this process has carried out.
pub(crate) static ORDERS_DONE: AtomicU32 = AtomicU32::new(0);

/// How often a call would have been timed while an order was not carried out. Threads may miss one
/// another's.
pub(crate) static ATTEMPTS: AtomicU32 = AtomicU32::new(0);

/// A thread takes hooks out.
pub(crate) static IS_UNHOOKING: AtomicBool = AtomicBool::new(false);

/// From now on, no call is timed or moved in this process, but calls pass marks: return addresses
/// stay on the stack, where a signal handler's is looked for. Call it before anything is hooked.
pub fn never_time() {
    // Relaxed: nothing is hooked yet.
    ONLY_COUNTS.fetch_or(NEVER_TIMES, Ordering::Relaxed);
}

/// Prepares hooked calls, before anything is hooked. Threads without a slot are counted in the head
/// of the mapped ledger, which must stay mapped as long as any function is hooked.
pub(crate) fn begin(ledger: *mut u8) {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    TID_AT.store(tid_at().unwrap_or_default(), Ordering::Relaxed);
    // Release: a thread that sees the ledger sees the rest.
    // Ordering: pairs with the load in `dimmer_hook_slow` (x86 loads acquire).
    LEDGER.store(ledger, Ordering::Release);
}

/// Finds the offset of the kernel's thread id in the C library's description of a thread, from the
/// data that the C library has for debuggers (glibc, `nptl_db/structs.def`): the size of the field
/// in bits, the number of elements, and the distance from the FS base.
fn tid_at() -> Option<i64> {
    /// More than the length of any description of a thread.
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
    // SAFETY: the C library's description of the thread lies above the thread pointer, at the
    // offset that the library gives.
    let tid = unsafe { word_of_thread(at) };
    (i32::try_from(tid) == Ok(rustix::thread::gettid().as_raw_pid())).then_some(at)
}

/// Updates the process id, in the child of a fork. A thread that took hooks out is not there.
pub(crate) fn begin_child() {
    IS_UNHOOKING.store(false, Ordering::Relaxed);
    PROCESS.store(std::process::id(), Ordering::Relaxed);
}
