//! A thread's request, and the cache of it.

use std::cell::Cell;
use std::hint::spin_loop;
use std::marker::PhantomData;
use std::time::Instant;

use dimmer_processor::units::{CpuId, KiloHertz};
use rustix::thread::{gettid, sched_getcpu};

use crate::back_end::{Refused, Thread};
use crate::machine;
use crate::neighbour;
use crate::request::is_granted;
use crate::{Answer, Decision, Request, Wish};

/// The place of a request that goes with the thread.
const ANYWHERE: u32 = u32::MAX;

/// What a thread has asked for last.
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
}

/// A bit above all numbers.
const UNTAKEN: u8 = 1 << 7;

const NONE: Kept = Kept { number: 0, is_taken: false, cpu: ANYWHERE, is_handed_over: false };

thread_local! {
    static KEPT: Cell<Kept> = const { Cell::new(NONE) };
    /// [`Kept::number`] if it counts wherever the thread runs, else 0; with [`UNTAKEN`] if no back
    /// end has the request.
    static IN_FORCE: Cell<u8> = const { Cell::new(0) };
    /// Whether the thread is in a back end: a signal handler that asks then gets nothing.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    static END: End = const { End };
}

/// Ends the request of a thread that ends.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        withdraw();
    }
}

/// Asks for this clock of the core that executes the calling thread, until the thread asks for
/// another one, withdraws the request, or ends. Does not wait for the clock.
///
/// Cost: a request that is in force already, a load and a comparison; where requests are for cores
/// (`cpufreq`), also asking which core this is. Another one takes two system calls (`uclamp`), or
/// reads and writes some files. The process's first one chooses a back end. May be called from any
/// thread, but not in a signal handler: a request for a core allocates memory.
#[inline]
pub fn request(request: Request) -> Decision {
    in_force_everywhere(request).unwrap_or_else(|| request_here(request))
}

/// The decision about a request that is in force wherever the thread runs.
#[inline]
fn in_force_everywhere(request: Request) -> Option<Decision> {
    let in_force = IN_FORCE.get();
    (in_force & !UNTAKEN == request.number()).then(|| decision(in_force & UNTAKEN == 0))
}

/// A request that is not in force everywhere. Apart from the fast way, which is part of the caller
/// then.
#[inline(never)]
fn request_here(request: Request) -> Decision {
    let kept = KEPT.get();
    if kept.number == request.number() && kept.cpu == this_cpu() && !kept.is_handed_over {
        return decision(kept.is_taken);
    }
    change(Some(request))
}

fn keep(kept: Kept) {
    let untaken = if kept.is_taken { 0 } else { UNTAKEN };
    IN_FORCE.set(if kept.cpu == ANYWHERE { kept.number | untaken } else { 0 });
    KEPT.set(kept);
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

/// Ends the thread's request: the machine decides about the clock as before.
pub fn withdraw() {
    if KEPT.get().number != 0 {
        change(None);
    }
}

/// What the calling thread has asked for, and not withdrawn.
#[must_use]
pub fn in_force() -> Option<Request> {
    Request::of_number(KEPT.get().number)
}

/// Asks for a clock until the result is dropped; then the request before it counts again. Scopes
/// end in the reverse order of their begins.
#[must_use = "the request ends when the scope is dropped"]
pub fn at(wanted: Request) -> Scope {
    let outer = in_force();
    request(wanted);
    Scope { outer, not_send: PhantomData }
}

/// While this value lives, the calling thread asks for a clock; see [`at`].
#[derive(Debug)]
pub struct Scope {
    outer: Option<Request>,
    /// It must be dropped in the same thread.
    not_send: PhantomData<*const ()>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        match self.outer {
            Some(outer) => {
                request(outer);
            }
            None => withdraw(),
        }
    }
}

fn this_thread() -> Thread {
    let id = gettid().as_raw_nonzero().get().unsigned_abs();
    Thread { id, cpu: CpuId::new(this_cpu()) }
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
    in_force_everywhere(request).unwrap_or_else(|| hand_over(request))
}

#[inline(never)]
fn hand_over(request: Request) -> Decision {
    let kept = KEPT.get();
    if kept.number == request.number() && kept.cpu == this_cpu() {
        return decision(kept.is_taken);
    }
    let handed = outside(|| {
        if machine::get().ok()?.follows_threads() {
            // The thread's own request is one system call more than to wake the agent, and each
            // would take the other's clamps for those of another program.
            return None;
        }
        let thread = this_thread();
        neighbour::hand_over(thread, request).then(|| thread.cpu.index())
    });
    match handed.flatten() {
        Some(cpu) => {
            let number = request.number();
            keep(Kept { number, is_taken: true, cpu, is_handed_over: true });
            Decision::Requested
        }
        None => change(Some(request)),
    }
}

#[cold]
fn change(request: Option<Request>) -> Decision {
    let changed = outside(|| {
        neighbour::settle();
        change_outside(request)
    });
    changed.unwrap_or(Decision::Unavailable)
}

fn change_outside(request: Option<Request>) -> Decision {
    let number = request.map_or(0, Request::number);
    let Ok(back_end) = machine::get() else {
        keep(Kept { number, ..NONE });
        return Decision::Unavailable;
    };
    let is_for_core = number != 0 && !back_end.follows_threads();
    // Has the request end with the thread. In the last destructors of a thread that is too late.
    if is_for_core && END.try_with(|_| ()).is_err() {
        keep(Kept { number, ..NONE });
        return Decision::Unavailable;
    }
    let thread = this_thread();
    let result = back_end.request(thread, request);
    let is_taken = result.is_ok();
    if let Err(Refused::Lost(trouble)) = result {
        machine::report(trouble);
    }
    let cpu = if is_for_core { thread.cpu.index() } else { ANYWHERE };
    keep(Kept { number, is_taken, cpu, is_handed_over: false });
    decision(is_taken)
}

/// Makes this the request of another thread, which may be of another process: `cpu` executes it,
/// and `thread` is its number in the kernel. `None` ends it; that must be done for each such
/// thread, also for one that has ended. The cache of [`request`] has no part in it.
pub fn request_for(thread: u32, cpu: CpuId, request: Option<Request>) -> Decision {
    outside(|| request_for_within(thread, cpu, request)).unwrap_or(Decision::Unavailable)
}

/// The same within such work as [`outside`] does.
pub(crate) fn request_for_within(thread: u32, cpu: CpuId, request: Option<Request>) -> Decision {
    let Ok(back_end) = machine::get() else { return Decision::Unavailable };
    match back_end.request_for(Thread { id: thread, cpu }, request) {
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
