//! Handles the program's SIGSEGV while [`crate::cpuid`] needs that signal itself. This file has the
//! functions of the C library by which programs install handlers and block signals.
//!
//! While no features are hidden, they pass everything on. Once features are hidden, the handler
//! that a program installs for SIGSEGV is recorded, and called for every SIGSEGV that CPUID did not
//! cause. SIGSEGV is then never blocked, because a fault would end the process. Programs that make
//! the system calls themselves, and old functions (`sigset`, `sigvec`, `sigblock`), bypass this.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use libc::{SIGSEGV, sighandler_t, siginfo_t, sigset_t};

use crate::cpuid;
use crate::next::Next;
use crate::{home, marks};

type Action = libc::sigaction;
type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// The program's handler: its address, [`WITH_INFO`] and [`ONCE`]. One word, so that a signal finds
/// it complete. Masks and other flags are those of the installed action.
static PROGRAM: AtomicU64 = AtomicU64::new(libc::SIG_DFL as u64);

/// The handler takes three arguments.
const WITH_INFO: u64 = 1 << 62;
/// The handler is for one signal only.
const ONCE: u64 = 1 << 63;
const ADDRESS: u64 = WITH_INFO - 1;

const DEFAULT: u64 = libc::SIG_DFL as u64;
const IGNORE: u64 = libc::SIG_IGN as u64;

/// The handler to install instead of the program's; null while there is none.
static HANDLER: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

static SIGACTION: Next = Next::new(c"sigaction");
static SIGNAL: Next = Next::new(c"signal");
static SYSV_SIGNAL: Next = Next::new(c"__sysv_signal");
static SIGPROCMASK: Next = Next::new(c"sigprocmask");
static PTHREAD_SIGMASK: Next = Next::new(c"pthread_sigmask");

/// Looks up this file's next functions, as [`crate::home::find_next`] does.
pub(crate) fn find_next() {
    for next in [&SIGACTION, &SIGNAL, &SYSV_SIGNAL, &SIGPROCMASK, &PTHREAD_SIGMASK] {
        next.get();
    }
}

/// Makes `handler` handle every SIGSEGV from now on, and unblocks SIGSEGV in this thread.
pub(crate) fn take_faults(handler: Handler) -> Option<()> {
    // Now, because a signal handler may not call `dlsym`.
    for next in [&SIGACTION, &SIGNAL, &SYSV_SIGNAL, &SIGPROCMASK, &PTHREAD_SIGMASK] {
        if next.get().is_null() {
            return None;
        }
    }
    let mut before = empty_action();
    // SAFETY: writes the action to `before`, which lives until the call returns.
    let result = unsafe { real_sigaction(SIGSEGV, std::ptr::null(), &raw mut before) };
    if result != 0 {
        return None;
    }
    // Relaxed: there is one thread.
    HANDLER.store(handler as *mut c_void, Ordering::Relaxed);
    let set = only_faults();
    // SAFETY: a set that lives until the call returns.
    unsafe { real_mask(&PTHREAD_SIGMASK, libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) };
    (replace(Some(&before), None) == 0).then_some(())
}

/// Handles a signal as the program has asked for.
pub(crate) fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // Relaxed, here and below: only this word is shared.
    let program = PROGRAM.load(Ordering::Relaxed);
    let address = program & ADDRESS;
    // SAFETY: the kernel passes the information, valid as long as the handler runs.
    let code = unsafe { (*info).si_code };
    // A process has sent the signal; no instruction has caused it.
    let is_sent = code <= 0;
    match address {
        IGNORE if is_sent => {}
        DEFAULT | IGNORE => {
            let mut action = empty_action();
            action.sa_sigaction = libc::SIG_DFL;
            // SAFETY: an action that lives until the call returns.
            unsafe { real_sigaction(signal, &raw const action, std::ptr::null_mut()) };
            // An instruction faults again when this handler returns.
            if is_sent {
                // SAFETY: sends a signal to this thread, where it is blocked until the handler
                // returns.
                unsafe { libc::raise(signal) };
            }
        }
        _ => {
            if program & ONCE != 0 {
                PROGRAM.store(DEFAULT, Ordering::Relaxed);
            }
            let pointer = std::ptr::with_exposed_provenance::<c_void>(address as usize);
            if program & WITH_INFO != 0 {
                // SAFETY: the program has installed this as a handler of this kind.
                let function: Handler = unsafe { std::mem::transmute(pointer) };
                function(signal, info, context);
            } else {
                // SAFETY: the program has installed this as a handler of the other kind.
                let function: extern "C" fn(c_int) = unsafe { std::mem::transmute(pointer) };
                function(signal);
            }
        }
    }
}

/// `sigaction` for SIGSEGV: records the program's handler, and installs ours with its mask and
/// flags, so that the program's handler runs under the conditions that it asked for.
fn replace(new: Option<&Action>, old: Option<&mut Action>) -> c_int {
    let mut installed = MaybeUninit::uninit();
    let before = match new {
        None => PROGRAM.load(Ordering::Relaxed),
        Some(new) => {
            let ours = HANDLER.load(Ordering::Relaxed).expose_provenance();
            let mut word = new.sa_sigaction as u64 & ADDRESS;
            let mut action = *new;
            action.sa_sigaction = ours;
            if new.sa_sigaction == ours || word == DEFAULT || word == IGNORE {
                action = empty_action();
                action.sa_sigaction = ours;
                action.sa_flags = libc::SA_ONSTACK;
            } else {
                word |= if new.sa_flags & libc::SA_SIGINFO == 0 { 0 } else { WITH_INFO };
                word |= if new.sa_flags & libc::SA_RESETHAND == 0 { 0 } else { ONCE };
            }
            action.sa_flags = action.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO;
            installed.write(action);
            PROGRAM.swap(word, Ordering::Relaxed)
        }
    };
    let action = if new.is_some() { installed.as_ptr() } else { std::ptr::null() };
    let mut found = empty_action();
    // SAFETY: `action` is null or was written above; both live until the call returns.
    let result = unsafe { real_sigaction(SIGSEGV, action, &raw mut found) };
    if let Some(old) = old {
        let flag = |bit: u64, flag: c_int| if before & bit == 0 { 0 } else { flag };
        *old = found;
        old.sa_sigaction = (before & ADDRESS) as usize;
        old.sa_flags &= !(libc::SA_SIGINFO | libc::SA_RESETHAND);
        old.sa_flags |= flag(WITH_INFO, libc::SA_SIGINFO) | flag(ONCE, libc::SA_RESETHAND);
        if matches!(before & ADDRESS, DEFAULT | IGNORE) {
            old.sa_flags = 0;
        }
    }
    result
}

/// An action without flags that blocks no signal.
fn empty_action() -> Action {
    // SAFETY: all of its fields may be zero: the default, an empty set, no flag, no restorer.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

fn only_faults() -> sigset_t {
    let mut set = empty_action().sa_mask;
    // SAFETY: an empty set, and a signal that exists.
    unsafe { libc::sigaddset(&raw mut set, SIGSEGV) };
    set
}

/// The set without SIGSEGV.
fn without_faults(mut set: sigset_t) -> sigset_t {
    // SAFETY: a set, and a signal that exists.
    unsafe { libc::sigdelset(&raw mut set, SIGSEGV) };
    set
}

/// Calls the C library's `sigaction`.
///
/// # Safety
/// As for sigaction(2).
unsafe fn real_sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    let next = SIGACTION.get();
    if next.is_null() {
        return -1;
    }
    // SAFETY: the C library's function of that name.
    let function: unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int =
        unsafe { std::mem::transmute(next) };
    // SAFETY: the caller guarantees the contract of sigaction(2).
    unsafe { function(signal, new, old) }
}

/// Calls the C library's function.
///
/// # Safety
/// As for sigprocmask(2); `next` must be that function or pthread_sigmask(3).
unsafe fn real_mask(next: &Next, how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int {
    let next = next.get();
    if next.is_null() {
        return -1;
    }
    // SAFETY: one of two functions of the C library that take the same arguments.
    let function: unsafe extern "C" fn(c_int, *const sigset_t, *mut sigset_t) -> c_int =
        unsafe { std::mem::transmute(next) };
    // SAFETY: the caller guarantees the contract of sigprocmask(2).
    unsafe { function(how, new, old) }
}

/// Calls the C library's function.
///
/// # Safety
/// As for signal(2); `next` must be that function or one like it.
unsafe fn real_signal(next: &Next, signal: c_int, handler: sighandler_t) -> sighandler_t {
    let next = next.get();
    if next.is_null() {
        return libc::SIG_ERR;
    }
    // SAFETY: a function of the C library that takes these arguments.
    let function: unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t =
        unsafe { std::mem::transmute(next) };
    // SAFETY: the caller guarantees the contract of signal(2).
    unsafe { function(signal, handler) }
}

/// Runs before a handler is installed. Calls whose faults it must not see are no longer delegated.
fn note_handler(signal: c_int, handler: sighandler_t) {
    marks::note_handler();
    if !matches!(handler, libc::SIG_DFL | libc::SIG_IGN) {
        home::handles(signal);
    }
}

/// sigaction(2).
///
/// # Safety
/// As there: pointers must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the caller guarantees that `new` is null or valid.
    if let Some(new) = unsafe { new.as_ref() } {
        note_handler(signal, new.sa_sigaction);
    }
    if !cpuid::is_active() {
        // SAFETY: the caller guarantees the contract of sigaction(2).
        return unsafe { real_sigaction(signal, new, old) };
    }
    // The mask of a migrated thread is its worker's.
    dimmer_hook::cut_migration_short();
    // SAFETY: the caller guarantees that `new` is null or valid.
    let given = unsafe { new.as_ref() };
    if signal == SIGSEGV {
        // SAFETY: the caller guarantees that `old` is null or valid.
        let old = unsafe { old.as_mut() };
        return replace(given, old);
    }
    let Some(given) = given else {
        // SAFETY: the caller guarantees the contract of sigaction(2).
        return unsafe { real_sigaction(signal, new, old) };
    };
    let mut changed = *given;
    changed.sa_mask = without_faults(changed.sa_mask);
    // SAFETY: `changed` lives until the call returns, and the caller guarantees that `old` is null
    // or valid.
    unsafe { real_sigaction(signal, &raw const changed, old) }
}

/// The second name under which glibc exports `sigaction`.
///
/// # Safety
/// As for [`sigaction`].
#[unsafe(no_mangle)]
unsafe extern "C" fn __sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the caller guarantees the contract of `sigaction`.
    unsafe { sigaction(signal, new, old) }
}

/// `signal` and similar functions, with the flags that they imply.
///
/// # Safety
/// As for signal(2).
unsafe fn signal_with(
    next: &Next,
    signal: c_int,
    handler: sighandler_t,
    flags: c_int,
) -> sighandler_t {
    note_handler(signal, handler);
    if !cpuid::is_active() || signal != SIGSEGV {
        // SAFETY: the caller guarantees the contract of signal(2).
        return unsafe { real_signal(next, signal, handler) };
    }
    let mut action = empty_action();
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    let mut before = empty_action();
    if replace(Some(&action), Some(&mut before)) == 0 { before.sa_sigaction } else { libc::SIG_ERR }
}

/// signal(2).
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller guarantees the contract of signal(2).
    unsafe { signal_with(&SIGNAL, signal, handler, libc::SA_RESTART) }
}

/// bsd_signal(3).
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller guarantees the contract of signal(2).
    unsafe { signal_with(&SIGNAL, signal, handler, libc::SA_RESTART) }
}

/// sysv_signal(3), under the name that `signal` has in programs that ask for strict X/Open.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller guarantees the contract of signal(2).
    unsafe { signal_with(&SYSV_SIGNAL, signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER) }
}

/// The code of both functions that block signals.
///
/// # Safety
/// As for [`real_mask`].
unsafe fn mask_with(next: &Next, how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int {
    // The mask of a migrated thread is its worker's.
    dimmer_hook::cut_migration_short();
    // SAFETY: the caller guarantees that `new` is null or valid.
    let given = unsafe { new.as_ref() };
    match given {
        Some(given) if cpuid::is_active() && how != libc::SIG_UNBLOCK => {
            let changed = without_faults(*given);
            // SAFETY: `changed` lives until the call returns, and the caller guarantees the rest.
            unsafe { real_mask(next, how, &raw const changed, old) }
        }
        // SAFETY: the caller guarantees the contract of `real_mask`.
        _ => unsafe { real_mask(next, how, new, old) },
    }
}

/// sigprocmask(2).
///
/// # Safety
/// As there: pointers must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigprocmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: the caller guarantees that pointers are null or valid.
    unsafe { mask_with(&SIGPROCMASK, how, new, old) }
}

/// pthread_sigmask(3).
///
/// # Safety
/// As there: pointers must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    new: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    // SAFETY: the caller guarantees that pointers are null or valid.
    unsafe { mask_with(&PTHREAD_SIGMASK, how, new, old) }
}
