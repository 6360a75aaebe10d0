//! Measuring: calls, time and counts of each edge, of all threads (paper 004 §4.1).
//!
//! A *session* lasts from [`start`] to [`end`], or to the process's end. Each thread that passes a
//! mark in it has a recorder of its own; the graphs of all are summed up at the end. A mark takes
//! no lock and makes no system call, except where it is new to the thread.
//!
//! A child of fork(2) has a session of its own, which starts with no counts.

use std::cell::Cell;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use dimmer_policy::phases::{Counters, Graph, Mark};
use dimmer_runtime::calls::KeepErrno;
use dimmer_runtime::of_thread;

use crate::message;
use crate::names::{Names, Place};
use crate::output::Output;
use crate::recorder::{self, Recorder, Shared};
use crate::source::Machine;

/// A recorder of the machine.
type Record = Shared<Machine>;

/// A measurement. Never freed: a thread may be in the middle of a mark when it ends.
#[derive(Debug)]
struct Session {
    /// The library's name in messages.
    library: &'static str,
    /// The process that writes the graph.
    process: u32,
    output: Output,
    /// What a mark costs.
    overhead: Counters,
    names: Mutex<Names>,
    /// The recorders of all threads that have not ended.
    records: Mutex<Vec<Arc<Record>>>,
    /// The sum of the threads that have ended.
    ended: Mutex<Graph>,
}

/// The session, if there is one.
static SESSION: AtomicPtr<Session> = AtomicPtr::new(null_mut());

/// A thread's part of a session.
struct OfThread {
    /// The session that the thread has joined; null before the first one.
    session: Cell<*const Session>,
    /// From [`Arc::into_raw`]; null without a session.
    record: Cell<*const Record>,
    /// Whether the thread is joining a session, or leaving one, or has ended.
    is_busy: Cell<bool>,
    /// Whether the thread is in [`pass_started`]'s start of a session. A signal handler's mark must
    /// not wait for what it has interrupted.
    is_starting: Cell<bool>,
    /// The session in which the thread measures what a mark costs, before all others have one.
    tried: Cell<*const Session>,
}

of_thread! {
    fn of_thread() -> OfThread, "dimmer_marks_measuring";
}

thread_local! {
    static END: EndOfThread = const { EndOfThread };
}

/// Adds the thread's graph to the session when the thread ends.
struct EndOfThread;

impl Drop for EndOfThread {
    fn drop(&mut self) {
        of_thread().is_busy.set(true);
        leave();
    }
}

/// How long the end of a session waits for another thread that is in a mark. No mark takes as
/// long: the thread has left it by siglongjmp(3), or is the one that waits, in a signal handler.
const PATIENCE: Duration = Duration::from_secs(1);

/// Locks within [`PATIENCE`].
fn lock_soon<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    let since = Instant::now();
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(error)) => return Some(error.into_inner()),
            Err(TryLockError::WouldBlock) if since.elapsed() < PATIENCE => std::thread::yield_now(),
            Err(TryLockError::WouldBlock) => return None,
        }
    }
}

/// Locks, also if a thread has panicked with the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a session. Without counters it measures calls and times, and prints the reason once. A
/// session that is under way ends first.
///
/// * `library`: the library's name in messages.
pub fn start(library: &'static str, output: Output) {
    let place = Place::Entry("overhead");
    start_with(library, output, || _ = pass(&place));
}

/// Likewise, for a program whose marks are passed in another way than by [`pass`] alone.
///
/// * `pass`: passes a mark in that way, always the same, to measure what it costs.
pub fn start_with(library: &'static str, output: Output, pass: impl FnMut()) {
    static PREPARED: Once = Once::new();
    static NO_COUNTERS: message::Once = message::Once::new();
    let _errno = KeepErrno::new();
    finish();
    PREPARED.call_once(|| {
        // SAFETY: the handler takes no arguments, and the library stays loaded.
        unsafe { libc::atexit(at_exit) };
        // SAFETY: likewise.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    if let Some(missing) = Machine::open().1 {
        NO_COUNTERS.print(library, || {
            format!(
                "marks are measured by calls and time alone, without instructions, cycles, L2 \
                 latency and L3 misses: {}",
                missing.why
            )
        });
    }
    let tried = Session::new(library, output.clone(), Counters::default());
    Session::new(library, output, overhead(&tried, pass)).begin();
}

/// What a mark costs: measured in a session that other threads do not see, as their marks in it
/// would be lost.
fn overhead(tried: &Session, pass: impl FnMut()) -> Counters {
    of_thread().tried.set(tried);
    let spent = || {
        // SAFETY: null, or valid until the thread leaves the session.
        let record = unsafe { of_thread().record.get().as_ref() }?;
        record.with(Recorder::spent)?
    };
    let overhead = recorder::overhead(pass, spent);
    of_thread().tried.set(null());
    forget();
    overhead
}

/// Whether a session is under way, for the calling thread at least.
#[must_use]
pub fn is_started() -> bool {
    current().is_some()
}

#[inline]
fn session() -> Option<&'static Session> {
    // Ordering: pairs with the store in `begin`.
    // SAFETY: null, or never freed.
    unsafe { SESSION.load(Ordering::Acquire).as_ref() }
}

/// The session in which the calling thread's marks count.
#[inline]
fn current<'a>() -> Option<&'a Session> {
    // SAFETY: null, or valid until `overhead` has measured: the caller is in a mark of that thread.
    session().or_else(|| unsafe { of_thread().tried.get().as_ref() })
}

/// Whether the calling thread has passed a mark in the session that is under way: then [`pass`]
/// starts nothing that the end of a thread undoes.
#[must_use]
pub fn has_joined() -> bool {
    current().is_some_and(|session| std::ptr::eq(of_thread().session.get(), session))
}

/// Passes a mark. Returns false if no session is under way. A mark in a signal handler that has
/// interrupted another mark of its thread does not count.
///
/// # Cost
/// Some 25 ns, more with counters; the first time in a thread, some microseconds, and it allocates.
#[inline]
pub fn pass(place: &Place) -> bool {
    let Some(session) = current() else { return false };
    session.pass(place);
    true
}

impl OfThread {
    /// Passes a mark in the session that the thread has joined.
    #[inline]
    fn pass(&self, session: &Session, place: &Place) {
        // SAFETY: valid until the thread leaves the session.
        let record = unsafe { &*self.record.get() };
        let number = || {
            let _errno = KeepErrno::new();
            (lock(&session.names).id(place.mark()), place.is_constant())
        };
        record.with(|recorder| recorder.pass(place.key(), number));
    }
}

/// Passes a mark, or prints once that it does not count because no session is under way.
#[inline]
pub fn pass_in_session(library: &str, place: &Place) {
    if !pass(place) {
        message::outside(library, place);
    }
}

/// Passes a mark if the environment asks for that (`DIMMER_MARKS`): starts a session at the first
/// mark of the process.
#[inline]
pub fn pass_started(place: &Place) {
    static ASKED: Once = Once::new();
    if !pass(place) && !ASKED.is_completed() && !of_thread().is_starting.replace(true) {
        ASKED.call_once(|| {
            if let Some(output) = Output::from_environment() {
                start("dimmer", output);
            }
        });
        of_thread().is_starting.set(false);
        pass(place);
    }
}

/// The thread's first mark in a session.
#[cold]
fn join(session: &Session, place: &Place) {
    let _errno = KeepErrno::new();
    // A thread whose storage is gone already has ended.
    if of_thread().is_busy.replace(true) || END.try_with(|_| ()).is_err() {
        return;
    }
    // What is left of an earlier session has been summed up, or belongs to the parent.
    forget();
    let record = Arc::new(Shared::new(Recorder::new(Machine::open().0, session.overhead)));
    lock(&session.records).push(Arc::clone(&record));
    let own = of_thread();
    own.record.set(Arc::into_raw(record));
    own.session.set(session);
    own.is_busy.set(false);
    own.pass(session, place);
}

/// Takes the calling thread's recorder out of its session.
fn forget() -> Option<Arc<Record>> {
    let own = of_thread();
    own.session.set(null());
    let record = own.record.replace(null());
    // SAFETY: from `Arc::into_raw`, and used once, because `record` no longer has it.
    (!record.is_null()).then(|| unsafe { Arc::from_raw(record) })
}

/// Adds the calling thread's graph to its session.
fn leave() {
    let joined = of_thread().session.get();
    let (Some(record), Some(session)) = (forget(), session()) else { return };
    if !std::ptr::eq(session, joined) {
        return;
    }
    let mut records = lock(&session.records);
    let count = records.len();
    records.retain(|other| !Arc::ptr_eq(other, &record));
    // Otherwise the session has ended, with this thread's graph.
    if records.len() < count {
        let marks = lock(&session.names).marks().to_vec();
        if let Some(graph) = record.with(|recorder| recorder.graph(&marks)) {
            lock(&session.ended).merge(&graph);
        }
    }
}

/// Ends the session: passes the mark `last` and writes the graph of all threads. Marks that other
/// threads pass later are not measured.
pub fn end(last: &Place) {
    let _errno = KeepErrno::new();
    pass(last);
    finish();
}

/// Ends the session and writes its graph, as far as the program has come. Nothing is written, nor
/// ended, by a process that shares the memory of the one that started the session (vfork(2)), or is
/// a copy of it that was made without the C library.
pub fn stop() -> Option<Stopped> {
    let _errno = KeepErrno::new();
    let session = session().filter(|session| session.is_own())?;
    let (library, output, overhead) = (session.library, session.output.clone(), session.overhead);
    finish();
    Some(Stopped { library, output, overhead })
}

/// A session that [`stop`] has ended.
#[derive(Debug)]
pub struct Stopped {
    library: &'static str,
    output: Output,
    overhead: Counters,
}

impl Stopped {
    /// Starts again with no counts.
    pub fn go_on(self) {
        Session::new(self.library, self.output, self.overhead).begin();
    }
}

/// Writes the graph so far, and starts again with no counts.
pub fn write_so_far() {
    if let Some(stopped) = stop() {
        stopped.go_on();
    }
}

/// Ends the session, if there is one, and writes its graph.
fn finish() {
    if !session().is_some_and(Session::is_own) {
        return;
    }
    // Ordering: Acquire as in `session`. A thread that is in a mark now may still complete it.
    // SAFETY: null, or never freed.
    let ended = unsafe { SESSION.swap(null_mut(), Ordering::Acquire).as_ref() };
    let graph = ended.and_then(|session| Some((session, session.graph()?)));
    if let Some((session, graph)) = graph
        && let Err(error) = session.output.write(&graph)
    {
        message::print(session.library, error);
    }
}

impl Session {
    fn new(library: &'static str, output: Output, overhead: Counters) -> Self {
        let (names, records, ended) = Default::default();
        let process = std::process::id();
        Self { library, process, output, overhead, names, records, ended }
    }

    /// From now on it is the session of all threads.
    fn begin(self) {
        // Ordering: Release pairs with the loads of `SESSION`.
        SESSION.store(Box::into_raw(Box::new(self)), Ordering::Release);
    }

    /// The calling thread passes a mark.
    #[inline]
    fn pass(&self, place: &Place) {
        let own = of_thread();
        if std::ptr::eq(own.session.get(), self) {
            own.pass(self, place);
        } else {
            join(self, place);
        }
    }

    /// Whether this process started it.
    fn is_own(&self) -> bool {
        self.process == std::process::id()
    }

    /// The sum of all threads, but for those that have left a mark by a jump. `None` if what this
    /// code has interrupted keeps it from being summed up.
    fn graph(&self) -> Option<Graph> {
        let records = std::mem::take(&mut *lock_soon(&self.records)?);
        let marks: Vec<Mark> = lock_soon(&self.names)?.marks().to_vec();
        let mut graph = lock_soon(&self.ended)?.clone();
        let since = Instant::now();
        let own = of_thread().record.get();
        for record in records {
            // The calling thread does not wait for itself: a handler may have interrupted a mark.
            let is_own = own == Arc::as_ptr(&record);
            loop {
                if let Some(one) = record.with(|recorder| recorder.graph(&marks)) {
                    graph.merge(&one);
                    break;
                }
                if is_own || since.elapsed() > PATIENCE {
                    break;
                }
                std::thread::yield_now();
            }
        }
        Some(graph)
    }
}

/// Writes the graph of a program that ends without [`end`].
extern "C" fn at_exit() {
    let _ = crate::contained(finish);
}

/// A child starts again with no counts: those of its parent are the parent's.
extern "C" fn in_child() {
    if let Some(session) = session() {
        Session::new(session.library, session.output.clone(), session.overhead).begin();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    /// Another thread passes marks all the time; each try may meet another moment of the start.
    #[test]
    fn no_mark_is_lost_while_a_session_starts() {
        const TRIES: usize = 300;
        const PASSED: u64 = 50;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("graph");
        let barrier = Barrier::new(2);
        let mut graphs = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                let place = Place::Rust("turn", "");
                for _ in 0..TRIES {
                    barrier.wait();
                    let mut passed = 0;
                    while passed < PASSED {
                        passed += u64::from(pass(&place));
                    }
                    barrier.wait();
                }
            });
            for _ in 0..TRIES {
                barrier.wait();
                start("test", Output::File(file.clone()));
                barrier.wait();
                finish();
                graphs.push(fs::read_to_string(&file).unwrap_or_default());
                _ = fs::remove_file(&file);
            }
        });
        for graph in graphs {
            let graph = Graph::from_text(&graph).unwrap();
            let calls: Vec<u64> = graph.edges().map(|(_, _, counts)| counts.calls).collect();
            assert_eq!(calls, [PASSED - 1]);
        }
    }
}
