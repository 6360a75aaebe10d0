//! Migrating: each mark brings its thread to the core that a profile has for it (paper 004 §4.1).
//!
//! A *session* lasts from [`start`] to [`end`]. A thread is registered when it passes the first
//! mark that the profile has, and comes home at [`end`], at its own end, or, if another thread
//! calls [`end`], at its next mark. A child of fork(2) has no session until it starts one.

use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Instant;

use dimmer_host::bounded_file::{self, BoundedFileError};
use dimmer_policy::phases::{Core, Profile, Settings, Threshold};
use dimmer_processor::units::Nanos;
use dimmer_runtime::calls::KeepErrno;
use dimmer_runtime::of_thread;

use crate::crossing;
use crate::message;
use crate::names::{Names, Place};
pub use crate::passing::Mover;
use crate::passing::{Learning, Named, Passing, Wanted, now};

/// The environment variable that names the file with the profile.
pub const PROFILE: &str = "SWP_CFG";
/// The environment variable with the threshold.
pub const THRESHOLD: &str = "SWP_THRESHOLD";

/// The library's name in messages.
const LIBRARY: &str = "libswp_migrate";

/// The longest profile that is read (bytes).
const LONGEST: u64 = 1 << 24;

/// Round trips that are measured.
const TRIPS: usize = 9;

/// Never freed: a thread may be in the middle of a mark when it ends.
#[derive(Debug)]
struct Session {
    mover: Mover,
    /// `None`: threads stay.
    wanted: Option<Wanted>,
    names: Mutex<Names>,
}

static SESSION: AtomicPtr<Session> = AtomicPtr::new(null_mut());

/// A thread's part of a session.
#[derive(Debug)]
struct Own {
    session: *const Session,
    passing: Passing,
}

/// What a thread keeps.
struct OfThread {
    /// From [`Box::into_raw`]; null outside sessions.
    own: Cell<*mut Own>,
    /// Whether the thread is in the middle of a mark, which a signal handler may have interrupted,
    /// or has ended.
    is_busy: Cell<bool>,
}

of_thread! {
    fn of_thread() -> OfThread, "dimmer_marks_migrating";
}

thread_local! {
    static END: EndOfThread = const { EndOfThread };
}

/// Brings the thread home when it ends.
struct EndOfThread;

impl Drop for EndOfThread {
    fn drop(&mut self) {
        of_thread().is_busy.set(true);
        leave();
    }
}

/// Starts a session, with the profile and the threshold that the environment names. What is wrong
/// with them is printed, and threads stay where they are. A session that is under way ends first.
pub fn start() {
    let _errno = KeepErrno::new();
    end();
    let variable = |name| Some(dimmer_protocol::variable(name)?.to_string_lossy().into_owned());
    let (path, threshold) = (variable(PROFILE), variable(THRESHOLD));
    let mover = Mover::of_program().unwrap_or_else(Mover::own);
    let read = read(path.as_deref(), threshold.as_deref()).inspect_err(|problem| {
        message::print(LIBRARY, format_args!("{problem}; threads stay where they are"));
    });
    let (wanted, passing) = read.ok().map(|read| prepare(mover, read)).unzip();
    begin(mover, wanted, passing);
}

/// Starts a session with a profile for code that is no library of the program's. `mover` registers
/// no thread before its first mark, and `settings` have what a migration costs. A session that is
/// under way ends first.
pub fn start_with(mover: Mover, profile: Profile, settings: Settings) {
    let _errno = KeepErrno::new();
    end();
    begin(mover, Some(Wanted::Profile(profile, settings)), None);
}

/// Starts a session without a profile: threads learn where each mark belongs
/// ([`Settings::learning`]). `mover` reports the core of a thread, and registers none before its
/// first mark. A session that is under way ends first.
pub fn start_learning(mover: Mover, settings: Settings) {
    let _errno = KeepErrno::new();
    end();
    begin(mover, Some(Wanted::Learned(Learning::new(settings))), None);
}

/// What the threads of the session have learned: the part of its speed that
/// what follows each mark keeps on a slow core.
/// `None` without such a session, and while a thread hands something over.
pub fn learned() -> Option<Profile> {
    let session = session()?;
    let Some(Wanted::Learned(learning)) = &session.wanted else { return None };
    let (learned, names) = (learning.learned()?, session.names.try_lock().ok()?);
    let mut profile = Profile::default();
    for (mark, value) in learned.values() {
        if let Some(name) = names.marks().get(mark.index()) {
            profile.insert(name.clone(), value);
        }
    }
    Some(profile)
}

/// Reads the profile and the threshold.
fn read(path: Option<&str>, threshold: Option<&str>) -> Result<(Profile, Threshold), String> {
    let path = path.filter(|path| !path.is_empty());
    let path =
        path.ok_or_else(|| format!("{PROFILE} is not set: expected the file of a profile"))?;
    let threshold = threshold
        .ok_or_else(|| format!("{THRESHOLD} is not set: expected a number, such as 0.01"))?;
    let threshold = Threshold::parse(threshold).map_err(|error| format!("{THRESHOLD}: {error}"))?;
    let text = bounded_file::read_to_string(Path::new(path), LONGEST);
    let text = text.map_err(|error| match error {
        BoundedFileError::Unreadable { source, .. } => format!("{PROFILE}: {path}: {source}"),
        other => format!("{PROFILE}: {other}"),
    })?;
    let profile =
        Profile::from_text(&text).map_err(|error| format!("{PROFILE}: {path}: {error}"))?;
    Ok((profile, threshold))
}

/// Registers the calling thread, and measures what a migration costs.
fn prepare(mover: Mover, (profile, threshold): (Profile, Threshold)) -> (Wanted, Passing) {
    let wanted = |cost| Settings::by_threshold(threshold, cost);
    let mut passing =
        Passing::new(mover, &Wanted::Profile(Profile::default(), wanted(Nanos::ZERO)), now());
    passing.register();
    (Wanted::Profile(profile, wanted(cost(&mover))), passing)
}

fn begin(mover: Mover, wanted: Option<Wanted>, passing: Option<Passing>) {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        // SAFETY: the handler takes no arguments, and the library stays loaded.
        unsafe { libc::atexit(at_exit) };
        // SAFETY: likewise.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    let session = Session { mover, wanted, names: Mutex::default() };
    let session = Box::leak(Box::new(session));
    if let Some(passing) = passing {
        keep(Own { session, passing });
    }
    // Ordering: Release pairs with the load in `session`.
    SESSION.store(session, Ordering::Release);
}

/// What a migration one way costs a registered thread.
fn cost(mover: &Mover) -> Nanos {
    let trip = |_| {
        let start = Instant::now();
        (mover.migrate)(crossing::code(Core::Slow));
        (mover.migrate)(crossing::code(Core::Fast));
        start.elapsed().as_nanos() / 2
    };
    let mut trips: Vec<u128> = (0..TRIPS).map(trip).collect();
    trips.sort_unstable();
    Nanos::from_ns(u64::try_from(trips[TRIPS / 2]).unwrap_or(u64::MAX))
}

impl Mover {
    /// The functions of a `libultmigration` that is loaded, or of its dummy. `None`: there is none.
    fn of_program() -> Option<Self> {
        let find = |name: &CStr| {
            // SAFETY: the name ends with a zero.
            let found: *mut c_void = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        let [register, unregister] = [find(c"ult_register_klt")?, find(c"ult_unregister_klt")?];
        let [registered, migrate] = [find(c"ult_registered")?, find(c"ult_migrate")?];
        Some(Self {
            // SAFETY: of this type in `ultmigration.h`.
            register: unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(register) },
            // SAFETY: likewise.
            unregister: unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(unregister) },
            // SAFETY: likewise.
            registered: unsafe {
                std::mem::transmute::<*mut c_void, extern "C" fn() -> std::ffi::c_int>(registered)
            },
            // SAFETY: likewise.
            migrate: unsafe {
                std::mem::transmute::<*mut c_void, extern "C" fn(std::ffi::c_uint)>(migrate)
            },
            core: None,
        })
    }
}

#[inline]
fn session() -> Option<&'static Session> {
    // Ordering: pairs with the store in `begin`.
    // SAFETY: null, or never freed.
    unsafe { SESSION.load(Ordering::Acquire).as_ref() }
}

/// Whether the calling thread has passed a mark in the session that is under way: then [`pass`]
/// starts nothing that the end of a thread undoes.
#[must_use]
pub fn has_joined() -> bool {
    let own = of_thread().own.get();
    // SAFETY: null, or valid until the thread leaves. The field does not change.
    let joined = (!own.is_null()).then(|| unsafe { (*own).session });
    session().is_some_and(|session| joined.is_some_and(|joined| std::ptr::eq(joined, session)))
}

/// Passes a mark. Returns false if no session is under way. A mark in a signal handler that has
/// interrupted another mark of its thread does nothing.
///
/// # Cost
/// A few nanoseconds if the thread stays; the first time in a thread, some microseconds, and it
/// allocates.
#[inline]
pub fn pass(place: &Place) -> bool {
    let session = session();
    let OfThread { own, is_busy } = of_thread();
    if !own.get().is_null() && !is_busy.replace(true) {
        // SAFETY: valid until `leave`. No other reference exists, because `is_busy` was false.
        let own = unsafe { &mut *own.get() };
        let has_passed = session.is_some_and(|session| own.pass(session, place));
        is_busy.set(false);
        if has_passed {
            return true;
        }
    }
    join(session, place)
}

/// Passes a mark, or prints once that it does nothing because no session is under way.
#[inline]
pub fn pass_in_session(place: &Place) {
    if !pass(place) && !of_thread().is_busy.get() {
        message::outside(LIBRARY, place);
    }
}

impl Own {
    /// Returns false if the session is another one.
    #[inline]
    fn pass(&mut self, session: &Session, place: &Place) -> bool {
        let Some(wanted) = session.wanted.as_ref().filter(|_| std::ptr::eq(self.session, session))
        else {
            return false;
        };
        let name = |planned| {
            let _errno = KeepErrno::new();
            let mut names = session.names.lock().unwrap_or_else(PoisonError::into_inner);
            let mark = names.id(place.mark());
            let marks = (mark.index() >= planned).then(|| names.marks().to_vec());
            Named { mark, is_constant: place.is_constant(), marks }
        };
        self.passing.pass(place.key(), wanted, name, now);
        true
    }
}

/// The thread's first mark in a session, or after one.
#[cold]
fn join(session: Option<&'static Session>, place: &Place) -> bool {
    let _errno = KeepErrno::new();
    // A signal handler may interrupt this, and pass a mark.
    if of_thread().is_busy.replace(true) || END.try_with(|_| ()).is_err() {
        return session.is_some();
    }
    leave();
    let wanted = session.and_then(|session| Some((session, session.wanted.as_ref()?)));
    if let Some((session, wanted)) = wanted {
        let passing = Passing::new(session.mover, wanted, now());
        keep(Own { session, passing });
    }
    of_thread().is_busy.set(false);
    if wanted.is_some() { pass(place) } else { session.is_some() }
}

/// Stores the thread's part of a session.
fn keep(own: Own) {
    if END.try_with(|_| ()).is_ok() {
        of_thread().own.set(Box::into_raw(Box::new(own)));
    }
}

/// Brings the calling thread home from a session.
fn leave() {
    let own = of_thread().own.replace(null_mut());
    if !own.is_null() {
        // SAFETY: from `Box::into_raw`, and used once, because `own` no longer has it.
        let mut own = unsafe { Box::from_raw(own) };
        // SAFETY: sessions are never freed.
        let wanted = unsafe { (*own.session).wanted.as_ref() };
        own.passing.leave(wanted);
    }
}

/// Ends the session: the calling thread comes home, others at their next mark. Prints which marks
/// of the profile no thread has passed. Returns false if there is no session.
pub fn end() -> bool {
    let _errno = KeepErrno::new();
    // Ordering: Acquire as in `session`.
    // SAFETY: null, or never freed.
    let session = unsafe { SESSION.swap(null_mut(), Ordering::Acquire).as_ref() };
    if !of_thread().is_busy.get() {
        leave();
    }
    session.inspect(|session| session.report()).is_some()
}

impl Session {
    /// Prints the marks of the profile that no thread has passed.
    fn report(&self) {
        let Some(Wanted::Profile(profile, _)) = &self.wanted else { return };
        let Ok(names) = self.names.try_lock() else { return };
        let unknown = profile.unknown(names.marks());
        if let Some(first) = unknown.first() {
            let count = unknown.len();
            let all = profile.values().count();
            message::print(
                LIBRARY,
                format_args!(
                    "the program passed no `{first}`: {count} of the profile's {all} marks were \
                     not passed"
                ),
            );
        }
    }
}

extern "C" fn at_exit() {
    if let Some(session) = session() {
        let _ = crate::contained(|| session.report());
    }
}

/// A child has no workers. Its thread is at home, as the parent's registration is not its own.
extern "C" fn in_child() {
    message::keep_silent();
    SESSION.store(null_mut(), Ordering::Relaxed);
    let own = of_thread().own.replace(null_mut());
    if !own.is_null() {
        // SAFETY: from `Box::into_raw`, and used once.
        drop(unsafe { Box::from_raw(own) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_profile_is_named_with_what_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("profile");
        let refused = |text: &str, threshold: Option<&str>| {
            std::fs::write(&path, text).unwrap();
            read(path.to_str(), threshold).unwrap_err()
        };
        let good = "\"a\" 0.5\n";
        assert!(refused(good, None).starts_with("SWP_THRESHOLD is not set"));
        assert!(refused(good, Some("much")).contains("`much` is no number: accepted are finite"));
        let said = refused("\"a\" -1\n", Some("0.1"));
        assert!(said.ends_with("line 1: `value` is `-1`, expected a finite number that is not negative, such as 0.003649"), "{said}");
        assert!(refused("\"a\"\n", Some("0.1")).contains("line 1: "));
        assert!(read(None, Some("0.1")).unwrap_err().starts_with("SWP_CFG is not set"));
        let said = read(Some("/no/such"), Some("0.1")).unwrap_err();
        assert!(said.starts_with("SWP_CFG: /no/such: No such file"), "{said}");
        std::fs::write(&path, good).unwrap();
        let (profile, threshold) = read(path.to_str(), Some("0.1")).unwrap();
        assert_eq!((profile.values().count(), threshold.value()), (1, 0.1));
    }
}
