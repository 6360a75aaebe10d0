//! Mutexes whose owner the kernel knows: such that have it inherit priority, that change its priority, or that survive it (robust).
//!
//! To the kernel a thread that is away is a worker. A priority-inheriting mutex that is waited for would be the worker's, and its owner
//! could not give it back; a robust one is passed on when its owner's home ends, although the worker may go on for some microseconds;
//! and a priority changes at home. So a thread comes home before it takes or gives back such a mutex, and stays as long as it holds one.
//! Who waits for a condition with one holds it, and so is at home already: those functions are left to the C library, in whichever version
//! a program asks for.
//!
//! Robust ones are in a list that the C library keeps for the kernel, so that is looked at: they may come and go in other functions,
//! which wait for a condition or give up what an owner that died has left. The others are counted.
//!
//! All other mutexes cost one look at their kind more, and a jump: taking one and giving it back took 4.8 instead of 4.3 ns (medians of seven
//! runs in turn of each, which lay between 3.2 and 4.9; glibc 2.36, a virtual machine on an EPYC). Looking at the functions that make such mutexes instead would cost nothing, but there are mutexes in
//! shared memory that another process has made.
//!
//! A thread may be cancelled in the middle of these functions if it has asked for that (`PTHREAD_CANCEL_ASYNCHRONOUS`): so what stands below
//! the C library's function is assembly with unwinding records, and what that calls has nothing to clean up.

use std::arch::naked_asm;
use std::cell::Cell;
use std::ffi::{c_int, c_void};

use dimmer_hook::come_home;

use crate::next::Next;

/// Where a mutex has its kind, which is part of glibc's binary interface. Source: glibc, `sysdeps/x86/nptl/bits/struct_mutex.h`.
const KIND: usize = 16;

/// Kinds whose owner the kernel knows. Source: glibc, `nptl/pthreadP.h`: `PTHREAD_MUTEX_ROBUST_NORMAL_NP`,
/// `PTHREAD_MUTEX_PRIO_INHERIT_NP`, `PTHREAD_MUTEX_PRIO_PROTECT_NP`.
const KNOWN_TO_KERNEL: u8 = ROBUST | 32 | 64;
const ROBUST: u8 = 16;

thread_local! {
    /// How many of them the thread holds that are not robust.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// Whether the calling thread holds a mutex whose owner the kernel knows.
pub(crate) fn are_held() -> bool {
    HELD.get() > 0 || dimmer_runtime::holds_robust_mutex()
}

/// To be called in a child of fork(2): the kernel knows its parent's thread as who holds them.
pub(crate) fn forget() {
    HELD.set(0);
}

/// Looks where this file's functions go on, as [`crate::home::find_next`] does.
pub(crate) fn find_next() {
    for next in [&LOCK, &TRYLOCK, &TIMEDLOCK, &CLOCKLOCK, &UNLOCK] {
        next.get();
    }
}

static LOCK: Next = Next::new(c"pthread_mutex_lock");
static TRYLOCK: Next = Next::new(c"pthread_mutex_trylock");
static TIMEDLOCK: Next = Next::new(c"pthread_mutex_timedlock");
static CLOCKLOCK: Next = Next::new(c"pthread_mutex_clocklock");
static UNLOCK: Next = Next::new(c"pthread_mutex_unlock");

/// Brings the calling thread home; where the function goes on.
extern "C" fn before(next: &Next) -> *mut c_void {
    come_home();
    let next = next.get();
    if next.is_null() { lacks as *mut c_void } else { next }
}

/// A C library that is older than the function.
extern "C" fn lacks() -> c_int {
    libc::ENOSYS
}

/// A mutex of that kind was taken, if that is the result.
extern "C" fn taken(result: c_int, kind: u8) -> c_int {
    if result == 0 && kind & ROBUST == 0 {
        HELD.set(HELD.get().saturating_add(1));
    }
    result
}

/// Likewise, given back.
extern "C" fn given_back(result: c_int, kind: u8) -> c_int {
    if result == 0 && kind & ROBUST == 0 {
        HELD.set(HELD.get().saturating_sub(1));
    }
    result
}

/// Functions of at most three arguments, the first of them a mutex, and what is to be told of their results.
macro_rules! functions {
    ($($name:ident $next:ident $after:ident)*) => {
        $(
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() {
                naked_asm!(
                    ".cfi_startproc",
                    "test byte ptr [rdi + {kind}], {known_to_kernel}",
                    "jnz 2f",
                    "mov rax, [rip + {next}]",
                    "test rax, rax",
                    "jz 2f",
                    "jmp rax",
                    // The kind is kept, as who gives a mutex back does not know whether it is still there.
                    "2:",
                    "push rbx",
                    ".cfi_adjust_cfa_offset 8",
                    ".cfi_offset rbx, -16",
                    "movzx ebx, byte ptr [rdi + {kind}]",
                    "sub rsp, 32",
                    ".cfi_adjust_cfa_offset 32",
                    "mov [rsp], rdi",
                    "mov [rsp + 8], rsi",
                    "mov [rsp + 16], rdx",
                    "lea rdi, [rip + {next}]",
                    "call {before}",
                    "mov rdi, [rsp]",
                    "mov rsi, [rsp + 8]",
                    "mov rdx, [rsp + 16]",
                    "call rax",
                    "mov edi, eax",
                    "mov esi, ebx",
                    "call {after}",
                    "add rsp, 32",
                    ".cfi_adjust_cfa_offset -32",
                    "pop rbx",
                    ".cfi_adjust_cfa_offset -8",
                    ".cfi_restore rbx",
                    "ret",
                    ".cfi_endproc",
                    kind = const KIND,
                    known_to_kernel = const KNOWN_TO_KERNEL,
                    before = sym before,
                    after = sym $after,
                    next = sym $next,
                )
            }
        )*
    };
}

functions! {
    pthread_mutex_lock LOCK taken
    pthread_mutex_trylock TRYLOCK taken
    pthread_mutex_timedlock TIMEDLOCK taken
    pthread_mutex_clocklock CLOCKLOCK taken
    pthread_mutex_unlock UNLOCK given_back
}
