//! Entries of functions as marks (paper 004): `dimmer observe --marks` measures what runs from one
//! to the next, and `dimmer run --phases` has threads migrate at them.
//!
//! All that is about marks is in [`dimmer_marks`]. Here is what an unmodified program needs:
//! nothing is printed, a thread starts with its marks only outside of signal handlers, the graph is
//! written before the process executes another program, ends by `_exit`, or restricts its system
//! calls, and threads migrate as calls do, so that they come home before what must run there
//! ([`home`]). Threads that may be cancelled anywhere pass no marks, as Rust's code does not stand
//! that.

use std::cell::Cell;
use std::ffi::{c_int, c_uint};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

use dimmer_hook::{
    Hooks, OWN_MARK, Phases, SIGNALS_ARE_RIGHT, cut_migration_short, is_migrated, is_restricted,
    note_away, note_home,
};
use dimmer_marks::measuring::{self, Stopped};
use dimmer_marks::migrating::{self, Mover};
use dimmer_marks::{Output, Place, crossing};
use dimmer_policy::phases::{Core, Profile, Settings, Threshold};
use dimmer_processor::units::Nanos;
use dimmer_runtime::calls::{
    KeepErrno, handlers_block_their_signals, may_be_in_handler, system_call,
};
use dimmer_runtime::of_thread;

use crate::cancel::MASK_BYTES;
use crate::{home, often};

/// The marks of this process.
struct Marks {
    names: Vec<String>,
    purpose: Purpose,
}

/// What they are for.
enum Purpose {
    /// Measuring; the graph goes to this file.
    Measure(PathBuf),
    /// Migrating by a profile.
    Migrate(Profile, Settings),
    /// Migrating by what is learned, which goes to a file in this directory.
    Learn(Settings, PathBuf),
}

impl Purpose {
    /// Starts a session, if threads are to migrate.
    fn start_migrating(&self) {
        match self {
            Self::Measure(_) => {}
            Self::Migrate(profile, settings) => {
                migrating::start_with(MOVER, profile.clone(), *settings);
            }
            Self::Learn(settings, _) => {
                LEARNER.store(std::process::id(), Ordering::Relaxed);
                migrating::start_learning(MOVER, *settings);
            }
        }
    }
}

static MARKS: OnceLock<Marks> = OnceLock::new();

/// The process that learns.
static LEARNER: AtomicU32 = AtomicU32::new(0);

/// What a thread that migrates keeps.
struct OfThread {
    /// Whether it left home at a mark, and has not come home at one.
    has_left: Cell<bool>,
    /// The signals to block after the mark that it is passing, if they change.
    mask: Cell<u64>,
    /// Whether they do.
    has_mask: Cell<bool>,
    /// How it was found to be in no signal handler, at home and away.
    out_of_handlers: [Cell<OutOfHandlers>; 2],
}

impl OfThread {
    fn set_mask(&self, mask: u64) {
        self.mask.set(mask);
        self.has_mask.set(true);
    }

    fn take_mask(&self) -> Option<u64> {
        self.has_mask.take().then(|| self.mask.get())
    }
}

/// A moment at which a thread was in no signal handler.
#[derive(Clone, Copy, PartialEq, Eq)]
struct OutOfHandlers {
    /// Whether there was one.
    is_known: bool,
    /// The signals that it blocked.
    blocked: u64,
    /// The number of handlers that the process had installed before.
    handlers: u32,
}

/// The number of handlers that the process has installed.
static HANDLERS: AtomicU32 = AtomicU32::new(0);

of_thread! {
    fn of_thread() -> OfThread, "dimmer_preload_marks";
}

/// Reads which marks there are, and what for, and has the hooks pass them. `None`: there are none.
pub(crate) fn prepare(hooks: &mut Hooks) -> Option<()> {
    let file = PathBuf::from(std::env::var_os(dimmer_hook::MARKS)?);
    let directory = file.parent()?;
    let names: Vec<String> =
        std::fs::read_to_string(&file).ok()?.lines().map(str::to_owned).collect();
    often::prepare(names.len());
    let purpose = match std::env::var(dimmer_hook::PHASES) {
        Ok(phases) => migrate(&phases, directory)?,
        Err(_) => Purpose::Measure(directory.join(dimmer_hook::GRAPH_FILE)),
    };
    dimmer_marks::silence();
    let _ = MARKS.set(Marks { names, purpose });
    dimmer_hook::never_time();
    if hooks.pass_marks(pass).is_err() {
        hooks.refuse("marks cannot be passed: the processor has neither XSAVE nor XSAVEC");
    }
    Some(())
}

/// What the observer has written about migrating, see [`dimmer_hook::PHASES`].
fn migrate(phases: &str, directory: &Path) -> Option<Purpose> {
    let mut words: Vec<&str> = phases.split(' ').collect();
    let learns = words.first() == Some(&dimmer_hook::LEARN);
    let [threshold, cost_ns] = words.split_off(usize::from(learns))[..] else { return None };
    let threshold = Threshold::parse(threshold).ok()?;
    let cost = Nanos::from_ns(cost_ns.parse().ok()?);
    if learns {
        return Some(Purpose::Learn(Settings::learning(threshold, cost), directory.to_owned()));
    }
    let profile = std::fs::read_to_string(directory.join(dimmer_hook::PROFILE_FILE)).ok()?;
    let profile = Profile::from_text(&profile).ok()?;
    Some(Purpose::Migrate(profile, Settings::by_threshold(threshold, cost)))
}

/// Starts with marks, once something is hooked.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    let Some(marks) = MARKS.get() else { return };
    STARTED.call_once(|| match &marks.purpose {
        Purpose::Measure(graph) => {
            let output = Output::File(graph.clone());
            measuring::start_with("dimmer", output, dimmer_hook::pass_own_mark);
        }
        Purpose::Migrate(..) => marks.purpose.start_migrating(),
        Purpose::Learn(..) => {
            marks.purpose.start_migrating();
            // SAFETY: the handler takes no arguments, and this library stays loaded.
            unsafe { libc::atexit(at_exit) };
        }
    });
}

extern "C" fn at_exit() {
    stop();
}

/// What the hooks call at a mark.
extern "C" fn pass(number: u32) -> u64 {
    let _errno = KeepErrno::new();
    catch_unwind(|| pass_named(number)).ok().flatten().unwrap_or(SIGNALS_ARE_RIGHT)
}

/// Passes a mark. Returns the signals to block after it, if they change.
fn pass_named(number: u32) -> Option<u64> {
    let marks = MARKS.get()?;
    let name = if number == OWN_MARK {
        "overhead"
    } else {
        marks.names.get(usize::try_from(number).ok()?)?
    };
    let place = Place::Entry(name);
    match &marks.purpose {
        Purpose::Measure(_) => {
            if measuring::is_started() && (measuring::has_joined() || may_join()) {
                measuring::pass(&place);
                often::note(number);
            }
            None
        }
        Purpose::Migrate(..) | Purpose::Learn(..) => {
            let is_known = migrating::has_joined();
            if !is_known && (number == OWN_MARK || !may_join()) {
                return None;
            }
            let own = of_thread();
            own.has_mask.set(false);
            if !is_known {
                own.has_left.set(false);
            }
            notice_early_return(own);
            // A child of a fork starts again.
            if !migrating::pass(&place) {
                marks.purpose.start_migrating();
                migrating::pass(&place);
            }
            often::note(number);
            own.take_mask()
        }
    }
}

/// Whether the calling thread may start with marks now: that opens counters, and registers what is
/// done at the thread's end, which the C library allocates for.
fn may_join() -> bool {
    !is_restricted() && !may_be_in_handler()
}

/// Writes the graph of the process so far, which then starts again with no counts: another program
/// is about to take its place. Likewise what it has learned.
pub(crate) fn write_so_far() {
    let Some(marks) = MARKS.get().filter(|_| !is_restricted()) else { return };
    let _ = catch_unwind(|| match &marks.purpose {
        Purpose::Measure(_) => measuring::write_so_far(),
        Purpose::Migrate(..) => {}
        Purpose::Learn(_, directory) => write_learned(directory),
    });
}

/// Writes the graph of the process, and measures no more, unless the result goes on. Likewise
/// writes what it has learned.
pub(crate) fn stop() -> Option<Stopped> {
    let marks = MARKS.get().filter(|_| !is_restricted())?;
    let stop = || match &marks.purpose {
        Purpose::Measure(_) => measuring::stop(),
        Purpose::Migrate(..) => None,
        Purpose::Learn(_, directory) => {
            write_learned(directory);
            None
        }
    };
    catch_unwind(stop).ok().flatten()
}

/// Writes what the process has learned so far, instead of what it has written before. A file that
/// cannot be written is none. A child of vfork(2) has learned nothing of its own.
fn write_learned(directory: &Path) {
    let _errno = KeepErrno::new();
    let process = std::process::id();
    if process != LEARNER.load(Ordering::Relaxed) {
        return;
    }
    if let Some(profile) = migrating::learned() {
        let file = directory.join(format!("{}{process}", dimmer_hook::LEARNED_FILE));
        let _ = std::fs::write(file, profile.to_text());
    }
}

/// How threads migrate at marks. A thread is at home where it is: `dimmer run` keeps it off the
/// slow CPUs.
const MOVER: Mover =
    Mover { register, unregister, registered, migrate: migrate_to, core: Some(core) };

extern "C" fn register() {}

/// The thread ends. If it was cancelled on a worker, the handler has left signals blocked there, so
/// it comes home as from the middle of a call.
extern "C" fn unregister() {
    let own = of_thread();
    cut_migration_short();
    notice_early_return(own);
    if let Some(mask) = own.take_mask() {
        install(mask);
    }
}

extern "C" fn registered() -> c_int {
    0
}

fn core() -> Core {
    if is_migrated() { Core::Slow } else { Core::Fast }
}

/// A handler returns by a system call, which must be made where the handler was called.
extern "C" fn migrate_to(code: c_uint) {
    let own = of_thread();
    match (code, is_migrated()) {
        (crossing::SLOW_CODE, false) if !is_in_handler(own) => go_away(own),
        (crossing::FAST_CODE, true) if !is_in_handler(own) => come_home(own),
        _ => {}
    }
}

fn go_away(own: &OfThread) {
    let kernel_thread = (home::MOVER.begin_migration)(0);
    if kernel_thread != 0 {
        note_away(kernel_thread);
        own.has_left.set(true);
        Phases::own().iter().for_each(|phases| phases.goes());
    }
}

fn come_home(own: &OfThread) {
    note_home();
    own.has_left.set(false);
    own.set_mask((home::MOVER.end_migration)());
    Phases::own().iter().for_each(|phases| phases.comes_back());
}

/// Whether the calling thread may be in a signal handler. Costs a system call, if it blocks the
/// same signals as when that was looked for last: in a handler, another one is blocked.
fn is_in_handler(own: &OfThread) -> bool {
    let out = &own.out_of_handlers[usize::from(is_migrated())];
    let now = OutOfHandlers {
        is_known: true,
        blocked: blocked(),
        handlers: HANDLERS.load(Ordering::Relaxed),
    };
    if out.get() == now {
        return false;
    }
    let is_in_one = may_be_in_handler();
    let holds = !is_in_one && handlers_block_their_signals();
    out.set(OutOfHandlers { is_known: holds, ..now });
    is_in_one
}

/// Notes that the program installs a handler.
pub(crate) fn note_handler() {
    HANDLERS.fetch_add(1, Ordering::Relaxed);
}

/// The signals that the calling thread blocks, in the kernel's format.
fn blocked() -> u64 {
    let mut mask = 0_u64;
    let to = (&raw mut mask).expose_provenance().cast_signed() as i64;
    // SAFETY: writes a mask of that length.
    unsafe { system_call(libc::SYS_rt_sigprocmask, [0, 0, to, MASK_BYTES, 0, 0]) };
    mask
}

/// Notices that the thread came home between two marks, for what must run there.
fn notice_early_return(own: &OfThread) {
    if own.has_left.get() && !is_migrated() {
        own.has_left.set(false);
        own.set_mask((home::MOVER.end_cut_migration)());
        Phases::own().iter().for_each(|phases| phases.comes_back());
    }
}

/// Blocks these signals and no others.
fn install(mask: u64) {
    if mask != SIGNALS_ARE_RIGHT {
        let from = (&raw const mask).expose_provenance().cast_signed() as i64;
        let arguments = [libc::SIG_SETMASK.into(), from, 0, MASK_BYTES, 0, 0];
        // SAFETY: reads a mask of that length.
        unsafe { system_call(libc::SYS_rt_sigprocmask, arguments) };
    }
}
