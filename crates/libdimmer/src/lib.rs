//! The C interface of `dimmer-runtime`, `dimmer-marks`, `dimmer-locks` and `dimmer-pace`: regions
//! that a program marks run where its environment says, mutexes have strategies, and threads ask
//! for clocks.
//!
//! `cargo xtask header` generates `include/dimmer.h` from this file and from the site of
//! `dimmer-runtime`, so C programmers read the documentation here. The header's macros are in
//! `include/macros.h`. This crate decides nothing and moves nothing. No panic leaves it: if
//! anything goes wrong, work stays where it is.

pub mod barrier;
mod call;
pub mod condvar;
pub mod fast_core;
mod made;
pub mod mutex;
pub mod rwlock;
pub mod threads;

use std::ffi::{c_char, c_void};
use std::num::NonZeroU64;

use call::{Call, contained, dimmer_where, errno, set_errno};
use dimmer_marks::{Place, measuring};
use dimmer_pace::Request;
use dimmer_runtime::{Decision, Entered, Site};

/// A function to call on a dedicated core.
pub type Function = unsafe extern "C-unwind" fn(argument: *mut c_void);

/// Where a region runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Where {
    /// Where the thread is.
    Stay,
    /// On a dedicated core. A call of dimmer_run() runs on the worker's own stack, other regions as
    /// with `migrate`.
    Delegate,
    /// On a dedicated core, with the thread's own stack and thread-local storage.
    Migrate,
}

impl From<Decision> for Where {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Stay => Self::Stay,
            Decision::Delegate => Self::Delegate,
            Decision::Migrate => Self::Migrate,
        }
    }
}

/// Clocks to ask for with dimmer_pace_request().
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Pace {
    /// The machine decides.
    None = 0,
    /// The slowest clock.
    Slow = 101,
    /// The fastest clock without turbo. Where the kernel does not report it, the machine decides.
    Base = 102,
    /// The fastest clock.
    Turbo = 103,
}

const _: () = assert!(Pace::Slow as u8 == Request::SLOW.number());
const _: () = assert!(Pace::Base as u8 == Request::BASE.number());
const _: () = assert!(Pace::Turbo as u8 == Request::TURBO.number());

/// Measurements of a site.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Statistics {
    /// Entries so far, an estimate. Of the entries that stay, one in 256 on average is measured if
    /// they are frequent, and all if they are rare.
    pub calls: u64,
    /// Mean time in the region (ns) of the measured entries; not a number before the first one.
    pub mean_ns: f64,
}

/// Called by the loader, and in static programs before `main`. Allocates memory now, because
/// regions may be in signal handlers and in the program's allocator.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    contained(dimmer_runtime::prepare);
}

/// Starts a region, which dimmer_exit() ends on the same thread. DIMMER_REGION does both.
///
/// Regions may be nested. Inside a region that has moved the thread, others stay where it is. A
/// region that stays costs some nanoseconds. Any thread may call this at any time, also in a signal
/// handler and in the program's allocator; `errno` stays as it is. The first region that is to move
/// dedicates the cores as dimmer_dedicated_cores() does, but never in a signal handler. Nothing
/// else here allocates or waits for a lock. `site` must not be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_enter(site: &'static Site) -> Entered {
    contained(|| site.enter_once_prepared()).unwrap_or_default()
}

/// Ends the region for which dimmer_enter() has returned `entered`. If that is all zero, there is
/// nothing to do.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_exit(site: &'static Site, entered: Entered) {
    contained(|| site.exit(entered));
}

/// Calls `function(argument)` as decided for the site: on this thread where it is, on this thread
/// on a dedicated core, or on the stack of a worker.
///
/// Returns false if the call was started and lost, because its worker has ended; otherwise it has
/// run exactly once. `errno` is as the function has left it. The function must not throw: C++
/// programs use dimmer::run(). If it runs on the calling thread, it may end that thread, or be
/// cancelled (pthread_exit(), pthread_cancel()). On the stack of a worker, pthread_exit() ends the
/// worker, and the call is lost.
///
/// Neither the function nor a signal handler of the calling thread may leave this call by longjmp()
/// or siglongjmp(): the worker would go on with a call whose stack frame is gone.
///
/// # Safety
/// It must be allowed to call `function(argument)`, on another thread too.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dimmer_run(
    site: &'static Site,
    function: Function,
    argument: *mut c_void,
) -> bool {
    let call = Call::new(function, argument);
    let run = || site.try_delegate(|| call.happen_away()).is_ok();
    call.settle(contained(run).unwrap_or(false), Some(site))
}

/// Calls `function(argument)` on a dedicated core, on the stack and with the thread-local storage
/// of its worker, and waits. Without dedicated cores (DIMMER_CORES) it runs here. DIMMER_POLICY has
/// no effect.
///
/// Returns false if the call was started and lost, because its worker has ended; otherwise it has
/// run exactly once. `errno` is as the function has left it. The function must not throw: C++
/// programs use dimmer::delegate(). It may end its thread as with dimmer_run(). The call must not
/// be left by longjmp() or siglongjmp() either.
///
/// # Safety
/// It must be allowed to call `function(argument)`, on another thread too.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dimmer_delegate(function: Function, argument: *mut c_void) -> bool {
    let call = Call::new(function, argument);
    let delegate =
        || Some(dimmer_runtime::dedicated()?.try_delegate(|| call.happen_away()).is_ok());
    call.settle(contained(delegate).flatten().unwrap_or(false), None)
}

/// Calls `function(argument)` on a dedicated core as the same thread, with its own stack and
/// thread-local storage, and comes back. Without dedicated cores (DIMMER_CORES), or if threads
/// cannot migrate, it runs here. DIMMER_POLICY has no effect.
///
/// What the function throws goes on here, at home, and so does pthread_exit(). The function must
/// not be left by longjmp(), nor by siglongjmp() in a handler of a fault of its own.
///
/// # Safety
/// It must be allowed to call `function(argument)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dimmer_migrate(function: Function, argument: *mut c_void) {
    let before = errno();
    let cores = contained(dimmer_runtime::dedicated).flatten();
    let mut migration =
        cores.and_then(|cores| contained(|| cores.begin_migration().ok()).flatten());
    let away = migration.as_mut().and_then(|migration| {
        let usual = migration.usual();
        contained(|| migration.go(usual)).flatten()
    });
    set_errno(before);
    // SAFETY: the caller's function, with the caller's argument.
    unsafe { function(argument) };
    let after = errno();
    contained(|| drop(away));
    contained(|| drop(migration));
    set_errno(after);
}

/// Decides for a site from now on, whatever the environment says. Threads inside one of its regions
/// stay where they are. A number that is no constant of `dimmer_where` does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_decide(site: &'static Site, decision: dimmer_where) {
    contained(|| decision_of(decision).into_iter().for_each(|decision| site.decide(decision)));
}

/// The decision with this number in C.
const fn decision_of(number: dimmer_where) -> Option<Decision> {
    const STAY: dimmer_where = Where::Stay as _;
    const DELEGATE: dimmer_where = Where::Delegate as _;
    const MIGRATE: dimmer_where = Where::Migrate as _;
    match number {
        STAY => Some(Decision::Stay),
        DELEGATE => Some(Decision::Delegate),
        MIGRATE => Some(Decision::Migrate),
        _ => None,
    }
}

/// Reports that the program has completed `amount` more work, in a unit of its own (requests,
/// pictures, bytes). A policy server goes by this instead of the time that regions take. Costs an
/// addition in memory.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_metric(amount: u64) {
    contained(|| dimmer_runtime::metric(amount));
}

/// Passes a mark of this function at this position; dimmer_mark() calls it. `position` may be NULL.
///
/// If the environment variable DIMMER_MARKS names a file, what runs from each mark to the next one
/// of its thread is measured, and added to the file when the process ends (docs/phases.md).
/// Otherwise it does nothing. Any thread may call this; in a signal handler that has interrupted a
/// mark, it does not count. A mark that is measured costs some 25 ns. The first one of a thread
/// allocates, and so does each new one, and one whose texts are no constants.
///
/// # Safety
/// Both texts end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_mark_at(function: *const c_char, position: *const c_char) {
    contained(|| measuring::pass_started(&Place::C(function, position)));
}

/// Asks for a clock of the core that executes this thread, until the thread asks for another one or
/// ends: percent of the fastest clock (1 to 100), or a constant of `dimmer_pace`. DIMMER_PACE_NONE
/// withdraws the request. In a scope (dimmer_pace_begin()), both count until its end.
///
/// Returns whether there is a way to ask here that has the request; if there is none, this does
/// nothing (docs/pace.md). Other numbers do nothing and return false. A request that is in force
/// already costs some nanoseconds, another one a system call or more. The first one in the process
/// reads some files of each CPU. Any thread may call this, but not in a signal handler. `errno`
/// stays as it is.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_pace_request(clock: u32) -> bool {
    let before = errno();
    let is_taken = contained(|| match (clock, u8::try_from(clock).ok()) {
        (0, _) => {
            dimmer_pace::withdraw();
            true
        }
        (_, number) => number.and_then(Request::of_number).is_some_and(|request| {
            dimmer_pace::request(request) == dimmer_pace::Decision::Requested
        }),
    });
    set_errno(before);
    is_taken.unwrap_or(false)
}

/// As dimmer_pace_request(), but another thread of the process, on another core, makes the request:
/// the calling thread goes on meanwhile. If it asks for something else before that, the later one
/// counts.
///
/// Returns whether there is a way to ask here. The first call in the process starts that thread,
/// which may run on all CPUs of the cpuset, and blocks all signals. Where there is no other CPU for
/// it, the calling thread makes the request. DIMMER_PACE_NONE withdraws the request at once.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_pace_request_by_neighbour(clock: u32) -> bool {
    if clock == 0 {
        return dimmer_pace_request(clock);
    }
    let before = errno();
    let request = u8::try_from(clock).ok().and_then(Request::of_number);
    let ask = || {
        request.is_some_and(|request| {
            dimmer_pace::request_by_neighbour(request) == dimmer_pace::Decision::Requested
        })
    };
    let is_taken = contained(ask);
    set_errno(before);
    is_taken.unwrap_or(false)
}

/// As dimmer_pace_request(), until dimmer_pace_end(). Scopes may end in any order: of the requests
/// that have not ended, the one made last counts. With DIMMER_PACE_NONE, the machine decides in the
/// scope.
///
/// Returns the number of the scope; 0, if there is no clock of this number, if memory is lacking,
/// or in the last destructors of a thread: then there is no scope.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_pace_begin(clock: u32) -> u64 {
    let before = errno();
    let wanted = u8::try_from(clock).ok().and_then(Request::of_number);
    let is_known = clock == 0 || wanted.is_some();
    let begin = || is_known.then(|| dimmer_pace::begin(wanted)).flatten();
    let scope = contained(begin).flatten();
    set_errno(before);
    scope.map_or(0, NonZeroU64::get)
}

/// Ends a scope of the calling thread, and nothing else. Does nothing if the thread has no such
/// scope.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_pace_end(scope: u64) {
    let before = errno();
    contained(|| NonZeroU64::new(scope).into_iter().for_each(dimmer_pace::finish));
    set_errno(before);
}

/// What is requested for this thread now: by itself, or by a decorated lock; whether or not there
/// is a way to ask here. DIMMER_PACE_NONE if nothing is.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_pace_in_force() -> u32 {
    dimmer_pace::in_force().map_or(0, |request| request.number().into())
}

/// Measurements of a site so far.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_site_statistics(site: &'static Site) -> Statistics {
    let none = Statistics { calls: 0, mean_ns: f64::NAN };
    let seen = contained(|| site.statistics());
    seen.map_or(none, |seen| Statistics {
        calls: seen.calls,
        mean_ns: seen.mean_ns.unwrap_or(f64::NAN),
    })
}

/// Whether threads can migrate on this machine and in this process (FSGSBASE, no shadow stacks, no
/// Valgrind). If not, only dimmer_delegate() and dimmer_run() move anything.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_can_migrate() -> bool {
    contained(|| dimmer_runtime::check_migration().is_ok()).unwrap_or(false)
}

/// The number of the process's dedicated cores. The first call may dedicate them, which takes about
/// a millisecond and keeps the process's other threads off them.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_dedicated_cores() -> usize {
    let cores = contained(dimmer_runtime::dedicated).flatten();
    cores.map_or(0, |cores| cores.cpus().count())
}

/// The policy in force, for regions without a decision of their own. They stay if no core could be
/// dedicated. If the policy moves them, this call dedicates the cores, as dimmer_dedicated_cores()
/// does.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_policy() -> Where {
    let policy = || {
        let policy = dimmer_runtime::settings().policy();
        policy.filter(|policy| *policy != Decision::Stay && dimmer_runtime::dedicated().is_some())
    };
    contained(policy).flatten().map_or(Where::Stay, Where::from)
}

/// The version of the library that the program runs with. DIMMER_VERSION is, in the same form, the
/// version that the program was compiled with.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_no_decision_are_ignored() {
        let known = [0, 1, 2].map(decision_of);
        let expected = [Decision::Stay, Decision::Delegate, Decision::Migrate].map(Some);
        assert_eq!(known, expected);
        assert_eq!([3, u32::MAX].map(decision_of), [None; 2]);
    }
}
