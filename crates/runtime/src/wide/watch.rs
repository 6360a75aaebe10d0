//! The thread that gives other threads their affinity back when their phase is over, and to all of
//! them once `dimmer run` no longer renews its decision.
//!
//! It starts with the first thread that goes to wide CPUs, once for each process, and sleeps as
//! long as none is there.

use std::ffi::CStr;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use dimmer_policy::specialise::Cpus;
use rustix::fs::{Mode, OFlags};

use super::clock::{now, processor_time};
use super::record::{RECORDS, Record, set_affinity};
use super::specialising::{Specialising, WIDE};
use crate::arch::system_call;
use crate::nap::in_kernels_format;
use crate::phase::{FIRST, Phase};
use crate::spawn::spawn;
use crate::thread::Inside;
use crate::uncancelled::Uncancelled;
use crate::worker::WORKERS;
use crate::{confined, first_thread, fork, handler, nap, signals};

/// The time between two looks at threads on wide CPUs. Phases end that much later at most. A
/// choice: half the timeout of paper 003.
const EVERY: Duration = Duration::from_millis(1);

/// Likewise, while there are none: threads that had to stay look again.
const SELDOM: Duration = Duration::from_secs(1);

/// Likewise, while no CPU is wide: as often as `dimmer run` decides which are.
const SOON: Duration = Duration::from_millis(100);

/// Progress of the start, from [`FIRST`].
#[cfg(not(all(test, loom)))]
static STARTED: Phase = Phase::new();
#[cfg(all(test, loom))]
static STARTED: std::sync::LazyLock<Phase> = std::sync::LazyLock::new(Phase::new);

const STARTING: u64 = 1;
const RUNS: u64 = 2;
/// It could not be started.
const FAILED: u64 = 3;

/// What the thread waits for a change of: it counts who went to wide CPUs.
static WENT: AtomicU32 = AtomicU32::new(0);

/// Whether it is to end.
static MUST_END: AtomicBool = AtomicBool::new(false);

/// The kernel's id of its thread, once it has begun.
static THREAD: AtomicU32 = AtomicU32::new(0);

/// Whether it runs; `None`: not yet. If it was not started yet and can be now, starts it.
pub(super) fn is_on(of: &'static Specialising) -> Option<bool> {
    match STARTED.get(fork::forks()) {
        RUNS => Some(true),
        FAILED => Some(false),
        FIRST => start(of),
        _ => None,
    }
}

#[cold]
fn start(of: &'static Specialising) -> Option<bool> {
    if handler::may_be_amid_anything() {
        return None;
    }
    let _uncancelled = Uncancelled::begin();
    let _starting = confined::Starting::begin()?;
    let starting = STARTED.begin(fork::forks(), STARTING, |phase| phase == FIRST)?;
    THREAD.store(0, Ordering::Relaxed);
    // Threads inherit the mask: signals are for the program's own threads.
    let mask = signals::exchange();
    let spawned = spawn(move || {
        watch(of);
        if !MUST_END.load(Ordering::Relaxed) {
            first_thread::end_with_program(&mask);
        }
    });
    signals::set(&mask);
    starting.end(if spawned.is_ok() { RUNS } else { FAILED });
    Some(spawned.is_ok())
}

/// A thread went to wide CPUs.
pub(super) fn wake() {
    WENT.fetch_add(1, Ordering::Relaxed);
    futex(libc::FUTEX_WAKE, 1, None);
}

/// Ends the thread, for good, and waits until it is gone, for some ten seconds at most. One that is
/// just being started ends by itself.
pub(super) fn end() {
    // Also for one that is just being started.
    MUST_END.store(true, Ordering::Relaxed);
    if STARTED.get(fork::forks()) != RUNS {
        return;
    }
    wake();
    nap::until(|| THREAD.load(Ordering::Relaxed) != 0);
    signals::wait_until_gone(THREAD.load(Ordering::Relaxed));
}

/// Returns when it must end, or when no thread of the program is left.
fn watch(of: &'static Specialising) {
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    THREAD.store(u32::try_from(thread).unwrap_or(0), Ordering::Relaxed);
    // The thread's own calls stay.
    let Some(_inside) = Inside::begin() else { return };
    let name = format!("{WORKERS}wide\0");
    if let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) {
        // If this fails, the thread has the program's name.
        let _ = rustix::thread::set_name(name);
    }
    let mut kept_off = None;
    while !MUST_END.load(Ordering::Relaxed) && !first_thread::is_program_over() {
        let went = WENT.load(Ordering::Relaxed);
        let wide = of.wide();
        if let Some((set, cpus)) = wide.filter(|(set, _)| kept_off != Some(*set)) {
            kept_off = Some(set);
            // If this fails, it may be in the way of wide code for some microseconds.
            set_affinity(0, &of.domain.all.without(cpus));
        }
        let is_any_away = look(of);
        (of.hooks.look_again)();
        if is_any_away {
            nap::nap(EVERY);
        } else {
            futex(libc::FUTEX_WAIT, went, Some(if wide.is_some() { SELDOM } else { SOON }));
        }
    }
}

/// Looks at each thread that is on wide CPUs. Returns whether one stays there.
fn look(of: &Specialising) -> bool {
    let holds = (of.hooks.holds)().unwrap_or(false);
    let wide = of.wide().filter(|_| holds);
    let mut is_any_away = false;
    for record in RECORDS.iter().filter(|record| record.is_away()) {
        is_any_away |= look_at(record, of, wide, holds);
    }
    is_any_away
}

/// Returns whether the thread stays on wide CPUs.
fn look_at(record: &Record, of: &Specialising, wide: Option<(usize, &Cpus)>, holds: bool) -> bool {
    let mut data = record.lock();
    let now = now();
    let calls = (of.hooks.calls)(data.token);
    let seen = if calls == data.calls { record.seen(now) } else { now };
    data.calls = calls;
    data.thread.uses(WIDE, seen, &of.settings);
    if seen == now {
        data.taken = processor_time(record.thread());
    } else if data.thread.due(&of.settings).is_some_and(|due| due <= now)
        && wants_a_cpu(record.thread())
    {
        // While it waits for a CPU it is quiet, and nothing follows from that.
        let quiet = processor_time(record.thread()) - data.taken;
        data.thread.uses(WIDE, now - quiet, &of.settings);
    }
    let is_over = data.thread.wakes(false, now, &of.settings);
    if is_over || !wide.is_some_and(|wide| record.keep_wide(&mut data, of, wide)) {
        record.give_back(&mut data, of, holds, now);
    } else {
        record.note_time(&mut data, of, now);
    }
    data.away.is_some()
}

/// Whether a thread runs or waits for a CPU, rather than for something else; as far as the system
/// says. Allocates nothing.
fn wants_a_cpu(thread: u32) -> bool {
    let mut path = [0; 48];
    let written = write!(&mut path[..], "/proc/self/task/{thread}/stat\0");
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return false };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = written.ok().and_then(|()| rustix::fs::open(path, flags, Mode::empty()).ok());
    let mut text = [0; 128];
    let length = file.and_then(|file| rustix::io::read(file, &mut text).ok()).unwrap_or(0);
    is_running(&text[..length])
}

/// Reads the state from the beginning of a `stat` file. The name before it may hold anything.
fn is_running(text: &[u8]) -> bool {
    let after = text.iter().rposition(|byte| *byte == b')').and_then(|end| text.get(end + 1..));
    after.is_some_and(|after| after.starts_with(b" R"))
}

/// futex(2) on [`WENT`], by the kernel alone.
fn futex(operation: libc::c_int, value: u32, timeout: Option<Duration>) {
    let time = timeout.map(in_kernels_format);
    let time = time.as_ref().map_or(0, |time| std::ptr::from_ref(time).expose_provenance());
    let [word, time] = [WENT.as_ptr().expose_provenance(), time]
        .map(|address| i64::try_from(address).unwrap_or_default());
    let operation = operation | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel reads the word and the time, both of which last as long as the call.
    unsafe { system_call(libc::SYS_futex, [word, operation.into(), value.into(), time, 0, 0]) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_for_something_else_wants_no_cpu() {
        assert!(is_running(b"12 (a) R 1 2") && !is_running(b"12 (a) S 1 2"));
        assert!(is_running(b"12 (a) S) R 1 2") && !is_running(b"12 (a) R) D 1"));
        assert!(!is_running(b"") && !is_running(b"12 (a)"));
        let own = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        assert!(wants_a_cpu(own) && !wants_a_cpu(0));
        let before = processor_time(own);
        while processor_time(own) == before {}
    }
}
