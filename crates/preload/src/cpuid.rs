//! Hides features from the CPUID instruction, so that code without a switch of its own chooses
//! narrower vectors by itself.
//!
//! Linux makes CPUID fault in a thread that asks for it (`arch_prctl(ARCH_SET_CPUID, 0)`, since
//! 4.12, on processors that can do it). The fault arrives as SIGSEGV. The handler here executes the
//! instruction with faulting switched off, removes the features, and goes on after it. New threads
//! and forked children inherit the setting. Other programs (`execve`) start without it, and find
//! the request in their environment.
//!
//! Queries before this library is initialised get the true answer. The loader makes some for itself
//! and glibc, so glibc needs a setting of its own (`GLIBC_TUNABLES`). The resolvers of indirect
//! functions in files that are loaded at the start make some, too. XGETBV cannot be made to fault:
//! it still shows the register states of hidden features. [`dimmer_narrow::masked`] explains why
//! that is safe, and why leaf 0xD stays as it is.
//!
//! Each CPUID takes longer: 34 us instead of 7 us on a virtual machine on an Emerald Rapids host,
//! where the instruction and each change of the setting leave the guest. Programs that use CPUID to
//! keep time stamps in order notice this. Programs that limit their system calls (seccomp) before
//! they execute CPUID must allow arch_prctl.
//!
//! Source: Linux, arch_prctl(2), arch/x86/kernel/process.c.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use dimmer_narrow::{CPUID_WIDTH, Width, masked};

use crate::arch::cpuid::{FAULT, Query, set_faulting};
use crate::{program, signals};

/// The width in bits; 0 while nothing is hidden.
static WIDTH: AtomicU32 = AtomicU32::new(0);

/// Whether features are hidden in this process.
pub(crate) fn is_active() -> bool {
    // Relaxed: it changes once, before there are other threads.
    WIDTH.load(Ordering::Relaxed) != 0
}

/// Starts to hide features, if the environment asks for it, and the machine and the program allow
/// it.
pub(crate) fn start() -> Option<()> {
    let width: Width = std::env::var(CPUID_WIDTH).ok()?.parse().ok()?;
    // The Go runtime installs its signal handlers without the C library, and would take CPUID's
    // fault for a crash.
    if program::is_go() || !set_faulting(false) {
        return None;
    }
    signals::take_faults(handle)?;
    // Relaxed: there is one thread.
    WIDTH.store(width.bits(), Ordering::Relaxed);
    set_faulting(true).then_some(())
}

/// Handles each SIGSEGV of the process.
extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both, valid as long as the handler runs.
    let code = unsafe { (*info).si_code };
    if code == FAULT {
        // SAFETY: the kernel passes it, and no other code uses it.
        let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
        if Query::find(context).is_some_and(answer) {
            return;
        }
    }
    // The program's handler may run with SIGSEGV blocked, and a fault would then end the process.
    // So CPUID gives true answers meanwhile. If the handler leaves by longjmp, this thread goes on
    // that way.
    set_faulting(false);
    signals::pass_on(signal, info, context);
    set_faulting(true);
}

/// Answers a CPUID instruction. Returns false if it cannot be executed.
fn answer(query: Query<'_>) -> bool {
    if !set_faulting(false) {
        return false;
    }
    let real = query.execute();
    set_faulting(true);
    // Relaxed: stored before faulting was switched on.
    let width = match WIDTH.load(Ordering::Relaxed) {
        128 => Width::Bits128,
        _ => Width::Bits256,
    };
    let shown = masked(query.leaf(), query.subleaf(), real, width);
    query.answer(&shown);
    true
}
