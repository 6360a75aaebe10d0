//! Threads between fast and slow cores: what `libultmigration` does (paper 004 §4.2).
//!
//! A registered thread is at home on the fast CPUs: its affinity is set to them. To the slow CPUs
//! it migrates as [`dimmer_runtime`] migrates threads, to a worker on one of them, and comes home
//! for the fast ones. So a round trip takes two hand-overs, any number of CPUs of either kind may
//! be named, and threads without a mark are not concerned.
//!
//! The paper has a worker on the fast core, too, and the thread's own kernel thread sleeps until
//! the end. At home, a thread has its signals and its own kernel thread.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use dimmer_host::affinity;
use dimmer_policy::phases::Core;
use dimmer_runtime::calls::{KeepErrno, system_call};
use dimmer_runtime::{Cores, CpuId, Migration, Root, check_migration, of_thread, parse_cpu_list};

use crate::message;

/// The environment variable with the list of fast CPUs, such as `0` or `0-3,8`.
pub const FAST: &str = "FAST_CPU";
/// The environment variable with the list of slow CPUs.
pub const SLOW: &str = "SLOW_CPU";

/// The library's name in messages.
const LIBRARY: &str = "libultmigration";

/// `ULT_FAST` of `ultmigration.h`.
pub const FAST_CODE: c_uint = 0;
/// `ULT_SLOW` of `ultmigration.h`.
pub const SLOW_CODE: c_uint = 1;

/// The process's CPUs.
#[derive(Debug)]
struct Cpus {
    fast: Vec<CpuId>,
    /// The workers on the slow ones.
    slow: Cores,
}

/// The CPUs, or none if threads stay. Null before the first registration. Never freed.
static CPUS: AtomicPtr<Option<Cpus>> = AtomicPtr::new(std::ptr::null_mut());

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Place {
    Unregistered = 0,
    /// Registered, in a process whose threads stay where they are.
    Stays,
    /// On the fast CPUs.
    Home,
    /// Between them: a signal handler does not migrate it.
    Moving,
    /// On a slow one.
    Away,
}

/// What a thread keeps.
struct OfThread {
    place: Cell<Place>,
    /// What it keeps while it is at home or away: from [`Box::into_raw`].
    registered: Cell<*mut Registered>,
}

/// What a registered thread keeps, on lines of its own: a core fetches each line that it uses.
#[repr(align(128))]
struct Registered {
    slow: &'static Cores,
    /// While it is away.
    migration: Option<Migration<'static>>,
    /// The CPUs that it might run on before.
    before: Vec<CpuId>,
}

of_thread! {
    fn of_thread() -> OfThread, "dimmer_marks_crossing";
}

thread_local! {
    static END: EndOfThread = const { EndOfThread };
}

/// Frees what the thread keeps when it ends.
struct EndOfThread;

impl Drop for EndOfThread {
    fn drop(&mut self) {
        unregister();
    }
}

#[inline]
fn place() -> &'static Cell<Place> {
    &of_thread().place
}

/// Registers the calling thread, which is on a fast CPU from then on. The first call in a process
/// starts the workers. If something is missing, it prints the reason, and threads stay where they
/// are. Does nothing for a thread that is registered already.
pub extern "C" fn register() {
    let _errno = KeepErrno::new();
    if place().get() != Place::Unregistered {
        return;
    }
    place().set(Place::Stays);
    let Some(cpus) = crate::contained(cpus).flatten() else { return };
    let Ok(before) = affinity::allowed() else { return };
    if affinity::allow(&cpus.fast).is_ok() {
        let registered = Registered { slow: &cpus.slow, migration: None, before };
        of_thread().registered.set(Box::into_raw(Box::new(registered)));
        place().set(Place::Home);
        // A thread whose storage is gone already frees nothing.
        let _ = END.try_with(|_| ());
    }
}

/// Brings the calling thread home, and lets it run where it might before it was registered. Does
/// nothing in a signal handler that has interrupted a migration.
pub extern "C" fn unregister() {
    let _errno = KeepErrno::new();
    if place().get() == Place::Moving {
        return;
    }
    if place().get() == Place::Away {
        come_home();
    }
    place().set(Place::Unregistered);
    let_back();
}

/// Whether the calling thread is registered: 1 or 0.
pub extern "C" fn registered() -> c_int {
    (place().get() != Place::Unregistered).into()
}

/// Brings the calling thread to a core of this kind: 0 is fast, 1 slow. It stays where it is if it
/// is there already, if it is not registered, and if it cannot migrate now, as in a signal handler
/// or with a robust mutex.
pub extern "C" fn migrate(code: c_uint) {
    match (code, place().get()) {
        (SLOW_CODE, Place::Home) => go_away(),
        (FAST_CODE, Place::Away) => come_home(),
        (FAST_CODE | SLOW_CODE, _) => {}
        _ => refuse(code),
    }
}

#[cold]
#[inline(never)]
fn refuse(code: c_uint) {
    static UNKNOWN: message::Once = message::Once::new();
    UNKNOWN.print(LIBRARY, || {
        format!("ult_migrate({code}) does nothing: accepted are ULT_FAST and ULT_SLOW")
    });
}

/// The CPU that the calling thread runs on, or -1. glibc's `sched_getcpu` reads it from what the
/// kernel keeps for restartable sequences, and so returns the home's CPU of a thread that is away;
/// `getcpu` is not in glibc before 2.29.
#[must_use]
pub fn cpu() -> c_int {
    let mut cpu: c_uint = 0;
    let to = (&raw mut cpu).expose_provenance().cast_signed() as i64;
    // SAFETY: it writes to `cpu`.
    let result = unsafe { system_call(libc::SYS_getcpu, [to, 0, 0, 0, 0, 0]) };
    if result == 0 { c_int::try_from(cpu).unwrap_or(-1) } else { -1 }
}

/// `pthread_create`, called at home: a new thread inherits the CPUs and the signal mask of the
/// kernel thread that starts it, which must not be a worker.
///
/// # Safety
/// As that of the C library.
pub unsafe fn create_thread(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    type Create = unsafe extern "C" fn(
        *mut libc::pthread_t,
        *const libc::pthread_attr_t,
        extern "C" fn(*mut c_void) -> *mut c_void,
        *mut c_void,
    ) -> c_int;
    // SAFETY: the name ends with a zero.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) };
    if next.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: of this type.
    let next = unsafe { std::mem::transmute::<*mut c_void, Create>(next) };
    let is_away = place().get() == Place::Away;
    if is_away {
        come_home();
    }
    // SAFETY: as the caller has it.
    let result = unsafe { next(thread, attributes, start, argument) };
    if is_away {
        go_away();
    }
    result
}

/// The number of a kind of core in `ultmigration.h`.
pub(crate) const fn code(core: Core) -> c_uint {
    match core {
        Core::Fast => FAST_CODE,
        Core::Slow => SLOW_CODE,
    }
}

/// The kind of core that the calling thread is on.
pub(crate) fn core() -> Core {
    if place().get() == Place::Away { Core::Slow } else { Core::Fast }
}

// Not inlined, like the next one: the core that the thread comes to fetches the frame.
#[inline(never)]
fn go_away() {
    // SAFETY: a thread that is at home has it, and uses it in one place at a time.
    let Some(registered) = (unsafe { of_thread().registered.get().as_mut() }) else { return };
    // All is written at home, so that the worker's core fetches as few lines as can be.
    place().set(Place::Moving);
    registered.migration = registered.slow.begin_migration().ok();
    if let Some(migration) = &mut registered.migration {
        let core = migration.usual();
        place().set(Place::Away);
        if let Some(away) = migration.go(core) {
            // `come_home` ends it.
            std::mem::forget(away);
            return;
        }
    }
    end_migration(registered);
}

#[inline(never)]
fn come_home() {
    // SAFETY: as in `go_away`.
    let Some(registered) = (unsafe { of_thread().registered.get().as_mut() }) else { return };
    if let Some(migration) = &registered.migration {
        migration.go_home();
    }
    end_migration(registered);
}

/// Gives a thread at home its signals again.
#[inline(always)]
fn end_migration(registered: &mut Registered) {
    place().set(Place::Moving);
    registered.migration = None;
    place().set(Place::Home);
}

/// Frees what the calling thread keeps, and lets it run where it might before.
fn let_back() {
    let registered = of_thread().registered.replace(std::ptr::null_mut());
    if !registered.is_null() {
        // SAFETY: from `Box::into_raw`, and used once, because the thread no longer has it.
        let registered = unsafe { Box::from_raw(registered) };
        // If these CPUs are gone, it stays on the fast ones.
        let _ = affinity::allow(&registered.before);
    }
}

/// Names the process's CPUs, before the first registration and instead of the environment, and
/// starts the workers on the slow ones. Where they are known already, they stay.
///
/// # Errors
/// Why threads cannot migrate between these CPUs.
pub fn use_cpus(fast: &[CpuId], slow: &[CpuId]) -> Result<(), String> {
    let mut started = Ok(());
    cpus_or(|| start(fast, slow).map_err(|problem| started = Err(problem)).ok());
    started
}

/// The process's CPUs. The first call starts the workers on the slow ones that the environment
/// names.
fn cpus() -> Option<&'static Cpus> {
    let variable = |name| {
        let text = dimmer_protocol::variable(name).unwrap_or_default();
        text.to_string_lossy().into_owned()
    };
    cpus_or(|| {
        let cpus = start_named(&variable(FAST), &variable(SLOW));
        let print = |problem: &String| {
            message::print(LIBRARY, format_args!("{problem}; threads stay where they are"));
        };
        cpus.inspect_err(print).ok()
    })
}

/// The process's CPUs, from `start` in the first call.
fn cpus_or(start: impl FnOnce() -> Option<Cpus>) -> Option<&'static Cpus> {
    static STARTING: Mutex<()> = Mutex::new(());
    static PREPARED: Once = Once::new();
    // Ordering: pairs with the store below.
    // SAFETY: null, or never freed.
    let known = || unsafe { CPUS.load(Ordering::Acquire).as_ref() };
    if let Some(cpus) = known() {
        return cpus.as_ref();
    }
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cpus) = known() {
        return cpus.as_ref();
    }
    let cpus = start();
    // After the workers' own handlers, which put a child on its parent's CPUs.
    PREPARED.call_once(|| {
        // SAFETY: the handler changes data of this module, and the calling thread's affinity.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    let cpus = Box::leak(Box::new(cpus));
    // Ordering: Release pairs with the load above.
    CPUS.store(cpus, Ordering::Release);
    cpus.as_ref()
}

/// Starts a worker on each slow CPU of lists.
fn start_named(fast: &str, slow: &str) -> Result<Cpus, String> {
    start(&list(FAST, fast)?, &list(SLOW, slow)?)
}

/// Starts a worker on each slow CPU.
fn start(fast: &[CpuId], slow: &[CpuId]) -> Result<Cpus, String> {
    let root = Root::live();
    for (name, cpus) in [(FAST, fast), (SLOW, slow)] {
        for cpu in cpus {
            affinity::check(&root, *cpu).map_err(|error| format!("{name}: {error}"))?;
        }
    }
    if let Some(both) = fast.iter().find(|cpu| slow.contains(cpu)) {
        return Err(format!("{FAST} and {SLOW} both name cpu {both}: expected different CPUs"));
    }
    check_migration().map_err(|error| format!("threads cannot migrate: {error}"))?;
    let slow = Cores::start(&root, slow).map_err(|error| format!("{SLOW}: {error}"))?;
    Ok(Cpus { fast: fast.to_vec(), slow })
}

/// The CPUs in a variable, each once.
fn list(name: &str, text: &str) -> Result<Vec<CpuId>, String> {
    let accepted = "a list of CPUs, such as 0 or 0-3,8";
    if text.is_empty() {
        return Err(format!("{name} is not set: expected {accepted}"));
    }
    let cpus = parse_cpu_list(text).filter(|cpus| !cpus.is_empty());
    let mut cpus = cpus.ok_or_else(|| format!("{name} is `{text}`: expected {accepted}"))?;
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

/// A child has no workers, and its thread is not registered: it runs where it might before. It may
/// register again.
extern "C" fn in_child() {
    CPUS.store(std::ptr::null_mut(), Ordering::Relaxed);
    place().set(Place::Unregistered);
    let_back();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(fast: &str, slow: &str) -> String {
        start_named(fast, slow).unwrap_err()
    }

    #[test]
    fn what_is_wrong_with_the_cpus_is_named_with_what_is_accepted() {
        assert_eq!(
            refused("", "1"),
            "FAST_CPU is not set: expected a list of CPUs, such as 0 or 0-3,8"
        );
        assert_eq!(
            refused("0", "fast"),
            "SLOW_CPU is `fast`: expected a list of CPUs, such as 0 or 0-3,8"
        );
        let said = refused("0", "1023");
        assert!(said.starts_with("SLOW_CPU: ") && said.contains("1023"), "{said}");
        assert_eq!(
            refused("0", "0"),
            "FAST_CPU and SLOW_CPU both name cpu 0: expected different CPUs"
        );
    }

    #[test]
    fn a_thread_finds_the_cpu_that_it_is_on() {
        let allowed = affinity::allowed().unwrap();
        let cpu = CpuId::new(cpu().try_into().unwrap());
        assert!(allowed.contains(&cpu), "{cpu} {allowed:?}");
    }

    #[test]
    fn lists_have_each_cpu_once() {
        let cpus = list(SLOW, "3,1-2,2").unwrap();
        assert_eq!(cpus, [1, 2, 3].map(CpuId::new));
    }

    #[test]
    fn a_thread_that_is_not_registered_stays() {
        migrate(1);
        assert_eq!((registered(), core()), (0, Core::Fast));
        unregister();
        assert_eq!(registered(), 0);
    }
}
