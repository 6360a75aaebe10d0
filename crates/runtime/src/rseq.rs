//! The area of restartable sequences (rseq(2)) of a thread, in which the kernel keeps the CPU that
//! the thread runs on.
//!
//! glibc registers an area for each kernel thread, in the thread-local storage that the kernel
//! thread starts with, and `sched_getcpu` reads the area in the storage in use. A child of fork(2)
//! has the registration of the kernel thread that has forked. If that was a worker that carried a
//! thread, the kernel would update the worker's area in the child, and the thread's would never
//! change again.

use std::ffi::{CStr, c_uint};
use std::sync::atomic::{AtomicIsize, AtomicU32, Ordering};

use crate::arch::system_call;

/// Distance of a thread's area from its thread pointer (bytes).
static OFFSET: AtomicIsize = AtomicIsize::new(0);

/// Length of an area as the C library registers it (bytes); 0 if it registers none.
static LENGTH: AtomicU32 = AtomicU32::new(0);

/// The least length that the C library registers. Source: `RSEQ_AREA_SIZE_INITIAL` in glibc,
/// sysdeps/unix/sysv/linux/rseq-internal.h.
const LEAST: u32 = 32;

/// What the kernel expects before the places where it interrupts a sequence. Source: `RSEQ_SIG` in
/// glibc, sysdeps/unix/sysv/linux/x86/bits/rseq.h.
const SIGNATURE: i64 = 0x5305_3053;

/// Source: `RSEQ_FLAG_UNREGISTER` in Linux, include/uapi/linux/rseq.h.
const UNREGISTER: i64 = 1;

/// Looks up where the C library keeps the areas (glibc since 2.35). In advance, because a child of
/// fork(2) may not look up symbols.
pub(crate) fn prepare() {
    let (offset, size) = (symbol::<isize>(c"__rseq_offset"), symbol::<c_uint>(c"__rseq_size"));
    if let (Some(offset), Some(size @ 1..)) = (offset, size) {
        OFFSET.store(offset, Ordering::Relaxed);
        LENGTH.store(size.max(LEAST), Ordering::Relaxed);
    }
}

/// The value of a constant of the C library, if it has that one.
fn symbol<T: Copy>(name: &CStr) -> Option<T> {
    // SAFETY: the name is a text that ends with a zero.
    let place = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.cast::<T>();
    // SAFETY: null, or the address of the constant, which is of this type.
    unsafe { place.as_ref() }.copied()
}

/// Registers the area of the thread pointer `to` for the calling kernel thread, in place of that of
/// the thread pointer `from`. Async-signal-safe.
pub(crate) fn replace(from: u64, to: u64) {
    let length = i64::from(LENGTH.load(Ordering::Relaxed));
    let call = |pointer: u64, flags: i64| {
        let area = pointer.wrapping_add_signed(OFFSET.load(Ordering::Relaxed) as i64);
        let arguments = [area.cast_signed(), length, flags, SIGNATURE, 0, 0];
        // SAFETY: the kernel refuses to unregister another area than the registered one. It writes
        // the new one as long as the thread exists, whose storage holds it.
        unsafe { system_call(libc::SYS_rseq, arguments) }
    };
    if length > 0 && call(from, UNREGISTER) == 0 {
        call(to, 0);
    }
}
