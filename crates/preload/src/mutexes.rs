//! Mutexes whose owner the kernel knows: such that have it inherit priority, that change its priority, or that survive it (robust).
//!
//! To the kernel a thread that is away is a worker. A priority-inheriting mutex that is waited for would be the worker's, and its owner
//! could not give it back; a robust one is passed on when its owner's home ends, although the worker may go on for some microseconds;
//! and a priority changes at home. So a thread comes home before it takes or gives back such a mutex, or waits with one, and stays as
//! long as it holds one.
//!
//! All other mutexes cost one look at their kind more, and a jump: taking one and giving it back took 4.8 instead of 4.3 ns (medians of seven
//! runs in turn of each, which lay between 3.2 and 4.9; glibc 2.36, a virtual machine on an EPYC). Looking at the functions that make such mutexes instead would cost nothing, but there are mutexes in
//! shared memory that another process has made.

use std::arch::naked_asm;
use std::cell::Cell;
use std::ffi::{c_int, c_void};

use crate::home::{come_home_before, restore_arguments, save_arguments};
use crate::next::Next;

/// Where a mutex has its kind, which is part of glibc's binary interface. Source: glibc, `sysdeps/x86/nptl/bits/struct_mutex.h`.
const KIND: usize = 16;

/// Kinds whose owner the kernel knows. Source: glibc, `nptl/pthreadP.h`: `PTHREAD_MUTEX_ROBUST_NORMAL_NP`,
/// `PTHREAD_MUTEX_PRIO_INHERIT_NP`, `PTHREAD_MUTEX_PRIO_PROTECT_NP`.
const KNOWN_TO_KERNEL: u8 = 16 | 32 | 64;

thread_local! {
    /// How many such mutexes the thread holds.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// Whether the calling thread holds a mutex whose owner the kernel knows.
pub(crate) fn are_held() -> bool {
    HELD.get() > 0
}

/// To be called in a child of fork(2): the kernel knows its parent's thread as who holds them.
pub(crate) fn forget() {
    HELD.set(0);
}

/// Looks where this file's functions go on, as [`crate::home::find_next`] does.
pub(crate) fn find_next() {
    for next in [&LOCK, &TRYLOCK, &TIMEDLOCK, &CLOCKLOCK, &UNLOCK, &WAIT, &TIMEDWAIT, &CLOCKWAIT] {
        next.get();
    }
}

static LOCK: Next = Next::new(c"pthread_mutex_lock");
static TRYLOCK: Next = Next::new(c"pthread_mutex_trylock");
static TIMEDLOCK: Next = Next::new(c"pthread_mutex_timedlock");
static CLOCKLOCK: Next = Next::new(c"pthread_mutex_clocklock");
static UNLOCK: Next = Next::new(c"pthread_mutex_unlock");
static WAIT: Next = Next::new(c"pthread_cond_wait");
static TIMEDWAIT: Next = Next::new(c"pthread_cond_timedwait");
static CLOCKWAIT: Next = Next::new(c"pthread_cond_clockwait");

/// A function that takes or gives back a mutex, with what else it is called with.
type Function = unsafe extern "C" fn(*mut c_void, usize, usize) -> c_int;

/// Goes on in the next function of that name, at home if the kernel knows the mutex's owner; and counts.
///
/// # Safety
/// As for the function.
unsafe fn go_on(next: &Next, mutex: *mut c_void, second: usize, third: usize) -> c_int {
    let kind = mutex.wrapping_byte_add(KIND).cast::<u8>();
    // SAFETY: a mutex, as the caller says.
    let kind = unsafe { kind.read_volatile() };
    let is_known = kind & KNOWN_TO_KERNEL != 0;
    let function = if is_known { come_home_before(next) } else { next.get() };
    if function.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: the C library's function of that name, or the next library's.
    let function = unsafe { std::mem::transmute::<*mut c_void, Function>(function) };
    // SAFETY: as the caller says.
    let result = unsafe { function(mutex, second, third) };
    // An owner that died has left it to this thread.
    if is_known && matches!(result, 0 | libc::EOWNERDEAD) {
        let gives_back = std::ptr::eq(next, &raw const UNLOCK);
        let held = HELD.get();
        HELD.set(if gives_back { held.saturating_sub(1) } else { held.saturating_add(1) });
    }
    result
}

/// Functions whose first argument is a mutex.
macro_rules! taking {
    ($($name:ident $next:ident)*) => {
        mod known {
            use std::ffi::{c_int, c_void};

            $(
                pub(super) unsafe extern "C" fn $name(
                    mutex: *mut c_void,
                    second: usize,
                    third: usize,
                ) -> c_int {
                    // SAFETY: what the program has called.
                    unsafe { super::go_on(&super::$next, mutex, second, third) }
                }
            )*
        }

        $(
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() {
                naked_asm!(
                    "test byte ptr [rdi + {kind}], {known_to_kernel}",
                    "jnz {known}",
                    "mov rax, [rip + {next}]",
                    "test rax, rax",
                    "jz {known}",
                    "jmp rax",
                    kind = const KIND,
                    known_to_kernel = const KNOWN_TO_KERNEL,
                    known = sym known::$name,
                    next = sym $next,
                )
            }
        )*
    };
}

taking! {
    pthread_mutex_lock LOCK
    pthread_mutex_trylock TRYLOCK
    pthread_mutex_timedlock TIMEDLOCK
    pthread_mutex_clocklock CLOCKLOCK
    pthread_mutex_unlock UNLOCK
}

/// Functions that wait for a condition with the mutex that is their second argument. A thread may be cancelled in there, so no frame of
/// this library is below them.
macro_rules! waiting {
    ($($name:ident $next:ident)*) => {
        $(
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() {
                naked_asm!(
                    "test byte ptr [rsi + {kind}], {known_to_kernel}",
                    "jnz 2f",
                    "mov rax, [rip + {next}]",
                    "test rax, rax",
                    "jz 2f",
                    "jmp rax",
                    "2:",
                    save_arguments!(),
                    "lea rdi, [rip + {next}]",
                    "call {come_home}",
                    "mov r11, rax",
                    restore_arguments!(),
                    "jmp r11",
                    kind = const KIND,
                    known_to_kernel = const KNOWN_TO_KERNEL,
                    next = sym $next,
                    come_home = sym come_home_before,
                )
            }
        )*
    };
}

waiting! {
    pthread_cond_wait WAIT
    pthread_cond_timedwait TIMEDWAIT
    pthread_cond_clockwait CLOCKWAIT
}
