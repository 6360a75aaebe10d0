//! Migration of a thread from one place of the program to another: it leaves for a dedicated core
//! in one place, and returns home in another, such as the end of a region, a function's return, or
//! an exception that passes.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use dimmer_host::affinity::{self, AffinityError};
use dimmer_host::root::Root;
use dimmer_processor::units::CpuId;
use dimmer_protocol::ticks;

use crate::arch::of_thread;
use crate::cores::Cores;
use crate::end::{AT_END, COMES_HOME};
use crate::fork::{FOLLOWS_ANEW, IN_CHILD};
use crate::migrate::Migration;
use crate::phase::{FIRST, Phase};
use crate::settings::{Settings, complain};
use crate::start_error::StartError;
use crate::thread::{Inside, Kept};
use crate::uncancelled::Uncancelled;
use crate::wake_up::wake_up;
use crate::worker::WHEN_IDLE;
use crate::{
    allocator, confined, exclusion, fork, handler, letting_back, nap, prepare, served, settings,
    signals, wide,
};

/// A thread's own.
struct OfThread {
    /// The [`Migration`] of a thread that is away for a region or a migrated call.
    migration: Kept<Migration<'static>>,
    /// State of its last migration for a region.
    region: Cell<RegionMigration>,
}

of_thread! {
    fn of_thread() -> OfThread, "dimmer_runtime_call";
}

/// The process's dedicated cores, once they are started. In a child of fork(2) these are its
/// parent's, which the child cannot use.
static CORES: AtomicPtr<Cores> = AtomicPtr::new(std::ptr::null_mut());

/// Progress of [`dedicated`], from [`FIRST`]: they are not started.
#[cfg(not(all(test, loom)))]
static STARTED: Phase = Phase::new();
#[cfg(all(test, loom))]
static STARTED: std::sync::LazyLock<Phase> = std::sync::LazyLock::new(Phase::new);

/// A thread is starting them. Other threads do not wait for it, but go without cores meanwhile.
const STARTING: u64 = 1;
/// They have started, or are not available.
const TRIED: u64 = 2;

/// The process's dedicated cores, which [`crate::CORES`] names. The first call starts them. `None`
/// if there are none, while another thread starts them, and if they cannot be started now, such as
/// in a signal handler, which may have interrupted anything. Children of fork(2) start their own.
#[must_use]
#[inline]
pub fn dedicated() -> Option<&'static Cores> {
    started().or_else(|| start(&Inside::begin()?))
}

/// Like [`dedicated`], for a caller that is already [`Inside`].
#[inline]
fn dedicated_inside(inside: &Inside) -> Option<&'static Cores> {
    started().or_else(|| start(inside))
}

#[inline]
fn started() -> Option<&'static Cores> {
    // Ordering: pairs with each store to `CORES`: the cores behind the pointer are visible.
    // SAFETY: null, or leaked below.
    let cores = unsafe { CORES.load(Ordering::Acquire).as_ref() };
    cores.filter(|cores| !cores.is_inherited())
}

#[cold]
fn start(_: &Inside) -> Option<&'static Cores> {
    if STARTED.get(fork::forks()) != FIRST || handler::may_be_amid_anything() {
        return None;
    }
    let _starting = confined::Starting::begin()?;
    let _uncancelled = Uncancelled::begin();
    prepare::prepare_to_move();
    let starting = STARTED.begin(fork::forks(), STARTING, |phase| phase == FIRST)?;
    let Ok(cores) = start_cores(settings::of_process()) else {
        starting.end(FIRST);
        return None;
    };
    let cores = cores.map(|cores| &*Box::leak(Box::new(cores)));
    if let Some(cores) = cores {
        AT_END.set::<COMES_HOME>(come_home);
        WHEN_IDLE.set::<0>(let_back);
        // Ordering: pairs with the load in `started`.
        CORES.store(std::ptr::from_ref(cores).cast_mut(), Ordering::Release);
        // Counts that were set in the meantime did not apply to these cores.
        FOLLOWED.store(usize::MAX, Ordering::Relaxed);
        USED_CORES.store(usize::MAX, Ordering::Relaxed);
    }
    starting.end(TRIED);
    cores
}

/// Starts the named cores, or those of the server. If that fails, prints the reason, and
/// nothing is moved. `Err`: the server's cores are not known yet.
fn start_cores(settings: &Settings) -> Result<Option<Cores>, NotYet> {
    let (named, entrance) = settings.cores();
    if !named.is_empty() {
        let used_cores = used_cores();
        let used = used_cores.unwrap_or(named.len());
        let cores = prepare_cores(named, used, entrance);
        let cores = cores.map_err(|error| complain(&error)).ok();
        // If [`use_cores`] sets the number, its caller keeps the process off
        // them.
        cores.iter().filter(|_| used_cores.is_none()).for_each(Cores::keep_clear);
        return Ok(cores);
    }
    if settings.policy().is_some() {
        return Ok(None);
    }
    let cores = served::cores().ok_or(NotYet)?;
    let cores = prepare_cores(&cores, served::dedicated(ticks()), None);
    let cores = cores.map_err(|error| complain(&error)).ok();
    cores.iter().for_each(Cores::keep_clear);
    Ok(cores)
}

/// No server has named its cores.
#[derive(Debug)]
struct NotYet;

/// The most attempts to prepare the cores. One is enough, unless the thread is kept off them within
/// the microseconds that it takes.
const TRIES: u32 = 10;

/// Prepares the cores, and starts the first `used` of them.
fn prepare_cores(
    cores: &[CpuId],
    used: usize,
    entrance: Option<&str>,
) -> Result<Cores, StartError> {
    let spin = wake_up(&Root::live(), cores, entrance);
    let mut tries = 1;
    loop {
        let spare = widened(cores, || Cores::spare(&Root::live(), cores, entrance, spin));
        match spare.and_then(|cores| cores.use_cores(used).map(|()| cores)) {
            // `dimmer run` may have kept the thread off them at this moment.
            Err(StartError::Affinity(AffinityError::NotAllowed { .. })) if tries < TRIES => {
                tries += 1;
            }
            done => break done,
        }
    }
}

/// Runs `check` while the calling thread may run on these cores as well: the process may have
/// inherited its affinity from a parent that keeps off them. Only as long as the check, because
/// `dimmer run` may give the thread its own affinity back meanwhile, which would be lost.
fn widened<T>(cores: &[CpuId], check: impl FnOnce() -> T) -> T {
    let allowed = affinity::allowed().unwrap_or_default();
    if cores.iter().all(|cpu| allowed.contains(cpu)) {
        return check();
    }
    let all: Vec<CpuId> = allowed.iter().chain(cores).copied().collect();
    let _ = affinity::allow(&all);
    let checked = check();
    let _ = affinity::allow(&allowed);
    checked
}

/// The number of cores that the server dedicated at the last check, if [`follow`] has applied it.
static FOLLOWED: AtomicUsize = AtomicUsize::new(0);

/// Applies the number of cores that the server dedicates, if the server decides about the cores.
/// Work goes to these from then on. Returns whether there are any.
#[inline]
pub(crate) fn follow(inside: &Inside, count: usize) -> bool {
    if FOLLOWED.load(Ordering::Relaxed) != count {
        follow_anew(inside, count);
    }
    count > 0
}

/// For a worker that has been idle for a while, and the thread of [`letting_back`]. When the server
/// no longer dedicates a core, the process's threads may run on all CPUs again, even if none of
/// them enters a region to find that out.
fn let_back() {
    if FOLLOWED.load(Ordering::Relaxed) == 0 || served::dedicated(ticks()) > 0 {
        return;
    }
    if let Some(inside) = Inside::begin() {
        follow_anew(&inside, 0);
    }
}

/// For the thread of [`letting_back`]: lets the process back if that is due. Returns whether the
/// process keeps off no core.
fn is_let_back() -> bool {
    let_back();
    let Ok(_following) = FOLLOWING.try_lock() else { return false };
    let is_back = FOLLOWED.load(Ordering::Relaxed) == 0;
    if is_back {
        letting_back::note_end();
    }
    is_back
}

/// Held by the thread that changes which cores are used.
static FOLLOWING: Mutex<()> = Mutex::new(());

/// How many of the cores that [`crate::CORES`] names are used, if [`use_cores`] was called.
static USED_CORES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Uses the first `count` of the cores that [`crate::CORES`] names, from now on. The caller keeps
/// the process off them. If this is never called, all are used, and the crate itself keeps the
/// process off them. Costs a load if nothing changes.
#[inline]
pub fn use_cores(count: usize) {
    if USED_CORES.load(Ordering::Relaxed) != count {
        change_used_cores(count);
    }
}

#[cold]
fn change_used_cores(count: usize) {
    let Some(_inside) = Inside::begin() else { return };
    if allocator::may_be_in_it() {
        USED_CORES.store(count, Ordering::Relaxed);
        started().iter().for_each(|cores| cores.use_started(count));
        return;
    }
    if handler::may_be_amid_anything() {
        return;
    }
    let _uncancelled = Uncancelled::begin();
    let Ok(_following) = FOLLOWING.try_lock() else { return };
    USED_CORES.store(count, Ordering::Relaxed);
    if let Some(cores) = started() {
        // If a core is not available, work goes to those before it.
        let _ = cores.use_cores(count);
    }
}

/// The count of the last call of [`use_cores`], if there was one.
fn used_cores() -> Option<usize> {
    Some(USED_CORES.load(Ordering::Relaxed)).filter(|count| *count != usize::MAX)
}

/// For a child of fork(2), which keeps off the same cores and has none of the parent's threads: its
/// next region applies the number of cores, whether it has changed or not.
fn follow_in_child() {
    if FOLLOWED.load(Ordering::Relaxed) != 0 {
        FOLLOWED.store(usize::MAX, Ordering::Relaxed);
    }
}

#[cold]
fn follow_anew(_: &Inside, count: usize) {
    let Some(settings) = settings::known() else { return };
    if !settings.leaves_cores_to_server() {
        FOLLOWED.store(count, Ordering::Relaxed);
        return;
    }
    if handler::may_be_amid_anything() {
        return;
    }
    let _uncancelled = Uncancelled::begin();
    // Another thread does the same, or did so when the process was forked; then nothing changes.
    let Ok(_following) = FOLLOWING.try_lock() else { return };
    let count = served::dedicated(ticks());
    FOLLOWED.store(count, Ordering::Relaxed);
    IN_CHILD.set::<FOLLOWS_ANEW>(follow_in_child);
    let all = served::cores().unwrap_or_default();
    let Some(cores) = started() else {
        // Work of other processes goes there. Without the thread, nothing might give them back.
        let keeps_off = count > 0 && letting_back::start(is_let_back);
        let count = if keeps_off { count.min(all.len()) } else { 0 };
        exclusion::keep_off(&Root::live(), &all[..count], &[]);
        return;
    };
    if count == 0 || cores.are(&all) {
        // If a core is not available, work goes to those before it.
        let _ = cores.use_cores(count);
        cores.keep_clear();
    } else if let Ok(Some(others)) = start_cores(settings) {
        // Another server, with other cores.
        let _ = cores.use_cores(0);
        // Ordering: pairs with the load in `started`.
        CORES.store(Box::leak(Box::new(others)), Ordering::Release);
    }
}

/// Makes `cores` the process's dedicated cores, regardless of [`crate::CORES`]. Does nothing if the
/// process has started its cores already, or has tried to.
pub fn dedicate(cores: Cores) {
    if let Some(starting) = STARTED.begin(fork::forks(), STARTING, |phase| phase == FIRST) {
        AT_END.set::<COMES_HOME>(come_home);
        // Ordering: pairs with the load in `started`.
        CORES.store(Box::leak(Box::new(cores)), Ordering::Release);
        starting.end(TRIED);
    }
}

/// Migrates the calling thread to one of the process's dedicated cores, until
/// [`end_migration`]. Returns the kernel's id of the thread that it runs on now. `None`: the
/// thread stays where it is. That is so if there is no such core, if it is away already, and in the
/// middle of other code that moves work.
///
/// Signals are blocked meanwhile; see [`Cores::begin_migration`] for what a thread must not do
/// while it is away. Costs two system calls besides the hand-off.
#[must_use]
pub fn begin_migration() -> Option<u32> {
    begin_migration_inside(&Inside::begin()?)
}

fn begin_migration_inside(inside: &Inside) -> Option<u32> {
    let cores = dedicated_inside(inside)?;
    let kept = &of_thread().migration;
    if kept.is_there() {
        return None;
    }
    let migration = cores.begin_migration().ok()?;
    let on_worker = migration.go_to(migration.usual())?;
    kept.set(migration);
    Some(on_worker.kernel_thread())
}

/// State of a thread's migrations for regions.
#[derive(Clone, Copy, Debug)]
struct RegionMigration {
    /// When it left home (ticks).
    since: u64,
    /// When the last region ended for which it left (ticks).
    left: u64,
    /// Whether it is away although no region requires that.
    lingers: bool,
}

/// Migrates the calling thread for a region that starts at the time `now` (ticks), or keeps it away
/// if it lingers. Returns whether the end of the region must bring it home.
pub(crate) fn begin_region_migration(inside: &Inside, now: u64) -> bool {
    let kept = &of_thread().region;
    let region_migration = kept.get();
    if region_migration.lingers {
        kept.set(RegionMigration { lingers: false, ..region_migration });
        return true;
    }
    let has_left = begin_migration_inside(inside).is_some();
    if has_left {
        kept.set(RegionMigration { since: now, ..region_migration });
    }
    has_left
}

/// Ends the region of [`begin_region_migration`] at the time `now` (ticks). The thread returns
/// home, or lingers. It lingers if it has been away for less than the minimum stay (ticks) and the
/// last two regions followed each other within that time.
pub(crate) fn end_region_migration(now: u64, minimum_stay: u64) {
    let kept = &of_thread().region;
    let region_migration = kept.get();
    let is_soon = |since: u64| now.saturating_sub(since) < minimum_stay;
    let lingers = is_soon(region_migration.since) && is_soon(region_migration.left);
    kept.set(RegionMigration { left: now, lingers, ..region_migration });
    if !lingers {
        come_home();
    }
}

/// Ends all moving in the process, for good, before it confines itself: threads of this crate would
/// not be confined, and some system calls fail in a process with several threads. Call it at home.
/// Waits until another thread has started what it is just starting, and until all threads of this
/// crate are gone, for some ten seconds each at most. Nothing starts in children of fork(2) either.
///
/// Another call does nothing: it may be forbidden to. Nor does one in a child that no handler of
/// forks has seen, by vfork(2) or a bare system call: it may have its parent's memory, and has no
/// thread of this crate. Returns false there.
pub fn confine() -> bool {
    if confined::is_confined() {
        return true;
    }
    if fork::is_unseen_child() {
        return false;
    }
    if confined::begin() {
        return true;
    }
    // A handler may have interrupted this very thread in the middle of it.
    let inside = Inside::begin();
    if inside.is_some() {
        nap::until(|| !confined::is_any_starting());
    }
    wide::stop();
    if letting_back::end() {
        exclusion::keep_off(&Root::live(), &[], &[]);
    }
    if let Some(cores) = started() {
        cores.retire();
    }
    true
}

/// Brings the calling thread home, if [`begin_migration`] has sent it away.
fn come_home() {
    drop(of_thread().migration.take());
}

/// Brings the calling thread home, if [`begin_migration`] has sent it away, and leaves all signals
/// blocked. Returns the mask that the caller must install, in the kernel's format (signal 1 in bit
/// 0). `None` if the thread was at home.
#[must_use]
pub fn end_migration() -> Option<u64> {
    let mask = signals::take();
    come_home();
    mask
}

/// Brings the calling thread home in the middle of the code that it left home for, perhaps in the
/// handler of a fault of its own. That handler may be left without the kernel's knowledge, or
/// return.
pub fn cut_migration_short() {
    // Restores the worker's signal mask from before the handler, which blocks its own signal.
    signals::block_as_migrated();
    come_home();
    signals::note_at_home();
}

/// Call at the end of a migrated call that [`cut_migration_short`] cut short. Returns the signal
/// mask that the caller must install, if it differs from the current one.
#[must_use]
pub fn end_cut_migration() -> Option<u64> {
    signals::after_return_from_handler()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_those_of_the_server_unless_the_policy_is_to_stay() {
        let all = Settings::default();
        assert!(all.leaves_cores_to_server() && start_cores(&all).is_err());
        let stay = Settings::staying();
        assert!(!stay.leaves_cores_to_server() && matches!(start_cores(&stay), Ok(None)));
    }
}
