//! Threads that go to wide CPUs for wide code (`dimmer run --specialise`): connects the hooks with
//! [`dimmer_runtime::wide`], and has the program see, and pass on, the affinity that it has set.
//!
//! To the program, a thread's affinity is its own. So the thread gets it back before functions that
//! show it or pass it on. Programs that make these system calls without the C library bypass that.

use std::ffi::{c_int, c_long, c_void};
use std::panic::catch_unwind;
use std::sync::OnceLock;

use dimmer_hook::{LeafCall, LeafEnd, Mover, Orders, Phases, SIGNALS_ARE_RIGHT, gate, ticks};
use dimmer_policy::specialise::{Cpus, Domain, Settings};
use dimmer_processor::units::Nanos;
use dimmer_runtime::calls::KeepErrno;
use dimmer_runtime::wide::{self, Begun, Event, Hooks, Specialising, Whose};

use crate::arch::forward;
use crate::home::come_home_before;
use crate::next::Next;
use crate::thread;

/// What hooks call at gates.
pub(crate) const AT_GATES: Mover = Mover {
    begin_migration: begin,
    end_migration: end,
    cut_migration_short: cut_short,
    end_cut_migration: end_of_cut,
    delegate,
    unwind_delegated: nothing,
};

static ORDERS: OnceLock<Orders<'static>> = OnceLock::new();

/// The part of the environment that says what may be wide, as `dimmer run` writes it: the sets of
/// wide CPUs, all CPUs of the program, and the time of a move there and back (ns).
fn read(text: &str) -> Option<(Domain, Settings)> {
    let mut words = text.split(' ');
    let (sets, all) = (words.next()?, cpus(words.next()?)?);
    let round_trip = words.next()?.parse().ok()?;
    let sets = sets.split('/').map(|set| Some(cpus(set)?.and(&all))).collect::<Option<Vec<_>>>()?;
    let is_part = |set: &Cpus| !set.is_empty() && *set != all;
    let is_whole = words.next().is_none() && sets.iter().all(is_part);
    is_whole.then(|| (Domain { all, sets }, Settings::hooked(Nanos::from_ns(round_trip))))
}

fn cpus(list: &str) -> Option<Cpus> {
    let list = dimmer_runtime::parse_cpu_list(list)?;
    Some(Cpus::of(list.iter().filter_map(|cpu| usize::try_from(cpu.index()).ok())))
}

/// Prepares the process, before it has other threads. Returns false if the environment does not say
/// what is wide.
pub(crate) fn prepare(text: &str) -> bool {
    let Some((domain, settings)) = read(text) else { return false };
    let hooks = Hooks {
        holds: || {
            let orders = ORDERS.get().filter(|orders| orders.are_limited())?;
            Some(orders.hold(ticks()))
        },
        wide_set: || ORDERS.get().and_then(Orders::wide_set),
        are_kept_off: || {
            ORDERS.get().and_then(Orders::used_cores).is_some_and(|threads| threads > 0)
        },
        look_again: gate::next_round,
        thread: || Phases::own().map(Phases::number),
        calls: |number| Phases::of(number).map_or(0, Phases::calls),
        note,
    };
    wide::specialise(Specialising { domain, settings, hooks });
    true
}

/// Lets threads go to wide CPUs from now on, under these orders.
pub(crate) fn start(orders: Orders<'static>) {
    let _ = ORDERS.set(orders);
}

fn note(number: usize, event: Event) {
    let Some(phases) = Phases::of(number) else { return };
    match event {
        Event::Goes => phases.goes(),
        Event::ComesBack => phases.comes_back(),
        Event::WasWide(time) => phases.was_wide(time.ns()),
        Event::Stays(why) => phases.stays(why.bit()),
    }
}

extern "C" fn begin(site: u32) -> u32 {
    let _errno = KeepErrno::new();
    let round = gate::round();
    match catch_unwind(wide::begin) {
        Ok(Begun::Wide(thread)) => {
            gate::let_pass(round);
            thread::set(thread::SITE, site);
            thread
        }
        Ok(Begun::Passes) => {
            gate::let_pass(round);
            0
        }
        Ok(Begun::NotNow) | Err(_) => 0,
    }
}

extern "C" fn end() -> u64 {
    let _errno = KeepErrno::new();
    if let Ok(Some(is_long)) = catch_unwind(wide::end_call) {
        gate::stop_all(thread::get(thread::SITE), is_long);
    }
    SIGNALS_ARE_RIGHT
}

/// The thread stays where it is, and the end of the call is not told.
extern "C" fn cut_short() {
    let _errno = KeepErrno::new();
    let _ = catch_unwind(wide::end_call);
}

extern "C" fn end_of_cut() -> u64 {
    SIGNALS_ARE_RIGHT
}

fn delegate(_: LeafCall<'_>) -> Option<LeafEnd> {
    None
}

extern "C" fn nothing() {}

/// Gives the calling thread its affinity back, before something that shows it.
pub(crate) fn give_back() {
    if wide::is_on() {
        let _errno = KeepErrno::new();
        if catch_unwind(wide::give_back).unwrap_or(false) {
            gate::let_pass(0);
        }
    }
}

/// Likewise, before something that passes it on.
pub(crate) fn give_back_to_pass_on() {
    give_back();
    if wide::is_on() {
        wide::starts_another();
    }
}

/// Before the affinity of this thread is shown or set; 0 is the calling one.
pub(crate) fn before_affinity_of(thread: c_int) {
    if !wide::is_on() {
        return;
    }
    if is_own(thread) {
        give_back();
    } else {
        let _errno = KeepErrno::new();
        let _ = catch_unwind(wide::give_all_back);
    }
}

fn is_own(thread: c_int) -> bool {
    thread == 0 || thread == rustix::thread::gettid().as_raw_nonzero().get()
}

fn whose(thread: c_int) -> Whose {
    match u32::try_from(thread) {
        Ok(number) if !is_own(thread) => Whose::Thread(number),
        _ => Whose::Own,
    }
}

/// The program sets an affinity, by a mask that may be null or anywhere.
fn chooses(whose: Whose, bytes: usize, mask: *const u8) {
    if wide::is_on() && !mask.is_null() {
        let _errno = KeepErrno::new();
        wide::chooses(whose, mask, bytes);
    }
}

static SET: Next = Next::new(c"sched_setaffinity");
static GET: Next = Next::new(c"sched_getaffinity");
static SET_OF_THREAD: Next = Next::new(c"pthread_setaffinity_np");
static GET_OF_THREAD: Next = Next::new(c"pthread_getaffinity_np");
static SET_IN_ATTRIBUTES: Next = Next::new(c"pthread_attr_setaffinity_np");
static GET_ATTRIBUTES: Next = Next::new(c"pthread_getattr_np");

/// Looks up this file's next functions, as [`crate::home::find_next`] does.
pub(crate) fn find_next() {
    for next in [&SET, &GET, &SET_OF_THREAD, &GET_OF_THREAD, &SET_IN_ATTRIBUTES, &GET_ATTRIBUTES] {
        next.get();
    }
}

forward!(sched_setaffinity, before_set);
forward!(sched_getaffinity, before_get);
forward!(pthread_setaffinity_np, before_set_of_thread);
forward!(pthread_getaffinity_np, before_get_of_thread);
forward!(pthread_attr_setaffinity_np, before_set_in_attributes);
forward!(pthread_getattr_np, before_get_attributes);

extern "C" fn before_set(thread: c_int, bytes: usize, mask: *const u8) -> *mut c_void {
    let next = come_home_before(&SET);
    before_affinity_of(thread);
    chooses(whose(thread), bytes, mask);
    next
}

extern "C" fn before_get(thread: c_int) -> *mut c_void {
    let next = come_home_before(&GET);
    before_affinity_of(thread);
    next
}

/// Threads are compared by their name, so that none needs to be alive.
extern "C" fn before_set_of_thread(thread: u64, bytes: usize, mask: *const u8) -> *mut c_void {
    let whose = if before_thread(thread) { Whose::Own } else { Whose::Any };
    chooses(whose, bytes, mask);
    known(&SET_OF_THREAD)
}

extern "C" fn before_get_of_thread(thread: u64) -> *mut c_void {
    before_thread(thread);
    known(&GET_OF_THREAD)
}

extern "C" fn before_set_in_attributes(_: u64, bytes: usize, mask: *const u8) -> *mut c_void {
    chooses(Whose::Any, bytes, mask);
    known(&SET_IN_ATTRIBUTES)
}

/// The attributes have the affinity.
extern "C" fn before_get_attributes(thread: u64) -> *mut c_void {
    before_thread(thread);
    known(&GET_ATTRIBUTES)
}

fn before_thread(thread: u64) -> bool {
    if !wide::is_on() {
        return false;
    }
    // SAFETY: needs nothing.
    let is_own = unsafe { libc::pthread_self() } == thread;
    before_affinity_of(if is_own { 0 } else { -1 });
    is_own
}

/// Where a function goes on.
fn known(next: &Next) -> *mut c_void {
    let next = next.get();
    if next.is_null() { lacks as *mut c_void } else { next }
}

/// Fails, for a C library that is older than the function.
extern "C" fn lacks() -> c_int {
    libc::ENOSYS
}

/// System calls that show an affinity, set it, or pass it on, made by syscall(2).
pub(crate) fn before_system_call(number: c_long, first: c_int, second: c_int, third: *const u8) {
    const PASSING_ON: [c_long; 4] =
        [libc::SYS_clone, libc::SYS_clone3, libc::SYS_execve, libc::SYS_execveat];
    if !wide::is_on() {
        return;
    }
    if number == libc::SYS_sched_getaffinity || number == libc::SYS_sched_setattr {
        before_affinity_of(first);
    } else if number == libc::SYS_sched_setaffinity {
        before_affinity_of(first);
        chooses(whose(first), usize::try_from(second).unwrap_or_default(), third);
    } else if PASSING_ON.contains(&number) || crate::arch::FORKS.contains(&number) {
        give_back_to_pass_on();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wide_is_read_as_it_is_written() {
        let (domain, settings) = read("6-7 0-7 20000").unwrap();
        assert_eq!(domain, Domain { all: Cpus::of(0..8), sets: vec![Cpus::of(6..8)] });
        assert_eq!(settings, Settings::hooked(Nanos::from_us(20)));
        // CPUs that the program has not are not wide.
        assert_eq!(read("6-9 0-7 1").unwrap().0, domain);
        let (domain, _) = read("6-7/4-7/1 0-7 1").unwrap();
        assert_eq!(domain.sets, [Cpus::of(6..8), Cpus::of(4..8), Cpus::of([1])]);
        for wrong in [
            "/6 0-7 1",
            "6/0-7 0-7 1",
            "6/9 0-7 1",
            "",
            "6",
            "6 0-7",
            "6 0-7 x",
            "x 0-7 1",
            "8 0-7 1",
            "0-7 0-7 1",
            "6 0-7 1 2",
        ] {
            assert!(read(wrong).is_none(), "{wrong}");
        }
    }
}
