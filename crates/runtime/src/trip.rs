//! Threads that are sent to a dedicated core in one place of the program and brought home in
//! another: the end of a region, a function's return, an exception that passes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use dimmer_host::root::Root;

use crate::cancel::Uncancelled;
use crate::cores::Cores;
use crate::thread::{self, Inside};
use crate::{exclusion, fork, handler, prepare, served, settings, signals};

/// The process's dedicated cores, once they are started. In a child of fork(2) its parent's, which
/// are of no use to it.
static CORES: AtomicPtr<Cores> = AtomicPtr::new(std::ptr::null_mut());

/// How far [`dedicated`] has come: nowhere (0), or one of the following; and in the upper bits, how
/// often the process had been forked then.
static STARTED: AtomicU64 = AtomicU64::new(0);

/// Bits of [`STARTED`] that tell how far.
const PHASE_BITS: u32 = 2;
/// A thread starts them. So that nobody waits for it, others do without meanwhile.
const STARTING: u64 = 1;
/// They are there, or cannot be had.
const TRIED: u64 = 2;

/// The process's dedicated cores, as [`crate::CORES`] names them, started when they are first asked
/// for; `None` where there are none, while another thread starts them, and where that cannot be
/// done now, as in a signal's handler, which may have interrupted anything. Children of fork(2)
/// start their own.
#[must_use]
#[inline]
pub fn dedicated() -> Option<&'static Cores> {
    started().or_else(|| start(&Inside::begin()?))
}

/// The same, in the middle of something.
#[inline]
fn dedicated_inside(inside: &Inside) -> Option<&'static Cores> {
    started().or_else(|| start(inside))
}

#[inline]
fn started() -> Option<&'static Cores> {
    // SAFETY: null, or leaked below.
    let cores = unsafe { CORES.load(Ordering::Acquire).as_ref() };
    cores.filter(|cores| !cores.is_inherited())
}

#[cold]
fn start(_: &Inside) -> Option<&'static Cores> {
    let generation = u64::from(fork::forks()) << PHASE_BITS;
    let before = STARTED.load(Ordering::Acquire);
    // How far its parent has come is of no use to a child.
    if matches!(before ^ generation, STARTING | TRIED) {
        return None;
    }
    if handler::may_be_in_one() {
        return None;
    }
    let _uncancelled = Uncancelled::begin();
    prepare::prepare_to_move();
    let starting = generation | STARTING;
    STARTED.compare_exchange(before, starting, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    let Ok(cores) = settings::of_process().start() else {
        STARTED.store(before, Ordering::Release);
        return None;
    };
    let cores = cores.map(|cores| &*Box::leak(Box::new(cores)));
    if let Some(cores) = cores {
        CORES.store(std::ptr::from_ref(cores).cast_mut(), Ordering::Release);
        // What was said meanwhile was not for these.
        FOLLOWED.store(usize::MAX, Ordering::Relaxed);
        EMPLOYED.store(usize::MAX, Ordering::Relaxed);
    }
    STARTED.store(generation | TRIED, Ordering::Release);
    cores
}

/// How many cores the server was last seen to dedicate, if that was followed.
static FOLLOWED: AtomicUsize = AtomicUsize::new(0);

/// A server dedicates so many cores: work goes to these from now on, if it is the server's to say;
/// whether there are any.
#[inline]
pub(crate) fn follow(inside: &Inside, count: usize) -> bool {
    if FOLLOWED.load(Ordering::Relaxed) != count {
        follow_anew(inside, count);
    }
    count > 0
}

/// To be called by a worker that has had nothing to do for a while: where the server dedicates no
/// core any more, the process's threads may run on all again, also if none of them enters a region
/// to find that out.
pub(crate) fn let_back() {
    if FOLLOWED.load(Ordering::Relaxed) == 0 || served::dedicated(dimmer_protocol::ticks()) > 0 {
        return;
    }
    if let Some(inside) = Inside::begin() {
        follow_anew(&inside, 0);
    }
}

/// One at a time changes which cores are used.
static FOLLOWING: Mutex<()> = Mutex::new(());

/// How many of the cores that [`crate::CORES`] names are used, where somebody says so.
static EMPLOYED: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Of the cores that [`crate::CORES`] names, so many are used from now on, the first. Whoever says
/// so keeps the process off them; where nobody does, all are used and the process keeps off by
/// itself. Costs a load where nothing changes.
#[inline]
pub fn employ(count: usize) {
    if EMPLOYED.load(Ordering::Relaxed) != count {
        employ_anew(count);
    }
}

#[cold]
fn employ_anew(count: usize) {
    let Some(_inside) = Inside::begin() else { return };
    if handler::may_be_in_one() {
        return;
    }
    let _uncancelled = Uncancelled::begin();
    let Ok(_following) = FOLLOWING.try_lock() else { return };
    EMPLOYED.store(count, Ordering::Relaxed);
    if let Some(cores) = started() {
        // Where one cannot be had, work goes to those before it.
        let _ = cores.employ(count);
    }
}

/// What [`employ`] was called with last, if it was.
pub(crate) fn employed() -> Option<usize> {
    Some(EMPLOYED.load(Ordering::Relaxed)).filter(|count| *count != usize::MAX)
}

#[cold]
fn follow_anew(_: &Inside, count: usize) {
    let Some(settings) = settings::known() else { return };
    if !settings.leaves_cores_to_server() {
        FOLLOWED.store(count, Ordering::Relaxed);
        return;
    }
    if handler::may_be_in_one() {
        return;
    }
    let _uncancelled = Uncancelled::begin();
    // Somebody else follows; or did when the process was forked, which then stays as it is.
    let Ok(_following) = FOLLOWING.try_lock() else { return };
    let count = served::dedicated(dimmer_protocol::ticks());
    FOLLOWED.store(count, Ordering::Relaxed);
    let all = served::cores().unwrap_or_default();
    let Some(cores) = started() else {
        // Others' work goes there.
        exclusion::keep_off(&Root::live(), &all[..count.min(all.len())], &[]);
        return;
    };
    if count == 0 || cores.are(&all) {
        // Where one cannot be had, work goes to those before it.
        let _ = cores.employ(count);
        cores.keep_clear();
    } else if let Ok(Some(others)) = settings.start() {
        // Another server, with other cores.
        let _ = cores.employ(0);
        CORES.store(Box::leak(Box::new(others)), Ordering::Release);
    }
}

/// Has these be the process's dedicated cores, whatever [`crate::CORES`] says; for who has them
/// already, nothing changes.
pub fn dedicate(cores: Cores) {
    let generation = u64::from(fork::forks()) << PHASE_BITS;
    if STARTED
        .compare_exchange(generation, generation | TRIED, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
    {
        CORES.store(Box::leak(Box::new(cores)), Ordering::Release);
    }
}

/// Sends the calling thread to one of the process's dedicated cores, until [`come_home_quietly`];
/// the kernel's number of the thread that it is on now. `None`: it stays where it is, as it does if
/// there is no such core, if it is away already, and in the middle of something else that moves
/// work.
///
/// Signals wait meanwhile; see [`Cores::depart`] for what a thread must not do while it is away.
/// Costs two system calls besides the hand-over.
#[must_use]
pub fn leave_home() -> Option<u32> {
    leave_home_inside(&Inside::begin()?)
}

fn leave_home_inside(inside: &Inside) -> Option<u32> {
    let cores = dedicated_inside(inside)?;
    let trip = &thread::own().trip;
    if trip.is_there() {
        return None;
    }
    let journey = cores.depart().ok()?;
    let landed = journey.land(journey.usual())?;
    trip.set(journey);
    Some(landed.kernel_thread())
}

/// A thread's trip for regions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    /// When it left home (ticks).
    since: u64,
    /// When the last region ended that it went for (ticks).
    left: u64,
    /// Whether it is away although no region asks for that.
    lingers: bool,
}

/// Sends the calling thread away for a region that begins now (ticks), or has it stay there if it
/// lingers; whether the region's end has to see to its coming home.
pub(crate) fn leave_for_region(inside: &Inside, now: u64) -> bool {
    let kept = &thread::own().visit;
    let visit = kept.get();
    if visit.lingers {
        kept.set(Visit { lingers: false, ..visit });
        return true;
    }
    let has_left = leave_home_inside(inside).is_some();
    if has_left {
        kept.set(Visit { since: now, ..visit });
    }
    has_left
}

/// Ends at that moment (ticks) the region that [`leave_for_region`] was for: the thread comes home,
/// or lingers if it has not been away for the minimum stay (ticks) and the last two regions
/// followed each other sooner than that.
pub(crate) fn come_home_from_region(now: u64, minimum_stay: u64) {
    let kept = &thread::own().visit;
    let visit = kept.get();
    let is_soon = |since: u64| now.saturating_sub(since) < minimum_stay;
    let lingers = is_soon(visit.since) && is_soon(visit.left);
    kept.set(Visit { left: now, lingers, ..visit });
    if !lingers {
        come_home();
    }
}

/// Brings the calling thread home, if [`leave_home`] has sent it away.
pub(crate) fn come_home() {
    drop(thread::own().trip.take());
}

/// Brings the calling thread home, if [`leave_home`] has sent it away, with signals still blocked;
/// which the caller is to block instead, as the kernel has them (signal 1 in bit 0). `None` where
/// the thread was at home.
#[must_use]
pub fn come_home_quietly() -> Option<u64> {
    let mask = signals::take();
    come_home();
    mask
}

/// Brings the calling thread home in the middle of what the thread was sent away for, perhaps in
/// the handler of a fault of its own: that may be left without the kernel's knowledge, or return.
pub fn come_home_early() {
    // The worker's mask is to be again what it was before the handler, which blocks its signal.
    signals::block_as_away();
    come_home();
    signals::note_at_home();
}

/// To be called where the thread would have come home, had [`come_home_early`] not brought it
/// there; which signals the caller is to block then, if others than it does.
#[must_use]
pub fn end_at_home() -> Option<u64> {
    signals::after_return_from_handler()
}
