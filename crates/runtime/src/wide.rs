//! Threads that go to wide CPUs when they begin wide code, and stay there until their phase is over
//! (paper 003, without rights): by their own affinity, which they get back.
//!
//! Hooks call [`begin`] before a call of a function with wide code, and [`end_call`] after it. From
//! then on the thread makes its calls without coming here, until it is to look again. A thread of
//! the process (`watch`) looks every millisecond for signs of wide code, and gives threads their
//! affinity back; `policy` decides when, and which affinity. It has also to be given back before
//! whatever inherits or shows it ([`give_back`]).
//!
//! What hooks know is asked by functions that they leave here ([`Hooks`]).

mod clock;
mod record;
mod specialising;
mod watch;

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use dimmer_policy::specialise::{Affinity, Cpus, Goes, Stays};

use crate::arch::of_thread;
use crate::end::{self, AT_END, LEAVES_WIDE};
use crate::fork::{FORGETS_WIDE, IN_CHILD};
use crate::signals;
use crate::thread::Inside;
use crate::{confined, fork};
use clock::now;
pub use clock::process_time;
use record::{Away, RECORDS, Record};
use specialising::WIDE;
pub use specialising::{Event, Hooks, Specialising};

/// What [`begin`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Nothing, as it is not the time for it; the thread's next call is to ask again.
    NotNow,
    /// The thread is where it belongs, or has to stay.
    Passes,
    /// It is on wide CPUs, with this id of the kernel. The end of the call is to be told.
    Wide(u32),
}

/// A thread's own.
struct Own {
    /// Its record's place plus one; 0: none.
    record: Cell<u32>,
    /// The number of forks when it got the record.
    forks: Cell<u32>,
    /// Whether the program has set its affinity.
    has_chosen: Cell<bool>,
}

of_thread! {
    fn own() -> Own, "dimmer_runtime_wide";
}

/// The environment variable that says what may be wide: the sets of CPUs, of which one at a time
/// is wide, all CPUs of the program, and the time of a move there and back (ns), as in
/// `6-7/4-7 0-7 20000`.
pub const SPECIALISE: &str = "DIMMER_SPECIALISE";

static SPECIALISING: OnceLock<Specialising> = OnceLock::new();

/// Whether nothing goes to wide CPUs any more.
static IS_STOPPED: AtomicBool = AtomicBool::new(false);

/// The number of calls that still ask again before anybody has looked at the process. It takes
/// some 20 ms until then; if it was killed before, it never does.
static PATIENCE: AtomicU32 = AtomicU32::new(1 << 20);

/// Sets what is decided. Call it once, before the process has other threads.
pub fn specialise(specialising: Specialising) {
    end::prepare();
    fork::count();
    AT_END.set::<LEAVES_WIDE>(leave);
    IN_CHILD.set::<FORGETS_WIDE>(forget);
    let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
    let parent = u32::try_from(parent).ok().filter(|parent| *parent != 0);
    let affinities = record::affinity(0).zip(parent.and_then(record::affinity));
    if affinities.is_some_and(|(own, its)| specialising.domain.is_pinned_at_start(&own, &its)) {
        record::note_that_others_chose();
    }
    let _ = SPECIALISING.set(specialising);
}

/// Whether the process specialises at all.
#[inline]
pub fn is_on() -> bool {
    SPECIALISING.get().is_some()
}

/// Starts the thread that has others come back, instead of when the first one goes to wide CPUs.
pub fn start() {
    let Some(_inside) = Inside::begin() else { return };
    if let Some(of) = SPECIALISING.get().filter(|_| !IS_STOPPED.load(Ordering::Relaxed)) {
        // If it cannot be started, nothing goes there.
        watch::is_on(of);
    }
}

/// Before a call of a function with wide code: lets the calling thread run on wide CPUs, and on no
/// others, if it may.
///
/// Costs a system call if it is there already, and otherwise what changing an affinity costs.
pub fn begin() -> Begun {
    let Some(_inside) = Inside::begin() else { return Begun::NotNow };
    let Some(of) = SPECIALISING.get() else { return Begun::Passes };
    if IS_STOPPED.load(Ordering::Relaxed) {
        return Begun::Passes;
    }
    match (of.hooks.holds)() {
        Some(true) => {}
        Some(false) => return Begun::Passes,
        None => {
            let patience = PATIENCE.load(Ordering::Relaxed);
            PATIENCE.store(patience.saturating_sub(1), Ordering::Relaxed);
            return if patience > 0 { Begun::NotNow } else { Begun::Passes };
        }
    }
    if let Some(record) = own_record() {
        // Written before the thread reads whether it is there: the watch, which gives the affinity
        // back, reads in the other order. If both miss each other, the thread goes again at its
        // next call of the next round.
        record.note_call(now(), true);
        if record.is_away() {
            return Begun::Wide(record.thread());
        }
        record.note_call(now(), false);
    }
    // It has neither a watch nor records of its own.
    if fork::is_unseen_child() {
        return Begun::Passes;
    }
    match watch::is_on(of) {
        Some(true) => {}
        Some(false) => return Begun::Passes,
        None => return Begun::NotNow,
    }
    // If nothing is wide now, the watch has the thread ask again.
    let Some(wide) = of.wide() else { return Begun::Passes };
    // Handlers that run in the middle could start what inherits the affinity.
    let mask = signals::exchange();
    let begun = go(of, wide);
    signals::set(&mask);
    begun
}

fn go(of: &Specialising, (set, cpus): (usize, &Cpus)) -> Begun {
    let Some(_starting) = confined::Starting::begin() else { return Begun::Passes };
    let Some(token) = (of.hooks.thread)() else { return Begun::Passes };
    let stays = |why| {
        (of.hooks.note)(token, Event::Stays(why));
        Begun::Passes
    };
    let Some(affinity) = record::affinity(0) else { return stays(Stays::Refused) };
    let Goes { wide, own: own_cpus } = match of.domain.place(cpus, &affinity, from()) {
        Ok(Some(goes)) => goes,
        Ok(None) => return Begun::Passes,
        Err(why) => return stays(why),
    };
    let Some(record) = own_record().or_else(take_record) else { return stays(Stays::TooMany) };
    let mut data = record.lock();
    if !record::set_affinity(0, &wide) {
        return stays(Stays::Refused);
    }
    let wide = record::given(0, &wide);
    let now = now();
    data.thread.uses(WIDE, now, &of.settings);
    data.away = Some(Away { set, wide, own: own_cpus, noted: now });
    data.token = token;
    data.calls = (of.hooks.calls)(token);
    record.note_call(now, true);
    record.set_away(true);
    record.set_known(true);
    (of.hooks.note)(token, Event::Goes);
    drop(data);
    watch::wake();
    Begun::Wide(record.thread())
}

/// Where the calling thread's affinity comes from.
fn from() -> Affinity {
    // One that was on wide CPUs before may be there.
    let is_known = own_record().is_some_and(Record::is_known);
    let may_be_others = record::others_have_chosen() && !is_known;
    if own().has_chosen.get() || may_be_others { Affinity::Chosen } else { Affinity::Given }
}

/// After a call for which [`begin`] has returned [`Begun::Wide`], or when the thread leaves it in
/// another way. Returns whether such calls are so long that the end of each is to be told; `None`
/// if the thread has no record.
pub fn end_call() -> Option<bool> {
    let of = SPECIALISING.get()?;
    let record = own_record()?;
    let lasted = record.end_call(now());
    Some(of.settings.is_long(lasted))
}

/// Gives the calling thread the affinity that it had, before something that inherits or shows it.
/// Returns whether it was on wide CPUs. Costs next to nothing if it was not.
pub fn give_back() -> bool {
    let Some(of) = SPECIALISING.get() else { return false };
    own_record().is_some_and(|record| give_back_of(of, record))
}

/// Gives all threads of the process the affinity that they had.
pub fn give_all_back() {
    let Some(of) = SPECIALISING.get() else { return };
    let mut was_any = false;
    for record in RECORDS.iter().filter(|record| record.is_away()) {
        was_any |= give_back_of(of, record);
    }
    if was_any {
        (of.hooks.look_again)();
    }
}

fn give_back_of(of: &Specialising, record: &Record) -> bool {
    if !record.is_away() || fork::is_unseen_child() {
        return false;
    }
    let mask = signals::exchange();
    let mut data = record.lock();
    let was_away = data.away.is_some();
    record.give_back(&mut data, of, true, now());
    data.thread.interrupted();
    drop(data);
    signals::set(&mask);
    was_away
}

/// Whose affinity a program sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// That of the calling thread.
    Own,
    /// That of the thread with this id of the kernel.
    Thread(u32),
    /// That of any other thread.
    Any,
}

/// The program is about to set an affinity, by the mask of length `bytes` at the address `mask`.
///
/// The program may pass an address where nothing is mapped, which the kernel refuses later. CPUs
/// that cannot be read here count as left out; [`begin`] asks the kernel for the true affinity.
pub fn chooses(whose: Whose, mask: *const u8, bytes: usize) {
    let Some(of) = SPECIALISING.get() else { return };
    let bits = usize::BITS as usize;
    let mut words = [0; size_of::<Cpus>() / size_of::<usize>()];
    signals::read_own(mask.addr(), &mut words, bytes);
    let has = |number: usize| words[number / bits] & 1 << (number % bits) != 0;
    let is_narrow = of.domain.sets.iter().any(|set| !set.iter().any(has));
    if whose == Whose::Own {
        own().has_chosen.set(is_narrow);
    } else if is_narrow {
        record::note_that_others_chose();
        let may_be =
            |record: &&Record| whose == Whose::Any || whose == Whose::Thread(record.thread());
        RECORDS.iter().filter(may_be).for_each(|record| record.set_known(false));
    }
}

/// The calling thread starts another one, or a program, which inherits its affinity.
pub fn starts_another() {
    if own().has_chosen.get() {
        record::note_that_others_chose();
    }
}

/// Ends it for good, before the process confines itself: gives all threads their affinity back, and
/// ends the watch.
pub fn stop() {
    if SPECIALISING.get().is_some() && !IS_STOPPED.swap(true, Ordering::Relaxed) {
        give_all_back();
        watch::end();
    }
}

/// At a thread's end: its record is free.
fn leave() {
    let Some(of) = SPECIALISING.get() else { return };
    if let Some(record) = own_record() {
        let mask = signals::exchange();
        let mut data = record.lock();
        record.note_time(&mut data, of, now());
        data.away = None;
        record.set_away(false);
        drop(data);
        record.free();
        signals::set(&mask);
    }
    own().record.set(0);
}

/// In a child of fork(2), where only the calling thread exists. It was given its affinity back
/// before.
fn forget() {
    // What handlers of forks call may have made it wide once more.
    let at = own().record.replace(0).checked_sub(1).and_then(|at| usize::try_from(at).ok());
    if let Some((of, record)) = SPECIALISING.get().zip(at.and_then(|at| RECORDS.get(at)))
        && record.is_away()
        && let Some(own) = record.own()
    {
        record::set_affinity(0, &of.domain.back(&own, of.kept_off()));
    }
    RECORDS.iter().for_each(Record::forget);
}

fn own_record() -> Option<&'static Record> {
    let own = own();
    let at = own.record.get().checked_sub(1)?;
    let record = RECORDS.get(usize::try_from(at).ok()?)?;
    (own.forks.get() == fork::forks()).then_some(record)
}

/// Takes a free record for the calling thread, until its end.
fn take_record() -> Option<&'static Record> {
    let thread = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).ok()?;
    let (at, record) = RECORDS.iter().enumerate().find(|(_, record)| record.take(thread))?;
    let own = own();
    own.forks.set(fork::forks());
    own.record.set(u32::try_from(at).ok()? + 1);
    // If that fails, the watch finds that the thread is gone.
    end::watch();
    Some(record)
}
