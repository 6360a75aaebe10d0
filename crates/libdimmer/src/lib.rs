//! The C face of `dimmer-runtime`: regions that a program marks run where its environment says.
//!
//! `include/dimmer.h` is generated from this file and the site of `dimmer-runtime` by `cargo xtask
//! header`, so what is documented here is what C programmers read; its macros are in
//! `include/macros.h`. Nothing is decided and nothing is moved here. No panic leaves this crate:
//! whatever goes wrong, work runs where it is.

mod call;

use std::ffi::{c_char, c_void};

use call::{Call, contained, errno, set_errno};
use dimmer_runtime::{Decision, Entered, Site};

/// What is called on a dedicated core.
pub type Function = unsafe extern "C-unwind" fn(argument: *mut c_void);

/// Where a region runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Where {
    /// Where the thread is.
    Stay,
    /// On a dedicated core; what is given to dimmer_run() on the worker's own stack, other regions
    /// as with borrow.
    Offload,
    /// On a dedicated core, with the thread's own stack and thread-local storage.
    Borrow,
}

impl From<Decision> for Where {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Stay => Self::Stay,
            Decision::Offload => Self::Offload,
            Decision::Borrow => Self::Borrow,
        }
    }
}

/// What a site has seen.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Statistics {
    /// Entries so far, estimated: of those that stay, one in 256 on average is looked at where they
    /// are frequent, all where they are rare.
    pub calls: u64,
    /// Mean time in the region (ns) of the entries that were looked at; not a number before the
    /// first.
    pub mean_ns: f64,
}

/// Called by the loader, and in static programs before `main`: what takes memory is had now, as
/// regions may be in handlers of signals and in the program's allocator.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    contained(dimmer_runtime::prepare);
}

/// Begins a region, which dimmer_exit() ends on the same thread. DIMMER_REGION does both.
///
/// Regions may be nested; within one that has moved the thread, others stay where it is. One that
/// stays costs some nanoseconds. Any thread may call this at any time, in a signal's handler and in
/// the program's allocator too; `errno` stays as it is. The first region that is to move dedicates
/// the cores as dimmer_dedicated_cores() does, but never in a handler; nothing else here allocates
/// or waits for a lock. `site` must not be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_enter(site: &'static Site) -> Entered {
    contained(|| site.enter_once_prepared()).unwrap_or_default()
}

/// Ends the region that dimmer_enter() has begun with this result. Where that is all zero, nothing
/// is to be done.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_exit(site: &'static Site, entered: Entered) {
    contained(|| site.exit(entered));
}

/// Calls `function(argument)` as is decided for the site: here, here on a dedicated core, or on the
/// worker's own stack.
///
/// Returns false if the call was begun and lost, as its worker has ended; else it has run exactly
/// once. `errno` is what the function has left. The function must not throw: C++ programs use
/// dimmer::run(). Where it runs on the calling thread it may end that, or be cancelled
/// (pthread_exit(), pthread_cancel()); on a worker's stack, pthread_exit() ends the worker, and the
/// call is lost.
///
/// # Safety
/// `function(argument)` may be called, on another thread too.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dimmer_run(
    site: &'static Site,
    function: Function,
    argument: *mut c_void,
) -> bool {
    let call = Call::new(function, argument);
    let run = || site.try_offload(|| call.happen_away()).is_ok();
    call.settle(contained(run).unwrap_or(false), Some(site))
}

/// Calls `function(argument)` on a dedicated core, on the stack and with the thread-local storage
/// of its worker, and waits. Without dedicated cores (DIMMER_CORES) it runs here; DIMMER_POLICY
/// does not matter.
///
/// Returns false if the call was begun and lost, as its worker has ended; else it has run exactly
/// once. `errno` is what the function has left. The function must not throw: C++ programs use
/// dimmer::offload(). It may end its thread as with dimmer_run().
///
/// # Safety
/// `function(argument)` may be called, on another thread too.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dimmer_offload(function: Function, argument: *mut c_void) -> bool {
    let call = Call::new(function, argument);
    let offload = || Some(dimmer_runtime::dedicated()?.try_offload(|| call.happen_away()).is_ok());
    call.settle(contained(offload).flatten().unwrap_or(false), None)
}

/// Calls `function(argument)` on a dedicated core as the same thread, with its own stack and
/// thread-local storage, and comes back. Without dedicated cores (DIMMER_CORES), or where threads
/// cannot travel, it runs here; DIMMER_POLICY does not matter.
///
/// What the function throws goes on here, at home, and so does pthread_exit(). It must not be left
/// by longjmp().
///
/// # Safety
/// `function(argument)` may be called.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dimmer_borrow(function: Function, argument: *mut c_void) {
    let before = errno();
    let cores = contained(dimmer_runtime::dedicated).flatten();
    let mut journey = cores.and_then(|cores| contained(|| cores.depart().ok()).flatten());
    let away = journey.as_mut().and_then(|journey| {
        let usual = journey.usual();
        contained(|| journey.go(usual)).flatten()
    });
    set_errno(before);
    // SAFETY: the caller's function, with what the caller gives it.
    unsafe { function(argument) };
    let after = errno();
    contained(|| drop(away));
    contained(|| drop(journey));
    set_errno(after);
}

/// Decides for a site from now on, whatever the environment says. Threads that are in one of its
/// regions stay where they are.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_decide(site: &'static Site, decision: Where) {
    site.decide(match decision {
        Where::Stay => Decision::Stay,
        Where::Offload => Decision::Offload,
        Where::Borrow => Decision::Borrow,
    });
}

/// Says that the program has got so much more done, in a unit of its own (requests, pictures,
/// bytes): what a policy server goes by, instead of the time that regions take. Costs an addition
/// in memory.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_metric(amount: u64) {
    contained(|| dimmer_runtime::metric(amount));
}

/// What a site has seen so far.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_site_statistics(site: &'static Site) -> Statistics {
    let none = Statistics { calls: 0, mean_ns: f64::NAN };
    let seen = contained(|| site.statistics());
    seen.map_or(none, |seen| Statistics {
        calls: seen.calls,
        mean_ns: seen.mean_ns.unwrap_or(f64::NAN),
    })
}

/// Whether threads can travel on this machine and in this process (FSGSBASE, no shadow stacks, no
/// Valgrind). Where they cannot, only dimmer_offload() and dimmer_run() move anything.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_can_travel() -> bool {
    contained(|| dimmer_runtime::check_travel().is_ok()).unwrap_or(false)
}

/// How many dedicated cores the process has. The first call may dedicate them, which takes about a
/// millisecond and keeps the process's other threads off them.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_dedicated_cores() -> usize {
    let cores = contained(dimmer_runtime::dedicated).flatten();
    cores.map_or(0, |cores| cores.cpus().count())
}

/// The policy in force: what becomes of regions that nothing else is said of. They stay where no
/// core could be dedicated; a policy that moves them has this call dedicate the cores, as
/// dimmer_dedicated_cores() does.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_policy() -> Where {
    let policy = || {
        let policy = dimmer_runtime::settings().policy();
        policy.filter(|policy| *policy != Decision::Stay && dimmer_runtime::dedicated().is_some())
    };
    contained(policy).flatten().map_or(Where::Stay, Where::from)
}

/// The version of the library that the program runs with, as in DIMMER_VERSION, which is the one it
/// was compiled with.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
