//! The records of threads that have been on wide CPUs, for themselves and for the watch.
//!
//! A thread that changes an affinity locks that thread's record meanwhile, its own signals blocked,
//! so it never waits for itself. What each call writes is atomic.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use dimmer_policy::specialise::{Cpus, Thread};
use dimmer_processor::units::{Nanos, Time};

use super::specialising::{Event, Specialising};
use crate::arch::system_call;
use crate::signals;

/// The most threads at once that can be on wide CPUs or have been there: as many as a ledger has
/// slots for.
const MOST: usize = 512;

pub(super) static RECORDS: [Record; MOST] = [const { Record::new() }; MOST];

/// Whether some thread may have inherited an affinity that the program has set, or had it set by
/// another one.
static OTHERS_HAVE_CHOSEN: AtomicBool = AtomicBool::new(false);

pub(super) fn note_that_others_chose() {
    OTHERS_HAVE_CHOSEN.store(true, Ordering::Relaxed);
}

pub(super) fn others_have_chosen() -> bool {
    OTHERS_HAVE_CHOSEN.load(Ordering::Relaxed)
}

/// Attempts to get a lock between two calls of sched_yield(2).
const TRIES: u32 = 100;

/// What is known of a thread.
#[derive(Debug)]
pub(super) struct Record {
    /// The kernel's id of the thread; 0: the record is free.
    thread: AtomicU32,
    /// Whether it is on wide CPUs.
    is_away: AtomicBool,
    /// Whether its affinity was Dimmer's when it first went there, and none was set since.
    is_known: AtomicBool,
    /// Whether it is within a call whose end will be told.
    is_inside: AtomicBool,
    /// When that call began, and when wide code was last seen (ns of the monotonic clock).
    began: AtomicU64,
    seen: AtomicU64,
    data: Mutex<Data>,
}

/// The part of it that is locked.
#[derive(Debug)]
pub(super) struct Data {
    pub(super) thread: Thread,
    pub(super) away: Option<Away>,
    /// Its number for hooks.
    pub(super) token: usize,
    /// The calls that it had made at the last look.
    pub(super) calls: u32,
    /// The processor time that it had taken when wide code was last seen.
    pub(super) taken: Nanos,
}

/// A thread that is on wide CPUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Away {
    /// The number of the set that it went to.
    pub(super) set: usize,
    /// The affinity that it was given.
    pub(super) wide: Cpus,
    /// The one that it has of its own.
    pub(super) own: Cpus,
    /// Until when its time there was noted.
    pub(super) noted: Time,
}

impl Away {
    /// Whether the thread's affinity `now` is Dimmer's: the one that it was given as a wide thread,
    /// or that of threads that are kept off. `dimmer run` knows wide threads by their affinity
    /// alone. While the wide CPUs change, it may take one of them for a thread to keep off.
    fn is_its(&self, now: &Cpus, of: &Specialising) -> bool {
        let is_kept_off = || !others_have_chosen() && of.domain.is_kept_off(&self.own, now);
        *now == self.wide || is_kept_off()
    }
}

impl Data {
    const fn new() -> Self {
        Self { thread: Thread::new(), away: None, token: 0, calls: 0, taken: Nanos::ZERO }
    }
}

impl Record {
    const fn new() -> Self {
        Self {
            thread: AtomicU32::new(0),
            is_away: AtomicBool::new(false),
            is_known: AtomicBool::new(false),
            is_inside: AtomicBool::new(false),
            began: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            data: Mutex::new(Data::new()),
        }
    }

    /// Takes the record for a thread, if it is free.
    pub(super) fn take(&self, thread: u32) -> bool {
        // Ordering: Acquire pairs with the store in `free`: the record is as its last owner left
        // it.
        let taken = self.thread.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_ok() {
            *self.lock() = Data::new();
            self.set_known(false);
        }
        taken.is_ok()
    }

    pub(super) fn free(&self) {
        // Ordering: pairs with the exchange in `take`.
        self.thread.store(0, Ordering::Release);
    }

    /// In a child of fork(2): the thread is not there. What another thread had locked stays locked,
    /// so such a record is not used again.
    pub(super) fn forget(&self) {
        if self.thread() != 0 && self.data.try_lock().is_ok() {
            self.set_away(false);
            self.is_inside.store(false, Ordering::Relaxed);
            self.free();
        } else if self.thread() != 0 {
            self.set_away(false);
            self.thread.store(u32::MAX, Ordering::Relaxed);
        }
    }

    pub(super) fn thread(&self) -> u32 {
        self.thread.load(Ordering::Relaxed)
    }

    pub(super) fn is_away(&self) -> bool {
        // Ordering: SeqCst, after the store in `note_call`; see `begin`.
        self.is_away.load(Ordering::SeqCst)
    }

    pub(super) fn set_away(&self, is_so: bool) {
        // Ordering: SeqCst, as in `is_away`.
        self.is_away.store(is_so, Ordering::SeqCst);
    }

    pub(super) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    pub(super) fn set_known(&self, is_so: bool) {
        self.is_known.store(is_so, Ordering::Relaxed);
    }

    /// The affinity that the thread has of its own, if it is away and no thread changes that.
    pub(super) fn own(&self) -> Option<Cpus> {
        self.data.try_lock().ok()?.away.map(|away| away.own)
    }

    /// Notes that the thread is about to make a call, whose end will be told if `is_told`.
    pub(super) fn note_call(&self, now: Time, is_told: bool) {
        self.began.store(now.ns(), Ordering::Relaxed);
        self.seen.store(now.ns(), Ordering::Relaxed);
        // Ordering: SeqCst, before the load in `is_away`.
        self.is_inside.store(is_told, Ordering::SeqCst);
    }

    /// Notes that the call has ended. Returns how long it has lasted.
    pub(super) fn end_call(&self, now: Time) -> Nanos {
        self.seen.store(now.ns(), Ordering::Relaxed);
        self.is_inside.store(false, Ordering::Relaxed);
        now - Time::from_ns(self.began.load(Ordering::Relaxed))
    }

    /// When wide code was last seen: now, within a call whose end will be told.
    pub(super) fn seen(&self, now: Time) -> Time {
        // Ordering: SeqCst, after the store in `set_away`.
        let is_inside = self.is_inside.load(Ordering::SeqCst);
        if is_inside { now } else { Time::from_ns(self.seen.load(Ordering::Relaxed)) }
    }

    /// Waits for the lock: as long as an affinity is changed.
    pub(super) fn lock(&self) -> MutexGuard<'_, Data> {
        let mut tries = 0_u32;
        loop {
            match self.data.try_lock() {
                Ok(data) => return data,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
            tries += 1;
            if tries.is_multiple_of(TRIES) {
                // SAFETY: changes nothing but who runs.
                unsafe { system_call(libc::SYS_sched_yield, [0; 6]) };
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Gives the thread its affinity back, if it is away, unless another program has changed that
    /// since. `holds`: whether the program may be kept off wide CPUs still.
    pub(super) fn give_back(&self, data: &mut Data, of: &Specialising, holds: bool, now: Time) {
        self.note_time(data, of, now);
        let Some(away) = data.away.take() else { return };
        let thread = self.thread();
        let is_its = affinity(thread).is_some_and(|now| away.is_its(&now, of));
        if is_its && signals::is_there(thread) {
            let kept_off = of.kept_off().filter(|_| holds);
            set_affinity(thread, &of.domain.back(&away.own, kept_off));
        }
        self.set_away(false);
        (of.hooks.note)(data.token, Event::ComesBack);
    }

    /// Keeps the thread on the CPUs that are wide now, if it is away: moves it on if these have
    /// changed, and back there if it was taken for a thread to keep off. Returns false if it would
    /// have to move and cannot: its own affinity has none of these CPUs, or another thread has
    /// changed its affinity.
    pub(super) fn keep_wide(
        &self,
        data: &mut Data,
        of: &Specialising,
        (set, cpus): (usize, &Cpus),
    ) -> bool {
        let Some(away) = &mut data.away else { return true };
        let thread = self.thread();
        let now = affinity(thread);
        let is_its = now.is_some_and(|now| away.is_its(&now, of));
        if away.set == set && (now == Some(away.wide) || !is_its) {
            return true;
        }
        let wide = away.own.and(cpus);
        let may_go = is_its && !wide.is_empty() && signals::is_there(thread);
        if !may_go || !set_affinity(thread, &wide) {
            return false;
        }
        (away.set, away.wide) = (set, given(thread, &wide));
        true
    }

    /// Notes the time since the last note, if the thread is away.
    pub(super) fn note_time(&self, data: &mut Data, of: &Specialising, now: Time) {
        if let Some(away) = &mut data.away {
            (of.hooks.note)(data.token, Event::WasWide(now - away.noted));
            away.noted = now;
        }
    }
}

/// The affinity of a thread of this process; 0: of the calling one.
pub(super) fn affinity(thread: u32) -> Option<Cpus> {
    let mut cpus = Cpus::NONE;
    let to = i64::try_from((&raw mut cpus).expose_provenance()).ok()?;
    let bytes = i64::try_from(size_of::<Cpus>()).ok()?;
    // SAFETY: the kernel writes to `cpus` alone, at most as many bytes as that has.
    let written =
        unsafe { system_call(libc::SYS_sched_getaffinity, [thread.into(), bytes, to, 0, 0, 0]) };
    (written > 0).then_some(cpus)
}

/// The affinity that a thread has (0: the calling one), just after it was given `cpus`: the kernel
/// leaves out what is offline, and what the process's control group has not. CPUs besides these
/// come from a later change by another thread, and do not count.
pub(super) fn given(thread: u32, cpus: &Cpus) -> Cpus {
    let left = affinity(thread).map(|now| now.and(cpus));
    left.filter(|left| !left.is_empty()).unwrap_or(*cpus)
}

/// Sets the affinity of a thread; 0: of the calling one. Returns whether the kernel did that.
pub(super) fn set_affinity(thread: u32, cpus: &Cpus) -> bool {
    let from = i64::try_from(std::ptr::from_ref(cpus).expose_provenance()).unwrap_or_default();
    let bytes = i64::try_from(size_of::<Cpus>()).unwrap_or_default();
    // SAFETY: the kernel reads `cpus`.
    let done =
        unsafe { system_call(libc::SYS_sched_setaffinity, [thread.into(), bytes, from, 0, 0, 0]) };
    done == 0
}
