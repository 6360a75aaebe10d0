//! Threads that migrate to a dedicated core and come home, for hooks that move calls.
//!
//! To the kernel, a migrated thread is another thread. Some functions of the C library ask the
//! kernel about the program's own thread, or change it, or start other threads from it. The thread
//! comes home before such a function, and the rest of the moved call runs at home. Likewise before
//! jumps out of the call. Programs that make the system calls themselves bypass this.

use std::ffi::{c_int, c_long, c_void};
use std::panic::catch_unwind;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use dimmer_hook::{
    LeafCall, LeafEnd, Mover, Orders, SIGNALS_ARE_RIGHT, inhibit_migration, is_migration_inhibited,
    ticks,
};
use dimmer_runtime::calls::KeepErrno;
use dimmer_runtime::giving_up::GivingUp;

use crate::affinity;
use crate::arch::{self, forward};
use crate::confine::{self, PRCTL, SYSCALL, prctl_giving_up, syscall_giving_up};
use crate::marks;
use crate::mutexes;
use crate::next::Next;

/// The functions by which hooks move calls.
pub(crate) const MOVER: Mover = Mover {
    begin_migration,
    end_migration,
    cut_migration_short,
    end_cut_migration,
    delegate,
    unwind_delegated,
};

/// Whether calls may move in this process. They may not before hooks can do that, nor after a
/// thread has confined itself, because the workers are not confined.
static MOVES: AtomicBool = AtomicBool::new(false);

/// Whether the program has installed a handler for faults of its own.
static HANDLES_FAULTS: AtomicBool = AtomicBool::new(false);

/// The observer's orders for calls that move.
static ORDERS: OnceLock<Orders<'static>> = OnceLock::new();

/// Lets calls move from now on, under these orders.
pub(crate) fn begin(orders: Orders<'static>) {
    let _ = ORDERS.set(orders);
    // Relaxed: there is one thread.
    MOVES.store(true, Ordering::Relaxed);
}

/// Whether calls move in this process, or have moved.
pub(crate) fn has_moved() -> bool {
    ORDERS.get().is_some()
}

/// More than there are cores.
const ALL: usize = usize::MAX >> 1;

/// Starts the workers, all of them. The observer says how many are used, and keeps the program off
/// these.
pub(crate) fn start_workers() {
    let used = ORDERS.get().and_then(Orders::used_cores);
    dimmer_runtime::calls::use_cores(used.unwrap_or(ALL));
    let _ = dimmer_runtime::dedicated();
}

extern "C" fn begin_migration(_: u32) -> u32 {
    // Relaxed: a thread sees what it has done itself.
    if !MOVES.load(Ordering::Relaxed) || mutexes::are_held() {
        return 0;
    }
    let _errno = KeepErrno::new();
    let begin_migration = || if follow() { dimmer_runtime::calls::begin_migration() } else { None };
    catch_unwind(begin_migration).ok().flatten().unwrap_or(0)
}

/// Applies the number of hardware threads in use. Returns whether calls may move: not once the
/// deciding process is gone.
fn follow() -> bool {
    let Some(orders) = ORDERS.get() else { return true };
    if let Some(threads) = orders.used_cores() {
        dimmer_runtime::calls::use_cores(threads);
    }
    orders.hold(ticks())
}

extern "C" fn end_migration() -> u64 {
    let _errno = KeepErrno::new();
    catch_unwind(dimmer_runtime::calls::end_migration).ok().flatten().unwrap_or(SIGNALS_ARE_RIGHT)
}

extern "C" fn cut_migration_short() {
    let _errno = KeepErrno::new();
    let _ = catch_unwind(dimmer_runtime::calls::cut_migration_short);
}

extern "C" fn end_cut_migration() -> u64 {
    let _errno = KeepErrno::new();
    catch_unwind(dimmer_runtime::calls::end_cut_migration)
        .ok()
        .flatten()
        .unwrap_or(SIGNALS_ARE_RIGHT)
}

fn delegate(call: LeafCall<'_>) -> Option<LeafEnd> {
    // Relaxed: a thread sees what it has done itself.
    if !MOVES.load(Ordering::Relaxed)
        || HANDLES_FAULTS.load(Ordering::Relaxed)
        || mutexes::are_held()
    {
        return None;
    }
    let _errno = KeepErrno::new();
    if !follow() {
        return None;
    }
    dimmer_runtime::dedicated()?.delegate_leaf(move || call.make()).ok()
}

extern "C" fn unwind_delegated() {
    let _errno = KeepErrno::new();
    dimmer_runtime::calls::unwind_delegated();
}

/// Notes that the program has a handler for `signal` from now on. A fault handler would run on a
/// worker for delegated calls, so none are delegated then.
pub(crate) fn handles(signal: c_int) {
    const FAULTS: [c_int; 6] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
    if FAULTS.contains(&signal) {
        HANDLES_FAULTS.store(true, Ordering::Relaxed);
    }
}

/// Brings the calling thread home. Returns the address where the function goes on.
pub(crate) extern "C" fn come_home_before(next: &Next) -> *mut c_void {
    dimmer_hook::cut_migration_short();
    let next = next.get();
    // The C library may be older than the function: a program that looks it up finds this one.
    if next.is_null() { lacks as *mut c_void } else { next }
}

/// Likewise, after what the function requires. `number` is its first argument, if that matters.
// One copy, which all of these functions call.
#[inline(never)]
fn come_home_for(next: &Next, number: c_int) -> *mut c_void {
    let name = next.name().to_bytes();
    if JUMPS.contains(&name) {
        let _errno = KeepErrno::new();
        dimmer_runtime::calls::leave_delegated();
    }
    if ENDING.contains(&name) {
        let _errno = KeepErrno::new();
        marks::stop();
    }
    if PASSING_ON.contains(&name) {
        affinity::give_back_to_pass_on();
    }
    if name == b"sched_setattr" {
        affinity::before_affinity_of(number);
    }
    let next = come_home_before(next);
    if CONFINING.contains(&name) {
        stop();
    }
    if STARTING.contains(&name) {
        let _errno = KeepErrno::new();
        let _ = catch_unwind(dimmer_hook::expect_thread);
    }
    next
}

/// Functions that end the process at once.
const ENDING: [&[u8]; 2] = [b"_exit", b"_Exit"];

/// Functions that start threads.
const STARTING: [&[u8]; 2] = [b"pthread_create", b"thrd_create"];

/// Functions that start threads and programs, which inherit the caller's affinity.
const PASSING_ON: [&[u8]; 7] =
    [b"pthread_create", b"thrd_create", b"clone", b"fork", b"_Fork", b"system", b"popen"];

/// Functions that leave calls without returning.
const JUMPS: [&[u8]; 6] =
    [b"longjmp", b"_longjmp", b"siglongjmp", b"__longjmp_chk", b"setcontext", b"swapcontext"];

/// Stops all moving of calls and threads, and ends the threads that do it. The calling thread is at
/// home.
fn stop() {
    let _errno = KeepErrno::new();
    let is_confined = catch_unwind(dimmer_runtime::calls::confine).unwrap_or(true);
    // A child of vfork(2) has its parent's memory, and its calls are inhibited.
    if is_confined || !is_migration_inhibited() {
        MOVES.store(false, Ordering::Relaxed);
    }
}

/// Functions by which a thread drops rights of its own only, or leaves its process's view of the
/// system.
const CONFINING: [&[u8]; 5] = [b"capset", b"setfsuid", b"setfsgid", b"unshare", b"setns"];

/// Fails as the C library does if the kernel lacks a system call.
extern "C" fn lacks() -> c_long {
    fails(libc::ENOSYS)
}

pub(crate) extern "C" fn fails(why: c_int) -> c_long {
    // SAFETY: needs nothing.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own variable.
    unsafe { *errno = why };
    -1
}

/// Functions that bring the thread home and then go on in the C library's function of the same
/// name, with any arguments.
macro_rules! at_home {
    ($($name:ident)*) => {
        mod nexts {
            use std::ffi::CStr;

            use crate::next::Next;

            const fn named(name: &'static str) -> Next {
                match CStr::from_bytes_with_nul(name.as_bytes()) {
                    Ok(name) => Next::new(name),
                    Err(_) => Next::new(c""),
                }
            }

            $(
                #[expect(non_upper_case_globals, reason = "called as the function is")]
                pub(super) static $name: Next = named(concat!(stringify!($name), "\0"));
            )*
        }

        /// Looks up the next functions before the program calls any. A lookup takes the loader's
        /// lock, which may be held as long as a library's constructor waits for a thread that calls
        /// one of them.
        pub(crate) fn find_next() {
            for next in [$(&nexts::$name,)* &VFORK, &SYSCALL, &PRCTL] {
                next.get();
            }
        }

        $(
            const _: () = {
                extern "C" fn before(number: c_int) -> *mut c_void {
                    come_home_for(&nexts::$name, number)
                }
                forward!($name, before);
            };
        )*
    };
}

at_home! {
    // They leave calls without returning.
    longjmp _longjmp siglongjmp __longjmp_chk setcontext swapcontext
    // They start threads and programs, which inherit affinity and blocked signals.
    pthread_create thrd_create clone fork _Fork system popen
    // They end the process.
    _exit _Exit
    // They concern the thread.
    gettid getcpu sched_getcpu sched_setscheduler sched_getscheduler sched_setparam sched_getparam
    sched_setattr sched_getattr setpriority getpriority nice unshare setns ptrace pthread_setname_np pthread_getname_np
    // They concern its signals, or send signals that it may have to receive before they return.
    raise kill killpg tgkill pthread_kill sigqueue pthread_sigqueue sigaltstack sigpending sigblock sigsetmask siggetmask sighold sigrelse sigset
    // They wait for signals, or wait with other signals blocked.
    pause sigpause sigsuspend sigwait sigwaitinfo sigtimedwait ppoll __ppoll_chk pselect epoll_pwait epoll_pwait2
    // They change its rights; the C library makes all other threads do the same.
    setuid setgid seteuid setegid setreuid setregid setresuid setresgid setgroups initgroups setfsuid setfsgid capset iopl ioperm
}

pub(crate) static VFORK: Next = Next::new(c"vfork");

/// Returns the address where a vfork goes on; null if the caller is to make the system call.
pub(crate) extern "C" fn before_vfork(next: &Next) -> *mut c_void {
    affinity::give_back_to_pass_on();
    let next = come_home_before(next);
    // Relaxed: it changes once, before there are other threads.
    if !(MOVES.load(Ordering::Relaxed) || dimmer_runtime::wide::is_on())
        || dimmer_runtime::check_migration().is_err()
    {
        return next;
    }
    inhibit_migration();
    std::ptr::null_mut()
}

// prctl(2) and syscall(2). Programs use the latter for system calls that older C libraries have no
// function for. What gives up something that hooks use goes on in the second function.
forward!(prctl, before_prctl, prctl_giving_up);
forward!(syscall, before_syscall, syscall_giving_up);

/// Brings the calling thread home. Returns the address where the call goes on; null if it gives
/// something up.
extern "C" fn before_prctl(option: c_int, second: c_int, third: *const u8) -> *mut c_void {
    let giving_up = GivingUp::of(libc::SYS_prctl, option, second, !third.is_null());
    let next = come_home_before(&PRCTL);
    if confine::is_confining(libc::SYS_prctl, option, giving_up) {
        stop();
    }
    if giving_up.is_some() { std::ptr::null_mut() } else { next }
}

/// Returns the address where a system call goes on; null if it gives something up that hooks use.
/// If the call concerns the thread, brings the thread home first.
///
/// This library's own system calls come here as well, also while the thread-local storage is
/// another thread's. None of them is listed.
extern "C" fn before_syscall(
    number: c_long,
    first: c_int,
    second: c_int,
    third: *const u8,
) -> *mut c_void {
    affinity::before_system_call(number, first, second, third);
    let giving_up = GivingUp::of(number, first, second, !third.is_null());
    let is_confining = confine::is_confining(number, first, giving_up);
    let is_about_owner =
        number == libc::SYS_futex && FUTEXES_WITH_OWNER.contains(&(second & libc::FUTEX_CMD_MASK));
    let is_about_thread =
        ABOUT_THE_THREAD.contains(&number) || arch::ABOUT_THE_THREAD.contains(&number);
    let next = if is_confining || is_about_owner || is_about_thread {
        come_home_before(&SYSCALL)
    } else {
        SYSCALL.get()
    };
    if is_confining {
        stop();
    }
    if number == libc::SYS_exit {
        dimmer_runtime::calls::note_exit();
    }
    if giving_up.is_some() { std::ptr::null_mut() } else { next }
}

/// Operations of futex(2) on mutexes whose owner the kernel records, for programs that make their
/// own.
const FUTEXES_WITH_OWNER: [c_int; 5] = [
    libc::FUTEX_LOCK_PI,
    libc::FUTEX_LOCK_PI2,
    libc::FUTEX_TRYLOCK_PI,
    libc::FUTEX_UNLOCK_PI,
    libc::FUTEX_WAIT_REQUEUE_PI,
];

/// Other system calls that concern the thread, as the functions above make them. Calls that
/// some architectures lack are in [`arch::ABOUT_THE_THREAD`].
const ABOUT_THE_THREAD: [c_long; 44] = [
    libc::SYS_exit,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_gettid,
    libc::SYS_getcpu,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_getparam,
    libc::SYS_sched_setparam,
    libc::SYS_sched_getattr,
    libc::SYS_sched_setattr,
    libc::SYS_getpriority,
    libc::SYS_setpriority,
    libc::SYS_ioprio_get,
    libc::SYS_ioprio_set,
    libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy,
    libc::SYS_prctl,
    libc::SYS_ptrace,
    libc::SYS_perf_event_open,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_send_signal,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_capget,
    libc::SYS_keyctl,
    libc::SYS_set_tid_address,
];
