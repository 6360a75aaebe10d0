//! Threads that are cancelled while migrated, and threads that may be cancelled anywhere.
//!
//! glibc cancels a waiting thread by a signal to the kernel thread that it has on record; the
//! signal's handler unwinds the thread. For a migrated thread that is the home thread, where the
//! signal stays pending. Before glibc 2.41, the wait does not return either until the handler has
//! run (`__pthread_disable_asynccancel`). So a thread that cancels a migrated thread makes the
//! handler run where that thread is, on its own stack and with its own thread-local storage. On its
//! way out of the call the thread comes home. The signal that is pending there finds it cancelled
//! already.
//!
//! Workers do not block the signal of the C library by which all threads change their rights. That
//! signal is used here too: sent with a value, it names the thread to cancel. (The C library never
//! sends a value, and ignores it.) A thread that went home meanwhile is left alone, since the
//! pending signal there does the same.
//!
//! A thread that asks to be cancelled anywhere (`PTHREAD_CANCEL_ASYNCHRONOUS`) may be unwound from
//! any instruction. Rust's code on its way does not stand that. So the thread comes home, and its
//! calls stay until it asks for the other kind again.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::sync::atomic::{AtomicPtr, Ordering};

use dimmer_hook::{
    MIGRATED, allow_migration, cut_migration_short, inhibit_migration, is_restricted, thread_offset,
};
use dimmer_runtime::calls::{system_call, thread_pointer};

use crate::arch::cancel::receive;
use crate::arch::thread_data::word_of;
use crate::next::Next;
use crate::{home, thread};

pub(crate) static CANCEL: Next = Next::new(c"pthread_cancel");
pub(crate) static SET_TYPE: Next = Next::new(c"pthread_setcanceltype");
pub(crate) static SET_STATE: Next = Next::new(c"pthread_setcancelstate");

/// Looks up this file's next functions, as [`crate::home::find_next`] does.
pub(crate) fn find_next() {
    for next in [&CANCEL, &SET_TYPE, &SET_STATE] {
        next.get();
    }
}

/// Source of this and the next: glibc, sysdeps/unix/sysv/linux/internal-signals.h.
pub(crate) const SIGCANCEL: c_int = 32;
const SIGSETXID: c_int = 33;

/// Source: glibc, sysdeps/nptl/pthread.h.
pub(crate) const ASYNCHRONOUS: c_int = 1;

/// Cancellation is disabled; 0 means enabled. Source: glibc, sysdeps/nptl/pthread.h.
pub(crate) const DISABLE: c_int = 1;

/// The action for a signal, in the kernel's format. Source: Linux,
/// arch/x86/include/uapi/asm/signal.h.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// Bytes of a set of 64 signals.
pub(crate) const MASK_BYTES: i64 = 8;

/// The information that comes with a signal with a value, in the kernel's format. Source: Linux,
/// include/uapi/asm-generic/siginfo.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Information {
    signal: c_int,
    errno: c_int,
    code: c_int,
    unused: c_int,
    process: c_int,
    user: u32,
    value: u64,
    rest: [u64; 12],
}

impl Information {
    /// Offset of the signal's code.
    pub(crate) const CODE: usize = offset_of!(Self, code);
}

const _: () = assert!(size_of::<Information>() == size_of::<libc::siginfo_t>());

/// The C library's handlers for the two signals.
pub(crate) static CANCELS: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
pub(crate) static SETS_IDS: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Cancels another thread. Called with all signals blocked.
pub(crate) unsafe extern "C" fn cancel(thread: u64) -> c_int {
    let next = CANCEL.get();
    if next.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: the C library's function of that name.
    let function: unsafe extern "C" fn(u64) -> c_int = unsafe { std::mem::transmute(next) };
    // SAFETY: the caller passes a thread that has not been joined.
    let result = unsafe { function(thread) };
    if home::has_moved() && !is_restricted() {
        tell(thread);
    }
    result
}

/// Makes the C library's handler run where a thread is, if it has migrated. `thread` is the C
/// library's name for it: the address of its thread-local storage. The thread may have ended, as it
/// is cancelled already.
fn tell(thread: u64) {
    // A thread that has disabled cancellation ignores the signal, but a wait might be interrupted.
    let Some([is_off, carrier]) = read([state_of(thread), carrier_of(thread)]) else { return };
    if is_off != 0 || carrier == 0 || !receives() {
        return;
    }
    let process = own_process();
    let information = Information {
        signal: SIGSETXID,
        errno: 0,
        code: libc::SI_QUEUE,
        unused: 0,
        process,
        user: 0,
        value: thread,
        rest: [0; 12],
    };
    ask(
        libc::SYS_rt_tgsigqueueinfo,
        [process.into(), carrier.into(), SIGSETXID.into(), at(&information)],
    );
}

/// Reads words of a thread by the kernel, as their memory may be gone; `None` if it is.
fn read<const WORDS: usize>(words: [*mut u32; WORDS]) -> Option<[u32; WORDS]> {
    let mut values = [0_u32; WORDS];
    let bytes = number(size_of_val(&values));
    let to = [at_mut(&mut values), bytes];
    let from = words.map(|word| [number(word.expose_provenance()), number(size_of::<u32>())]);
    let arguments = [own_process().into(), at(&to), 1, at(&from), number(WORDS), 0];
    (ask_six(libc::SYS_process_vm_readv, arguments) == bytes).then_some(values)
}

/// Address of the id of the kernel thread that runs a thread while it is migrated.
fn carrier_of(thread: u64) -> *mut u32 {
    word_of(thread, thread_offset().wrapping_add_unsigned(MIGRATED as u64))
}

/// Address of the flag that a thread has disabled cancellation.
fn state_of(thread: u64) -> *mut u32 {
    word_of(thread, thread::offset().wrapping_add_unsigned(thread::UNCANCELLABLE as u64))
}

/// Installs [`receive`] for the signal that workers do not block. Returns whether that worked.
fn receives() -> bool {
    let (mut cancels, mut sets_ids) = (Action::default(), Action::default());
    ask(libc::SYS_rt_sigaction, [SIGCANCEL.into(), 0, at_mut(&mut cancels), MASK_BYTES]);
    ask(libc::SYS_rt_sigaction, [SIGSETXID.into(), 0, at_mut(&mut sets_ids), MASK_BYTES]);
    let own = receive as *const () as usize;
    // 0 and 1 are no handlers.
    if cancels.handler <= libc::SIG_IGN || sets_ids.handler <= libc::SIG_IGN {
        return false;
    }
    if sets_ids.handler == own {
        return true;
    }
    CANCELS.store(std::ptr::with_exposed_provenance_mut(cancels.handler), Ordering::Relaxed);
    SETS_IDS.store(std::ptr::with_exposed_provenance_mut(sets_ids.handler), Ordering::Relaxed);
    let action = Action { handler: own, ..sets_ids };
    ask(libc::SYS_rt_sigaction, [SIGSETXID.into(), at(&action), 0, MASK_BYTES]) == 0
}

/// Whether the signal interrupted the thread to cancel here, in the program's code. If so, makes
/// the signal look as the C library sends it.
///
/// Uses no thread-local storage: a worker may still have that of a thread that it carried before,
/// and that thread may have ended since.
pub(crate) extern "C" fn is_here(information: &mut Information) -> bool {
    // SAFETY: the signal is sent only for threads that have migrated, so reading it is allowed.
    let thread = unsafe { thread_pointer() };
    let process = own_process();
    if information.value != thread || information.process != process {
        return false;
    }
    let Some([carrier]) = read([carrier_of(thread)]) else { return false };
    if i64::from(carrier) != ask(libc::SYS_gettid, [0; 4]) {
        return false;
    }
    information.signal = SIGCANCEL;
    information.code = libc::SI_TKILL;
    true
}

pub(crate) extern "C" fn find(next: &Next) -> *mut c_void {
    next.get()
}

/// Prepares for a thread that is about to let itself be cancelled anywhere.
pub(crate) extern "C" fn before_asynchronous() {
    cut_migration_short();
    thread::set(thread::ASYNCHRONOUS, 1);
    inhibit_migration();
}

/// Undoes [`before_asynchronous`]. Returns 0, as the C function then does.
pub(crate) extern "C" fn after_asynchronous() -> c_int {
    thread::set(thread::ASYNCHRONOUS, 0);
    allow_migration();
    0
}

/// An address in the form that system calls take.
fn at<T>(value: &T) -> i64 {
    number(std::ptr::from_ref(value).expose_provenance())
}

/// Likewise, for data that is written.
fn at_mut<T>(value: &mut T) -> i64 {
    number(std::ptr::from_mut(value).expose_provenance())
}

fn number(address: usize) -> i64 {
    address.cast_signed() as i64
}

fn own_process() -> c_int {
    c_int::try_from(ask(libc::SYS_getpid, [0; 4])).unwrap_or_default()
}

fn ask(number: i64, [first, second, third, fourth]: [i64; 4]) -> i64 {
    ask_six(number, [first, second, third, fourth, 0, 0])
}

/// Touches no thread-local storage.
fn ask_six(number: i64, arguments: [i64; 6]) -> i64 {
    // SAFETY: the kernel writes only to memory that the callers in this file have passed for that.
    unsafe { system_call(number, arguments) }
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

    use super::*;

    #[test]
    fn words_of_a_thread_that_is_gone_are_not_read() {
        const BYTES: usize = 4096;
        let (access, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping.
        let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), BYTES, access, private) };
        let memory = memory.unwrap();
        let words = [memory.cast::<u32>(), memory.cast::<u32>().wrapping_add(700)];
        for (value, word) in (7..).zip(words) {
            // SAFETY: within the mapping, aligned.
            unsafe { word.write(value) };
        }
        assert_eq!(read(words), Some([7, 8]));
        let mut there = 9;
        // Not unmapped: something of another test could lie there then.
        // SAFETY: the whole mapping, which nothing uses any more.
        unsafe { mprotect(memory, BYTES, MprotectFlags::empty()) }.unwrap();
        assert_eq!(read([&raw mut there, words[1]]), None);
        assert_eq!(read(words), None);
    }
}
