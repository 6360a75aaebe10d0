//! A thread's request, and the cache of it.

use std::cell::{Cell, RefCell};
use std::hint::spin_loop;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use dimmer_processor::units::{CpuId, KiloHertz};
use rustix::thread::sched_getcpu;

use crate::back_end::{Refused, Thread};
use crate::holders::{Holders, Wanted};
use crate::machine;
use crate::request::is_granted;
use crate::{Answer, Decision, Holder, Request, Wish};
use crate::{follower, neighbour, registry};

/// The place of a request that goes with the thread.
const ANYWHERE: u32 = u32::MAX;

/// What a thread has asked the machine for last.
#[derive(Clone, Copy)]
struct Kept {
    /// [`Request::number`], or 0 for none.
    number: u8,
    /// Whether a back end has it.
    is_taken: bool,
    /// The CPU that was asked, or [`ANYWHERE`].
    cpu: u32,
    /// Whether the agent is to make it, and may not have made it yet.
    is_handed_over: bool,
    /// What has it ([`machine::way`]), if it is for a CPU.
    way: Option<u8>,
    /// How many requests had been moved before it was made ([`follower::moves`]).
    moves: u64,
}

impl Kept {
    /// Whether it counts for the CPU that executes the thread, and what has it is still in use. One
    /// that a core's back end has refused does not: it is made again.
    fn is_here(self) -> bool {
        let is_everywhere = self.number == 0 || self.cpu == ANYWHERE;
        let has_way = || machine::way().is_some_and(|way| self.way == Some(way));
        let is_unmoved = || self.moves == follower::moves();
        is_everywhere || self.is_taken && self.cpu == this_cpu() && is_unmoved() && has_way()
    }
}

/// A bit above all numbers.
const UNTAKEN: u8 = 1 << 7;

const NONE: Kept =
    Kept { number: 0, is_taken: false, cpu: ANYWHERE, is_handed_over: false, way: None, moves: 0 };

thread_local! {
    static KEPT: Cell<Kept> = const { Cell::new(NONE) };
    /// [`Kept::number`] if it counts wherever the thread runs and is the thread's own request, so
    /// that the same request changes nothing; else 0. With [`UNTAKEN`] if no back end has it.
    static IN_FORCE: Cell<u8> = const { Cell::new(0) };
    /// Whether the thread is in a back end: a signal handler that asks then gets nothing.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    static HELD: Held = const { Held(RefCell::new(Holders::EMPTY)) };
}

/// The thread's requests. They end with it.
struct Held(RefCell<Holders>);

impl Drop for Held {
    fn drop(&mut self) {
        IN_FORCE.set(0);
        if KEPT.get().number != 0 {
            outside(|| put(Wanted::default()));
        }
    }
}

/// Changes the thread's requests, and asks the machine for what is in force then. `None` if the
/// thread is in the middle of such work, or in its last destructors: a request would not end then.
fn change<T>(change: impl FnOnce(&mut Holders) -> T) -> Option<(T, Decision)> {
    let changed = || {
        let changed = |held: &Held| {
            let mut holders = held.0.try_borrow_mut().ok()?;
            let result = change(&mut holders);
            Some((result, holders.in_force(), holders.is_own_in_force()))
        };
        let (result, wanted, is_own) = HELD.try_with(changed).ok()??;
        let decision = put(wanted);
        let kept = KEPT.get();
        let untaken = if kept.is_taken { 0 } else { UNTAKEN };
        let is_everywhere = is_own && kept.cpu == ANYWHERE && kept.number != 0;
        IN_FORCE.set(if is_everywhere { kept.number | untaken } else { 0 });
        Some((result, decision))
    };
    outside(changed).flatten()
}

fn decided(changed: Option<((), Decision)>) -> Decision {
    changed.map_or(Decision::Unavailable, |((), decision)| decision)
}

const fn by_thread(request: Option<Request>) -> Wanted {
    Wanted { request, by_neighbour: false }
}

const fn by_neighbour(request: Request) -> Wanted {
    Wanted { request: Some(request), by_neighbour: true }
}

/// Asks for this clock of the core that executes the calling thread, until the thread asks for
/// another one, withdraws the request, or ends; in a scope ([`at`]), until its end. Does not wait
/// for the clock.
///
/// Cost: a request that is in force already, a load and a comparison; where requests are for cores
/// (`cpufreq`), also asking which core this is, and with `dimmerd` reading the time-stamp counter.
/// Another one takes one system call (`dimmerd`) or two (`uclamp`), or reads and writes some files.
/// The process's first one chooses a back end. May be called from any thread, but not in a signal
/// handler: a request allocates memory.
#[inline]
pub fn request(request: Request) -> Decision {
    in_force_everywhere(request).unwrap_or_else(|| own(by_thread(Some(request))))
}

/// Makes the thread's own request. Apart from the fast way, which is part of the caller.
#[inline(never)]
fn own(wanted: Wanted) -> Decision {
    decided(change(|holders| holders.own(wanted)))
}

/// The decision about a request that is in force wherever the thread runs.
#[inline]
fn in_force_everywhere(request: Request) -> Option<Decision> {
    let in_force = IN_FORCE.get();
    (in_force & !UNTAKEN == request.number()).then(|| decision(in_force & UNTAKEN == 0))
}

const fn decision(is_taken: bool) -> Decision {
    if is_taken { Decision::Requested } else { Decision::Unavailable }
}

/// The same, and returns as much of the outcome as the caller wishes. The kernel's report of a
/// core's clock takes microseconds to read.
pub fn ask(wanted: Request, wish: Wish) -> Answer {
    let begin = Instant::now();
    loop {
        let decision = request(wanted);
        let unseen = Answer { decision, clock: None, is_granted: false };
        if decision == Decision::Unavailable || wish == Wish::BestEffort {
            return unseen;
        }
        let seen = outside(|| seen(wanted)).flatten();
        let Some((clock, is_granted)) = seen else { return unseen };
        let is_over = match wish {
            Wish::Granted { within } => begin.elapsed() >= within,
            _ => true,
        };
        if is_granted || is_over {
            return Answer { decision, clock: Some(clock), is_granted };
        }
        spin_loop();
    }
}

/// The clock of this core, and whether it is the one that is wanted.
fn seen(wanted: Request) -> Option<(KiloHertz, bool)> {
    let (back_end, cpu) = (machine::get().ok()?, CpuId::new(this_cpu()));
    let clock = back_end.clock(cpu)?;
    Some((clock, is_granted(wanted.clock(&back_end.clocks(cpu)?)?, clock)))
}

/// Ends the thread's own request, and what locks have requested for it between their sections. If
/// no section is open, the machine decides about the clock then. In a scope ([`at`]), it decides
/// until the end of that, and nothing else ends.
pub fn withdraw() {
    change(|holders| holders.own(Wanted::default()));
}

/// The request of the calling thread that is in force.
#[must_use]
pub fn in_force() -> Option<Request> {
    Request::of_number(KEPT.get().number)
}

/// Asks for a clock until the result is dropped. Scopes may end in any order: of the requests that
/// have not ended, the one made last counts.
#[must_use = "the request ends when the scope is dropped"]
pub fn at(wanted: Request) -> Scope {
    Scope { number: begin(Some(wanted)), not_send: PhantomData }
}

/// While this value lives, the calling thread asks for a clock; see [`at`].
#[derive(Debug)]
pub struct Scope {
    number: Option<NonZeroU64>,
    /// It must be dropped in the same thread.
    not_send: PhantomData<*const ()>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.number.into_iter().for_each(finish);
    }
}

/// Begins a scope as [`at`] does, for languages without destructors; `None`: in it, the machine
/// decides. Returns its number, for [`finish`]. No other scope of the process has the same. `None`
/// in a signal handler that has interrupted a request, and in the last destructors of a thread.
pub fn begin(wanted: Option<Request>) -> Option<NonZeroU64> {
    static SCOPES: AtomicU64 = AtomicU64::new(1);
    // Relaxed: only that no two get the same matters.
    let number = NonZeroU64::new(SCOPES.fetch_add(1, Ordering::Relaxed))?;
    change(|holders| holders.begin_scope(number, by_thread(wanted))).map(|_| number)
}

/// Ends a scope of the calling thread. Does nothing if it has no such scope.
pub fn finish(scope: NonZeroU64) {
    change(|holders| holders.end_scope(scope));
}

/// Makes a request for the calling thread that another part of its program has: a lock. It ends by
/// [`release`], and leaves the thread's own as it is.
///
/// # Cost
/// As [`request`], and a load and a comparison for each holder of the thread.
pub fn hold(holder: Holder, request: Request) -> Decision {
    decided(change(|holders| holders.hold(holder, by_thread(Some(request)))))
}

/// The same as [`request_by_neighbour`].
pub fn hold_by_neighbour(holder: Holder, request: Request) -> Decision {
    decided(change(|holders| holders.hold(holder, by_neighbour(request))))
}

/// Ends what [`hold`] has requested, if it has not ended yet.
pub fn release(holder: Holder) {
    change(|holders| holders.release(holder));
}

/// Ends the last section of a lock, and its request counts on as that of [`Holder::Between`].
pub fn stay(lock: usize) {
    change(|holders| holders.stay(lock));
}

/// The thread is on a fast core, and asks for the fastest clock there.
pub(crate) fn begin_visit() {
    change(|holders| holders.begin_visit(by_thread(Some(Request::TURBO))));
}

/// Ends that request.
pub(crate) fn end_visit() {
    change(Holders::end_visit);
}

fn this_thread() -> Thread {
    Thread { id: registry::number(), cpu: CpuId::new(this_cpu()) }
}

fn this_cpu() -> u32 {
    u32::try_from(sched_getcpu()).unwrap_or(0)
}

/// As [`request`], but another thread of the process, on another core, makes the request: the
/// calling thread goes on meanwhile (paper 002, section 4.3, `dlgt`). If it asks for something else
/// before the request is made, the later one counts.
///
/// The first call starts that thread, which spins for some ten microseconds after each request, and
/// sleeps then. It may run on all CPUs of the process's cpuset, dedicated ones too. Where there is
/// no other CPU for it, and with requests that go with the thread (`uclamp`), the calling thread
/// makes the request itself.
///
/// Returns whether there is a back end. [`crate::trouble`] says if one that the other thread made
/// was refused.
///
/// # Cost
/// A request that is in force already, as [`request`]. Another one, a write to memory, and a system
/// call if the other thread sleeps.
#[inline]
pub fn request_by_neighbour(request: Request) -> Decision {
    in_force_everywhere(request).unwrap_or_else(|| own(by_neighbour(request)))
}

/// Asks the machine for this, unless it has it already.
fn put(wanted: Wanted) -> Decision {
    let (kept, number) = (KEPT.get(), wanted.request.map_or(0, Request::number));
    if kept.number == number && kept.is_here() && (wanted.by_neighbour || !kept.is_handed_over) {
        return decision(kept.is_taken);
    }
    if number != 0 {
        registry::register_within();
    }
    // Before the request, which may be moved as soon as it is made.
    let moves = follower::moves();
    let handed = wanted.request.filter(|_| wanted.by_neighbour).and_then(hand_over);
    if let Some(cpu) = handed {
        let way = machine::way();
        KEPT.set(Kept { number, is_taken: true, cpu, is_handed_over: true, way, moves });
        return Decision::Requested;
    }
    neighbour::settle();
    request_here(wanted.request, moves)
}

/// Has the agent make the request. Returns the CPU that it is for; `None` if the calling thread is
/// to make it.
fn hand_over(request: Request) -> Option<u32> {
    if machine::get().ok()?.follows_threads() {
        // The thread's own request is one system call more than to wake the agent, and each would
        // take the other's clamps for those of another program.
        return None;
    }
    let thread = this_thread();
    neighbour::hand_over(thread, request).then(|| thread.cpu.index())
}

#[cold]
fn request_here(request: Option<Request>, moves: u64) -> Decision {
    let number = request.map_or(0, Request::number);
    let Ok(back_end) = machine::get() else {
        KEPT.set(Kept { number, ..NONE });
        return Decision::Unavailable;
    };
    let is_for_core = number != 0 && !back_end.follows_threads();
    let thread = this_thread();
    let result = back_end.request(thread, request);
    let is_taken = result.is_ok();
    if let Err(Refused::Lost(trouble)) = result {
        machine::report(trouble);
    }
    let cpu = if is_for_core { thread.cpu.index() } else { ANYWHERE };
    let way = machine::way();
    KEPT.set(Kept { number, is_taken, cpu, is_handed_over: false, way, moves });
    if is_taken && is_for_core {
        follower::attend();
    }
    decision(is_taken)
}

/// The thread has moved: its request goes with it at once.
pub(crate) fn ask_again() {
    change(|_| ());
}

/// Makes this the request of another thread, which may be of another process: `cpu` executes it,
/// and `thread` is its number in the kernel. `None` ends it; that must be done for each such
/// thread, also for one that has ended. The cache of [`request`] has no part in it.
pub fn request_for(thread: u32, cpu: CpuId, request: Option<Request>) -> Decision {
    outside(|| request_for_within(thread, cpu, request)).unwrap_or(Decision::Unavailable)
}

/// As [`request_for`], for a clock that is at least as fast: the machine may choose a faster one,
/// as it may without a request, so nothing becomes slower. It is for a process that
/// [`prepare_for_server`](crate::prepare_for_server) has prepared: `uclamp` and `dimmerd` refuse,
/// and the back ends that a server does not use take the clock exactly.
pub fn at_least_for(thread: u32, cpu: CpuId, request: Request) -> Decision {
    let ask = || {
        let back_end = machine::get().ok()?;
        Some(outcome(back_end.at_least_for(Thread { id: thread, cpu }, request)))
    };
    outside(ask).flatten().unwrap_or(Decision::Unavailable)
}

/// The same within such work as [`outside`] does.
pub(crate) fn request_for_within(thread: u32, cpu: CpuId, request: Option<Request>) -> Decision {
    let Ok(back_end) = machine::get() else { return Decision::Unavailable };
    outcome(back_end.request_for(Thread { id: thread, cpu }, request))
}

fn outcome(result: Result<(), Refused>) -> Decision {
    match result {
        Ok(()) => Decision::Requested,
        Err(Refused::Lost(trouble)) => {
            machine::report(trouble);
            Decision::Unavailable
        }
        Err(_) => Decision::Unavailable,
    }
}

/// Does this unless the thread is in the middle of such work, in which a signal has interrupted it.
pub(crate) fn outside<T>(work: impl FnOnce() -> T) -> Option<T> {
    if IS_INSIDE.replace(true) {
        return None;
    }
    let _end = EndOfInside;
    Some(work())
}

/// Ends the work in a back end, also if it panics.
struct EndOfInside;

impl Drop for EndOfInside {
    fn drop(&mut self) {
        IS_INSIDE.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_within_work_is_refused_and_a_panic_ends_it() {
        assert_eq!(outside(|| outside(|| ())), Some(None));
        let panicked =
            std::panic::catch_unwind(|| outside(|| std::panic::resume_unwind(Box::new(()))));
        assert!(panicked.is_err());
        assert_eq!(outside(|| 1), Some(1));
    }
}
