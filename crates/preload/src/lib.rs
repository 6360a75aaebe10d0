//! The library that `dimmer observe` and `dimmer run` make the loader put into the programs that
//! they start (`LD_PRELOAD`).
//!
//! To observe, it hooks what is loaded before any of it runs, and what `dlopen` loads as soon as it
//! is mapped. The environment holds the settings: [`dimmer_hook::DIRECTORY`],
//! [`dimmer_hook::CLASSES`] and [`dimmer_hook::PLANS`]. With [`dimmer_hook::MOVE`], hooked calls
//! are moved to the cores of [`dimmer_runtime::CORES`], as the ledger decides (`home`); or threads
//! that make such calls go to the CPUs of [`dimmer_runtime::wide::SPECIALISE`] (`affinity`). To
//! narrow, it hides features from the CPUID instruction (`cpuid`), by
//! [`dimmer_narrow::CPUID_WIDTH`]. It can do both at once. Without these variables, with
//! [`off::OFF`], or under a filter of system calls that another program of the run has set, it does
//! nothing. If anything goes wrong, the program runs as without it.

mod affinity;
mod allocator;
mod arch;
mod backtrace;
mod cancel;
mod confine;
mod cpuid;
mod exec;
mod heap;
mod home;
mod marks;
mod mutexes;
mod next;
mod often;
mod parts;
mod program;
mod readable;
mod sections;
mod signals;
mod thread;

use std::collections::BTreeSet;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use dimmer_hook::{GivenUp, Hooks, Loaded, Objects, OwnLedger};
use dimmer_processor::class::InstructionClass;
use dimmer_runtime::calls::KeepErrno;
use dimmer_runtime::{CannotMigrate, filters, off};

use crate::arch::empty_function::{FUNCTION_BYTES, is_empty_function, jump_to};

/// The hooks of this process.
struct Session {
    objects: Objects,
    hooks: Hooks,
    /// The files that were loaded at the last look.
    known: BTreeSet<Loaded>,
    /// Starts the threads that move calls; `None` if nothing moves, or if these are started.
    start: Option<fn()>,
}

// The unwinder is this library's own. The shared one would be loaded into each program, where it
// queries the features of the processor before anything runs: ten CPUIDs, each of which leaves a
// virtual machine.
#[cfg(own_unwinder)]
#[link(name = "dimmer_unwinder", kind = "static", modifiers = "-bundle")]
unsafe extern "C" {}

static SESSION: Mutex<Option<Session>> = Mutex::new(None);

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = begin;

unsafe extern "C" {
    static mut environ: *const *const c_char;
}

/// The loader's arguments are those of `main`.
extern "C" fn begin(
    _count: c_int,
    _arguments: *const *const c_char,
    environment: *const *const c_char,
) {
    // The program finds 0 in it at the start of `main`, as C promises.
    let _errno = KeepErrno::new();
    // The C library sets this when it is initialised, which is later.
    // SAFETY: there is one thread.
    unsafe { environ = environment };
    heap::begin();
    // A panic must not leave this library, nor print anything. The standard library here is this
    // library's own.
    std::panic::set_hook(Box::new(|_| {}));
    let _ = std::panic::catch_unwind(home::find_next);
    let _ = std::panic::catch_unwind(affinity::find_next);
    let _ = std::panic::catch_unwind(backtrace::find_next);
    let _ = std::panic::catch_unwind(cancel::find_next);
    let _ = std::panic::catch_unwind(mutexes::find_next);
    let _ = std::panic::catch_unwind(signals::find_next);
    let _ = std::panic::catch_unwind(exec::begin);
    if off::is_off() {
        return;
    }
    if std::panic::catch_unwind(has_filter_of_run).unwrap_or(false) {
        dimmer_hook::has_given_up(GivenUp::SystemCalls);
        return;
    }
    let _ = std::panic::catch_unwind(cpuid::start);
    let _ = std::panic::catch_unwind(start);
}

fn has_filter_of_run() -> bool {
    filters::has_filter_of_run(std::env::var_os(filters::FILTERS).as_deref())
}

fn start() -> Option<()> {
    let directory = std::env::var_os(dimmer_hook::DIRECTORY)?;
    let classes = std::env::var(dimmer_hook::CLASSES).ok()?;
    let classes: BTreeSet<InstructionClass> =
        classes.split(',').filter_map(|class| class.parse().ok()).collect();
    let objects = Objects::find()?;
    let ledger = OwnLedger::create(Path::new(&directory)).ok()?;
    let plans = std::env::var_os(dimmer_hook::PLANS).map(PathBuf::from);
    let mut hooks = Hooks::new(ledger, classes, plans);
    let _ = marks::prepare(&mut hooks);
    // SAFETY: `begin` has set it, or the C library; no other thread changes it.
    let _ = sections::prepare(&mut hooks, unsafe { environ });
    if matches!(dimmer_runtime::check_migration(), Err(CannotMigrate::Valgrind)) {
        // Valgrind does not support the segment registers that timed calls write either.
        hooks.refuse("Valgrind runs the process, which does not know all that hooks do");
    }
    if dimmer_runtime::calls::threads().is_some_and(|threads| threads > 1) {
        // Another library that asks to be initialised first has started one, which may be in the
        // middle of what hooks replace.
        hooks.refuse("a thread ran before Dimmer's library was initialised");
    }
    let mut start: Option<fn()> = None;
    if let Some(moved) = std::env::var_os(dimmer_hook::MOVE) {
        // Now, because programs change their environment (nginx empties it), and because calls that
        // move may not allocate.
        dimmer_runtime::calls::prepare_to_move();
        // If this fails, calls stay at home.
        if let Some(specialised) = std::env::var_os(dimmer_runtime::wide::SPECIALISE) {
            let specialised = specialised.to_string_lossy();
            if affinity::prepare(&specialised) && hooks.stop_at_gates(affinity::AT_GATES).is_ok() {
                affinity::start(hooks.orders());
                start = Some(dimmer_runtime::wide::start);
            }
        } else if hooks.move_by(home::MOVER, moved == "all").is_ok() {
            home::begin(hooks.orders());
            start = Some(home::start_workers);
        }
    }
    let mut session = Session { objects, hooks, known: BTreeSet::new(), start };
    session.look();
    let changed = session.objects.changed();
    *SESSION.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
    // SAFETY: these handlers may run before a fork and in its child: they wait for no lock, and the
    // second one writes only to its own thread's memory and to atomic numbers.
    unsafe { libc::pthread_atfork(Some(expect_process), None, Some(forked)) };
    redirect(changed);
    Some(())
}

impl Session {
    /// Hooks what was loaded since the last look.
    fn look(&mut self) {
        let loaded = self.objects.loaded();
        let new: Vec<&Loaded> =
            loaded.iter().filter(|loaded| !self.known.contains(loaded)).collect();
        if !new.is_empty() {
            // Hooking allocates, and may be by functions that are hooked in the middle of it.
            self.start.iter().for_each(|_| dimmer_runtime::calls::start_nothing());
            // SAFETY: the files' code does not run yet: either only the loader's code runs, or the
            // loader has just mapped them. Errors are noted in the ledger.
            unsafe { self.hooks.take(&new) };
            self.start = self.start.filter(|start| self.starts_when_needed(*start));
            if !self.hooks.hooked().is_empty() {
                marks::start();
            }
        }
        self.known = loaded.into_iter().collect();
    }

    /// Decides when threads start that move calls: now, or, if it returns true, when they are
    /// needed.
    fn starts_when_needed(&self, start: fn()) -> bool {
        let is_now = allocator::may_call(self.hooks.hooked());
        if is_now {
            dimmer_runtime::calls::start_in_advance(start);
        } else {
            dimmer_runtime::calls::start_when_needed();
        }
        !is_now
    }
}

/// Runs before this process forks: the child needs a slot for its calls.
extern "C" fn expect_process() {
    let _errno = KeepErrno::new();
    let _ = std::panic::catch_unwind(dimmer_hook::expect_process);
}

extern "C" fn forked() {
    dimmer_hook::forget_thread();
    mutexes::forget();
    often::forget();
}

/// Called by the loader after it has changed its list, or before.
extern "C" fn changed() {
    let _ = std::panic::catch_unwind(|| {
        // The loader's lock is held, so only this thread can come here again: hooks may load
        // nothing, but their memory allocator may be the program's.
        if let Ok(mut session) = SESSION.try_lock()
            && let Some(session) = session.as_mut()
            && session.objects.is_consistent()
        {
            session.look();
        }
    });
}

/// Makes the loader's empty function for debuggers lead to [`changed`]. Writes a jump over it.
fn redirect(empty: u64) {
    let code = jump_to(changed);
    let Ok(at) = usize::try_from(empty) else { return };
    let live = std::ptr::with_exposed_provenance_mut::<u8>(at);
    // SAFETY: the loader's code is readable, and functions there are this far apart.
    let head = unsafe { std::slice::from_raw_parts(live, FUNCTION_BYTES) };
    if !at.is_multiple_of(FUNCTION_BYTES) || !is_empty_function(head) {
        return;
    }
    let Some(file) = file_at(live) else { return };
    // SAFETY: the loader's own page. No thread runs it: this thread does not come from there, and
    // there is no other.
    let replaced = unsafe { dimmer_hook::replace_code(&file, empty, &code) };
    // If the loader's code cannot be changed, no other code can, so nothing that it loads would be
    // hooked.
    drop(replaced);
}

/// What the loader knows of the file that is mapped at an address; `None` if it has loaded none
/// there.
fn loaded_at(address: *const u8) -> Option<libc::Dl_info> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `info` lives until the call returns. The address is compared, never read.
    let is_found = unsafe { libc::dladdr(address.cast(), info.as_mut_ptr()) } != 0;
    // SAFETY: the lookup has succeeded, so `info` is filled.
    is_found.then(|| unsafe { info.assume_init() })
}

/// Opens the file that is mapped at an address.
fn file_at(address: *const u8) -> Option<File> {
    let name = loaded_at(address)?.dli_fname;
    // SAFETY: the loader's name of a loaded file, which ends with a zero byte.
    let name = unsafe { CStr::from_ptr(name) };
    File::open(OsStr::from_bytes(name.to_bytes())).ok()
}
